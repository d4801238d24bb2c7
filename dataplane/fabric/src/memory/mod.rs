//! Host memory in four shapes.
//!
//! - [`Region`]: page-aligned pages from the kernel, given back on drop.
//! - [`LeasePool`] and [`Lease`]: a bounded pool of aligned buffers, carved from one region
//!   that a device can register once.
//! - [`SharedMemory`]: pages that another process of this host can map as well.
//! - [`HostBuffer`], [`HostSlice`], [`HostSliceMut`]: a caller's own memory, lent to
//!   transfers by the range.

mod host;
mod lends;
mod pool;
mod region;
mod shared;

pub use host::{BufferLife, HostBuffer, HostSlice, HostSliceMut};
pub use lends::LendError;
pub use pool::{Lease, LeaseClass, LeasePool, PoolStats};
pub use region::{MemoryError, PAGE_BYTES, Region};
pub use shared::{ShareError, SharedMemory};
