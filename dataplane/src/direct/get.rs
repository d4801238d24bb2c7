//! GET: extents → leases → the client's memory.
//!
//! Sketch, per MiB: one device read into a lease, one pass of CRC32C (the blocks' own sums)
//! and one of CRC64NVME while the bytes are in cache; by RDMA, four WRITEs of 256 KiB with one
//! doorbell, one completion, and no byte copied by the CPU; into shared host memory, one copy.
//! What the memory tier holds is not looked at: runs as long as a batch go out of it, and the
//! checksum is combined of stored ones. Reads run ahead of the writes, and up to
//! [`BATCHES_IN_FLIGHT`] batches of writes ahead of the link; where a read must wait for its buffer,
//! all of the transfer's own are written first. What bounds it: the slower of drive and link.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use keyway_fabric::memory::{LeaseClass, LeasePool};
use keyway_proto::checksum::MultiHasher;
use keyway_proto::key::Revoker;
use keyway_proto::{ChecksumKind, DigestSet, Digests, DirectTarget, GetPlan};

use super::execute::Needs;
use super::remote::RemoteCursor;
use super::transport::Transport;
use crate::engine::{Turn, start_get};
use crate::node::DirectError;

/// Batches posted and not completed. Their leases come on top of those of the reads.
pub(super) const BATCHES_IN_FLIGHT: usize = 4;

/// What is left to be posted, with the digests of all bytes.
pub(super) struct Tail<B> {
    pub(super) batch: B,
    pub(super) digests: Digests,
    /// The transfer's turn, and what else it has until its end.
    pub(super) holds: Box<dyn Send>,
}

pub(super) async fn run<T: Transport>(
    plan: &GetPlan,
    digests: DigestSet,
    target: &DirectTarget,
    way: &T,
    revoker: Revoker,
    needs: &Needs,
    turn: Turn,
) -> Result<Tail<T::Batch>, DirectError> {
    let mut reading = start_get(plan, &*needs.store, &needs.pool, turn, &needs.counters).await?;
    let mut cursor = RemoteCursor::new(target);
    let part_bytes = way.write_bytes_max(target.windows()) as usize;
    let mut hasher = MultiHasher::new(digests);
    let wants_crc64 = digests.contains(ChecksumKind::Crc64Nvme);
    let mut posted = VecDeque::with_capacity(BATCHES_IN_FLIGHT);
    let (mut batch, mut batched, mut left) = (T::Batch::default(), 0, reading.length);
    loop {
        let frame = match reading.frames.next().now_or_never() {
            Some(frame) => frame,
            None => {
                // Nobody waits for buffers with buffers in hand: others might do the same.
                if reading.frames.waits() {
                    if T::requests(&batch) > 0 {
                        posted.push_back(way.begin(std::mem::take(&mut batch)).await?);
                        batched = 0;
                    }
                    for posted in posted.drain(..) {
                        way.landed(posted).await?;
                    }
                }
                reading.frames.next().await
            }
        };
        let Some(frame) = frame.transpose()? else { break };
        match wants_crc64.then(|| frame.crc64nvme()).flatten() {
            Some(known) => hasher.update_known(&frame, &known),
            None => hasher.update(&frame),
        }
        let mut frame = frame.into_bytes();
        while !frame.is_empty() {
            // Not all at once: links have limits, and other sessions their turns.
            let part = frame.split_to(frame.len().min(part_bytes));
            batched += part.len() as u64;
            left = left.saturating_sub(part.len() as u64);
            let mut part = reachable(part, way, &needs.pool).await;
            for run in cursor.take(part.len() as u32) {
                way.write(&mut batch, part.split_to(run.length as usize), run);
            }
            // The last batch goes with the invalidation.
            let is_full = batched >= T::BATCH_BYTES || T::requests(&batch) >= T::BATCH_REQUESTS;
            if left > 0 && is_full {
                if posted.len() == BATCHES_IN_FLIGHT
                    && let Some(oldest) = posted.pop_front()
                {
                    way.landed(oldest).await?;
                }
                posted.push_back(way.begin(std::mem::take(&mut batch)).await?);
                batched = 0;
            }
        }
    }
    if left > 0 {
        return Err(DirectError::InvalidPlan("the plan is longer than its chunks"));
    }
    if revoker != Revoker::Node && T::requests(&batch) > 0 {
        // The client ends the key, or uses the piece again, as soon as it hears of this: all must
        // have arrived.
        way.post(std::mem::take(&mut batch)).await?;
    }
    Ok(Tail { batch, digests: hasher.finish(), holds: Box::new(reading) })
}

/// The bytes in memory that the link reaches: a copy where the store's own is elsewhere, as
/// the memory store's is.
pub(super) async fn reachable(bytes: Bytes, way: &impl Transport, pool: &LeasePool) -> Bytes {
    if way.reaches(&bytes) {
        return bytes;
    }
    let class = LeaseClass::fitting(bytes.len()).expect("parts are no longer than leases");
    let mut lease = pool.lease(class).await;
    lease[..bytes.len()].copy_from_slice(&bytes);
    lease.into_bytes(0..bytes.len())
}
