//! The CUDA driver API, as `libcuda.so.1` offers it.
//!
//! A table of functions, each an option: a driver that lacks one answers a call of it with
//! [`CudaError::NotOffered`]. Nothing here creates a context; whoever does names its GPU.
//!
//! Invariant: `cuInit` succeeded before any other function of the table is called, since
//! [`Cuda::load`] calls it and is the only way to a table. The library is never unloaded: the
//! driver starts threads and exit handlers of its own, and error names point into it. Whoever
//! calls an unsafe function upholds the manual's contract; the owner types of `keyway_fabric`
//! are the only callers.

#![allow(unsafe_code)]

pub mod abi;
mod table;

use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;

use libloading::Library;

use crate::library::{NativeError, load};
use abi::{Device, DeviceAttribute, Uuid};
use table::Table;

const LIBRARY: &str = "libcuda.so.1";

/// Longest device name that is asked for.
const NAME_BYTES: usize = 256;

/// Devices looked at; no machine has as many.
const DEVICES_MAX: u32 = 1024;

/// The functions of the CUDA driver that are used, under their names without `cu`.
pub struct Cuda {
    table: Table,
    _library: ManuallyDrop<Library>,
}

/// Why a call of the driver did not do what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver is too old for the function.
    #[error("{LIBRARY} has no {0}")]
    NotOffered(&'static str),
    /// The function failed.
    #[error("{call} failed with {code} ({})", .name.unwrap_or("no name"))]
    Failed {
        /// The function.
        call: &'static str,
        /// Its error number, a `CUresult`.
        code: c_int,
        /// The driver's own name for it.
        name: Option<&'static str>,
    },
    /// What was asked about is not finished yet. Of queries alone.
    #[error("not finished yet")]
    NotReady,
}

impl CudaError {
    /// The error number; none where no function was called.
    pub fn code(&self) -> Option<c_int> {
        match self {
            Self::NotOffered(_) => None,
            Self::Failed { code, .. } => Some(*code),
            Self::NotReady => Some(abi::ERROR_NOT_READY),
        }
    }
}

impl From<CudaError> for NativeError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::NotOffered(symbol) => Self::NotOffered { library: LIBRARY, symbol },
            CudaError::Failed { call, code, name } => {
                Self::Call { call, code: code.into(), name: name.map(str::to_owned) }
            }
            CudaError::NotReady => {
                Self::Call { call: "a query", code: abi::ERROR_NOT_READY.into(), name: None }
            }
        }
    }
}

/// A version of the driver's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl Cuda {
    /// Loads and initialises the driver. Takes up to seconds where it has to wake the GPUs.
    ///
    /// # Errors
    /// [`NativeError::Missing`], [`NativeError::NotOffered`], and [`NativeError::Call`] when
    /// the driver finds no device or does not match its kernel module.
    pub fn load() -> Result<Self, NativeError> {
        // SAFETY: the driver's library may be initialised at any time.
        let library = ManuallyDrop::new(unsafe { load(LIBRARY) }?);
        // SAFETY: it is the driver, and is never unloaded.
        let table = unsafe { Table::resolve(&library) };
        let cuda = Self { table, _library: library };
        // SAFETY: `cuInit` takes flags, which must be 0.
        unsafe { cuda.init(0) }?;
        Ok(cuda)
    }

    /// The newest CUDA version that the driver serves.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn driver_version(&self) -> Result<CudaVersion, CudaError> {
        let mut version: c_int = 0;
        // SAFETY: the function writes one integer.
        unsafe { self.driver_get_version(&raw mut version) }?;
        let version = u32::try_from(version).unwrap_or(0);
        Ok(CudaVersion { major: version / 1000, minor: version % 1000 / 10 })
    }

    /// How many GPUs the driver shows this process.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn device_count(&self) -> Result<u32, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: the function writes one integer.
        unsafe { self.device_get_count(&raw mut count) }?;
        Ok(u32::try_from(count).unwrap_or(0).min(DEVICES_MAX))
    }

    /// The GPU of this number, in the driver's order.
    ///
    /// # Errors
    /// [`CudaError`], for example when there are fewer.
    pub fn device(&self, ordinal: u32) -> Result<Device, CudaError> {
        let mut device: Device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the function writes one device handle, an integer.
        unsafe { self.device_get(&raw mut device, ordinal) }?;
        Ok(device)
    }

    /// A GPU's name.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn device_name(&self, device: Device) -> Result<String, CudaError> {
        let mut name = [0u8; NAME_BYTES];
        // SAFETY: the function writes at most `NAME_BYTES` bytes, ending with a zero.
        unsafe { self.device_get_name(name.as_mut_ptr().cast(), NAME_BYTES as c_int, device) }?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// A GPU's identifier, or that of its part where it is divided.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn device_uuid(&self, device: Device) -> Result<[u8; 16], CudaError> {
        let mut uuid = Uuid::default();
        // SAFETY: the function writes 16 bytes.
        unsafe { self.device_get_uuid(&raw mut uuid, device) }?;
        Ok(uuid.bytes)
    }

    /// One of the numbers that describe a GPU.
    ///
    /// # Errors
    /// [`CudaError`], for example when the driver does not know the attribute.
    pub fn device_attribute(
        &self,
        device: Device,
        attribute: DeviceAttribute,
    ) -> Result<c_int, CudaError> {
        let mut value: c_int = 0;
        // SAFETY: the function writes one integer.
        unsafe { self.device_get_attribute(&raw mut value, attribute, device) }?;
        Ok(value)
    }

    /// The bytes of a GPU's memory.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn device_memory(&self, device: Device) -> Result<u64, CudaError> {
        let mut bytes: usize = 0;
        // SAFETY: the function writes one size.
        unsafe { self.device_total_mem(&raw mut bytes, device) }?;
        Ok(bytes as u64)
    }

    /// The names of the GPUs, in the driver's order.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn device_names(&self) -> Result<Vec<String>, CudaError> {
        let name = |ordinal| self.device(ordinal).and_then(|device| self.device_name(device));
        (0..self.device_count()?).map(name).collect()
    }

    fn outcome(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        match code {
            abi::SUCCESS => Ok(()),
            // Common, so without a look at its name.
            abi::ERROR_NOT_READY => Err(CudaError::NotReady),
            code => Err(CudaError::Failed { call, code, name: self.name_of(code) }),
        }
    }

    fn name_of(&self, code: c_int) -> Option<&'static str> {
        // Not through its method: that would ask for the name of its own failure.
        let get_error_name = self.table.get_error_name?;
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the function writes a pointer to a static string, or null.
        let known = unsafe { get_error_name(code, &raw mut name) } == 0 && !name.is_null();
        // SAFETY: known names are static strings of the library, which is never unloaded.
        known.then(|| unsafe { CStr::from_ptr(name) }.to_str().ok())?
    }
}
