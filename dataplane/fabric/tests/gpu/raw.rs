//! The driver itself, for memory and streams that the library does not make.

use std::ffi::c_void;

use keyway_fabric::memory::Gpu;
use keyway_sys::cuda::abi::{self, AccessDescription, AllocationProperties, Location};
use keyway_sys::cuda::{Cuda, CudaError};

/// A table of its own, with the primary context current on this thread.
pub(crate) struct Raw {
    pub(crate) cuda: Cuda,
    device: abi::Device,
}

impl Raw {
    pub(crate) fn of(gpu: &Gpu) -> Self {
        let cuda = Cuda::load().unwrap();
        let device = cuda.device(gpu.ordinal()).unwrap();
        let mut context = std::ptr::null_mut();
        // SAFETY: the primary context is retained until the drop.
        unsafe {
            cuda.primary_ctx_retain(&raw mut context, device).unwrap();
            cuda.ctx_set_current(context).unwrap();
        }
        Self { cuda, device }
    }

    pub(crate) fn alloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the context is current.
        unsafe { self.cuda.mem_alloc(&raw mut address, bytes) }.unwrap();
        address
    }

    pub(crate) fn alloc_managed(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the context is current.
        unsafe { self.cuda.mem_alloc_managed(&raw mut address, bytes, abi::MEM_ATTACH_GLOBAL) }
            .unwrap();
        address
    }

    pub(crate) fn free(&self, address: u64) {
        // SAFETY: allocated here.
        unsafe { self.cuda.mem_free(address) }.unwrap();
    }

    pub(crate) fn stream(&self) -> abi::Stream {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the context is current.
        unsafe { self.cuda.stream_create(&raw mut stream, abi::STREAM_NON_BLOCKING, 0) }.unwrap();
        stream
    }

    /// Maps physical memory: `pieces` allocations of the smallest size, one behind the other.
    pub(crate) fn mapped(&self, pieces: usize, shared: bool) -> (u64, usize) {
        let location = Location { kind: abi::MEM_LOCATION_TYPE_DEVICE, id: self.device };
        let properties = AllocationProperties {
            kind: abi::MEM_ALLOCATION_TYPE_PINNED,
            handle_types: if shared { abi::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } else { 0 },
            location,
            win32_metadata: std::ptr::null_mut(),
            compression: 0,
            gpu_direct_rdma: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let (mut bytes, mut address) = (0, 0);
        let flags = abi::MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = AccessDescription { location, flags };
        // SAFETY: each step uses what the one before gave.
        unsafe {
            let minimum = abi::MEM_ALLOC_GRANULARITY_MINIMUM;
            let cuda = &self.cuda;
            cuda.mem_get_allocation_granularity(&raw mut bytes, &raw const properties, minimum)
                .unwrap();
            cuda.mem_address_reserve(&raw mut address, bytes * pieces, 0, 0, 0).unwrap();
            for piece in 0..pieces {
                let mut handle = 0;
                let at = address + (piece * bytes) as u64;
                cuda.mem_create(&raw mut handle, bytes, &raw const properties, 0).unwrap();
                cuda.mem_map(at, bytes, 0, handle, 0).unwrap();
                cuda.mem_release(handle).unwrap();
            }
            cuda.mem_set_access(address, bytes * pieces, &raw const access, 1).unwrap();
        }
        (address, bytes)
    }

    pub(crate) fn unmap(&self, address: u64, bytes: usize) {
        // SAFETY: mapped by `mapped`.
        unsafe {
            self.cuda.mem_unmap(address, bytes).unwrap();
            self.cuda.mem_address_free(address, bytes).unwrap();
        }
    }

    /// Breaks the context for good: a kernel that writes where nothing is.
    pub(crate) fn break_context(&self) -> Result<(), CudaError> {
        const KERNEL: &std::ffi::CStr = c".version 6.4
.target sm_70
.address_size 64
.visible .entry stray() { .reg .u64 %a; mov.u64 %a, 64; st.global.u32 [%a], 1; ret; }
";
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: it harms this process's context alone, as it shall.
        unsafe {
            self.cuda.module_load_data(&raw mut module, KERNEL.as_ptr().cast::<c_void>()).unwrap();
            self.cuda.module_get_function(&raw mut function, module, c"stray".as_ptr()).unwrap();
            let none = std::ptr::null_mut();
            let stream = std::ptr::null_mut();
            self.cuda.launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, none, none).unwrap();
            self.cuda.stream_synchronize(stream)
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: retained by `of`.
        unsafe {
            let _ = self.cuda.ctx_set_current(std::ptr::null_mut());
            let _ = self.cuda.primary_ctx_release(self.device);
        }
    }
}
