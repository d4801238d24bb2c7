//! What runs beside the requests: chunks that nothing names are released, and what is not
//! durable is followed until it is.
//!
//! [`lifecycle`] acts by the rules of buckets. [`settler`] asks the nodes about what was answered
//! from their memory. [`reaper`] takes what the catalog gave up (overwritten, deleted, aborted) to
//! its node. [`sweeper`] finds what the catalog never knew: chunks that were durable when their
//! gateway died before it could publish them. It condemns them in the catalog first, which is the
//! point from which no publication can come, and leaves the rest to the reaper. Nobody asks the
//! node to release a chunk in any other way.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keyway_dataplane::TransferError;
use keyway_meta::{Catalog, CatalogError, UnixMs};
use keyway_proto::NodeId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::node::Nodes;
use crate::notify::Notifier;

mod lifecycle;
mod reaper;
mod settler;
mod stats;
mod sweeper;
#[cfg(test)]
mod tests;

pub use lifecycle::LifecycleReport;
pub use reaper::ReapReport;
pub use settler::SettleReport;
pub use stats::MaintenanceStats;
pub use sweeper::SweepReport;

use stats::Counters;
use sweeper::Suspects;

/// Rounds are at least this far apart, so that many small wishes become one commit.
const REST: Duration = Duration::from_millis(200);

/// Completed uploads forgotten by one commit.
const COMPLETIONS_BATCH: usize = 500;

/// How often, and how cautiously.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaintenanceConfig {
    /// Between two looks at the garbage queue, when nothing was put there meanwhile.
    pub reap_period_ms: u64,
    /// Between two sweeps for chunks that the catalog does not know.
    pub sweep_period_ms: u64,
    /// How long a chunk must have been stored without being published until it is swept: more
    /// than any gateway takes from a node's receipt to its own commit.
    pub orphan_grace_ms: u64,
    /// How long completing an upload again gets the first answer.
    pub completion_memory_ms: u64,
    /// Between two looks at what lifecycle rules are due for.
    pub lifecycle_period_ms: u64,
    /// How long a day is to lifecycle rules.
    pub lifecycle_day_ms: u64,
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        Self {
            reap_period_ms: 5_000,
            sweep_period_ms: 3_600_000,
            orphan_grace_ms: 3_600_000,
            completion_memory_ms: 86_400_000,
            lifecycle_period_ms: 3_600_000,
            lifecycle_day_ms: 86_400_000,
        }
    }
}

/// Why a round was cut short. The next one takes up the rest.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MaintenanceError {
    /// The catalog's failure.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A node did not tell which chunks it has.
    #[error("{node} does not list its chunks")]
    Node {
        /// The node.
        node: NodeId,
        /// Why.
        #[source]
        source: TransferError,
    },
}

/// Reaper and sweeper of one gateway, the only one of its catalog.
pub struct Maintenance {
    catalog: Arc<Catalog>,
    nodes: Nodes,
    config: MaintenanceConfig,
    wanted: Notify,
    suspects: Mutex<Suspects>,
    /// Nodes that were swept since this gateway began.
    swept: Mutex<HashSet<NodeId>>,
    began: UnixMs,
    counters: Counters,
    notifier: Arc<Notifier>,
}

impl Maintenance {
    /// Maintenance of these nodes' chunks.
    pub fn new(catalog: Arc<Catalog>, nodes: Nodes, config: MaintenanceConfig) -> Self {
        Self {
            catalog,
            nodes,
            config,
            wanted: Notify::new(),
            suspects: Mutex::default(),
            swept: Mutex::default(),
            began: unix_now(),
            counters: Counters::default(),
            notifier: Arc::default(),
        }
    }

    /// The same, with somebody told of what lifecycle rules do.
    #[must_use]
    pub fn telling(self, notifier: Arc<Notifier>) -> Self {
        Self { notifier, ..self }
    }

    /// Asks for a round soon: space is short. Costs next to nothing. For what the catalog
    /// itself gave up, nobody needs to ask.
    pub fn wake(&self) {
        self.wanted.notify_one();
    }

    /// What was done so far.
    pub fn stats(&self) -> MaintenanceStats {
        self.counters.snapshot()
    }

    /// Runs until `stop` resolves. Dropping it between two commits leaves nothing undone that
    /// the next start does not find.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = stop => {}
            () = self.rounds() => {}
            () = self.settle_behind() => {}
            () = self.live_on() => {}
        }
    }

    /// Acts by lifecycle rules for as long as it is polled.
    async fn live_on(&self) {
        let period = Duration::from_millis(self.config.lifecycle_period_ms).max(REST);
        loop {
            tokio::time::sleep(period).await;
            self.note("lifecycle rules", self.live(unix_now()).await);
        }
    }

    /// Between two looks, when nothing asks for one.
    fn period(&self) -> Duration {
        Duration::from_millis(self.config.reap_period_ms).max(REST)
    }

    async fn rounds(&self) {
        let sweep_period = Duration::from_millis(self.config.sweep_period_ms).max(REST);
        let mut next_sweep = Instant::now() + sweep_period;
        let mut next_look = Instant::now();
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + self.period();
                self.note("sweeping after the start", self.sweep_at_start().await);
            }
            tokio::select! {
                () = self.wanted.notified() => {}
                () = self.catalog.garbage_queued() => {}
                () = tokio::time::sleep(self.period()) => {}
            }
            let sweep_due = Instant::now() >= next_sweep;
            if sweep_due {
                next_sweep = Instant::now() + sweep_period;
            }
            self.round(sweep_due).await;
            tokio::time::sleep(REST).await;
        }
    }

    async fn round(&self, sweep: bool) {
        let now = unix_now();
        if sweep {
            self.note("sweeping", self.sweep(now, Instant::now()).await);
            self.note("forgetting completed uploads", self.forget_completions(now).await);
        }
        self.note("reaping", self.reap().await);
    }

    /// Forgets completed uploads whose answer nobody will ask for again; says how many.
    ///
    /// # Errors
    /// [`MaintenanceError::Catalog`].
    pub async fn forget_completions(&self, now: UnixMs) -> Result<u64, MaintenanceError> {
        let before = UnixMs(now.0.saturating_sub(self.config.completion_memory_ms));
        let mut forgotten = 0;
        loop {
            let count = self.catalog.forget_completions(before, COMPLETIONS_BATCH).await?;
            forgotten += count as u64;
            self.counters.completions_forgotten.add(count as u64);
            if count < COMPLETIONS_BATCH {
                return Ok(forgotten);
            }
        }
    }

    fn note<T>(&self, doing: &'static str, result: Result<T, MaintenanceError>) {
        if let Err(error) = result {
            self.counters.failures.add(1);
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, doing, "maintenance was cut short");
        }
    }
}

fn unix_now() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
