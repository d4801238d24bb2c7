use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use super::super::table::ENTRIES;
use super::*;

macro_rules! layout {
    ($out:ident, $rust:ty, $c:literal; $($field:ident = $member:literal),*) => {
        writeln!($out, "{} sizeof {}", $c, size_of::<$rust>()).unwrap();
        $(writeln!($out, "{} {} {}", $c, $member, offset_of!($rust, $field)).unwrap();)*
    };
}

/// Every size, offset and number that the table relies on: `type member value` a line.
fn ours() -> String {
    let mut out = String::new();
    layout!(out, Uuid, "CUuuid"; bytes = "bytes");
    layout!(out, IpcMemHandle, "CUipcMemHandle"; reserved = "reserved");
    layout!(out, Location, "CUmemLocation"; kind = "type", id = "id");
    layout!(out, AllocationProperties, "CUmemAllocationProp"; kind = "type",
        handle_types = "requestedHandleTypes", location = "location",
        win32_metadata = "win32HandleMetaData", gpu_direct_rdma = "allocFlags.gpuDirectRDMACapable",
        usage = "allocFlags.usage");
    layout!(out, AccessDescription, "CUmemAccessDesc"; location = "location", flags = "flags");
    layout!(out, CopyAttributes, "CUmemcpyAttributes"; source_order = "srcAccessOrder",
        source_hint = "srcLocHint", destination_hint = "dstLocHint", flags = "flags");
    for (name, value) in CONSTANTS {
        writeln!(out, "constant {name} {value}").unwrap();
    }
    out
}

/// The header's numbers under its own names.
const CONSTANTS: &[(&str, i64)] = &[
    ("CUDA_SUCCESS", SUCCESS as i64),
    ("CUDA_ERROR_INVALID_VALUE", ERROR_INVALID_VALUE as i64),
    ("CUDA_ERROR_OUT_OF_MEMORY", ERROR_OUT_OF_MEMORY as i64),
    ("CUDA_ERROR_DEINITIALIZED", ERROR_DEINITIALIZED as i64),
    ("CUDA_ERROR_NO_DEVICE", ERROR_NO_DEVICE as i64),
    ("CUDA_ERROR_INVALID_DEVICE", ERROR_INVALID_DEVICE as i64),
    ("CUDA_ERROR_INVALID_CONTEXT", ERROR_INVALID_CONTEXT as i64),
    ("CUDA_ERROR_ECC_UNCORRECTABLE", ERROR_ECC_UNCORRECTABLE as i64),
    ("CUDA_ERROR_INVALID_HANDLE", ERROR_INVALID_HANDLE as i64),
    ("CUDA_ERROR_NOT_FOUND", ERROR_NOT_FOUND as i64),
    ("CUDA_ERROR_NOT_READY", ERROR_NOT_READY as i64),
    ("CUDA_ERROR_ILLEGAL_ADDRESS", ERROR_ILLEGAL_ADDRESS as i64),
    ("CUDA_ERROR_LAUNCH_TIMEOUT", ERROR_LAUNCH_TIMEOUT as i64),
    ("CUDA_ERROR_CONTEXT_IS_DESTROYED", ERROR_CONTEXT_IS_DESTROYED as i64),
    ("CUDA_ERROR_ASSERT", ERROR_ASSERT as i64),
    ("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", ERROR_HOST_MEMORY_ALREADY_REGISTERED as i64),
    ("CUDA_ERROR_HARDWARE_STACK_ERROR", ERROR_HARDWARE_STACK_ERROR as i64),
    ("CUDA_ERROR_LAUNCH_FAILED", ERROR_LAUNCH_FAILED as i64),
    ("CUDA_ERROR_NOT_SUPPORTED", ERROR_NOT_SUPPORTED as i64),
    ("CUDA_ERROR_MPS_CONNECTION_FAILED", ERROR_MPS_CONNECTION_FAILED as i64),
    ("CUDA_ERROR_MPS_CLIENT_TERMINATED", ERROR_MPS_CLIENT_TERMINATED as i64),
    ("CUDA_ERROR_EXTERNAL_DEVICE", ERROR_EXTERNAL_DEVICE as i64),
    ("CUDA_ERROR_UNKNOWN", ERROR_UNKNOWN as i64),
    ("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i64),
    ("CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT", DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT as i64),
    ("CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING", DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING as i64),
    (
        "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
        DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM as i64,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as i64,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED",
        DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED as i64,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
        DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as i64,
    ),
    (
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING",
        DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as i64,
    ),
    ("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED", DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED as i64),
    ("CU_POINTER_ATTRIBUTE_MEMORY_TYPE", POINTER_ATTRIBUTE_MEMORY_TYPE as i64),
    ("CU_POINTER_ATTRIBUTE_IS_MANAGED", POINTER_ATTRIBUTE_IS_MANAGED as i64),
    ("CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL", POINTER_ATTRIBUTE_DEVICE_ORDINAL as i64),
    (
        "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE",
        POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as i64,
    ),
    ("CU_POINTER_ATTRIBUTE_BUFFER_ID", POINTER_ATTRIBUTE_BUFFER_ID as i64),
    ("CU_POINTER_ATTRIBUTE_RANGE_START_ADDR", POINTER_ATTRIBUTE_RANGE_START_ADDR as i64),
    ("CU_POINTER_ATTRIBUTE_RANGE_SIZE", POINTER_ATTRIBUTE_RANGE_SIZE as i64),
    ("CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES", POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as i64),
    ("CU_POINTER_ATTRIBUTE_MAPPING_SIZE", POINTER_ATTRIBUTE_MAPPING_SIZE as i64),
    ("CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR", POINTER_ATTRIBUTE_MAPPING_BASE_ADDR as i64),
    ("CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID", POINTER_ATTRIBUTE_MEMORY_BLOCK_ID as i64),
    ("CU_MEMORYTYPE_HOST", MEMORYTYPE_HOST as i64),
    ("CU_MEMORYTYPE_DEVICE", MEMORYTYPE_DEVICE as i64),
    ("CU_STREAM_NON_BLOCKING", STREAM_NON_BLOCKING as i64),
    ("CU_EVENT_DISABLE_TIMING", EVENT_DISABLE_TIMING as i64),
    ("CU_MEMHOSTREGISTER_PORTABLE", MEMHOSTREGISTER_PORTABLE as i64),
    ("CU_MEMHOSTREGISTER_DEVICEMAP", MEMHOSTREGISTER_DEVICEMAP as i64),
    ("CU_MEM_ATTACH_GLOBAL", MEM_ATTACH_GLOBAL as i64),
    ("CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", IPC_MEM_LAZY_ENABLE_PEER_ACCESS as i64),
    ("CU_STREAM_WAIT_VALUE_GEQ", STREAM_WAIT_VALUE_GEQ as i64),
    ("CU_STREAM_WRITE_VALUE_DEFAULT", STREAM_WRITE_VALUE_DEFAULT as i64),
    ("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as i64),
    ("CU_MEM_ALLOCATION_TYPE_PINNED", MEM_ALLOCATION_TYPE_PINNED as i64),
    ("CU_MEM_LOCATION_TYPE_DEVICE", MEM_LOCATION_TYPE_DEVICE as i64),
    ("CU_MEM_ACCESS_FLAGS_PROT_READWRITE", MEM_ACCESS_FLAGS_PROT_READWRITE as i64),
    ("CU_MEM_ALLOC_GRANULARITY_MINIMUM", MEM_ALLOC_GRANULARITY_MINIMUM as i64),
    ("CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD", MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as i64),
    ("CU_MEMCPY_SRC_ACCESS_ORDER_STREAM", MEMCPY_SRC_ACCESS_ORDER_STREAM as i64),
    ("CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX", FLUSH_TARGET_CURRENT_CTX as i64),
    ("CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER", FLUSH_TO_OWNER as i64),
    ("CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER", GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i64),
];

/// The header's type for one of ours.
fn c_type(rust: &str) -> String {
    if let Some(pointed) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(pointed));
    }
    if let Some(pointed) = rust.strip_prefix("*const ") {
        return format!("const {} *", c_type(pointed)).replace("const void * *", "void **");
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "u8" => "unsigned char",
        "u32" => "cuuint32_t",
        "u64" => "unsigned long long",
        "usize" => "size_t",
        "f32" => "float",
        "Device" => "CUdevice",
        "DeviceAddress" => "CUdeviceptr",
        "AllocationHandle" => "CUmemGenericAllocationHandle",
        "DeviceAttribute" => "CUdevice_attribute",
        "PointerAttribute" => "CUpointer_attribute",
        "FunctionAttribute" => "CUfunction_attribute",
        "HandleType" => "CUmemAllocationHandleType",
        "GranularityFlags" => "CUmemAllocationGranularity_flags",
        "RangeHandleType" => "CUmemRangeHandleType",
        "FlushTarget" => "CUflushGPUDirectRDMAWritesTarget",
        "FlushScope" => "CUflushGPUDirectRDMAWritesScope",
        "Context" => "CUcontext",
        "Stream" => "CUstream",
        "Event" => "CUevent",
        "Module" => "CUmodule",
        "Function" => "CUfunction",
        "Uuid" => "CUuuid",
        "IpcMemHandle" => "CUipcMemHandle",
        "AllocationProperties" => "CUmemAllocationProp",
        "AccessDescription" => "CUmemAccessDesc",
        "CopyAttributes" => "CUmemcpyAttributes",
        other => panic!("{other} has no type in the header"),
    }
    .to_owned()
}

/// What the C compiler must agree with: our sizes, offsets, numbers and functions' types.
fn program(ours: &str) -> String {
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\n#include <cudaTypedefs.h>\n",
    );
    for entry in ENTRIES {
        let arguments: Vec<_> = entry.arguments.iter().map(|kind| c_type(kind)).collect();
        // The one function whose first argument is an enum that we keep as a number.
        let arguments = match entry.name {
            "cuGetErrorName" => "CUresult, const char **".to_owned(),
            _ => arguments.join(", "),
        };
        let (name, since) = (entry.name, entry.since);
        writeln!(
            program,
            "_Static_assert(__builtin_types_compatible_p(PFN_{name}_v{since}, \
             CUresult (*)({arguments})), \"{name}\");"
        )
        .unwrap();
    }
    program.push_str("int main(void) {\n");
    for line in ours.lines() {
        let (rest, _) = line.rsplit_once(' ').unwrap();
        let (kind, member) = rest.rsplit_once(' ').unwrap();
        let value = match member {
            constant if kind == "constant" => constant.to_owned(),
            "sizeof" => format!("sizeof({kind})"),
            member => format!("offsetof({kind}, {member})"),
        };
        writeln!(program, "printf(\"%s %zu\\n\", \"{rest}\", (size_t){value});").unwrap();
    }
    program.push_str("return 0; }\n");
    program
}

/// Where the header is: as the environment says, or where the toolkit puts it.
fn include() -> PathBuf {
    let said = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("include"));
    said.unwrap_or_else(|| PathBuf::from("/usr/local/cuda/include"))
}

/// Says why a test did nothing, past the runner's capture.
fn skipped(why: &str) {
    let thread = std::thread::current();
    let said = format!("\nskipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(said.as_bytes());
}

/// Goal: our layouts, numbers and functions are the header's. Method: the C compiler prints its
/// own, and asserts the functions' types.
#[test]
fn declarations_are_those_of_the_header() {
    if !include().join("cudaTypedefs.h").exists() {
        return skipped("cudaTypedefs.h is not installed; CUDA_HOME names another place");
    }
    let ours = ours();
    let folder = std::env::temp_dir().join(format!("keyway-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program(&ours)).unwrap();
    let compiled =
        Command::new("cc").arg("-I").arg(include()).arg(&source).arg("-o").arg(&binary).output();
    let theirs = match compiled {
        Ok(output) if output.status.success() => {
            String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap()
        }
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            skipped(&format!("no C compiler: {error}"));
            ours.clone()
        }
    };
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(ours, theirs);
}
