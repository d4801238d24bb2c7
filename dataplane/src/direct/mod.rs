//! Direct transfers: between this node and clients' own memory.
//!
//! | step | where |
//! |---|---|
//! | ports are opened and tried at start | [`rail`] |
//! | the door for clients of this host | [`door`] |
//! | a session: a queue pair in its tenant's protection domain, or shared mappings | [`session`] |
//! | what a session's bytes travel over | [`transport`] |
//! | clients without a session, with dynamically connected targets | [`dynamic`] |
//! | a grant is verified, once | [`keys`] |
//! | the plan is executed, the key ended, whatever happens | [`execute`] |
//! | bytes: extents → leases → the client's memory | [`get`] |
//! | many small pieces of extents, each to its place in the client's memory | [`gather`] |
//! | bytes: the client's memory → leases → extents | [`put`] |
//! | bytes: the client's memory → the memory tier | [`land`] |

mod config;
mod door;
mod dynamic;
mod execute;
mod gather;
mod get;
mod keys;
mod land;
mod put;
mod rail;
mod remote;
mod session;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use keyway_fabric::ipc::NodeGpus;
use keyway_proto::key::Relinquished;
use keyway_proto::{
    DirectPlan, DirectTarget, Door, LocalSessionOffer, LocalSessionRequest, NodeId, Rail,
    SessionOffer, SessionOwner, SessionRequest, SessionSelector,
};
use keyway_rpc::convert;
use parking_lot::Mutex;

use crate::engine::NodeMemory;
use crate::node::{DirectError, SealingKey, SessionError, TransferError};
use door::LocalDoor;
use keys::GrantKeys;
use rail::NodeRail;
use session::{Sessions, Use, Way};

pub use config::{IpcConfig, RdmaConfig};
pub use door::DoorUnavailable;
pub(crate) use execute::{Needs, execute};
pub use keyway_fabric::gpu::{Gpu, GpuError, GpuInfo};
pub use keyway_fabric::verbs::{PathRecord, ResolveError};
pub use rail::{PortReport, RdmaUnavailable, examine};

/// The node's direct side.
pub(crate) struct Direct {
    node: NodeId,
    config: RdmaConfig,
    rails: Vec<Arc<NodeRail>>,
    door: Mutex<Option<LocalDoor>>,
    keys: GrantKeys,
    sessions: Arc<Sessions>,
    counters: DirectCounters,
}

/// What direct transfers did.
#[derive(Default)]
struct DirectCounters {
    invalidated: AtomicU64,
    quiet: AtomicU64,
    fenced: AtomicU64,
    refused: AtomicU64,
}

/// A snapshot of a node's direct side, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Ports that take sessions.
    pub rails: u64,
    /// Sessions open.
    pub sessions: u64,
    /// Transfers whose key the node invalidated.
    pub invalidated: u64,
    /// Transfers whose key was left to the client, unused from then on.
    pub quiet: u64,
    /// Transfers whose queue pair was destroyed.
    pub fenced: u64,
    /// Grants that were refused.
    pub refused: u64,
}

impl Direct {
    /// Without any adapter.
    pub(crate) fn without_rails(node: NodeId) -> Self {
        Self::over(node, RdmaConfig::default(), Vec::new())
    }

    /// Over the adapters and the door that the operator wants. Takes up to seconds for the
    /// adapters' self-tests.
    pub(crate) async fn open(
        node: NodeId,
        rdma: RdmaConfig,
        ipc: &IpcConfig,
        memory: &NodeMemory,
    ) -> Result<Self, DirectUnavailable> {
        let rails = rail::open(&rdma).await?;
        let direct = Self::over(node, rdma, rails);
        let gpus = Arc::new(NodeGpus::new(memory.anchors()));
        let door = LocalDoor::open(ipc, &direct.config, &direct.sessions, &gpus)?;
        *direct.door.lock() = door;
        Ok(direct)
    }

    fn over(node: NodeId, config: RdmaConfig, rails: Vec<NodeRail>) -> Self {
        Self {
            node,
            config,
            rails: rails.into_iter().map(Arc::new).collect(),
            door: Mutex::default(),
            keys: GrantKeys::new(node),
            sessions: Arc::new(Sessions::new(node)),
            counters: DirectCounters::default(),
        }
    }

    pub(crate) fn rails(&self) -> Vec<Rail> {
        self.rails.iter().map(|rail| rail.describe(self.node)).collect()
    }

    pub(crate) fn sealing_key(&self) -> SealingKey {
        self.keys.sealing_key(self.rails.iter().any(|rail| rail.dynamic.is_some()))
    }

    pub(crate) async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
        memory: &NodeMemory,
    ) -> Result<SessionOffer, SessionError> {
        let rail = self.rails.iter().find(|rail| rail.number == request.rail);
        let rail = rail.filter(|_| request.node == self.node).ok_or(SessionError::NoSuchRail)?;
        let (rail, memory) = (Arc::clone(rail), memory.clone());
        self.sessions.open(rail, memory, owner, request, &self.config).await
    }

    pub(crate) fn door(&self) -> Option<Door> {
        self.door.lock().as_ref().map(|door| door.describe(self.node))
    }

    pub(crate) fn open_local_session(
        &self,
        owner: SessionOwner,
        request: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        let door = self.door.lock();
        let door = door.as_ref().filter(|_| request.node == self.node);
        let door = door.ok_or(SessionError::NoSuchRail)?;
        door.offer(owner, request, &self.sessions, &self.config)
    }

    pub(crate) async fn close_sessions(&self, selector: &SessionSelector) -> u64 {
        // Tickets first: nobody comes in behind us.
        let withdrawn = self.door.lock().as_ref().map_or(0, |door| door.withdraw(selector));
        let closed = withdrawn + self.sessions.close(selector).await;
        if let SessionSelector::Tenant(tenant) = selector {
            for dynamic in self.rails.iter().filter_map(|rail| rail.dynamic.as_ref()) {
                dynamic.forget(*tenant);
            }
        }
        closed
    }

    pub(crate) fn count_sessions(&self, selector: &SessionSelector) -> u64 {
        // Tickets first: one that is shown meanwhile counts twice rather than not at all.
        let expected = self.door.lock().as_ref().map_or(0, |door| door.expected(selector));
        expected + self.sessions.chosen(selector).len() as u64
    }

    /// Ends every session, and every key in flight.
    pub(crate) async fn close(&self) {
        drop(self.door.lock().take());
        self.sessions.close_all().await;
    }

    /// Checks a grant and its plan; each grant passes once.
    pub(crate) async fn accept(
        &self,
        sealed: &[u8],
        memory: &NodeMemory,
    ) -> Result<Accepted, DirectError> {
        let accepted = self.check(sealed, memory).await;
        if accepted.is_err() {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        accepted
    }

    async fn check(&self, sealed: &[u8], memory: &NodeMemory) -> Result<Accepted, DirectError> {
        let grant = self.keys.accept(sealed, unix_ms())?;
        let plan = convert::direct_plan(grant.plan);
        let plan = plan.map_err(|_| DirectError::InvalidPlan("the plan is malformed"))?;
        if (plan.session(), plan.owner.tenant) != (grant.session, grant.tenant) {
            return Err(DirectError::InvalidPlan("the plan is not the grant's"));
        }
        if plan.length() == 0 || !plan.fits() {
            return Err(DirectError::InvalidPlan("the bytes do not fit the windows"));
        }
        let timeout = std::time::Duration::from_millis(self.config.transfer_timeout_ms);
        let deadline = tokio::time::Instant::now() + timeout;
        let session = match &plan.target {
            DirectTarget::Session(token) => self.sessions.take(token.session(), &plan.owner),
            DirectTarget::Dynamic(_, token) => {
                let way = dynamic::way(&self.rails, plan.owner.tenant, token.target(), memory);
                let way = tokio::time::timeout_at(deadline, way).await;
                let way = Way::Dynamic(way.map_err(|_| DirectError::TimedOut)??);
                let listed = self.sessions.alone(plan.owner.clone(), way, &self.config);
                Some(listed.map_err(|_| TransferError::Busy)?)
            }
        };
        let session = session.ok_or(DirectError::NoSuchSession)?;
        Ok(Accepted { plan, session, deadline })
    }

    /// Counts the end of a key.
    fn count(&self, key: Relinquished) {
        let counter = match key {
            Relinquished::Invalidated => &self.counters.invalidated,
            Relinquished::Quiet => &self.counters.quiet,
            Relinquished::Fenced | Relinquished::Unknown => &self.counters.fenced,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> DirectStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DirectStats {
            rails: self.rails.len() as u64,
            sessions: self.sessions.count(),
            invalidated: count(&self.counters.invalidated),
            quiet: count(&self.counters.quiet),
            fenced: count(&self.counters.fenced),
            refused: count(&self.counters.refused),
        }
    }
}

/// Why a node does not serve direct transfers as it must.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectUnavailable {
    /// RDMA is required, and cannot be had.
    #[error(transparent)]
    Rdma(#[from] RdmaUnavailable),
    /// A door is required, and cannot be opened.
    #[error(transparent)]
    Door(#[from] DoorUnavailable),
}

/// A transfer that may begin.
pub(crate) struct Accepted {
    pub(crate) plan: DirectPlan,
    pub(crate) session: Use,
    pub(crate) deadline: tokio::time::Instant,
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
