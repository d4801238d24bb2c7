//! The bytes on disk, version 1. See docs/decisions/0003-file-store-layout.md.
//!
//! A volume: one superblock page, one header page per unit, then units of 1 MiB from a
//! multiple of 1 MiB on. All numbers are little-endian; every page carries its own CRC32C.
//!
//! | page | begins with | says |
//! |---|---|---|
//! | superblock | `KWVOLUME` | store, volume number, units |
//! | extent header | `KWEXTENT` | one chunk: its units and the sums of its blocks |
//! | segment header | `KWSEGMNT` | a run of units that holds batches |
//! | batch header | `KWBATCH1` | the records in the pages that follow |

use keyway_proto::unit::{BLOCK_BYTES, CHUNK_BYTES_MAX, MIB};
use keyway_proto::{ChunkId, ChunkSpec};

use crate::store::{SINGLE_PIECE_BYTES_MAX, block_sum};

/// Version of everything below.
pub(super) const FORMAT: u32 = 1;
/// The unit of direct I/O.
pub(super) const PAGE: usize = 4096;
/// The unit of allocation.
pub(super) const UNIT: u64 = MIB;
/// Units of the largest chunk.
pub(super) const CHUNK_UNITS_MAX: usize = (CHUNK_BYTES_MAX / UNIT) as usize;
/// Largest chunk that is kept in a segment; a larger one has units of its own.
pub(super) const RECORD_BYTES_MAX: u64 = SINGLE_PIECE_BYTES_MAX;
/// Units of a segment where that many lie together.
pub(super) const SEGMENT_UNITS: usize = 4;
/// Pages of a unit.
pub(super) const UNIT_PAGES: usize = UNIT as usize / PAGE;
/// Units of the largest volume: numbers of units take 16 bits.
pub(super) const VOLUME_UNITS_MAX: u64 = 1 << 15;

const SUMS_MAX: usize = (CHUNK_BYTES_MAX / BLOCK_BYTES) as usize;

const VOLUME_MAGIC: [u8; 8] = *b"KWVOLUME";
const EXTENT_MAGIC: [u8; 8] = *b"KWEXTENT";
const SEGMENT_MAGIC: [u8; 8] = *b"KWSEGMNT";
const BATCH_MAGIC: [u8; 8] = *b"KWBATCH1";

/// Bytes of a page before its content: magic, format, CRC32C.
const PREFIX: usize = 16;

/// The content of a page.
pub(super) type PageBytes = [u8; PAGE];

const _: () = assert!(PREFIX + 8 + 16 + 4 + 2 + 2 * CHUNK_UNITS_MAX + 4 * SUMS_MAX <= PAGE);
const _: () = assert!(UNIT.is_multiple_of(BLOCK_BYTES) && BLOCK_BYTES.is_multiple_of(PAGE as u64));

/// Where things lie in a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Units of data.
    pub(super) units: u32,
}

impl Geometry {
    /// The most units that a file of `bytes` holds; `None` when there is room for none.
    pub(super) fn fitting(bytes: u64) -> Option<Self> {
        // Each unit costs itself and a header page; the start of data is rounded up.
        let mut units = (bytes / (UNIT + PAGE as u64)).min(VOLUME_UNITS_MAX);
        while units > 0 && (Self { units: units as u32 }).file_bytes() > bytes {
            units -= 1;
        }
        (units > 0).then_some(Self { units: units as u32 })
    }

    /// The file's size.
    pub(super) fn file_bytes(self) -> u64 {
        self.data_start() + u64::from(self.units) * UNIT
    }

    /// The header page of a unit.
    pub(super) fn header_offset(self, unit: u16) -> u64 {
        (1 + u64::from(unit)) * PAGE as u64
    }

    /// A unit's first byte.
    pub(super) fn unit_offset(self, unit: u16) -> u64 {
        self.data_start() + u64::from(unit) * UNIT
    }

    fn data_start(self) -> u64 {
        self.header_offset(0)
            .saturating_add(u64::from(self.units) * PAGE as u64)
            .next_multiple_of(UNIT)
    }
}

/// A volume's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) store: [u8; 16],
    pub(super) volume: u32,
    pub(super) units: u32,
}

impl Superblock {
    pub(super) fn encode(&self) -> PageBytes {
        let mut page = PageWriter::new(VOLUME_MAGIC);
        page.put(&self.store);
        page.put(&self.volume.to_le_bytes());
        page.put(&self.units.to_le_bytes());
        page.seal()
    }

    pub(super) fn decode(page: &[u8]) -> Option<Self> {
        let mut page = PageReader::open(page, VOLUME_MAGIC)?;
        let decoded = Self { store: page.take()?, volume: page.u32()?, units: page.u32()? };
        (u64::from(decoded.units) <= VOLUME_UNITS_MAX).then_some(decoded)
    }
}

/// The header page of an extent's or a segment's first unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Orders all headers of a store by age.
    pub(super) sequence: u64,
    /// The units that it speaks for, the header's own first.
    pub(super) units: Vec<u16>,
    pub(super) content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Chunk { chunk: ChunkSpec, sums: Vec<u32> },
    Segment,
}

impl Header {
    pub(super) fn encode(&self) -> PageBytes {
        let mut page = PageWriter::new(match self.content {
            Content::Chunk { .. } => EXTENT_MAGIC,
            Content::Segment => SEGMENT_MAGIC,
        });
        page.put(&self.sequence.to_le_bytes());
        page.put(&(self.units.len() as u16).to_le_bytes());
        for unit in &self.units {
            page.put(&unit.to_le_bytes());
        }
        if let Content::Chunk { chunk, sums } = &self.content {
            page.put_chunk(chunk);
            page.put_sums(sums);
        }
        page.seal()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let is_chunk = bytes.starts_with(&EXTENT_MAGIC);
        let magic = if is_chunk { EXTENT_MAGIC } else { SEGMENT_MAGIC };
        let mut page = PageReader::open(bytes, magic)?;
        let sequence = page.u64()?;
        let count = usize::from(page.u16()?);
        if !(1..=CHUNK_UNITS_MAX).contains(&count) {
            return None;
        }
        let units = (0..count).map(|_| page.u16()).collect::<Option<Vec<_>>>()?;
        let content = if is_chunk {
            let chunk = page.chunk(CHUNK_BYTES_MAX)?;
            if chunk.length.div_ceil(UNIT) != count as u64 {
                return None;
            }
            Content::Chunk { chunk, sums: page.sums(chunk.length)? }
        } else {
            // Segments are addressed as one run.
            let follows = |pair: &[u16]| pair[0].checked_add(1) == Some(pair[1]);
            if count > SEGMENT_UNITS || !units.windows(2).all(follows) {
                return None;
            }
            Content::Segment
        };
        Some(Self { sequence, units, content })
    }
}

/// One chunk in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) chunk: ChunkSpec,
    /// Its first page, counted from the batch's header page.
    pub(super) page: u16,
    pub(super) sums: Vec<u32>,
}

impl RecordHeader {
    /// Bytes that the record takes up in a batch's header page.
    pub(super) fn encoded_bytes(length: u64) -> usize {
        16 + 4 + 2 + 4 * length.div_ceil(BLOCK_BYTES) as usize
    }

    /// Pages that the record's data takes up.
    pub(super) fn pages(length: u64) -> usize {
        length.div_ceil(PAGE as u64) as usize
    }
}

/// The page before a batch's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The sequence number of the segment that the batch was written to: a batch that an
    /// older segment left in the same place has another.
    pub(super) segment: u64,
    /// The batch's own first page within the segment.
    pub(super) page: u16,
    /// Pages of the batch, this one included.
    pub(super) pages: u16,
    pub(super) records: Vec<RecordHeader>,
}

impl Batch {
    /// Bytes of a header page that records may take up.
    pub(super) const RECORDS_BYTES_MAX: usize = PAGE - PREFIX - 8 - 2 - 2 - 2;

    pub(super) fn encode(&self) -> PageBytes {
        let mut page = PageWriter::new(BATCH_MAGIC);
        page.put(&self.segment.to_le_bytes());
        page.put(&self.page.to_le_bytes());
        page.put(&self.pages.to_le_bytes());
        page.put(&(self.records.len() as u16).to_le_bytes());
        for record in &self.records {
            page.put_chunk(&record.chunk);
            page.put(&record.page.to_le_bytes());
            page.put_sums(&record.sums);
        }
        page.seal()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut page = PageReader::open(bytes, BATCH_MAGIC)?;
        let (segment, first, pages, count) = (page.u64()?, page.u16()?, page.u16()?, page.u16()?);
        let mut records = Vec::with_capacity(usize::from(count).min(PAGE / 26));
        for _ in 0..count {
            let chunk = page.chunk(RECORD_BYTES_MAX)?;
            let at = page.u16()?;
            let end = usize::from(at) + RecordHeader::pages(chunk.length);
            if at == 0 || end > usize::from(pages) {
                return None;
            }
            records.push(RecordHeader { chunk, page: at, sums: page.sums(chunk.length)? });
        }
        (pages > 0).then_some(Self { segment, page: first, pages, records })
    }
}

struct PageWriter {
    page: PageBytes,
    at: usize,
}

impl PageWriter {
    fn new(magic: [u8; 8]) -> Self {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&magic);
        page[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        Self { page, at: PREFIX }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.page[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn put_chunk(&mut self, chunk: &ChunkSpec) {
        self.put(&chunk.id.to_bytes());
        self.put(&(chunk.length as u32).to_le_bytes());
    }

    fn put_sums(&mut self, sums: &[u32]) {
        for sum in sums {
            self.put(&sum.to_le_bytes());
        }
    }

    fn seal(mut self) -> PageBytes {
        let sum = block_sum(&self.page);
        self.page[12..16].copy_from_slice(&sum.to_le_bytes());
        self.page
    }
}

/// Reads a page whose checksum was verified. Never trusts a length.
struct PageReader<'a> {
    rest: &'a [u8],
}

impl<'a> PageReader<'a> {
    fn open(page: &'a [u8], magic: [u8; 8]) -> Option<Self> {
        let mut unsealed: PageBytes = page.try_into().ok()?;
        unsealed[12..16].fill(0);
        let intact = page[..8] == magic
            && page[8..12] == FORMAT.to_le_bytes()
            && page[12..16] == block_sum(&unsealed).to_le_bytes();
        intact.then_some(Self { rest: &page[PREFIX..] })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn chunk(&mut self, length_max: u64) -> Option<ChunkSpec> {
        let id = ChunkId::from_bytes(self.take()?);
        let length = u64::from(self.u32()?);
        (1..=length_max).contains(&length).then_some(ChunkSpec { id, length })
    }

    fn sums(&mut self, length: u64) -> Option<Vec<u32>> {
        (0..length.div_ceil(BLOCK_BYTES)).map(|_| self.u32()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn geometry_uses_the_file() {
        assert_eq!(Geometry::fitting(UNIT), None);
        for mib in [2, 3, 8, 256, 257, 1024, 1 << 20] {
            let geometry = Geometry::fitting(mib * MIB).expect("room");
            assert!(geometry.file_bytes() <= mib * MIB);
            assert!(geometry.header_offset(geometry.units as u16 - 1) < geometry.unit_offset(0));
            let more = Geometry { units: geometry.units + 1 };
            assert!(more.file_bytes() > mib * MIB || u64::from(geometry.units) == VOLUME_UNITS_MAX);
        }
    }

    #[test]
    fn headers_round_trip() {
        let superblock = Superblock { store: [7; 16], volume: 3, units: 1019 };
        assert_eq!(Superblock::decode(&superblock.encode()), Some(superblock));
        let chunk = ChunkSpec { id: ChunkId::generate(), length: CHUNK_BYTES_MAX };
        let units = (5..21).collect();
        let sums = (0..SUMS_MAX as u32).collect();
        let header = Header { sequence: 9, units, content: Content::Chunk { chunk, sums } };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        let segment = Header { sequence: 10, units: vec![4, 5, 6], content: Content::Segment };
        assert_eq!(Header::decode(&segment.encode()), Some(segment));
    }

    #[test]
    fn a_full_batch_fits_its_page() {
        let bytes = RecordHeader::encoded_bytes(1);
        let count = Batch::RECORDS_BYTES_MAX / bytes;
        let record = |page| RecordHeader {
            chunk: ChunkSpec { id: ChunkId::generate(), length: 1 },
            page,
            sums: vec![1],
        };
        let records: Vec<_> = (1..=count as u16).map(record).collect();
        let batch = Batch { segment: 1, page: 0, pages: count as u16 + 1, records };
        assert_eq!(Batch::decode(&batch.encode()), Some(batch));
        assert!(count > 128, "{count} records in a batch");
    }

    #[test]
    fn a_flipped_bit_is_seen() {
        let page = Header { sequence: 1, units: vec![0], content: Content::Segment }.encode();
        for bit in (0..PAGE * 8).step_by(97) {
            let mut bent = page;
            bent[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bent), None);
        }
    }

    proptest! {
        /// Pages with a valid checksum and any content are decoded or refused, never trusted.
        #[test]
        fn foreign_pages_never_panic(content: Vec<u8>, kind in 0usize..4) {
            let magic = [VOLUME_MAGIC, EXTENT_MAGIC, SEGMENT_MAGIC, BATCH_MAGIC][kind];
            let mut page = PageWriter::new(magic);
            page.put(&content[..content.len().min(PAGE - PREFIX)]);
            let page = page.seal();
            let _ = Superblock::decode(&page);
            let _ = Header::decode(&page);
            let _ = Batch::decode(&page);
        }
    }
}
