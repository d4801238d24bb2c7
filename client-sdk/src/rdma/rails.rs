//! The service's rails, and the sessions over them.
//!
//! A rail is one of our ports and one of a node's that reach each other. Its session is opened
//! by the first transfer that has its turn there, and again after it broke; a rail that fails
//! rests, and the others carry on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use ::http::Method;
use keyway_proto::{NodeId, Rail};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::RdmaConfig;
use super::fallback::{Counters, Fallback};
use super::pairing::{self, End};
use super::ports::LocalPort;
use super::session::Session;
use crate::error::{ClientError, Malformed};
use crate::http::{Call, Wire};

/// Transfers that fail one after the other before their rail rests.
const FAILURES_MAX: u32 = 3;
/// Rails that a service may tell.
const RAILS_MAX: usize = 4096;

/// The document that tells the rails.
#[derive(Deserialize)]
struct RailsDocument {
    rails: Vec<Rail>,
}

/// The rails that can be used, by node.
pub(super) struct Rails {
    nodes: BTreeMap<NodeId, Vec<Arc<Slot>>>,
    turn: AtomicUsize,
}

/// A rail of ours.
pub(super) struct Slot {
    pub(super) port: Arc<LocalPort>,
    pub(super) rail: Rail,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    failures: AtomicU32,
    rests_until: parking_lot::Mutex<Option<Instant>>,
}

/// Leave for one transfer in a session.
pub(crate) struct Ticket {
    pub(super) session: Arc<Session>,
    slot: Arc<Slot>,
    pause: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Rails {
    /// Asks the service.
    ///
    /// # Errors
    /// Why there is none that could be used.
    pub(super) async fn list(wire: &Wire, ports: &[Arc<LocalPort>]) -> Result<Self, Fallback> {
        let call = Call::control(Method::GET, "/_keyway/v1/rails");
        let document = async { wire.attempt(&call).await?.document().await }.await;
        let rails = document.and_then(|document| {
            let parsed = serde_json::from_slice::<RailsDocument>(&document);
            parsed.map_err(|error| Malformed::because("strange rails", error).into())
        });
        let mut rails = match rails {
            Ok(document) => document.rails,
            // Other S3 services have no such endpoint.
            Err(error) => {
                tracing::debug!(%error, "the service tells no RDMA rails");
                return Err(Fallback::NoRails);
            }
        };
        rails.truncate(RAILS_MAX);
        if rails.is_empty() {
            return Err(Fallback::NoRails);
        }
        let ends: Vec<End> = ports.iter().map(|port| port.end()).collect();
        let nodes = pairing::pair(&ends, rails);
        if nodes.is_empty() {
            return Err(Fallback::NoPair);
        }
        let slots = |pairs: pairing::Pairs| {
            pairs.into_iter().map(|(at, rail)| Arc::new(Slot::new(&ports[at], rail))).collect()
        };
        let nodes = nodes.into_iter().map(|(node, pairs)| (node, slots(pairs))).collect();
        Ok(Self { nodes, turn: AtomicUsize::new(fastrand::usize(..1 << 16)) })
    }

    /// Whether a node is reached.
    pub(super) fn reaches(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// All rails.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.nodes.values().flatten()
    }

    /// Leave for a transfer with this node, or any: rails take turns. Waits while as many are in
    /// flight as the session may have.
    ///
    /// # Errors
    /// Why there is none. A rail that rests is tried only when `insisting`.
    pub(super) async fn ticket(
        &self,
        node: Option<NodeId>,
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
            let Some(session) = slot.session(opening).await else {
                why = Fallback::NoSession;
                continue;
            };
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
    fn new(port: &Arc<LocalPort>, rail: Rail) -> Self {
        Self {
            port: Arc::clone(port),
            rail,
            session: tokio::sync::Mutex::default(),
            failures: AtomicU32::new(0),
            rests_until: parking_lot::Mutex::default(),
        }
    }

    /// The session, opened where there is none that could be used. Those who come meanwhile
    /// wait for the one opening.
    pub(super) async fn session(&self, opening: &Opening<'_>) -> Option<Arc<Session>> {
        let mut session = self.session.lock().await;
        if let Some(open) = session.as_ref().filter(|open| open.is_usable()) {
            return Some(Arc::clone(open));
        }
        *session = None;
        let (wire, port) = (Arc::clone(opening.wire), Arc::clone(&self.port));
        let (rail, config) = (self.rail.clone(), opening.config.clone());
        // Whoever asked may go away; a session that was opened is then closed again.
        let opened =
            tokio::spawn(async move { Session::open(&wire, &port, &rail, &config).await }).await;
        match opened {
            Ok(Ok(opened)) => {
                opening.counters.sessions.fetch_add(1, Ordering::Relaxed);
                *session = Some(Arc::clone(&opened));
                Some(opened)
            }
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, rail = self.rail.name, "no RDMA session");
                self.rest(opening.config.pause);
                None
            }
            // A panic was printed where it happened; else the runtime shuts down.
            Err(_) => None,
        }
    }

    fn rests(&self) -> bool {
        self.rests_until.lock().is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self, pause: Duration) {
        *self.rests_until.lock() = Some(Instant::now() + pause);
    }
}

impl Ticket {
    /// The transfer ended as it must.
    pub(super) fn succeeded(&self) {
        self.slot.failures.store(0, Ordering::Relaxed);
    }

    /// The transfer failed; `down` when nothing can be expected of the rail for now.
    pub(super) fn failed(&self, down: bool) {
        let failures = self.slot.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if down || failures >= FAILURES_MAX {
            self.slot.failures.store(0, Ordering::Relaxed);
            self.slot.rest(self.pause);
        }
    }

    /// The service does not know the session any more.
    pub(super) fn forgotten(&self) {
        self.session.forget();
    }
}

/// What went wrong, where only that is told.
impl From<Fallback> for ClientError {
    fn from(reason: Fallback) -> Self {
        Self::PathUnavailable { path: keyway_proto::TransferPath::VerbsHost, reason }
    }
}
