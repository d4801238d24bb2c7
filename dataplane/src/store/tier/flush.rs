//! From memory to the device: what was written here first is made durable behind.
//!
//! Sketch, per MiB: one copy into a lease, one pass of CRC32C, where the bytes came from a
//! device one of CRC64NVME, while they are in cache; one device write. Some [`FLUSHES_MAX`]
//! chunks at once keep a drive busy. What bounds it: the drive; and while a device writes into
//! memory at the speed of its bus, the flusher leaves memory's bandwidth to it.
//!
//! Nothing is written that differs from the sums that the bytes had when they came: a chunk
//! that has changed in memory is lost, and told as lost. Everything else that fails is tried
//! again for as long as the node lives.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, ChunkId, ChunkSpec};
use tokio::sync::mpsc;

use super::Shared;
use super::behind::Dirty;
use super::index::Reason;
use crate::store::{Piece, StagedChunk, StoreError, next_piece};

/// Chunks on their way to the device at once.
const FLUSHES_MAX: usize = 8;

/// How long a piece waits for devices that write into memory. So at least 400 MB/s are flushed
/// whatever goes on.
const GIVING_WAY: Duration = Duration::from_millis(20);

/// Before a flush that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Flushes until the tier is gone.
pub(super) async fn run(tier: Weak<Shared>, mut work: mpsc::UnboundedReceiver<ChunkId>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            chunk = work.recv(), if under_way.len() < FLUSHES_MAX => {
                let Some(chunk) = chunk else { return };
                under_way.push(flush(tier.clone(), chunk));
            }
            Some(()) = under_way.next() => {}
        }
    }
}

/// Flushes one chunk, however often that takes.
async fn flush(tier: Weak<Shared>, chunk: ChunkId) {
    loop {
        let Some(shared) = tier.upgrade() else { return };
        // A closing store waits for what has begun, and for no further attempt. Before the chunk,
        // so that it goes after it.
        let under_way = shared.flights.begin();
        let Some(dirty) = shared.behind.find(chunk) else { return };
        if shared.behind.is_giving_up() {
            return;
        }
        match shared.flush_once(&dirty).await {
            Ok(()) => return,
            Err(StoreError::ChunkExists(_)) => {
                // Somebody used the id twice: what is durable stays.
                tracing::error!(?chunk, "a chunk in memory has the id of a durable one");
                shared.behind.forget(chunk);
                return;
            }
            Err(StoreError::Damaged { chunk, offset }) => {
                tracing::error!(?chunk, offset, "bytes changed in memory before they were durable");
                shared.behind.counters.lost.fetch_add(1, Ordering::Relaxed);
                shared.behind.forget(chunk);
                return;
            }
            Err(error) => {
                if shared.behind.failed(chunk) {
                    tracing::error!(%error, "what is in memory alone cannot be made durable");
                }
            }
        }
        drop((dirty, under_way, shared));
        tokio::time::sleep(RETRY).await;
    }
}

impl Shared {
    async fn flush_once(&self, dirty: &Arc<Dirty>) -> Result<(), StoreError> {
        let entry = &dirty.entry;
        let Some(staged) = self.write_out(dirty).await? else { return Ok(()) };
        if self.behind.flushed(dirty, staged)? {
            // Hot from here on as any other, and thrown out as any other.
            self.index.insert(Arc::clone(entry), Reason::Write);
            self.is_stored(entry.id());
            self.behind.counters.flushed_bytes.fetch_add(entry.length(), Ordering::Relaxed);
            self.behind.is_failing.store(false, Ordering::Relaxed);
        }
        self.behind.changed.send_replace(());
        Ok(())
    }

    /// Writes and seals; `None` when the chunk was released meanwhile.
    async fn write_out(&self, dirty: &Dirty) -> Result<Option<Box<dyn StagedChunk>>, StoreError> {
        let entry = &dirty.entry;
        let chunk = ChunkSpec { id: entry.id(), length: entry.length() };
        let reserved = dirty.writer.lock().take();
        let mut writer = match reserved {
            Some(writer) => writer,
            None => self.store.writer(chunk).await?,
        };
        let mut at = 0;
        while at < chunk.length {
            if dirty.is_released() {
                return Ok(None);
            }
            self.behind.gives_way(GIVING_WAY).await;
            let piece = self.piece(dirty, at).await?;
            at += piece.len() as u64;
            writer.write(piece).await?;
        }
        entry.check_whole()?;
        writer.seal().await.map(Some)
    }

    /// The piece that begins at `at`, compared with the sums that are known of it; those that
    /// are not are noted.
    async fn piece(&self, dirty: &Dirty, at: u64) -> Result<Piece, StoreError> {
        let (class, length) = next_piece(at, dirty.entry.length(), &self.pool);
        let mut lease = self.pool.lease(class).await;
        let entry = Arc::clone(&dirty.entry);
        let damaged = StoreError::Damaged { chunk: entry.id(), offset: at };
        let summing = tokio::task::spawn_blocking(move || {
            let range = ByteRange::new(at, length as u64)?;
            let frame = entry.frame(range).filter(|frame| frame.len() == length)?;
            lease[..length].copy_from_slice(&frame);
            let piece = Piece::landed(lease, length);
            let blocks = piece.bytes().chunks(BLOCK_BYTES as usize).zip(piece.sums());
            for (block, (bytes, sum)) in blocks.enumerate() {
                if !entry.check_block(at + block as u64 * BLOCK_BYTES, bytes, *sum) {
                    return None;
                }
            }
            Some(piece)
        });
        summing.await.map_err(|_| StoreError::Closed)?.ok_or(damaged)
    }
}
