//! A chunk's bytes in the tier, as far as they are filled, with their sums.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use keyway_fabric::memory::Extent;
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, Checksum, ChecksumKind, ChunkId, ChunkSpec};
use parking_lot::Mutex;

use super::flight::Flight;
use crate::store::{Frame, StoreError, block_sum};

const BLOCK: usize = BLOCK_BYTES as usize;

/// Uses that are remembered: more say nothing more.
const USES_MAX: u8 = 3;

/// A chunk in the tier.
pub(super) struct Entry {
    chunk: ChunkSpec,
    /// Its memory, in order. All but the last are whole numbers of blocks.
    extents: Box<[Arc<Extent>]>,
    sums: Box<[BlockSums]>,
    /// CRC64NVME of all of it, once all of it was asked for.
    whole: OnceLock<Checksum>,
    /// Whether the blocks' sums are known: of bytes that a device has put here, they are not
    /// before somebody reads them.
    is_summed: AtomicBool,
    /// Uses since the queues last looked.
    uses: AtomicU8,
    /// Whether it has left the index.
    out: AtomicBool,
    /// Reads of it that are under way.
    pub(super) flights: Mutex<Vec<Flight>>,
}

/// A block's sums. Written before the block is filled, read after: the bytes of a chunk never
/// differ, so it does not matter who wrote them.
#[derive(Default)]
struct BlockSums {
    crc32c: AtomicU32,
    crc64nvme: AtomicU64,
}

impl Entry {
    /// # Panics
    /// When the extents are not as long as the chunk.
    pub(super) fn new(chunk: ChunkSpec, extents: Vec<Extent>) -> Self {
        let bytes: usize = extents.iter().map(Extent::len).sum();
        assert_eq!(bytes as u64, chunk.length, "the extents hold the chunk");
        let blocks = chunk.length.div_ceil(BLOCK_BYTES) as usize;
        Self {
            chunk,
            extents: extents.into_iter().map(Arc::new).collect(),
            sums: (0..blocks).map(|_| BlockSums::default()).collect(),
            whole: OnceLock::new(),
            is_summed: AtomicBool::new(true),
            uses: AtomicU8::new(0),
            out: AtomicBool::new(false),
            flights: Mutex::default(),
        }
    }

    /// A chunk that a device has put here, all of it filled, and the checksum of its source.
    ///
    /// # Panics
    /// When the extents are not as long as the chunk.
    pub(super) fn landed(chunk: ChunkSpec, extents: Vec<Extent>, whole: Checksum) -> Self {
        let entry = Self::new(chunk, extents);
        let (is_summed, whole) = (AtomicBool::new(false), OnceLock::from(whole));
        Self { is_summed, whole, ..entry }
    }

    pub(super) fn id(&self) -> ChunkId {
        self.chunk.id
    }

    pub(super) fn length(&self) -> u64 {
        self.chunk.length
    }

    /// Whether the block that begins at `offset` is here.
    pub(super) fn has(&self, offset: u64) -> bool {
        let (extent, at) = self.place(offset);
        extent.is_filled(at / BLOCK)
    }

    /// Whether all of a range is here.
    pub(super) fn has_all(&self, range: ByteRange) -> bool {
        let mut at = range.offset();
        while at < range.end() {
            let run = self.run_from(at);
            if run == 0 {
                return false;
            }
            at += run;
        }
        true
    }

    /// Takes in a verified block. Its CRC64NVME is computed of the source, before the copy: a
    /// copy that went wrong does not have it.
    ///
    /// # Panics
    /// When `bytes` is not the block that begins at `offset`, as long as it is.
    pub(super) fn fill(&self, offset: u64, bytes: &[u8], crc32c: u32) {
        let (extent, at) = self.place(offset);
        let sums = &self.sums[(offset / BLOCK_BYTES) as usize];
        sums.crc32c.store(crc32c, Ordering::Relaxed);
        let crc64nvme = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes);
        sums.crc64nvme.store(crc64nvme, Ordering::Relaxed);
        extent.fill(at / BLOCK, bytes);
    }

    /// The longest run of the range's bytes, from its first on, that is here and contiguous.
    pub(super) fn frame(self: &Arc<Self>, range: ByteRange) -> Option<Frame> {
        let length = self.run_from(range.offset()).min(range.length());
        if length == 0 {
            return None;
        }
        let (extent, at) = self.place(range.offset());
        let bytes: Bytes = extent.bytes(at..at + length as usize)?;
        let is_whole = length == self.chunk.length;
        if !is_whole && !self.is_summed.load(Ordering::Acquire) {
            return Some(Frame::new(bytes));
        }
        let sums = KnownSums { entry: Arc::clone(self), offset: range.offset() };
        Some(Frame::with_sums(bytes, sums))
    }

    /// A run that is here and contiguous, with all of a range in it; and the offset in the chunk
    /// at which it begins. From its extent's first byte on, where that can be.
    pub(super) fn run_around(&self, range: ByteRange) -> Option<(u64, Bytes)> {
        let (extent, at) = self.place(range.offset());
        let end_of = |block: usize| {
            let end = (block + extent.filled_from(block)) * BLOCK;
            end.min(extent.len())
        };
        let needed = at + range.length() as usize;
        let first = if needed <= end_of(0) { 0 } else { at / BLOCK };
        let (begin, end) = (first * BLOCK, end_of(first));
        if needed > end {
            return None;
        }
        Some((range.offset() - (at - begin) as u64, extent.bytes(begin..end)?))
    }

    /// Compares the blocks that lie in a range, as far as they are here, with their sums, and
    /// gives the offset of the first that differs.
    pub(super) fn damage(&self, range: ByteRange) -> Option<u64> {
        if !self.is_summed.load(Ordering::Acquire) {
            return None;
        }
        let first = range.offset() / BLOCK_BYTES;
        (first..range.end().div_ceil(BLOCK_BYTES)).map(|block| block * BLOCK_BYTES).find(|offset| {
            let (extent, at) = self.place(*offset);
            let end = (at + BLOCK).min(extent.len());
            let sums = &self.sums[(offset / BLOCK_BYTES) as usize];
            let is_right = |bytes: &[u8]| block_sum(bytes) == sums.crc32c.load(Ordering::Relaxed);
            !extent.get(at..end).is_none_or(is_right)
        })
    }

    /// Compares a copy of the block that begins at `offset`, and the copy's CRC32C, with what
    /// is known of the block; what is not is noted.
    pub(super) fn check_block(&self, offset: u64, bytes: &[u8], crc32c: u32) -> bool {
        let sums = &self.sums[(offset / BLOCK_BYTES) as usize];
        if self.is_summed.load(Ordering::Acquire) {
            return sums.crc32c.load(Ordering::Relaxed) == crc32c;
        }
        sums.crc32c.store(crc32c, Ordering::Relaxed);
        let crc64nvme = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes);
        sums.crc64nvme.store(crc64nvme, Ordering::Relaxed);
        true
    }

    /// Compares what was noted of all blocks with the checksum that the chunk came with. Where
    /// they agree, the blocks' sums are known from then on.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: the bytes are not those that were to come here.
    pub(super) fn check_whole(&self) -> Result<(), StoreError> {
        if self.is_summed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.whole.get() != Some(&self.combined(0..self.sums.len() as u64)) {
            return Err(StoreError::Damaged { chunk: self.chunk.id, offset: 0 });
        }
        self.is_summed.store(true, Ordering::Release);
        Ok(())
    }

    /// Tells that it was of use.
    pub(super) fn touch(&self) {
        if self.uses.load(Ordering::Relaxed) < USES_MAX {
            self.uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes one use off; whether there was one.
    pub(super) fn take_use(&self) -> bool {
        let less = |uses: u8| uses.checked_sub(1);
        self.uses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }

    pub(super) fn set_out(&self) {
        self.out.store(true, Ordering::Relaxed);
    }

    /// Whether somebody else reads or fills it now. `holders` of its own are known.
    pub(super) fn is_pinned(self: &Arc<Self>, holders: usize) -> bool {
        Arc::strong_count(self) > holders
            || self.extents.iter().any(|extent| Arc::strong_count(extent) > 1)
    }

    /// How many bytes can be read from `offset` on without leaving its extent.
    fn run_from(&self, offset: u64) -> u64 {
        let (extent, at) = self.place(offset);
        let block = at / BLOCK;
        let end = (block + extent.filled_from(block)) * BLOCK;
        end.min(extent.len()).saturating_sub(at) as u64
    }

    /// The extent that a byte lies in, and where.
    fn place(&self, offset: u64) -> (&Arc<Extent>, usize) {
        let mut at = offset as usize;
        for extent in &self.extents {
            if at < extent.len() {
                return (extent, at);
            }
            at -= extent.len();
        }
        unreachable!("byte {offset} lies in the chunk");
    }

    /// CRC64NVME of whole blocks, all filled.
    fn crc64nvme(&self, blocks: Range<u64>) -> Checksum {
        if blocks.start == 0 && blocks.end as usize == self.sums.len() {
            return *self.whole.get_or_init(|| self.combined(blocks));
        }
        self.combined(blocks)
    }

    fn combined(&self, blocks: Range<u64>) -> Checksum {
        blocks.fold(empty(), |sum, block| {
            let number = self.sums[block as usize].crc64nvme.load(Ordering::Relaxed);
            let length = BLOCK_BYTES.min(self.chunk.length - block * BLOCK_BYTES);
            join(sum, Checksum::from_crc64nvme(number), length)
        })
    }
}

/// The stored sums of a run of bytes of a chunk.
#[derive(Clone)]
pub(crate) struct KnownSums {
    entry: Arc<Entry>,
    /// Where in the chunk the run begins.
    offset: u64,
}

impl KnownSums {
    /// Of `bytes`, which are the run: its whole blocks' stored sums, and its edges hashed.
    pub(crate) fn crc64nvme(&self, bytes: &[u8]) -> Checksum {
        let (start, end) = (self.offset, self.offset + bytes.len() as u64);
        let first = start.div_ceil(BLOCK_BYTES);
        let last = match end == self.entry.length() {
            true => end.div_ceil(BLOCK_BYTES),
            false => end / BLOCK_BYTES,
        };
        if first >= last {
            return hashed(bytes);
        }
        let within = |offset: u64| (offset - start) as usize;
        let (head, tail) = (within(first * BLOCK_BYTES), within(end.min(last * BLOCK_BYTES)));
        let mut sum = self.entry.crc64nvme(first..last);
        if head > 0 {
            sum = join(hashed(&bytes[..head]), sum, (tail - head) as u64);
        }
        if tail < bytes.len() {
            sum = join(sum, hashed(&bytes[tail..]), (bytes.len() - tail) as u64);
        }
        sum
    }
}

impl std::fmt::Debug for KnownSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KnownSums").field(&self.entry.chunk).field(&self.offset).finish()
    }
}

fn empty() -> Checksum {
    hashed(&[])
}

fn hashed(bytes: &[u8]) -> Checksum {
    Checksum::of(ChecksumKind::Crc64Nvme, bytes)
}

fn join(left: Checksum, right: Checksum, right_length: u64) -> Checksum {
    left.combine(&right, right_length).expect("both are CRC64NVME")
}

#[cfg(test)]
mod tests {
    use keyway_fabric::memory::{Arena, HugePages};
    use proptest::prelude::*;

    use super::*;

    const LENGTH: u64 = 20 * BLOCK_BYTES + 777;

    /// In one extent, or in several.
    fn entry(split: bool) -> (Arc<Entry>, Vec<u8>) {
        let arena = Arena::map(4 << 20, HugePages::Off).expect("memory");
        let lengths = match split {
            false => vec![LENGTH],
            true => vec![16 * BLOCK_BYTES, 4 * BLOCK_BYTES, 777],
        };
        let extents = lengths.iter().map(|length| arena.extent(*length as usize).expect("free"));
        let chunk = ChunkSpec { id: ChunkId::generate(), length: LENGTH };
        let entry = Arc::new(Entry::new(chunk, extents.collect()));
        let content: Vec<u8> = (0..LENGTH).map(|at| (at ^ at >> 7 ^ at >> 16) as u8).collect();
        (entry, content)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// A frame is the range's bytes, as many as are there in a row, and tells their sum.
        #[test]
        fn frames_are_the_bytes_and_know_their_sum(
            split: bool,
            missing in prop::collection::btree_set(0..21u64, 0..4),
            ranges in prop::collection::vec((0..LENGTH, 1..LENGTH), 20),
        ) {
            let (entry, content) = entry(split);
            for (block, bytes) in content.chunks(BLOCK).enumerate() {
                if !missing.contains(&(block as u64)) {
                    entry.fill(block as u64 * BLOCK_BYTES, bytes, block_sum(bytes));
                }
            }
            for (offset, length) in ranges {
                let range = ByteRange::new(offset, length.min(LENGTH - offset)).expect("inside");
                let here = missing.range(offset / BLOCK_BYTES..).next();
                let end = here.map_or(range.end(), |block| range.end().min(block * BLOCK_BYTES));
                let expected = end.saturating_sub(offset);
                prop_assert_eq!(entry.has_all(range), expected == range.length());
                prop_assert!(entry.damage(range).is_none());
                let around = entry.run_around(range);
                if let Some((begin, run)) = &around {
                    let from = (offset - begin) as usize;
                    let bytes = &content[offset as usize..range.end() as usize];
                    prop_assert_eq!(&run[from..from + bytes.len()], bytes);
                }
                if !split {
                    prop_assert_eq!(around.is_some(), expected == range.length());
                }
                let Some(frame) = entry.frame(range) else {
                    prop_assert_eq!(expected, 0);
                    continue;
                };
                let found = frame.len() as u64;
                if split {
                    let border = [16 * BLOCK_BYTES, 20 * BLOCK_BYTES, LENGTH];
                    let border = border.into_iter().find(|border| offset < *border);
                    prop_assert_eq!(offset + found, end.min(border.expect("inside")));
                } else {
                    prop_assert_eq!(found, expected);
                }
                let bytes = &content[offset as usize..(offset + found) as usize];
                prop_assert_eq!(&frame[..], bytes);
                prop_assert_eq!(frame.crc64nvme(), Some(hashed(bytes)));
            }
        }
    }

    /// Goal: bytes that a device has put here are known by the checksum of their source, and
    /// block by block once that was found to be theirs; other bytes are found out.
    #[test]
    fn what_has_landed_is_summed_later() {
        for is_bent in [false, true] {
            let (filled, content) = entry(true);
            for (block, bytes) in content.chunks(BLOCK).enumerate() {
                filled.fill(block as u64 * BLOCK_BYTES, bytes, block_sum(bytes));
            }
            let filled = Arc::into_inner(filled).expect("the only one");
            let extents = filled.extents.into_iter().filter_map(Arc::into_inner).collect();
            let source = if is_bent { hashed(&content[1..]) } else { hashed(&content) };
            let entry = Arc::new(Entry::landed(filled.chunk, extents, source));
            let part = ByteRange::new(BLOCK_BYTES, 2 * BLOCK_BYTES).expect("inside");
            assert!(entry.frame(part).expect("filled").crc64nvme().is_none());
            for (block, bytes) in content.chunks(BLOCK).enumerate() {
                assert!(entry.check_block(block as u64 * BLOCK_BYTES, bytes, block_sum(bytes)));
            }
            assert_eq!(entry.check_whole().is_err(), is_bent);
            let known = entry.frame(part).expect("filled").crc64nvme();
            let bytes = &content[part.offset() as usize..part.end() as usize];
            assert_eq!(known, (!is_bent).then(|| hashed(bytes)));
            assert_eq!(entry.check_block(0, b"other", block_sum(b"other")), is_bent);
        }
    }

    #[test]
    fn damage_is_found_in_its_block() {
        let (entry, content) = entry(true);
        for (block, bytes) in content.chunks(BLOCK).enumerate() {
            let sum = block_sum(bytes) ^ u32::from(block == 17);
            entry.fill(block as u64 * BLOCK_BYTES, bytes, sum);
        }
        assert_eq!(entry.damage(ByteRange::whole(LENGTH)), Some(17 * BLOCK_BYTES));
        assert_eq!(entry.damage(ByteRange::whole(17 * BLOCK_BYTES)), None);
    }
}
