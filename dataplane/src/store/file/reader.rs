//! Reading: one device read, no copy; the CRC32C pass comes when frames are taken.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use keyway_fabric::memory::{Lease, LeaseClass};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, ChunkId};

use super::core::Core;
use super::disk::Target;
use super::index::{Extent, Location, Record};
use super::layout::{Batch, Content, Header, PAGE};
use crate::store::{
    Fetched, Frame, PinnedChunk, StoreError, Sums, block_span, read_class, verify_blocks,
};

/// A chunk held by its location's reference count.
pub(super) struct Pin {
    pub(super) core: Arc<Core>,
    pub(super) chunk: ChunkId,
    pub(super) location: Location,
}

impl PinnedChunk for Pin {
    fn length(&self) -> u64 {
        self.location.length()
    }

    fn held(&self, _range: ByteRange) -> Option<Frame> {
        None
    }

    fn read(
        &self,
        range: ByteRange,
        lease: Option<Lease>,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        let (core, chunk, location) = (Arc::clone(&self.core), self.chunk, self.location.clone());
        async move {
            core.check_open()?;
            let lease = match lease {
                Some(lease) => lease,
                None => core.pool.lease(read_class(range, location.length())).await,
            };
            let (lease, span, sums) = read_blocks(&core, chunk, &location, range, lease).await?;
            let length = location.length();
            debug_assert!(span.length() <= lease.len() as u64, "a lease of the span's class");
            Ok(Fetched::in_lease(chunk, length, range, lease, sums, &core.damaged_blocks))
        }
        .boxed()
    }

    fn read_into(
        &self,
        blocks: ByteRange,
        lease: Lease,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        self.read(blocks, Some(lease))
    }
}

/// Reads a range into `lease`, of its class, compares all of it with its sums, and tells where
/// in the lease the range lies.
pub(super) async fn read_verified(
    core: &Core,
    chunk: ChunkId,
    location: &Location,
    range: ByteRange,
    lease: Lease,
) -> Result<(Lease, Range<usize>), StoreError> {
    let (lease, span, sums) = read_blocks(core, chunk, location, range, lease).await?;
    let bytes = &lease[..span.length() as usize];
    let verified = verify_blocks(chunk, span.offset(), bytes, sums.as_slice());
    if let Err(error) = verified {
        core.damaged_blocks.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "a stored block does not match its checksum");
        return Err(error);
    }
    let start = (range.offset() - span.offset()) as usize;
    Ok((lease, start..start + range.length() as usize))
}

/// Reads the blocks that a range touches, unverified, and the chunk's sums.
async fn read_blocks(
    core: &Core,
    chunk: ChunkId,
    location: &Location,
    range: ByteRange,
    lease: Lease,
) -> Result<(Lease, ByteRange, Sums), StoreError> {
    let span = block_span(range, location.length());
    let (target, offset) = location.place(span.offset());
    let length = (span.length() as usize).next_multiple_of(PAGE);
    let lease = core.disk.read(target, offset, lease, length).await.map_err(Core::read_failed)?;
    let sums = match location {
        Location::Record(record) if u64::from(record.length) <= BLOCK_BYTES => {
            Sums::One(record.sum)
        }
        _ => Sums::All(sums(core, chunk, location).await?),
    };
    Ok((lease, span, sums))
}

impl Location {
    /// The file, and where in it the chunk's byte `offset` lies.
    fn place(&self, offset: u64) -> (&Arc<Target>, u64) {
        match self {
            Self::Extent(extent) => (&extent.units.volume.target, extent.units.file_offset(offset)),
            Self::Record(Record { segment, page, .. }) => {
                let start = segment.page_offset(usize::from(*page));
                (&segment.units.volume.target, start + offset)
            }
        }
    }
}

/// The sums of a chunk of several blocks.
async fn sums(core: &Core, chunk: ChunkId, location: &Location) -> Result<Arc<[u32]>, StoreError> {
    if let Some(sums) = core.sums.get(&chunk) {
        return Ok(sums);
    }
    let (target, offset) = match location {
        Location::Extent(extent) => (&extent.units.volume.target, extent.units.header_offset()),
        Location::Record(Record { segment, batch_page, .. }) => {
            (&segment.units.volume.target, segment.page_offset(usize::from(*batch_page)))
        }
    };
    let lease = core.headers.lease(LeaseClass::Page).await;
    let page = core.disk.read(target, offset, lease, PAGE).await.map_err(Core::read_failed)?;
    let found = match location {
        Location::Extent(extent) => sums_of_extent(chunk, extent, &page),
        Location::Record(record) => sums_of_record(chunk, record, &page),
    };
    let sums: Arc<[u32]> = found.ok_or(StoreError::Damaged { chunk, offset: 0 })?.into();
    core.sums.insert(chunk, Arc::clone(&sums));
    Ok(sums)
}

fn sums_of_extent(chunk: ChunkId, extent: &Extent, page: &[u8]) -> Option<Vec<u32>> {
    match Header::decode(page)?.content {
        Content::Chunk { chunk: found, sums }
            if found.id == chunk && found.length == u64::from(extent.length) =>
        {
            Some(sums)
        }
        _ => None,
    }
}

fn sums_of_record(chunk: ChunkId, record: &Record, page: &[u8]) -> Option<Vec<u32>> {
    let batch = Batch::decode(page).filter(|batch| batch.segment == record.segment.sequence)?;
    batch.records.into_iter().find(|found| found.chunk.id == chunk).map(|found| found.sums)
}
