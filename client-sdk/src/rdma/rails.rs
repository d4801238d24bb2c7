//! The service's rails, and the sessions over them.
//!
//! A rail is one of our ports and one of a node's that reach each other. Its session is opened
//! by the first transfer that has its turn there, and again after it broke; a rail that fails
//! rests, and the others carry on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ::http::Method;
use keyway_fabric::gpu::Gpu;
use keyway_proto::{Door, NodeId, Rail};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::RdmaConfig;
use super::fallback::{Counters, Fallback};
use super::local;
use super::pairing::{self, End};
use super::ports::{LocalPort, MemoryKind};
use super::session::Session;
use crate::error::{ClientError, Malformed};
use crate::http::{Call, Wire};

/// Transfers that fail one after the other before their rail rests.
const FAILURES_MAX: u32 = 3;
/// Rails that a service may tell.
const RAILS_MAX: usize = 4096;

/// The document that tells the rails and doors.
#[derive(Deserialize)]
struct RailsDocument {
    rails: Vec<Rail>,
    #[serde(default)]
    doors: Vec<Door>,
}

/// The rails that can be used, by node.
pub(super) struct Rails {
    nodes: BTreeMap<NodeId, Vec<Arc<Slot>>>,
    turn: AtomicUsize,
}

/// A way to a node.
pub(super) struct Slot {
    pub(super) way: Way,
    session: Opened,
    /// For GPU memory, which gets weaker keys than other.
    device_session: Opened,
    /// One after the other.
    failures: AtomicU32,
    /// What it did in all: transfers, bytes, failures.
    transfers: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    rests_until: parking_lot::Mutex<Option<Instant>>,
}

type Opened = tokio::sync::Mutex<Option<Arc<Session>>>;

/// What a slot's sessions are opened over.
pub(super) enum Way {
    /// A port of ours that reaches a rail.
    Rail(Arc<LocalPort>, Rail),
    /// A door of this host.
    Door(Door),
}

impl Way {
    fn node(&self) -> NodeId {
        match self {
            Self::Rail(_, rail) => rail.node,
            Self::Door(door) => door.node,
        }
    }

    /// For people.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Rail(_, rail) => &rail.name,
            Self::Door(door) => &door.socket,
        }
    }
}

/// What a service tells of the ways to its nodes.
pub(super) struct Told {
    pub(super) rails: Vec<Rail>,
    /// Those of this host.
    pub(super) doors: Vec<Door>,
}

/// Asks the service. One that tells nothing, as all others than ours, has no ways.
pub(super) async fn ask(wire: &Wire) -> Told {
    let call = Call::control(Method::GET, "/_keyway/v1/rails");
    let document = async { wire.attempt(&call).await?.document().await }.await;
    let told = document.and_then(|document| {
        let parsed = serde_json::from_slice::<RailsDocument>(&document);
        parsed.map_err(|error| Malformed::because("strange rails", error).into())
    });
    match told {
        Ok(RailsDocument { mut rails, mut doors }) => {
            rails.truncate(RAILS_MAX);
            doors.truncate(RAILS_MAX);
            Told { rails, doors: local::of_this_host(doors) }
        }
        Err(error) => {
            let error: ClientError = error;
            tracing::debug!(%error, "the service tells no rails");
            Told { rails: Vec::new(), doors: Vec::new() }
        }
    }
}

/// Leave for one transfer in a session.
pub(crate) struct Ticket {
    pub(super) session: Arc<Session>,
    slot: Arc<Slot>,
    pause: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Rails {
    /// The rails that our ports reach.
    ///
    /// # Errors
    /// Why there is none that could be used.
    pub(super) fn over(rails: Vec<Rail>, ports: &[Arc<LocalPort>]) -> Result<Self, Fallback> {
        if rails.is_empty() {
            return Err(Fallback::NoRails);
        }
        let ends: Vec<End> = ports.iter().map(|port| port.end()).collect();
        let nodes = pairing::pair(&ends, rails);
        if nodes.is_empty() {
            return Err(Fallback::NoPair);
        }
        let slots = |pairs: pairing::Pairs| {
            let way = |(at, rail): (usize, Rail)| Way::Rail(Arc::clone(&ports[at]), rail);
            pairs.into_iter().map(|pair| Arc::new(Slot::new(way(pair)))).collect()
        };
        let nodes = nodes.into_iter().map(|(node, pairs)| (node, slots(pairs))).collect();
        Ok(Self { nodes, turn: AtomicUsize::new(fastrand::usize(..1 << 16)) })
    }

    /// The doors of this host.
    ///
    /// # Errors
    /// [`Fallback::NoDoor`].
    pub(super) fn through(doors: Vec<Door>) -> Result<Self, Fallback> {
        let mut nodes: BTreeMap<NodeId, Vec<Arc<Slot>>> = BTreeMap::new();
        for way in doors.into_iter().map(Way::Door) {
            nodes.entry(way.node()).or_default().push(Arc::new(Slot::new(way)));
        }
        if nodes.is_empty() {
            return Err(Fallback::NoDoor);
        }
        Ok(Self { nodes, turn: AtomicUsize::new(0) })
    }

    /// Whether a node is reached.
    pub(super) fn reaches(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// Whether an adapter of ours reaches a GPU's memory.
    pub(super) async fn reach(&self, gpu: &Arc<Gpu>) -> bool {
        for slot in self.slots() {
            if let Way::Rail(port, _) = &slot.way
                && port.reaches(gpu).await
            {
                return true;
            }
        }
        false
    }

    /// All rails.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.nodes.values().flatten()
    }

    /// Leave for a transfer with this node, or any: rails take turns. Waits while as many are in
    /// flight as the session may have. `bytes` are those of the transfer; `gpu` is the one whose memory adapters must reach.
    ///
    /// # Errors
    /// Why there is none. A rail that rests is tried only when `insisting`.
    pub(super) async fn ticket(
        &self,
        node: Option<NodeId>,
        bytes: u64,
        gpu: Option<&Arc<Gpu>>,
        insisting: bool,
        opening: &Opening<'_>,
    ) -> Result<Ticket, Fallback> {
        let of_node = |(id, _): &(&NodeId, _)| node.is_none_or(|node| node == **id);
        let slots: Vec<_> =
            self.nodes.iter().filter(of_node).flat_map(|(_, slots)| slots).collect();
        if slots.is_empty() {
            return Err(Fallback::OtherNode);
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..slots.len()).map(|step| slots[first.wrapping_add(step) % slots.len()]);
        let (awake, resting): (Vec<_>, Vec<_>) = in_turn.partition(|slot| !slot.rests());
        let resting = if insisting { resting } else { Vec::new() };
        let mut why = Fallback::Paused;
        for slot in awake.into_iter().chain(resting) {
            if let (Some(gpu), Way::Rail(port, _)) = (gpu, &slot.way)
                && !port.reaches(gpu).await
            {
                why = Fallback::Registration;
                continue;
            }
            let memory = if gpu.is_some() { MemoryKind::Device } else { MemoryKind::Host };
            let Some(session) = slot.session(memory, opening).await else {
                why = Fallback::NoSession;
                continue;
            };
            if !session.holds(bytes) {
                why = Fallback::TooLarge;
                continue;
            }
            let permit = Arc::clone(&session.permits).acquire_owned().await;
            let permit = permit.expect("a session never closes its semaphore");
            let (slot, pause) = (Arc::clone(slot), opening.config.pause);
            return Ok(Ticket { session, slot, pause, _permit: permit });
        }
        Err(why)
    }
}

/// What sessions are opened with.
pub(super) struct Opening<'a> {
    pub(super) wire: &'a Arc<Wire>,
    pub(super) config: &'a RdmaConfig,
    pub(super) counters: &'a Counters,
}

impl Slot {
    fn new(way: Way) -> Self {
        Self {
            way,
            session: Opened::default(),
            device_session: Opened::default(),
            failures: AtomicU32::new(0),
            transfers: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            rests_until: parking_lot::Mutex::default(),
        }
    }

    /// The session for memory of a kind, opened where there is none that could be used. Those who
    /// come meanwhile wait for the one opening.
    pub(super) async fn session(
        &self,
        memory: MemoryKind,
        opening: &Opening<'_>,
    ) -> Option<Arc<Session>> {
        let mut session = match memory {
            MemoryKind::Host => self.session.lock().await,
            MemoryKind::Device => self.device_session.lock().await,
        };
        if let Some(open) = session.as_ref().filter(|open| open.is_usable()) {
            return Some(Arc::clone(open));
        }
        *session = None;
        let (wire, config) = (Arc::clone(opening.wire), opening.config.clone());
        // Whoever asked may go away; a session that was opened is then closed again.
        let opened = match &self.way {
            Way::Rail(port, rail) => {
                let (port, rail) = (Arc::clone(port), rail.clone());
                tokio::spawn(
                    async move { Session::open(&wire, &port, &rail, memory, &config).await },
                )
            }
            Way::Door(door) => {
                let door = door.clone();
                tokio::spawn(async move { Session::open_local(&wire, &door, &config).await })
            }
        };
        let opened = opened.await;
        match opened {
            Ok(Ok(opened)) => {
                opening.counters.sessions.fetch_add(1, Ordering::Relaxed);
                *session = Some(Arc::clone(&opened));
                Some(opened)
            }
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, way = self.way.name(), "no session");
                self.rest(opening.config.pause);
                None
            }
            // A panic was printed where it happened; else the runtime shuts down.
            Err(_) => None,
        }
    }

    /// Transfers, their bytes, and failures, in all.
    pub(super) fn moved(&self) -> (u64, u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.transfers), count(&self.bytes), count(&self.failed))
    }

    pub(super) fn rests(&self) -> bool {
        self.rests_until.lock().is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self, pause: Duration) {
        *self.rests_until.lock() = Some(Instant::now() + pause);
    }
}

impl Ticket {
    /// The transfer ended as it must, and moved so many bytes.
    pub(super) fn succeeded(&self, bytes: u64) {
        self.slot.transfers.fetch_add(1, Ordering::Relaxed);
        self.slot.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.slot.failures.store(0, Ordering::Relaxed);
    }

    /// The transfer failed; `down` when nothing can be expected of the rail for now.
    pub(super) fn failed(&self, down: bool) {
        self.slot.failed.fetch_add(1, Ordering::Relaxed);
        let failures = self.slot.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if down || failures >= FAILURES_MAX {
            self.slot.failures.store(0, Ordering::Relaxed);
            self.slot.rest(self.pause);
        }
    }

    /// Whether the node is on this host.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.slot.way, Way::Door(_))
    }

    /// The service does not know the session any more.
    pub(super) fn forgotten(&self) {
        self.session.forget();
    }
}
