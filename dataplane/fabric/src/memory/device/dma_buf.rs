//! Device memory as adapters register it: by a dma-buf.
//!
//! A dma-buf covers whole pages of the host's size, so it may reach over both ends of what is
//! asked for. It stays in this process; what peers reach is the registration's range, which is
//! exact.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::Arc;

use keyway_sys::cuda::abi;

use crate::gpu::device::Gpu;
use crate::gpu::{GpuError, pointer};
use crate::memory::PAGE_BYTES;
use crate::verbs::Anchor;
use crate::verbs::domain::DmaBuf;

/// What registers a range of a GPU's memory; `owner` keeps it allocated.
pub(super) fn anchor(
    gpu: &Arc<Gpu>,
    address: u64,
    bytes: usize,
    owner: Arc<dyn Any + Send + Sync>,
) -> Result<Anchor, GpuError> {
    if !gpu.limits().dma_buf {
        return Err(GpuError::Unsupported("a dma-buf"));
    }
    let found = pointer::describe(gpu.cuda(), address)?;
    if address - found.base + bytes as u64 > found.bytes {
        return Err(GpuError::Scattered);
    }
    let page = PAGE_BYTES as u64;
    let base = address / page * page;
    let length = (address + bytes as u64).next_multiple_of(page) - base;
    let mut fd: c_int = -1;
    let _current = gpu.enter()?;
    // SAFETY: the context is current; the function writes a descriptor, which is ours then.
    let exported = unsafe {
        let kind = abi::MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let into = (&raw mut fd).cast();
        gpu.cuda().mem_get_handle_for_address_range(into, base, length as usize, kind, 0)
    };
    match exported {
        Ok(()) if fd >= 0 => {}
        Ok(()) => return Err(GpuError::NotExportable("the driver gave no descriptor")),
        Err(error)
            if matches!(
                error.code(),
                Some(abi::ERROR_INVALID_VALUE | abi::ERROR_NOT_SUPPORTED)
            ) =>
        {
            return Err(GpuError::NotExportable("the driver makes no dma-buf of it"));
        }
        Err(error) => return Err(error.into()),
    }
    // SAFETY: a descriptor that the driver made for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let buffer = DmaBuf { fd, offset: address - base };
    // SAFETY: the dma-buf covers the range; it stays allocated as long as the owner lives.
    Ok(unsafe { Anchor::of_device(buffer, address, bytes, owner) })
}
