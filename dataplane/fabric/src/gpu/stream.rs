//! Streams and events: one owner type each.
//!
//! Invariant: each handle was made in the context of its `gpu`, which it holds, and is
//! destroyed once. The driver lets a stream or an event be destroyed while work that names it
//! is under way; what that work touches is not the handle's affair.

#![allow(unsafe_code)]

use std::sync::Arc;

use keyway_sys::cuda::{CudaError, abi};

use super::GpuError;
use super::device::{Gpu, released};

/// An order of work, apart from all others.
pub(super) struct Stream {
    gpu: Arc<Gpu>,
    raw: abi::Stream,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream that neither waits for the default stream nor is waited for by it, of the
    /// highest priority: its work is short, and others wait for it. The context is current.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the function writes two integers.
        unsafe { gpu.cuda().ctx_get_stream_priority_range(&raw mut least, &raw mut greatest) }?;
        let mut raw: abi::Stream = std::ptr::null_mut();
        // SAFETY: the function writes a stream's handle, which `drop` destroys.
        unsafe { gpu.cuda().stream_create(&raw mut raw, abi::STREAM_NON_BLOCKING, greatest) }?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    pub(super) fn raw(&self) -> abi::Stream {
        self.raw
    }

    /// Waits until all its work is done, or failed.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives.
        unsafe { self.gpu.cuda().stream_synchronize(self.raw) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: created by `new`.
        if let Err(error) = unsafe { self.gpu.cuda().stream_destroy(self.raw) } {
            released(error, "a stream");
        }
    }
}

/// A point in a stream's work.
pub(super) struct Event {
    gpu: Arc<Gpu>,
    raw: abi::Event,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event that takes no time. The context is current.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let mut raw: abi::Event = std::ptr::null_mut();
        // SAFETY: the function writes an event's handle, which `drop` destroys.
        unsafe { gpu.cuda().event_create(&raw mut raw, abi::EVENT_DISABLE_TIMING) }?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    /// Marks the end of what the stream was given so far.
    ///
    /// # Safety
    /// The stream is one of the event's context.
    pub(super) unsafe fn record(&self, stream: abi::Stream) -> Result<(), CudaError> {
        // SAFETY: upheld by the caller.
        unsafe { self.gpu.cuda().event_record(self.raw, stream) }
    }

    /// Whether the stream came to this point.
    pub(super) fn is_past(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        match unsafe { self.gpu.cuda().event_query(self.raw) } {
            Ok(()) => Ok(true),
            Err(CudaError::NotReady) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: created by `new`.
        if let Err(error) = unsafe { self.gpu.cuda().event_destroy(self.raw) } {
            released(error, "an event");
        }
    }
}
