//! A transfer's turn among the work of a caller's stream.
//!
//! Sketch: one event behind what the stream was given so far, and one wait of the stream for a
//! word of pinned memory; both are given to the stream at once, by the thread that asks. The end
//! of the turn is one store to that word: no call of the driver, so it works from any thread,
//! and cannot fail.
//!
//! Invariant: a word is one turn's from `take` to the turn's drop, which sets it to the value
//! that the stream waits for, or more. Values of a word only grow, so a stream that looks late
//! still sees its own. Words are never given back to the kernel: a stream may still be about to
//! look at one when its turn has ended.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use keyway_sys::cuda::abi;
use tokio::sync::Mutex;

use super::device::Gpu;
use super::kernels::Kernels;
use super::{CopyBatch, CopyDone, CopyQueue, GpuError};
use crate::memory::{PAGE_BYTES, Region};

/// A place in the order of a stream's work.
///
/// What the stream was given before the turn was taken comes first: [`StreamTurn::begun`] tells
/// when it is done. What it is given afterwards waits until the turn is dropped.
///
/// A call of the driver that waits for all work of the context, as freeing memory does, waits
/// for the turn as well, and holds up this process's copies meanwhile, whichever thread makes it:
/// a turn whose end needs such copies then lasts until its transfer is given up. And the driver
/// blocks whoever gives a stream more than about a thousand pieces of work that cannot begin yet:
/// some hundred turns of one stream may be taken at a time, not thousands.
pub struct StreamTurn {
    begun: Mutex<Begun>,
    _end: End,
}

enum Begun {
    Waiting(Pin<Box<dyn Future<Output = CopyDone> + Send>>),
    Known(Result<(), GpuError>),
}

/// Lets the stream go on when dropped.
struct End {
    gpu: Arc<Gpu>,
    word: &'static AtomicU32,
    value: u32,
}

impl StreamTurn {
    /// Takes the next turn of a stream of `gpu`'s primary context. The number is the stream's
    /// handle, as the driver and the runtime name it; 0 is the default stream.
    ///
    /// # Errors
    /// [`GpuError::Call`] for a stream that cannot be waited with, [`GpuError::Lost`]. The
    /// stream then waits for nothing.
    ///
    /// # Safety
    /// The stream exists.
    pub unsafe fn take(gpu: &Arc<Gpu>, stream: u64) -> Result<Self, GpuError> {
        let queue = CopyQueue::open(gpu)?;
        let current = gpu.enter()?;
        // Loading code may wait for all work of the context, which then waits for this turn.
        // Whoever needs the kernels and has none is told by the kernels' own error.
        let _ = Kernels::of(gpu);
        let word = word(gpu)?;
        let value = word.load(Ordering::Relaxed).wrapping_add(1);
        let end = End { gpu: Arc::clone(gpu), word, value };
        let mut nothing = CopyBatch::new();
        // SAFETY: the stream exists by the caller's word.
        unsafe { nothing.after(gpu, stream) }?;
        let mut address: abi::DeviceAddress = 0;
        let host = std::ptr::from_ref(word).cast_mut().cast::<c_void>();
        // SAFETY: the context is current, and the word is pinned; the function writes an address.
        unsafe { gpu.cuda().mem_host_get_device_pointer(&raw mut address, host, 0) }?;
        let raw = stream as abi::Stream;
        // SAFETY: the stream exists by the caller's word, and the word stays pinned.
        unsafe { gpu.cuda().stream_wait_value32(raw, address, value, abi::STREAM_WAIT_VALUE_GEQ) }?;
        drop(current);
        let begun = Mutex::new(Begun::Waiting(Box::pin(queue.submit(nothing))));
        Ok(Self { begun, _end: end })
    }

    /// Waits until all work is done that the stream was given before the turn was taken.
    ///
    /// # Errors
    /// [`GpuError::Lost`] where that work broke the context.
    pub async fn begun(&self) -> Result<(), GpuError> {
        let mut begun = self.begun.lock().await;
        if let Begun::Waiting(before) = &mut *begun {
            let done = before.await;
            *begun = Begun::Known(done.result);
        }
        match &*begun {
            Begun::Known(result) => result.clone(),
            Begun::Waiting(_) => unreachable!("it was waited for"),
        }
    }
}

impl fmt::Debug for StreamTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTurn").field("gpu", &self._end.gpu.ordinal()).finish_non_exhaustive()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // What the transfer wrote comes before what the stream does next.
        self.word.store(self.value, Ordering::Release);
        self.gpu.words.lock().push(self.word);
    }
}

/// A word that no turn has. The context is current.
fn word(gpu: &Gpu) -> Result<&'static AtomicU32, GpuError> {
    let mut words = gpu.words.lock();
    if let Some(word) = words.pop() {
        return Ok(word);
    }
    let Ok(region) = Region::map(PAGE_BYTES) else { return Err(GpuError::NoHostMemory) };
    // Never unmapped, nor unpinned but with the context.
    let region = ManuallyDrop::new(region);
    let base = region.base().as_ptr();
    let flags = abi::MEMHOSTREGISTER_PORTABLE | abi::MEMHOSTREGISTER_DEVICEMAP;
    // SAFETY: the context is current, and the page stays mapped.
    unsafe { gpu.cuda().mem_host_register(base.cast::<c_void>(), PAGE_BYTES, flags) }?;
    let count = PAGE_BYTES / size_of::<AtomicU32>();
    // SAFETY: the page is aligned, zeroed, never unmapped, and nobody else knows of it.
    let page: &'static [AtomicU32] =
        unsafe { std::slice::from_raw_parts(base.cast::<AtomicU32>(), count) };
    words.extend(&page[1..]);
    Ok(&page[0])
}
