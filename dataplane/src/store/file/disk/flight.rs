//! What is in the kernel, each operation with the memory that it names.

#![allow(unsafe_code)]

use std::sync::Arc;

use keyway_fabric::memory::Lease;

use super::{Done, Target, Write};

/// An operation in the kernel. Of a write `moved` bytes are written; the vectors name the rest.
pub(super) enum Flight {
    Read { target: Arc<Target>, offset: u64, lease: Lease, length: usize, done: Done<Lease> },
    Write { write: Write, moved: usize, vectors: Vec<libc::iovec> },
    Sync { target: Arc<Target>, waiting: Vec<Done<()>> },
}

// SAFETY: the vectors of a write point into the leases beside them, which move between
// threads as they are; nobody else follows the pointers.
unsafe impl Send for Flight {}

/// Operations in the kernel, by the number that their completion carries.
pub(super) struct Flights {
    pub(super) slots: Vec<Option<(Flight, u8)>>,
    free: Vec<u32>,
}

impl Flight {
    /// A write whose first `moved` bytes are written.
    pub(super) fn write(write: Write, moved: usize) -> Self {
        let vectors = match &write.buffers[..] {
            [_] => Vec::new(),
            buffers => rest(buffers, moved),
        };
        Self::Write { write, moved, vectors }
    }

    pub(super) fn target(&self) -> &Target {
        match self {
            Self::Read { target, .. } | Self::Sync { target, .. } => target,
            Self::Write { write, .. } => &write.target,
        }
    }
}

impl Flights {
    /// Room for so many.
    pub(super) fn new(depth: u32) -> Self {
        Self { slots: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    pub(super) fn are_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) fn are_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn insert(&mut self, flight: Flight, restarts: u8) -> u32 {
        let number = self.free.pop().expect("the caller made sure of a free slot");
        self.slots[number as usize] = Some((flight, restarts));
        number
    }

    pub(super) fn remove(&mut self, number: u64) -> (Flight, u8) {
        let number = number as u32;
        self.free.push(number);
        self.slots[number as usize].take().expect("a completion belongs to a flight")
    }
}

/// What the buffers hold from byte `moved` on.
fn rest(buffers: &[(Lease, usize)], mut moved: usize) -> Vec<libc::iovec> {
    let mut vectors = Vec::with_capacity(buffers.len());
    for (lease, length) in buffers {
        let skipped = moved.min(*length);
        moved -= skipped;
        if skipped < *length {
            let base = lease.base().as_ptr().wrapping_add(skipped);
            vectors.push(libc::iovec { iov_base: base.cast(), iov_len: length - skipped });
        }
    }
    vectors
}

#[cfg(test)]
mod tests {
    use keyway_fabric::memory::{LeaseClass, LeasePool};

    use super::*;

    #[test]
    fn the_rest_of_a_write_is_what_was_not_written() {
        let pool = LeasePool::new(8 << 20).expect("memory");
        let buffers: Vec<_> = [4096, 8192, 4096]
            .map(|length| (pool.try_lease(LeaseClass::Unit).expect("room"), length))
            .into();
        let address = |buffer: usize, at: usize| buffers[buffer].0.base().as_ptr() as usize + at;
        for (moved, expected) in [
            (0, vec![(address(0, 0), 4096), (address(1, 0), 8192), (address(2, 0), 4096)]),
            (100, vec![(address(0, 100), 3996), (address(1, 0), 8192), (address(2, 0), 4096)]),
            (4096, vec![(address(1, 0), 8192), (address(2, 0), 4096)]),
            (8192, vec![(address(1, 4096), 4096), (address(2, 0), 4096)]),
            (16383, vec![(address(2, 4095), 1)]),
        ] {
            let rest: Vec<_> = rest(&buffers, moved)
                .iter()
                .map(|vector| (vector.iov_base as usize, vector.iov_len))
                .collect();
            assert_eq!(rest, expected, "after {moved} bytes");
        }
    }
}
