//! GPUs: contexts, streams, the copy engine, and the kernels that come with the library.
//!
//! | what | where |
//! |---|---|
//! | an opened GPU, its limits | [`device`] |
//! | what the driver knows of an address | `pointer` |
//! | host memory that a GPU reaches at bus speed | [`pinned`] |
//! | streams and events: one owner type each | `stream` |
//! | a transfer's turn among the work of a caller's stream | `turn` |
//! | the copy engine: the only thread that gives a GPU work | [`copy`] |
//! | the kernels, loaded when first used | `kernels` |
//!
//! Ownership: what a GPU may touch is owned by the work that names it, and the work by the
//! engine's thread, until the GPU is done with it. Tasks that wait hold nothing that the GPU
//! needs, so dropping one frees nothing too early.

pub mod copy;
pub mod device;
mod error;
mod kernels;
pub mod pinned;
pub(crate) mod pointer;
mod stream;
mod turn;

pub use copy::{CopyBatch, CopyDone, CopyQueue, CopyStats};
pub use device::{Gpu, GpuInfo, GpuLimits, GpuUuid};
pub use error::GpuError;
pub use pinned::Pinned;
pub use turn::StreamTurn;
