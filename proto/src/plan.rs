//! What a gateway asks of a storage node: a plan that names chunks, never objects.
//!
//! The gateway has authenticated, authorised and resolved the request before it writes a
//! plan; the node checks the plan's shape and executes it, and knows no tenant's names.

use crate::checksum::DigestSet;
use crate::data_key::DataKey;
use crate::durability::Durability;
use crate::id::{ChunkId, TenantId, TransferId};
use crate::range::ByteRange;
use crate::seal::SEALED_CHUNK_BYTES_MAX;
use crate::unit::CHUNK_BYTES_MAX;
use crate::verification::Verification;
use crate::weight::Weight;

/// Reads pieces of chunks, in order, as one run of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPlan {
    /// The transfer that the receipt will name.
    pub transfer: TransferId,
    /// Whose bytes they are, for admission and accounting.
    pub tenant: TenantId,
    /// The tenant's share of the node, beside others that want it.
    pub weight: Weight,
    /// The pieces, delivered in this order.
    pub pieces: Vec<Piece>,
    /// When they are compared with their checksums.
    pub verification: Verification,
    /// What the chunks are encrypted under, where they are.
    pub key: Option<DataKey>,
}

impl GetPlan {
    /// Bytes that the plan delivers.
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.range.length()).sum()
    }
}

/// A byte range of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The chunk.
    pub chunk: ChunkId,
    /// The bytes of it, counted from the chunk's first.
    pub range: ByteRange,
}

/// Stores one run of bytes as chunks, all as durable as asked for before the receipt is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutPlan {
    /// The transfer that the receipt will name.
    pub transfer: TransferId,
    /// Whose bytes they will be, for admission and accounting.
    pub tenant: TenantId,
    /// The tenant's share of the node, beside others that want it.
    pub weight: Weight,
    /// The chunks to fill, in order.
    pub chunks: Vec<ChunkSpec>,
    /// The digests of the whole run that the receipt must carry.
    pub digests: DigestSet,
    /// Whether the receipt may come before the bytes are on the device. A node that has no room
    /// for that in its memory writes them first.
    pub durability: Durability,
    /// What the chunks are to be encrypted under, if they are.
    pub key: Option<DataKey>,
}

impl PutPlan {
    /// Bytes that the plan stores.
    pub fn length(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.length).sum()
    }

    /// Whether each chunk has bytes, and no more than one may have.
    pub fn is_sound(&self) -> bool {
        let most = if self.key.is_some() { SEALED_CHUNK_BYTES_MAX } else { CHUNK_BYTES_MAX };
        self.chunks.iter().all(|chunk| (1..=most).contains(&chunk.length))
    }
}

/// A chunk to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSpec {
    /// Its id, never used before.
    pub id: ChunkId,
    /// Its bytes: 1 to [`CHUNK_BYTES_MAX`]. In a plan with a key, those of the object.
    pub length: u64,
}

/// Lengths of the chunks that `length` bytes are cut into: as many of [`CHUNK_BYTES_MAX`]
/// as fit, then the rest. Yields nothing for an empty object.
pub fn chunk_lengths(length: u64) -> impl Iterator<Item = u64> {
    lengths(length, CHUNK_BYTES_MAX)
}

pub(crate) fn lengths(length: u64, most: u64) -> impl Iterator<Item = u64> {
    let rest = length % most;
    (0..length / most).map(move |_| most).chain((rest > 0).then_some(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up() {
        for length in [0, 1, CHUNK_BYTES_MAX - 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX * 3 + 7] {
            let chunks: Vec<u64> = chunk_lengths(length).collect();
            assert_eq!(chunks.iter().sum::<u64>(), length);
            assert!(chunks.iter().all(|c| (1..=CHUNK_BYTES_MAX).contains(c)));
        }
    }
}
