//! Memory that devices touch, and the links that carry it.
//!
//! - [`gpu`]: GPUs, their copy engines, and kernels.
//! - [`memory`]: regions, leases, and callers' own buffers, in the host and in GPUs.
//! - [`verbs`]: RDMA links, and the keys under which peers reach memory.
//! - [`ipc`]: the same between two processes of one host, without an adapter.
//!
//! Both ends use this room: the storage node reads and writes disks out of leases, a client
//! hands slices of its own memory to transfers. Ownership moves by value with the work, so
//! that a cancelled transfer cannot free memory under a device.
//!
//! What may not enter: what the bytes mean. No plan, no chunk, no tenant.

pub mod gpu;
pub mod ipc;
mod link_error;
pub mod memory;
pub mod verbs;

pub use keyway_sys::NativeError;
pub use link_error::LinkError;
