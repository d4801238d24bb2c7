//! libibverbs: RDMA devices, as `libibverbs.so.1` offers them.
//!
//! A table of the library's exported functions. What the header defines inline (posting,
//! polling, windows) is called through the provider's own table, [`abi::ContextOps`], as the
//! header does.
//!
//! Invariant: the types are those of `infiniband/verbs.h`, and the library stays loaded as
//! long as the table lives. Whoever calls a function upholds the header's contract; the owner
//! types of `keyway_fabric::verbs` are the only callers.

#![allow(unsafe_code)]

pub mod abi;
pub mod mlx5;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use libloading::Library;

use crate::library::{NativeError, load, symbol};
use abi::{
    AddressHandle, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr,
    Pd, PortAttr, Qp, QpAttr, QpInitAttr, Srq, SrqInitAttr,
};

const LIBRARY: &str = "libibverbs.so.1";

impl Verbs {
    /// Registers a range of a dma-buf, where the library can: rdma-core from version 34 on.
    ///
    /// # Errors
    /// [`NativeError::NotOffered`], [`NativeError::Call`].
    ///
    /// # Safety
    /// The domain lives; the descriptor is a dma-buf's.
    pub unsafe fn register_dma_buf(
        &self,
        domain: *mut Pd,
        range: DmaBufRange,
        access: c_int,
    ) -> Result<NonNull<Mr>, NativeError> {
        let symbol = "ibv_reg_dmabuf_mr";
        let register =
            self.reg_dmabuf_mr.ok_or(NativeError::NotOffered { library: LIBRARY, symbol })?;
        let DmaBufRange { fd, offset, bytes, address } = range;
        // SAFETY: upheld by the caller.
        let mr = unsafe { register(domain, offset, bytes, address, fd, access) };
        NonNull::new(mr).ok_or_else(|| last_error(symbol))
    }
}

/// A range of a dma-buf, and the address that peers name its first byte by.
#[derive(Clone, Copy, Debug)]
pub struct DmaBufRange {
    /// The descriptor.
    pub fd: c_int,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: usize,
    /// The first byte's address in work requests.
    pub address: u64,
}

/// Devices looked at; no machine has as many adapters.
const DEVICES_MAX: usize = 1024;

/// Declares the table and its loader.
macro_rules! table {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)+
     $(~ $newer:ident = $newer_name:literal:
        fn($($newer_argument:ty),*) -> $newer_result:ty;)+) => {
        /// The functions of libibverbs that are used, under the header's names without `ibv_`.
        #[allow(missing_docs, reason = "the library's manual pages document them")]
        pub struct Verbs {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)+
            $(pub $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> $newer_result>,)+
            _library: Library,
        }

        impl Verbs {
            /// Loads the library.
            ///
            /// # Errors
            /// [`NativeError::Missing`] and [`NativeError::NoSymbol`].
            pub fn load() -> Result<Self, NativeError> {
                // SAFETY: libibverbs may be initialised at any time; the types are those of
                // the header, and the library is kept beside the pointers.
                unsafe {
                    let library = load(LIBRARY)?;
                    Ok(Self {
                        $($field: symbol(&library, LIBRARY, $name)?,)+
                        $($newer: symbol(&library, LIBRARY, $newer_name).ok(),)+
                        _library: library,
                    })
                }
            }
        }
    };
}

table! {
    get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = "ibv_free_device_list": fn(*mut *mut Device) -> ();
    get_device_name = "ibv_get_device_name": fn(*mut Device) -> *const c_char;
    open_device = "ibv_open_device": fn(*mut Device) -> *mut Context;
    close_device = "ibv_close_device": fn(*mut Context) -> c_int;
    query_device = "ibv_query_device": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = "ibv_query_port": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_pkey = "ibv_query_pkey": fn(*mut Context, u8, c_int, *mut u16) -> c_int;
    query_gid_table = "_ibv_query_gid_table":
        fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    get_async_event = "ibv_get_async_event": fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event = "ibv_ack_async_event": fn(*mut AsyncEvent) -> ();
    event_type_str = "ibv_event_type_str": fn(c_int) -> *const c_char;
    wc_status_str = "ibv_wc_status_str": fn(c_int) -> *const c_char;
    alloc_pd = "ibv_alloc_pd": fn(*mut Context) -> *mut Pd;
    dealloc_pd = "ibv_dealloc_pd": fn(*mut Pd) -> c_int;
    reg_mr = "ibv_reg_mr": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = "ibv_dereg_mr": fn(*mut Mr) -> c_int;
    create_comp_channel = "ibv_create_comp_channel": fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = "ibv_destroy_comp_channel": fn(*mut CompChannel) -> c_int;
    create_cq = "ibv_create_cq":
        fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = "ibv_destroy_cq": fn(*mut Cq) -> c_int;
    get_cq_event = "ibv_get_cq_event":
        fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = "ibv_ack_cq_events": fn(*mut Cq, u32) -> ();
    create_qp = "ibv_create_qp": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = "ibv_modify_qp": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = "ibv_destroy_qp": fn(*mut Qp) -> c_int;
    create_ah = "ibv_create_ah": fn(*mut Pd, *mut AhAttr) -> *mut AddressHandle;
    destroy_ah = "ibv_destroy_ah": fn(*mut AddressHandle) -> c_int;
    create_srq = "ibv_create_srq": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq = "ibv_destroy_srq": fn(*mut Srq) -> c_int;

    // Newer libraries'.
    ~ reg_dmabuf_mr = "ibv_reg_dmabuf_mr": fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
    ~ qp_to_qp_ex = "ibv_qp_to_qp_ex": fn(*mut Qp) -> *mut mlx5::QpEx;
}

impl Verbs {
    /// The names of the RDMA devices, for example `mlx5_0`.
    ///
    /// # Errors
    /// [`NativeError::Call`] with the system's error number, for example when the kernel has
    /// no RDMA support.
    pub fn device_names(&self) -> Result<Vec<String>, NativeError> {
        self.each_device(|_, name| Some(name.to_owned()))
    }

    /// Opens the device with this name; `None` when there is none, or another process's
    /// permissions keep it closed.
    ///
    /// # Errors
    /// [`NativeError::Call`] when there is a device and it cannot be opened.
    pub fn open(&self, wanted: &str) -> Result<Option<*mut Context>, NativeError> {
        let opened = self.each_device(|device, name| {
            (name == wanted).then(|| {
                // SAFETY: the device is of a list that is not freed yet.
                let context = unsafe { (self.open_device)(device) };
                if context.is_null() { Err(last_error("ibv_open_device")) } else { Ok(context) }
            })
        })?;
        opened.into_iter().next().transpose()
    }

    fn each_device<T>(
        &self,
        mut visit: impl FnMut(*mut Device, &str) -> Option<T>,
    ) -> Result<Vec<T>, NativeError> {
        let mut count: c_int = 0;
        // SAFETY: the function writes the number of devices and gives a list, or null.
        let list = unsafe { (self.get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(last_error("ibv_get_device_list"));
        }
        let count = usize::try_from(count).unwrap_or(0).min(DEVICES_MAX);
        let found = (0..count)
            .filter_map(|index| {
                // SAFETY: the list holds `count` devices and is not freed yet.
                let device = unsafe { *list.add(index) };
                // SAFETY: as above.
                let name = unsafe { (self.get_device_name)(device) };
                if name.is_null() {
                    return None;
                }
                // SAFETY: a name is a string that lives as long as its device.
                let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
                visit(device, &name)
            })
            .collect();
        // SAFETY: the list came from this library; an opened context does not point into it.
        unsafe { (self.free_device_list)(list) };
        Ok(found)
    }
}

/// The failure that `errno` tells of.
pub fn last_error(call: &'static str) -> NativeError {
    let error = std::io::Error::last_os_error();
    NativeError::Call {
        call,
        code: error.raw_os_error().unwrap_or(0).into(),
        name: Some(error.to_string()),
    }
}

/// The failure that a returned error number tells of.
pub fn call_error(call: &'static str, code: c_int) -> NativeError {
    let error = std::io::Error::from_raw_os_error(code);
    NativeError::Call { call, code: code.into(), name: Some(error.to_string()) }
}
