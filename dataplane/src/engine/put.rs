//! PUT: a body becomes chunks, durable before the receipt unless the plan waives that.
//!
//! Sketch: every byte is copied once, from the network's frame into an aligned lease, summed
//! per block while in cache, and written by the device from there. Writes start as leases
//! fill; durability is waited for once, for all chunks together, and shared with other
//! transfers' writes. Nothing is visible before all of it is durable, and what is dropped
//! before that is given back. A chunk that may be in memory first is written there, and is
//! waited for no longer. Where the plan has a key, each block is encrypted when it is complete,
//! between the digests, which are of the object's bytes, and the block's sum, which is of what is
//! stored.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures::StreamExt as _;
use futures::future::try_join_all;
use keyway_fabric::memory::LeasePool;
use keyway_proto::seal::stored_length;
use keyway_proto::{ChunkSpec, Durability, KeyFate, KeyStrength, PutPlan, Receipt, TransferPath};

use super::digest::Digester;
use crate::cipher::ChunkCipher;
use crate::node::{Body, TransferError};
use crate::store::tier::MemoryTier;
use crate::store::{BlobStore, ChunkWriter, Piece, Sealer, StagedChunk, StoreError, next_piece};

pub(super) async fn run(
    plan: &PutPlan,
    body: Body,
    store: &dyn BlobStore,
    tier: Option<&MemoryTier>,
    pool: &LeasePool,
) -> Result<Receipt, TransferError> {
    if !plan.is_sound() {
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
        let (stored, cipher) = stored(*chunk, plan);
        let (mut writer, of_chunk) = begin_chunk(stored, plan, store, tier).await?;
        durability = durability.min(of_chunk);
        let mut at = 0;
        while at < stored.length {
            let piece = source.piece(at, stored.length, cipher.as_ref(), pool).await?;
            at += piece.len() as u64;
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

/// A chunk of the plan as the store is to have it, and what its blocks are encrypted with.
pub(crate) fn stored(chunk: ChunkSpec, plan: &PutPlan) -> (ChunkSpec, Option<Arc<ChunkCipher>>) {
    let Some(key) = &plan.key else { return (chunk, None) };
    let stored = ChunkSpec { length: stored_length(chunk.length), ..chunk };
    (stored, Some(Arc::new(ChunkCipher::new(key, chunk.id))))
}

/// Begins a stored chunk of the plan; tells how durable it is when it is sealed.
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
    /// The piece at `at` of a chunk of `length` stored bytes.
    async fn piece(
        &mut self,
        at: u64,
        length: u64,
        cipher: Option<&Arc<ChunkCipher>>,
        pool: &LeasePool,
    ) -> Result<Piece, TransferError> {
        // The body first: a client that is not sending holds no lease.
        if self.frame.is_empty() {
            self.receive().await?;
        }
        let (class, room) = next_piece(at, length, pool);
        let lease = pool.lease(class).await;
        let mut piece = match cipher {
            Some(cipher) => Piece::sealing(lease, room, Sealer::at(cipher, at)),
            None => Piece::new(lease, room),
        };
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
