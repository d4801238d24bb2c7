//! The driver's functions that are used, each with the version of its type.
//!
//! Invariant: a pointer taken for `cuName` at version `since` is of the type that
//! `PFN_cuName_v<since>` names in cudaTypedefs.h: `cuGetProcAddress` gives the newest variant
//! that is not newer than the version asked for, and the plain export of the fallback is that
//! very variant.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::abi::{
    AccessDescription, AllocationHandle, AllocationProperties, Context, CopyAttributes, Device,
    DeviceAddress, DeviceAttribute, Event, FlushScope, FlushTarget, Function, FunctionAttribute,
    GranularityFlags, HandleType, IpcMemHandle, Module, PointerAttribute, RangeHandleType, Stream,
    Uuid,
};
use super::{Cuda, CudaError};

/// `cuGetProcAddress_v2`, of CUDA 12.0.
type Resolve =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// A function of the table: what the test compares with the header.
#[cfg(test)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) since: u32,
    pub(super) arguments: &'static [&'static str],
}

/// Declares the table, its loader, and a call for each function.
macro_rules! table {
    ($($method:ident = $name:literal, $since:literal, $export:literal:
        fn($($argument:ident: $kind:ty),*);)+) => {
        /// What of the table this driver has.
        #[derive(Default)]
        pub(super) struct Table {
            $(pub(super) $method: Option<unsafe extern "C" fn($($kind),*) -> c_int>,)+
        }

        impl Table {
            /// Looks everything up.
            ///
            /// # Safety
            /// The library is the CUDA driver's, and is never unloaded.
            pub(super) unsafe fn resolve(library: &Library) -> Self {
                // SAFETY: the type is that of cudaTypedefs.h.
                let resolve = unsafe { library.get::<Resolve>(b"cuGetProcAddress_v2") };
                let resolve = resolve.ok().map(|found| *found);
                Self {
                    // SAFETY: upheld by the caller and by the module's invariant.
                    $($method: unsafe { find(library, resolve, $name, $since, $export) },)+
                }
            }
        }

        impl Cuda {
            $(
                #[doc = concat!("`", $name, "`, as of version ", stringify!($since), ".")]
                ///
                /// # Errors
                /// [`CudaError`], also where the driver does not have the function.
                ///
                /// # Safety
                /// What the driver API's manual asks of the caller of this function.
                #[allow(clippy::too_many_arguments, reason = "the header's own")]
                pub unsafe fn $method(&self, $($argument: $kind),*) -> Result<(), CudaError> {
                    let Some(function) = self.table.$method else {
                        return Err(CudaError::NotOffered($name));
                    };
                    // SAFETY: the type is right by the invariant; the rest is the caller's.
                    self.outcome($name, unsafe { function($($argument),*) })
                }
            )+
        }

        #[cfg(test)]
        pub(super) const ENTRIES: &[Entry] = &[
            $(Entry { name: $name, since: $since, arguments: &[$(stringify!($kind)),*] },)+
        ];
    };
}

/// Finds one function: by version where the driver offers that, else by its exported name.
///
/// # Safety
/// `T` is the function pointer of this name and version; the library is never unloaded.
unsafe fn find<T: Copy>(
    library: &Library,
    resolve: Option<Resolve>,
    name: &str,
    since: c_int,
    export: &str,
) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    if let (Some(resolve), Ok(name)) = (resolve, CString::new(name)) {
        let mut found: *mut c_void = std::ptr::null_mut();
        let mut status: c_int = 0;
        // SAFETY: the function writes a pointer and a number; flags of 0 ask for the variants
        // of the legacy default stream, whose types are the plain ones.
        let code = unsafe { resolve(name.as_ptr(), &raw mut found, since, 0, &raw mut status) };
        if code == 0 && !found.is_null() {
            // SAFETY: a function's address, of this type by the caller's word.
            return Some(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&found) });
        }
    }
    // SAFETY: upheld by the caller.
    unsafe { library.get::<T>(export.as_bytes()) }.ok().map(|found| *found)
}

table! {
    init = "cuInit", 2000, "cuInit": fn(flags: c_uint);
    driver_get_version = "cuDriverGetVersion", 2020, "cuDriverGetVersion": fn(version: *mut c_int);
    get_error_name = "cuGetErrorName", 6000, "cuGetErrorName":
        fn(code: c_int, name: *mut *const c_char);

    device_get_count = "cuDeviceGetCount", 2000, "cuDeviceGetCount": fn(count: *mut c_int);
    device_get = "cuDeviceGet", 2000, "cuDeviceGet": fn(device: *mut Device, ordinal: c_int);
    device_get_name = "cuDeviceGetName", 2000, "cuDeviceGetName":
        fn(name: *mut c_char, length: c_int, device: Device);
    device_get_uuid = "cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2":
        fn(uuid: *mut Uuid, device: Device);
    device_get_attribute = "cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute":
        fn(value: *mut c_int, attribute: DeviceAttribute, device: Device);
    device_total_mem = "cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2":
        fn(bytes: *mut usize, device: Device);

    primary_ctx_retain = "cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain":
        fn(context: *mut Context, device: Device);
    primary_ctx_release = "cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2":
        fn(device: Device);
    ctx_push_current = "cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2": fn(context: Context);
    ctx_pop_current = "cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2": fn(context: *mut Context);
    ctx_set_current = "cuCtxSetCurrent", 4000, "cuCtxSetCurrent": fn(context: Context);
    ctx_get_stream_priority_range = "cuCtxGetStreamPriorityRange", 5050,
        "cuCtxGetStreamPriorityRange": fn(least: *mut c_int, greatest: *mut c_int);

    mem_alloc = "cuMemAlloc", 3020, "cuMemAlloc_v2":
        fn(address: *mut DeviceAddress, bytes: usize);
    mem_alloc_managed = "cuMemAllocManaged", 6000, "cuMemAllocManaged":
        fn(address: *mut DeviceAddress, bytes: usize, flags: c_uint);
    mem_free = "cuMemFree", 3020, "cuMemFree_v2": fn(address: DeviceAddress);
    mem_get_address_range = "cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2":
        fn(base: *mut DeviceAddress, bytes: *mut usize, address: DeviceAddress);
    pointer_get_attribute = "cuPointerGetAttribute", 4000, "cuPointerGetAttribute":
        fn(data: *mut c_void, attribute: PointerAttribute, address: DeviceAddress);
    pointer_get_attributes = "cuPointerGetAttributes", 7000, "cuPointerGetAttributes":
        fn(count: c_uint, attributes: *mut PointerAttribute, data: *mut *mut c_void,
           address: DeviceAddress);

    memcpy_to_device = "cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2":
        fn(to: DeviceAddress, from: *const c_void, bytes: usize);
    memcpy_from_device = "cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2":
        fn(to: *mut c_void, from: DeviceAddress, bytes: usize);
    memcpy_async = "cuMemcpyAsync", 4000, "cuMemcpyAsync":
        fn(to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Stream);
    memcpy_to_device_async = "cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2":
        fn(to: DeviceAddress, from: *const c_void, bytes: usize, stream: Stream);
    memcpy_from_device_async = "cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2":
        fn(to: *mut c_void, from: DeviceAddress, bytes: usize, stream: Stream);
    memcpy_within_device_async = "cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2":
        fn(to: DeviceAddress, from: DeviceAddress, bytes: usize, stream: Stream);
    memcpy_batch_async = "cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync":
        fn(to: *mut DeviceAddress, from: *mut DeviceAddress, bytes: *mut usize, count: usize,
           attributes: *mut CopyAttributes, attribute_starts: *mut usize,
           attribute_count: usize, failed_at: *mut usize, stream: Stream);
    memset_async = "cuMemsetD8Async", 3020, "cuMemsetD8Async":
        fn(address: DeviceAddress, value: u8, bytes: usize, stream: Stream);

    stream_create = "cuStreamCreateWithPriority", 5050, "cuStreamCreateWithPriority":
        fn(stream: *mut Stream, flags: c_uint, priority: c_int);
    stream_destroy = "cuStreamDestroy", 4000, "cuStreamDestroy_v2": fn(stream: Stream);
    stream_query = "cuStreamQuery", 2000, "cuStreamQuery": fn(stream: Stream);
    stream_synchronize = "cuStreamSynchronize", 2000, "cuStreamSynchronize": fn(stream: Stream);
    stream_wait_event = "cuStreamWaitEvent", 3020, "cuStreamWaitEvent":
        fn(stream: Stream, event: Event, flags: c_uint);
    stream_write_value32 = "cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2":
        fn(stream: Stream, address: DeviceAddress, value: u32, flags: c_uint);
    stream_wait_value32 = "cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2":
        fn(stream: Stream, address: DeviceAddress, value: u32, flags: c_uint);

    event_create = "cuEventCreate", 2000, "cuEventCreate": fn(event: *mut Event, flags: c_uint);
    event_record = "cuEventRecord", 2000, "cuEventRecord": fn(event: Event, stream: Stream);
    event_query = "cuEventQuery", 2000, "cuEventQuery": fn(event: Event);
    event_synchronize = "cuEventSynchronize", 2000, "cuEventSynchronize": fn(event: Event);
    event_destroy = "cuEventDestroy", 4000, "cuEventDestroy_v2": fn(event: Event);
    event_elapsed_time = "cuEventElapsedTime", 2000, "cuEventElapsedTime":
        fn(milliseconds: *mut f32, begin: Event, end: Event);

    mem_host_register = "cuMemHostRegister", 6050, "cuMemHostRegister_v2":
        fn(base: *mut c_void, bytes: usize, flags: c_uint);
    mem_host_unregister = "cuMemHostUnregister", 4000, "cuMemHostUnregister":
        fn(base: *mut c_void);
    mem_host_get_device_pointer = "cuMemHostGetDevicePointer", 3020,
        "cuMemHostGetDevicePointer_v2":
        fn(address: *mut DeviceAddress, base: *mut c_void, flags: c_uint);

    ipc_get_mem_handle = "cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle":
        fn(handle: *mut IpcMemHandle, address: DeviceAddress);
    ipc_open_mem_handle = "cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2":
        fn(address: *mut DeviceAddress, handle: IpcMemHandle, flags: c_uint);
    ipc_close_mem_handle = "cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle":
        fn(address: DeviceAddress);

    mem_address_reserve = "cuMemAddressReserve", 10020, "cuMemAddressReserve":
        fn(address: *mut DeviceAddress, bytes: usize, alignment: usize, hint: DeviceAddress,
           flags: u64);
    mem_address_free = "cuMemAddressFree", 10020, "cuMemAddressFree":
        fn(address: DeviceAddress, bytes: usize);
    mem_create = "cuMemCreate", 10020, "cuMemCreate":
        fn(handle: *mut AllocationHandle, bytes: usize, properties: *const AllocationProperties,
           flags: u64);
    mem_release = "cuMemRelease", 10020, "cuMemRelease": fn(handle: AllocationHandle);
    mem_map = "cuMemMap", 10020, "cuMemMap":
        fn(address: DeviceAddress, bytes: usize, offset: usize, handle: AllocationHandle,
           flags: u64);
    mem_unmap = "cuMemUnmap", 10020, "cuMemUnmap": fn(address: DeviceAddress, bytes: usize);
    mem_set_access = "cuMemSetAccess", 10020, "cuMemSetAccess":
        fn(address: DeviceAddress, bytes: usize, access: *const AccessDescription, count: usize);
    mem_get_allocation_granularity = "cuMemGetAllocationGranularity", 10020,
        "cuMemGetAllocationGranularity":
        fn(bytes: *mut usize, properties: *const AllocationProperties, flags: GranularityFlags);
    mem_get_allocation_properties = "cuMemGetAllocationPropertiesFromHandle", 10020,
        "cuMemGetAllocationPropertiesFromHandle":
        fn(properties: *mut AllocationProperties, handle: AllocationHandle);
    mem_retain_allocation_handle = "cuMemRetainAllocationHandle", 11000,
        "cuMemRetainAllocationHandle":
        fn(handle: *mut AllocationHandle, address: *mut c_void);
    mem_export = "cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle":
        fn(shareable: *mut c_void, handle: AllocationHandle, kind: HandleType, flags: u64);
    mem_import = "cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle":
        fn(handle: *mut AllocationHandle, shareable: *mut c_void, kind: HandleType);
    mem_get_handle_for_address_range = "cuMemGetHandleForAddressRange", 11070,
        "cuMemGetHandleForAddressRange":
        fn(handle: *mut c_void, address: DeviceAddress, bytes: usize, kind: RangeHandleType,
           flags: u64);
    flush_gpu_direct_rdma_writes = "cuFlushGPUDirectRDMAWrites", 11030,
        "cuFlushGPUDirectRDMAWrites": fn(target: FlushTarget, scope: FlushScope);

    module_load_data = "cuModuleLoadData", 2000, "cuModuleLoadData":
        fn(module: *mut Module, image: *const c_void);
    module_unload = "cuModuleUnload", 2000, "cuModuleUnload": fn(module: Module);
    module_get_function = "cuModuleGetFunction", 2000, "cuModuleGetFunction":
        fn(function: *mut Function, module: Module, name: *const c_char);
    func_set_attribute = "cuFuncSetAttribute", 9000, "cuFuncSetAttribute":
        fn(function: Function, attribute: FunctionAttribute, value: c_int);
    launch_kernel = "cuLaunchKernel", 4000, "cuLaunchKernel":
        fn(function: Function, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
           block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Stream,
           parameters: *mut *mut c_void, extra: *mut *mut c_void);
}
