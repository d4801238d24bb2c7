//! Encryption of chunks: AES-256-GCM, block by block, under a key of the chunk's own.
//!
//! Sketch, per MiB: one pass of AES-GCM in place (some 250 µs on a core with AES instructions),
//! on top of what the bytes cost without it. Nothing is allocated but the key's schedule, once for
//! each chunk of a transfer. What is longer than [`INLINE_BYTES_MAX`] is opened on a blocking
//! thread, so that several reads are opened side by side and no worker waits.
//!
//! A chunk is written once and its id is never used again. So the chunk's key follows from the
//! object's data key and the id (HKDF-SHA256), the nonce is the block's number in the chunk, and
//! nothing but the blocks and their tags is stored. A block that is bent, in another place, of
//! another chunk or another object does not open.
//! docs/decisions/0014-server-side-encryption.md gives the reasons; `keyway_proto::seal` says how
//! the blocks lie.
//!
//! What may not enter: where data keys come from.

use keyway_proto::seal::{SEALED_BYTES, TAG_BYTES};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ChunkId, DataKey};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

mod sealed;

pub(crate) use sealed::Sealed;

/// Most bytes that are opened in place of a blocking thread: some tens of microseconds.
pub(crate) const INLINE_BYTES_MAX: usize = 128 << 10;

/// What the keys of chunks are derived for.
const PURPOSE: &[u8] = b"keyway chunk key v1";

const BLOCK: usize = BLOCK_BYTES as usize;
const PLAIN: usize = SEALED_BYTES as usize;
const TAG: usize = TAG_BYTES as usize;
const _: () = assert!(TAG == ring::aead::MAX_TAG_LEN);

/// The key of one chunk.
pub(crate) struct ChunkCipher {
    key: LessSafeKey,
}

/// A block is not what was sealed under this key in this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOpened {
    /// The block's number in the chunk.
    pub(crate) block: u64,
}

impl ChunkCipher {
    /// The cipher of a chunk under its object's key.
    pub(crate) fn new(key: &DataKey, chunk: ChunkId) -> Self {
        let derived = Salt::new(HKDF_SHA256, PURPOSE).extract(key.expose());
        let id = chunk.to_bytes();
        let info = [&id[..]];
        let derived = derived.expand(&info, &AES_256_GCM).expect("a key is short");
        Self { key: LessSafeKey::new(UnboundKey::from(derived)) }
    }

    /// Encrypts a stored block in place: its last bytes, where the tag goes, hold nothing before.
    ///
    /// # Panics
    /// When the block has no byte but its tag's.
    pub(crate) fn seal(&self, block: u64, bytes: &mut [u8]) {
        assert!(bytes.len() > TAG && bytes.len() <= BLOCK, "a block has bytes of the object");
        let (plain, tag) = bytes.split_at_mut(bytes.len() - TAG);
        let sealed = self.key.seal_in_place_separate_tag(nonce(block), Aad::empty(), plain);
        tag.copy_from_slice(sealed.expect("a block is short").as_ref());
    }

    /// Decrypts the first `length` bytes of `bytes`, which are stored blocks of the chunk from
    /// `first` on, so that the object's bytes lie there one behind the other from the first on; and
    /// tells how many those are. None of them is meant to be looked at unless all blocks open.
    ///
    /// # Errors
    /// [`NotOpened`] names the first block that does not.
    pub(crate) fn open(
        &self,
        first: u64,
        bytes: &mut [u8],
        length: usize,
    ) -> Result<usize, NotOpened> {
        let mut opened = 0;
        for (block, start) in (first..).zip((0..length).step_by(BLOCK)) {
            let not_opened = NotOpened { block };
            let end = (start + BLOCK).min(length).checked_sub(TAG).filter(|end| *end > start);
            let end = end.ok_or(not_opened)?;
            let mut tag = [0; TAG];
            tag.copy_from_slice(&bytes[end..end + TAG]);
            // Each block moves up to where the one before it ends.
            let place = &mut bytes[opened..end];
            let ciphertext = start - opened..;
            self.key
                .open_in_place_separate_tag(
                    nonce(block),
                    Aad::empty(),
                    Tag::from(tag),
                    place,
                    ciphertext,
                )
                .map_err(|_| not_opened)?;
            opened += end - start;
        }
        Ok(opened)
    }

    /// Encrypts the first `length` bytes of `bytes` into stored blocks from `first` on, in place:
    /// each moves down to where its block begins. Shows each block when it is sealed, the last one
    /// first.
    ///
    /// # Panics
    /// When the blocks do not fit.
    pub(crate) fn spread(
        &self,
        first: u64,
        bytes: &mut [u8],
        length: usize,
        mut sealed: impl FnMut(&[u8]),
    ) {
        for block in (0..length.div_ceil(PLAIN)).rev() {
            let from = block * PLAIN;
            let to = (from + PLAIN).min(length);
            let start = block * BLOCK;
            bytes.copy_within(from..to, start);
            let stored = &mut bytes[start..start + (to - from) + TAG];
            self.seal(first + block as u64, stored);
            sealed(stored);
        }
    }
}

/// The nonce of a block: no other block of the chunk has its number, no other chunk its key.
fn nonce(block: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&block.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use keyway_proto::seal::stored_length;
    use proptest::prelude::*;

    use super::*;

    fn chunk(byte: u8) -> ChunkId {
        ChunkId::from_bytes([byte; 16])
    }

    fn key(byte: u8) -> DataKey {
        DataKey::from_slice(&[byte; 32]).expect("32 bytes")
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
    }

    fn spread(cipher: &ChunkCipher, first: u64, plain: &[u8]) -> Vec<u8> {
        let mut bytes = plain.to_vec();
        bytes.resize(stored_length(plain.len() as u64) as usize, 0);
        let mut blocks = Vec::new();
        cipher.spread(first, &mut bytes, plain.len(), |block| blocks.push(block.to_vec()));
        blocks.reverse();
        assert_eq!(blocks.concat(), bytes);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Goal: what is sealed opens again, wherever in the chunk it lies, and does not show.
        #[test]
        fn what_is_sealed_opens(length in 1usize..200_000, first in 0u64..256) {
            let (cipher, plain) = (ChunkCipher::new(&key(1), chunk(3)), content(length));
            let mut bytes = spread(&cipher, first, &plain);
            let stored = bytes.len();
            if length >= 16 {
                prop_assert!(!bytes.windows(16).any(|run| run == &plain[..16]));
            }
            prop_assert_eq!(cipher.open(first, &mut bytes, stored), Ok(length));
            prop_assert!(bytes[..length] == plain[..]);
        }

        /// Goal: no bit can be turned, in bytes or tags, without its block being refused.
        #[test]
        fn a_turned_bit_is_refused(
            length in 1usize..200_000,
            at: prop::sample::Index,
            bit in 0u8..8,
            in_tag: bool,
        ) {
            let (cipher, plain) = (ChunkCipher::new(&key(1), chunk(3)), content(length));
            let mut bytes = spread(&cipher, 0, &plain);
            let stored = bytes.len();
            let mut at = at.index(stored);
            if in_tag {
                let end = (at / BLOCK * BLOCK + BLOCK).min(stored);
                at = end - 1 - at % TAG;
            }
            bytes[at] ^= 1 << bit;
            let block = (at / BLOCK) as u64;
            prop_assert_eq!(cipher.open(0, &mut bytes, stored), Err(NotOpened { block }));
        }
    }

    #[test]
    fn a_block_opens_in_its_place_alone() {
        let (cipher, plain) = (ChunkCipher::new(&key(1), chunk(3)), content(3 * PLAIN));
        let sealed = spread(&cipher, 0, &plain);
        let refused = |block| Err(NotOpened { block });
        // Two blocks of the chunk swapped, one left out, and all of them elsewhere.
        let mut swapped = sealed.clone();
        swapped[..2 * BLOCK].rotate_left(BLOCK);
        assert_eq!(cipher.open(0, &mut swapped, 3 * BLOCK), refused(0));
        let mut shorter = [&sealed[..BLOCK], &sealed[2 * BLOCK..]].concat();
        assert_eq!(cipher.open(0, &mut shorter, 2 * BLOCK), refused(1));
        assert_eq!(cipher.open(1, &mut sealed.clone(), 3 * BLOCK), refused(1));
        // The same blocks under another chunk's id, and under another object's key.
        let other = ChunkCipher::new(&key(1), chunk(4));
        assert_eq!(other.open(0, &mut sealed.clone(), 3 * BLOCK), refused(0));
        let other = ChunkCipher::new(&key(2), chunk(3));
        assert_eq!(other.open(0, &mut sealed.clone(), 3 * BLOCK), refused(0));
        // Cut within a block, down to a tag and less.
        for length in [1, TAG, TAG + 1, BLOCK - 1] {
            assert_eq!(cipher.open(0, &mut sealed.clone(), length), refused(0), "{length}");
        }
        let mut sealed = sealed;
        assert_eq!(cipher.open(0, &mut sealed, 3 * BLOCK), Ok(3 * PLAIN));
    }

    /// The format is what devices hold: it does not change unnoticed.
    #[test]
    fn the_format_stays() {
        let mut bytes = b"keyway".to_vec();
        bytes.resize(6 + TAG, 0);
        ChunkCipher::new(&key(1), chunk(3)).seal(5, &mut bytes);
        assert_eq!(hex_of(&bytes), EXPECTED);
    }

    /// What another implementation of HKDF and AES-GCM makes of the same.
    const EXPECTED: &str = "d1f10e7cfd012bf22bfdd89cabd52e0e3918a0788428";

    fn hex_of(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
