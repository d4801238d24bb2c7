//! Reading: out of memory, or through the store and into memory on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use keyway_fabric::memory::Lease;
use keyway_proto::unit::{BLOCK_BYTES, MIB};
use keyway_proto::{ByteRange, ChunkId, ChunkSpec};
use tokio::sync::watch;

use super::Shared;
use super::config::TierVerify;
use super::entry::Entry;
use super::flight::{Boarding, Flying};
use super::index::Reason;
use super::resident::HeldChunk;
use crate::store::{Fetched, Frame, PinnedChunk, Resident, StoreError, block_span, read_class};

/// Longest run that is handed out after a pass over it: some tens of microseconds.
const VERIFIED_RUN_BYTES: u64 = MIB;

/// Blocks taken in before other tasks of the thread get their turn.
const BLOCKS_IN_A_ROW: usize = 4;

/// Flights that a read waits for before it goes by itself.
const WAITS_MAX: usize = 2;

type Read = BoxFuture<'static, Result<Fetched, StoreError>>;

/// A chunk that can be read, from wherever it is. It does not hold the tier's memory: only
/// bytes on their way do.
pub(super) struct Pin {
    shared: Arc<Shared>,
    chunk: ChunkId,
    store: Arc<dyn PinnedChunk>,
    /// Whether this pin was counted as a use.
    counted: AtomicBool,
}

impl Pin {
    pub(super) fn new(shared: &Arc<Shared>, chunk: ChunkId, store: Box<dyn PinnedChunk>) -> Self {
        let counted = AtomicBool::new(false);
        Self { shared: Arc::clone(shared), chunk, store: store.into(), counted }
    }
}

impl PinnedChunk for Pin {
    fn length(&self) -> u64 {
        self.store.length()
    }

    fn held(&self, range: ByteRange) -> Option<Frame> {
        let entry = self.shared.index.find(self.chunk)?;
        let frame = self.shared.verified(&entry, range)?;
        self.shared.index.counters.hit(frame.len() as u64);
        // One use for each reader, however many pieces it takes.
        if !self.counted.swap(true, Ordering::Relaxed) {
            entry.touch();
        }
        Some(frame)
    }

    fn resident(&self) -> Option<Box<dyn Resident>> {
        let entry = self.shared.index.find(self.chunk)?;
        let is_first = !self.counted.swap(true, Ordering::Relaxed);
        Some(Box::new(HeldChunk::new(&self.shared, entry, is_first)))
    }

    fn read(&self, range: ByteRange, lease: Option<Lease>) -> Read {
        self.read_through(range, lease, Landing::Anywhere)
    }

    fn read_into(&self, blocks: ByteRange, mut lease: Lease) -> Read {
        if let Some(entry) = self.shared.index.find(self.chunk)
            && self.shared.copies_held(&entry, blocks, &mut lease)
        {
            self.shared.index.counters.hit(blocks.length());
            if !self.counted.swap(true, Ordering::Relaxed) {
                entry.touch();
            }
            return ready(Ok(Fetched::copied(self.chunk, blocks, lease))).boxed();
        }
        self.read_through(blocks, Some(lease), Landing::InLease)
    }
}

impl Pin {
    fn read_through(&self, range: ByteRange, lease: Option<Lease>, landing: Landing) -> Read {
        self.shared.index.counters.miss(range.length());
        // What this reader brings in and reads again is no use of it.
        self.counted.store(true, Ordering::Relaxed);
        let chunk = ChunkSpec { id: self.chunk, length: self.length() };
        let (store, reason) = (Arc::clone(&self.store), Reason::Read);
        self.shared.clone().read_through(store, chunk, range, lease, (reason, landing))
    }
}

/// Where a read's bytes are when it has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    /// In memory of the tier, if there is room.
    Anywhere,
    /// In the reader's own lease, whatever else.
    InLease,
}

impl Landing {
    fn read(self, store: &dyn PinnedChunk, range: ByteRange, lease: Option<Lease>) -> Read {
        match lease {
            Some(lease) if self == Self::InLease => store.read_into(range, lease),
            lease => store.read(range, lease),
        }
    }
}

impl Shared {
    /// A range that is here, compared with its sums where that is wanted.
    pub(super) fn verified(&self, entry: &Arc<Entry>, range: ByteRange) -> Option<Frame> {
        if self.config.verify == TierVerify::AtFill {
            return entry.frame(range);
        }
        let boundary = (range.offset() / VERIFIED_RUN_BYTES + 1) * VERIFIED_RUN_BYTES;
        let end = boundary.min(range.end());
        let frame = entry.frame(ByteRange::new(range.offset(), end - range.offset())?)?;
        let taken = ByteRange::new(range.offset(), frame.len() as u64)?;
        match entry.damage(taken) {
            None => Some(frame),
            Some(offset) => {
                self.throw_out(entry, offset);
                None
            }
        }
    }

    /// Copies a range that is here to the front of a buffer, compared as [`verified`] does;
    /// `false` when not all of it is here.
    ///
    /// [`verified`]: Self::verified
    pub(super) fn copies_held(
        &self,
        entry: &Arc<Entry>,
        range: ByteRange,
        lease: &mut Lease,
    ) -> bool {
        let mut at = range.offset();
        while at < range.end() {
            let rest = ByteRange::new(at, range.end() - at);
            let Some(frame) = rest.and_then(|rest| self.verified(entry, rest)) else {
                return false;
            };
            let to = (at - range.offset()) as usize;
            lease[to..to + frame.len()].copy_from_slice(&frame);
            at += frame.len() as u64;
        }
        true
    }

    /// A chunk whose bytes have changed in memory: the store still has them.
    pub(super) fn throw_out(&self, entry: &Entry, offset: u64) {
        self.index.counters.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(chunk = ?entry.id(), offset, "bytes have changed in memory");
        self.index.remove(entry.id());
    }

    /// The chunk's entry, made if `reason` lets it in and there is room.
    fn admit(&self, chunk: ChunkSpec, reason: Reason) -> Option<Arc<Entry>> {
        if let Some(entry) = self.index.find(chunk.id) {
            return Some(entry);
        }
        let comes_in = self.config.admit.reads() && self.index.welcomes(chunk);
        if reason == Reason::Read && !comes_in {
            return None;
        }
        let entry = self.index.insert(self.index.reserve(chunk)?, reason);
        self.is_stored(chunk.id).then_some(entry)
    }

    /// Whether a chunk that was just brought in is still stored: one that was released
    /// meanwhile is taken out again.
    pub(super) fn is_stored(&self, chunk: ChunkId) -> bool {
        let is_stored = self.store.pin(chunk).is_some();
        if !is_stored {
            self.index.remove(chunk);
        }
        is_stored
    }

    /// Reads through the store, and leaves the blocks here if there is room.
    pub(super) fn read_through(
        self: Arc<Self>,
        store: Arc<dyn PinnedChunk>,
        chunk: ChunkSpec,
        range: ByteRange,
        lease: Option<Lease>,
        (reason, landing): (Reason, Landing),
    ) -> Read {
        let Some(entry) = self.admit(chunk, reason) else {
            return landing.read(&*store, range, lease);
        };
        async move {
            // In hand before a flight begins: flights wait for nothing but the device.
            let mut lease = match lease {
                Some(lease) => lease,
                None => self.pool.lease(read_class(range, chunk.length)).await,
            };
            for _ in 0..WAITS_MAX {
                match landing {
                    Landing::Anywhere => {
                        if let Some(frame) = whole(&entry, range) {
                            return Ok(Fetched::held(frame));
                        }
                    }
                    Landing::InLease => {
                        if self.copies_held(&entry, range, &mut lease) {
                            return Ok(Fetched::copied(chunk.id, range, lease));
                        }
                    }
                }
                match Flying::board(&entry, block_span(range, chunk.length)) {
                    Boarding::Wait(mut ended) => {
                        // Its end is all that is told.
                        let _ = ended.changed().await;
                    }
                    Boarding::Begin(flying) => {
                        let read = landing.read(&*store, range, Some(lease));
                        let counted = self.flights.begin();
                        // By itself: whoever waits for it must not depend on this reader.
                        let flight = tokio::spawn(async move {
                            let landed = flying.land(&self, range, read, landing).await;
                            drop(flying);
                            // Of a reader that has gone, what landed is dropped first: a store
                            // that closes waits for that, too.
                            (landed, counted)
                        });
                        let landed = flight.await.map(|(landed, _counted)| landed);
                        return landed.unwrap_or(Err(StoreError::Closed));
                    }
                }
            }
            landing.read(&*store, range, Some(lease)).await
        }
        .boxed()
    }
}

/// The range, if all of it is here and contiguous.
fn whole(entry: &Arc<Entry>, range: ByteRange) -> Option<Frame> {
    entry.frame(range).filter(|frame| frame.len() as u64 == range.length())
}

impl Flying {
    /// Waits for the device and takes the blocks in.
    async fn land(
        &self,
        shared: &Shared,
        range: ByteRange,
        read: Read,
        landing: Landing,
    ) -> Result<Fetched, StoreError> {
        let fetched = read.await?;
        let Some(blocks) = fetched.read_blocks() else { return Ok(fetched) };
        let entry = self.entry();
        let span = blocks.span();
        let mut offset = span.offset();
        let mut in_a_row = 0;
        while offset < span.end() {
            let end = (offset + BLOCK_BYTES).min(span.end());
            if !entry.has(offset) {
                // What is damaged stays out. The reader has it as it would without a tier.
                let Ok((bytes, sum)) = blocks.verified(offset) else { return Ok(fetched) };
                entry.fill(offset, bytes, sum);
                let filled = &shared.index.counters.filled_bytes;
                filled.fetch_add(end - offset, Ordering::Relaxed);
                in_a_row += 1;
                if in_a_row % BLOCKS_IN_A_ROW == 0 {
                    tokio::task::yield_now().await;
                }
            }
            offset = end;
        }
        if landing == Landing::InLease {
            return Ok(fetched);
        }
        // Another may be filling one of them at this moment; then the lease's bytes serve.
        Ok(whole(entry, range).map_or(fetched, Fetched::held))
    }
}

/// Counts the flights, and the flushes, so that a closing store can wait for the last.
pub(super) struct Flights {
    count: watch::Sender<usize>,
}

impl Default for Flights {
    fn default() -> Self {
        Self { count: watch::Sender::new(0) }
    }
}

impl Flights {
    pub(super) fn begin(&self) -> Counted {
        self.count.send_modify(|count| *count += 1);
        Counted(self.count.clone())
    }

    pub(super) async fn ended(&self) {
        let mut count = self.count.subscribe();
        // The sender is ours: waiting cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

/// A flight, counted while it lives.
pub(super) struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
