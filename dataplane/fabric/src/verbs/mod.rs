//! RDMA: devices, memory registrations, queue pairs, windows.
//!
//! | what | where |
//! |---|---|
//! | a device, its limits, its ports | [`device`] |
//! | the ports that are wanted, opened | [`open`] |
//! | protection domains and registered memory | [`domain`] |
//! | completion queue, queue pair, memory window: one owner type each | `queue` |
//! | a port's thread, and who posts and polls while it waits | [`port`], `reactor`, `seat`, `link_state` |
//! | destroying what a device may still touch | `undertaker` |
//! | a connection, as tasks use it | [`link`](mod@link) |
//! | the way to a peer, as RDMA-CM resolves it | [`route`], `resolve` |
//! | memory that a peer may reach, until its key is dead | [`armed`] |
//! | dynamically connected transport: initiators | [`dynamic`] |
//! | its other end, and its test | [`dynamic_target`], [`dynamic_test`](mod@dynamic_test) |
//! | what an adapter can really do | [`self_test`](mod@self_test) |
//!
//! Ownership: memory that a device may touch is owned by the work that names it, and the work
//! by the port's reactor, until a completion says that the device is done with it or the queue
//! pair no longer exists. Tasks that wait for a work hold nothing that the device needs, so
//! dropping one frees nothing too early.

pub mod armed;
pub mod device;
mod device_test;
pub mod domain;
pub mod dynamic;
pub mod dynamic_target;
pub mod dynamic_test;
mod lend_costs;
pub mod link;
mod link_state;
pub mod open;
pub mod port;
mod queue;
mod reactor;
mod resolve;
pub mod route;
mod seat;
pub mod self_test;
mod undertaker;
mod waker;
mod work;

use std::sync::Arc;

use keyway_sys::NativeError;

pub use armed::Armed;
pub use device::{Device, GidKind, Quirks};
pub use domain::{Access, Anchor, Domain, Registration};
pub use dynamic::{DcDevice, DcTarget, Initiator};
pub use dynamic_target::ListeningTarget;
pub use dynamic_test::{NoDynamic, dynamic_test};
pub use link::{Batch, Landed, Link, PendingLink, Posted};

pub use crate::LinkError;
use crate::gpu::GpuError;
use crate::memory::MemoryError;
pub use device_test::device_memory_test;
pub use lend_costs::LendCosts;
pub use open::{Opened, open_ports, open_ports_for};
pub use port::{LinkShape, Port, PortInfo};
pub use route::{Marks, PathRecord, RESOLVE_MAX, ResolveError, Route};
pub use self_test::{SelfTest, self_test};

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library, or a call into it, failed.
    #[error(transparent)]
    Native(#[from] NativeError),
    /// There is no such device, or it may not be opened.
    #[error("no RDMA device {0}")]
    NoDevice(String),
    /// The device has no such port, or the port has no address.
    #[error("{device} has no usable port {port}: {why}")]
    NoPort {
        /// The device.
        device: String,
        /// The port's number.
        port: u8,
        /// What is missing.
        why: &'static str,
    },
    /// The port's completion queue holds no more links.
    #[error("the port has as many links as its completion queue holds")]
    TooManyLinks,
    /// The port's thread did not start.
    #[error("the port's thread did not start")]
    Thread(#[source] Arc<std::io::Error>),
    /// The kernel binds no windows to device memory.
    #[error("no window can be bound to device memory")]
    NoWindows,
    /// The GPU gives no way to its memory.
    #[error("the GPU's memory cannot be registered")]
    Gpu(#[from] GpuError),
    /// There is no memory to be registered.
    #[error("there is no memory to be registered")]
    Memory(#[from] MemoryError),
    /// A registration that is to end has other holders.
    #[error("the registration is in use")]
    InUse,
    /// The adapter has no dynamically connected transport.
    #[error("the adapter is not mlx5")]
    NotMlx5,
    /// The port was closed.
    #[error("the port is closed")]
    Closed,
    /// The peer's address cannot be reached from this port.
    #[error("the peer is on another kind of network")]
    OtherNetwork,
    /// No packet of this port reaches the peer.
    #[error(transparent)]
    NoPath(#[from] ResolveError),
}
