//! Bytes that can be told apart and checked: a seeded sequence, the same on every run.
//!
//! Each 8-byte word is a mix of its position and the seed (the finaliser of SplitMix64), so
//! a shifted, swapped or foreign block differs; making or checking costs about a
//! nanosecond a word.

/// Fills `bytes` with the pattern of `seed`.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = mix(seed, at as u64).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// Whether `bytes` are the pattern of `seed` from `offset` on, a multiple of 8.
pub(crate) fn matches(bytes: &[u8], seed: u64, offset: usize) -> bool {
    debug_assert!(offset.is_multiple_of(8), "words are told by their place");
    bytes.chunks(8).zip(offset as u64 / 8..).all(|(word, at)| {
        let value = mix(seed, at).to_le_bytes();
        word == &value[..word.len()]
    })
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
}
