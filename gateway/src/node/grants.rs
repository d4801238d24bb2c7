//! Direct transfers: a plan is sealed into a grant for the one node that may execute it.
//!
//! Sketch, per transfer: the plan encoded once (about 30 bytes per chunk), one HMAC over it,
//! one call to the node. Sealing keys are asked for once in their life, by one request for all
//! that wait, and are held in memory alone.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use keyway_auth::grant::{self, Grant, GrantError, GrantKeyId, Sealer};
use keyway_dataplane::{DirectError, StorageNode, TransferError, Transferred};
use keyway_proto::key::Relinquished;
use keyway_proto::{DirectPlan, NodeId};
use keyway_rpc::convert::direct_plan_bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Nodes;

/// How long a grant lives, in milliseconds: half of what nodes accept, so that their clocks
/// may be off by as much.
pub const GRANT_LIFETIME_MS: u64 = 60_000;

/// Longest that a sealing key is used without asking again, whatever its node says.
const FRESH_MAX: Duration = Duration::from_secs(3600);

const _: () = assert!(GRANT_LIFETIME_MS * 2 <= grant::LIFETIME_MS_MAX);

/// Has direct transfers executed by the nodes.
pub struct Grants {
    /// Sorted by id, as [`Nodes`] are.
    nodes: Vec<Sealing>,
}

/// A node, and what grants for it are sealed with.
struct Sealing {
    node: Arc<dyn StorageNode>,
    current: ArcSwapOption<Current>,
    /// Held while the node is asked, so that one asks for all.
    asking: Mutex<()>,
}

struct Current {
    key: GrantKeyId,
    sealer: Sealer,
    fresh_until: Instant,
    dynamic: bool,
}

impl Grants {
    /// For these nodes. None is asked yet.
    pub fn new(nodes: &Nodes) -> Self {
        let sealing = |node: &Arc<dyn StorageNode>| Sealing {
            node: Arc::clone(node),
            current: ArcSwapOption::empty(),
            asking: Mutex::new(()),
        };
        Self { nodes: nodes.iter().map(sealing).collect() }
    }

    /// Whether a node reaches dynamically connected targets, as it said with its sealing key; not,
    /// where it cannot be asked.
    pub async fn reaches_dynamic(&self, node: NodeId) -> bool {
        let Ok(at) = self.nodes.binary_search_by_key(&node, |s| s.node.id()) else { return false };
        self.nodes[at].current().await.is_ok_and(|current| current.dynamic)
    }

    /// Has the plan's session's node execute it, and answers once the key is given up.
    /// Dropping the future gives the transfer up.
    pub async fn transfer(&self, plan: &DirectPlan, now_ms: u64) -> Transferred {
        let Ok(at) = self.nodes.binary_search_by_key(&plan.session().node(), |s| s.node.id())
        else {
            return Transferred::refused(DirectError::NoSuchSession);
        };
        let sealing = &self.nodes[at];
        let plan_bytes = direct_plan_bytes(plan);
        let first = match sealing.current().await {
            Ok(current) => current,
            Err(error) => return Transferred::refused(error),
        };
        let transferred = sealing.execute(&first, plan, &plan_bytes, now_ms).await;
        // The node was started anew, or has turned its keys over. Nothing was posted, and no
        // grant under that key ever will be.
        let stale = matches!(transferred.moved, Err(DirectError::Grant(GrantError::UnknownKey)))
            && transferred.key == Relinquished::Quiet;
        if !stale {
            return transferred;
        }
        match sealing.another(first.key).await {
            Ok(current) => sealing.execute(&current, plan, &plan_bytes, now_ms).await,
            Err(error) => Transferred::refused(error),
        }
    }
}

impl Sealing {
    async fn execute(
        &self,
        current: &Current,
        plan: &DirectPlan,
        plan_bytes: &[u8],
        now_ms: u64,
    ) -> Transferred {
        let sealed = current.sealer.seal(&Grant {
            node: self.node.id(),
            session: plan.session(),
            tenant: plan.owner.tenant,
            expiry_ms: now_ms.saturating_add(GRANT_LIFETIME_MS),
            nonce: grant::nonce(),
            plan: plan_bytes,
        });
        self.node.transfer(sealed.into()).await
    }

    /// The key to seal with, if it is fresh.
    fn fresh(&self) -> Option<Arc<Current>> {
        self.current.load_full().filter(|current| Instant::now() < current.fresh_until)
    }

    async fn current(&self) -> Result<Arc<Current>, TransferError> {
        if let Some(current) = self.fresh() {
            return Ok(current);
        }
        let _turn = self.asking.lock().await;
        match self.fresh() {
            Some(current) => Ok(current),
            None => self.ask().await,
        }
    }

    /// The key after `refused`, which the node does not know.
    async fn another(&self, refused: GrantKeyId) -> Result<Arc<Current>, TransferError> {
        let _turn = self.asking.lock().await;
        match self.fresh().filter(|current| current.key != refused) {
            Some(current) => Ok(current),
            None => self.ask().await,
        }
    }

    async fn ask(&self) -> Result<Arc<Current>, TransferError> {
        let asked = Instant::now();
        let key = self.node.sealing_key().await?;
        let current = Arc::new(Current {
            key: key.key.id(),
            sealer: Sealer::new(&key.key),
            fresh_until: asked + key.fresh_for.min(FRESH_MAX),
            dynamic: key.dynamic,
        });
        self.current.store(Some(Arc::clone(&current)));
        Ok(current)
    }
}
