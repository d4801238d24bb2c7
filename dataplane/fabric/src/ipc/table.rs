//! The keys of a session, in memory that both ends have mapped.
//!
//! Sketch: a slot is one cache line. Lending writes three words and publishes the fourth;
//! taking it up is one compare-and-swap; its end is one store. No system call, no message.
//!
//! ```text
//! client: Dead ─arm→ Open ──────────revoke──────────→ Dead
//! node:               └─claim→ Claimed ─end→ Dead
//! ```
//!
//! The table is a register of intentions between two parties, not a fence around one: the node
//! copies an entry when it claims it and obeys its own copy, and the client believes a key dead
//! when the node's word stands in the table. A client that scribbles over its table harms its
//! own transfers alone.
//!
//! Invariant: the mapping holds `slots` cache lines, is page-aligned, and is only looked at as
//! atomics.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use keyway_proto::RemoteKey;
use keyway_proto::key::Direction;

use crate::memory::{MemoryError, ShareError, SharedMemory};

/// Most slots of one table: a key names its slot in 8 bits.
pub const SLOTS_MAX: usize = 256;

/// A generation has 24 bits: a slot's key comes again after 16 million transfers.
const GENERATION_MASK: u32 = 0x00ff_ffff;

const DEAD: u64 = 0;
const OPEN: u64 = 1;
const CLAIMED: u64 = 2;

/// One key. 64 bytes.
#[repr(C, align(64))]
struct Slot {
    /// The generation, shifted by 8, and what became of it.
    state: AtomicU64,
    address: AtomicU64,
    length: AtomicU64,
    /// The region, shifted by 8, and the direction.
    region: AtomicU64,
    _unused: [AtomicU64; 4],
}

const _: () = assert!(size_of::<Slot>() == 64);

/// What a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) region: u32,
    /// In the client's address space.
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) direction: Direction,
}

/// A place for a key, and how often it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u8,
    generation: u32,
}

impl Place {
    pub(super) fn new(slot: u8) -> Self {
        Self { slot, generation: 0 }
    }

    /// The same slot's next key.
    pub(super) fn next(self) -> Self {
        Self { generation: (self.generation + 1) & GENERATION_MASK, ..self }
    }

    pub(super) fn key(self) -> RemoteKey {
        RemoteKey(u32::from(self.slot) << 24 | self.generation)
    }

    fn of(key: RemoteKey) -> Self {
        Self { slot: (key.0 >> 24) as u8, generation: key.0 & GENERATION_MASK }
    }

    fn state(self, phase: u64) -> u64 {
        u64::from(self.generation) << 8 | phase
    }
}

/// A session's keys.
pub(super) struct Table {
    memory: SharedMemory,
    slots: usize,
}

impl Table {
    /// A table of dead keys. `slots` is 1 to [`SLOTS_MAX`].
    pub(super) fn create(slots: usize) -> Result<Self, MemoryError> {
        let slots = slots.clamp(1, SLOTS_MAX);
        Ok(Self { memory: SharedMemory::create(slots * size_of::<Slot>())?, slots })
    }

    /// The table that the node made.
    pub(super) fn open(file: OwnedFd, slots: usize) -> Result<Self, ShareError> {
        let slots = slots.clamp(1, SLOTS_MAX);
        Ok(Self { memory: SharedMemory::open(file, slots * size_of::<Slot>())?, slots })
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn slot(&self, place: Place) -> Option<&Slot> {
        let index = usize::from(place.slot);
        // SAFETY: the index is within the mapping, which is aligned to a page and lives as long
        // as `self`; a slot is made of atomics, for which every bit pattern is a value.
        (index < self.slots)
            .then(|| unsafe { &*self.memory.base().as_ptr().cast::<Slot>().add(index) })
    }

    /// Lends: from here on the node may claim the key.
    pub(super) fn arm(&self, place: Place, entry: Entry) {
        let slot = self.slot(place).expect("a place of this table");
        let read = u64::from(entry.direction == Direction::Read);
        slot.address.store(entry.address, Ordering::Relaxed);
        slot.length.store(entry.length, Ordering::Relaxed);
        slot.region.store(u64::from(entry.region) << 8 | read, Ordering::Relaxed);
        slot.state.store(place.state(OPEN), Ordering::Release);
    }

    /// Whether the key is dead.
    pub(super) fn is_dead(&self, place: Place) -> bool {
        let slot = self.slot(place).expect("a place of this table");
        slot.state.load(Ordering::Acquire) == place.state(DEAD)
    }

    /// Takes the key back, unless the node has claimed it. Tells whether it is dead.
    pub(super) fn revoke(&self, place: Place) -> bool {
        let slot = self.slot(place).expect("a place of this table");
        let (open, dead) = (place.state(OPEN), place.state(DEAD));
        match slot.state.compare_exchange(open, dead, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) => state == dead,
        }
    }

    /// Claims a key that is open; `None` for every other.
    pub(super) fn claim(&self, key: RemoteKey) -> Option<Entry> {
        let place = Place::of(key);
        let slot = self.slot(place)?;
        let open = place.state(OPEN);
        if slot.state.load(Ordering::Acquire) != open {
            return None;
        }
        let region = slot.region.load(Ordering::Relaxed);
        let entry = Entry {
            region: u32::try_from(region >> 8).ok()?,
            address: slot.address.load(Ordering::Relaxed),
            length: slot.length.load(Ordering::Relaxed),
            direction: if region & 0xff == 0 { Direction::Write } else { Direction::Read },
        };
        let claimed = place.state(CLAIMED);
        slot.state.compare_exchange(open, claimed, Ordering::AcqRel, Ordering::Acquire).ok()?;
        Some(entry)
    }

    /// Says that the node has done with a key that it claimed.
    pub(super) fn end(&self, key: RemoteKey) {
        let place = Place::of(key);
        if let Some(slot) = self.slot(place) {
            slot.state.store(place.state(DEAD), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(direction: Direction) -> Entry {
        Entry { region: 0x00ab_cdef, address: 0x1000, length: 77, direction }
    }

    #[test]
    fn a_key_is_claimed_once_and_only_while_it_is_open() {
        let table = Table::create(2).expect("memory");
        let place = Place::new(1).next();
        assert_eq!(table.claim(place.key()), None, "never lent");
        for direction in [Direction::Write, Direction::Read] {
            table.arm(place, entry(direction));
            assert!(!table.is_dead(place));
            assert_eq!(table.claim(place.next().key()), None, "another generation");
            assert_eq!(table.claim(place.key()), Some(entry(direction)));
            assert_eq!(table.claim(place.key()), None, "claimed already");
            assert!(!table.revoke(place), "the node has it");
            table.end(place.key());
            assert!(table.is_dead(place) && table.revoke(place));
            assert_eq!(table.claim(place.key()), None, "dead");
        }
        table.arm(place.next(), entry(Direction::Read));
        assert!(table.revoke(place.next()));
        assert_eq!(table.claim(place.next().key()), None, "revoked");
    }

    #[test]
    fn keys_beyond_the_table_are_none() {
        let table = Table::create(2).expect("memory");
        for key in [0x0200_0000, u32::MAX] {
            assert_eq!(table.claim(RemoteKey(key)), None);
            table.end(RemoteKey(key));
        }
    }

    /// Of a claim and a revocation that race, exactly one wins.
    #[test]
    fn a_race_has_one_winner() {
        let table = Table::create(1).expect("memory");
        let mut place = Place::new(0);
        for _ in 0..2_000 {
            place = place.next();
            table.arm(place, entry(Direction::Write));
            let (claimed, revoked) = std::thread::scope(|scope| {
                let claim = scope.spawn(|| table.claim(place.key()).is_some());
                let revoked = table.revoke(place);
                (claim.join().expect("no panic"), revoked)
            });
            assert_ne!(claimed, revoked);
            table.end(place.key());
        }
    }

    #[test]
    fn the_other_end_sees_the_same_table() {
        let node = Table::create(4).expect("memory");
        let file = node.memory().file().try_clone().expect("a descriptor");
        let client = Table::open(file, 4).expect("sealed");
        let place = Place::new(3).next();
        client.arm(place, entry(Direction::Read));
        assert_eq!(node.claim(place.key()), Some(entry(Direction::Read)));
        node.end(place.key());
        assert!(client.is_dead(place));
    }
}
