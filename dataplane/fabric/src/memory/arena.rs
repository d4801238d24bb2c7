//! Memory that holds many runs of bytes for long: the tier of hot extents.
//!
//! Sketch: one region, which devices register once, and a buddy allocator over its pages. An
//! [`Extent`] is a contiguous run of it, filled block by block, each block once, by whoever
//! comes first; what is filled never changes again and is read by any number of readers at
//! once, devices among them, without a lock. Taking and giving back an extent is some tree
//! steps under one lock; filling is one copy, and one atomic operation at each end of it.
//!
//! Invariant: an extent's pages are taken from the allocator, and belong to no other extent,
//! until it drops. An [`OpenExtent`] is its owner's alone, nobody has claimed a block of it, and
//! a device may write there as long as it lives. Of an [`Extent`], each block is written by the
//! one caller that set its bit in `claimed`, and read only after that caller has set its bit in
//! `filled`. So no byte is written while, or after, anybody may read it. The region outlives all
//! extents, since each holds the arena.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use keyway_proto::unit::BLOCK_BYTES;
use parking_lot::Mutex;

use super::buddy::{BLOCK_PAGES_MAX, Buddy};
use super::region::{HugePages, MemoryError, PAGE_BYTES, Region};
use crate::verbs::Anchor;

/// Longest extent.
pub const EXTENT_BYTES_MAX: usize = BLOCK_PAGES_MAX as usize * PAGE_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Words of a bitmap over an extent's blocks.
const WORDS: usize = EXTENT_BYTES_MAX.div_ceil(BLOCK * 64);

/// A region that extents are taken out of. Clones share it.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

/// How full an arena is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// Bytes in living extents, in whole pages.
    pub used_bytes: u64,
}

struct Shared {
    region: Region,
    pages: u32,
    free: Mutex<Buddy>,
}

impl Arena {
    /// An arena of `bytes` bytes, rounded down to pages.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses the memory, or it is too much for one arena.
    pub fn map(bytes: usize, huge_pages: HugePages) -> Result<Self, MemoryError> {
        let too_much = MemoryError::Map { bytes, source: rustix::io::Errno::NOMEM };
        let pages = u32::try_from(bytes / PAGE_BYTES).map_err(|_| too_much)?;
        let region = Region::map_with(pages as usize * PAGE_BYTES, huge_pages)?;
        Ok(Self { shared: Arc::new(Shared { region, pages, free: Mutex::new(Buddy::new(pages)) }) })
    }

    /// An extent of `bytes` bytes, nothing of it filled; `None` when no run of so many is free.
    pub fn extent(&self, bytes: usize) -> Option<Extent> {
        let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES)).ok()?;
        let first = self.shared.free.lock().take(pages)?;
        // SAFETY: the allocator gives out pages of the region.
        let base = unsafe { self.shared.region.base().add(first as usize * PAGE_BYTES) };
        let (claimed, filled) = Default::default();
        Some(Extent { base, bytes, first, claimed, filled, arena: Arc::clone(&self.shared) })
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES as u64;
        let free = self.shared.free.lock().free_pages();
        ArenaStats {
            capacity_bytes: bytes(self.shared.pages),
            used_bytes: bytes(self.shared.pages - free),
        }
    }

    /// The region that all extents lie in, for registration with a device.
    pub fn region(&self) -> &Region {
        &self.shared.region
    }

    /// The same, with what keeps it mapped.
    pub fn anchor(&self) -> Anchor {
        let region = &self.shared.region;
        let owner = Arc::clone(&self.shared);
        // SAFETY: the region is mapped as long as the arena's shared part lives.
        unsafe { Anchor::new(region.base(), region.bytes(), owner) }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// A contiguous run of an arena's memory, filled block by block and given back on drop.
pub struct Extent {
    base: NonNull<u8>,
    bytes: usize,
    first: u32,
    /// Blocks that somebody fills or has filled.
    claimed: [AtomicU64; WORDS],
    /// Blocks that can be read.
    filled: [AtomicU64; WORDS],
    arena: Arc<Shared>,
}

// SAFETY: an address range without thread affinity; access follows the invariant.
unsafe impl Send for Extent {}
// SAFETY: `&Extent` writes to a block only for whoever claimed it, and gives `&[u8]` only to
// blocks that are filled.
unsafe impl Sync for Extent {}

impl Extent {
    /// Bytes in the extent.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the extent holds no byte. None does.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Blocks in the extent; the last may be shorter.
    pub fn blocks(&self) -> usize {
        self.bytes.div_ceil(BLOCK)
    }

    /// Copies a block's bytes in, and tells whether it did: somebody else may have begun it.
    ///
    /// # Panics
    /// When `bytes` is not as long as the block.
    pub fn fill(&self, block: usize, bytes: &[u8]) -> bool {
        let place = self.place(block);
        assert_eq!(place.len(), bytes.len(), "a block is filled whole");
        let (word, bit) = (block / 64, 1 << (block % 64));
        if self.claimed[word].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return false;
        }
        // SAFETY: the place lies in the extent; whoever set the bit in `claimed` is the only one
        // to write there, and nobody reads before the bit in `filled` is set. `bytes` may not
        // overlap it: no reference to a block exists before it is filled.
        unsafe {
            let to = self.base.as_ptr().add(place.start);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.filled[word].fetch_or(bit, Ordering::Release);
        true
    }

    /// The extent for a device to write all of it; none that somebody has begun to fill.
    pub fn open(self) -> Option<OpenExtent> {
        let is_fresh = self.claimed.iter().all(|word| word.load(Ordering::Relaxed) == 0);
        is_fresh.then_some(OpenExtent { extent: self })
    }

    /// Whether a block can be read.
    pub fn is_filled(&self, block: usize) -> bool {
        let bit = 1 << (block % 64);
        self.filled.get(block / 64).is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    /// How many blocks in a row can be read from `block` on.
    pub fn filled_from(&self, block: usize) -> usize {
        let mut end = block;
        while end < self.blocks() {
            let word = self.filled[end / 64].load(Ordering::Acquire) >> (end % 64);
            let run = word.trailing_ones() as usize;
            end += run;
            if run < 64 - (end - run) % 64 {
                break;
            }
        }
        end.min(self.blocks()) - block.min(end)
    }

    /// The bytes of a range; `None` when a block that it touches is not filled, or it leaves
    /// the extent.
    pub fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        let first = range.start / BLOCK;
        if first + self.filled_from(first) < range.end.div_ceil(BLOCK) {
            return None;
        }
        // SAFETY: the range lies in the extent, and its blocks are filled: nobody writes there
        // as long as the extent lives.
        Some(unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len())
        })
    }

    /// As [`get`](Self::get), as [`Bytes`] that hold the extent, without a copy.
    pub fn bytes(self: &Arc<Self>, range: Range<usize>) -> Option<Bytes> {
        self.get(range.clone())?;
        Some(Bytes::from_owner(Filled { extent: Arc::clone(self), range }))
    }

    fn place(&self, block: usize) -> Range<usize> {
        assert!(block < self.blocks(), "the block is one of the extent's");
        block * BLOCK..((block + 1) * BLOCK).min(self.bytes)
    }
}

/// An extent of which nothing is filled, its owner's alone: what a device writes into.
pub struct OpenExtent {
    extent: Extent,
}

impl OpenExtent {
    /// The first byte's address, for a device. What the device does there is bound by this
    /// value's life: keep it until the device has let go.
    pub fn base(&self) -> NonNull<u8> {
        self.extent.base
    }

    /// The extent, all of it filled with what lies there.
    pub fn filled(self) -> Extent {
        for block in 0..self.extent.blocks() {
            let (word, bit) = (block / 64, 1 << (block % 64));
            self.extent.claimed[word].fetch_or(bit, Ordering::Relaxed);
            self.extent.filled[word].fetch_or(bit, Ordering::Release);
        }
        self.extent
    }
}

impl Deref for OpenExtent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Extent { base, bytes, .. } = self.extent;
        // SAFETY: the pages are mapped, initialised by the kernel with zeros, and ours alone.
        unsafe { std::slice::from_raw_parts(base.as_ptr(), bytes) }
    }
}

impl DerefMut for OpenExtent {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Extent { base, bytes, .. } = self.extent;
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), bytes) }
    }
}

impl fmt::Debug for OpenExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenExtent").field("bytes", &self.extent.bytes).finish_non_exhaustive()
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let pages = self.bytes.div_ceil(PAGE_BYTES) as u32;
        self.arena.free.lock().give_back(self.first, pages);
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

struct Filled {
    extent: Arc<Extent>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self.extent.get(self.range.clone()).expect("what is filled stays so")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arena(bytes: usize) -> Arena {
        Arena::map(bytes, HugePages::Transparent).expect("memory")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Exactly what was filled can be read, and reads as what was filled first.
        #[test]
        fn what_is_filled_is_read(
            length in 1..EXTENT_BYTES_MAX,
            fills in prop::collection::vec(any::<prop::sample::Index>(), 0..400),
            reads in prop::collection::vec((0..EXTENT_BYTES_MAX, 1..EXTENT_BYTES_MAX), 20),
        ) {
            let arena = arena(2 * EXTENT_BYTES_MAX);
            let extent = Arc::new(arena.extent(length).expect("free"));
            let mut filled = vec![false; extent.blocks()];
            for (mark, fill) in fills.iter().enumerate() {
                let block = fill.index(filled.len());
                let bytes = vec![block as u8; extent.place(block).len()];
                prop_assert_eq!(extent.fill(block, &bytes), !filled[block], "fill {}", mark);
                filled[block] = true;
            }
            for (start, many) in reads {
                let start = start.min(length - 1);
                let range = start..(start + many).min(length);
                let all = filled[start / BLOCK..range.end.div_ceil(BLOCK)].iter().all(|is| *is);
                let run = filled[start / BLOCK..].iter().take_while(|is| **is).count();
                prop_assert_eq!(extent.filled_from(start / BLOCK), run);
                prop_assert_eq!(extent.is_filled(start / BLOCK), filled[start / BLOCK]);
                let bytes = extent.bytes(range.clone());
                prop_assert_eq!(bytes.is_some(), all);
                for (at, byte) in range.clone().zip(bytes.iter().flatten()).step_by(4093) {
                    prop_assert_eq!(*byte, (at / BLOCK) as u8);
                }
            }
        }
    }

    /// Memory comes back with the last of those who read it.
    #[test]
    fn readers_hold_their_extent() {
        let arena = arena(EXTENT_BYTES_MAX);
        let extent = Arc::new(arena.extent(10_000).expect("free"));
        assert_eq!(arena.stats().used_bytes, 12_288);
        assert!(extent.fill(0, &[7; 10_000]));
        let bytes = extent.bytes(9..10_000).expect("filled");
        assert!(extent.bytes(0..10_001).is_none());
        drop(extent);
        let tail = bytes.slice(9_000..);
        drop(bytes);
        assert_eq!(arena.stats().used_bytes, 12_288);
        assert_eq!(tail[..], [7; 991]);
        drop(tail);
        assert_eq!(arena.stats().used_bytes, 0);
        assert!(arena.extent(EXTENT_BYTES_MAX).is_some(), "whole again");
    }

    /// What a device has written is read as it lies; nobody else has begun to fill it.
    #[test]
    fn open_extents_are_filled_whole() {
        let arena = arena(EXTENT_BYTES_MAX);
        for length in [1, BLOCK, 70 * BLOCK + 5] {
            let extent = arena.extent(length).expect("free");
            let mut open = extent.open().expect("fresh");
            assert_eq!(open.len(), length);
            open.fill(9);
            let extent = Arc::new(open.filled());
            assert_eq!(extent.filled_from(0), extent.blocks());
            assert_eq!(extent.bytes(0..length).expect("filled"), vec![9; length]);
            assert!(!extent.fill(0, &vec![1; length.min(BLOCK)]), "it was filled before");
            let extent = Arc::into_inner(extent).expect("nobody reads");
            assert!(extent.open().is_none());
            assert_eq!(arena.stats().used_bytes, 0);
        }
    }

    /// Threads that fill the same blocks at once: each block is filled by one of them, whole.
    #[test]
    fn one_filler_wins() {
        let arena = arena(EXTENT_BYTES_MAX);
        let extent = arena.extent(64 * BLOCK).expect("free");
        let wins: usize = std::thread::scope(|scope| {
            let filler = |mark: u8| {
                let extent = &extent;
                move || (0..64).filter(|block| extent.fill(*block, &[mark; BLOCK])).count()
            };
            let fillers: Vec<_> = (1..=4).map(|mark| scope.spawn(filler(mark))).collect();
            fillers.into_iter().map(|filler| filler.join().expect("no panic")).sum()
        });
        assert_eq!(wins, 64);
        for block in extent.get(0..64 * BLOCK).expect("filled").chunks(BLOCK) {
            assert!(block.iter().all(|byte| *byte == block[0] && *byte > 0));
        }
    }
}
