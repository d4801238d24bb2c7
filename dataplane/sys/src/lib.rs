//! Native libraries, found at run time.
//!
//! One small table of functions per library, filled by `dlopen`; a machine without the
//! library starts normally and says so. Every symbol is looked up on its own, every call
//! answers with a `Result`.
//!
//! - [`verbs`]: `libibverbs.so.1`, RDMA devices.
//! - [`rdmacm`]: `librdmacm.so.1`, paths to RDMA peers.
//! - [`cuda`]: `libcuda.so.1`, GPUs.
//!
//! What may not enter: policy. This room says what is there; others decide what to use.

pub mod cuda;
mod library;
pub mod probe;
pub mod rdmacm;
pub mod verbs;

pub use library::NativeError;
pub use probe::{Probe, probe};
