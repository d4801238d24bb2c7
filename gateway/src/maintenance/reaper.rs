//! From the garbage queue to the nodes.
//!
//! Release, then forget: a crash in between releases twice, which is releasing once. What a
//! node does not take stays in the queue, and does not hold up the others.

use std::collections::BTreeMap;

use keyway_meta::Extent;
use keyway_proto::{ChunkId, NodeId};

use super::{Maintenance, MaintenanceError};

/// Chunks taken from the queue at once: one release for each node, one commit to forget.
const BATCH: usize = 1000;

/// What one round of the reaper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapReport {
    /// Chunks that their nodes released.
    pub released: u64,
    /// Their bytes.
    pub released_bytes: u64,
    /// Chunks left in the queue because their node is unknown or did not answer.
    pub deferred: u64,
}

impl Maintenance {
    /// Goes through the garbage queue once. What comes in meanwhile may be left for the next
    /// round.
    ///
    /// # Errors
    /// [`MaintenanceError::Catalog`]; a node that does not answer is no error.
    pub async fn reap(&self) -> Result<ReapReport, MaintenanceError> {
        let mut report = ReapReport::default();
        let mut after = None;
        loop {
            let batch = self.catalog.garbage_after(after.as_ref(), BATCH).await?;
            let released = self.release(&batch).await;
            self.catalog.forget_garbage(&released).await?;
            let bytes: u64 = released.iter().map(|extent| extent.chunk.length).sum();
            let deferred = (batch.len() - released.len()) as u64;
            report.released += released.len() as u64;
            report.released_bytes += bytes;
            report.deferred += deferred;
            self.counters.chunks_released.add(released.len() as u64);
            self.counters.bytes_released.add(bytes);
            self.counters.chunks_deferred.add(deferred);
            if batch.len() < BATCH {
                return Ok(report);
            }
            after = batch.last().copied();
        }
    }

    /// The chunks of `batch` that their nodes released.
    async fn release(&self, batch: &[Extent]) -> Vec<Extent> {
        let mut by_node: BTreeMap<NodeId, Vec<Extent>> = BTreeMap::new();
        for extent in batch {
            by_node.entry(extent.node).or_default().push(*extent);
        }
        let mut released = Vec::with_capacity(batch.len());
        for (id, extents) in by_node {
            let Some(node) = self.nodes.by_id(id) else {
                tracing::warn!(node = %id, chunks = extents.len(), "garbage on an unknown node");
                continue;
            };
            let chunks: Vec<ChunkId> = extents.iter().map(|extent| extent.chunk.id).collect();
            match node.release(&chunks).await {
                Ok(()) => released.extend(extents),
                Err(error) => {
                    tracing::warn!(node = %id, %error, "a node does not release its garbage");
                }
            }
        }
        released
    }
}
