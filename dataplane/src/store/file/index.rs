//! Where each chunk lies: in memory, ordered by id, rebuilt at start.
//!
//! A location holds its space by reference count: cloning one is pinning the chunk. About
//! 60 bytes per chunk.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use keyway_proto::{ChunkId, ChunkSpec};
use parking_lot::Mutex;

use super::layout::{PAGE, RecordHeader, UNIT_PAGES};
use super::space::Units;
use crate::store::StoreError;

/// A chunk with units of its own.
pub(super) struct Extent {
    pub(super) units: Units,
    pub(super) length: u32,
}

/// A run of units that small chunks share.
pub(super) struct Segment {
    pub(super) units: Units,
    pub(super) sequence: u64,
    /// Pages of published chunks.
    pub(super) live_pages: AtomicU32,
    /// Whether nothing is appended any more.
    pub(super) sealed: AtomicBool,
}

impl Segment {
    pub(super) fn pages(&self) -> usize {
        self.units.numbers.len() * UNIT_PAGES
    }

    /// Where a page lies in the volume's file. A segment's units lie together.
    pub(super) fn page_offset(&self, page: usize) -> u64 {
        self.units.file_offset(0) + (page * PAGE) as u64
    }
}

/// A chunk in a segment.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) segment: Arc<Segment>,
    pub(super) length: u32,
    /// The sum of the only block; chunks of more blocks have theirs in the batch's header.
    pub(super) sum: u32,
    /// First page of the data in the segment.
    pub(super) page: u16,
    /// The batch's header page in the segment.
    pub(super) batch_page: u16,
}

impl Record {
    fn pages(&self) -> u32 {
        RecordHeader::pages(u64::from(self.length)) as u32
    }
}

/// Where a chunk lies.
#[derive(Clone)]
pub(super) enum Location {
    Extent(Arc<Extent>),
    Record(Record),
}

// Every chunk costs this in the index.
const _: () = assert!(size_of::<Location>() <= 24);

impl Location {
    pub(super) fn length(&self) -> u64 {
        u64::from(match self {
            Self::Extent(extent) => extent.length,
            Self::Record(record) => record.length,
        })
    }

    fn count_in(&self) {
        if let Self::Record(record) = self {
            record.segment.live_pages.fetch_add(record.pages(), Ordering::Relaxed);
        }
    }

    fn count_out(&self) {
        if let Self::Record(record) = self {
            record.segment.live_pages.fetch_sub(record.pages(), Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
pub(super) struct Index {
    chunks: Mutex<BTreeMap<ChunkId, Location>>,
}

impl Index {
    pub(super) fn find(&self, chunk: ChunkId) -> Option<Location> {
        self.chunks.lock().get(&chunk).cloned()
    }

    pub(super) fn contains(&self, chunk: ChunkId) -> bool {
        self.chunks.lock().contains_key(&chunk)
    }

    pub(super) fn insert(&self, chunk: ChunkId, location: Location) -> Result<(), StoreError> {
        let mut chunks = self.chunks.lock();
        if chunks.contains_key(&chunk) {
            return Err(StoreError::ChunkExists(chunk));
        }
        location.count_in();
        chunks.insert(chunk, location);
        Ok(())
    }

    /// Points a chunk elsewhere, if it still lies in `from`.
    pub(super) fn relocate(&self, chunk: ChunkId, from: &Arc<Segment>, to: Location) -> bool {
        let mut chunks = self.chunks.lock();
        let Some(location) = chunks.get_mut(&chunk) else { return false };
        if !matches!(location, Location::Record(record) if Arc::ptr_eq(&record.segment, from)) {
            return false;
        }
        to.count_in();
        let old = std::mem::replace(location, to);
        drop(chunks);
        old.count_out();
        true
    }

    pub(super) fn remove(&self, chunks: &[ChunkId]) {
        let mut index = self.chunks.lock();
        let removed: Vec<Location> =
            chunks.iter().filter_map(|chunk| index.remove(chunk)).collect();
        // Their space is given back without this lock.
        drop(index);
        removed.iter().for_each(Location::count_out);
    }

    pub(super) fn list(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let spec = |(id, location): (&ChunkId, &Location)| ChunkSpec {
            id: *id,
            length: location.length(),
        };
        let chunks = self.chunks.lock();
        chunks.range((start, Bound::Unbounded)).take(limit).map(spec).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.lock().len()
    }
}
