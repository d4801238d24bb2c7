//! Larger chunks: units of their own, written as the pieces come.
//!
//! Sketch, per chunk of up to 16 MiB: at most 16 writes of 1 MiB straight out of the leases,
//! one header page, and a share in one flush of the volume. Header and data are made durable
//! by the same flush: a header without its data is seen by the block sums it carries, and
//! such a chunk was never acknowledged.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use keyway_fabric::memory::LeaseClass;
use keyway_proto::ChunkSpec;
use keyway_proto::unit::BLOCK_BYTES;

use super::core::Core;
use super::index::{Extent, Location};
use super::layout::{Content, Header, PAGE, UNIT};
use super::space::Shape;
use crate::store::{ChunkWriter, Piece, StagedChunk, StoreError};

/// Writes of one chunk under way at once.
const WRITES_IN_FLIGHT: usize = 4;

/// Units that user data leaves free, so that compaction can always make a segment.
pub(super) const SPARE_UNITS: usize = 2;

pub(super) struct ExtentWriter {
    core: Arc<Core>,
    chunk: ChunkSpec,
    extent: Arc<Extent>,
    written: u64,
    sums: Vec<u32>,
    /// [`Core::full_syncs`] before the first write.
    full_syncs: u64,
    under_way: FuturesUnordered<BoxFuture<'static, std::io::Result<()>>>,
}

impl ExtentWriter {
    pub(super) async fn begin(core: &Arc<Core>, chunk: ChunkSpec) -> Result<Self, StoreError> {
        let count = chunk.length.div_ceil(UNIT) as usize;
        let units = core.space.reserve(Shape::Any(count), SPARE_UNITS).await?;
        Ok(Self {
            core: Arc::clone(core),
            chunk,
            extent: Arc::new(Extent { units, length: chunk.length as u32 }),
            written: 0,
            sums: Vec::with_capacity(chunk.length.div_ceil(BLOCK_BYTES) as usize),
            full_syncs: core.full_syncs(),
            under_way: FuturesUnordered::new(),
        })
    }

    async fn write_header(&mut self) -> Result<(), StoreError> {
        let header = Header {
            sequence: self.core.next_sequence(),
            units: self.extent.units.numbers.to_vec(),
            content: Content::Chunk { chunk: self.chunk, sums: self.sums.clone() },
        };
        let mut lease = self.core.headers.lease(LeaseClass::Page).await;
        lease.copy_from_slice(&header.encode());
        let offset = self.extent.units.header_offset();
        let target = &self.extent.units.volume.target;
        let written = self.core.disk.write(target, offset, vec![(lease, PAGE)], false, self.keep());
        written.await.map_err(|error| self.core.write_failed("writing a header", error))
    }

    async fn finish(mut self) -> Result<Box<dyn StagedChunk>, StoreError> {
        while let Some(outcome) = self.under_way.next().await {
            outcome.map_err(|error| self.core.write_failed("writing", error))?;
        }
        // Last: without it there is no chunk, whatever became of the rest.
        self.write_header().await?;
        let synced = self.core.disk.sync(&self.extent.units.volume.target).await;
        synced.map_err(|error| self.core.sync_failed("flushing", &error))?;
        self.core.check_kept(self.full_syncs)?;
        Ok(Box::new(StagedExtent {
            core: self.core,
            chunk: self.chunk,
            extent: self.extent,
            sums: self.sums.into(),
        }))
    }

    fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.extent) as _
    }
}

#[async_trait]
impl ChunkWriter for ExtentWriter {
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError> {
        self.core.check_writable()?;
        let (mut lease, length, sums) = piece.into_parts();
        let end = self.written + length as u64;
        assert!(end <= self.chunk.length, "no more is written than was announced");
        // The unit behind may be another chunk's.
        assert!(self.written % UNIT + length as u64 <= UNIT, "a piece lies in one unit");
        let padded = length.next_multiple_of(PAGE);
        lease[length..padded].fill(0);
        let target = &self.extent.units.volume.target;
        let offset = self.extent.units.file_offset(self.written);
        self.sums.extend_from_slice(&sums);
        self.written = end;
        let write = self.core.disk.write(target, offset, vec![(lease, padded)], false, self.keep());
        self.under_way.push(write);
        while self.under_way.len() > WRITES_IN_FLIGHT {
            if let Some(outcome) = self.under_way.next().await {
                outcome.map_err(|error| self.core.write_failed("writing", error))?;
            }
        }
        Ok(())
    }

    fn seal(self: Box<Self>) -> BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>> {
        assert_eq!(self.written, self.chunk.length, "a chunk is sealed when whole");
        self.finish().boxed()
    }
}

/// Durable, and given back when dropped.
struct StagedExtent {
    core: Arc<Core>,
    chunk: ChunkSpec,
    extent: Arc<Extent>,
    sums: Arc<[u32]>,
}

impl StagedChunk for StagedExtent {
    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        self.core.index.insert(self.chunk.id, Location::Extent(self.extent))?;
        self.core.sums.insert(self.chunk.id, self.sums);
        Ok(())
    }
}
