//! What is to be moved, and what it leaves behind.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use keyway_sys::cuda::abi;

use super::worker::SHORT_BYTES;
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;
use crate::gpu::kernels::Move;
use crate::gpu::stream::Event;
use crate::memory::{Destination, HostSliceMut, Lease};

/// Bytes to move between host and GPU, and all that must live until they have moved.
#[derive(Default)]
pub struct CopyBatch {
    pub(super) runs: Vec<Run>,
    pub(super) after: Vec<Event>,
    pub(super) held: Held,
}

/// What a batch owns.
#[derive(Default)]
pub(super) struct Held {
    sources: Vec<Bytes>,
    destinations: Vec<Destination>,
    slices: Vec<HostSliceMut>,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
}

/// A run of bytes that is one run on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) host: u64,
    pub(super) device: u64,
    pub(super) bytes: u64,
    pub(super) way: Way,
}

impl Run {
    pub(super) fn as_move(&self) -> Move {
        let Self { host, device, bytes, way } = *self;
        match way {
            Way::IntoDevice => Move { from: host, to: device, bytes },
            Way::FromDevice => Move { from: device, to: host, bytes },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    IntoDevice,
    FromDevice,
}

/// What a batch was lent, to be filled from several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationIndex(usize);

impl CopyBatch {
    /// A batch of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies host bytes to an address of device memory that is valid in this process: a
    /// slice's, or a mapping's, which [`CopyBatch::keep`] keeps. Runs that follow on each other
    /// on both sides become one copy.
    pub fn into_device(&mut self, from: Bytes, to: u64) {
        self.push(from.as_ptr() as u64, to, from.len(), Way::IntoDevice);
        self.held.sources.push(from);
    }

    /// Copies device memory into a lease's first `length` bytes.
    ///
    /// # Panics
    /// When the lease is shorter.
    pub fn from_device(&mut self, from: u64, to: Lease, length: usize) {
        let to = self.lend(to);
        self.fill(from, to, 0, length);
    }

    /// Lends the batch memory, to be filled by [`CopyBatch::fill`].
    pub fn lend(&mut self, to: impl Into<Destination>) -> DestinationIndex {
        self.held.destinations.push(to.into());
        DestinationIndex(self.held.destinations.len() - 1)
    }

    /// Copies device memory into a part of what the batch was lent.
    ///
    /// # Panics
    /// When the part leaves it, or it was lent to another batch.
    pub fn fill(&mut self, from: u64, to: DestinationIndex, offset: usize, length: usize) {
        let to = &self.held.destinations[to.0];
        let (base, room) = (to.base().as_ptr() as u64, to.len());
        let inside = offset.checked_add(length).is_some_and(|end| end <= room);
        assert!(inside, "{length} bytes at {offset} leave a run of {room}");
        self.push(base + offset as u64, from, length, Way::FromDevice);
    }

    /// Copies device memory into a caller's own host memory, as much as the slice holds.
    pub fn from_device_into(&mut self, from: u64, to: HostSliceMut) {
        self.push(to.address(), from, to.len(), Way::FromDevice);
        self.held.slices.push(to);
    }

    /// Keeps something until the copies are done: mappings, slices of device memory.
    pub fn keep(&mut self, anchor: Arc<dyn Any + Send + Sync>) {
        self.held.kept.push(anchor);
    }

    /// Begins the copies only once the work is done that `stream` was given so far. The number
    /// is the handle of a stream of `gpu`'s primary context, as the driver and the runtime
    /// name it; 0 is the default stream.
    ///
    /// # Errors
    /// [`GpuError::Call`], [`GpuError::Lost`].
    ///
    /// # Safety
    /// The stream exists.
    pub unsafe fn after(&mut self, gpu: &Arc<Gpu>, stream: u64) -> Result<(), GpuError> {
        let _current = gpu.enter()?;
        let event = Event::new(gpu)?;
        // SAFETY: the stream exists by the caller's word, and is of this context.
        unsafe { event.record(stream as abi::Stream) }?;
        self.after.push(event);
        Ok(())
    }

    /// Bytes that it moves.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    /// Whether nothing but a short copy is between its submission and its answer.
    pub(super) fn is_short(&self) -> bool {
        self.after.is_empty() && self.bytes() <= SHORT_BYTES
    }

    fn push(&mut self, host: u64, device: u64, bytes: usize, way: Way) {
        if bytes > 0 {
            self.runs.push(Run { host, device, bytes: bytes as u64, way });
        }
    }
}

impl fmt::Debug for CopyBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyBatch")
            .field("runs", &self.runs.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// How a batch ended, and what it owned.
pub struct CopyDone {
    /// Whether all of it landed.
    pub result: Result<(), GpuError>,
    /// What was filled, in the order in which it was lent.
    pub destinations: Vec<Destination>,
    /// The caller's own memory, in the order in which it was given.
    pub slices: Vec<HostSliceMut>,
    /// Bytes that went between host memory that is not pinned and the GPU.
    pub unpinned_bytes: u64,
    /// Dropped where the answer is, not on the engine's thread.
    _held: (Vec<Bytes>, Vec<Arc<dyn Any + Send + Sync>>),
}

impl CopyDone {
    pub(super) fn new(result: Result<(), GpuError>, held: Held, unpinned_bytes: u64) -> Self {
        let Held { sources, destinations, slices, kept } = held;
        Self { result, destinations, slices, unpinned_bytes, _held: (sources, kept) }
    }

    pub(super) fn failed(error: GpuError) -> Self {
        Self::new(Err(error), Held::default(), 0)
    }
}

impl fmt::Debug for CopyDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyDone").field("result", &self.result).finish_non_exhaustive()
    }
}
