//! GPU memory: a caller's own, lent by the range, and another process's, mapped here.
//!
//! - [`DeviceBuffer`], [`DeviceSliceMut`], [`DeviceSlice`]: the caller's memory under the same
//!   rules of lending as host memory. A slice keeps the memory allocated by itself, so a
//!   transfer that was cancelled cannot write into what was freed.
//! - [`DeviceExport`]: what another process of this host needs to map an allocation.
//! - [`DeviceMapping`]: another process's allocation, as mapped here.
//!
//! None of them gives out a reference to the bytes: the host cannot read them in place. Copies
//! go through the copy engine ([`crate::gpu::CopyQueue`]).

mod buffer;
mod dma_buf;
mod export;
mod mapping;

pub use buffer::{DeviceBuffer, DeviceSlice, DeviceSliceMut};
pub use export::{DeviceAllocation, DeviceExport, ExportHandle};
pub use mapping::DeviceMapping;
