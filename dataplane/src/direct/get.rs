//! GET: extents → leases → RDMA WRITE.
//!
//! Sketch, per MiB: one device read into a lease, one pass of CRC32C (the blocks' own sums)
//! and one of CRC64NVME while the bytes are in cache, four WRITEs of 256 KiB with one
//! doorbell, one completion. No byte is copied. Reads run ahead of the writes, and up to
//! [`BATCHES_IN_FLIGHT`] batches of writes ahead of the adapter. What bounds it: the slower of
//! drive and link.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::StreamExt as _;
use keyway_fabric::memory::{LeaseClass, LeasePool};
use keyway_fabric::verbs::{Batch, Registration};
use keyway_proto::checksum::MultiHasher;
use keyway_proto::key::Revoker;
use keyway_proto::{DigestSet, Digests, GetPlan, SessionToken};

use super::execute::Needs;
use super::remote::RemoteCursor;
use super::session::Session;
use crate::engine::{Turn, start_get};
use crate::node::{Delivery, DirectError};

/// Bytes after which a batch is posted.
const BATCH_BYTES: u64 = 1 << 20;
/// Requests after which it is, however small: a quarter of a node's send queue.
const BATCH_REQUESTS: usize = 32;
/// Batches posted and not completed. Their leases come on top of those of the reads.
const BATCHES_IN_FLIGHT: usize = 4;

/// What is left to be posted, with the digests of all bytes.
pub(super) struct Tail {
    pub(super) batch: Batch,
    pub(super) digests: Digests,
    /// Holds the transfer's turn.
    pub(super) delivery: Delivery,
}

pub(super) async fn run(
    plan: &GetPlan,
    digests: DigestSet,
    target: &SessionToken,
    session: &Session,
    needs: &Needs,
    turn: Turn,
) -> Result<Tail, DirectError> {
    let buffers = &session.domain.buffers;
    let mut delivery = start_get(plan, &*needs.store, &needs.pool, turn, &needs.counters).await?;
    let mut cursor = RemoteCursor::new(target);
    let mut hasher = MultiHasher::new(digests);
    let mut posted = VecDeque::with_capacity(BATCHES_IN_FLIGHT);
    let (mut batch, mut batched, mut left) = (Batch::default(), 0, delivery.length);
    while let Some(frame) = delivery.body.next().await {
        let frame = frame?;
        hasher.update(&frame);
        batched += frame.len() as u64;
        left = left.saturating_sub(frame.len() as u64);
        let mut frame = registered(frame, buffers, &needs.pool).await;
        for run in cursor.take(frame.len() as u32) {
            batch.write(buffers, frame.split_to(run.length as usize), run.address, run.key);
        }
        // The last batch goes with the invalidation.
        if left > 0 && (batched >= BATCH_BYTES || batch.len() >= BATCH_REQUESTS) {
            if posted.len() == BATCHES_IN_FLIGHT
                && let Some(oldest) = posted.pop_front()
            {
                session.link.landed(oldest).await?;
            }
            posted.push_back(session.link.begin(std::mem::take(&mut batch)).await?);
            batched = 0;
        }
    }
    if left > 0 {
        return Err(DirectError::InvalidPlan("the plan is longer than its chunks"));
    }
    if session.strength.revoker() == Revoker::Client && !batch.is_empty() {
        // The client ends the key as soon as it hears of this: all must have arrived.
        session.link.post(std::mem::take(&mut batch)).await?;
    }
    Ok(Tail { batch, digests: hasher.finish(), delivery })
}

/// The bytes in memory that the adapter knows: a copy where the store's own is elsewhere, as
/// the memory store's is.
async fn registered(bytes: Bytes, buffers: &Registration, pool: &LeasePool) -> Bytes {
    if buffers.covers(bytes.as_ptr() as u64, bytes.len()) {
        return bytes;
    }
    let class = LeaseClass::fitting(bytes.len()).expect("frames are smaller than leases");
    let mut lease = pool.lease(class).await;
    lease[..bytes.len()].copy_from_slice(&bytes);
    lease.into_bytes(0..bytes.len())
}
