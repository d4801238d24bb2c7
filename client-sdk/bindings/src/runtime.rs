//! The tokio runtime of this process.
//!
//! A program in another language has no runtime of its own, and may fork. Threads do not
//! survive a fork, so a child makes a new runtime when it first needs one; the parent's is left
//! alone, for its threads are not there to be joined. Neither is ever ended: one per process,
//! until it exits.
//!
//! Without a lock: a child may have been forked while another thread held one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

/// Most worker threads: more of them than this only pass tasks around.
const THREADS_MAX: usize = 32;

static CURRENT: ArcSwapOption<Owned> = ArcSwapOption::const_empty();

struct Owned {
    process: u32,
    runtime: &'static Runtime,
}

/// The runtime of this process, made by the first to ask.
///
/// # Errors
/// When its threads cannot be started.
pub fn runtime() -> Result<&'static Runtime, Failure> {
    let process = std::process::id();
    let current = CURRENT.load();
    if let Some(owned) = current.as_ref().filter(|owned| owned.process == process) {
        return Ok(owned.runtime);
    }
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let made = Builder::new_multi_thread()
        .worker_threads(threads.clamp(2, THREADS_MAX))
        .thread_name("keyway")
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let owned = Arc::new(Owned { process, runtime: Box::leak(Box::new(made)) });
    let runtime = owned.runtime;
    let before = CURRENT.compare_and_swap(&current, Some(owned));
    match before.as_ref() {
        // Another thread of this process was first. Ours stays idle: that happens once.
        Some(other) if other.process == process => Ok(other.runtime),
        _ => Ok(runtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_runtime() {
        let threads: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(|| std::ptr::from_ref(runtime().expect("starts")) as usize))
            .collect();
        let seen: Vec<usize> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
        let settled = std::ptr::from_ref(runtime().expect("is there")) as usize;
        assert!(seen.iter().all(|one| *one == settled), "{seen:?}");
    }
}
