//! PUT: a body becomes chunks, durable before the receipt unless the plan waives that.
//!
//! Sketch: every byte is copied once, from the network's frame into an aligned lease, summed
//! per block while in cache, and written by the device from there. Writes start as leases
//! fill; durability is waited for once, for all chunks together, and shared with other
//! transfers' writes. Nothing is visible before all of it is durable, and what is dropped
//! before that is given back. A chunk that may be in memory first is written there, and is
//! waited for no longer.

use bytes::{Buf as _, Bytes};
use futures::StreamExt as _;
use futures::future::try_join_all;
use keyway_fabric::memory::{LeaseClass, LeasePool};
use keyway_proto::unit::CHUNK_BYTES_MAX;
use keyway_proto::{ChunkSpec, Durability, KeyFate, KeyStrength, PutPlan, Receipt, TransferPath};

use super::digest::Digester;
use crate::node::{Body, TransferError};
use crate::store::tier::MemoryTier;
use crate::store::{
    BlobStore, ChunkWriter, Piece, SINGLE_PIECE_BYTES_MAX, StagedChunk, StoreError,
};

pub(super) async fn run(
    plan: &PutPlan,
    body: Body,
    store: &dyn BlobStore,
    tier: Option<&MemoryTier>,
    pool: &LeasePool,
) -> Result<Receipt, TransferError> {
    if plan.chunks.iter().any(|chunk| !(1..=CHUNK_BYTES_MAX).contains(&chunk.length)) {
        return Err(TransferError::InvalidPlan("a chunk's length is out of bounds"));
    }
    let length = plan.length();
    let mut source = Source {
        body,
        frame: Bytes::new(),
        received: 0,
        expected: length,
        digester: Digester::new(plan.digests, length),
    };
    let mut seals = Vec::with_capacity(plan.chunks.len());
    let mut durability = Durability::Disk;
    for chunk in &plan.chunks {
        let (mut writer, of_chunk) = begin_chunk(*chunk, plan, store, tier).await?;
        durability = durability.min(of_chunk);
        let mut rest = chunk.length;
        while rest > 0 {
            let piece = source.piece(chunk.length, rest, pool).await?;
            rest -= piece.len() as u64;
            writer.write(piece).await?;
        }
        seals.push(writer.seal());
    }
    let digester = source.end().await?;
    let staged = try_join_all(seals).await?;
    let digests = digester.finish().await?;
    publish(staged, plan, store)?;
    Ok(Receipt {
        transfer: plan.transfer,
        bytes: length,
        digests,
        path: TransferPath::Http,
        strength: KeyStrength::Http,
        key: KeyFate::NoKey,
        durability,
    })
}

/// Begins a chunk of the plan; tells how durable it is when it is sealed.
pub(crate) async fn begin_chunk(
    chunk: ChunkSpec,
    plan: &PutPlan,
    store: &dyn BlobStore,
    tier: Option<&MemoryTier>,
) -> Result<(Box<dyn ChunkWriter>, Durability), StoreError> {
    if plan.durability == Durability::Memory
        && let Some(tier) = tier
        && let Some(writer) = tier.write_behind(chunk).await?
    {
        return Ok((Box::new(writer), Durability::Memory));
    }
    Ok((store.writer(chunk).await?, Durability::Disk))
}

pub(crate) fn publish(
    staged: Vec<Box<dyn StagedChunk>>,
    plan: &PutPlan,
    store: &dyn BlobStore,
) -> Result<(), TransferError> {
    for (published, chunk) in staged.into_iter().enumerate() {
        if let Err(error) = chunk.publish() {
            // An id that was used twice: take back what is ours, not what was there before.
            let ours: Vec<_> = plan.chunks[..published].iter().map(|chunk| chunk.id).collect();
            store.release(&ours);
            return Err(error.into());
        }
    }
    Ok(())
}

/// The body, cut into pieces.
struct Source {
    body: Body,
    /// What is left of the frame received last.
    frame: Bytes,
    received: u64,
    expected: u64,
    digester: Digester,
}

impl Source {
    /// The next piece of a chunk of `length` bytes, of which `rest` are missing.
    async fn piece(
        &mut self,
        length: u64,
        rest: u64,
        pool: &LeasePool,
    ) -> Result<Piece, TransferError> {
        // The body first: a client that is not sending holds no lease.
        if self.frame.is_empty() {
            self.receive().await?;
        }
        let (class, room) = next_piece(length, rest, pool);
        let mut piece = Piece::new(pool.lease(class).await, room);
        loop {
            let taken = piece.append(&self.frame);
            self.frame.advance(taken);
            if piece.is_full() {
                return Ok(piece);
            }
            self.receive().await?;
        }
    }

    async fn receive(&mut self) -> Result<(), TransferError> {
        debug_assert!(self.frame.is_empty(), "a frame is used up before the next");
        while self.frame.is_empty() {
            let frame = self.body.next().await.ok_or(TransferError::BodyTooShort {
                received: self.received,
                expected: self.expected,
            })??;
            self.received += frame.len() as u64;
            if self.received > self.expected {
                return Err(TransferError::BodyTooLong { expected: self.expected });
            }
            self.digester.update(&frame).await?;
            self.frame = frame;
        }
        Ok(())
    }

    /// Makes sure that nothing follows.
    async fn end(mut self) -> Result<Digester, TransferError> {
        while let Some(frame) = self.body.next().await {
            if !frame?.is_empty() {
                return Err(TransferError::BodyTooLong { expected: self.expected });
            }
        }
        Ok(self.digester)
    }
}

/// The next piece of a chunk of `length` bytes, of which `rest` are missing: its buffer, and its
/// bytes.
pub(crate) fn next_piece(length: u64, rest: u64, pool: &LeasePool) -> (LeaseClass, usize) {
    cut(length, rest, pool.is_scarce(LeaseClass::Unit))
}

/// Buffers may be scarce for one piece and not for the next. So pieces are cut at multiples of
/// their size in the chunk: none crosses a multiple of [`PIECE_BYTES_MAX`], behind which the store
/// may hold another chunk's bytes.
fn cut(length: u64, rest: u64, is_scarce: bool) -> (LeaseClass, usize) {
    let fitting = |room: u64| {
        let class = LeaseClass::fitting(room as usize).expect("a piece fits a lease");
        (class, room as usize)
    };
    if length <= SINGLE_PIECE_BYTES_MAX {
        return fitting(rest);
    }
    let class = if is_scarce { LeaseClass::Medium } else { LeaseClass::Unit };
    let size = class.bytes() as u64;
    let at = length - rest;
    fitting((size - at % size).min(rest))
}

#[cfg(test)]
mod tests {
    use keyway_proto::unit::BLOCK_BYTES;
    use proptest::prelude::*;

    use super::*;
    use crate::store::PIECE_BYTES_MAX;

    proptest! {
        /// However buffers come and go, pieces are whole blocks but for the last, and lie in
        /// one window of the chunk.
        #[test]
        fn pieces_never_cross_a_window(
            length in 1..=CHUNK_BYTES_MAX,
            scarce in prop::collection::vec(any::<bool>(), 64),
        ) {
            let window = PIECE_BYTES_MAX as u64;
            let (mut rest, mut pieces) = (length, 0);
            while rest > 0 {
                let at = length - rest;
                let (class, bytes) = cut(length, rest, scarce[pieces % scarce.len()]);
                let bytes = bytes as u64;
                prop_assert!(bytes >= 1 && bytes <= rest && bytes <= class.bytes() as u64);
                prop_assert_eq!(at / window, (at + bytes - 1) / window);
                prop_assert!(bytes == rest || bytes.is_multiple_of(BLOCK_BYTES));
                rest -= bytes;
                pieces += 1;
            }
            prop_assert!(length > SINGLE_PIECE_BYTES_MAX || pieces == 1);
        }
    }
}
