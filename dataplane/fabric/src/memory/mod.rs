//! Memory that transfers use, in the host and in GPUs.
//!
//! - [`Region`]: page-aligned pages from the kernel, given back on drop.
//! - [`LeasePool`] and [`Lease`]: a bounded pool of aligned buffers, carved from one region
//!   that a device can register once.
//! - [`Arena`] and [`Extent`]: runs of one registered region that are filled once and read often.
//! - [`Slab`] and [`Pieces`]: a registered region that transfers are copied out of and into.
//! - [`Destination`]: a lease or an extent that a copy fills.
//! - [`SharedMemory`]: pages that another process of this host can map as well.
//! - [`HostBuffer`], [`HostSlice`], [`HostSliceMut`]: a caller's own memory, lent to
//!   transfers by the range.
//! - [`device`]: the same for GPU memory, and what another process's memory takes.

mod arena;
mod buddy;
mod destination;
pub mod device;
mod host;
mod lends;
mod lent;
mod pool;
mod region;
mod shared;
mod slab;

pub use crate::gpu::{
    CopyBatch, CopyDone, CopyQueue, CopyStats, Gpu, GpuError, GpuLimits, GpuUuid, Pinned,
};
pub use arena::{Arena, ArenaStats, EXTENT_BYTES_MAX, Extent, OpenExtent};
pub use destination::Destination;
pub use device::{
    DeviceAllocation, DeviceBuffer, DeviceExport, DeviceMapping, DeviceSlice, DeviceSliceMut,
    ExportHandle,
};
pub use host::{HostBuffer, HostSlice, HostSliceMut};
pub use lends::LendError;
pub use lent::BufferLife;
pub use pool::{Lease, LeaseClass, LeasePool, PoolStats};
pub use region::{HugePages, MemoryError, PAGE_BYTES, Region};
pub use shared::{ShareError, SharedMemory};
pub use slab::{PIECE_BYTES_MAX, Pieces, Slab};
