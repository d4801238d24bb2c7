//! Host memory in three shapes.
//!
//! - [`Region`]: page-aligned pages from the kernel, given back on drop.
//! - [`HostBuffer`], [`HostSlice`], [`HostSliceMut`]: a caller's own memory, lent to
//!   transfers by the range.

mod host;
mod region;

pub use host::{HostBuffer, HostSlice, HostSliceMut, LendError};
pub use region::{MemoryError, PAGE_BYTES, Region};
