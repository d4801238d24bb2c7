//! What can go wrong with a GPU.

use std::sync::Arc;

use keyway_sys::NativeError;
use keyway_sys::cuda::{CudaError, abi};

use super::GpuUuid;
use crate::memory::MemoryError;

/// Why a GPU, or memory of one, cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no driver, or it finds no GPU.
    #[error("no GPU can be used here")]
    NoGpu(#[source] Arc<NativeError>),
    /// The driver was started in the parent of this process; it does not survive a fork.
    #[error("the GPU driver was started before this process forked")]
    Forked,
    /// There are fewer GPUs.
    #[error("there is no GPU {0}")]
    NoSuchGpu(u32),
    /// None of this process's GPUs has this identifier.
    #[error("no GPU here is {0}")]
    NoSuchUuid(GpuUuid),
    /// The address is one of host memory, pinned or not.
    #[error("the address is not one of device memory")]
    NotDeviceMemory,
    /// The memory migrates between host and GPU: neither copies nor adapters may rely on it.
    #[error("managed memory cannot be a target; allocate device memory")]
    Managed,
    /// Nothing is allocated there: it was freed, or it never was memory.
    #[error("no memory is allocated at this address (any more)")]
    Freed,
    /// The memory is another GPU's.
    #[error("the memory is of GPU {found}, not of GPU {wanted}")]
    WrongGpu {
        /// The GPU asked for.
        wanted: u32,
        /// The GPU that has it.
        found: u32,
    },
    /// The range leaves its memory.
    #[error("bytes {offset}..+{length} are not inside {available} bytes of device memory")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes there are.
        available: u64,
    },
    /// The range lies in several allocations, each of which has an export of its own.
    #[error("the range spans several allocations; hand out each apart")]
    Scattered,
    /// The memory cannot be given to another process.
    #[error("the memory cannot be exported: {0}")]
    NotExportable(&'static str),
    /// The GPU or the driver has too little memory left.
    #[error("the GPU is out of memory")]
    OutOfMemory(#[source] CudaError),
    /// The kernel gives the host no memory.
    #[error("the host is out of memory")]
    Memory(#[source] MemoryError),
    /// The kernel gives no host memory.
    #[error("there is no host memory for the GPU to reach")]
    NoHostMemory,
    /// The host memory is pinned already, by another part of this process.
    #[error("some of the host memory is pinned already")]
    AlreadyPinned,
    /// The process's context on the GPU is broken; nothing works in it any more.
    #[error("the GPU is lost to this process")]
    Lost(#[source] CudaError),
    /// A call failed for this request alone.
    #[error("the GPU driver refused")]
    Call(#[source] CudaError),
    /// The GPU cannot be asked for that.
    #[error("{0} cannot be had on a GPU")]
    Unsupported(&'static str),
    /// The copy engine's thread did not start.
    #[error("the copy engine's thread did not start")]
    Thread(#[source] Arc<std::io::Error>),
    /// The copy engine was shut down.
    #[error("the copy engine is closed")]
    Closed,
}

impl GpuError {
    /// Whether nothing will work on this GPU until the process is started anew.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Forked)
    }
}

impl From<CudaError> for GpuError {
    fn from(error: CudaError) -> Self {
        match error.code() {
            Some(abi::ERROR_OUT_OF_MEMORY) => Self::OutOfMemory(error),
            Some(abi::ERROR_HOST_MEMORY_ALREADY_REGISTERED) => Self::AlreadyPinned,
            Some(code) if breaks_context(code) => Self::Lost(error),
            _ => Self::Call(error),
        }
    }
}

/// Whether the manual says of this error that "the process must be terminated and relaunched",
/// or that the context is gone.
fn breaks_context(code: i32) -> bool {
    matches!(
        code,
        abi::ERROR_DEINITIALIZED
            | abi::ERROR_ECC_UNCORRECTABLE
            | abi::ERROR_ILLEGAL_ADDRESS
            | abi::ERROR_LAUNCH_TIMEOUT
            | abi::ERROR_EXTERNAL_DEVICE
            | abi::ERROR_UNKNOWN
    ) || (abi::ERROR_CONTEXT_IS_DESTROYED..=abi::ERROR_ASSERT).contains(&code)
        || (abi::ERROR_HARDWARE_STACK_ERROR..=abi::ERROR_LAUNCH_FAILED).contains(&code)
        || (abi::ERROR_MPS_CONNECTION_FAILED..=abi::ERROR_MPS_CLIENT_TERMINATED).contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_break_the_context_are_told_from_the_others() {
        for (code, lost) in [(700, true), (719, true), (214, true), (1, false), (400, false)] {
            let error = CudaError::Failed { call: "cuEventQuery", code, name: None };
            assert_eq!(GpuError::from(error).is_lost(), lost, "{code}");
        }
        let full = CudaError::Failed { call: "cuMemAlloc", code: 2, name: None };
        assert!(matches!(GpuError::from(full), GpuError::OutOfMemory(_)));
    }
}
