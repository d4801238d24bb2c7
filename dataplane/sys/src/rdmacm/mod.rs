//! librdmacm: paths to peers, as `librdmacm.so.1` resolves them.
//!
//! Only what asks for a path is here: neither listening nor connecting.
//!
//! Invariant: the types are those of `rdma/rdma_cma.h`, which a test compares, and the library
//! stays loaded as long as the table lives. Whoever calls a function upholds the header's
//! contract; the owner types of `keyway_fabric::verbs` are the only callers.

#![allow(unsafe_code)]

pub mod abi;

use std::ffi::{c_int, c_void};

use libloading::Library;

use crate::library::{NativeError, load, symbol};
use abi::{Event, EventChannel, Id};

const LIBRARY: &str = "librdmacm.so.1";

/// A socket address, by pointer to whichever of its kinds.
pub type Sockaddr = c_void;

/// The functions of librdmacm that are used, under the header's names without `rdma_`.
#[allow(missing_docs, reason = "the library's manual pages document them")]
pub struct RdmaCm {
    pub create_event_channel: unsafe extern "C" fn() -> *mut EventChannel,
    pub destroy_event_channel: unsafe extern "C" fn(*mut EventChannel),
    pub create_id:
        unsafe extern "C" fn(*mut EventChannel, *mut *mut Id, *mut c_void, c_int) -> c_int,
    pub destroy_id: unsafe extern "C" fn(*mut Id) -> c_int,
    pub set_option: unsafe extern "C" fn(*mut Id, c_int, c_int, *mut c_void, usize) -> c_int,
    pub bind_addr: unsafe extern "C" fn(*mut Id, *mut Sockaddr) -> c_int,
    pub resolve_addr: unsafe extern "C" fn(*mut Id, *mut Sockaddr, *mut Sockaddr, c_int) -> c_int,
    pub resolve_route: unsafe extern "C" fn(*mut Id, c_int) -> c_int,
    pub get_cm_event: unsafe extern "C" fn(*mut EventChannel, *mut *mut Event) -> c_int,
    pub ack_cm_event: unsafe extern "C" fn(*mut Event) -> c_int,
    _library: Library,
}

impl RdmaCm {
    /// Loads the library.
    ///
    /// # Errors
    /// [`NativeError::Missing`] and [`NativeError::NoSymbol`].
    pub fn load() -> Result<Self, NativeError> {
        // SAFETY: librdmacm may be initialised at any time; the types are those of the header,
        // and the library is kept beside the pointers.
        unsafe {
            let library = load(LIBRARY)?;
            Ok(Self {
                create_event_channel: symbol(&library, LIBRARY, "rdma_create_event_channel")?,
                destroy_event_channel: symbol(&library, LIBRARY, "rdma_destroy_event_channel")?,
                create_id: symbol(&library, LIBRARY, "rdma_create_id")?,
                destroy_id: symbol(&library, LIBRARY, "rdma_destroy_id")?,
                set_option: symbol(&library, LIBRARY, "rdma_set_option")?,
                bind_addr: symbol(&library, LIBRARY, "rdma_bind_addr")?,
                resolve_addr: symbol(&library, LIBRARY, "rdma_resolve_addr")?,
                resolve_route: symbol(&library, LIBRARY, "rdma_resolve_route")?,
                get_cm_event: symbol(&library, LIBRARY, "rdma_get_cm_event")?,
                ack_cm_event: symbol(&library, LIBRARY, "rdma_ack_cm_event")?,
                _library: library,
            })
        }
    }
}
