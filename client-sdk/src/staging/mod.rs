//! Pinned host memory between bodies and GPUs.
//!
//! A ring for each GPU that a transfer names, and for no other: made with the first transfer
//! (38 ms per GiB), kept as long as the client. Leases of up to 1 MiB go round: filled by a
//! socket and emptied by the GPU's copy engine, or the other way. Each body has a few of them in
//! flight, so that the network, the CPU that hashes, and the bus work at the same time.
//!
//! Nobody waits for a lease while holding one that is not under way, so a small ring makes
//! bodies wait for one another, but never for ever.
//!
//! A node that moves the bytes needs one run of memory for them: [`bounce`].

mod bounce;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use keyway_fabric::gpu::{CopyBatch, CopyQueue, Gpu, GpuError, GpuUuid, Pinned};
use keyway_fabric::memory::{Destination, DeviceSlice, LeaseClass, LeasePool};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use bounce::Bounces;

use crate::error::ClientError;

pub(crate) use bounce::{BOUNCE_BYTES_MAX, Bounce};

/// Copies of one body that are under way at a time.
pub(crate) const COPIES_MAX: usize = 4;

/// What a client says about its staging memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagingConfig {
    /// Bytes for each GPU.
    pub(crate) bytes: usize,
}

impl Default for StagingConfig {
    fn default() -> Self {
        Self { bytes: 128 << 20 }
    }
}

/// A client's staging memory.
pub struct Staging {
    config: StagingConfig,
    rings: Mutex<HashMap<GpuUuid, Arc<OnceCell<Arc<Ring>>>>>,
}

/// One GPU's.
pub(crate) struct Ring {
    pub(crate) pool: LeasePool,
    pub(crate) queue: CopyQueue,
    pub(crate) bounces: Arc<Bounces>,
    _pinned: Pinned,
}

impl Staging {
    pub(crate) fn new(config: StagingConfig) -> Self {
        Self { config, rings: Mutex::default() }
    }

    /// The ring of a GPU, made where there is none yet.
    ///
    /// # Errors
    /// When the memory, or the copy engine, is not to be had. The next transfer asks again.
    pub(crate) async fn ring(&self, gpu: &Arc<Gpu>) -> Result<Arc<Ring>, ClientError> {
        let ring = Arc::clone(self.rings.lock().entry(gpu.uuid()).or_default());
        let (gpu, bytes) = (Arc::clone(gpu), self.config.bytes);
        let open = || async move {
            let opened = tokio::task::spawn_blocking(move || Ring::open(&gpu, bytes)).await;
            opened.unwrap_or_else(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and with it whoever asked.
                Err(_) => Err(ClientError::GivenUp),
            })
        };
        ring.get_or_try_init(open).await.map(Arc::clone)
    }
}

impl Ring {
    fn open(gpu: &Arc<Gpu>, bytes: usize) -> Result<Arc<Self>, ClientError> {
        let pool = LeasePool::new(bytes)?;
        let pinned = Pinned::register_pool(gpu, &pool)?;
        let queue = CopyQueue::open(gpu)?;
        let bounces = Bounces::new(gpu, queue.clone(), bytes);
        Ok(Arc::new(Self { pool, queue, bounces, _pinned: pinned }))
    }

    /// The bytes of GPU memory, in order, as they are copied out.
    pub(crate) fn read(
        self: &Arc<Self>,
        slice: DeviceSlice,
    ) -> BoxStream<'static, Result<Bytes, GpuError>> {
        let unit = LeaseClass::Unit.bytes();
        let pieces = (0..slice.len()).step_by(unit);
        let ring = Arc::clone(self);
        let piece = move |at: usize| {
            let length = unit.min(slice.len() - at);
            Arc::clone(&ring).read_piece(slice.part(at..at + length))
        };
        stream::iter(pieces).map(piece).buffered(COPIES_MAX).boxed()
    }

    async fn read_piece(self: Arc<Self>, slice: DeviceSlice) -> Result<Bytes, GpuError> {
        let length = slice.len();
        let class = LeaseClass::fitting(length).expect("a piece is no longer than a unit");
        let lease = self.pool.lease(class).await;
        let mut batch = CopyBatch::new();
        batch.from_device(slice.address(), lease, length);
        batch.keep(Arc::new(slice));
        let done = self.queue.submit(batch).await;
        done.result?;
        let lease = done
            .destinations
            .into_iter()
            .find_map(Destination::into_lease)
            .expect("a batch gives its lease back");
        Ok(lease.into_bytes(0..length))
    }
}

/// What was shared with copies, when the engine's thread has let go of it too.
pub(crate) async fn sole<T>(mut shared: Arc<T>) -> T {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(sole) => return sole,
            Err(still) => shared = still,
        }
        tokio::task::yield_now().await;
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("bytes", &self.config.bytes).finish_non_exhaustive()
    }
}
