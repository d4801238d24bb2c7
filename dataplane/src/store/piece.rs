//! Pieces: leased buffers on their way to the store, with a CRC32C per block.
//!
//! Each byte is copied once, out of the network's frame, and summed when its block is
//! complete, while the block is still in the processor's cache. A block of an encrypted chunk is
//! encrypted then, and summed as it is stored.

use std::sync::Arc;

use crc_fast::CrcAlgorithm;
use keyway_fabric::memory::{Lease, LeaseClass, LeasePool};
use keyway_proto::seal::{TAG_BYTES, stored_length};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, ChunkId};

use super::StoreError;
use crate::cipher::ChunkCipher;

/// Largest piece: one lease of the largest class.
pub const PIECE_BYTES_MAX: usize = LeaseClass::Unit.bytes();

/// Largest chunk that is always handed over in one piece.
pub const SINGLE_PIECE_BYTES_MAX: u64 = 512 << 10;

/// What devices read and write whole.
const PAGE: usize = keyway_fabric::memory::PAGE_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;
const _: () = assert!(PIECE_BYTES_MAX.is_multiple_of(BLOCK));

/// A run of a chunk's bytes in a lease, being filled or full.
pub struct Piece {
    lease: Lease,
    room: usize,
    filled: usize,
    sums: Vec<u32>,
    /// What each block is encrypted with when it is complete, where it is.
    sealer: Option<Sealer>,
}

/// The cipher of a piece's chunk, and where in the chunk the piece begins.
#[derive(Clone)]
pub(crate) struct Sealer {
    pub(crate) cipher: Arc<ChunkCipher>,
    /// The number of its first block.
    pub(crate) first: u64,
}

impl Sealer {
    /// For the piece that begins at this stored byte of its chunk.
    pub(crate) fn at(cipher: &Arc<ChunkCipher>, stored: u64) -> Self {
        Self { cipher: Arc::clone(cipher), first: stored / BLOCK_BYTES }
    }
}

impl Piece {
    /// An empty piece that takes at most `room` bytes.
    ///
    /// # Panics
    /// When the lease is smaller than `room`.
    pub fn new(lease: Lease, room: usize) -> Self {
        assert!(room <= lease.len(), "a piece fits its lease");
        let sums = Vec::with_capacity(room.div_ceil(BLOCK));
        Self { lease, room, filled: 0, sums, sealer: None }
    }

    /// An empty piece of an encrypted chunk that takes at most `room` stored bytes.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn sealing(lease: Lease, room: usize, sealer: Sealer) -> Self {
        Self { sealer: Some(sealer), ..Self::new(lease, room) }
    }

    /// A piece of an encrypted chunk, of `bytes` bytes of the object that a device has put into the
    /// lease.
    ///
    /// # Panics
    /// When the lease is smaller than they are with their tags.
    pub(crate) fn landed_sealed(lease: Lease, bytes: usize, sealer: &Sealer) -> Self {
        let mut piece = Self::new(lease, stored_length(bytes as u64) as usize);
        let (sums, lease) = (&mut piece.sums, &mut piece.lease);
        let sum = |block: &[u8]| sums.push(block_sum(block));
        sealer.cipher.spread(sealer.first, lease, bytes, sum);
        // The last block was the first.
        piece.sums.reverse();
        piece.filled = piece.room;
        piece
    }

    /// A piece of `bytes` bytes that a device has put into the lease.
    ///
    /// # Panics
    /// When the lease is smaller.
    pub fn landed(lease: Lease, bytes: usize) -> Self {
        let mut piece = Self::new(lease, bytes);
        piece.filled = bytes;
        piece.sum_blocks();
        piece
    }

    /// Copies as much of `bytes` as fits and tells how much that was.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        if self.sealer.is_some() {
            return self.append_sealed(bytes);
        }
        let taken = bytes.len().min(self.room - self.filled);
        self.lease[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        self.sum_blocks();
        taken
    }

    /// Whether no more bytes fit.
    pub fn is_full(&self) -> bool {
        self.filled == self.room
    }

    /// Bytes in the piece, as they are stored.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether the piece holds no byte.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The bytes, as they are stored.
    pub fn bytes(&self) -> &[u8] {
        &self.lease[..self.filled]
    }

    /// The CRC32C of each block that is complete.
    pub fn sums(&self) -> &[u32] {
        &self.sums
    }

    /// The lease, the number of bytes in it, and the CRC32C of each block.
    ///
    /// # Panics
    /// When the piece is not full: its last block has no sum yet.
    pub fn into_parts(self) -> (Lease, usize, Vec<u32>) {
        assert!(self.is_full(), "only full pieces are written");
        (self.lease, self.filled, self.sums)
    }

    fn append_sealed(&mut self, bytes: &[u8]) -> usize {
        let Some(sealer) = &self.sealer else { return 0 };
        let mut taken = 0;
        while taken < bytes.len() && self.filled < self.room {
            let start = self.sums.len() * BLOCK;
            let end = (start + BLOCK).min(self.room);
            let tag = end - TAG_BYTES as usize;
            let part = (bytes.len() - taken).min(tag - self.filled);
            self.lease[self.filled..self.filled + part]
                .copy_from_slice(&bytes[taken..taken + part]);
            (taken, self.filled) = (taken + part, self.filled + part);
            if self.filled == tag {
                let block = &mut self.lease[start..end];
                sealer.cipher.seal(sealer.first + self.sums.len() as u64, block);
                self.sums.push(block_sum(block));
                self.filled = end;
            }
        }
        taken
    }

    fn sum_blocks(&mut self) {
        loop {
            let start = self.sums.len() * BLOCK;
            let end = (start + BLOCK).min(self.room);
            if start >= end || self.filled < end {
                return;
            }
            self.sums.push(block_sum(&self.lease[start..end]));
        }
    }
}

/// The piece at `at` of a chunk of `length` bytes that is written: its buffer, and its bytes.
pub fn next_piece(at: u64, length: u64, pool: &LeasePool) -> (LeaseClass, usize) {
    cut(at, length, pool.is_scarce(LeaseClass::Unit))
}

/// Buffers may be scarce for one piece and not for the next. So pieces are cut at multiples of
/// their size in the chunk: none crosses a multiple of [`PIECE_BYTES_MAX`], behind which the store
/// may hold another chunk's bytes.
fn cut(at: u64, length: u64, is_scarce: bool) -> (LeaseClass, usize) {
    let room = if length <= SINGLE_PIECE_BYTES_MAX {
        length - at
    } else {
        let class = if is_scarce { LeaseClass::Medium } else { LeaseClass::Unit };
        let size = class.bytes() as u64;
        (size - at % size).min(length - at)
    };
    let room = room as usize;
    (LeaseClass::fitting(room).expect("a piece fits a lease"), room)
}

/// The CRC32C that is stored for a block.
pub fn block_sum(block: &[u8]) -> u32 {
    // A 32-bit algorithm's value lies in the low half.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// `range` widened to the blocks it touches, in a chunk of `length` bytes.
pub fn block_span(range: ByteRange, length: u64) -> ByteRange {
    let start = range.offset() / BLOCK_BYTES * BLOCK_BYTES;
    let end = range.end().next_multiple_of(BLOCK_BYTES).min(length);
    ByteRange::new(start, end.max(start) - start).expect("the span lies inside the chunk")
}

/// The class of lease that reading `range` of a chunk of `length` bytes takes.
///
/// # Panics
/// When the range, widened to whole blocks, is longer than a piece.
pub fn read_class(range: ByteRange, length: u64) -> LeaseClass {
    let bytes = (block_span(range, length).length() as usize).next_multiple_of(PAGE);
    LeaseClass::fitting(bytes).expect("a read is at most one piece")
}

/// Compares bytes that begin at the block boundary `offset` of a chunk with the chunk's sums.
///
/// # Errors
/// [`StoreError::Damaged`] at the first block that differs or has no sum.
pub fn verify_blocks(
    chunk: ChunkId,
    offset: u64,
    bytes: &[u8],
    sums: &[u32],
) -> Result<(), StoreError> {
    let first = (offset / BLOCK_BYTES) as usize;
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        if sums.get(first + index) != Some(&block_sum(block)) {
            let offset = offset + (index * BLOCK) as u64;
            return Err(StoreError::Damaged { chunk, offset });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use keyway_proto::unit::CHUNK_BYTES_MAX;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the bytes arrive, the piece holds them with the sums of its blocks.
        #[test]
        fn sums_do_not_depend_on_frames(
            length in 1usize..300_000,
            frame in 1usize..100_000,
        ) {
            let pool = LeasePool::new(0).expect("memory");
            let bytes: Vec<u8> = (0..length).map(|at| ((at * 31) >> 3) as u8).collect();
            let lease = pool.try_lease(LeaseClass::Unit).expect("free");
            let mut piece = Piece::new(lease, length);
            for part in bytes.chunks(frame) {
                prop_assert_eq!(piece.append(part), part.len());
            }
            prop_assert!(piece.is_full());
            prop_assert_eq!(piece.append(b"more"), 0);
            prop_assert_eq!(piece.bytes(), &bytes[..]);
            let (_lease, _, sums) = piece.into_parts();
            let id = ChunkId::generate();
            prop_assert!(verify_blocks(id, 0, &bytes, &sums).is_ok());
            let mut bent = bytes;
            bent[length / 2] ^= 1;
            prop_assert!(verify_blocks(id, 0, &bent, &sums).is_err());
        }

        /// However buffers come and go, pieces are whole blocks but for the last, and lie in
        /// one window of the chunk.
        #[test]
        fn pieces_never_cross_a_window(
            length in 1..=CHUNK_BYTES_MAX,
            scarce in prop::collection::vec(any::<bool>(), 64),
        ) {
            let window = PIECE_BYTES_MAX as u64;
            let (mut at, mut pieces) = (0, 0);
            while at < length {
                let (class, bytes) = cut(at, length, scarce[pieces % scarce.len()]);
                let bytes = bytes as u64;
                prop_assert!(bytes >= 1 && bytes <= length - at && bytes <= class.bytes() as u64);
                prop_assert_eq!(at / window, (at + bytes - 1) / window);
                at += bytes;
                prop_assert!(at == length || bytes.is_multiple_of(BLOCK_BYTES));
                pieces += 1;
            }
            prop_assert!(length > SINGLE_PIECE_BYTES_MAX || pieces == 1);
        }
    }

    #[test]
    fn spans_cover_whole_blocks() {
        let range = ByteRange::new(BLOCK_BYTES + 1, 2).expect("fits");
        assert_eq!(
            block_span(range, u64::MAX / 2),
            ByteRange::new(BLOCK_BYTES, BLOCK_BYTES).expect("fits")
        );
        assert_eq!(
            block_span(range, BLOCK_BYTES + 7),
            ByteRange::new(BLOCK_BYTES, 7).expect("fits")
        );
    }
}
