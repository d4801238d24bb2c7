//! Bytes that can be told apart and checked: a seeded sequence, the same on every run.
//!
//! Each 8-byte word is a mix of its position and the seed (the finaliser of SplitMix64), so
//! a shifted, swapped or foreign block differs; making or checking costs about a
//! nanosecond a word.

use keyway_proto::checksum::Hasher;
use keyway_proto::{Checksum, ChecksumKind};

/// Bytes that are made at a time where nobody wants them whole: they stay in the cache.
const PIECE_BYTES: usize = 64 << 10;

/// Fills `bytes` with the pattern of `seed`.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    fill_from(bytes, seed, 0);
}

/// Whether `bytes` are the pattern of `seed` from `offset` on, a multiple of 8.
pub(crate) fn matches(bytes: &[u8], seed: u64, offset: usize) -> bool {
    debug_assert!(offset.is_multiple_of(8), "words are told by their place");
    bytes.chunks(8).zip(offset as u64 / 8..).all(|(word, at)| {
        let value = mix(seed, at).to_le_bytes();
        word == &value[..word.len()]
    })
}

/// The checksum of the first `bytes` bytes of the pattern of `seed`.
pub(crate) fn checksum(kind: ChecksumKind, seed: u64, bytes: u64) -> Checksum {
    let mut hasher = Hasher::new(kind);
    let mut piece = [0; PIECE_BYTES];
    for offset in (0..bytes).step_by(PIECE_BYTES) {
        let length = (bytes - offset).min(PIECE_BYTES as u64) as usize;
        fill_from(&mut piece[..length], seed, offset as usize);
        hasher.update(&piece[..length]);
    }
    hasher.finish()
}

fn fill_from(bytes: &mut [u8], seed: u64, offset: usize) {
    for (word, at) in bytes.chunks_mut(8).zip(offset as u64 / 8..) {
        let value = mix(seed, at).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

fn mix(seed: u64, at: u64) -> u64 {
    let mut word = seed.wrapping_add(at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_shifted_or_foreign_pattern_is_told() {
        let mut bytes = vec![0; 1003];
        fill(&mut bytes, 7);
        assert!(matches(&bytes, 7, 0));
        assert!(!matches(&bytes, 8, 0));
        assert!(!matches(&bytes[8..], 7, 0));
        assert!(matches(&bytes[8..], 7, 8));
        bytes[1002] ^= 1;
        assert!(!matches(&bytes, 7, 0));
    }

    #[test]
    fn the_checksum_is_that_of_the_bytes() {
        for length in [0, 1, 8, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5] {
            let mut bytes = vec![0; length];
            fill(&mut bytes, 11);
            for kind in [ChecksumKind::Crc64Nvme, ChecksumKind::Crc32c] {
                let expected = Checksum::of(kind, &bytes);
                assert_eq!(checksum(kind, 11, length as u64), expected, "{length}");
            }
        }
    }
}
