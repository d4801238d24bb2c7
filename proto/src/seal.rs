//! How an encrypted chunk lies on a device: block by block, each with its tag behind it.
//!
//! A stored block is one of the store's own, of [`BLOCK_BYTES`], and opens by itself: a range
//! reads and verifies the blocks that it touches and no byte more, and pieces, extents and
//! alignment are what they are for any chunk. The block's last [`TAG_BYTES`] are its tag, so it
//! holds [`SEALED_BYTES`] of the object; the chunk's last block is as much shorter as its bytes
//! are. Plans and rows speak of the object's bytes, stores of the stored ones; these functions
//! stand between.

use crate::plan::lengths;
use crate::range::ByteRange;
use crate::unit::{BLOCK_BYTES, CHUNK_BYTES_MAX};

/// Bytes of a block's tag.
pub const TAG_BYTES: u64 = 16;
/// Bytes of the object in a whole stored block.
pub const SEALED_BYTES: u64 = BLOCK_BYTES - TAG_BYTES;
/// Bytes of the object in the largest chunk.
pub const SEALED_CHUNK_BYTES_MAX: u64 = CHUNK_BYTES_MAX / BLOCK_BYTES * SEALED_BYTES;

/// Bytes that `length` bytes of an object take in a chunk.
pub fn stored_length(length: u64) -> u64 {
    length + length.div_ceil(SEALED_BYTES) * TAG_BYTES
}

/// Bytes of the object in a chunk of `stored` bytes; `None` when no encrypted chunk is that long.
pub fn opened_length(stored: u64) -> Option<u64> {
    let length = stored.checked_sub(stored.div_ceil(BLOCK_BYTES) * TAG_BYTES)?;
    (stored_length(length) == stored).then_some(length)
}

/// The stored blocks, whole, that a range of the object's bytes in a chunk of `stored` bytes
/// touches. The range lies in the chunk.
pub fn stored_span(range: ByteRange, stored: u64) -> ByteRange {
    let start = range.offset() / SEALED_BYTES * BLOCK_BYTES;
    let end = (range.end().div_ceil(SEALED_BYTES) * BLOCK_BYTES).min(stored);
    ByteRange::new(start, end.saturating_sub(start)).expect("the span lies in the chunk")
}

/// Where the window of `bytes` stored bytes ends that the object's byte `from` lies in, counted in
/// bytes of the object. Windows are whole blocks.
pub fn window_end(from: u64, bytes: u64) -> u64 {
    let of_window = bytes / BLOCK_BYTES * SEALED_BYTES;
    (from / of_window + 1).saturating_mul(of_window)
}

/// Lengths of the encrypted chunks that `length` bytes are cut into, in bytes of the object: as
/// many of [`SEALED_CHUNK_BYTES_MAX`] as fit, then the rest.
pub fn sealed_chunk_lengths(length: u64) -> impl Iterator<Item = u64> {
    lengths(length, SEALED_CHUNK_BYTES_MAX)
}

const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_chunk_is_as_large_as_any() {
        assert_eq!(stored_length(SEALED_CHUNK_BYTES_MAX), CHUNK_BYTES_MAX);
        assert_eq!(opened_length(CHUNK_BYTES_MAX), Some(SEALED_CHUNK_BYTES_MAX));
        for (length, stored) in [(0, 0), (1, 17), (SEALED_BYTES, BLOCK_BYTES)] {
            assert_eq!((stored_length(length), opened_length(stored)), (stored, Some(length)));
        }
        assert_eq!(stored_length(SEALED_BYTES + 1), BLOCK_BYTES + 17);
        for none in [1, 16, BLOCK_BYTES + 1, BLOCK_BYTES + 16] {
            assert_eq!(opened_length(none), None, "{none}");
        }
    }

    proptest! {
        /// Goal: the blocks of a range hold it, and none of them does not.
        #[test]
        fn spans_are_the_blocks_touched(
            length in 1..=SEALED_CHUNK_BYTES_MAX,
            from: prop::sample::Index,
            bytes: prop::sample::Index,
        ) {
            let stored = stored_length(length);
            prop_assert_eq!(opened_length(stored), Some(length));
            let offset = from.index(length as usize) as u64;
            let bytes = bytes.index((length - offset) as usize) as u64 + 1;
            let range = ByteRange::new(offset, bytes).expect("fits");
            let span = stored_span(range, stored);
            prop_assert!(span.end() <= stored && span.offset().is_multiple_of(BLOCK_BYTES));
            prop_assert_eq!(span.offset() / BLOCK_BYTES, offset / SEALED_BYTES);
            prop_assert_eq!((span.end() - 1) / BLOCK_BYTES, (range.end() - 1) / SEALED_BYTES);
            prop_assert!(span.end() == stored || span.end().is_multiple_of(BLOCK_BYTES));
            let end = window_end(offset, 1 << 20).min(length);
            let in_window = ByteRange::new(offset, end - offset).expect("fits");
            let span = stored_span(in_window, stored);
            prop_assert_eq!(span.offset() >> 20, (span.end() - 1) >> 20);
        }

        #[test]
        fn chunks_add_up(length in 0..5 * CHUNK_BYTES_MAX) {
            let chunks: Vec<u64> = sealed_chunk_lengths(length).collect();
            prop_assert_eq!(chunks.iter().sum::<u64>(), length);
            prop_assert!(chunks.iter().all(|chunk| stored_length(*chunk) <= CHUNK_BYTES_MAX));
        }
    }
}
