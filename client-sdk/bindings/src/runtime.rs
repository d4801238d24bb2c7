//! The tokio runtime of this process.
//!
//! A program in another language has no runtime of its own, and may fork. It gets one per
//! process, which is never ended: nobody could say when.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;
use crate::process::{Made, PerProcess};

/// Most worker threads: more of them than this only pass tasks around.
const THREADS_MAX: usize = 32;

static RUNTIME: PerProcess<Runtime> = PerProcess::new();

/// The runtime of this process.
///
/// # Errors
/// When its threads cannot be started.
pub fn runtime() -> Result<Arc<Made<Runtime>>, Failure> {
    RUNTIME.get(|| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Builder::new_multi_thread()
            .worker_threads(threads.clamp(2, THREADS_MAX))
            .thread_name("keyway")
            .enable_all()
            .build()
            .map_err(Failure::Runtime)
    })
}
