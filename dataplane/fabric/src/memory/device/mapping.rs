//! Another process's allocation, mapped here.
//!
//! Opening a legacy handle takes about 10 ms, so mappings are shared: the same handle opened
//! twice is one mapping with two holders. A descriptor has no identity to go by; whoever maps
//! those keeps the mapping.
//!
//! Invariant: `[address, address + bytes)` is mapped as long as the `DeviceMapping` lives, and
//! is unmapped once. What the other process does to the bytes meanwhile is its own affair; the
//! physical memory stays until the mapping goes, even when that process dies.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Weak};

use keyway_sys::cuda::CudaError;
use keyway_sys::cuda::abi::{self, AccessDescription, AllocationHandle, IpcMemHandle, Location};
use parking_lot::Mutex;

use super::ExportHandle;
use crate::gpu::device::{Gpu, released};
use crate::gpu::{GpuError, pointer};

/// Another process's allocation, mapped here; unmapped on drop. Mapping the same allocation
/// twice shares the mapping.
pub struct DeviceMapping {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: u64,
    kind: Kind,
}

enum Kind {
    Ipc([u8; 64]),
    Vmm(AllocationHandle),
}

/// The legacy handles that are open, by GPU and handle. The lock is held while one is opened
/// or closed: the driver counts neither for us on all versions.
static OPEN: Mutex<Option<Open>> = Mutex::new(None);

type Open = HashMap<(u32, [u8; 64]), Weak<DeviceMapping>>;

impl DeviceMapping {
    /// Maps `bytes` bytes of another process's allocation, which lies on `gpu`. Blocks for
    /// about 10 ms.
    ///
    /// # Errors
    /// [`GpuError::OutOfRange`] when the allocation is shorter, [`GpuError::Unsupported`] where
    /// the platform maps no such memory, [`GpuError::Call`] when the handle opens nothing, or was
    /// made by this process itself.
    pub fn open(gpu: &Arc<Gpu>, handle: &ExportHandle, bytes: u64) -> Result<Arc<Self>, GpuError> {
        let mapping = match handle {
            ExportHandle::Ipc(handle) => Self::open_ipc(gpu, handle)?,
            ExportHandle::Vmm(fd) => Arc::new(Self::open_vmm(gpu, fd.as_raw_fd(), bytes)?),
        };
        if bytes > mapping.bytes {
            let (offset, available) = (0, mapping.bytes);
            return Err(GpuError::OutOfRange { offset, length: bytes, available });
        }
        Ok(mapping)
    }

    /// The first byte's address in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the allocation.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it holds no byte; no allocation does.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The address of a range of it.
    ///
    /// # Errors
    /// [`GpuError::OutOfRange`].
    pub fn range(&self, offset: u64, length: u64) -> Result<u64, GpuError> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.bytes);
        let error = GpuError::OutOfRange { offset, length, available: self.bytes };
        inside.then_some(self.address + offset).ok_or(error)
    }

    fn open_ipc(gpu: &Arc<Gpu>, handle: &[u8; 64]) -> Result<Arc<Self>, GpuError> {
        let mut open = OPEN.lock();
        let open = open.get_or_insert_default();
        let key = (gpu.ordinal(), *handle);
        if let Some(mapping) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let _current = gpu.enter()?;
        let mut address = 0;
        // SAFETY: the context is current; the function writes an address, which is closed by
        // `drop`.
        unsafe {
            let handle = IpcMemHandle { reserved: *handle };
            let flags = abi::IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
            gpu.cuda().ipc_open_mem_handle(&raw mut address, handle, flags)
        }?;
        let bytes = match pointer::describe(gpu.cuda(), address) {
            Ok(found) => found.base + found.bytes - address,
            Err(error) => {
                // SAFETY: opened above, and used by nobody.
                if let Err(error) = unsafe { gpu.cuda().ipc_close_mem_handle(address) } {
                    released(error, "another process's memory");
                }
                return Err(error);
            }
        };
        let mapping = Self { gpu: Arc::clone(gpu), address, bytes, kind: Kind::Ipc(*handle) };
        let mapping = Arc::new(mapping);
        open.insert(key, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    fn open_vmm(gpu: &Arc<Gpu>, fd: i32, bytes: u64) -> Result<Self, GpuError> {
        let cuda = gpu.cuda();
        let _current = gpu.enter()?;
        let mut handle: AllocationHandle = 0;
        // SAFETY: the context is current; for this kind of handle the pointer is the number of
        // a descriptor, which stays the caller's.
        unsafe {
            let kind = abi::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            cuda.mem_import(&raw mut handle, fd as usize as *mut c_void, kind)
        }
        .map_err(refused)?;
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut address = 0;
        let here = Location { kind: abi::MEM_LOCATION_TYPE_DEVICE, id: gpu.ordinal() as i32 };
        let access =
            AccessDescription { location: here, flags: abi::MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: each step uses what the one before gave; what was done is undone below.
        let mapped = unsafe {
            cuda.mem_address_reserve(&raw mut address, size, 0, 0, 0).and_then(|()| {
                let mapped = cuda.mem_map(address, size, 0, handle, 0).and_then(|()| {
                    let allowed = cuda.mem_set_access(address, size, &raw const access, 1);
                    allowed.inspect_err(|_| {
                        let _ = cuda.mem_unmap(address, size);
                    })
                });
                mapped.inspect_err(|_| {
                    let _ = cuda.mem_address_free(address, size);
                })
            })
        };
        if let Err(error) = mapped {
            // SAFETY: imported above, mapped nowhere.
            if let Err(error) = unsafe { cuda.mem_release(handle) } {
                released(error, "a handle of physical memory");
            }
            return Err(refused(error));
        }
        Ok(Self { gpu: Arc::clone(gpu), address, bytes, kind: Kind::Vmm(handle) })
    }
}

/// Some platforms share no physical memory between processes; and none maps more of a piece, or
/// less, than there is.
fn refused(error: CudaError) -> GpuError {
    match error.code() {
        Some(abi::ERROR_NOT_SUPPORTED) => {
            GpuError::Unsupported("this mapping of another process's physical memory")
        }
        _ => error.into(),
    }
}

impl Drop for DeviceMapping {
    fn drop(&mut self) {
        let Self { gpu, address, bytes, kind } = self;
        let (cuda, address, size) = (gpu.cuda(), *address, *bytes as usize);
        let Ok(_current) = gpu.enter() else { return };
        let closed = match kind {
            Kind::Ipc(handle) => {
                let mut open = OPEN.lock();
                let key = (gpu.ordinal(), *handle);
                if let Some(open) = open.as_mut()
                    && open.get(&key).is_some_and(|last| last.strong_count() == 0)
                {
                    open.remove(&key);
                }
                // SAFETY: opened when this was made; whoever used it held it. Where it was
                // opened anew since the last holder went, the driver counts both.
                unsafe { cuda.ipc_close_mem_handle(address) }
            }
            // SAFETY: mapped when this was made; whoever used it held it.
            Kind::Vmm(handle) => unsafe {
                cuda.mem_unmap(address, size)
                    .and_then(|()| cuda.mem_address_free(address, size))
                    .and_then(|()| cuda.mem_release(*handle))
            },
        };
        if let Err(error) = closed {
            released(error, "a mapping of another process's memory");
        }
    }
}

impl fmt::Debug for DeviceMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMapping")
            .field("gpu", &self.gpu.ordinal())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
