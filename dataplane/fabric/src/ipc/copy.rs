//! Copies between this process's memory and another one's.
//!
//! Sketch: one pass of `memcpy` at memory bandwidth, about 10 GB/s a thread; no system call.
//! Short ones are made where they are asked for, long ones on a blocking thread.
//!
//! Invariant: a [`Run`]'s far side lies within its mapping, which is kept mapped. The far side's
//! process may read and write there at any time; nothing here depends on what stands there, and
//! no reference to it is made.

#![allow(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;

use crate::memory::{Destination, SharedMemory};

/// Bytes that are copied without changing threads: about 25 µs.
const AT_ONCE_BYTES: usize = 256 << 10;

/// Copies that are made together, and what they keep.
#[derive(Default)]
pub(super) struct HostCopies {
    runs: Vec<Run>,
    /// What the runs' far sides lie in.
    mappings: Vec<Arc<SharedMemory>>,
    bytes: usize,
    destinations: Vec<Destination>,
}

/// One copy.
struct Run {
    near: Near,
    mapping: usize,
    /// Of the far side, within the mapping.
    offset: usize,
    length: usize,
}

enum Near {
    /// From these bytes.
    From(Bytes),
    /// Into this destination, from this byte on.
    Into { to: usize, at: usize },
}

impl HostCopies {
    /// Copies `bytes` to `offset` of the mapping.
    ///
    /// # Panics
    /// When they leave it.
    pub(super) fn write(&mut self, bytes: Bytes, mapping: &Arc<SharedMemory>, offset: usize) {
        let length = bytes.len();
        self.add(Near::From(bytes), mapping, offset, length);
    }

    /// Takes memory in, for reads that follow.
    pub(super) fn lend(&mut self, to: Destination) -> usize {
        self.destinations.push(to);
        self.destinations.len() - 1
    }

    /// Copies `length` bytes from `offset` of the mapping to byte `at` of what was lent.
    ///
    /// # Panics
    /// When they leave the mapping or the destination.
    pub(super) fn read(
        &mut self,
        to: usize,
        at: usize,
        mapping: &Arc<SharedMemory>,
        offset: usize,
        length: usize,
    ) {
        assert!(at + length <= self.destinations[to].len(), "the destination holds the bytes");
        self.add(Near::Into { to, at }, mapping, offset, length);
    }

    fn add(&mut self, near: Near, mapping: &Arc<SharedMemory>, offset: usize, length: usize) {
        let end = offset.checked_add(length).expect("an offset in memory");
        assert!(end <= mapping.bytes(), "the copy stays in the mapping");
        self.bytes += length;
        // One after the other is of the same.
        if self.mappings.last().is_none_or(|last| !Arc::ptr_eq(last, mapping)) {
            self.mappings.push(Arc::clone(mapping));
        }
        let mapping = self.mappings.len() - 1;
        self.runs.push(Run { near, mapping, offset, length });
    }

    /// Makes the copies, and gives back what was copied into.
    pub(super) async fn run(mut self) -> Vec<Destination> {
        if self.bytes > AT_ONCE_BYTES {
            let copying = tokio::task::spawn_blocking(move || {
                self.copy();
                self.destinations
            });
            // A runtime that ends has no use for them.
            return copying.await.unwrap_or_default();
        }
        self.copy();
        self.destinations
    }

    fn copy(&mut self) {
        for run in self.runs.drain(..) {
            let mapping = &self.mappings[run.mapping];
            // SAFETY: `add` has checked that the run lies in the mapping, which `self` keeps.
            let far = unsafe { mapping.base().as_ptr().add(run.offset) };
            match run.near {
                // SAFETY: both sides are `length` bytes; ours is not the other process's
                // mapping, so they do not overlap.
                Near::From(bytes) => unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), far, run.length);
                },
                Near::Into { to, at } => {
                    let near = &mut self.destinations[to][at..at + run.length];
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(far, near.as_mut_ptr(), run.length) };
                }
            }
        }
    }
}
