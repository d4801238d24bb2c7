//! Chunks that the catalog never knew.
//!
//! A node's chunk is an orphan when its gateway died between the receipt and the commit. Two
//! things tell it from a PUT under way: it was made longer than the grace period ago, and an
//! earlier sweep, at least as long ago, saw it stored and unowned already. The second one
//! matters: a chunk's id is made when its transfer begins, and a slow transfer ends long after.
//! The catalog then decides, in one commit that no publication can pass ([`Catalog::condemn`]).
//!
//! When a gateway starts nothing of its catalog is under way, for there is no other one: whatever was
//! made before and is unowned goes at once. That is what a crash left behind, and what had been
//! released: a store forgets a chunk in memory alone, and finds it again at its start.
//!
//! [`Catalog::condemn`]: keyway_meta::Catalog::condemn

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_dataplane::{StorageNode, TransferError};
use keyway_meta::{Extent, UnixMs};
use keyway_proto::{ChunkId, ChunkSpec, NodeId};

use super::{Maintenance, MaintenanceError};

/// Chunks looked at together.
const PAGE: usize = 1000;

/// How long a node may take to say that it is there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Suspects remembered between two sweeps. More than that wait for their turn.
const SUSPECTS_MAX: usize = 1 << 18;

/// When a sweep first saw each unowned chunk.
pub(super) type Suspects = HashMap<(NodeId, ChunkId), Instant>;

/// What one sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Chunks that the nodes listed.
    pub seen: u64,
    /// Too young to be judged.
    pub young: u64,
    /// Unowned, and seen so for the first time or not long enough.
    pub suspected: u64,
    /// Unowned, and queued to be released.
    pub condemned: u64,
}

impl Maintenance {
    /// Looks once at all chunks of all nodes, at the time `now`, which is `at` on the clock
    /// that never steps. Orphans are queued; the reaper releases them.
    ///
    /// # Errors
    /// [`MaintenanceError`] when the catalog or a node fails; what was found before stands.
    pub async fn sweep(&self, now: UnixMs, at: Instant) -> Result<SweepReport, MaintenanceError> {
        let grace = Duration::from_millis(self.config.orphan_grace_ms);
        let before = UnixMs(now.0.saturating_sub(self.config.orphan_grace_ms));
        let earlier = std::mem::take(&mut *self.suspects.lock());
        let mut suspects = Suspects::new();
        let report = self
            .sweep_nodes(before, |node, chunk| {
                let since = earlier.get(&(node, chunk)).copied().unwrap_or(at);
                if at.saturating_duration_since(since) >= grace && since != at {
                    return true;
                }
                if suspects.len() < SUSPECTS_MAX {
                    suspects.insert((node, chunk), since);
                }
                false
            })
            .await;
        *self.suspects.lock() = suspects;
        report
    }

    /// Queues what nodes keep unowned from before this gateway began, of each node once: when it is
    /// first reached.
    ///
    /// # Errors
    /// As [`Maintenance::sweep`].
    pub async fn sweep_at_start(&self) -> Result<SweepReport, MaintenanceError> {
        let new = |node: &&Arc<dyn StorageNode>| !self.swept.lock().contains(&node.id());
        let new: Vec<_> = self.nodes.iter().filter(new).collect();
        let asked = new.iter().map(|node| tokio::time::timeout(ANSWER_TIMEOUT, node.status()));
        let answers = futures::future::join_all(asked).await;
        let mut report = SweepReport::default();
        for (node, answer) in new.into_iter().zip(answers) {
            match answer {
                Ok(Ok(_)) => {}
                Ok(Err(source @ TransferError::OtherCatalog)) => {
                    return Err(MaintenanceError::Node { node: node.id(), source });
                }
                // One that cannot be reached is looked at again; others tell of it.
                _ => continue,
            }
            self.sweep_node(node, self.began, &mut |_, _| true, &mut report).await?;
            self.swept.lock().insert(node.id());
        }
        Ok(report)
    }

    /// Condemns the unowned chunks of all nodes made before `before` that are `ripe`.
    async fn sweep_nodes(
        &self,
        before: UnixMs,
        mut ripe: impl FnMut(NodeId, ChunkId) -> bool,
    ) -> Result<SweepReport, MaintenanceError> {
        let mut report = SweepReport::default();
        for node in self.nodes.iter() {
            self.sweep_node(node, before, &mut ripe, &mut report).await?;
        }
        Ok(report)
    }

    async fn sweep_node(
        &self,
        node: &Arc<dyn StorageNode>,
        before: UnixMs,
        ripe: &mut impl FnMut(NodeId, ChunkId) -> bool,
        report: &mut SweepReport,
    ) -> Result<(), MaintenanceError> {
        let mut after = None;
        loop {
            let page = chunks(node, after).await?;
            after = page.last().map(|chunk| chunk.id);
            self.sweep_page(node.id(), &page, before, ripe, report).await?;
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }

    async fn sweep_page(
        &self,
        node: NodeId,
        page: &[ChunkSpec],
        before: UnixMs,
        ripe: &mut impl FnMut(NodeId, ChunkId) -> bool,
        report: &mut SweepReport,
    ) -> Result<(), MaintenanceError> {
        report.seen += page.len() as u64;
        self.counters.chunks_swept.add(page.len() as u64);
        let old: Vec<Extent> = page
            .iter()
            .filter(|chunk| chunk.id.unix_ms() < before.0)
            .map(|chunk| Extent { chunk: *chunk, node })
            .collect();
        report.young += (page.len() - old.len()) as u64;
        let ids: Vec<ChunkId> = old.iter().map(|extent| extent.chunk.id).collect();
        let owned = self.catalog.owned(&ids).await?;
        let mut unowned = old;
        let mut owned = owned.into_iter();
        unowned.retain(|_| !owned.next().unwrap_or(true));
        let suspected = unowned.len();
        unowned.retain(|extent| ripe(node, extent.chunk.id));
        report.suspected += (suspected - unowned.len()) as u64;
        if unowned.is_empty() {
            return Ok(());
        }
        let condemned = self.catalog.condemn(&unowned).await?;
        let condemned = condemned.into_iter().filter(|condemned| *condemned).count() as u64;
        report.condemned += condemned;
        self.counters.chunks_condemned.add(condemned);
        Ok(())
    }
}

async fn chunks(
    node: &Arc<dyn StorageNode>,
    after: Option<ChunkId>,
) -> Result<Vec<ChunkSpec>, MaintenanceError> {
    let page = node.chunks(after, PAGE).await;
    page.map_err(|source| MaintenanceError::Node { node: node.id(), source })
}
