//! What a node copies together under the keys that it has claimed.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use keyway_proto::key::Direction;
use keyway_proto::{RemoteKey, RemoteWindow};

use super::copy::HostCopies;
use super::gate::Pass;
use super::node::{Claim, Mapping, State};
use tokio::task::JoinHandle;

use crate::LinkError;
use crate::gpu::{CopyBatch, CopyQueue};
use crate::memory::{Destination, DeviceMapping};

/// What is copied together, in any order, and the keys that end after it.
#[derive(Default)]
pub struct Batch {
    pub(super) writes: Vec<(Bytes, u64, RemoteKey)>,
    pub(super) reads: Vec<(Destination, Vec<RemoteWindow>)>,
    pub(super) ends: Vec<RemoteKey>,
}

/// A batch under way.
pub struct Posted {
    pub(super) copying: Copying,
    pub(super) ends: Vec<RemoteKey>,
}

/// What copies a batch.
pub(super) enum Copying {
    /// Nothing any more: it is copied.
    Done(Result<Landed, LinkError>),
    /// A task, which goes on if nobody waits for it.
    Task(JoinHandle<Result<Landed, LinkError>>),
}

/// Bytes that are copied where they are asked for: in host memory some 5 µs, and on a GPU's bus
/// some 10.
const AT_ONCE_BYTES: usize = 64 << 10;

/// The copies of a batch, as they are put together.
#[derive(Default)]
pub(super) struct Copies {
    host: HostCopies,
    gpu: Option<(CopyQueue, CopyBatch)>,
    bytes: usize,
    /// The mapping that the batch was last given to keep.
    kept: Option<Arc<DeviceMapping>>,
    /// Dropped when all copies are made.
    passes: Vec<Pass>,
}

/// A batch that was copied.
#[derive(Debug)]
pub struct Landed {
    /// What was read into, in no order.
    pub destinations: Vec<Destination>,
}

impl Batch {
    /// Writes to the client's memory.
    pub fn write(&mut self, bytes: Bytes, address: u64, key: RemoteKey) {
        self.writes.push((bytes, address, key));
    }

    /// Reads runs of the client's memory, one behind the other, to the front of a destination.
    ///
    /// # Panics
    /// When the destination is shorter than the runs.
    pub fn read(&mut self, to: impl Into<Destination>, runs: &[RemoteWindow]) {
        let to = to.into();
        let bytes: u64 = runs.iter().map(|run| u64::from(run.length)).sum();
        assert!(bytes <= to.len() as u64, "the destination holds the bytes");
        self.reads.push((to, runs.to_vec()));
    }

    /// Ends a key once everything under it is copied.
    pub fn end(&mut self, key: RemoteKey) {
        self.ends.push(key);
    }

    /// Copies in the batch.
    pub fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Copies {
    /// Counts as under way until all copies are made.
    pub(super) fn keep(&mut self, pass: Pass) {
        self.passes.push(pass);
    }

    /// Counts copies under the key, and in the region, until all are made.
    pub(super) fn enter(&mut self, claim: &Claim) {
        self.passes.push(claim.gate.enter());
        self.passes.push(claim.region.gate.enter());
    }

    /// Writes under a claim that was [entered](Self::enter).
    pub(super) fn write(
        &mut self,
        claim: &Claim,
        bytes: Bytes,
        offset: usize,
    ) -> Result<(), LinkError> {
        self.bytes += bytes.len();
        match &claim.region.mapping {
            Mapping::Host(mapping) => self.host.write(bytes, mapping, offset),
            Mapping::Gpu { mapping, queue } => {
                let to = mapping.address() + offset as u64;
                self.gpu(mapping, queue)?.into_device(bytes, to);
            }
        }
        Ok(())
    }

    /// Reads runs, which lie all in host memory or all on one GPU.
    pub(super) fn read(
        &mut self,
        state: &State,
        to: Destination,
        runs: &[RemoteWindow],
    ) -> Result<(), LinkError> {
        let reached = runs.iter().map(|run| state.reach(run, Direction::Read));
        let reached = reached.collect::<Result<Vec<_>, _>>()?;
        self.bytes += runs.iter().map(|run| run.length as usize).sum::<usize>();
        let mut at = 0;
        match reached.first().map(|(claim, _)| &claim.region.mapping) {
            None => {}
            Some(Mapping::Host(_)) => {
                let to = self.host.lend(to);
                for ((claim, offset), run) in reached.into_iter().zip(runs) {
                    self.enter(claim);
                    let Mapping::Host(mapping) = &claim.region.mapping else {
                        return Err(LinkError::Access);
                    };
                    self.host.read(to, at, mapping, offset, run.length as usize);
                    at += run.length as usize;
                }
            }
            Some(Mapping::Gpu { mapping, queue }) => {
                let to = self.gpu(mapping, queue)?.lend(to);
                for ((claim, offset), run) in reached.into_iter().zip(runs) {
                    self.enter(claim);
                    let Mapping::Gpu { mapping, queue } = &claim.region.mapping else {
                        return Err(LinkError::Access);
                    };
                    let from = mapping.address() + offset as u64;
                    let batch = self.gpu(mapping, queue)?;
                    batch.fill(from, to, at, run.length as usize);
                    at += run.length as usize;
                }
            }
        }
        Ok(())
    }

    /// The copies of the one GPU that the batch may be about.
    fn gpu(
        &mut self,
        mapping: &Arc<DeviceMapping>,
        queue: &CopyQueue,
    ) -> Result<&mut CopyBatch, LinkError> {
        let (of, batch) = self.gpu.get_or_insert_with(|| (queue.clone(), CopyBatch::new()));
        if of.gpu().uuid() != queue.gpu().uuid() {
            return Err(LinkError::Access);
        }
        if self.kept.as_ref().is_none_or(|kept| !Arc::ptr_eq(kept, mapping)) {
            self.kept = Some(Arc::clone(mapping));
            batch.keep(Arc::clone(mapping) as Arc<dyn std::any::Any + Send + Sync>);
        }
        Ok(batch)
    }

    /// Begins the copies. Short ones are made before this returns, without a task to wake.
    pub(super) fn begin(self) -> Copying {
        let is_short = self.bytes <= AT_ONCE_BYTES;
        let mut run = Box::pin(self.run());
        if is_short
            && let Poll::Ready(done) = run.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            return Copying::Done(done);
        }
        Copying::Task(tokio::spawn(run))
    }

    /// Makes the copies, and gives back what was copied into.
    async fn run(mut self) -> Result<Landed, LinkError> {
        let mut destinations = self.host.run().await;
        if let Some((queue, batch)) = self.gpu {
            let done = queue.submit(batch).await;
            done.result.map_err(|error| LinkError::Adapter(error.to_string().into()))?;
            destinations.extend(done.destinations);
        }
        self.passes.clear();
        Ok(Landed { destinations })
    }
}
