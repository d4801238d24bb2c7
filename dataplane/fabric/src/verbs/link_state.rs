//! A link, as its port's thread keeps it: the queue pair, what is posted to it, its windows.
//!
//! Invariant: all that a posted request names is owned by `works` until its completion was
//! polled; what a bound window covers, by its slot until the key is dead. What is left when
//! the link ends goes to the undertaker with the queue pair.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::c_uint;
use std::sync::Arc;

use keyway_proto::RemoteKey;
use keyway_proto::key::Direction;
use keyway_sys::verbs::abi::{self, BindMw, SendWr, Sge, Wc};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use super::dynamic::DcTarget;
use super::link::Landed;
use super::port::CqShare;
use super::queue::{QueuePair, Window};
use super::undertaker::Burial;
use super::work::{Bind, Bound, Held, Lend, Reply, Request, Verb, Work};
use super::{Quirks, Registration, VerbsError};
use crate::LinkError;

/// A link of a port's thread.
pub(super) struct LinkState {
    id: u32,
    qp: QueuePair,
    works: VecDeque<Work>,
    next_work: u32,
    slots: Vec<Slot>,
    /// First in, first out: a key's tag is reused as late as possible.
    free: VecDeque<usize>,
    /// Slots by the key that is bound.
    keys: HashMap<u32, usize>,
    status: watch::Sender<Option<LinkError>>,
    share: CqShare,
}

struct Slot {
    window: Window,
    state: SlotState,
}

enum SlotState {
    Free,
    Binding { key: u32, hold: Hold },
    Bound { key: u32, died: oneshot::Sender<()>, hold: Hold },
    Revoking { hold: Hold },
}

/// What a slot has while it is not free.
struct Hold {
    _registration: Arc<Registration>,
    /// With the slot and not with the lend, which may be dropped sooner.
    _permit: OwnedSemaphorePermit,
}

impl SlotState {
    fn is_bound_under(&self, wanted: RemoteKey) -> bool {
        matches!(self, Self::Bound { key, .. } if RemoteKey(*key) == wanted)
    }
}

impl LinkState {
    pub(super) fn new(
        id: u32,
        qp: QueuePair,
        windows: Vec<Window>,
        status: watch::Sender<Option<LinkError>>,
        share: CqShare,
    ) -> Self {
        let free = (0..windows.len()).collect();
        let slots = windows.into_iter().map(|window| Slot { window, state: SlotState::Free });
        Self {
            id,
            qp,
            works: VecDeque::new(),
            next_work: 0,
            slots: slots.collect(),
            free,
            keys: HashMap::new(),
            status,
            share,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Posts requests; the last is signaled.
    pub(super) fn post(&mut self, request: Request) -> Result<(), LinkError> {
        let Request { to, verbs, reply, permit, .. } = request;
        self.post_work(to.as_ref(), verbs, reply, permit)
    }

    fn post_work(
        &mut self,
        to: Option<&Arc<DcTarget>>,
        mut verbs: Vec<Verb>,
        reply: Reply,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), LinkError> {
        if let [Verb::Revoke { slot, key }] = verbs[..]
            && !self.slots[slot].state.is_bound_under(key)
        {
            self.revoked_before(slot, key, reply);
            return Ok(());
        }
        let id = self.next_work;
        // One number is the receives'.
        self.next_work = (self.next_work + 1) % u32::MAX;
        let wr_id = u64::from(self.id) << 32 | u64::from(id);
        let mut sges: Vec<Sge> = verbs.iter().map(sge).collect();
        let mut requests = Vec::with_capacity(verbs.len());
        for (verb, sge) in verbs.iter_mut().zip(&mut sges) {
            let mut request = self.request(verb);
            request.wr_id = wr_id;
            if request.opcode == abi::WR_RDMA_WRITE || request.opcode == abi::WR_RDMA_READ {
                request.num_sge = i32::from(sge.length > 0);
                request.sg_list = &raw mut *sge;
            }
            let is_write = request.opcode == abi::WR_RDMA_WRITE;
            if is_write && (1..=self.qp.inline_max()).contains(&sge.length) {
                request.send_flags |= abi::SEND_INLINE;
            }
            requests.push(request);
        }
        if let Some(last) = requests.last_mut() {
            last.send_flags |= abi::SEND_SIGNALED;
        }
        let binding = match verbs[..] {
            [Verb::Binding { slot }] => Some(slot),
            _ => None,
        };
        // Before posting: whatever becomes of it, the link owns the memory from here on.
        self.works.push_back(Work { id, _to: to.cloned(), verbs, reply, permit });
        // SAFETY: the work holds bytes, leases, registrations and the target, and slots hold the
        // registrations of windows, until the completion was polled or the queue pair destroyed.
        let posted = unsafe {
            match to {
                None => self.qp.post(&mut requests),
                Some(to) => self.qp.post_to(&requests, to),
            }
        };
        // After posting: the provider reads the window's old key while it posts.
        if let Some(slot) = binding
            && let Slot { window, state: SlotState::Binding { key, .. } } = &mut self.slots[slot]
        {
            window.bound(*key);
        }
        posted.map_err(|error| adapter(&error))
    }

    /// Answers who revokes a key that is dead or dying. A second invalidation must not be posted, and
    /// the slot may be another lend's by now.
    fn revoked_before(&mut self, slot: usize, key: RemoteKey, reply: Reply) {
        let is_ours = |work: &&mut Work| match work.verbs[..] {
            [Verb::Revoke { slot: at, key: of }] => (at, of) == (slot, key),
            _ => false,
        };
        match self.works.iter_mut().find(is_ours) {
            // Ours is under way, and who waited for it stopped waiting: a lend has one owner.
            Some(work) => work.reply = reply,
            // The peer's was faster.
            None => reply.revoked(),
        }
    }

    /// The request for a verb; slots change their state.
    fn request(&mut self, verb: &mut Verb) -> SendWr {
        let mut request = SendWr::zeroed();
        match verb {
            Verb::Write { address, key, .. } => {
                request.opcode = abi::WR_RDMA_WRITE;
                (request.rdma.remote_addr, request.rdma.rkey) = (*address, key.0);
            }
            Verb::Read { remote, .. } => {
                request.opcode = abi::WR_RDMA_READ;
                (request.rdma.remote_addr, request.rdma.rkey) = (remote.address, remote.key.0);
            }
            Verb::Heartbeat => request.opcode = abi::WR_RDMA_WRITE,
            Verb::Invalidate { key } => {
                request.opcode = abi::WR_SEND_WITH_INV;
                request.invalidate_rkey = key.0;
            }
            Verb::Bind(_) => {
                let at = self.free.pop_front().expect("a window's permit stands for a free slot");
                let bind = std::mem::replace(verb, Verb::Binding { slot: at });
                let Verb::Bind(bind) = bind else { unreachable!("it was a bind a line before") };
                let Bind { registration, address, length, direction, permit } = bind;
                let slot = &mut self.slots[at];
                let key = slot.window.next_key();
                request.opcode = abi::WR_BIND_MW;
                request.bind_mw = BindMw {
                    mw: slot.window.mw().as_ptr(),
                    rkey: key,
                    mr: registration.mr().as_ptr(),
                    addr: address,
                    length: u64::from(length),
                    access: access(direction),
                };
                let hold = Hold { _registration: registration, _permit: permit };
                slot.state = SlotState::Binding { key, hold };
            }
            Verb::Revoke { slot, .. } => {
                let slot = &mut self.slots[*slot];
                request.opcode = abi::WR_LOCAL_INV;
                if let SlotState::Bound { key, hold, .. } =
                    std::mem::replace(&mut slot.state, SlotState::Free)
                {
                    request.invalidate_rkey = key;
                    slot.state = SlotState::Revoking { hold };
                }
            }
            Verb::Binding { .. } => unreachable!("a bind is posted once"),
        }
        request
    }

    /// A work's last request completed.
    pub(super) fn completed(&mut self, id: u32) -> Result<(), LinkError> {
        // A queue pair completes in order, and every work's last request is signaled.
        let work = self.works.pop_front().filter(|work| work.id == id);
        let Some(Work { verbs, reply, permit, .. }) = work else {
            return Err(LinkError::Adapter("a completion is out of order".into()));
        };
        match (reply, &verbs[..]) {
            (Reply::Bind(lend), [Verb::Binding { slot }]) => {
                return self.bound(*slot, lend, permit);
            }
            (Reply::Abandoned(memory), [Verb::Revoke { slot, .. }]) => {
                self.free_slot(*slot)?;
                drop(memory);
            }
            (Reply::Revoke(reply), [Verb::Revoke { slot, .. }]) => {
                self.free_slot(*slot)?;
                let _ = reply.send(Ok(()));
            }
            (Reply::Batch(reply), _) => {
                let leases = verbs.into_iter().filter_map(|verb| match verb {
                    Verb::Read { lease, .. } => lease,
                    _ => None,
                });
                let _ = reply.send(Ok(Landed { leases: leases.collect() }));
            }
            _ => unreachable!("a reply is of its verb's kind"),
        }
        Ok(())
    }

    fn bound(
        &mut self,
        at: usize,
        lend: Box<dyn Lend>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), LinkError> {
        let state = std::mem::replace(&mut self.slots[at].state, SlotState::Free);
        let SlotState::Binding { key, hold } = state else { unreachable!("a bind completes once") };
        let (died_sender, died) = oneshot::channel();
        self.slots[at].state = SlotState::Bound { key, died: died_sender, hold };
        self.keys.insert(key, at);
        let bound = Bound { slot: at, key: RemoteKey(key), died };
        let Some(memory) = lend.bound(bound) else { return Ok(()) };
        // Nobody waits: the key never left, so it can be revoked without a race.
        let revoke = vec![Verb::Revoke { slot: at, key: RemoteKey(key) }];
        self.post_work(None, revoke, Reply::Abandoned(memory), permit)
    }

    /// A message arrived: only invalidations are expected.
    pub(super) fn received(&mut self, completion: &Wc, quirks: Quirks) -> Result<(), LinkError> {
        let low = if quirks.invalidation_flag_low { abi::WC_WITH_INV >> 1 } else { 0 };
        if completion.wc_flags & (abi::WC_WITH_INV | low) == 0 {
            return Err(LinkError::Misbehaved);
        }
        let at = self.keys.get(&completion.invalidated_rkey).copied();
        let at = at.ok_or(LinkError::Misbehaved)?;
        match std::mem::replace(&mut self.slots[at].state, SlotState::Free) {
            SlotState::Bound { died, .. } => {
                self.free_slot(at)?;
                // Nobody may be waiting any more.
                let _ = died.send(());
            }
            // Ours is posted and will complete, one way or the other.
            revoking => self.slots[at].state = revoking,
        }
        let receives = self.qp.receive(Request::receive_id(self.id), 1);
        receives.map_err(|error| adapter(&error))
    }

    /// The slot's key is dead.
    fn free_slot(&mut self, at: usize) -> Result<(), LinkError> {
        let slot = &mut self.slots[at];
        slot.state = SlotState::Free;
        self.keys.retain(|_, bound| *bound != at);
        if slot.window.is_worn() {
            // Once in 255 binds: two system calls on this thread.
            slot.window = slot.window.successor().map_err(|error| adapter(&error))?;
        }
        self.free.push_back(at);
        Ok(())
    }

    /// Gives up everything that the device may still touch.
    pub(super) fn bury(self, why: LinkError, mut keep: Vec<Held>) -> Burial {
        let Self { qp, works, slots, status, share, .. } = self;
        let mut windows = Vec::with_capacity(slots.len());
        for Slot { window, state } in slots {
            windows.push(window);
            if let SlotState::Binding { hold, .. }
            | SlotState::Bound { hold, .. }
            | SlotState::Revoking { hold } = state
            {
                keep.push(Box::new(hold));
            }
        }
        Burial { windows, qp, works: works.into(), keep, why, status, share }
    }
}

/// The memory of this end that a verb names.
fn sge(verb: &Verb) -> Sge {
    match verb {
        Verb::Write { registration, bytes, .. } => Sge {
            addr: bytes.as_ptr() as u64,
            length: bytes.len() as u32,
            lkey: registration.local_key(),
        },
        Verb::Read { registration, local, remote, .. } => {
            Sge { addr: *local, length: remote.length, lkey: registration.local_key() }
        }
        _ => Sge::default(),
    }
}

fn access(direction: Direction) -> c_uint {
    let access = match direction {
        Direction::Write => abi::ACCESS_REMOTE_WRITE,
        Direction::Read => abi::ACCESS_REMOTE_READ,
    };
    access as c_uint
}

fn adapter(error: &VerbsError) -> LinkError {
    LinkError::Adapter(error.to_string().into())
}
