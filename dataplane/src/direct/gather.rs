//! GET of many ranges: pieces of extents, each to its place in the client's one window.
//!
//! Sketch, per piece of 4 KiB that the memory tier holds: a slice of the tier, one pass of
//! CRC64NVME (0.2 µs), one entry of a batch; and over shared memory its share of one copy, into a
//! GPU of one kernel's launch for the whole batch. By RDMA each piece is a WRITE of its own. What
//! bounds it: the tier's memory, of which every byte is read once by the CPU; for GPUs besides the
//! bus.
//!
//! The sum is over the pieces in the order of their places, which is what the client finds in
//! its memory where there are no gaps.

use std::collections::VecDeque;

use bytes::Bytes;
use keyway_proto::checksum::MultiHasher;
use keyway_proto::key::Revoker;
use keyway_proto::{ChecksumKind, DigestSet, DirectTarget, GatherPlan, RemoteWindow, Verification};

use super::execute::Needs;
use super::get::{BATCHES_IN_FLIGHT, Tail, reachable};
use super::transport::Transport;
use crate::engine::{Gathering, Run, Step, Turn};
use crate::node::DirectError;

/// Bytes of buffers after which a batch is begun, however few of their bytes are wanted.
const LEASED_BYTES_MAX: usize = 4 << 20;

/// Bytes summed before other tasks of the thread get their turn.
const SUMMED_AT_ONCE_BYTES: u64 = 1 << 20;

pub(super) async fn run<T: Transport>(
    plan: &GatherPlan,
    digests: DigestSet,
    target: &DirectTarget,
    way: &T,
    revoker: Revoker,
    needs: &Needs,
    turn: Turn,
) -> Result<Tail<T::Batch>, DirectError> {
    let [window] = target.windows() else {
        return Err(DirectError::InvalidPlan("pieces have places in one window"));
    };
    if plan.verification == Verification::BeforeDelivery {
        Gathering::check(plan, &*needs.store, &needs.pool).await?;
    }
    let mut gathering = Gathering::start(plan, &*needs.store, &needs.pool, Some(turn))?;
    let mut writes = Writes::new(way);
    let mut hasher = MultiHasher::new(digests);
    let wants_crc64 = digests.contains(ChecksumKind::Crc64Nvme);
    let (mut left, mut summed) = (plan.length(), 0);
    loop {
        let Run { mut at, frame, lease_bytes } = match gathering.next().await? {
            Step::Run(run) => run,
            Step::Scarce => {
                writes.landed().await?;
                gathering.wait().await?;
                continue;
            }
            Step::End => break,
        };
        match wants_crc64.then(|| frame.crc64nvme()).flatten() {
            Some(known) => hasher.update_known(&frame, &known),
            None => hasher.update(&frame),
        }
        summed += frame.len() as u64;
        left = left.saturating_sub(frame.len() as u64);
        let mut frame = frame.into_bytes();
        while !frame.is_empty() {
            // The last batch goes with the invalidation.
            writes.begin_if_full().await?;
            let part = frame.split_to(frame.len().min(T::BATCH_BYTES as usize));
            let run = place(window, at, part.len() as u64)?;
            at += part.len() as u64;
            writes.add(reachable(part, way, &needs.pool).await, run);
        }
        writes.leased += lease_bytes;
        if summed >= SUMMED_AT_ONCE_BYTES {
            summed = 0;
            tokio::task::yield_now().await;
        }
    }
    if left > 0 {
        return Err(DirectError::InvalidPlan("the plan is longer than its pieces"));
    }
    if revoker != Revoker::Node {
        // The client ends the key as soon as it hears of this: all must have arrived.
        writes.landed().await?;
    }
    let holds = Box::new(gathering.into_turn());
    Ok(Tail { batch: writes.batch, digests: hasher.finish(), holds })
}

/// Where a run lies in the client's address space.
fn place(window: &RemoteWindow, at: u64, length: u64) -> Result<RemoteWindow, DirectError> {
    let is_inside = at + length <= u64::from(window.length);
    let length = u32::try_from(length).ok().filter(|_| is_inside);
    let length = length.ok_or(DirectError::InvalidPlan("a piece leaves the window"))?;
    Ok(RemoteWindow { address: window.address + at, length, key: window.key })
}

/// Batches of writes: one being made, and those under way.
struct Writes<'a, T: Transport> {
    way: &'a T,
    batch: T::Batch,
    bytes: u64,
    /// Bytes of the buffers that the batch may hold.
    leased: usize,
    posted: VecDeque<T::Posted>,
}

impl<'a, T: Transport> Writes<'a, T> {
    fn new(way: &'a T) -> Self {
        let posted = VecDeque::with_capacity(BATCHES_IN_FLIGHT);
        Self { way, batch: T::Batch::default(), bytes: 0, leased: 0, posted }
    }

    fn add(&mut self, bytes: Bytes, run: RemoteWindow) {
        self.bytes += bytes.len() as u64;
        self.way.write(&mut self.batch, bytes, run);
    }

    /// Begins the batch if no more is to go into it.
    async fn begin_if_full(&mut self) -> Result<(), DirectError> {
        let has_room = self.bytes < T::BATCH_BYTES && self.leased < LEASED_BYTES_MAX;
        if has_room && T::requests(&self.batch) < T::BATCH_REQUESTS {
            return Ok(());
        }
        if self.posted.len() == BATCHES_IN_FLIGHT
            && let Some(oldest) = self.posted.pop_front()
        {
            self.way.landed(oldest).await?;
        }
        self.begin().await
    }

    async fn begin(&mut self) -> Result<(), DirectError> {
        (self.bytes, self.leased) = (0, 0);
        self.posted.push_back(self.way.begin(std::mem::take(&mut self.batch)).await?);
        Ok(())
    }

    /// Waits until all that was added has landed, and no buffer of it is in use.
    async fn landed(&mut self) -> Result<(), DirectError> {
        if T::requests(&self.batch) > 0 {
            self.begin().await?;
        }
        for posted in self.posted.drain(..) {
            self.way.landed(posted).await?;
        }
        Ok(())
    }
}
