//! Host memory that stands in for a GPU's where a node moves bytes, and the copy engine between
//! the two.
//!
//! A buffer is pinned, and can be registered with adapters and mapped by a node of this host. It
//! is made when it is first needed (0.6 ms for 16 MiB) and used again, so that adapters know it
//! already. What transfers hold at a time is bounded by a budget; whoever wants more waits.

use std::fmt;
use std::sync::Arc;

use keyway_fabric::gpu::{CopyBatch, CopyQueue, Gpu, Pinned, StreamTurn};
use keyway_fabric::memory::{DeviceSlice, DeviceSliceMut, HostBuffer, HostSlice, HostSliceMut};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ClientError;

/// Bytes of the smallest buffer; others are twice as large as the next smaller ones.
const BOUNCE_BYTES_MIN: usize = 1 << 20;
/// Bytes of the largest one.
pub(crate) const BOUNCE_BYTES_MAX: usize = 64 << 20;

const _: () = assert!((BOUNCE_BYTES_MAX / BOUNCE_BYTES_MIN).is_power_of_two());

/// A GPU's bounce buffers.
pub(crate) struct Bounces {
    gpu: Arc<Gpu>,
    queue: CopyQueue,
    /// One permit for each [`BOUNCE_BYTES_MIN`].
    budget: Arc<Semaphore>,
    permits: usize,
    idle: Mutex<Vec<Buffer>>,
}

struct Buffer {
    host: HostBuffer,
    _pinned: Pinned,
}

/// A buffer in the hands of a transfer. Dropping it gives it back; one that is still lent, to a
/// node that has not let go of it, is freed with the lend instead.
pub(crate) struct Bounce {
    bounces: Arc<Bounces>,
    buffer: Option<Buffer>,
    _permit: OwnedSemaphorePermit,
}

impl Bounces {
    /// Buffers of at most `bytes` bytes together, but at least one of the largest.
    pub(super) fn new(gpu: &Arc<Gpu>, queue: CopyQueue, bytes: usize) -> Arc<Self> {
        let permits = bytes.max(BOUNCE_BYTES_MAX) / BOUNCE_BYTES_MIN;
        let (gpu, idle) = (Arc::clone(gpu), Mutex::default());
        Arc::new(Self { gpu, queue, budget: Arc::new(Semaphore::new(permits)), permits, idle })
    }

    /// A buffer of at least `bytes` bytes. Waits while others have too many.
    ///
    /// # Errors
    /// When there is no memory, or it cannot be pinned.
    ///
    /// # Panics
    /// When more than [`BOUNCE_BYTES_MAX`] are asked for.
    pub(crate) async fn take(self: &Arc<Self>, bytes: usize) -> Result<Bounce, ClientError> {
        assert!(bytes <= BOUNCE_BYTES_MAX, "a bounce buffer has a largest size");
        let size = bytes.next_power_of_two().max(BOUNCE_BYTES_MIN);
        let permits = u32::try_from(size / BOUNCE_BYTES_MIN).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.budget).acquire_many_owned(permits).await;
        let permit = permit.expect("the budget is never closed");
        let buffer = match self.idle_buffer(size) {
            Some(buffer) => buffer,
            None => {
                // Pages are pinned one by one: 0.6 ms for the largest.
                let gpu = Arc::clone(&self.gpu);
                let made = tokio::task::spawn_blocking(move || Buffer::new(&gpu, size)).await;
                made.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))?
            }
        };
        Ok(Bounce { bounces: Arc::clone(self), buffer: Some(buffer), _permit: permit })
    }

    /// An idle buffer of this size. Where there is none, others go, until a new one has room.
    fn idle_buffer(&self, size: usize) -> Option<Buffer> {
        let mut idle = self.idle.lock();
        if let Some(found) = idle.iter().position(|buffer| buffer.host.len() == size) {
            return Some(idle.swap_remove(found));
        }
        let in_use = self.permits - self.budget.available_permits();
        let room = self.permits.saturating_sub(in_use) * BOUNCE_BYTES_MIN;
        while idle.iter().map(|buffer| buffer.host.len()).sum::<usize>() > room {
            idle.swap_remove(0);
        }
        None
    }
}

impl Buffer {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, ClientError> {
        let mut host = HostBuffer::shared(bytes)?;
        let whole = host.slice(..).expect("a new buffer is not lent");
        let pinned = Pinned::register(gpu, whole.anchor())?;
        drop(whole);
        Ok(Self { host, _pinned: pinned })
    }
}

impl Bounce {
    /// Lends the front of the buffer, to be filled.
    pub(crate) fn lend(&mut self, bytes: usize) -> HostSliceMut {
        let buffer = self.buffer.as_mut().expect("there until it is dropped");
        buffer.host.slice_mut(..bytes).expect("it is lent once")
    }

    /// Copies what is in memory of this buffer into a GPU's, and gives that back.
    ///
    /// # Errors
    /// When the GPU fails. The memory comes back in any case, when nothing writes there any more.
    pub(crate) async fn copy_in(
        &self,
        from: HostSlice,
        to: DeviceSliceMut,
        turn: Option<Arc<StreamTurn>>,
    ) -> (DeviceSliceMut, Result<(), ClientError>) {
        let to = Arc::new(to);
        let mut batch = CopyBatch::new();
        batch.into_device(from.into_bytes(), to.address());
        batch.keep(Arc::clone(&to) as Arc<_>);
        if let Some(turn) = turn {
            batch.keep(turn as Arc<_>);
        }
        let result = self.bounces.queue.submit(batch).await.result;
        (super::sole(to).await, result.map_err(ClientError::from))
    }

    /// The bytes of a GPU's memory, copied to the front of the buffer.
    ///
    /// # Errors
    /// When the GPU fails.
    pub(crate) async fn copy_out(&mut self, from: DeviceSlice) -> Result<HostSlice, ClientError> {
        let bytes = from.len();
        let mut batch = CopyBatch::new();
        batch.from_device_into(from.address(), self.lend(bytes));
        batch.keep(Arc::new(from));
        let done = self.bounces.queue.submit(batch).await;
        done.result?;
        let filled = done.slices.into_iter().next().expect("a batch gives its slices back");
        Ok(filled.freeze())
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        if buffer.host.bytes_mut().is_ok() {
            self.bounces.idle.lock().push(buffer);
        }
    }
}

impl fmt::Debug for Bounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounce").finish_non_exhaustive()
    }
}
