//! What a device has read, verified as it leaves.
//!
//! Checking a block brings it into the processor's cache, and sending it to a socket reads it
//! again. So a piece is checked a frame at a time, just before that frame is taken: the second
//! pass finds the bytes in the second-level cache, where a whole piece, or several that
//! completed together, would have pushed them out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use keyway_fabric::memory::Lease;
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, ChunkId};

use super::{Frame, StoreError, block_span, verify_blocks};

/// Bytes checked and taken at once: whole blocks, a fraction of a second-level cache.
const FRAME_BYTES: u64 = 4 * BLOCK_BYTES;

/// A range that was read.
pub struct Fetched(State);

enum State {
    /// From a device, with the blocks it touches.
    Read(Blocks),
    /// From memory, verified before.
    Held(Option<Frame>),
}

/// Blocks as a device has read them.
pub(super) struct Blocks {
    chunk: ChunkId,
    /// The blocks, whole.
    blocks: Buffer,
    /// Where the blocks lie in the chunk.
    span: ByteRange,
    /// What of the range was not taken yet.
    rest: ByteRange,
    sums: Sums,
    /// Whether blocks are compared with their sums as they are taken.
    checks: bool,
    damaged_blocks: Arc<AtomicU64>,
}

/// Blocks in memory.
enum Buffer {
    /// At the front of a buffer that nobody else sees.
    Lease(Lease),
    /// Seen by others, or about to be.
    Shared(Bytes),
}

impl Buffer {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lease(lease) => lease,
            Self::Shared(bytes) => bytes,
        }
    }

    /// A part, without a copy.
    fn slice(&mut self, range: Range<usize>) -> Bytes {
        let before = std::mem::replace(self, Self::Shared(Bytes::new()));
        let bytes = match before {
            Self::Lease(lease) => {
                let length = lease.len();
                lease.into_bytes(0..length)
            }
            Self::Shared(bytes) => bytes,
        };
        let part = bytes.slice(range);
        *self = Self::Shared(bytes);
        part
    }
}

/// The stored sums of a chunk's blocks.
pub enum Sums {
    /// Of a chunk of one block.
    One(u32),
    /// Of all blocks, in order.
    All(Arc<[u32]>),
}

impl Sums {
    /// The sums, from the chunk's first block on.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(sum) => std::slice::from_ref(sum),
            Self::All(sums) => sums,
        }
    }
}

impl Fetched {
    /// `blocks` holds the blocks that `range` touches, of a chunk of `length` bytes. A block
    /// that differs from its sum is counted in `damaged_blocks`.
    ///
    /// # Panics
    /// When `blocks` is shorter than the blocks are.
    pub fn new(
        chunk: ChunkId,
        length: u64,
        range: ByteRange,
        blocks: Bytes,
        sums: Sums,
        damaged_blocks: &Arc<AtomicU64>,
    ) -> Self {
        Self::over(chunk, length, range, Buffer::Shared(blocks), sums, damaged_blocks)
    }

    /// The same at the front of a buffer.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn in_lease(
        chunk: ChunkId,
        length: u64,
        range: ByteRange,
        blocks: Lease,
        sums: Sums,
        damaged_blocks: &Arc<AtomicU64>,
    ) -> Self {
        Self::over(chunk, length, range, Buffer::Lease(blocks), sums, damaged_blocks)
    }

    fn over(
        chunk: ChunkId,
        length: u64,
        range: ByteRange,
        blocks: Buffer,
        sums: Sums,
        damaged_blocks: &Arc<AtomicU64>,
    ) -> Self {
        let span = block_span(range, length);
        assert!(blocks.bytes().len() as u64 >= span.length(), "all blocks were read");
        let damaged_blocks = Arc::clone(damaged_blocks);
        let (rest, checks) = (range, true);
        Self(State::Read(Blocks { chunk, blocks, span, rest, sums, checks, damaged_blocks }))
    }

    /// Verified blocks of a chunk that were copied to the front of a buffer.
    pub(super) fn copied(chunk: ChunkId, span: ByteRange, lease: Lease) -> Self {
        Self(State::Read(Blocks {
            chunk,
            blocks: Buffer::Lease(lease),
            span,
            rest: span,
            sums: Sums::All(Arc::default()),
            checks: false,
            damaged_blocks: Arc::default(),
        }))
    }

    /// The whole range, verified already.
    pub fn held(frame: Frame) -> Self {
        Self(State::Held(Some(frame)))
    }

    /// Compares all that is left with its sums, so that taking it cannot fail any more.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn verified(mut self) -> Result<Self, StoreError> {
        if let State::Read(blocks) = &mut self.0
            && std::mem::take(&mut blocks.checks)
        {
            blocks.verify(blocks.span.offset(), blocks.span.end())?;
        }
        Ok(self)
    }

    /// The same bytes, as the device gave them: taking them compares nothing.
    #[must_use]
    pub fn unverified(mut self) -> Self {
        if let State::Read(blocks) = &mut self.0 {
            blocks.checks = false;
        }
        self
    }

    /// The buffer with the blocks at its front; `None` when they are not in one that is the
    /// caller's alone, or some of them were taken.
    pub fn into_lease(self) -> Option<Lease> {
        match self.0 {
            State::Read(Blocks { blocks: Buffer::Lease(lease), .. }) => Some(lease),
            State::Read(_) | State::Held(_) => None,
        }
    }

    /// The blocks that a device has read; `None` when the range came out of memory.
    pub(super) fn read_blocks(&self) -> Option<&Blocks> {
        match &self.0 {
            State::Read(blocks) => Some(blocks),
            State::Held(_) => None,
        }
    }

    /// Takes the next bytes of the range; `None` when all were taken. Copies nothing. Each block is
    /// compared with its sum, unless that was waived.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when a block of theirs does not match its sum.
    pub fn next_frame(&mut self) -> Option<Result<Frame, StoreError>> {
        match &mut self.0 {
            State::Read(blocks) => blocks.next_frame(),
            State::Held(frame) => frame.take().map(Ok),
        }
    }

    /// Whether all bytes were taken.
    pub fn is_taken(&self) -> bool {
        match &self.0 {
            State::Read(blocks) => blocks.rest.is_empty(),
            State::Held(frame) => frame.is_none(),
        }
    }
}

impl Blocks {
    /// Where the blocks lie in the chunk.
    pub(super) fn span(&self) -> ByteRange {
        self.span
    }

    /// Verifies the block that begins at `offset` of the chunk and shows it with its sum.
    pub(super) fn verified(&self, offset: u64) -> Result<(&[u8], u32), StoreError> {
        let end = (offset + BLOCK_BYTES).min(self.span.end());
        let block = self.verify(offset, end)?;
        Ok((block, self.sums.as_slice()[(offset / BLOCK_BYTES) as usize]))
    }

    fn next_frame(&mut self) -> Option<Result<Frame, StoreError>> {
        if self.rest.is_empty() {
            return None;
        }
        let from = self.rest.offset();
        let boundary = (from / FRAME_BYTES + 1).saturating_mul(FRAME_BYTES);
        let to = boundary.min(self.rest.end());
        let blocks_from = from / BLOCK_BYTES * BLOCK_BYTES;
        let blocks_to = to.next_multiple_of(BLOCK_BYTES).min(self.span.end());
        if self.checks
            && let Err(error) = self.verify(blocks_from, blocks_to)
        {
            self.rest = ByteRange::whole(0);
            return Some(Err(error));
        }
        let within = self.within(from, to);
        let frame = self.blocks.slice(within);
        self.rest = ByteRange::new(to, self.rest.end() - to).expect("inside the range");
        Some(Ok(Frame::new(frame)))
    }

    /// Compares whole blocks with their sums.
    fn verify(&self, from: u64, to: u64) -> Result<&[u8], StoreError> {
        let blocks = &self.blocks.bytes()[self.within(from, to)];
        verify_blocks(self.chunk, from, blocks, self.sums.as_slice()).inspect_err(|error| {
            self.damaged_blocks.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "a stored block does not match its checksum");
        })?;
        Ok(blocks)
    }

    fn within(&self, from: u64, to: u64) -> Range<usize> {
        (from - self.span.offset()) as usize..(to - self.span.offset()) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::block_sum;
    use super::*;

    const LENGTH: u64 = 700_001;

    fn fetched(range: ByteRange, bent: Option<usize>) -> (Fetched, Vec<u8>) {
        let mut content: Vec<u8> = (0..LENGTH).map(|at| ((at * 7) >> 2) as u8).collect();
        let sums = content.chunks(BLOCK_BYTES as usize).map(block_sum).collect();
        if let Some(at) = bent {
            content[at] ^= 1;
        }
        let span = block_span(range, LENGTH);
        let blocks = Bytes::copy_from_slice(&content[span.offset() as usize..span.end() as usize]);
        let counter = Arc::new(AtomicU64::new(0));
        let id = ChunkId::generate();
        (Fetched::new(id, LENGTH, range, blocks, Sums::All(sums), &counter), content)
    }

    proptest! {
        /// The frames add up to the range, and a bent byte is noticed exactly when a block
        /// that is taken holds it; nothing of that block is given away.
        #[test]
        fn frames_add_up_and_damage_is_held_back(
            offset in 0..LENGTH,
            length in 1..LENGTH,
            bent in prop::option::of(0..LENGTH as usize),
        ) {
            let range = ByteRange::new(offset, length.min(LENGTH - offset)).expect("fits");
            let (mut fetched, content) = fetched(range, bent);
            let mut taken = Vec::new();
            let mut damage = None;
            while let Some(frame) = fetched.next_frame() {
                match frame {
                    Ok(bytes) => taken.extend_from_slice(&bytes),
                    Err(error) => damage = Some(error),
                }
            }
            let span = block_span(range, LENGTH);
            let expected = bent.filter(|at| (span.offset()..span.end()).contains(&(*at as u64)));
            prop_assert_eq!(damage.is_some(), expected.is_some());
            let end = range.offset() as usize + taken.len();
            prop_assert_eq!(&taken, &content[range.offset() as usize..end]);
            match expected {
                None => prop_assert_eq!(end as u64, range.end()),
                Some(at) => prop_assert!(end <= at / BLOCK_BYTES as usize * BLOCK_BYTES as usize
                    || end as u64 == range.offset()),
            }
        }
    }
}
