//! The memory tier: around another store, it keeps what is hot in registered memory.
//!
//! | file | holds |
//! |---|---|
//! | [`entry`] | a chunk's bytes and their sums |
//! | [`index`] | which chunks are here; room for more |
//! | [`queues`] | who goes when room is needed |
//! | [`flight`], [`read`] | hits, and misses that fill on their way |
//! | [`resident`] | many short hits of one chunk |
//! | [`write`] | writes that leave their bytes here |
//! | [`behind`], [`flush`] | writes that are here first, and durable later |
//! | [`load`] | prefetching |
//! | [`scrub`] | looking for bytes that have changed |
//!
//! Sketch. A hit: one lookup, one `Bytes` over the longest contiguous run, up to a whole chunk
//! of 16 MiB; no byte is read or copied by a processor, and the run's CRC64NVME is combined of
//! the blocks' stored ones. A miss of 1 MiB: the device read into a lease that it takes anyway,
//! then block by block, while a block is in cache, one pass of CRC32C, one of CRC64NVME and one
//! copy into the tier; several readers of the same blocks share it. What bounds a hit is the
//! lookup; a miss, the device.
//!
//! A chunk has an entry as a whole and is filled block by block, so that a range brings in
//! what it reads and nothing else, and yet the whole is one contiguous run in the end.
//!
//! The tier is a cache: nothing depends on it, but what was explicitly written to memory first
//! (docs/decisions/0008-memory-first-writes.md). A read that finds no room, or a damaged block,
//! goes to the store. docs/decisions/0005-memory-tier.md gives the reasons.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use keyway_fabric::memory::{Arena, Extent, LeasePool, MemoryError};
use keyway_proto::{ChunkId, ChunkSpec, Standing};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{BlobStore, ChunkWriter, PinnedChunk, StoreError, StoreUsage};
use crate::node::Prefetched;

mod behind;
#[cfg(test)]
mod behind_tests;
mod config;
mod entry;
mod flight;
mod flush;
mod index;
mod load;
#[cfg(test)]
mod model_tests;
mod queues;
mod read;
mod resident;
mod scrub;
#[cfg(test)]
mod tests;
mod write;

use self::behind::{Behind, BehindPin};
use self::index::Index;
use self::read::{Flights, Pin};
use self::write::Writer;

pub(crate) use behind::{BehindWriter, Landing};
pub use config::{TierAdmit, TierConfig, TierPages, TierVerify};
pub(crate) use entry::KnownSums;

/// A store with hot chunks in memory.
pub struct MemoryTier {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<dyn BlobStore>,
    pool: LeasePool,
    config: TierConfig,
    index: Index,
    flights: Flights,
    behind: Behind,
}

/// How full the tier is and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes of memory in all; 0 where there is no tier.
    pub capacity_bytes: u64,
    /// Bytes of memory taken, by chunks that are here and by those that transfers still read.
    pub used_bytes: u64,
    /// Chunks that are here, whole or in part.
    pub chunks: u64,
    /// Reads answered from memory.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Reads that went to the store.
    pub misses: u64,
    /// Their bytes.
    pub miss_bytes: u64,
    /// Bytes taken in.
    pub filled_bytes: u64,
    /// Chunks thrown out for others.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Chunks that found no room.
    pub refused: u64,
    /// Chunks thrown out because bytes of theirs had changed in memory.
    pub damaged: u64,
    /// Bytes compared by the scrubber.
    pub scrubbed_bytes: u64,
    /// Bytes that are here and not durable.
    pub dirty_bytes: u64,
    /// Chunks of them.
    pub dirty_chunks: u64,
    /// Bytes that were here first and became durable.
    pub flushed_bytes: u64,
    /// Attempts to make a chunk durable that failed.
    pub flush_failures: u64,
    /// Chunks that changed in memory before they were durable.
    pub lost: u64,
}

impl MemoryTier {
    /// A tier around `store`, whose buffers come from `pool`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses the memory.
    pub fn over(
        store: Arc<dyn BlobStore>,
        pool: LeasePool,
        config: TierConfig,
    ) -> Result<Self, MemoryError> {
        Ok(Self::within(store, pool, config.map()?, config))
    }

    /// The same in memory that was mapped before.
    pub fn within(
        store: Arc<dyn BlobStore>,
        pool: LeasePool,
        arena: Arena,
        config: TierConfig,
    ) -> Self {
        let index = Index::new(arena);
        tracing::info!(bytes = config.size_bytes, admit = ?config.admit, "made the memory tier");
        let pace = config.scrub_bytes_per_second;
        let (behind, work) = Behind::new(config.dirty_bytes_max());
        let flights = Flights::default();
        let shared = Arc::new(Shared { store, pool, config, index, flights, behind });
        let mut tasks = vec![tokio::spawn(flush::run(Arc::downgrade(&shared), work))];
        if pace > 0 {
            tasks.push(tokio::spawn(scrub::run(Arc::downgrade(&shared), pace)));
        }
        Self { shared, tasks: Mutex::new(tasks) }
    }

    /// The memory that all hits lie in, for registration with devices.
    pub fn arena(&self) -> &Arena {
        self.shared.index.arena()
    }

    /// How full it is and what it did.
    pub fn stats(&self) -> TierStats {
        let behind = &self.shared.behind;
        let (dirty_bytes, dirty_chunks) = behind.usage();
        TierStats {
            dirty_bytes,
            dirty_chunks,
            flushed_bytes: behind.counters.flushed_bytes.load(Ordering::Relaxed),
            flush_failures: behind.counters.failures.load(Ordering::Relaxed),
            lost: behind.counters.lost.load(Ordering::Relaxed),
            ..self.shared.index.stats()
        }
    }

    fn end_tasks(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }

    /// Begins a chunk that is readable when it is here, and durable later. `None` when there is
    /// no room for more of them, or the device does not take them: it is written as others are.
    ///
    /// # Errors
    /// As [`BlobStore::writer`]: its place on the device is reserved first.
    pub(crate) async fn write_behind(
        &self,
        chunk: ChunkSpec,
    ) -> Result<Option<BehindWriter>, StoreError> {
        self.shared.write_behind(chunk).await
    }

    /// The same for a chunk that a device writes: its memory, nothing of it filled, in order.
    ///
    /// # Errors
    /// As [`write_behind`](Self::write_behind).
    pub(crate) async fn land_behind(
        &self,
        chunk: ChunkSpec,
    ) -> Result<Option<(Vec<Extent>, Landing)>, StoreError> {
        self.shared.land_behind(chunk).await
    }

    /// Where chunks stand on their way to the device, in order. Waits until none is on its way,
    /// or `wait` is over.
    pub async fn settle(&self, chunks: &[ChunkId], wait: Duration) -> Vec<Standing> {
        self.shared.settle(chunks, wait).await
    }

    /// Brings chunks in, whole, and tells what is here when that has ended. They stay as
    /// chunks do that were used often.
    pub async fn load(&self, chunks: &[ChunkId]) -> Prefetched {
        load::load(&self.shared, chunks).await
    }
}

#[async_trait]
impl BlobStore for MemoryTier {
    fn engine(&self) -> &'static str {
        self.shared.store.engine()
    }

    fn access(&self) -> String {
        let mib = self.arena().stats().capacity_bytes >> 20;
        format!("{}, behind {mib} MiB of memory", self.shared.store.access())
    }

    fn pin(&self, chunk: ChunkId) -> Option<Box<dyn PinnedChunk>> {
        // First: a chunk goes from here to the store, and is in one of them at any time.
        if let Some(dirty) = self.shared.behind.find(chunk) {
            return Some(Box::new(BehindPin::new(&self.shared, &dirty)));
        }
        let pin = self.shared.store.pin(chunk)?;
        Some(Box::new(Pin::new(&self.shared, chunk, pin)))
    }

    async fn writer(&self, chunk: ChunkSpec) -> Result<Box<dyn ChunkWriter>, StoreError> {
        if self.shared.behind.find(chunk.id).is_some() {
            return Err(StoreError::ChunkExists(chunk.id));
        }
        let writer = self.shared.store.writer(chunk).await?;
        if !self.shared.config.admit.writes() || !self.shared.index.welcomes(chunk) {
            return Ok(writer);
        }
        match self.shared.index.reserve(chunk) {
            Some(entry) => Ok(Box::new(Writer::new(&self.shared, writer, entry))),
            None => Ok(writer),
        }
    }

    fn release(&self, chunks: &[ChunkId]) {
        // The store before the index: who brings a chunk in looks there once more afterwards.
        for chunk in chunks {
            self.shared.behind.forget(*chunk);
        }
        self.shared.store.release(chunks);
        for chunk in chunks {
            self.shared.index.remove(*chunk);
        }
    }

    fn chunks(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec> {
        // In this order: a chunk that leaves the one is in the other.
        let mut chunks = self.shared.behind.chunks(after, limit);
        if chunks.is_empty() {
            return self.shared.store.chunks(after, limit);
        }
        chunks.extend(self.shared.store.chunks(after, limit));
        chunks.sort_unstable_by_key(|chunk| chunk.id);
        chunks.dedup_by_key(|chunk| chunk.id);
        chunks.truncate(limit);
        chunks
    }

    fn usage(&self) -> StoreUsage {
        let mut usage = self.shared.store.usage();
        usage.chunks += self.shared.behind.usage().1;
        usage
    }

    async fn close(&self) {
        let left = self.shared.behind.drained().await;
        if left > 0 {
            tracing::error!(chunks = left, "what is in memory alone is lost: its device failed");
        }
        self.shared.flights.ended().await;
        self.end_tasks();
        self.shared.behind.clear();
        self.shared.store.close().await;
        // Their buffers must be back, and nothing is brought in from here on.
        self.shared.flights.ended().await;
        self.shared.index.clear();
    }
}

impl Drop for MemoryTier {
    fn drop(&mut self) {
        self.end_tasks();
    }
}
