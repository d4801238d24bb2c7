//! RDMA devices, as `libibverbs.so.1` lists them.
//!
//! Invariant: the pointers of a device list are used only between `ibv_get_device_list` and
//! `ibv_free_device_list`, in one function.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;

use crate::library::{NativeError, load, symbol};

const LIBRARY: &str = "libibverbs.so.1";

/// Devices looked at; no machine has as many adapters.
const DEVICES_MAX: usize = 1024;

/// `struct ibv_device`, known by pointer only.
#[repr(C)]
struct Device {
    _opaque: [u8; 0],
}

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);
type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;

/// The functions of libibverbs that are used.
pub struct Verbs {
    get_device_list: GetDeviceList,
    free_device_list: FreeDeviceList,
    get_device_name: GetDeviceName,
    _library: Library,
}

impl Verbs {
    /// Loads the library.
    ///
    /// # Errors
    /// [`NativeError::Missing`] and [`NativeError::NoSymbol`].
    pub fn load() -> Result<Self, NativeError> {
        // SAFETY: libibverbs may be initialised at any time; the types are those of
        // infiniband/verbs.h, and the library is kept beside the pointers.
        unsafe {
            let library = load(LIBRARY)?;
            Ok(Self {
                get_device_list: symbol(&library, LIBRARY, "ibv_get_device_list")?,
                free_device_list: symbol(&library, LIBRARY, "ibv_free_device_list")?,
                get_device_name: symbol(&library, LIBRARY, "ibv_get_device_name")?,
                _library: library,
            })
        }
    }

    /// The names of the RDMA devices, for example `mlx5_0`.
    ///
    /// # Errors
    /// [`NativeError::Call`] with the system's error number, for example when the kernel has
    /// no RDMA support.
    pub fn device_names(&self) -> Result<Vec<String>, NativeError> {
        let mut count: c_int = 0;
        // SAFETY: the function writes the number of devices and gives a list, or null.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = std::io::Error::last_os_error();
            return Err(NativeError::Call {
                call: "ibv_get_device_list",
                code: error.raw_os_error().unwrap_or(0).into(),
                name: Some(error.to_string()),
            });
        }
        let count = usize::try_from(count).unwrap_or(0).min(DEVICES_MAX);
        let names = (0..count)
            .filter_map(|index| {
                // SAFETY: the list holds `count` devices and is not freed yet.
                let name = unsafe { (self.get_device_name)(*list.add(index)) };
                // SAFETY: a name is a string that lives as long as its device.
                (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
            })
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        // SAFETY: the list came from this library, and no pointer into it is kept.
        unsafe { (self.free_device_list)(list) };
        Ok(names)
    }
}
