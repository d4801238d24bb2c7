//! One path, as the RDMA communication manager resolves it: owner types of its channel and
//! identifier, and the asking. Nothing is listened on and nobody is connected to.
//!
//! Sketch: a channel, an identifier bound to this port's own GID, two questions with an answer
//! each (the neighbour, the path record), and all of it is given back. Under RoCE these are some
//! system calls, and a packet there and back where the neighbour is not known yet; on InfiniBand
//! one question to the subnet manager. The channel's descriptor does not block.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_proto::{Gid, LinkLayer};
use keyway_sys::NativeError;
use keyway_sys::rdmacm::RdmaCm;
use keyway_sys::rdmacm::abi::{self, EventChannel, Id, SockaddrIb, SockaddrIn, SockaddrIn6};
use keyway_sys::verbs::{Verbs, last_error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::device::non_blocking;
use super::port::PortInfo;
use super::route::PathRecord;
use super::{ResolveError, VerbsError};

/// How much earlier than we the kernel gives up, so that its reason is heard.
const MARGIN: Duration = Duration::from_millis(250);

/// What is asked.
pub(super) struct Question {
    pub(super) cm: Arc<RdmaCm>,
    pub(super) verbs: Arc<Verbs>,
    /// The port that must be the one which answers.
    pub(super) port: PortInfo,
    /// The partition that the port's queue pairs are in.
    pub(super) pkey: u16,
    pub(super) peer: Gid,
    /// What the packets carry, for the priority that the kernel makes of it.
    pub(super) traffic_class: Option<u8>,
    pub(super) deadline: Instant,
}

impl Question {
    /// Asks, and waits until the deadline. librdmacm itself may ask a service of the host
    /// (ibacm) meanwhile, and wait for it without a bound: call where that does no harm.
    pub(super) fn ask(&self) -> Result<PathRecord, ResolveError> {
        if self.port.link == LinkLayer::Ethernet && self.port.gid.is_link_local() {
            return Err(ResolveError::LinkLocal);
        }
        let id = Identifier::new(&self.cm)?;
        if let Some(class) = self.traffic_class {
            id.set_traffic_class(class)?;
        }
        id.bind(&mut Address::of(self.port.link, self.port.gid, self.pkey))?;
        self.check_port(&id)?;
        let mut peer = Address::of(self.port.link, self.peer, self.pkey);
        id.resolve_address(&mut peer, self.kernel_ms()).map_err(|error| self.refused(error))?;
        self.expect(&id, abi::EVENT_ADDR_RESOLVED)?;
        self.check_port(&id)?;
        id.resolve_route(self.kernel_ms()).map_err(|error| self.refused(error))?;
        self.expect(&id, abi::EVENT_ROUTE_RESOLVED)?;
        let record = id.path_record().ok_or(ResolveError::NoRecord)?;
        if (record.source, record.peer) != (self.port.gid, self.peer) {
            return Err(ResolveError::OtherPort);
        }
        Ok(record)
    }

    /// The kernel may know the source address on another adapter. What it says of that one is
    /// not asked for here.
    fn check_port(&self, id: &Identifier) -> Result<(), ResolveError> {
        let bound = id.bound(&self.verbs);
        let is_meant = bound.is_some_and(|(name, number)| {
            number == self.port.number && name.to_bytes() == self.port.device.as_bytes()
        });
        is_meant.then_some(()).ok_or(ResolveError::OtherPort)
    }

    fn expect(&self, id: &Identifier, wanted: c_int) -> Result<(), ResolveError> {
        let (event, status) = id.next_event(self.deadline)?;
        if event == wanted { Ok(()) } else { Err(self.verdict(event, status)) }
    }

    fn verdict(&self, event: c_int, status: c_int) -> ResolveError {
        let errno = Errno::from_raw_os_error(status.checked_neg().unwrap_or(0));
        if proves(self.port.link, event, errno) {
            let why = std::io::Error::from(errno).to_string();
            ResolveError::Unreachable { peer: self.peer, why }
        } else {
            ResolveError::Event { event, status }
        }
    }

    /// A question that the kernel answers at once, with a no.
    fn refused(&self, error: NativeError) -> ResolveError {
        match &error {
            NativeError::Call { code, .. } => {
                let errno = Errno::from_raw_os_error(i32::try_from(*code).unwrap_or(0));
                if matches!(errno, Errno::NETUNREACH | Errno::HOSTUNREACH) {
                    let why = std::io::Error::from(errno).to_string();
                    return ResolveError::Unreachable { peer: self.peer, why };
                }
                error.into()
            }
            _ => error.into(),
        }
    }

    fn kernel_ms(&self) -> c_int {
        let left = self.deadline.saturating_duration_since(Instant::now());
        c_int::try_from(left.saturating_sub(MARGIN).as_millis()).unwrap_or(c_int::MAX).max(1)
    }
}

/// Whether a failure proves that no packet of this port gets to the peer. A subnet manager that
/// does not answer proves nothing of the peer; that it knows no path does. Under RoCE it is the
/// neighbour that does not answer, or a route that is not there.
fn proves(link: LinkLayer, event: c_int, errno: Errno) -> bool {
    match (event, link) {
        (abi::EVENT_UNREACHABLE, _) => true,
        (abi::EVENT_ADDR_ERROR, LinkLayer::Ethernet) => {
            matches!(errno, Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH)
        }
        (abi::EVENT_ROUTE_ERROR, LinkLayer::Infiniband) => {
            matches!(errno, Errno::INVAL | Errno::HOSTUNREACH | Errno::NETUNREACH)
        }
        _ => matches!(errno, Errno::HOSTUNREACH | Errno::NETUNREACH),
    }
}

/// A GID as a socket address: under RoCE it is one, on InfiniBand it is in one of its own.
enum Address {
    V4(SockaddrIn),
    V6(SockaddrIn6),
    Ib(SockaddrIb),
}

impl Address {
    fn of(link: LinkLayer, gid: Gid, pkey: u16) -> Self {
        if link == LinkLayer::Infiniband {
            return Self::Ib(SockaddrIb {
                family: abi::AF_IB,
                pkey: pkey.to_be(),
                addr: gid.0,
                // Any port: nobody is connected to.
                sid: abi::IB_IP_PS_TCP.to_be(),
                sid_mask: abi::IB_IP_PS_MASK.to_be(),
                ..SockaddrIb::default()
            });
        }
        match std::net::Ipv6Addr::from(gid.0).to_ipv4_mapped() {
            Some(address) => Self::V4(SockaddrIn {
                family: abi::AF_INET,
                addr: address.octets(),
                ..SockaddrIn::default()
            }),
            None => Self::V6(SockaddrIn6 {
                family: abi::AF_INET6,
                addr: gid.0,
                ..SockaddrIn6::default()
            }),
        }
    }

    /// Its kind is the first thing that it points to, as in C.
    fn as_mut_ptr(&mut self) -> *mut c_void {
        match self {
            Self::V4(address) => (&raw mut *address).cast(),
            Self::V6(address) => (&raw mut *address).cast(),
            Self::Ib(address) => (&raw mut *address).cast(),
        }
    }
}

/// An event channel.
///
/// Invariant: `channel` came from `rdma_create_event_channel` and is destroyed once, after its
/// identifier.
struct Channel {
    cm: Arc<RdmaCm>,
    channel: NonNull<EventChannel>,
}

impl Channel {
    fn new(cm: &Arc<RdmaCm>) -> Result<Self, ResolveError> {
        // SAFETY: it takes nothing, and gives a channel or null.
        let channel = unsafe { (cm.create_event_channel)() };
        let channel =
            NonNull::new(channel).ok_or_else(|| last_error("rdma_create_event_channel"))?;
        let channel = Self { cm: Arc::clone(cm), channel };
        non_blocking(channel.fd()).map_err(|error| match error {
            VerbsError::Native(error) => ResolveError::Failed(error),
            _ => ResolveError::Late,
        })?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifier is gone, and all its events are acknowledged.
        unsafe { (self.cm.destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// An identifier, with a channel of its own.
///
/// Invariant: `id` is of `channel` and is destroyed once, before it; no event of it is kept
/// unacknowledged, since the destruction waits for that.
struct Identifier {
    id: NonNull<Id>,
    channel: Channel,
}

impl Identifier {
    fn new(cm: &Arc<RdmaCm>) -> Result<Self, ResolveError> {
        let channel = Channel::new(cm)?;
        let mut id = null_mut::<Id>();
        // SAFETY: the channel lives; the identifier is written where it is said.
        let code = unsafe {
            (cm.create_id)(channel.channel.as_ptr(), &raw mut id, null_mut(), abi::PS_TCP)
        };
        let id = NonNull::new(id).filter(|_| code == 0);
        let id = id.ok_or_else(|| last_error("rdma_create_id"))?;
        Ok(Self { id, channel })
    }

    fn cm(&self) -> &RdmaCm {
        &self.channel.cm
    }

    fn set_traffic_class(&self, mut class: u8) -> Result<(), NativeError> {
        let value = (&raw mut class).cast();
        // SAFETY: the identifier lives; this option's value is one byte.
        let code = unsafe {
            (self.cm().set_option)(self.id.as_ptr(), abi::OPTION_ID, abi::OPTION_ID_TOS, value, 1)
        };
        done("rdma_set_option", code)
    }

    fn bind(&self, own: &mut Address) -> Result<(), NativeError> {
        // SAFETY: the identifier lives; the address is of the kind that it says.
        let code = unsafe { (self.cm().bind_addr)(self.id.as_ptr(), own.as_mut_ptr()) };
        done("rdma_bind_addr", code)
    }

    fn resolve_address(&self, peer: &mut Address, timeout_ms: c_int) -> Result<(), NativeError> {
        // SAFETY: as above; without a source it is the one that was bound.
        let code = unsafe {
            (self.cm().resolve_addr)(self.id.as_ptr(), null_mut(), peer.as_mut_ptr(), timeout_ms)
        };
        done("rdma_resolve_addr", code)
    }

    fn resolve_route(&self, timeout_ms: c_int) -> Result<(), NativeError> {
        // SAFETY: the identifier lives, and its address is resolved.
        let code = unsafe { (self.cm().resolve_route)(self.id.as_ptr(), timeout_ms) };
        done("rdma_resolve_route", code)
    }

    /// The device and port that it is bound to.
    fn bound(&self, verbs: &Verbs) -> Option<(&CStr, u8)> {
        // SAFETY: the identifier lives, and is written to by calls of this thread only.
        let (context, port) = unsafe { ((*self.id.as_ptr()).verbs, (*self.id.as_ptr()).port_num) };
        let context = NonNull::new(context)?;
        // SAFETY: librdmacm keeps the context open as long as the identifier is bound to it.
        let name = unsafe { (verbs.get_device_name)((*context.as_ptr()).device) };
        // SAFETY: a name is a string that lives as long as its device.
        (!name.is_null()).then(|| (unsafe { CStr::from_ptr(name) }, port))
    }

    /// The next event and its status, acknowledged.
    fn next_event(&self, deadline: Instant) -> Result<(c_int, c_int), ResolveError> {
        loop {
            let mut event = null_mut();
            let channel = self.channel.channel.as_ptr();
            // SAFETY: the channel lives and does not block; the event is written where it is said.
            let code = unsafe { (self.cm().get_cm_event)(channel, &raw mut event) };
            if code == 0
                && let Some(event) = NonNull::<abi::Event>::new(event)
            {
                // SAFETY: the event was just taken and is not acknowledged yet.
                let told = unsafe { ((*event.as_ptr()).event, (*event.as_ptr()).status) };
                // SAFETY: as above; this is the one time.
                let code = unsafe { (self.cm().ack_cm_event)(event.as_ptr()) };
                done("rdma_ack_cm_event", code)?;
                return Ok(told);
            }
            let error = std::io::Error::last_os_error();
            if !matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
            ) {
                return Err(last_error("rdma_get_cm_event").into());
            }
            self.wait(deadline)?;
        }
    }

    /// Waits until there may be an event.
    fn wait(&self, deadline: Instant) -> Result<(), ResolveError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ResolveError::Late);
        }
        let fd = self.channel.fd();
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        let left = Timespec::try_from(left).map_err(|_| ResolveError::Late)?;
        match poll(&mut polled, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => {
                let (code, name) = (error.raw_os_error().into(), Some(error.to_string()));
                Err(NativeError::Call { call: "poll", code, name }.into())
            }
        }
    }

    /// The path record, once the route is resolved.
    fn path_record(&self) -> Option<PathRecord> {
        // SAFETY: the identifier lives, and is written to by calls of this thread only.
        let route = unsafe { &(*self.id.as_ptr()).route };
        let record = NonNull::new(route.path_rec).filter(|_| route.num_paths > 0)?;
        // SAFETY: it points to as many records as said, of which the first is the path; they live
        // as long as the identifier.
        Some(PathRecord::read(unsafe { record.as_ref() }))
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: destroyed once; it has no queue pair, and its events are acknowledged.
        let code = unsafe { (self.cm().destroy_id)(self.id.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot give back an identifier of RDMA-CM");
        }
    }
}

/// What librdmacm's calls return: 0, or -1 and `errno`.
fn done(call: &'static str, code: c_int) -> Result<(), NativeError> {
    if code == 0 { Ok(()) } else { Err(last_error(call)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        match text.parse::<std::net::IpAddr>().unwrap() {
            std::net::IpAddr::V4(address) => Gid(address.to_ipv6_mapped().octets()),
            std::net::IpAddr::V6(address) => Gid(address.octets()),
        }
    }

    #[test]
    fn a_gid_is_an_address_of_its_network() {
        let (roce, ib) = (LinkLayer::Ethernet, LinkLayer::Infiniband);
        let Address::V4(address) = Address::of(roce, gid("10.1.2.3"), 0xffff) else { panic!() };
        assert_eq!((address.family, address.addr, address.port), (2, [10, 1, 2, 3], 0));
        let Address::V6(address) = Address::of(roce, gid("fd00::7"), 0xffff) else { panic!() };
        assert_eq!((address.family, Gid(address.addr)), (10, gid("fd00::7")));
        // On InfiniBand a GID is no IP address, whatever it looks like.
        let Address::Ib(address) = Address::of(ib, gid("10.1.2.3"), 0x8001) else { panic!() };
        assert_eq!((address.family, address.pkey), (27, 0x8001_u16.to_be()));
        assert_eq!(address.sid.to_be_bytes(), 0x0106_0000_u64.to_ne_bytes());
    }

    /// Only what says that the peer is not reached ends a session's opening.
    #[test]
    fn only_proof_counts() {
        use LinkLayer::{Ethernet, Infiniband};
        for (link, event, errno, proof) in [
            (Ethernet, abi::EVENT_ADDR_ERROR, Errno::TIMEDOUT, true),
            (Ethernet, abi::EVENT_ADDR_ERROR, Errno::HOSTUNREACH, true),
            (Ethernet, abi::EVENT_ADDR_ERROR, Errno::NODEV, false),
            (Ethernet, abi::EVENT_ADDR_ERROR, Errno::PERM, false),
            (Ethernet, abi::EVENT_ROUTE_ERROR, Errno::INVAL, false),
            (Ethernet, abi::EVENT_ROUTE_ERROR, Errno::TIMEDOUT, false),
            (Infiniband, abi::EVENT_ROUTE_ERROR, Errno::INVAL, true),
            (Infiniband, abi::EVENT_ROUTE_ERROR, Errno::TIMEDOUT, false),
            (Infiniband, abi::EVENT_ADDR_ERROR, Errno::NODEV, false),
            (Infiniband, abi::EVENT_UNREACHABLE, Errno::TIMEDOUT, true),
        ] {
            assert_eq!(proves(link, event, errno), proof, "{link:?} {event} {errno}");
        }
    }
}
