//! An opened device, and what it says of itself.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use keyway_proto::{Gid, LinkLayer, PathMtu};
use keyway_sys::NativeError;
use keyway_sys::verbs::abi::{self, AsyncEvent, Context, DeviceAttr, GidEntry, PortAttr};
use keyway_sys::verbs::{Verbs, call_error, last_error};

use super::{LinkError, VerbsError};

/// The vendor id of Linux' soft-RoCE driver.
const VENDOR_RXE: u32 = 0x00ff_ffff;
/// GIDs of one device that are looked at.
const GIDS_MAX: usize = 1024;

/// An opened device. Everything made from it holds it.
///
/// Invariant: `context` came from `ibv_open_device` and is closed once, when the last holder
/// is gone.
pub struct Device {
    verbs: Arc<Verbs>,
    context: NonNull<Context>,
    name: Box<str>,
    attributes: DeviceAttr,
}

// SAFETY: libibverbs' contexts may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above, at once.
unsafe impl Sync for Device {}

/// How a device differs from what the specification promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// A window that was invalidated twice brings the kernel down: both ends must never
    /// invalidate one.
    pub double_invalidation_kills: bool,
    /// A completion's flag for an invalidated key stands one bit too low.
    pub invalidation_flag_low: bool,
}

/// The protocol that a GID is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE version 1: Ethernet frames.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

/// A port, as the device describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortState {
    pub(super) active: bool,
    pub(super) link: LinkLayer,
    pub(super) lid: u16,
    pub(super) mtu: PathMtu,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug)]
pub(super) struct GidAt {
    pub(super) index: u8,
    pub(super) gid: Gid,
    pub(super) kind: GidKind,
}

/// Something that happened to a device or to what was made from it.
pub(super) struct Event {
    /// The queue pair, for its events.
    pub(super) element: *mut c_void,
    pub(super) kind: EventKind,
}

/// What happened.
pub(super) enum EventKind {
    /// A peer was refused access.
    Access,
    /// A queue pair failed.
    QueuePair(&'static str),
    /// The device is lost.
    Device(&'static str),
    /// Nothing that concerns links.
    Other,
}

impl Device {
    /// Opens the device with this name.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`], [`VerbsError::Native`].
    pub fn open(verbs: &Arc<Verbs>, name: &str) -> Result<Arc<Self>, VerbsError> {
        let context = verbs
            .open(name)?
            .and_then(NonNull::new)
            .ok_or_else(|| VerbsError::NoDevice(name.to_owned()))?;
        // SAFETY: a structure of numbers, for which zeros are a value.
        let mut attributes = unsafe { std::mem::zeroed::<DeviceAttr>() };
        // SAFETY: the context is open and the structure is the one that the call fills.
        let code = unsafe { (verbs.query_device)(context.as_ptr(), &raw mut attributes) };
        let device = Self { verbs: Arc::clone(verbs), context, name: name.into(), attributes };
        if code != 0 {
            return Err(call_error("ibv_query_device", code).into());
        }
        non_blocking(device.async_events())?;
        Ok(Arc::new(device))
    }

    /// The device's name, for example `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The firmware's version, as the device tells it.
    pub fn firmware(&self) -> String {
        // SAFETY: the array is zeroed before the call and the library ends it with a zero.
        let text = unsafe { CStr::from_ptr(self.attributes.fw_ver.as_ptr()) };
        text.to_string_lossy().into_owned()
    }

    /// Whether the device says that it has type-2B memory windows.
    pub fn has_windows(&self) -> bool {
        self.attributes.device_cap_flags & abi::DEVICE_MEM_WINDOW_TYPE_2B != 0
    }

    /// Whether it is Linux' soft-RoCE.
    pub fn is_soft_roce(&self) -> bool {
        self.attributes.vendor_id == VENDOR_RXE
    }

    /// How it differs from the specification.
    pub fn quirks(&self) -> Quirks {
        let rxe = self.is_soft_roce();
        Quirks { double_invalidation_kills: rxe, invalidation_flag_low: rxe }
    }

    /// Number of ports.
    pub fn ports(&self) -> u8 {
        self.attributes.phys_port_cnt
    }

    pub(super) fn attributes(&self) -> &DeviceAttr {
        &self.attributes
    }

    pub(super) fn verbs(&self) -> &Arc<Verbs> {
        &self.verbs
    }

    pub(super) fn context(&self) -> NonNull<Context> {
        self.context
    }

    pub(super) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context lives as long as `self`, and the provider filled its table
        // before `ibv_open_device` returned.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    /// Readable when an event is there.
    pub(super) fn async_events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context lives as long as `self`, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }

    /// Takes an event. It is acknowledged at once: a queue pair's destruction waits for that.
    pub(super) fn next_async_event(&self) -> Option<Event> {
        let mut event = AsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: the context is open, and its descriptor non-blocking.
        let code = unsafe { (self.verbs.get_async_event)(self.context.as_ptr(), &raw mut event) };
        if code != 0 {
            return None;
        }
        // SAFETY: the event was just taken.
        unsafe { (self.verbs.ack_async_event)(&raw mut event) };
        // SAFETY: the library gives a string of its own for every number.
        let what = unsafe { text((self.verbs.event_type_str)(event.event_type)) };
        let kind = match event.event_type {
            abi::EVENT_QP_ACCESS_ERR => EventKind::Access,
            abi::EVENT_QP_FATAL | abi::EVENT_QP_REQ_ERR => EventKind::QueuePair(what),
            abi::EVENT_DEVICE_FATAL | abi::EVENT_CQ_ERR => EventKind::Device(what),
            _ => EventKind::Other,
        };
        Some(Event { element: event.element, kind })
    }

    /// What a completion's status means.
    pub(super) fn failure(&self, status: c_int) -> LinkError {
        match status {
            abi::WC_REM_ACCESS_ERR | abi::WC_LOC_ACCESS_ERR => LinkError::Access,
            abi::WC_RETRY_EXC_ERR | abi::WC_RNR_RETRY_EXC_ERR => LinkError::Unreachable,
            status => {
                // SAFETY: the library gives a string of its own for every number.
                let status = unsafe { text((self.verbs.wc_status_str)(status)) };
                LinkError::Request { status: status.into() }
            }
        }
    }

    pub(super) fn port(&self, number: u8) -> Result<PortState, VerbsError> {
        let mut attributes = PortAttr::default();
        // SAFETY: the context is open; the structure is at least as long as the one that this
        // symbol fills.
        let code =
            unsafe { (self.verbs.query_port)(self.context.as_ptr(), number, &raw mut attributes) };
        if code != 0 {
            return Err(call_error("ibv_query_port", code).into());
        }
        let mtu = usize::try_from(attributes.active_mtu - 1).ok();
        Ok(PortState {
            active: attributes.state == abi::PORT_ACTIVE,
            link: match attributes.link_layer {
                abi::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Infiniband,
            },
            lid: attributes.lid,
            mtu: mtu.and_then(|at| PathMtu::ALL.get(at)).copied().unwrap_or(PathMtu::B1024),
        })
    }

    /// Whether it was taken out of the running host: the kernel then destroys all that was made of
    /// it, and answers every call with this error from then on.
    pub(super) fn is_gone(&self) -> bool {
        let mut attributes = PortAttr::default();
        // SAFETY: as in `port`.
        let code =
            unsafe { (self.verbs.query_port)(self.context.as_ptr(), 1, &raw mut attributes) };
        code == rustix::io::Errno::IO.raw_os_error()
    }

    /// The partition at the beginning of a port's table, which its queue pairs are in.
    pub(super) fn pkey(&self, port: u8) -> Result<u16, NativeError> {
        let mut pkey = 0;
        // SAFETY: the context is open, and the key is written where it is said.
        let code =
            unsafe { (self.verbs.query_pkey)(self.context.as_ptr(), port, 0, &raw mut pkey) };
        if code == 0 { Ok(u16::from_be(pkey)) } else { Err(last_error("ibv_query_pkey")) }
    }

    /// The GIDs of a port, in the table's order.
    pub(super) fn gids(&self, port: u8) -> Result<Vec<GidAt>, VerbsError> {
        let mut entries = vec![GidEntry::default(); GIDS_MAX];
        // SAFETY: the context is open, and the table has room for as many entries as said.
        let count = unsafe {
            (self.verbs.query_gid_table)(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<GidEntry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let code = i32::try_from(-count).unwrap_or(i32::MAX);
            return Err(call_error("ibv_query_gid_table", code).into());
        };
        let of_port = |entry: &&GidEntry| entry.port_num == u32::from(port);
        let found = entries.iter().take(count).filter(of_port).filter_map(|entry| {
            let kind = match entry.gid_type {
                abi::GID_TYPE_IB => GidKind::Infiniband,
                abi::GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                abi::GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                _ => return None,
            };
            let index = u8::try_from(entry.gid_index).ok()?;
            Some(GidAt { index, gid: Gid(entry.gid), kind })
        });
        Ok(found.collect())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made from the context held this device, so nothing is left.
        let code = unsafe { (self.verbs.close_device)(self.context.as_ptr()) };
        if code != 0 {
            tracing::error!(device = %self.name, code, "cannot close an RDMA device");
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A string of the library's own.
///
/// # Safety
/// `pointer` is null or a string that is never freed.
unsafe fn text(pointer: *const c_char) -> &'static str {
    if pointer.is_null() {
        return "unknown";
    }
    // SAFETY: upheld by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or("unknown")
}

/// Has reads of a descriptor return at once.
pub(super) fn non_blocking(fd: BorrowedFd<'_>) -> Result<(), VerbsError> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|error| {
        let (code, name) = (error.raw_os_error().into(), Some(error.to_string()));
        VerbsError::Native(NativeError::Call { call: "ioctl(FIONBIO)", code, name })
    })
}
