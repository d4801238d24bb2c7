//! Direct transfers: between this node and clients' own memory.
//!
//! | step | where |
//! |---|---|
//! | ports are opened and tried at start | [`rail`] |
//! | a session: a queue pair in its tenant's protection domain | [`session`] |
//! | a grant is verified, once | [`keys`] |
//! | the plan is executed, the key ended, whatever happens | [`execute`] |
//! | bytes: extents → leases → RDMA WRITE | [`get`] |
//! | bytes: RDMA READ → leases → extents | [`put`] |

mod config;
mod execute;
mod get;
mod keys;
mod put;
mod rail;
mod remote;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use keyway_fabric::memory::LeasePool;
use keyway_proto::key::Relinquished;
use keyway_proto::{
    DirectPlan, NodeId, Rail, SessionOffer, SessionOwner, SessionRequest, SessionSelector,
};
use keyway_rpc::convert;

use crate::node::{DirectError, SealingKey, SessionError};
use keys::GrantKeys;
use rail::NodeRail;
use session::{Sessions, Use};

pub use config::RdmaConfig;
pub(crate) use execute::{Needs, execute};
pub use rail::{PortReport, RdmaUnavailable, examine};

/// The node's direct side.
pub(crate) struct Direct {
    node: NodeId,
    config: RdmaConfig,
    rails: Vec<Arc<NodeRail>>,
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

    /// Over the adapters that the operator wants. Takes up to seconds for their self-tests.
    pub(crate) async fn open(node: NodeId, config: RdmaConfig) -> Result<Self, RdmaUnavailable> {
        let rails = rail::open(&config).await?;
        Ok(Self::over(node, config, rails))
    }

    fn over(node: NodeId, config: RdmaConfig, rails: Vec<NodeRail>) -> Self {
        Self {
            node,
            config,
            rails: rails.into_iter().map(Arc::new).collect(),
            keys: GrantKeys::new(node),
            sessions: Arc::new(Sessions::new(node)),
            counters: DirectCounters::default(),
        }
    }

    pub(crate) fn rails(&self) -> Vec<Rail> {
        self.rails.iter().map(|rail| rail.describe(self.node)).collect()
    }

    pub(crate) fn sealing_key(&self) -> SealingKey {
        self.keys.sealing_key()
    }

    pub(crate) async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
        pool: &LeasePool,
    ) -> Result<SessionOffer, SessionError> {
        let rail = self.rails.iter().find(|rail| rail.number == request.rail);
        let rail = rail.filter(|_| request.node == self.node).ok_or(SessionError::NoSuchRail)?;
        let (rail, pool) = (Arc::clone(rail), pool.clone());
        self.sessions.open(rail, pool, owner, request, &self.config).await
    }

    pub(crate) async fn close_sessions(&self, selector: &SessionSelector) -> u64 {
        self.sessions.close(selector).await
    }

    /// Ends every session, and every key in flight.
    pub(crate) async fn close(&self) {
        self.sessions.close_all().await;
    }

    /// Checks a grant and its plan; each grant passes once.
    pub(crate) fn accept(&self, sealed: &[u8]) -> Result<Accepted, DirectError> {
        let accepted = self.check(sealed);
        if accepted.is_err() {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        accepted
    }

    fn check(&self, sealed: &[u8]) -> Result<Accepted, DirectError> {
        let grant = self.keys.accept(sealed, unix_ms())?;
        let plan = convert::direct_plan(grant.plan);
        let plan = plan.map_err(|_| DirectError::InvalidPlan("the plan is malformed"))?;
        if (plan.session(), plan.owner.tenant) != (grant.session, grant.tenant) {
            return Err(DirectError::InvalidPlan("the plan is not the grant's"));
        }
        if plan.length() == 0 || !plan.fits() {
            return Err(DirectError::InvalidPlan("the bytes do not fit the windows"));
        }
        let session = self.sessions.take(plan.session(), &plan.owner);
        let session = session.ok_or(DirectError::NoSuchSession)?;
        let deadline = std::time::Duration::from_millis(self.config.transfer_timeout_ms);
        Ok(Accepted { plan, session, deadline: tokio::time::Instant::now() + deadline })
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
