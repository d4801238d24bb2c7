//! Blob stores: where chunks live.
//!
//! - [`file`]: in preallocated files, the default.
//! - [`memory`]: in this process's memory, for tests and benchmarks.
//! - [`tier`]: around another store, keeping what is hot in registered memory.
//!
//! A store knows chunks and blocks. It verifies what it reads before anyone sees it, writes
//! what it is given, and says when that is durable. It does not know transfers.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use keyway_fabric::memory::Lease;
use keyway_proto::{ByteRange, ChunkId, ChunkSpec};

use crate::node::TransferError;

mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod fetched;
pub mod file;
mod frame;
pub mod memory;
mod piece;
pub mod tier;

pub use config::{AccessMode, StoreConfig};
pub use fetched::{Fetched, Sums};
pub use frame::Frame;
pub(crate) use piece::Sealer;
pub use piece::{
    PIECE_BYTES_MAX, Piece, SINGLE_PIECE_BYTES_MAX, block_span, block_sum, next_piece, read_class,
    verify_blocks,
};

/// A store of write-once chunks.
///
/// The life of a chunk: [`writer`](Self::writer) → [`ChunkWriter::write`]… →
/// [`ChunkWriter::seal`] (durable, invisible) → [`StagedChunk::publish`] (visible) →
/// [`release`](Self::release). Dropped before `publish`, it leaves nothing behind.
#[async_trait]
pub trait BlobStore: Send + Sync + 'static {
    /// The engine's name, for example `file`.
    fn engine(&self) -> &'static str;

    /// How the device is reached, and why not better where it fell back.
    fn access(&self) -> String;

    /// Keeps a chunk readable until the pin is dropped, even when it is released meanwhile.
    fn pin(&self, chunk: ChunkId) -> Option<Box<dyn PinnedChunk>>;

    /// Begins a chunk.
    ///
    /// # Errors
    /// [`StoreError::ChunkExists`], [`StoreError::Full`] when its space cannot be reserved,
    /// [`StoreError::Device`] when the store refuses writes.
    async fn writer(&self, chunk: ChunkSpec) -> Result<Box<dyn ChunkWriter>, StoreError>;

    /// Gives up chunks; unknown ids are passed over.
    fn release(&self, chunks: &[ChunkId]);

    /// Published chunks with an id greater than `after`, ascending, at most `limit`.
    fn chunks(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec>;

    /// Capacity and counters.
    fn usage(&self) -> StoreUsage;

    /// Stops background work and waits for the device to let go of all memory. Reads and
    /// writes fail from then on.
    async fn close(&self);
}

/// A chunk that stays readable while this lives.
pub trait PinnedChunk: Send + Sync {
    /// Bytes in the chunk.
    fn length(&self) -> u64;

    /// A run of verified bytes that are in memory, from the first byte of `range` on and not past
    /// its end; as long as it is contiguous. `None` when they must be read.
    fn held(&self, range: ByteRange) -> Option<Frame>;

    /// What of the chunk is in memory, looked up once for many short ranges of it. `None` where
    /// nothing is, or where [`held`](Self::held) costs no more.
    fn resident(&self) -> Option<Box<dyn Resident>> {
        None
    }

    /// Reads a range that lies in the chunk and in one [`PIECE_BYTES_MAX`]-aligned window of
    /// it; what is taken out of the result is verified. `lease` is a buffer of [`read_class`], or
    /// none: then one is waited for. The future holds the chunk by itself.
    fn read(
        &self,
        range: ByteRange,
        lease: Option<Lease>,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>>;

    /// The same for whole blocks, and into this buffer wherever they are: what comes gives it up
    /// with the blocks at its front ([`Fetched::into_lease`]), to be changed in place.
    fn read_into(
        &self,
        blocks: ByteRange,
        lease: Lease,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>>;
}

/// A chunk in memory, for whoever reads many short ranges of it.
pub trait Resident: Send {
    /// The verified bytes of a range that lies in the chunk; `None` when not all of them are here
    /// in a row.
    fn bytes(&mut self, range: ByteRange) -> Option<Bytes>;
}

/// A chunk being written.
#[async_trait]
pub trait ChunkWriter: Send {
    /// Takes the next piece and starts writing it; waits while too many are under way.
    /// Pieces but a chunk's last are multiples of a block and do not cross a
    /// [`PIECE_BYTES_MAX`]-aligned boundary of the chunk. A chunk of at most
    /// [`SINGLE_PIECE_BYTES_MAX`] comes in one piece.
    ///
    /// # Errors
    /// [`StoreError`] of this or an earlier piece.
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError>;

    /// Waits until everything written is durable. All bytes of the chunk must have been
    /// written.
    fn seal(self: Box<Self>) -> BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>>;
}

/// A durable chunk that nobody can see yet.
pub trait StagedChunk: Send {
    /// Makes the chunk readable.
    ///
    /// # Errors
    /// [`StoreError::ChunkExists`] when another writer published the id first.
    fn publish(self: Box<Self>) -> Result<(), StoreError>;
}

/// How full a store is and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes that the store may use in all.
    pub capacity_bytes: u64,
    /// Bytes free for new chunks.
    pub free_bytes: u64,
    /// Chunks published.
    pub chunks: u64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Flushes of the device.
    pub syncs: u64,
    /// Blocks found damaged, by readers or the scrubber.
    pub damaged_blocks: u64,
    /// Bytes verified by the scrubber.
    pub scrubbed_bytes: u64,
    /// Bytes moved by compaction.
    pub compacted_bytes: u64,
}

/// Why a store did not do it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A chunk with this id is here already.
    #[error("chunk {0:?} exists already")]
    ChunkExists(ChunkId),
    /// A stored block does not match its checksum.
    #[error("chunk {chunk:?} is damaged in the block at byte {offset}")]
    Damaged {
        /// The chunk.
        chunk: ChunkId,
        /// First byte of the block within the chunk.
        offset: u64,
    },
    /// No space for the chunk.
    #[error("the store is full")]
    Full,
    /// The device failed.
    #[error("{operation} failed: {source}")]
    Device {
        /// What was being done.
        operation: &'static str,
        /// Whether writes are refused from now on.
        sticky: bool,
        /// The kernel's answer.
        source: Arc<std::io::Error>,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl From<StoreError> for TransferError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::ChunkExists(_) => Self::InvalidPlan("a chunk id is used already"),
            StoreError::Damaged { chunk, offset } => Self::Damaged { chunk, offset },
            StoreError::Full => Self::Full,
            StoreError::Device { sticky, .. } => {
                Self::Store { reason: error.to_string().into(), sticky }
            }
            StoreError::Closed => Self::Store { reason: error.to_string().into(), sticky: true },
        }
    }
}

impl fmt::Debug for dyn PinnedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedChunk").field("length", &self.length()).finish()
    }
}
