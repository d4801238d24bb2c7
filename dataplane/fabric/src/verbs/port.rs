//! A port: its addresses, its limits, and the thread that serves it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use keyway_proto::{Gid, LinkLayer, PathMtu};
use parking_lot::Mutex;

use super::VerbsError;
use super::device::{GidAt, GidKind};
use super::link_state::LinkState;
use super::queue::CompletionQueue;
use super::reactor::Reactor;
use super::route::Resolver;
use super::seat::Seat;
use super::undertaker::Undertaker;
use super::waker::Waker;
use super::work::{Held, Request};
use super::{Device, Domain, LinkError, Marks, PathRecord, PendingLink, ResolveError, Route};

/// Entries of a port's completion queue where nobody says how many links there will be, and the
/// device has as many. Links reserve theirs, so it never overflows.
const CQ_ENTRIES: u32 = 1 << 16;

/// What is known of a port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The device's name.
    pub device: Box<str>,
    /// The port's number, from 1 on.
    pub number: u8,
    /// What carries its packets.
    pub link: LinkLayer,
    /// The GID that its links use.
    pub gid: Gid,
    /// The protocol of that GID.
    pub gid_kind: GidKind,
    /// Its place in the port's table.
    pub gid_index: u8,
    /// The local identifier.
    pub lid: u16,
    /// The MTU.
    pub mtu: PathMtu,
}

/// How many requests a link has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Requests of this end in flight.
    pub sends: u32,
    /// Windows that this end lends at a time. As many invalidations may arrive.
    pub windows: u32,
}

impl LinkShape {
    /// A link of a storage node: it sends, and lends nothing.
    pub const NODE: Self = Self { sends: 128, windows: 0 };

    /// A link of a client with as many windows: it binds, revokes, and receives.
    pub const fn client(windows: u32) -> Self {
        // A bind and a revocation each.
        Self { sends: 2 * windows, windows }
    }

    /// Messages that may arrive before the first is taken.
    pub(super) const fn receives(self) -> u32 {
        self.windows + 1
    }

    const fn completions(self) -> u32 {
        self.sends + self.receives()
    }
}

/// An opened port. Dropping it destroys its links and ends its thread.
pub struct Port {
    shared: Arc<PortShared>,
    threads: Mutex<Option<JoinHandle<()>>>,
}

/// What tasks and the port's thread share.
pub(super) struct PortShared {
    pub(super) info: PortInfo,
    pub(super) cq: Arc<CompletionQueue>,
    device: Arc<Device>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    seat: Arc<Seat>,
    links: AtomicU32,
    free_completions: Arc<AtomicU64>,
    resolver: Resolver,
}

/// What tasks ask of the port's reactor.
pub(super) enum Command {
    /// Serve this link.
    Adopt(Box<LinkState>),
    /// Post these requests.
    Post(Request),
    /// Destroy a link; then drop what it kept.
    End { link: u32, why: LinkError, keep: Option<Held> },
    /// End all links, and the thread.
    Stop,
}

/// A link's part of the completion queue, given back on drop.
pub(super) struct CqShare {
    entries: u64,
    free: Arc<AtomicU64>,
}

impl Drop for CqShare {
    fn drop(&mut self) {
        self.free.fetch_add(self.entries, Ordering::Relaxed);
    }
}

impl Port {
    /// Opens a port of a device and starts its thread.
    ///
    /// # Errors
    /// [`VerbsError::NoPort`] when it is down or has no address.
    pub fn open(device: &Arc<Device>, number: u8) -> Result<Self, VerbsError> {
        Self::with_entries(device, number, CQ_ENTRIES)
    }

    /// The same with room for so many links of a shape at a time, or as many as the device has
    /// room for. Each entry takes some 64 bytes of pinned memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for(
        device: &Arc<Device>,
        number: u8,
        links: u32,
        shape: LinkShape,
    ) -> Result<Self, VerbsError> {
        Self::with_entries(device, number, links.saturating_mul(shape.completions()))
    }

    fn with_entries(device: &Arc<Device>, number: u8, entries: u32) -> Result<Self, VerbsError> {
        let info = describe(device, number)?;
        let entries = entries.clamp(1, completions_max(device));
        let cq = Arc::new(CompletionQueue::new(device, entries)?);
        let failed = |error| VerbsError::Thread(Arc::new(error));
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let (commands, queue) = crossbeam_channel::unbounded();
        let undertaker = Undertaker::start(&info.device).map_err(failed)?;
        let reactor = Reactor::new(
            Arc::clone(device),
            Arc::clone(&cq),
            Arc::clone(&waker),
            queue,
            undertaker,
        );
        let name = format!("kw-{}/{number}", info.device);
        let seat = Arc::new(Seat::default());
        let place = Arc::clone(&seat);
        let thread = std::thread::Builder::new().name(name).spawn(move || reactor.run(&place));
        let thread = thread.map_err(failed)?;
        let shared = PortShared {
            info,
            cq,
            device: Arc::clone(device),
            commands,
            waker,
            seat,
            links: AtomicU32::new(0),
            free_completions: Arc::new(AtomicU64::new(entries.into())),
            resolver: Resolver::default(),
        };
        Ok(Self { shared: Arc::new(shared), threads: Mutex::new(Some(thread)) })
    }

    /// What is known of it.
    pub fn info(&self) -> &PortInfo {
        &self.shared.info
    }

    /// Links of a shape that its device has room for at a time.
    pub fn links_max(&self, shape: LinkShape) -> u32 {
        completions_max(&self.shared.device) / shape.completions()
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.shared.device
    }

    /// What the host knows of the way to a peer. Where it cannot be asked, that is nothing, which
    /// the log says once. Blocks, at most as long as [`RESOLVE_MAX`](super::RESOLVE_MAX) and a
    /// little more.
    ///
    /// # Errors
    /// [`VerbsError::NoPath`] when it is certain that no packet gets there,
    /// [`VerbsError::OtherNetwork`].
    pub fn route(&self, link: LinkLayer, peer: Gid, marks: Marks) -> Result<Route, VerbsError> {
        if link != self.shared.info.link {
            return Err(VerbsError::OtherNetwork);
        }
        let PortShared { resolver, device, info, .. } = &*self.shared;
        resolver.route(device, info, peer, marks)
    }

    /// The path to a peer, as RDMA-CM resolves it. Blocks as [`route`](Self::route) does.
    ///
    /// # Errors
    /// [`ResolveError`]; whether it says something of the peer, [`ResolveError::is_certain`] tells.
    pub fn resolve(&self, peer: Gid) -> Result<PathRecord, ResolveError> {
        let PortShared { resolver, device, info, .. } = &*self.shared;
        resolver.resolve(device, info, peer, None)
    }

    /// Makes a queue pair of a domain of this device, to be connected. Blocks for system
    /// calls.
    ///
    /// # Errors
    /// [`VerbsError`].
    ///
    /// # Panics
    /// When the domain is of another device.
    pub fn link(&self, domain: &Arc<Domain>, shape: LinkShape) -> Result<PendingLink, VerbsError> {
        assert!(Arc::ptr_eq(domain.device(), &self.shared.device), "a domain of this device");
        PendingLink::new(&self.shared, domain, shape)
    }

    pub(super) fn shared(&self) -> &Arc<PortShared> {
        &self.shared
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _ = self.shared.send(Command::Stop);
        if let Some(thread) = self.threads.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(device = %self.shared.info.device, "the port's thread panicked");
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.info.fmt(f)
    }
}

impl PortShared {
    pub(super) fn send(&self, command: Command) -> Result<(), VerbsError> {
        let is_brief = matches!(&command, Command::Post(request) if request.is_brief());
        self.commands.send(command).map_err(|_| VerbsError::Closed)?;
        // A transfer is worth waking the thread, which then polls for its end.
        if !(is_brief && self.seat.turn()) {
            self.waker.wake();
        }
        Ok(())
    }

    /// A number that no other link of the port has or had.
    pub(super) fn next_link(&self) -> u32 {
        self.links.fetch_add(1, Ordering::Relaxed)
    }

    /// Reserves the link's part of the completion queue.
    pub(super) fn take_slot(&self, shape: LinkShape) -> Result<CqShare, VerbsError> {
        let entries = u64::from(shape.completions());
        let free = Arc::clone(&self.free_completions);
        free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(entries))
            .map_err(|_| VerbsError::TooManyLinks)?;
        Ok(CqShare { entries, free })
    }
}

/// Most entries of a completion queue.
fn completions_max(device: &Device) -> u32 {
    u32::try_from(device.attributes().max_cqe).unwrap_or(1).max(1)
}

fn describe(device: &Device, number: u8) -> Result<PortInfo, VerbsError> {
    let unusable = |why| VerbsError::NoPort { device: device.name().to_owned(), port: number, why };
    if !(1..=device.ports()).contains(&number) {
        return Err(unusable("no such port"));
    }
    let state = device.port(number)?;
    if !state.active {
        return Err(unusable("the port is down"));
    }
    let best = device.gids(number)?.into_iter().max_by_key(preference);
    let GidAt { index, gid, kind } = best.ok_or_else(|| unusable("it has no address"))?;
    Ok(PortInfo {
        device: device.name().into(),
        number,
        link: state.link,
        gid,
        gid_kind: kind,
        gid_index: index,
        lid: state.lid,
        mtu: state.mtu,
    })
}

/// Routable before local, and IPv4 before IPv6, as most clusters are numbered. Of equals the
/// first in the table.
fn preference(entry: &GidAt) -> (u8, std::cmp::Reverse<u8>) {
    let rank = match entry.kind {
        GidKind::Infiniband => 5,
        GidKind::RoceV2 if entry.gid.is_ipv4() => 4,
        GidKind::RoceV2 if !entry.gid.is_link_local() => 3,
        GidKind::RoceV2 => 2,
        GidKind::RoceV1 => 1,
    };
    (rank, std::cmp::Reverse(entry.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routable_addresses_come_first() {
        let local = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mapped = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        let at = |index, gid, kind| GidAt { index, gid, kind };
        let table = [
            at(0, local, GidKind::RoceV1),
            at(1, local, GidKind::RoceV2),
            at(2, mapped, GidKind::RoceV1),
            at(3, mapped, GidKind::RoceV2),
            at(4, mapped, GidKind::RoceV2),
        ];
        let best = table.iter().max_by_key(|entry| preference(entry)).map(|entry| entry.index);
        assert_eq!(best, Some(3));
    }
}
