//! What another process of this host needs to map an allocation.
//!
//! Two kinds of memory, two kinds of handle: the runtime's own allocations have a legacy handle
//! of 64 bytes, which any process of the host that learns it can open; memory that was mapped
//! from physical memory has a file descriptor, if it was made for that, which only who receives
//! it can. Either opens the whole allocation: what of it a peer may use is for the peer's own
//! table to say.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use keyway_sys::cuda::abi::{self, AllocationHandle, IpcMemHandle};

use crate::gpu::GpuError;
use crate::gpu::device::{Gpu, GpuUuid, released};
use crate::gpu::pointer::{self, Pointed};

/// An allocation of a GPU's memory, and not another one that lies at its address later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAllocation {
    /// The GPU whose memory it is.
    pub gpu: GpuUuid,
    /// Its address in this process.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its number in this process, never used for another one.
    pub id: u64,
}

/// An allocation, as another process gets to know it.
pub struct DeviceExport {
    /// Which one.
    pub allocation: DeviceAllocation,
    /// What opens it.
    pub handle: ExportHandle,
}

/// What opens an allocation in another process.
pub enum ExportHandle {
    /// A CUDA IPC handle.
    Ipc([u8; 64]),
    /// A descriptor of physical memory.
    Vmm(OwnedFd),
}

impl DeviceAllocation {
    /// The allocation around a range. Asks the driver, which takes a microsecond.
    pub(super) fn of(gpu: &Arc<Gpu>, address: u64, bytes: u64) -> Result<Self, GpuError> {
        around(gpu, address, bytes).map(|(allocation, _)| allocation)
    }

    /// Whether it is still there, by what the driver says of its address.
    pub fn is_current(&self) -> bool {
        let Ok(gpu) = Gpu::by_uuid(self.gpu) else { return false };
        pointer::describe(gpu.cuda(), self.base).is_ok_and(|found| found.id == self.id)
    }
}

fn around(
    gpu: &Arc<Gpu>,
    address: u64,
    bytes: u64,
) -> Result<(DeviceAllocation, Pointed), GpuError> {
    let found = pointer::describe(gpu.cuda(), address)?;
    if address - found.base + bytes > found.bytes {
        return Err(GpuError::Scattered);
    }
    let Pointed { base, bytes, id, .. } = found;
    Ok((DeviceAllocation { gpu: gpu.uuid(), base, bytes, id }, found))
}

impl DeviceExport {
    /// Exports the allocation around a range.
    pub(super) fn of(gpu: &Arc<Gpu>, address: u64, bytes: u64) -> Result<Self, GpuError> {
        let cuda = gpu.cuda();
        let (allocation, found) = around(gpu, address, bytes)?;
        let _current = gpu.enter()?;
        let handle = if found.legacy {
            let mut handle = IpcMemHandle { reserved: [0; 64] };
            // SAFETY: the context is current; the function writes a handle.
            unsafe { cuda.ipc_get_mem_handle(&raw mut handle, found.base) }?;
            ExportHandle::Ipc(handle.reserved)
        } else {
            ExportHandle::Vmm(descriptor(gpu, found.base)?)
        };
        Ok(Self { allocation, handle })
    }
}

/// The descriptor of the physical memory that is mapped at an address.
fn descriptor(gpu: &Gpu, address: u64) -> Result<OwnedFd, GpuError> {
    let cuda = gpu.cuda();
    let mut handle: AllocationHandle = 0;
    // SAFETY: the context is current; the address is looked up; the handle is released below.
    unsafe { cuda.mem_retain_allocation_handle(&raw mut handle, address as *mut c_void) }
        .map_err(|_| GpuError::NotExportable("it comes from a pool without shared handles"))?;
    let mut fd: c_int = -1;
    // SAFETY: the handle is held; the function writes a descriptor, which is ours then.
    let exported = unsafe {
        let kind = abi::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        cuda.mem_export((&raw mut fd).cast(), handle, kind, 0)
    };
    // SAFETY: retained above, and not used from here on.
    if let Err(error) = unsafe { cuda.mem_release(handle) } {
        released(error, "a handle of physical memory");
    }
    match exported {
        // SAFETY: a descriptor that the driver made for us.
        Ok(()) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Ok(()) => Err(GpuError::NotExportable("the driver gave no descriptor")),
        Err(error) if error.code() == Some(abi::ERROR_INVALID_VALUE) => {
            Err(GpuError::NotExportable("it was not made to be shared by descriptor"))
        }
        Err(error) => Err(error.into()),
    }
}

impl fmt::Debug for DeviceExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceExport").field("allocation", &self.allocation).finish_non_exhaustive()
    }
}

impl fmt::Debug for ExportHandle {
    /// The kind alone: who knows a handle can open the memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc(_) => "Ipc",
            Self::Vmm(_) => "Vmm",
        })
    }
}
