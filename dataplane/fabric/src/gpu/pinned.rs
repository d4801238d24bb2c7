//! Host memory pinned for the GPUs of this process.
//!
//! A copy between pinned memory and a GPU runs at the bus's speed beside everything else; any
//! other host memory goes through the driver's own bounce buffer at a fifth of that, and holds
//! up whoever asked. Pinning costs 38 ms per GiB, so it is done once per pool or ring.
//!
//! Invariant: a [`Pin`] is registered with the driver from its making to its drop, and its
//! owner keeps the memory mapped at least as long. Copies that rely on it hold it.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Weak};

use keyway_sys::cuda::abi;
use parking_lot::RwLock;

use super::GpuError;
use super::device::{Gpu, released};
use crate::memory::LeasePool;
use crate::verbs::Anchor;

/// Host memory that all GPUs of this process reach at bus speed. Undone when the last holder is
/// gone and no copy relies on it any more.
#[derive(Clone)]
pub struct Pinned(Arc<Pin>);

pub(super) struct Pin {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: u64,
    /// Goes after the driver let go of the memory.
    _owner: Arc<dyn Any + Send + Sync>,
}

/// What is pinned, by its first byte's address.
static PINNED: RwLock<BTreeMap<u64, Weak<Pin>>> = RwLock::new(BTreeMap::new());

impl Pinned {
    /// Pins a run of host memory: a [`crate::memory::HostBuffer`]'s, by its anchor, or a pool's.
    ///
    /// # Errors
    /// [`GpuError::AlreadyPinned`] where some of it is; [`GpuError::OutOfMemory`] where the
    /// kernel lets no more be locked.
    pub fn register(gpu: &Arc<Gpu>, memory: Anchor) -> Result<Self, GpuError> {
        if memory.is_of_device() {
            return Err(GpuError::Unsupported("pinned device memory"));
        }
        let (address, bytes) = (memory.address(), memory.bytes());
        let _current = gpu.enter()?;
        let flags = abi::MEMHOSTREGISTER_PORTABLE | abi::MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the context is current, and the range is mapped as long as the anchor's owner
        // lives, which the `Pin` holds.
        unsafe { gpu.cuda().mem_host_register(address as *mut c_void, bytes, flags) }?;
        let pin = Arc::new(Pin {
            gpu: Arc::clone(gpu),
            address,
            bytes: bytes as u64,
            _owner: memory.into_owner(),
        });
        PINNED.write().insert(address, Arc::downgrade(&pin));
        Ok(Self(pin))
    }

    /// Pins all leases of a pool, and touches its pages.
    ///
    /// # Errors
    /// As [`Pinned::register`].
    pub fn register_pool(gpu: &Arc<Gpu>, pool: &LeasePool) -> Result<Self, GpuError> {
        Self::register(gpu, pool.anchor())
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl Pin {
    pub(super) fn covers(&self, address: u64, bytes: u64) -> bool {
        address >= self.address
            && address.checked_add(bytes).is_some_and(|end| end <= self.address + self.bytes)
    }
}

/// The pin that covers a run of host memory.
pub(super) fn pin_of(address: u64, bytes: u64) -> Option<Arc<Pin>> {
    let pinned = PINNED.read();
    let (_, pin) = pinned.range(..=address).next_back()?;
    pin.upgrade().filter(|pin| pin.covers(address, bytes))
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = PINNED.write();
        // Another one may stand there since: the memory was unpinned by its owner's hand.
        if pinned.get(&self.address).is_some_and(|pin| pin.strong_count() == 0) {
            pinned.remove(&self.address);
        }
        drop(pinned);
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: registered by `register`; every copy that relied on it held this.
        let undone = unsafe { self.gpu.cuda().mem_host_unregister(self.address as *mut c_void) };
        if let Err(error) = undone {
            released(error, "pinned memory");
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}
