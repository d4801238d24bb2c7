//! A plan of many small pieces, each with a place of its own in one window.
//!
//! A chunk is named once, however many pieces are of it, and a piece has 16 bytes, in memory as
//! in a grant: a plan of 1,024 pieces is sealed and read in some microseconds.

use crate::data_key::DataKey;
use crate::id::{ChunkId, TenantId, TransferId};
use crate::range::ByteRange;
use crate::verification::Verification;
use crate::weight::Weight;

/// Most pieces of one plan. With as many chunks it still fits a grant.
pub const GATHER_PIECES_MAX: usize = 16 << 10;

/// Reads pieces of chunks, each to its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherPlan {
    /// The transfer that the receipt will name.
    pub transfer: TransferId,
    /// Whose bytes they are, for admission and accounting.
    pub tenant: TenantId,
    /// The tenant's share of the node, beside others that want it.
    pub weight: Weight,
    /// The chunks that pieces are of.
    pub chunks: Vec<ChunkId>,
    /// The pieces, in the order of their places.
    pub pieces: Vec<GatherPiece>,
    /// When they are compared with their checksums.
    pub verification: Verification,
    /// What the chunks are encrypted under, where they are. They are of one object.
    pub key: Option<DataKey>,
}

/// Some bytes of a chunk, and where they land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherPiece {
    /// The chunk, by its place in the plan's list.
    pub chunk: u32,
    /// The first byte, counted from the chunk's first.
    pub offset: u32,
    /// Bytes, at least one.
    pub length: u32,
    /// Where the first byte lands, counted from the window's first.
    pub at: u32,
}

impl GatherPlan {
    /// Bytes that the plan delivers.
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }

    /// Bytes of memory that the pieces reach, gaps included.
    pub fn memory(&self) -> u64 {
        self.pieces.last().map_or(0, GatherPiece::end)
    }

    /// Whether the pieces are of the plan's chunks, have bytes, and lie one behind the other in
    /// memory; and whether there are as many as there may be. What is in a chunk, its store knows.
    pub fn is_sound(&self) -> bool {
        let mut memory = 0;
        let mut in_order = |piece: &GatherPiece| {
            let behind = u64::from(piece.at) >= memory;
            memory = piece.end();
            behind && piece.length > 0 && (piece.chunk as usize) < self.chunks.len()
        };
        (1..=GATHER_PIECES_MAX).contains(&self.pieces.len())
            && self.chunks.len() <= self.pieces.len()
            && self.pieces.iter().all(&mut in_order)
            && memory <= u64::from(u32::MAX)
    }
}

impl GatherPiece {
    /// Bytes that a piece takes in a grant.
    pub const BYTES: usize = 16;

    /// The bytes of the chunk.
    pub fn range(&self) -> ByteRange {
        let range = ByteRange::new(u64::from(self.offset), u64::from(self.length));
        range.expect("numbers of 32 bits add up to one of 64")
    }

    /// The byte after the last, where the piece lands.
    pub fn end(&self) -> u64 {
        u64::from(self.at) + u64::from(self.length)
    }

    /// As a grant carries it.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let fields = [self.chunk, self.offset, self.length, self.at];
        let mut bytes = [0; Self::BYTES];
        for (field, to) in fields.iter().zip(bytes.as_chunks_mut::<4>().0) {
            *to = field.to_le_bytes();
        }
        bytes
    }

    /// The piece that a grant carries. Every 16 bytes are one; whether it is sound, its plan says.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (fields, _) = bytes.as_chunks::<4>();
        let [chunk, offset, length, at] = [0, 1, 2, 3].map(|at| u32::from_le_bytes(fields[at]));
        Self { chunk, offset, length, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(chunk: u32, offset: u32, length: u32, at: u32) -> GatherPiece {
        GatherPiece { chunk, offset, length, at }
    }

    fn plan(chunks: usize, pieces: &[GatherPiece]) -> GatherPlan {
        GatherPlan {
            transfer: TransferId::from_bytes([1; 16]),
            tenant: TenantId(1),
            weight: Weight::default(),
            chunks: vec![ChunkId::from_bytes([2; 16]); chunks],
            pieces: pieces.to_vec(),
            verification: Verification::default(),
            key: None,
        }
    }

    #[test]
    fn pieces_have_their_own_places() {
        let sound = plan(2, &[piece(1, 5, 10, 0), piece(0, 0, 1, 10), piece(1, 0, 4, 100)]);
        assert!(sound.is_sound());
        assert_eq!((sound.length(), sound.memory()), (15, 104));
        for (chunks, pieces) in [
            (0, &[][..]),
            (1, &[piece(1, 0, 1, 0)]),
            (2, &[piece(1, 0, 1, 0)]),
            (1, &[piece(0, 0, 0, 0)]),
            (1, &[piece(0, 0, 2, 0), piece(0, 0, 1, 1)]),
            (1, &[piece(0, 0, 2, 9), piece(0, 0, 1, 0)]),
            (1, &[piece(0, 0, 2, u32::MAX)]),
        ] {
            assert!(!plan(chunks, pieces).is_sound(), "{chunks} {pieces:?}");
        }
        let many: Vec<_> = (0..=GATHER_PIECES_MAX as u32).map(|at| piece(0, 0, 1, at)).collect();
        assert!(!plan(1, &many).is_sound() && plan(1, &many[1..]).is_sound());
    }

    #[test]
    fn bytes_are_pieces() {
        let one = piece(1, 2, 3, 0xffff_fffe);
        assert_eq!(one.to_bytes(), *b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\xfe\xff\xff\xff");
        assert_eq!(GatherPiece::from_bytes(&one.to_bytes()), one);
    }
}
