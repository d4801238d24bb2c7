//! A bounded pool of aligned buffers.
//!
//! Sketch: one region, mapped once, cut into slots of a few fixed sizes. Taking a lease is
//! a permit (fair, first come first served) and a pop under a lock; giving it back is a push
//! and a permit. Slots are reused last-in first-out, so memory that load never reached is
//! never touched. Classes do not lend to each other downwards: large transfers cannot starve
//! small ones.
//!
//! Invariant: a slot's index is either in its class's free list or in exactly one living
//! [`Lease`]; slots do not overlap; the region outlives all leases, since each holds the
//! pool. So a lease is the only path to its bytes. There are as many permits as free slots,
//! or fewer while one changes hands: whoever has a permit finds a slot.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::region::{MemoryError, Region};
use crate::verbs::Anchor;

/// Sizes of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LeaseClass {
    /// 4 KiB.
    Page,
    /// 16 KiB.
    Small,
    /// 64 KiB.
    Block,
    /// 256 KiB.
    Medium,
    /// 1 MiB.
    Unit,
}

impl LeaseClass {
    /// Every class, ascending.
    pub const ALL: [Self; 5] = [Self::Page, Self::Small, Self::Block, Self::Medium, Self::Unit];

    /// A lease's size in bytes.
    pub const fn bytes(self) -> usize {
        4096 << (2 * self as u32)
    }

    /// The smallest class that holds `bytes`; `None` when none does.
    pub fn fitting(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|class| bytes <= class.bytes())
    }

    /// The class's part of a pool, in 64ths. Transfers of large objects hold most of the
    /// memory; the many small ones hold little each.
    const fn share(self) -> usize {
        match self {
            Self::Page | Self::Small => 2,
            Self::Block => 4,
            Self::Medium => 16,
            Self::Unit => 40,
        }
    }
}

const _: () = assert!(LeaseClass::Unit.bytes() == 1 << 20);

/// A bounded pool of [`Lease`]s. Clones share it.
#[derive(Clone)]
pub struct LeasePool {
    shared: Arc<Shared>,
}

/// How full a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in all slots.
    pub capacity_bytes: u64,
    /// Bytes in slots that are out.
    pub leased_bytes: u64,
}

impl LeasePool {
    /// A pool of at most `budget_bytes`, and at least one slot per class.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses the memory.
    pub fn new(budget_bytes: usize) -> Result<Self, MemoryError> {
        let slots =
            LeaseClass::ALL.map(|class| (budget_bytes / 64 * class.share() / class.bytes()).max(1));
        let region_bytes =
            LeaseClass::ALL.iter().zip(slots).map(|(class, slots)| class.bytes() * slots).sum();
        let region = Region::map(region_bytes)?;
        let mut start = 0;
        // Largest first: every slot is aligned to its own size within the region.
        let mut classes = LeaseClass::ALL.map(|_| None);
        for class in LeaseClass::ALL.into_iter().rev() {
            let slots = slots[class as usize];
            classes[class as usize] = Some(Slots {
                start,
                slots,
                free: Mutex::new((0..slots as u32).rev().collect()),
                permits: Semaphore::new(slots),
            });
            start += class.bytes() * slots;
        }
        let classes = classes.map(|class| class.expect("the loop visits every class"));
        Ok(Self { shared: Arc::new(Shared { region, classes }) })
    }

    /// Waits for a lease, in the order of the calls. Dropping the future gives up the place.
    pub async fn lease(&self, class: LeaseClass) -> Lease {
        let permit = self.shared.classes[class as usize].permits.acquire().await;
        permit.expect("the pool never closes its semaphores").forget();
        self.take(class)
    }

    /// A lease if one is free and nobody waits for it.
    pub fn try_lease(&self, class: LeaseClass) -> Option<Lease> {
        let permit = self.shared.classes[class as usize].permits.try_acquire().ok()?;
        permit.forget();
        Some(self.take(class))
    }

    /// Whether less than half of a class's slots are free.
    pub fn is_scarce(&self, class: LeaseClass) -> bool {
        let slots = &self.shared.classes[class as usize];
        slots.permits.available_permits() * 2 < slots.slots
    }

    /// How full the pool is.
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        for class in LeaseClass::ALL {
            let slots = &self.shared.classes[class as usize];
            let leased = slots.slots.saturating_sub(slots.permits.available_permits());
            stats.capacity_bytes += (slots.slots * class.bytes()) as u64;
            stats.leased_bytes += (leased * class.bytes()) as u64;
        }
        stats
    }

    /// The region that all leases lie in, for registration with a device.
    pub fn region(&self) -> &Region {
        &self.shared.region
    }

    /// All leases, for registration with a device. Registering gives no access by itself.
    pub fn anchor(&self) -> Anchor {
        let region = self.region();
        // SAFETY: the region is mapped as long as the pool, a clone of which is the owner.
        unsafe { Anchor::new(region.base(), region.bytes(), Arc::new(self.clone())) }
    }

    fn take(&self, class: LeaseClass) -> Lease {
        let slots = &self.shared.classes[class as usize];
        let slot = slots.free.lock().pop().expect("a permit stands for a free slot");
        let offset = slots.start + slot as usize * class.bytes();
        // SAFETY: the slot lies in the region by construction of `start` and `slots`.
        let base = unsafe { self.shared.region.base().add(offset) };
        Lease { base, class, slot, shared: Arc::clone(&self.shared) }
    }
}

impl fmt::Debug for LeasePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// An aligned buffer of a pool, the owner's alone, given back on drop. Its content is what
/// the last owner left.
pub struct Lease {
    base: NonNull<u8>,
    class: LeaseClass,
    slot: u32,
    shared: Arc<Shared>,
}

// SAFETY: a lease is the only path to its bytes, and the pool's bookkeeping is locked.
unsafe impl Send for Lease {}
// SAFETY: `&Lease` gives only `&[u8]`.
unsafe impl Sync for Lease {}

impl Lease {
    /// The lease's size.
    pub fn class(&self) -> LeaseClass {
        self.class
    }

    /// The first byte's address, for a device. What the device does there is bound by this
    /// lease's life: keep it until the device has let go.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether the lease lies in `pool`'s region.
    pub fn is_of(&self, pool: &LeasePool) -> bool {
        Arc::ptr_eq(&self.shared, &pool.shared)
    }

    /// A part of the content as [`Bytes`], without a copy; the lease goes back to its pool
    /// with the last of their clones.
    ///
    /// # Panics
    /// When the range leaves the lease.
    pub fn into_bytes(self, range: Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len(), "the range leaves the lease");
        Bytes::from_owner(Frozen { lease: self, range })
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is mapped, initialised by the kernel with zeros, and ours alone.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.class.bytes()) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.class.bytes()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let slots = &self.shared.classes[self.class as usize];
        // The slot first: a permit must never be ahead of it.
        slots.free.lock().push(self.slot);
        slots.permits.add_permits(1);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("class", &self.class).finish_non_exhaustive()
    }
}

struct Frozen {
    lease: Lease,
    range: Range<usize>,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        &self.lease[self.range.clone()]
    }
}

struct Shared {
    region: Region,
    classes: [Slots; LeaseClass::ALL.len()],
}

struct Slots {
    /// Offset of the first slot in the region.
    start: usize,
    slots: usize,
    free: Mutex<Vec<u32>>,
    permits: Semaphore,
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use futures::FutureExt as _;

    use super::*;
    use crate::memory::PAGE_BYTES;

    #[test]
    fn leases_are_disjoint_and_aligned() {
        let pool = LeasePool::new(4 << 20).expect("memory");
        let mut leases = Vec::new();
        for class in LeaseClass::ALL {
            while let Some(lease) = pool.try_lease(class) {
                leases.push(lease);
            }
        }
        assert_eq!(pool.stats().leased_bytes, pool.stats().capacity_bytes);
        for (mark, lease) in leases.iter_mut().enumerate() {
            assert_eq!(lease.base().as_ptr() as usize % PAGE_BYTES, 0);
            lease.fill(mark as u8);
        }
        for (mark, lease) in leases.iter().enumerate() {
            assert!(lease.iter().all(|byte| *byte == mark as u8));
        }
        drop(leases);
        assert_eq!(pool.stats().leased_bytes, 0);
    }

    #[test]
    fn bytes_hold_their_lease() {
        let pool = LeasePool::new(0).expect("memory");
        let mut lease = pool.try_lease(LeaseClass::Small).expect("free");
        lease[..3].copy_from_slice(b"abc");
        let bytes = lease.into_bytes(1..3);
        assert_eq!(&bytes[..], b"bc");
        let part = bytes.slice(1..);
        drop(bytes);
        assert!(pool.try_lease(LeaseClass::Small).is_none());
        drop(part);
        assert!(pool.try_lease(LeaseClass::Small).is_some());
    }

    /// Waiters are served in order, and one that gives up leaves no hole.
    #[test]
    fn waiting_is_fair_and_cancellable() {
        let pool = LeasePool::new(0).expect("memory");
        let held = pool.try_lease(LeaseClass::Unit).expect("free");
        let mut quitter = Box::pin(pool.lease(LeaseClass::Unit));
        let mut patient = pin!(pool.lease(LeaseClass::Unit));
        assert!(quitter.as_mut().now_or_never().is_none());
        assert!(patient.as_mut().now_or_never().is_none());
        drop(held);
        assert!(pool.try_lease(LeaseClass::Unit).is_none(), "nobody overtakes");
        drop(quitter);
        let served = poll_fn(|context| Poll::Ready(patient.as_mut().poll(context).is_ready()));
        assert_eq!(served.now_or_never(), Some(true));
    }
}
