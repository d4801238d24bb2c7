//! The chunks in the tier, and the memory they lie in.
//!
//! A lookup takes the lock of one shard for some nanoseconds. The queues' lock is taken to bring
//! a chunk in or to throw one out, never on a hit; no two locks are held together.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use keyway_fabric::memory::{Arena, EXTENT_BYTES_MAX, Extent};
use keyway_proto::unit::{CHUNK_BYTES_MAX, MIB};
use keyway_proto::{ChunkId, ChunkSpec};
use parking_lot::Mutex;

use super::TierStats;
use super::entry::Entry;
use super::queues::{Queued, Queues, Standing};

pub(super) const SHARDS: usize = 64;

/// Chunks thrown out for one that comes in, at most.
const EVICTIONS_MAX: usize = 64;

/// Shortest extents that a chunk is cut into where no run is free for all of it: reads, which
/// stay within such windows, then never cross a border.
const SPLIT_BYTES_MIN: usize = MIB as usize;

/// The share of the memory, one in so many, that a chunk may take which nobody asked to bring in:
/// a few large ones must not throw out all that is small.
const SHARE_MAX: u64 = 4;

const _: () = assert!(CHUNK_BYTES_MAX <= EXTENT_BYTES_MAX as u64);

/// Why a chunk comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Read,
    Write,
    Prefetch,
}

type Shard = Mutex<HashMap<ChunkId, Arc<Entry>>>;

pub(super) struct Index {
    arena: Arena,
    /// The longest chunk that comes in by itself.
    welcome_bytes_max: u64,
    shards: Box<[Shard]>,
    hasher: RandomState,
    queues: Mutex<Queues<Weak<Entry>>>,
    pub(super) counters: Counters,
}

/// What the tier did.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    pub(super) hit_bytes: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) miss_bytes: AtomicU64,
    pub(super) filled_bytes: AtomicU64,
    evictions: AtomicU64,
    evicted_bytes: AtomicU64,
    refused: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) scrubbed_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn hit(&self, bytes: u64) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn hit_often(&self, hits: u64, bytes: u64) {
        self.hits.fetch_add(hits, Ordering::Relaxed);
        self.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn miss(&self, bytes: u64) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.miss_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Index {
    pub(super) fn new(arena: Arena) -> Self {
        let capacity = arena.stats().capacity_bytes;
        let queues = Mutex::new(Queues::new(capacity));
        Self {
            arena,
            welcome_bytes_max: capacity / SHARE_MAX,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            queues,
            counters: Counters::default(),
        }
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn find(&self, chunk: ChunkId) -> Option<Arc<Entry>> {
        self.shard(chunk).lock().get(&chunk).cloned()
    }

    /// Whether a chunk is small enough, beside the memory, to come in by itself.
    pub(super) fn welcomes(&self, chunk: ChunkSpec) -> bool {
        chunk.length <= self.welcome_bytes_max
    }

    /// Memory for a chunk, which nobody sees before [`insert`](Self::insert). Throws others
    /// out; `None` when that did not make enough room.
    pub(super) fn reserve(&self, chunk: ChunkSpec) -> Option<Entry> {
        Some(Entry::new(chunk, self.room(chunk)?))
    }

    /// The same, as bare memory.
    pub(super) fn room(&self, chunk: ChunkSpec) -> Option<Vec<Extent>> {
        let length = usize::try_from(chunk.length).ok()?;
        if length == 0 || length > EXTENT_BYTES_MAX {
            return None;
        }
        let mut extents = self.extents(length);
        for _ in 0..EVICTIONS_MAX {
            if extents.is_some() || !self.evict() {
                break;
            }
            extents = self.extents(length);
        }
        if extents.is_none() {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        extents
    }

    /// Makes an entry visible. Another of the same chunk stays, and is given back instead.
    pub(super) fn insert(&self, entry: impl Into<Arc<Entry>>, reason: Reason) -> Arc<Entry> {
        let entry = entry.into();
        let (id, bytes) = (entry.id(), entry.length());
        let mut shard = self.shard(id).lock();
        if let Some(found) = shard.get(&id) {
            return Arc::clone(found);
        }
        shard.insert(id, Arc::clone(&entry));
        drop(shard);
        let queued = Arc::downgrade(&entry);
        self.queues.lock().insert(id, bytes, queued, reason == Reason::Prefetch);
        entry
    }

    /// Takes a chunk out. Its memory is free when the last transfer that reads it has ended.
    pub(super) fn remove(&self, chunk: ChunkId) -> bool {
        let Some(removed) = self.shard(chunk).lock().remove(&chunk) else { return false };
        removed.set_out();
        self.queues.lock().forget_one();
        true
    }

    /// Ids of the chunks that are here, a part at a time: there may be millions.
    pub(super) fn ids(&self, shard: usize) -> Vec<ChunkId> {
        self.shards[shard].lock().keys().copied().collect()
    }

    pub(super) fn clear(&self) {
        for id in (0..SHARDS).flat_map(|shard| self.ids(shard)) {
            self.remove(id);
        }
    }

    pub(super) fn stats(&self) -> TierStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (memory, counters) = (self.arena.stats(), &self.counters);
        TierStats {
            capacity_bytes: memory.capacity_bytes,
            used_bytes: memory.used_bytes,
            chunks: self.shards.iter().map(|shard| shard.lock().len() as u64).sum(),
            hits: count(&counters.hits),
            hit_bytes: count(&counters.hit_bytes),
            misses: count(&counters.misses),
            miss_bytes: count(&counters.miss_bytes),
            filled_bytes: count(&counters.filled_bytes),
            evictions: count(&counters.evictions),
            evicted_bytes: count(&counters.evicted_bytes),
            refused: count(&counters.refused),
            damaged: count(&counters.damaged),
            scrubbed_bytes: count(&counters.scrubbed_bytes),
            ..TierStats::default()
        }
    }

    /// One run for all of it, or as few as can be had.
    fn extents(&self, length: usize) -> Option<Vec<Extent>> {
        if let Some(extent) = self.arena.extent(length) {
            return Some(vec![extent]);
        }
        let memory = self.arena.stats();
        if memory.capacity_bytes - memory.used_bytes < length as u64 {
            return None;
        }
        let (mut extents, mut rest, mut run) = (Vec::new(), length, EXTENT_BYTES_MAX);
        while rest > 0 && run >= SPLIT_BYTES_MIN {
            match self.arena.extent(rest.min(run)) {
                Some(extent) => {
                    rest -= extent.len();
                    extents.push(extent);
                }
                None => run /= 2,
            }
        }
        (rest == 0).then_some(extents)
    }

    /// Throws one chunk out; whether there was one.
    fn evict(&self) -> bool {
        let Some(victim) = self.queues.lock().victim() else { return false };
        // Gone by itself meanwhile: that, too, made room.
        let Some(entry) = victim.upgrade() else { return true };
        let mut shard = self.shard(entry.id()).lock();
        if shard.get(&entry.id()).is_some_and(|found| Arc::ptr_eq(found, &entry)) {
            shard.remove(&entry.id());
            entry.set_out();
            self.counters.evictions.fetch_add(1, Ordering::Relaxed);
            self.counters.evicted_bytes.fetch_add(entry.length(), Ordering::Relaxed);
        }
        true
    }

    fn shard(&self, chunk: ChunkId) -> &Shard {
        &self.shards[self.hasher.hash_one(chunk) as usize % SHARDS]
    }
}

impl Queued for Weak<Entry> {
    fn is_gone(&self) -> bool {
        self.upgrade().is_none_or(|entry| entry.is_out())
    }

    fn standing(&self) -> Standing {
        // Held by the index, and here.
        const HOLDERS: usize = 2;
        match self.upgrade() {
            Some(entry) if entry.is_pinned(HOLDERS) => Standing::Pinned,
            Some(entry) if entry.take_use() => Standing::Used,
            _ => Standing::Idle,
        }
    }
}
