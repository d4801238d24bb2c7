//! GPUs, as `libcuda.so.1` names them. No context is created on any of them.
//!
//! Invariant: `cuInit` succeeded before any other function of the table is called: it is
//! called in [`Cuda::load`], the only way to a table.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library;

use crate::library::{NativeError, load, symbol};

const LIBRARY: &str = "libcuda.so.1";

/// Longest device name that is asked for.
const NAME_BYTES: usize = 256;

/// Devices looked at; no machine has as many.
const DEVICES_MAX: c_int = 1024;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceGetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The functions of the CUDA driver that are used.
pub struct Cuda {
    driver_get_version: DriverGetVersion,
    device_get_count: DeviceGetCount,
    device_get: DeviceGet,
    device_get_name: DeviceGetName,
    get_error_name: Option<GetErrorName>,
    _library: Library,
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
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// [`NativeError::Missing`], [`NativeError::NoSymbol`], and [`NativeError::Call`] when
    /// the driver finds no device or does not match its kernel module.
    pub fn load() -> Result<Self, NativeError> {
        // SAFETY: the driver's library may be initialised at any time; the types are those
        // of cuda.h, and the library is kept beside the pointers.
        let (cuda, init) = unsafe {
            let library = load(LIBRARY)?;
            let init: Init = symbol(&library, LIBRARY, "cuInit")?;
            let cuda = Self {
                driver_get_version: symbol(&library, LIBRARY, "cuDriverGetVersion")?,
                device_get_count: symbol(&library, LIBRARY, "cuDeviceGetCount")?,
                device_get: symbol(&library, LIBRARY, "cuDeviceGet")?,
                device_get_name: symbol(&library, LIBRARY, "cuDeviceGetName")?,
                get_error_name: symbol(&library, LIBRARY, "cuGetErrorName").ok(),
                _library: library,
            };
            (cuda, init)
        };
        // SAFETY: `cuInit` takes flags, which must be 0.
        cuda.check("cuInit", unsafe { init(0) })?;
        Ok(cuda)
    }

    /// The newest CUDA version that the driver serves.
    ///
    /// # Errors
    /// [`NativeError::Call`].
    pub fn driver_version(&self) -> Result<CudaVersion, NativeError> {
        let mut version: c_int = 0;
        // SAFETY: the function writes one integer.
        let code = unsafe { (self.driver_get_version)(&raw mut version) };
        self.check("cuDriverGetVersion", code)?;
        let version = u32::try_from(version).unwrap_or(0);
        Ok(CudaVersion { major: version / 1000, minor: version % 1000 / 10 })
    }

    /// The names of the GPUs, in the driver's order.
    ///
    /// # Errors
    /// [`NativeError::Call`].
    pub fn device_names(&self) -> Result<Vec<String>, NativeError> {
        let mut count: c_int = 0;
        // SAFETY: the function writes one integer.
        self.check("cuDeviceGetCount", unsafe { (self.device_get_count)(&raw mut count) })?;
        (0..count.min(DEVICES_MAX)).map(|ordinal| self.device_name(ordinal)).collect()
    }

    fn device_name(&self, ordinal: c_int) -> Result<String, NativeError> {
        let mut device: c_int = 0;
        // SAFETY: the function writes one device handle, an integer.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&raw mut device, ordinal) })?;
        let mut name = [0u8; NAME_BYTES];
        // SAFETY: the function writes at most `NAME_BYTES` bytes, ending with a zero.
        let code = unsafe {
            (self.device_get_name)(name.as_mut_ptr().cast(), NAME_BYTES as c_int, device)
        };
        self.check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NativeError> {
        if code == 0 {
            return Ok(());
        }
        let name = self.get_error_name.and_then(|get_error_name| {
            let mut name: *const c_char = std::ptr::null();
            // SAFETY: the function writes a pointer to a static string, or null.
            let known = unsafe { get_error_name(code, &raw mut name) } == 0 && !name.is_null();
            // SAFETY: known names are static strings of the library, which is loaded.
            known.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
        });
        Err(NativeError::Call { call, code: code.into(), name })
    }
}
