//! Rebuilding the index at start, from header pages and batch headers alone.
//!
//! Reads, per volume of 1 GiB: 4 MiB of header pages in one sweep, and one page per batch of
//! each segment. Frees are not on disk: a header may be stale, its units taken by something
//! newer since. Headers are therefore taken newest first, and every header, stale or not,
//! casts a shadow over its units for all older ones. A chunk that was released but not
//! overwritten reappears; the gateway releases again what its metadata does not own.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::OpenStoreError;
use super::access::open_volume;
use super::bitmap::Bitmap;
use super::core::Core;
use super::disk::Target;
use super::index::{Extent, Location, Record, Segment};
use super::layout::{
    Batch, Content, Geometry, Header, PAGE, PageBytes, RecordHeader, SEGMENT_UNITS, Superblock,
    UNIT_PAGES,
};
use super::space::{Volume, volume_path};
use crate::store::verify_blocks;

/// Header pages read at once.
const SWEEP_PAGES: usize = 256;

/// Opens all volumes in `dir` and fills the index.
pub(super) fn recover(
    core: &Core,
    dir: &Path,
    store: [u8; 16],
    direct: bool,
) -> Result<(), OpenStoreError> {
    for number in volume_numbers(dir)? {
        let path = volume_path(dir, number);
        let failed = |source| OpenStoreError::Volume { path: path.clone(), source };
        let file = File::open(&path).map_err(failed)?;
        let superblock = Superblock::decode(&read_page(&file, 0).map_err(failed)?)
            .filter(|found| found.store == store && found.volume == number)
            .ok_or_else(|| OpenStoreError::ForeignVolume { path: path.clone() })?;
        let target =
            Arc::new(Target { file: open_volume(&path, direct).map_err(failed)?, slot: number });
        let geometry = Geometry { units: superblock.units };
        core.space.adopt(Arc::new(Volume { number, geometry, target }));
        Sweep { core, file: &file, number, geometry }.run().map_err(failed)?;
    }
    Ok(())
}

fn volume_numbers(dir: &Path) -> Result<Vec<u32>, OpenStoreError> {
    let failed = |source| OpenStoreError::Dir { path: dir.to_owned(), source };
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(".new") {
            // A volume that was being made when the node stopped.
            std::fs::remove_file(entry.path()).map_err(failed)?;
        }
        let number = name.strip_prefix("volume-").and_then(|rest| rest.strip_suffix(".kwv"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// One volume being read.
struct Sweep<'a> {
    core: &'a Core,
    file: &'a File,
    number: u32,
    geometry: Geometry,
}

impl Sweep<'_> {
    fn run(&self) -> io::Result<()> {
        let mut headers = self.headers()?;
        headers.sort_unstable_by_key(|header| std::cmp::Reverse(header.sequence));
        let mut shadow = Bitmap::new(self.geometry.units as usize);
        for header in headers {
            self.core.pass_sequence(header.sequence);
            let is_whole = !header.units.iter().any(|unit| shadow.is_set(usize::from(*unit)));
            header.units.iter().for_each(|unit| shadow.set(usize::from(*unit)));
            if is_whole {
                self.take(&header)?;
            }
        }
        Ok(())
    }

    fn headers(&self) -> io::Result<Vec<Header>> {
        let mut headers = Vec::new();
        let mut pages = vec![0; SWEEP_PAGES * PAGE];
        let units = self.geometry.units as usize;
        for first in (0..units).step_by(SWEEP_PAGES) {
            let count = SWEEP_PAGES.min(units - first);
            let pages = &mut pages[..count * PAGE];
            self.file.read_exact_at(pages, self.geometry.header_offset(first as u16))?;
            for (index, page) in pages.chunks_exact(PAGE).enumerate() {
                let unit = (first + index) as u16;
                headers.extend(Header::decode(page).filter(|header| header.units[0] == unit));
            }
        }
        Ok(headers)
    }

    fn take(&self, header: &Header) -> io::Result<()> {
        let Some(units) = self.core.space.claim(self.number, &header.units) else {
            return Ok(());
        };
        match &header.content {
            Content::Chunk { chunk, .. } => {
                let extent = Arc::new(Extent { units, length: chunk.length as u32 });
                // An id is never used twice; were it, the first found would stay.
                let _ = self.core.index.insert(chunk.id, Location::Extent(extent));
                Ok(())
            }
            Content::Segment => {
                let segment = Arc::new(Segment {
                    units,
                    sequence: header.sequence,
                    live_pages: AtomicU32::new(0),
                    sealed: AtomicBool::new(true),
                });
                self.take_records(&segment)?;
                self.core.segments.lock().push(Arc::downgrade(&segment));
                Ok(())
            }
        }
    }

    fn take_records(&self, segment: &Arc<Segment>) -> io::Result<()> {
        for (page, batch) in batches(self.file, segment)? {
            for found in &batch.records {
                let record = Record {
                    segment: Arc::clone(segment),
                    length: found.chunk.length as u32,
                    sum: if found.sums.len() == 1 { found.sums[0] } else { 0 },
                    page: page + found.page,
                    batch_page: page,
                };
                self.take_record(found, record)?;
            }
        }
        Ok(())
    }

    /// A chunk that compaction was moving is there twice; the copy may be torn.
    fn take_record(&self, found: &RecordHeader, record: Record) -> io::Result<()> {
        let id = found.chunk.id;
        let offset = record.segment.page_offset(usize::from(record.page));
        let location = Location::Record(record);
        if self.core.index.contains(id) {
            let mut bytes = vec![0; found.chunk.length as usize];
            self.file.read_exact_at(&mut bytes, offset)?;
            if verify_blocks(id, 0, &bytes, &found.sums).is_err() {
                return Ok(());
            }
            self.core.index.remove(&[id]);
        }
        // The id is free by now.
        let _ = self.core.index.insert(id, location);
        Ok(())
    }
}

/// A segment's batches with their header pages' places, up to the first that is not whole.
pub(super) fn batches(file: &File, segment: &Segment) -> io::Result<Vec<(u16, Batch)>> {
    let mut batches = Vec::new();
    let mut page = 0;
    while page < segment.pages() {
        let bytes = read_page(file, segment.page_offset(page))?;
        let belongs = |batch: &Batch| {
            batch.segment == segment.sequence
                && usize::from(batch.page) == page
                && page + usize::from(batch.pages) <= segment.pages()
        };
        let Some(batch) = Batch::decode(&bytes).filter(belongs) else { break };
        let next = page + usize::from(batch.pages);
        batches.push((page as u16, batch));
        page = next;
    }
    Ok(batches)
}

fn read_page(file: &File, offset: u64) -> io::Result<PageBytes> {
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, offset)?;
    Ok(page)
}

// Pages of a segment are numbered with 16 bits.
const _: () = assert!(UNIT_PAGES * SEGMENT_UNITS <= u16::MAX as usize);
