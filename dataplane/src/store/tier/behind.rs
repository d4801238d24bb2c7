//! Chunks that are readable before they are durable: written here first, and to the store behind.
//!
//! Sketch of a chunk of 16 MiB: its memory and its place on the device are reserved, its bytes
//! come in (by a device, or block by block with one copy and one pass of CRC64NVME), and it is
//! published; the [`flusher`](super::flush) does the rest. A lookup is one lock for some
//! nanoseconds.
//!
//! A chunk is here exactly from its publication until it is durable and published in the store,
//! released, or found damaged. Both ends are taken under one lock, so that whoever looks here
//! first and in the store second misses none.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use keyway_fabric::memory::{Extent, Lease};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, Checksum, ChunkId, ChunkSpec, Standing};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::Shared;
use super::entry::Entry;
use crate::store::{ChunkWriter, Fetched, Frame, Piece, PinnedChunk, StagedChunk, StoreError};

/// The chunks that are here and not durable.
pub(super) struct Behind {
    /// Bytes that may be here at once, those being written included.
    bytes_max: u64,
    bytes: Arc<AtomicU64>,
    /// Chunks that a device is writing here.
    arrivals: Arc<watch::Sender<u32>>,
    state: Mutex<State>,
    /// What the flusher has to do, in order. As long as the bytes are bounded, it is.
    queue: mpsc::UnboundedSender<ChunkId>,
    /// Tells of every chunk that leaves, and of every flush that fails.
    pub(super) changed: watch::Sender<()>,
    /// Whether the last flush failed: nothing more is taken until one succeeds.
    pub(super) is_failing: AtomicBool,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<ChunkId, Arc<Dirty>>,
    is_closing: bool,
}

/// What became of chunks that were written here first.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) flushed_bytes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// A chunk that is not durable.
pub(super) struct Dirty {
    pub(super) entry: Arc<Entry>,
    /// Its place on the device, until the first attempt to write it.
    pub(super) writer: Mutex<Option<Box<dyn ChunkWriter>>>,
    /// Whether nobody wants it to be written any more.
    is_released: AtomicBool,
    _room: Room,
}

impl Dirty {
    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }
}

/// Bytes taken out of what may be dirty, while this lives.
pub(super) struct Room {
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A chunk that a device writes, while this lives.
struct Arrival(Arc<watch::Sender<u32>>);

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.send_modify(|under_way| *under_way -= 1);
    }
}

impl Behind {
    /// Also gives what the flusher takes its work from.
    pub(super) fn new(bytes_max: u64) -> (Self, mpsc::UnboundedReceiver<ChunkId>) {
        let (queue, work) = mpsc::unbounded_channel();
        let behind = Self {
            bytes_max,
            bytes: Arc::default(),
            arrivals: Arc::new(watch::Sender::new(0)),
            state: Mutex::default(),
            queue,
            changed: watch::Sender::new(()),
            is_failing: AtomicBool::new(false),
            counters: Counters::default(),
        };
        (behind, work)
    }

    pub(super) fn find(&self, chunk: ChunkId) -> Option<Arc<Dirty>> {
        self.state.lock().chunks.get(&chunk).cloned()
    }

    /// Bytes taken, and chunks that are published.
    pub(super) fn usage(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.state.lock().chunks.len() as u64)
    }

    /// Room for so many bytes more, unless that is too much, or the device does not take them.
    pub(super) fn room(&self, bytes: u64) -> Option<Room> {
        if self.is_failing.load(Ordering::Relaxed) || self.state.lock().is_closing {
            return None;
        }
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Room { bytes, of: Arc::clone(&self.bytes) })
    }

    fn arrival(&self) -> Arrival {
        self.arrivals.send_modify(|under_way| *under_way += 1);
        Arrival(Arc::clone(&self.arrivals))
    }

    /// Returns at once when flushing disturbs nobody, or must not wait: half the room is taken.
    /// Else when no device writes here any more, but after `patience` at the latest.
    pub(super) async fn gives_way(&self, patience: Duration) {
        if self.bytes.load(Ordering::Relaxed) > self.bytes_max / 2 {
            return;
        }
        let mut arrivals = self.arrivals.subscribe();
        // The sender is ours, and to have waited long enough is no failure.
        let _ =
            tokio::time::timeout(patience, arrivals.wait_for(|under_way| *under_way == 0)).await;
    }

    /// Makes a chunk readable, and queues it for the device.
    fn publish(&self, shared: &Shared, dirty: Dirty) -> Result<(), StoreError> {
        let id = dirty.entry.id();
        let mut state = self.state.lock();
        if state.is_closing {
            return Err(StoreError::Closed);
        }
        if state.chunks.contains_key(&id) || shared.store.pin(id).is_some() {
            return Err(StoreError::ChunkExists(id));
        }
        state.chunks.insert(id, Arc::new(dirty));
        drop(state);
        // Without a flusher the node ends, and what is here with it.
        let _ = self.queue.send(id);
        Ok(())
    }

    /// Publishes a durable chunk in the store and forgets it here, unless it was released.
    pub(super) fn flushed(
        &self,
        dirty: &Arc<Dirty>,
        staged: Box<dyn StagedChunk>,
    ) -> Result<bool, StoreError> {
        let id = dirty.entry.id();
        let mut state = self.state.lock();
        if !state.chunks.get(&id).is_some_and(|found| Arc::ptr_eq(found, dirty)) {
            return Ok(false);
        }
        staged.publish()?;
        state.chunks.remove(&id);
        Ok(true)
    }

    /// Notes that a chunk could not be made durable; whether that is news.
    pub(super) fn failed(&self, chunk: ChunkId) -> bool {
        let state = self.state.lock();
        // One that is gone says nothing: nobody would take it back.
        let is_here = state.chunks.contains_key(&chunk);
        let is_news = is_here && !self.is_failing.swap(true, Ordering::Relaxed);
        drop(state);
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        self.changed.send_replace(());
        is_news
    }

    /// Whether the store closes, and its device fails: nothing is tried again then.
    pub(super) fn is_giving_up(&self) -> bool {
        self.state.lock().is_closing && self.is_failing.load(Ordering::Relaxed)
    }

    /// Forgets a chunk; whether it was here.
    pub(super) fn forget(&self, chunk: ChunkId) -> bool {
        let mut state = self.state.lock();
        let Some(dirty) = state.chunks.remove(&chunk) else { return false };
        if state.chunks.is_empty() {
            // Nothing is left that could find out whether the device has recovered.
            self.is_failing.store(false, Ordering::Relaxed);
        }
        drop(state);
        dirty.is_released.store(true, Ordering::Relaxed);
        self.changed.send_replace(());
        true
    }

    /// Chunks that are here, as [`BlobStore::chunks`](crate::store::BlobStore::chunks) lists
    /// them.
    pub(super) fn chunks(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let state = self.state.lock();
        let found = state.chunks.range((start, Bound::Unbounded)).take(limit);
        found.map(|(id, dirty)| ChunkSpec { id: *id, length: dirty.entry.length() }).collect()
    }

    /// Takes no more chunks, and waits until those that are here are durable, or a flush fails;
    /// tells how many are left then.
    pub(super) async fn drained(&self) -> usize {
        let mut changed = self.changed.subscribe();
        self.state.lock().is_closing = true;
        loop {
            let left = self.state.lock().chunks.len();
            if left == 0 || self.is_failing.load(Ordering::Relaxed) {
                return left;
            }
            // The sender is ours: waiting cannot fail.
            let _ = changed.changed().await;
        }
    }

    pub(super) fn clear(&self) {
        let chunks = std::mem::take(&mut self.state.lock().chunks);
        chunks.values().for_each(|dirty| dirty.is_released.store(true, Ordering::Relaxed));
    }
}

impl Shared {
    /// Where chunks stand, in order; waits for those that are on their way to the device.
    pub(super) async fn settle(&self, chunks: &[ChunkId], wait: Duration) -> Vec<Standing> {
        let deadline = tokio::time::Instant::now() + wait;
        // Before the first look: what changes after it is heard of.
        let mut changed = self.behind.changed.subscribe();
        let mut standings: Vec<_> = chunks.iter().map(|chunk| self.standing(*chunk)).collect();
        while standings.contains(&Standing::Pending) {
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                break;
            }
            for (standing, chunk) in standings.iter_mut().zip(chunks) {
                if *standing == Standing::Pending {
                    *standing = self.standing(*chunk);
                }
            }
        }
        standings
    }

    fn standing(&self, chunk: ChunkId) -> Standing {
        // In this order: a chunk goes from here to there.
        if self.behind.find(chunk).is_some() {
            Standing::Pending
        } else if self.store.pin(chunk).is_some() {
            Standing::Durable
        } else {
            Standing::Missing
        }
    }

    /// Begins a chunk that is written here first; `None` when there is no room for it.
    pub(super) async fn write_behind(
        self: &Arc<Self>,
        chunk: ChunkSpec,
    ) -> Result<Option<BehindWriter>, StoreError> {
        let Some(room) = self.behind.room(chunk.length) else { return Ok(None) };
        let Some(entry) = self.index.reserve(chunk) else { return Ok(None) };
        // Its place on the device is its own from here on: no flush meets a full disk.
        let store = self.store.writer(chunk).await?;
        let shared = Arc::clone(self);
        Ok(Some(BehindWriter { shared, entry, store, room, written: 0 }))
    }

    /// The same for a chunk that a device writes: its memory, nothing of it filled, in order.
    pub(super) async fn land_behind(
        self: &Arc<Self>,
        chunk: ChunkSpec,
    ) -> Result<Option<(Vec<Extent>, Landing)>, StoreError> {
        let Some(room) = self.behind.room(chunk.length) else { return Ok(None) };
        let Some(extents) = self.index.room(chunk) else { return Ok(None) };
        let store = self.store.writer(chunk).await?;
        let (shared, arrival) = (Arc::clone(self), self.behind.arrival());
        Ok(Some((extents, Landing { shared, chunk, store, room, arrival })))
    }
}

/// A chunk that a device puts here first, without its memory.
pub(crate) struct Landing {
    shared: Arc<Shared>,
    chunk: ChunkSpec,
    store: Box<dyn ChunkWriter>,
    room: Room,
    arrival: Arrival,
}

impl Landing {
    /// The chunk, whole: its memory, all of it filled, and the CRC64NVME of where it came from.
    ///
    /// # Panics
    /// When it is not the memory that was given out with this.
    pub(crate) fn landed(self, extents: Vec<Extent>, source: Checksum) -> Box<dyn StagedChunk> {
        let Self { shared, chunk, store, room, arrival } = self;
        drop(arrival);
        Box::new(Staged { shared, entry: Entry::landed(chunk, extents, source), store, room })
    }
}

/// A chunk being written here first. Nobody sees it before it is published.
pub(crate) struct BehindWriter {
    shared: Arc<Shared>,
    entry: Entry,
    store: Box<dyn ChunkWriter>,
    room: Room,
    written: u64,
}

#[async_trait]
impl ChunkWriter for BehindWriter {
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError> {
        for (block, sum) in piece.bytes().chunks(BLOCK_BYTES as usize).zip(piece.sums()) {
            self.entry.fill(self.written, block, *sum);
            self.written += block.len() as u64;
        }
        Ok(())
    }

    fn seal(self: Box<Self>) -> BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>> {
        let Self { shared, entry, store, room, written } = *self;
        assert_eq!(written, entry.length(), "a chunk is sealed when whole");
        let staged = Staged { shared, entry, store, room };
        ready(Ok(Box::new(staged) as Box<dyn StagedChunk>)).boxed()
    }
}

/// Whole here, and nowhere else.
struct Staged {
    shared: Arc<Shared>,
    entry: Entry,
    store: Box<dyn ChunkWriter>,
    room: Room,
}

impl StagedChunk for Staged {
    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        let Self { shared, entry, store, room } = *self;
        let length = entry.length();
        let dirty = Dirty {
            entry: Arc::new(entry),
            writer: Mutex::new(Some(store)),
            is_released: AtomicBool::new(false),
            _room: room,
        };
        shared.behind.publish(&shared, dirty)?;
        shared.index.counters.filled_bytes.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }
}

/// A chunk that was not durable when it was pinned. It holds the memory: there may be nothing
/// else to read it from.
pub(super) struct BehindPin {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
}

impl BehindPin {
    pub(super) fn new(shared: &Arc<Shared>, dirty: &Dirty) -> Self {
        Self { shared: Arc::clone(shared), entry: Arc::clone(&dirty.entry) }
    }
}

impl PinnedChunk for BehindPin {
    fn length(&self) -> u64 {
        self.entry.length()
    }

    fn held(&self, range: ByteRange) -> Option<Frame> {
        let frame = self.shared.verified(&self.entry, range)?;
        self.shared.index.counters.hit(frame.len() as u64);
        Some(frame)
    }

    /// Asked only for bytes that are not held: those that have changed in memory.
    fn read(
        &self,
        range: ByteRange,
        _: Option<Lease>,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        let read = match self.entry.frame(range).filter(|_| self.entry.damage(range).is_none()) {
            Some(frame) if frame.len() as u64 == range.length() => Ok(Fetched::held(frame)),
            _ => Err(StoreError::Damaged { chunk: self.entry.id(), offset: range.offset() }),
        };
        ready(read).boxed()
    }

    fn read_into(
        &self,
        blocks: ByteRange,
        mut lease: Lease,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        let chunk = self.entry.id();
        let read = if self.shared.copies_held(&self.entry, blocks, &mut lease) {
            self.shared.index.counters.hit(blocks.length());
            Ok(Fetched::copied(chunk, blocks, lease))
        } else {
            Err(StoreError::Damaged { chunk, offset: blocks.offset() })
        };
        ready(read).boxed()
    }
}
