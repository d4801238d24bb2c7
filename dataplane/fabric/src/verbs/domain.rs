//! Protection domains, and memory registered in them.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use keyway_proto::RemoteKey;
use keyway_proto::key::Direction;
use keyway_sys::verbs::abi::{self, Mr, Pd};
use keyway_sys::verbs::{DmaBufRange, call_error, last_error};

use super::{Device, VerbsError};
use crate::memory::LeasePool;

/// A protection domain: queue pairs reach memory of their own domain alone.
///
/// Invariant: `pd` is of `device` and is given back once, after all that was made in it.
pub struct Domain {
    device: Arc<Device>,
    pd: NonNull<Pd>,
}

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// What devices may do with registered memory. The owner's own device may always write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Local work requests alone: a node's buffers.
    Local,
    /// Windows may be bound to it; nothing reaches it before.
    Windows,
    /// The peer itself, in one direction, as long as the registration lives.
    Remote(Direction),
}

impl Access {
    fn flags(self) -> c_int {
        abi::ACCESS_LOCAL_WRITE
            | match self {
                Self::Local => 0,
                Self::Windows => abi::ACCESS_MW_BIND,
                Self::Remote(Direction::Write) => abi::ACCESS_REMOTE_WRITE,
                Self::Remote(Direction::Read) => abi::ACCESS_REMOTE_READ,
            }
    }
}

impl Domain {
    /// A new domain.
    ///
    /// # Errors
    /// [`VerbsError::Native`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let pd = unsafe { (device.verbs().alloc_pd)(device.context().as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| last_error("ibv_alloc_pd"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    /// Registers all leases of a pool. Pins the pool's pages.
    ///
    /// # Errors
    /// [`VerbsError::Native`], for example when more memory would be pinned than allowed.
    pub fn register_pool(
        self: &Arc<Self>,
        pool: &LeasePool,
    ) -> Result<Arc<Registration>, VerbsError> {
        self.register(pool.anchor(), Access::Local)
    }

    /// Registers memory, which lives as long as the registration. Pins its pages.
    ///
    /// # Errors
    /// [`VerbsError::Native`]; [`VerbsError::NoWindows`] for a GPU's memory with
    /// [`Access::Windows`].
    pub fn register(
        self: &Arc<Self>,
        memory: Anchor,
        access: Access,
    ) -> Result<Arc<Registration>, VerbsError> {
        let mr = match &memory.dma_buf {
            Some(buffer) => self.register_dma_buf(buffer, &memory, access)?,
            None => self.register_host(&memory, access)?,
        };
        Ok(Arc::new(Registration { domain: Arc::clone(self), mr, memory, ended: false }))
    }

    fn register_host(&self, memory: &Anchor, access: Access) -> Result<NonNull<Mr>, VerbsError> {
        let (base, bytes) = (memory.address as *mut c_void, memory.bytes);
        // SAFETY: the range is mapped as long as the anchor's owner lives, which the
        // registration holds until it is given back.
        let mr =
            unsafe { (self.device.verbs().reg_mr)(self.pd.as_ptr(), base, bytes, access.flags()) };
        NonNull::new(mr).ok_or_else(|| last_error("ibv_reg_mr").into())
    }

    fn register_dma_buf(
        &self,
        buffer: &DmaBuf,
        memory: &Anchor,
        access: Access,
    ) -> Result<NonNull<Mr>, VerbsError> {
        if access == Access::Windows {
            return Err(VerbsError::NoWindows);
        }
        let range = DmaBufRange {
            fd: buffer.fd.as_raw_fd(),
            offset: buffer.offset,
            bytes: memory.bytes,
            address: memory.address,
        };
        let (verbs, domain) = (self.device.verbs(), self.pd.as_ptr());
        // SAFETY: the domain lives, and the descriptor is a dma-buf's by the anchor's making.
        // The memory under it stays as long as the anchor's owner, as above.
        Ok(unsafe { verbs.register_dma_buf(domain, range, access.flags()) }?)
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn pd(&self) -> NonNull<Pd> {
        self.pd
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all that was made in the domain held it.
        let code = unsafe { (self.device.verbs().dealloc_pd)(self.pd.as_ptr()) };
        if code != 0 {
            tracing::error!(code, "cannot give back a protection domain");
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A run of memory, and what keeps it where it is.
pub struct Anchor {
    address: u64,
    bytes: usize,
    /// What adapters know it by, where it is no memory of the host's.
    dma_buf: Option<DmaBuf>,
    owner: Arc<dyn Any + Send + Sync>,
}

/// Device memory as the kernel hands it from driver to driver.
pub(crate) struct DmaBuf {
    pub(crate) fd: OwnedFd,
    /// Where in it the memory begins.
    pub(crate) offset: u64,
}

impl Anchor {
    /// The memory of `bytes` bytes from `base` on.
    ///
    /// # Safety
    /// The memory stays mapped, at this address, as long as `owner` lives.
    pub(crate) unsafe fn new(
        base: NonNull<u8>,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { address: base.as_ptr() as u64, bytes, dma_buf: None, owner }
    }

    /// Device memory of `bytes` bytes, which peers name by `address`.
    ///
    /// # Safety
    /// The dma-buf reaches `offset + bytes` bytes, and the memory stays allocated as long as
    /// `owner` lives.
    pub(crate) unsafe fn of_device(
        dma_buf: DmaBuf,
        address: u64,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { address, bytes, dma_buf: Some(dma_buf), owner }
    }

    /// The first byte's address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether it is a device's memory, not the host's.
    pub fn is_of_device(&self) -> bool {
        self.dma_buf.is_some()
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same memory in pieces of so many bytes, the last maybe shorter. Device memory stays
    /// whole.
    pub(crate) fn pieces(self, bytes: usize) -> Vec<Self> {
        if self.is_of_device() {
            return vec![self];
        }
        let Self { address, bytes: all, owner, .. } = self;
        let piece = |at: usize| Self {
            address: address + at as u64,
            bytes: bytes.min(all - at),
            dma_buf: None,
            owner: Arc::clone(&owner),
        };
        (0..all).step_by(bytes.max(1)).map(piece).collect()
    }

    /// What keeps the memory mapped.
    pub(crate) fn into_owner(self) -> Arc<dyn Any + Send + Sync> {
        self.owner
    }
}

/// Registered memory. Deregistered when the last holder is gone; whoever lets a device use it
/// holds it until the device is done.
///
/// Invariant: `mr` covers exactly `memory` and is given back once, before `memory`.
pub struct Registration {
    domain: Arc<Domain>,
    mr: NonNull<Mr>,
    memory: Anchor,
    /// Whether it was given back already.
    ended: bool,
}

// SAFETY: as for `Domain`; the memory is named by address alone.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Whether a run of memory lies in it.
    pub fn covers(&self, address: u64, bytes: usize) -> bool {
        let start = self.memory.address;
        let end = start + self.memory.bytes as u64;
        address >= start && address.checked_add(bytes as u64).is_some_and(|to| to <= end)
    }

    /// The key that a peer reaches it with, where it was registered for that.
    pub fn remote_key(&self) -> RemoteKey {
        // SAFETY: the registration lives.
        RemoteKey(unsafe { (*self.mr.as_ptr()).rkey })
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    pub(super) fn mr(&self) -> NonNull<Mr> {
        self.mr
    }

    /// Deregisters, and tells whether the device did so: a key of the registration's own is dead
    /// then. Blocks for a system call that unpins pages.
    ///
    /// # Errors
    /// The registration, whose key may live, and why: the device refused, or somebody else holds it.
    pub(super) fn end(registration: Arc<Self>) -> Result<(), (VerbsError, Arc<Self>)> {
        let mut sole = match Arc::try_unwrap(registration) {
            Ok(sole) => sole,
            Err(shared) => return Err((VerbsError::InUse, shared)),
        };
        match sole.deregister() {
            0 => Ok(()),
            code => Err((call_error("ibv_dereg_mr", code).into(), Arc::new(sole))),
        }
    }

    /// The call's code; 0 once the device has let go of the memory.
    fn deregister(&mut self) -> c_int {
        // SAFETY: whoever calls holds it alone, so no work or window names it, and it was not given
        // back before.
        let code = unsafe { (self.domain.device.verbs().dereg_mr)(self.mr.as_ptr()) };
        self.ended = code == 0;
        code
    }

    /// The domain that it is registered in.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let code = if self.ended { 0 } else { self.deregister() };
        if code != 0 {
            // The device may still reach the memory: it is never freed.
            tracing::error!(code, "cannot deregister memory; it stays mapped");
            std::mem::forget(Arc::clone(&self.memory.owner));
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("bytes", &self.memory.bytes).finish_non_exhaustive()
    }
}
