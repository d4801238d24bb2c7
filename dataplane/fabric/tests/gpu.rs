//! Goal: what is said of GPU memory holds on a real GPU.
//!
//! Method: every claim is tried against the driver itself: with memory of all kinds, with a
//! second process (this binary, started again), with copies of all sizes and alignments, and by
//! breaking the context in a process of its own. Prints `skipped` without a GPU.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

#[path = "gpu/copies.rs"]
mod copies;
#[path = "gpu/digests.rs"]
mod digests;
#[path = "gpu/memory.rs"]
mod memory;
#[path = "gpu/processes.rs"]
mod processes;
#[path = "gpu/raw.rs"]
mod raw;
#[path = "gpu/turns.rs"]
mod turns;

use std::io::Write as _;
use std::sync::Arc;

use keyway_fabric::memory::Gpu;

/// The first GPU; says why there is none.
fn gpu() -> Option<Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

/// Says why a test did nothing, past the runner's capture.
fn skipped(why: &str) {
    let thread = std::thread::current();
    let said = format!("\nskipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(said.as_bytes());
}

/// Bytes that do not repeat.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noise = vec![0; bytes];
    random.fill(&mut noise);
    noise
}
