//! Writing: the bytes go to the store, and stay here as well.
//!
//! Sketch: on top of what the store does with a piece, one pass of CRC64NVME and one copy into
//! the tier, while the piece is in cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use keyway_proto::unit::BLOCK_BYTES;

use super::Shared;
use super::entry::Entry;
use super::index::Reason;
use crate::store::{ChunkWriter, Piece, StagedChunk, StoreError};

/// A chunk on its way to the store. Its entry is seen by nobody before it is published.
pub(super) struct Writer {
    shared: Arc<Shared>,
    store: Box<dyn ChunkWriter>,
    entry: Entry,
    written: u64,
}

impl Writer {
    pub(super) fn new(shared: &Arc<Shared>, store: Box<dyn ChunkWriter>, entry: Entry) -> Self {
        Self { shared: Arc::clone(shared), store, entry, written: 0 }
    }
}

#[async_trait]
impl ChunkWriter for Writer {
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError> {
        for (block, sum) in piece.bytes().chunks(BLOCK_BYTES as usize).zip(piece.sums()) {
            self.entry.fill(self.written, block, *sum);
            self.written += block.len() as u64;
        }
        self.store.write(piece).await
    }

    fn seal(self: Box<Self>) -> BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>> {
        let Self { shared, store, entry, .. } = *self;
        let sealing = store.seal();
        async move {
            let store = sealing.await?;
            Ok(Box::new(Staged { shared, store, entry }) as Box<dyn StagedChunk>)
        }
        .boxed()
    }
}

/// Durable in the store, and whole here.
struct Staged {
    shared: Arc<Shared>,
    store: Box<dyn StagedChunk>,
    entry: Entry,
}

impl StagedChunk for Staged {
    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        let Self { shared, store, entry } = *self;
        store.publish()?;
        let (id, length) = (entry.id(), entry.length());
        shared.index.insert(entry, Reason::Write);
        if shared.is_stored(id) {
            shared.index.counters.filled_bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }
}
