//! Owner types of what a port's reactor posts to and polls: one per C handle.
//!
//! Each holds its parent, so nothing is given back before what was made from it. Posting is
//! `unsafe` here: the caller, the reactor, owns the memory that a request names until the
//! device is done with it.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use keyway_proto::QpAddress;
use keyway_sys::verbs::abi::{
    self, CompChannel, Cq, Mw, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Wc,
};
use keyway_sys::verbs::{call_error, last_error};
use rustix::io::Errno;

use super::device::non_blocking;
use super::dynamic::{DcTarget, Poster};
use super::port::PortInfo;
use super::route::Vector;
use super::undertaker::abort;
use super::{Device, Domain, VerbsError};

/// READs that a requester has in flight, and that a responder serves. Every adapter can do
/// as many.
const READS_IN_FLIGHT: u8 = 8;
/// Tries before the peer is taken for dead: with the shortest ACK timeout after 1.6 to 7 s. Not 7,
/// which soft-RoCE takes for "without end".
const RETRIES: u8 = 6;
/// Tries when the peer has no receive posted. It always has, so few are enough.
const RNR_RETRIES: u8 = 3;
/// The pause it asks for then: code 12 is 0.64 ms.
pub(super) const RNR_TIMER: u8 = 12;
/// Bytes that a request is to have room for in itself, so that the device need not fetch them: what
/// adapters give without making the send queue's entries much longer.
const INLINE_BYTES: u32 = 128;

/// A completion queue with its channel. Polled by one thread at a time.
///
/// Invariant: `cq` was made with `channel`, and both are given back once, the queue first.
pub(super) struct CompletionQueue {
    device: Arc<Device>,
    channel: NonNull<CompChannel>,
    pub(super) cq: NonNull<Cq>,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> Result<Self, VerbsError> {
        let verbs = device.verbs();
        // SAFETY: the context is open.
        let channel = unsafe { (verbs.create_comp_channel)(device.context().as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| last_error("ibv_create_comp_channel"))?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the channel is of this context.
        let cq = unsafe {
            (verbs.create_cq)(device.context().as_ptr(), entries, null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = last_error("ibv_create_cq");
            // SAFETY: nothing uses the channel.
            unsafe { (verbs.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error.into());
        };
        let queue = Self { device: Arc::clone(device), channel, cq };
        non_blocking(queue.fd())?;
        Ok(queue)
    }

    /// Takes completions out; tells how many.
    pub(super) fn poll(&self, completions: &mut [Wc]) -> Result<usize, VerbsError> {
        let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives, and there is room for as many as asked.
        let count = unsafe {
            (self.device.ops().poll_cq)(self.cq.as_ptr(), room, completions.as_mut_ptr())
        };
        usize::try_from(count).map_err(|_| call_error("ibv_poll_cq", -count).into())
    }

    /// Has the channel become readable with the next completion.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue lives.
        let code = unsafe { (self.device.ops().req_notify_cq)(self.cq.as_ptr(), 0) };
        if code == 0 { Ok(()) } else { Err(call_error("ibv_req_notify_cq", code).into()) }
    }

    /// Takes the channel's events; call when it is readable.
    pub(super) fn acknowledge(&self) {
        let (mut cq, mut context) = (null_mut::<Cq>(), null_mut::<c_void>());
        // SAFETY: the channel lives and is non-blocking; an event of it is of this queue.
        while unsafe {
            (self.device.verbs().get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context)
        } == 0
        {
            // SAFETY: one event was taken.
            unsafe { (self.device.verbs().ack_cq_events)(cq, 1) };
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let verbs = self.device.verbs();
        // SAFETY: the queue pairs that used it held it; all its events are acknowledged.
        let code = unsafe { (verbs.destroy_cq)(self.cq.as_ptr()) };
        // SAFETY: its one queue is gone.
        let code = code | unsafe { (verbs.destroy_comp_channel)(self.channel.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot give back a completion queue");
        }
    }
}

/// A queue pair of the reliable connected service, or an end of dynamically connected transport.
///
/// Invariant: `qp` is of `domain`, completes into `cq`, and is destroyed once. When the
/// destructor returns, the device touches no memory on its behalf.
pub(super) struct QueuePair {
    domain: Arc<Domain>,
    _cq: Arc<CompletionQueue>,
    qp: NonNull<Qp>,
    psn: u32,
    /// Most bytes that a request may carry in itself.
    inline_max: u32,
    /// How it posts, where it is an initiator's.
    poster: Option<Poster>,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(super) fn new(
        domain: &Arc<Domain>,
        cq: &Arc<CompletionQueue>,
        sends: u32,
        receives: u32,
    ) -> Result<Self, VerbsError> {
        let mut attributes = QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq.cq.as_ptr(),
            recv_cq: cq.cq.as_ptr(),
            srq: null_mut(),
            cap: QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        let device = domain.device();
        let mut create = |inline| {
            attributes.cap.max_inline_data = inline;
            // SAFETY: domain and queue are of one context, checked by the port that calls.
            let qp =
                unsafe { (device.verbs().create_qp)(domain.pd().as_ptr(), &raw mut attributes) };
            NonNull::new(qp)
        };
        // Some devices refuse more than they have, and none says before how much that is.
        let qp = create(INLINE_BYTES).or_else(|| create(0));
        let qp = qp.ok_or_else(|| last_error("ibv_create_qp"))?;
        let mut made = Self::adopt(domain, cq, qp, None);
        made.inline_max = attributes.cap.max_inline_data;
        Ok(made)
    }

    /// Takes over what was just made in the domain, completing into the queue.
    pub(super) fn adopt(
        domain: &Arc<Domain>,
        cq: &Arc<CompletionQueue>,
        qp: NonNull<Qp>,
        poster: Option<Poster>,
    ) -> Self {
        let psn = fastrand::u32(..1 << 24);
        let (domain, cq) = (Arc::clone(domain), Arc::clone(cq));
        Self { domain, _cq: cq, qp, psn, inline_max: 0, poster }
    }

    pub(super) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    pub(super) fn psn(&self) -> u32 {
        self.psn
    }

    pub(super) fn is(&self, element: *mut c_void) -> bool {
        self.qp.as_ptr().cast() == element
    }

    /// Ready for receives to be posted. What the peer may do is bounded by windows and
    /// registrations; the queue pair itself allows both directions.
    pub(super) fn initialise(&self, port: &PortInfo) -> Result<(), VerbsError> {
        let access = abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ;
        let attributes = QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: port.number,
            qp_access_flags: access as c_uint,
            ..QpAttr::default()
        };
        let mask = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
        self.modify(attributes, mask)
    }

    /// Connects to the peer: ready to receive, then to send.
    pub(super) fn connect(&self, peer: &QpAddress, vector: &Vector) -> Result<(), VerbsError> {
        let receive = QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: mtu_code(vector.mtu.bytes()),
            dest_qp_num: peer.qp,
            rq_psn: peer.psn,
            max_dest_rd_atomic: READS_IN_FLIGHT,
            min_rnr_timer: RNR_TIMER,
            ah_attr: vector.address,
            ..QpAttr::default()
        };
        let mask = abi::QP_STATE
            | abi::QP_AV
            | abi::QP_PATH_MTU
            | abi::QP_DEST_QPN
            | abi::QP_RQ_PSN
            | abi::QP_MAX_DEST_RD_ATOMIC
            | abi::QP_MIN_RNR_TIMER;
        self.modify(receive, mask)?;
        self.ready_to_send(vector.ack_timeout)
    }

    /// The step from ready to receive to ready to send.
    pub(super) fn ready_to_send(&self, ack_timeout: u8) -> Result<(), VerbsError> {
        let send = QpAttr {
            qp_state: abi::QPS_RTS,
            sq_psn: self.psn,
            timeout: ack_timeout,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: READS_IN_FLIGHT,
            ..QpAttr::default()
        };
        let mask = abi::QP_STATE
            | abi::QP_TIMEOUT
            | abi::QP_RETRY_CNT
            | abi::QP_RNR_RETRY
            | abi::QP_SQ_PSN
            | abi::QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask)
    }

    /// Ends all work: what is posted flushes.
    pub(super) fn fail(&self) -> Result<(), VerbsError> {
        let attributes = QpAttr { qp_state: abi::QPS_ERR, ..QpAttr::default() };
        self.modify(attributes, abi::QP_STATE)
    }

    /// Posts requests with one doorbell.
    ///
    /// # Safety
    /// The memory that the requests name stays valid, and its owner leaves it to the device,
    /// until their completion was polled or the queue pair is destroyed.
    pub(super) unsafe fn post(&self, requests: &mut [SendWr]) -> Result<(), VerbsError> {
        for at in 1..requests.len() {
            requests[at - 1].next = &raw mut requests[at];
        }
        let Some(first) = requests.first_mut() else { return Ok(()) };
        let mut bad = null_mut();
        // SAFETY: the chain ends with a null pointer and lives during the call, which copies
        // it; the memory is the caller's promise.
        let code = unsafe {
            (self.domain.device().ops().post_send)(self.qp.as_ptr(), first, &raw mut bad)
        };
        if code == 0 { Ok(()) } else { Err(call_error("ibv_post_send", code).into()) }
    }

    /// Posts requests to a dynamically connected target with one doorbell.
    ///
    /// # Safety
    /// As for [`post`](Self::post); and the target stays until then, too.
    pub(super) unsafe fn post_to(
        &self,
        requests: &[SendWr],
        to: &DcTarget,
    ) -> Result<(), VerbsError> {
        let poster = self.poster.as_ref().expect("an initiator's queue pair");
        // SAFETY: the queue pair lives; the memory and the target are the caller's promise.
        let code = unsafe { poster.post(requests, to) };
        if code == 0 { Ok(()) } else { Err(call_error("ibv_wr_complete", code).into()) }
    }

    /// Posts receives without memory: they take messages that carry an invalidation alone.
    pub(super) fn receive(&self, id: u64, count: u32) -> Result<(), VerbsError> {
        for _ in 0..count {
            let mut request =
                RecvWr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut bad = null_mut();
            // SAFETY: the request lives during the call and names no memory.
            let code = unsafe {
                (self.domain.device().ops().post_recv)(
                    self.qp.as_ptr(),
                    &raw mut request,
                    &raw mut bad,
                )
            };
            if code != 0 {
                return Err(call_error("ibv_post_recv", code).into());
            }
        }
        Ok(())
    }

    pub(super) fn modify(&self, mut attributes: QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let verbs = self.domain.device().verbs();
        // SAFETY: the queue pair lives, and the fields that the mask names are set.
        let code = unsafe { (verbs.modify_qp)(self.qp.as_ptr(), &raw mut attributes, mask) };
        if code == 0 { Ok(()) } else { Err(call_error("ibv_modify_qp", code).into()) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let device = self.domain.device();
        // SAFETY: destroyed once; its windows are gone, as the undertaker sees to.
        let code = unsafe { (device.verbs().destroy_qp)(self.qp.as_ptr()) };
        if code != 0 && !(code == Errno::IO.raw_os_error() && device.is_gone()) {
            // Work may still be under way. A panic would unwind through the owners of its memory,
            // which free it, and tell those who wait that the device is done with it.
            abort(format_args!("a queue pair cannot be destroyed: {code}"));
        }
    }
}

/// The header's code of an MTU: 1 for 256 bytes, 5 for 4,096.
pub(super) fn mtu_code(bytes: u32) -> c_int {
    bytes.trailing_zeros() as c_int - 7
}

const _: () = assert!(256u32.trailing_zeros() == 8 && 4096u32.trailing_zeros() == 12);

/// A type-2 memory window. Bound by a work request, and free again by an invalidation.
///
/// Invariant: `mw` is of `domain`, and is given back once.
pub(super) struct Window {
    domain: Arc<Domain>,
    mw: NonNull<Mw>,
    /// Binds so far. Its key's tag has 8 bits.
    binds: u32,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Window {}

impl Window {
    /// Binds before a window is retired: one less than its key has tags, so that no tag of it
    /// comes twice.
    pub(super) const BINDS_MAX: u32 = 255;

    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, VerbsError> {
        let unsupported =
            || call_error("ibv_alloc_mw", rustix::io::Errno::OPNOTSUPP.raw_os_error());
        let alloc = domain.device().ops().alloc_mw.ok_or_else(unsupported)?;
        // SAFETY: the domain lives.
        let mw = unsafe { alloc(domain.pd().as_ptr(), abi::MW_TYPE_2) };
        let mw = NonNull::new(mw).ok_or_else(|| last_error("ibv_alloc_mw"))?;
        Ok(Self { domain: Arc::clone(domain), mw, binds: 0 })
    }

    /// A new window in the place of this one.
    pub(super) fn successor(&self) -> Result<Self, VerbsError> {
        Self::new(&self.domain)
    }

    pub(super) fn is_worn(&self) -> bool {
        self.binds >= Self::BINDS_MAX
    }

    pub(super) fn mw(&self) -> NonNull<Mw> {
        self.mw
    }

    /// The key that the next bind gives: the tag one further.
    pub(super) fn next_key(&self) -> u32 {
        // SAFETY: the window lives.
        let key = unsafe { (*self.mw.as_ptr()).rkey };
        key & !0xff | key.wrapping_add(1) & 0xff
    }

    /// Takes note that a bind with this key was posted.
    pub(super) fn bound(&mut self, key: u32) {
        self.binds += 1;
        // SAFETY: the window lives; the header leaves this field to the application after
        // a bind by work request.
        unsafe { (*self.mw.as_ptr()).rkey = key };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Some(dealloc) = self.domain.device().ops().dealloc_mw else { return };
        // SAFETY: given back once; no work request names it any more.
        let code = unsafe { dealloc(self.mw.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot give back a memory window");
        }
    }
}
