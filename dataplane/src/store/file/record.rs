//! Small chunks, from one piece to a record in a segment.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use keyway_proto::ChunkSpec;
use tokio::sync::{mpsc, oneshot};

use super::core::Core;
use super::extent::SPARE_UNITS;
use super::index::{Location, Record};
use super::segment::Append;
use crate::store::{ChunkWriter, Piece, StagedChunk, StoreError};

/// Collects a chunk's bytes; the segment's writer does the rest.
pub(super) struct RecordWriter {
    core: Arc<Core>,
    appends: mpsc::Sender<Append>,
    chunk: ChunkSpec,
    piece: Option<Piece>,
}

impl RecordWriter {
    pub(super) fn begin(core: &Arc<Core>, appends: mpsc::Sender<Append>, chunk: ChunkSpec) -> Self {
        Self { core: Arc::clone(core), appends, chunk, piece: None }
    }

    async fn append(self) -> Result<Box<dyn StagedChunk>, StoreError> {
        let (lease, _, sums) = self.piece.expect("a chunk has bytes").into_parts();
        let (done, answer) = oneshot::channel();
        let table = (sums.len() > 1).then(|| Arc::from(&sums[..]));
        let append = Append { chunk: self.chunk, lease, sums, spare: SPARE_UNITS, done };
        self.appends.send(append).await.map_err(|_| StoreError::Closed)?;
        let record = answer.await.map_err(|_| StoreError::Closed)??;
        Ok(Box::new(StagedRecord { core: self.core, chunk: self.chunk, record, sums: table }))
    }
}

#[async_trait]
impl ChunkWriter for RecordWriter {
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError> {
        self.core.check_writable()?;
        assert!(self.piece.is_none(), "a chunk of this size comes in one piece");
        self.piece = Some(piece);
        Ok(())
    }

    fn seal(self: Box<Self>) -> BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>> {
        let held = self.piece.as_ref().map_or(0, Piece::len);
        assert_eq!(held as u64, self.chunk.length, "a chunk is sealed when whole");
        self.append().boxed()
    }
}

/// Durable; a dead record when dropped.
struct StagedRecord {
    core: Arc<Core>,
    chunk: ChunkSpec,
    record: Record,
    sums: Option<Arc<[u32]>>,
}

impl StagedChunk for StagedRecord {
    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        self.core.index.insert(self.chunk.id, Location::Record(self.record))?;
        if let Some(sums) = self.sums {
            self.core.sums.insert(self.chunk.id, sums);
        }
        Ok(())
    }
}
