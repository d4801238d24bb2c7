//! Chunks in this process's memory: for tests and benchmarks, gone with the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use keyway_fabric::memory::Lease;
use keyway_proto::{ByteRange, ChunkId, ChunkSpec};
use parking_lot::Mutex;

use super::{
    BlobStore, ChunkWriter, Fetched, Frame, Piece, PinnedChunk, StagedChunk, StoreError,
    StoreUsage, Sums, block_span,
};

/// A store of `capacity_bytes` in memory.
pub struct MemoryStore {
    shared: Arc<Shared>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                capacity_bytes,
                used_bytes: AtomicU64::new(0),
                chunks: Mutex::default(),
                damaged_blocks: Arc::default(),
            }),
        }
    }
}

#[async_trait]
impl BlobStore for MemoryStore {
    fn engine(&self) -> &'static str {
        "memory"
    }

    fn access(&self) -> String {
        "process memory, not durable".to_owned()
    }

    fn pin(&self, chunk: ChunkId) -> Option<Box<dyn PinnedChunk>> {
        let stored = self.shared.chunks.lock().get(&chunk).cloned()?;
        Some(Box::new(Pin { chunk, stored, shared: Arc::clone(&self.shared) }))
    }

    async fn writer(&self, chunk: ChunkSpec) -> Result<Box<dyn ChunkWriter>, StoreError> {
        if self.shared.chunks.lock().contains_key(&chunk.id) {
            return Err(StoreError::ChunkExists(chunk.id));
        }
        let space = Space::reserve(&self.shared, chunk.length)?;
        let bytes = Vec::with_capacity(chunk.length as usize);
        Ok(Box::new(Writer { chunk, bytes, sums: Vec::new(), space }))
    }

    fn release(&self, chunks: &[ChunkId]) {
        let mut index = self.shared.chunks.lock();
        for chunk in chunks {
            index.remove(chunk);
        }
    }

    fn chunks(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let index = self.shared.chunks.lock();
        let spec = |(id, stored): (&ChunkId, &Arc<Stored>)| ChunkSpec {
            id: *id,
            length: stored.bytes.len() as u64,
        };
        index.range((start, Bound::Unbounded)).take(limit).map(spec).collect()
    }

    fn usage(&self) -> StoreUsage {
        let capacity_bytes = self.shared.capacity_bytes;
        StoreUsage {
            capacity_bytes,
            free_bytes: capacity_bytes - self.shared.used_bytes.load(Ordering::Relaxed),
            chunks: self.shared.chunks.lock().len() as u64,
            damaged_blocks: self.shared.damaged_blocks.load(Ordering::Relaxed),
            ..StoreUsage::default()
        }
    }

    async fn close(&self) {}
}

struct Shared {
    capacity_bytes: u64,
    used_bytes: AtomicU64,
    chunks: Mutex<BTreeMap<ChunkId, Arc<Stored>>>,
    damaged_blocks: Arc<AtomicU64>,
}

struct Stored {
    bytes: Bytes,
    sums: Arc<[u32]>,
    _space: Space,
}

/// Bytes taken out of the capacity while this lives.
struct Space {
    bytes: u64,
    shared: Arc<Shared>,
}

impl Space {
    fn reserve(shared: &Arc<Shared>, bytes: u64) -> Result<Self, StoreError> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= shared.capacity_bytes);
        shared
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| StoreError::Full)?;
        Ok(Self { bytes, shared: Arc::clone(shared) })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.shared.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Pin {
    chunk: ChunkId,
    stored: Arc<Stored>,
    shared: Arc<Shared>,
}

impl PinnedChunk for Pin {
    fn length(&self) -> u64 {
        self.stored.bytes.len() as u64
    }

    fn held(&self, _range: ByteRange) -> Option<Frame> {
        None
    }

    fn read(
        &self,
        range: ByteRange,
        _lease: Option<Lease>,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        let span = block_span(range, self.length());
        let blocks = self.stored.bytes.slice(span.offset() as usize..span.end() as usize);
        let sums = Sums::All(Arc::clone(&self.stored.sums));
        let counter = &self.shared.damaged_blocks;
        ready(Ok(Fetched::new(self.chunk, self.length(), range, blocks, sums, counter))).boxed()
    }

    fn read_into(
        &self,
        blocks: ByteRange,
        mut lease: Lease,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        let stored = &self.stored.bytes[blocks.offset() as usize..blocks.end() as usize];
        lease[..stored.len()].copy_from_slice(stored);
        let sums = Sums::All(Arc::clone(&self.stored.sums));
        let counter = &self.shared.damaged_blocks;
        let fetched = Fetched::in_lease(self.chunk, self.length(), blocks, lease, sums, counter);
        ready(Ok(fetched)).boxed()
    }
}

struct Writer {
    chunk: ChunkSpec,
    bytes: Vec<u8>,
    sums: Vec<u32>,
    space: Space,
}

#[async_trait]
impl ChunkWriter for Writer {
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError> {
        let (lease, length, sums) = piece.into_parts();
        self.bytes.extend_from_slice(&lease[..length]);
        self.sums.extend_from_slice(&sums);
        Ok(())
    }

    fn seal(self: Box<Self>) -> BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>> {
        assert_eq!(self.bytes.len() as u64, self.chunk.length, "a chunk is sealed when whole");
        ready(Ok(self as Box<dyn StagedChunk>)).boxed()
    }
}

impl StagedChunk for Writer {
    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        let Self { chunk, bytes, sums, space } = *self;
        let shared = Arc::clone(&space.shared);
        let stored = Arc::new(Stored { bytes: bytes.into(), sums: sums.into(), _space: space });
        let mut index = shared.chunks.lock();
        if index.contains_key(&chunk.id) {
            return Err(StoreError::ChunkExists(chunk.id));
        }
        index.insert(chunk.id, stored);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use keyway_fabric::memory::LeasePool;

    use super::*;
    use crate::store::conformance;

    #[tokio::test]
    async fn conforms() {
        let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new(64 << 20));
        let pool = LeasePool::new(4 << 20).expect("memory");
        conformance::all(&store, &pool).await;
        assert_eq!(pool.stats().leased_bytes, 0);
        assert_eq!(store.usage().free_bytes, 64 << 20);
    }
}
