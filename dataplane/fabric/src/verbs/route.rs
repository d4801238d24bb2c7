//! The way to a peer: what RDMA-CM knows of it, what the operator says of its packets, and what
//! becomes of both in a queue pair.
//!
//! A session's addresses come over the signed control plane. What they leave out is asked of the
//! host here: on InfiniBand the subnet manager's path record (some of its routings are free of
//! deadlock only with the service level that it says, and another subnet is reached by a router's
//! LID), under RoCE whether the neighbour answers at all. Where that cannot be asked, a queue pair
//! is connected by the addresses alone.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use keyway_proto::{Gid, LinkLayer, PathMtu, QpAddress};
use keyway_sys::NativeError;
use keyway_sys::rdmacm::{RdmaCm, abi};
use keyway_sys::verbs::abi::{AhAttr, Gid as RawGid, GlobalRoute};

use super::port::PortInfo;
use super::resolve::Question;
use super::{Device, VerbsError};

/// How long a path may take.
pub const RESOLVE_MAX: Duration = Duration::from_secs(2);
/// After which one that did not end is left to itself.
const SLACK: Duration = Duration::from_millis(500);
/// Paths that are resolved at a time on one port. Further ones go unresolved.
const RESOLVING_MAX: u32 = 16;
/// Local ACK timeout: 4.096 µs × 2^16, about 0.27 s. Adapters may take up to four times that.
pub(super) const ACK_TIMEOUT: u8 = 16;
/// The longest, 1.1 s, whatever a subnet manager says of packets' life times (OpenSM says 1.1 s for
/// all): a dead peer must be noticed well before a transfer's own deadline.
const ACK_TIMEOUT_MAX: u8 = 18;
/// Routers that a packet may pass.
pub(super) const HOPS: u8 = 64;

/// Why a path was not resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The library is not on this machine.
    #[error("RDMA-CM is missing")]
    Missing(#[source] Arc<NativeError>),
    /// A call failed, for example since the kernel has no RDMA-CM (`/dev/infiniband/rdma_cm`).
    #[error("RDMA-CM failed: {0}")]
    Failed(#[from] NativeError),
    /// The host knows no answer, for a reason that says nothing of the peer.
    #[error("RDMA-CM answers with event {event}, status {status}")]
    Event {
        /// The event's number.
        event: i32,
        /// Its status.
        status: i32,
    },
    /// No answer came in time.
    #[error("RDMA-CM did not answer in time")]
    Late,
    /// As many paths are being resolved as may be.
    #[error("too many paths are being resolved")]
    Busy,
    /// Link-local GIDs under RoCE need no neighbour's answer: the address holds its MAC.
    #[error("link-local addresses are not resolved")]
    LinkLocal,
    /// The kernel has the port's address on another port as well, and chose that.
    #[error("RDMA-CM means another port than this one")]
    OtherPort,
    /// It was resolved, and nothing was said.
    #[error("RDMA-CM gave no path record")]
    NoRecord,
    /// The peer lies in another subnet, where nobody gets without a path record.
    #[error("another subnet is not reached without a path record")]
    OtherSubnet(#[source] Box<ResolveError>),
    /// No packet of this port reaches the peer.
    #[error("no path to {peer}: {why}")]
    Unreachable {
        /// The peer.
        peer: Gid,
        /// What the kernel says.
        why: String,
    },
}

impl ResolveError {
    /// Whether it is certain that no packet gets there.
    pub fn is_certain(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::OtherSubnet(_))
    }
}

/// What an operator says of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The traffic class of the global header: DSCP and ECN under RoCE.
    pub traffic_class: Option<u8>,
    /// InfiniBand's service level, 0 to 15, instead of the path record's.
    pub service_level: Option<u8>,
}

impl Marks {
    /// What was said goes before what the address has.
    pub(super) fn put_on(self, address: &mut AhAttr, link: LinkLayer) {
        if let Some(class) = self.traffic_class {
            address.grh.traffic_class = class;
        }
        if let (Some(level), LinkLayer::Infiniband) = (self.service_level, link) {
            address.sl = level;
        }
    }
}

/// What the host knows of the path between a port and a peer. Under RoCE there are no LIDs: what
/// stands in their place means nothing, and rate and life time are the kernel's guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// The port's GID.
    pub source: Gid,
    /// The peer's.
    pub peer: Gid,
    /// The service level; under RoCE the priority.
    pub service_level: u8,
    /// Where packets are sent in this subnet: the peer, or a router.
    pub dlid: u16,
    /// The LID of this port that they are sent from.
    pub slid: u16,
    /// The largest packets that get through.
    pub mtu: Option<PathMtu>,
    /// The slowest link on the way, as libibverbs numbers rates.
    pub rate: u8,
    /// Routers that packets may pass.
    pub hop_limit: u8,
    /// The traffic class of their global header.
    pub traffic_class: u8,
    /// The flow that they are of.
    pub flow_label: u32,
    /// How long a packet may be on its way: 4.096 µs times 2 to this power.
    pub life_time: u8,
}

impl PathRecord {
    pub(super) fn read(record: &abi::PathRec) -> Self {
        // What is not a value of its field is cut off: selectors share some bytes on the wire.
        let code = |value: u8| value & 0x3f;
        let mtu = usize::from(code(record.mtu)).checked_sub(1);
        Self {
            source: Gid(record.sgid.0),
            peer: Gid(record.dgid.0),
            service_level: record.sl & 0xf,
            dlid: u16::from_be(record.dlid),
            slid: u16::from_be(record.slid),
            mtu: mtu.and_then(|at| PathMtu::ALL.get(at)).copied(),
            rate: code(record.rate),
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
            flow_label: u32::from_be(record.flow_label) & 0xf_ffff,
            life_time: code(record.packet_life_time),
        }
    }
}

/// What is known of the way to a peer beside its address. Without anything, packets go as the
/// address says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The path, where it was resolved.
    pub record: Option<PathRecord>,
    /// What the operator says.
    pub marks: Marks,
}

/// A route as a queue pair has it.
#[derive(Clone, Copy)]
pub(super) struct Vector {
    pub(super) address: AhAttr,
    pub(super) mtu: PathMtu,
    pub(super) ack_timeout: u8,
}

impl Route {
    /// The largest packets that this port and the way carry.
    pub(super) fn mtu(&self, port: &PortInfo) -> PathMtu {
        self.record.and_then(|record| record.mtu).map_or(port.mtu, |mtu| mtu.min(port.mtu))
    }

    /// What a queue pair is connected with. `own_mtu` is what the peer was told of; both ends take
    /// the smaller of what they told each other, for they must have the same.
    pub(super) fn vector(&self, port: &PortInfo, own_mtu: PathMtu, peer: &QpAddress) -> Vector {
        // A record of the way to somebody else says nothing.
        let record = self.record.filter(|record| record.peer == peer.gid);
        // Spreads queue pairs over the paths of a routed fabric.
        let flow_label = fastrand::u32(..1 << 20);
        let mut address = AhAttr {
            grh: GlobalRoute {
                dgid: RawGid(peer.gid.0),
                flow_label,
                sgid_index: port.gid_index,
                hop_limit: HOPS,
                traffic_class: 0,
            },
            dlid: peer.lid,
            is_global: u8::from(
                port.link == LinkLayer::Ethernet || is_other_subnet(port, peer.gid),
            ),
            port_num: port.number,
            ..AhAttr::default()
        };
        let mut ack_timeout = ACK_TIMEOUT;
        if let Some(record) = record {
            address.sl = record.service_level;
            address.grh.traffic_class = record.traffic_class;
            if record.hop_limit > 0 {
                address.grh.hop_limit = record.hop_limit;
            }
            // Under RoCE the kernel makes these up.
            if port.link == LinkLayer::Infiniband {
                address.dlid = record.dlid;
                address.static_rate = record.rate;
                address.is_global |= u8::from(record.hop_limit > 1);
                address.grh.flow_label = record.flow_label;
                // A port may have several LIDs, a path each.
                let path_bits = record.slid.checked_sub(port.lid).filter(|bits| *bits < 128);
                address.src_path_bits = path_bits.unwrap_or(0) as u8;
                // There, and the acknowledgement back.
                ack_timeout = (record.life_time + 1).clamp(ACK_TIMEOUT, ACK_TIMEOUT_MAX);
            }
        }
        self.marks.put_on(&mut address, port.link);
        Vector { address, mtu: own_mtu.min(peer.mtu), ack_timeout }
    }
}

/// Whether only routers lead from a port on InfiniBand to a GID: its upper half is the subnet's.
fn is_other_subnet(port: &PortInfo, peer: Gid) -> bool {
    port.link == LinkLayer::Infiniband && peer.0[..8] != port.gid.0[..8]
}

/// Loaded once and for good: it opens each device for itself, and leaves it open when it is unloaded.
static CM: OnceLock<Result<Arc<RdmaCm>, Arc<NativeError>>> = OnceLock::new();

/// Resolves paths of one port.
#[derive(Default)]
pub(super) struct Resolver {
    resolving: Arc<AtomicU32>,
    /// Whether it was said that a path was not resolved.
    told: AtomicBool,
}

impl Resolver {
    /// What is known of the way to a peer.
    pub(super) fn route(
        &self,
        device: &Device,
        port: &PortInfo,
        peer: Gid,
        marks: Marks,
    ) -> Result<Route, VerbsError> {
        match self.resolve(device, port, peer, marks.traffic_class) {
            Ok(record) => Ok(Route { record: Some(record), marks }),
            Err(error) if error.is_certain() => Err(error.into()),
            Err(error) if is_other_subnet(port, peer) => {
                Err(ResolveError::OtherSubnet(Box::new(error)).into())
            }
            Err(error) => {
                if !self.told.swap(true, Ordering::Relaxed) {
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::debug!(device = %port.device, port = port.number, %error, source,
                        "paths are not resolved: peers are reached by their addresses alone");
                }
                Ok(Route { record: None, marks })
            }
        }
    }

    /// The path to a peer. Blocks, at most as long as [`RESOLVE_MAX`] and a little more.
    pub(super) fn resolve(
        &self,
        device: &Device,
        port: &PortInfo,
        peer: Gid,
        traffic_class: Option<u8>,
    ) -> Result<PathRecord, ResolveError> {
        let load = || RdmaCm::load().map(Arc::new).map_err(Arc::new);
        let cm = CM.get_or_init(load).clone().map_err(ResolveError::Missing)?;
        let turn = Turn::take(&self.resolving).ok_or(ResolveError::Busy)?;
        let question = Question {
            cm,
            verbs: Arc::clone(device.verbs()),
            port: port.clone(),
            pkey: device.pkey(port.number)?,
            peer,
            traffic_class,
            deadline: Instant::now() + RESOLVE_MAX,
        };
        // A thread of its own, since librdmacm may wait without end for a service that hangs.
        let (tell, told) = mpsc::sync_channel(1);
        let ask = move || {
            let _turn = turn;
            // Nobody waits any more where it took too long.
            let _ = tell.send(question.ask());
        };
        let thread = std::thread::Builder::new().name("kw-path".to_owned());
        if thread.spawn(ask).is_err() {
            return Err(ResolveError::Busy);
        }
        told.recv_timeout(RESOLVE_MAX + SLACK).unwrap_or(Err(ResolveError::Late))
    }
}

/// One of the paths that are resolved at a time.
struct Turn(Arc<AtomicU32>);

impl Turn {
    fn take(resolving: &Arc<AtomicU32>) -> Option<Self> {
        let one_more = |now: u32| (now < RESOLVING_MAX).then_some(now + 1);
        let taken = resolving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Self(Arc::clone(resolving)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
