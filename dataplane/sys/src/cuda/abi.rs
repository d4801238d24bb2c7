//! The part of `cuda.h` that Keyway uses, as C lays it out.
//!
//! The driver keeps every layout and number stable: what changes gets a new symbol version,
//! and [`super::Cuda`] asks for the versions declared here. The test at the end compares sizes,
//! offsets, numbers and the functions' types with the header where one is installed.
//!
//! Source: cuda.h and cudaTypedefs.h of CUDA 13.0.

#![allow(missing_docs, reason = "the driver API's manual documents its own names")]

use std::ffi::{c_int, c_uint, c_void};

/// `CUdevice`.
pub type Device = c_int;
/// `CUdeviceptr`: an address of device memory, or of host memory that the device reaches.
pub type DeviceAddress = u64;
/// `CUmemGenericAllocationHandle`.
pub type AllocationHandle = u64;
/// `CUdevice_attribute`.
pub type DeviceAttribute = c_uint;
/// `CUpointer_attribute`.
pub type PointerAttribute = c_uint;
/// `CUfunction_attribute`.
pub type FunctionAttribute = c_uint;
/// `CUmemAllocationHandleType`.
pub type HandleType = c_uint;
/// `CUmemAllocationGranularity_flags`.
pub type GranularityFlags = c_uint;
/// `CUmemRangeHandleType`.
pub type RangeHandleType = c_uint;
/// `CUflushGPUDirectRDMAWritesTarget`.
pub type FlushTarget = c_uint;
/// `CUflushGPUDirectRDMAWritesScope`.
pub type FlushScope = c_uint;

/// An opaque C type, known by pointer only.
macro_rules! opaque {
    ($($name:ident),+) => {$(
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )+};
}

opaque!(ContextState, StreamState, EventState, ModuleState, FunctionState);

pub type Context = *mut ContextState;
pub type Stream = *mut StreamState;
pub type Event = *mut EventState;
pub type Module = *mut ModuleState;
pub type Function = *mut FunctionState;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uuid {
    pub bytes: [u8; 16],
}

/// `CUipcMemHandle`: what another process of the host opens an allocation with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcMemHandle {
    pub reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProperties {
    pub kind: c_uint,
    pub handle_types: HandleType,
    pub location: Location,
    pub win32_metadata: *mut c_void,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessDescription {
    pub location: Location,
    pub flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyAttributes {
    pub source_order: c_uint,
    pub source_hint: Location,
    pub destination_hint: Location,
    pub flags: c_uint,
}

pub const SUCCESS: c_int = 0;
pub const ERROR_INVALID_VALUE: c_int = 1;
pub const ERROR_OUT_OF_MEMORY: c_int = 2;
pub const ERROR_DEINITIALIZED: c_int = 4;
pub const ERROR_NO_DEVICE: c_int = 100;
pub const ERROR_INVALID_DEVICE: c_int = 101;
pub const ERROR_INVALID_CONTEXT: c_int = 201;
pub const ERROR_ECC_UNCORRECTABLE: c_int = 214;
pub const ERROR_INVALID_HANDLE: c_int = 400;
pub const ERROR_NOT_FOUND: c_int = 500;
pub const ERROR_NOT_READY: c_int = 600;
pub const ERROR_ILLEGAL_ADDRESS: c_int = 700;
pub const ERROR_LAUNCH_TIMEOUT: c_int = 702;
pub const ERROR_CONTEXT_IS_DESTROYED: c_int = 709;
pub const ERROR_ASSERT: c_int = 710;
pub const ERROR_HOST_MEMORY_ALREADY_REGISTERED: c_int = 712;
pub const ERROR_HARDWARE_STACK_ERROR: c_int = 714;
pub const ERROR_LAUNCH_FAILED: c_int = 719;
pub const ERROR_NOT_SUPPORTED: c_int = 801;
pub const ERROR_MPS_CONNECTION_FAILED: c_int = 805;
pub const ERROR_MPS_CLIENT_TERMINATED: c_int = 810;
pub const ERROR_EXTERNAL_DEVICE: c_int = 911;
pub const ERROR_UNKNOWN: c_int = 999;

pub const DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: DeviceAttribute = 16;
pub const DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: DeviceAttribute = 40;
pub const DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: DeviceAttribute = 41;
pub const DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: DeviceAttribute = 91;
pub const DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: DeviceAttribute = 103;
pub const DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: DeviceAttribute = 116;
pub const DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: DeviceAttribute = 117;
pub const DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: DeviceAttribute = 118;
pub const DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: DeviceAttribute = 124;

pub const POINTER_ATTRIBUTE_MEMORY_TYPE: PointerAttribute = 2;
pub const POINTER_ATTRIBUTE_IS_MANAGED: PointerAttribute = 8;
pub const POINTER_ATTRIBUTE_DEVICE_ORDINAL: PointerAttribute = 9;
pub const POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: PointerAttribute = 10;
pub const POINTER_ATTRIBUTE_BUFFER_ID: PointerAttribute = 7;
pub const POINTER_ATTRIBUTE_RANGE_START_ADDR: PointerAttribute = 11;
pub const POINTER_ATTRIBUTE_RANGE_SIZE: PointerAttribute = 12;
pub const POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: PointerAttribute = 14;
pub const POINTER_ATTRIBUTE_MAPPING_SIZE: PointerAttribute = 18;
pub const POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: PointerAttribute = 19;
pub const POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: PointerAttribute = 20;

pub const MEMORYTYPE_HOST: c_uint = 1;
pub const MEMORYTYPE_DEVICE: c_uint = 2;

pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const MEMHOSTREGISTER_PORTABLE: c_uint = 1;
pub const MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;
pub const MEM_ATTACH_GLOBAL: c_uint = 1;
pub const IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
pub const STREAM_WAIT_VALUE_GEQ: c_uint = 0;
pub const STREAM_WRITE_VALUE_DEFAULT: c_uint = 0;

pub const MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: HandleType = 1;
pub const MEM_ALLOCATION_TYPE_PINNED: c_uint = 1;
pub const MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
pub const MEM_ACCESS_FLAGS_PROT_READWRITE: c_uint = 3;
pub const MEM_ALLOC_GRANULARITY_MINIMUM: GranularityFlags = 0;
pub const MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: RangeHandleType = 1;
pub const MEMCPY_SRC_ACCESS_ORDER_STREAM: c_uint = 1;

pub const FLUSH_TARGET_CURRENT_CTX: FlushTarget = 0;
pub const FLUSH_TO_OWNER: FlushScope = 100;
pub const GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: c_int = 100;

#[cfg(test)]
mod tests;
