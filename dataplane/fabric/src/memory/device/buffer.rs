//! A caller's own GPU memory, lent to transfers by the range.
//!
//! Invariant: the range `[address, address + bytes)` of a [`Memory`] is allocated device memory
//! of `gpu` as long as `backing` lives: allocated here and freed with it, or somebody else's who
//! promised so ([`DeviceBuffer::foreign`]).

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use super::{DeviceAllocation, DeviceExport, dma_buf};
use crate::gpu::device::{Gpu, released};
use crate::gpu::{GpuError, pointer};
use crate::memory::lends::LendError;
use crate::memory::lent::{BufferLife, Exclusive, Shared, Whole};
use crate::verbs::Anchor;

/// GPU memory of the caller, whole. Dropping it while slices are out frees it with the last.
pub struct DeviceBuffer {
    whole: Arc<Whole<Memory>>,
}

pub(super) struct Memory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
    backing: Arc<dyn Any + Send + Sync>,
}

/// Memory that was allocated here.
struct Allocation {
    gpu: Arc<Gpu>,
    address: u64,
}

/// Allocations of ours are whole granules: the driver packs smaller ones into a block that they
/// share, and another process can map a block only once, and whole.
const GRANULE_BYTES: usize = 2 << 20;

fn granules(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(GRANULE_BYTES).unwrap_or(bytes)
}

impl DeviceBuffer {
    /// Allocates memory on a GPU. Its content is what was there.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Call`].
    pub fn alloc(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, GpuError> {
        let mut address = 0;
        if bytes > 0 {
            let _current = gpu.enter()?;
            // SAFETY: the context is current; the function writes an address, which
            // `Allocation` frees.
            unsafe { gpu.cuda().mem_alloc(&raw mut address, granules(bytes)) }?;
        }
        let backing = Arc::new(Allocation { gpu: Arc::clone(gpu), address });
        Ok(Self::over(Arc::clone(gpu), address, bytes, backing))
    }

    /// Adopts memory that somebody else allocated: with the runtime's allocator, a framework's,
    /// or by mapping physical memory. A part of an allocation will do, and so will several
    /// that were mapped one behind the other.
    ///
    /// # Errors
    /// [`GpuError::NotDeviceMemory`], [`GpuError::Managed`], [`GpuError::Freed`] for what lies
    /// there; [`GpuError::WrongGpu`] when it is of several; what [`Gpu::open`] answers.
    ///
    /// # Safety
    /// `[address, address + bytes)` stays allocated device memory while `owner` lives.
    pub unsafe fn foreign(
        address: u64,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, GpuError> {
        let gpu = Gpu::of_pointer(address)?;
        pointer::check(gpu.cuda(), gpu.ordinal(), (address, bytes as u64), &mut None)?;
        Ok(Self::over(gpu, address, bytes, owner))
    }

    fn over(
        gpu: Arc<Gpu>,
        address: u64,
        bytes: usize,
        backing: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { whole: Whole::new(Memory { gpu, address, bytes, backing }, bytes) }
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.whole.memory.gpu
    }

    /// The first byte's address.
    pub fn address(&self) -> u64 {
        self.whole.memory.address
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.whole.bytes()
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lends a range exclusively, to be filled by one transfer.
    ///
    /// # Errors
    /// [`LendError::OutOfRange`], or [`LendError::Lent`] when it overlaps a living slice.
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceSliceMut, LendError> {
        Exclusive::lend(&self.whole, range).map(DeviceSliceMut)
    }

    /// Lends a range for reading; any number of readers may share it.
    ///
    /// # Errors
    /// [`LendError::OutOfRange`], or [`LendError::Lent`] when it overlaps an exclusive slice.
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSlice, LendError> {
        Shared::lend(&self.whole, range).map(DeviceSlice)
    }

    /// Copies bytes out and waits: for tests and small things.
    ///
    /// # Errors
    /// [`GpuError::OutOfRange`], [`GpuError::Call`], [`GpuError::Lost`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), GpuError> {
        let memory = &self.whole.memory;
        let from = memory.at(offset, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let _current = memory.gpu.enter()?;
        let to = into.as_mut_ptr().cast::<c_void>();
        // SAFETY: the context is current; the device range is allocated by the invariant, the
        // host range is the slice's, and the call returns when the bytes are there.
        unsafe { memory.gpu.cuda().memcpy_from_device(to, from, into.len()) }?;
        Ok(())
    }

    /// Copies bytes in and waits: for tests and small things. Does not look at what is lent.
    ///
    /// # Errors
    /// [`GpuError::OutOfRange`], [`GpuError::Call`], [`GpuError::Lost`].
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), GpuError> {
        let memory = &self.whole.memory;
        let to = memory.at(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let _current = memory.gpu.enter()?;
        let from = (from.as_ptr().cast::<c_void>(), from.len());
        let cuda = memory.gpu.cuda();
        // SAFETY: as in `read`. Of memory that is not pinned the copy returns when the driver has
        // the bytes, not when the GPU has: other streams and processes would be overtaken by them.
        unsafe {
            cuda.memcpy_to_device(to, from.0, from.1)?;
            cuda.stream_synchronize(std::ptr::null_mut())?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("gpu", &self.gpu().ordinal())
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

/// An exclusive range of a [`DeviceBuffer`], owned by the transfer that fills it.
pub struct DeviceSliceMut(Exclusive<Memory>);

impl DeviceSliceMut {
    /// Where the slice begins in its buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.0.range().start
    }

    /// The slice's first byte's address.
    pub fn address(&self) -> u64 {
        self.0.memory().address + self.offset() as u64
    }

    /// Bytes in the slice.
    pub fn len(&self) -> usize {
        self.0.range().len()
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.0.memory().gpu
    }

    /// Tells, later, whether the buffer is still in use.
    pub fn life(&self) -> BufferLife {
        self.0.life()
    }

    /// What keeps the buffer's memory allocated, for those who map or register it. Holding it
    /// gives no access by itself.
    pub fn backing(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0.memory().backing)
    }

    /// Cuts off and gives the first `bytes` bytes; `self` keeps the rest.
    ///
    /// # Panics
    /// When the slice is shorter than `bytes`.
    #[must_use]
    pub fn split_to(&mut self, bytes: usize) -> Self {
        Self(self.0.split_to(bytes))
    }

    /// Joins `next` back on, which begins in the same buffer where `self` ends.
    ///
    /// # Errors
    /// `next` itself when it is no such neighbour.
    pub fn unsplit(&mut self, next: Self) -> Result<(), Self> {
        self.0.unsplit(next.0).map_err(Self)
    }

    /// Ends the exclusive lend: the same bytes for reading.
    pub fn freeze(self) -> DeviceSlice {
        DeviceSlice(self.0.freeze())
    }

    /// The slice alone, for an adapter to register.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] and [`GpuError::NotExportable`] where there is no dma-buf of it,
    /// [`GpuError::Scattered`].
    pub fn exact_anchor(&self) -> Result<Anchor, GpuError> {
        dma_buf::anchor(self.gpu(), self.address(), self.len(), self.backing())
    }

    /// The allocation that the slice lies in.
    ///
    /// # Errors
    /// [`GpuError::Scattered`], [`GpuError::Freed`].
    pub fn allocation(&self) -> Result<DeviceAllocation, GpuError> {
        DeviceAllocation::of(self.gpu(), self.address(), self.len() as u64)
    }

    /// What another process needs to map the allocation that the slice lies in.
    ///
    /// # Errors
    /// [`GpuError::NotExportable`], [`GpuError::Scattered`], [`GpuError::Freed`].
    pub fn export(&self) -> Result<DeviceExport, GpuError> {
        self.0.memory().export(self.0.range())
    }
}

impl fmt::Debug for DeviceSliceMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceSliceMut").field(self.0.range()).finish()
    }
}

/// A range of a [`DeviceBuffer`] lent for reading.
#[derive(Clone)]
pub struct DeviceSlice(Shared<Memory>);

impl DeviceSlice {
    /// Where the slice begins in its buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.0.range().start
    }

    /// The slice's first byte's address.
    pub fn address(&self) -> u64 {
        self.0.memory().address + self.offset() as u64
    }

    /// Bytes in the slice.
    pub fn len(&self) -> usize {
        self.0.range().len()
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.0.memory().gpu
    }

    /// Tells, later, whether the buffer is still in use.
    pub fn life(&self) -> BufferLife {
        self.0.life()
    }

    /// What keeps the buffer's memory allocated, for those who map or register it. Holding it
    /// gives no access by itself.
    pub fn backing(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0.memory().backing)
    }

    /// A part of this slice; `range` counts from the slice's first byte.
    ///
    /// # Panics
    /// When the range leaves the slice.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

    /// The slice alone, for an adapter to register.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] and [`GpuError::NotExportable`] where there is no dma-buf of it,
    /// [`GpuError::Scattered`].
    pub fn exact_anchor(&self) -> Result<Anchor, GpuError> {
        dma_buf::anchor(self.gpu(), self.address(), self.len(), self.backing())
    }

    /// The allocation that the slice lies in.
    ///
    /// # Errors
    /// [`GpuError::Scattered`], [`GpuError::Freed`].
    pub fn allocation(&self) -> Result<DeviceAllocation, GpuError> {
        DeviceAllocation::of(self.gpu(), self.address(), self.len() as u64)
    }

    /// What another process needs to map the allocation that the slice lies in.
    ///
    /// # Errors
    /// [`GpuError::NotExportable`], [`GpuError::Scattered`], [`GpuError::Freed`].
    pub fn export(&self) -> Result<DeviceExport, GpuError> {
        self.0.memory().export(self.0.range())
    }
}

impl fmt::Debug for DeviceSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceSlice").field(self.0.range()).finish()
    }
}

impl Memory {
    fn at(&self, offset: usize, length: usize) -> Result<u64, GpuError> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.bytes);
        inside.then_some(self.address + offset as u64).ok_or(GpuError::OutOfRange {
            offset: offset as u64,
            length: length as u64,
            available: self.bytes as u64,
        })
    }

    fn export(&self, range: &Range<usize>) -> Result<DeviceExport, GpuError> {
        DeviceExport::of(&self.gpu, self.address + range.start as u64, range.len() as u64)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: allocated by `alloc`; every slice and registration that names it held this.
        if let Err(error) = unsafe { self.gpu.cuda().mem_free(self.address) } {
            released(error, "device memory");
        }
    }
}
