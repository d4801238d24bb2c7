//! What the parts of the file store share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use keyway_fabric::memory::{LeasePool, MemoryError};
use keyway_proto::ChunkId;
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use super::disk::Disk;
use super::index::{Index, Segment};
use super::space::{Space, is_no_space};
use crate::store::StoreError;

/// Chunks whose block sums are kept in memory: at most 1 KiB each.
const SUMS_CACHED: usize = 4096;

/// Enough for 64 header pages under way; memory beyond them is never touched.
const HEADER_POOL_BYTES: usize = 8 << 20;

pub(super) struct Core {
    pub(super) space: Arc<Space>,
    pub(super) index: Index,
    pub(super) disk: Arc<dyn Disk>,
    /// Buffers for chunks' bytes.
    pub(super) pool: LeasePool,
    /// Buffers for header pages, apart: whoever holds one waits for nothing but the disk,
    /// so bytes in `pool` that wait to be written cannot lock out their own header.
    pub(super) headers: LeasePool,
    /// Sums of chunks with more than one block.
    pub(super) sums: Cache<ChunkId, Arc<[u32]>>,
    /// Every segment that may still be alive, for compaction.
    pub(super) segments: Mutex<Vec<Weak<Segment>>>,
    pub(super) damaged_blocks: Arc<AtomicU64>,
    pub(super) scrubbed_bytes: AtomicU64,
    pub(super) compacted_bytes: AtomicU64,
    sequence: AtomicU64,
    /// The flush that failed. What the device held then is unknown, so nothing is written
    /// any more.
    failed: OnceLock<Arc<io::Error>>,
    closed: AtomicBool,
}

impl Core {
    pub(super) fn new(
        space: Arc<Space>,
        disk: Arc<dyn Disk>,
        pool: LeasePool,
    ) -> Result<Self, MemoryError> {
        Ok(Self {
            space,
            index: Index::default(),
            disk,
            pool,
            headers: LeasePool::new(HEADER_POOL_BYTES)?,
            sums: Cache::new(SUMS_CACHED),
            segments: Mutex::default(),
            damaged_blocks: Arc::default(),
            scrubbed_bytes: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            sequence: AtomicU64::new(1),
            failed: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes all sequence numbers to come greater than `seen`.
    pub(super) fn pass_sequence(&self, seen: u64) {
        self.sequence.fetch_max(seen.saturating_add(1), Ordering::Relaxed);
    }

    /// Refuses everything from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }

    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        self.check_open()?;
        match self.failed.get() {
            None => Ok(()),
            Some(source) => Err(StoreError::Device {
                operation: "an earlier flush",
                sticky: true,
                source: Arc::clone(source),
            }),
        }
    }

    /// The error of a write that was not followed by a flush.
    pub(super) fn write_failed(&self, operation: &'static str, error: io::Error) -> StoreError {
        if is_no_space(&error) {
            return StoreError::Full;
        }
        StoreError::Device { operation, sticky: false, source: Arc::new(error) }
    }

    /// How many flushes have found no space; asked for before a chunk's first write, and told to
    /// [`check_kept`](Self::check_kept) after its flush.
    pub(super) fn full_syncs(&self) -> u64 {
        self.disk.counters().full_syncs.load(Ordering::Relaxed)
    }

    /// Whether a flush that succeeded speaks for all that was written since `full_syncs` was
    /// asked for.
    ///
    /// File systems that find places for data late may find none in a flush. What they cannot
    /// write they drop, of whichever chunk it is, and one flush is told: the next one, another
    /// chunk's maybe, succeeds. So a flush without space fails every chunk that was written to
    /// before it and not yet flushed, and no other: what a flush before has answered for is on
    /// the disk. That is all that was lost, and none of it was published; so, unlike after
    /// other errors, the store can go on. The engines count such a flush before they begin the
    /// next, and for all volumes together: they share the file system that is full.
    ///
    /// # Errors
    /// [`StoreError::Full`].
    pub(super) fn check_kept(&self, full_syncs: u64) -> Result<(), StoreError> {
        if self.full_syncs() == full_syncs { Ok(()) } else { Err(StoreError::Full) }
    }

    /// The error of a flush, or of a write with a flush behind it: sticky, since the kernel may
    /// have dropped the dirty state; unless there was no space, see
    /// [`check_kept`](Self::check_kept).
    pub(super) fn sync_failed(&self, operation: &'static str, error: &io::Error) -> StoreError {
        if is_no_space(error) {
            return StoreError::Full;
        }
        let source = Arc::new(io::Error::new(error.kind(), error.to_string()));
        if self.failed.set(Arc::clone(&source)).is_ok() {
            tracing::error!(%error, operation, "a flush failed: the store refuses writes");
        }
        StoreError::Device { operation, sticky: true, source }
    }

    pub(super) fn read_failed(error: io::Error) -> StoreError {
        StoreError::Device { operation: "reading", sticky: false, source: Arc::new(error) }
    }
}
