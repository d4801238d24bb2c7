//! The copy engine of one GPU, as tasks use it.
//!
//! Sketch, per batch: one queue push, one wake where the thread sleeps, the runs merged where
//! they are neighbours on both sides, one driver call for each that is left (about 2 µs), one
//! event per stream that they went to, one wake of the task. Bytes move once, by the GPU's copy
//! engines, at the bus's speed (55 GB/s on PCIe 5.0 x16) where runs reach 4 MiB and host memory
//! is pinned ([`super::Pinned`]); many small runs between pinned memory and the GPU are moved by
//! one kernel instead, whose cost hardly depends on their number. System calls: none for short
//! copies one after the other; for long ones the thread sleeps through most of each (`pace`).

mod batch;
mod engine;
mod flight;
mod lanes;
mod pace;
mod plan;
mod scratch;
mod worker;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use batch::{CopyBatch, CopyDone};
pub(super) use engine::Engine;
use engine::{Command, Digest};
use keyway_proto::{Checksum, ChecksumKind};
use tokio::sync::oneshot;

use super::GpuError;
use super::device::Gpu;
use worker::SHORT_BYTES;

/// Longest that a task looks for the answer to a short batch itself. The engine has it after
/// 7 µs; to sleep and be woken costs the task some 5 µs, and the engine a system call.
const LOOK_MAX: Duration = Duration::from_micros(25);

/// The copy engine of one GPU. Clones share it, and so do all who open it in this process.
#[derive(Clone)]
pub struct CopyQueue {
    engine: Arc<Engine>,
}

/// What an engine moved since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyStats {
    /// Batches that ended.
    pub batches: u64,
    /// Batches of them that failed.
    pub failed: u64,
    /// Bytes copied into the GPU's memory.
    pub into_device_bytes: u64,
    /// Bytes copied out of it.
    pub from_device_bytes: u64,
    /// Bytes of both that were in host memory that is not pinned: copied by the driver through
    /// a buffer of its own, at a fifth of the speed, while others wait.
    pub unpinned_bytes: u64,
    /// Runs that were asked for.
    pub runs: u64,
    /// Copies that the driver was given for them.
    pub copies: u64,
    /// Runs, or pieces of runs, that kernels moved.
    pub gathered: u64,
    /// Bytes digested.
    pub digested_bytes: u64,
}

#[derive(Default)]
struct Counters {
    batches: AtomicU64,
    failed: AtomicU64,
    into_device_bytes: AtomicU64,
    from_device_bytes: AtomicU64,
    unpinned_bytes: AtomicU64,
    runs: AtomicU64,
    copies: AtomicU64,
    gathered: AtomicU64,
    digested_bytes: AtomicU64,
}

impl CopyQueue {
    /// Opens a GPU's engine; there is one per process and GPU, for all who ask.
    ///
    /// # Errors
    /// [`GpuError::Call`] when the GPU gives no streams, [`GpuError::Thread`].
    pub fn open(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        Ok(Self { engine: Engine::of(gpu)? })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.engine.gpu()
    }

    /// Moves what the batch names; resolves when all of it landed, or failed, and the GPU
    /// touches none of it any more. Batches, and the runs of one, have no order among each
    /// other. The copies begin at once where the queue has room, else when the future is
    /// polled; dropping it lets go of the answer alone: what the batch owns is kept until the
    /// GPU is done. Where the engine has nothing else to do and the batch is short, the task
    /// does not sleep but looks for the answer, for 25 µs at most.
    pub fn submit(&self, batch: CopyBatch) -> impl Future<Output = CopyDone> + Send + 'static {
        let (reply, mut answer) = oneshot::channel();
        let quick = self.engine.is_quick() && batch.is_short();
        let look_until = quick.then(|| Instant::now() + LOOK_MAX);
        let sent = self.engine.send(|slot| Command::Copy { batch, reply, slot });
        // The engine ends with its last holder; whoever waits for it is one.
        let engine = Arc::clone(&self.engine);
        async move {
            let _engine = engine;
            sent.await;
            if let Some(done) = look_until.and_then(|until| soon(&mut answer, until)) {
                return done;
            }
            // Without an answer the thread is gone, and has dropped the batch.
            answer.await.unwrap_or_else(|_| CopyDone::failed(GpuError::Closed))
        }
    }

    /// The checksum of bytes as they lie in the GPU's memory: CRC-32, CRC-32C or CRC-64/NVME.
    /// `keep` is held until the GPU is done. Waits for no copy: digest what has landed. The task
    /// looks for the answer itself where it will come soon, as with a short batch.
    ///
    /// # Errors
    /// [`GpuError::NotDeviceMemory`] and its like, [`GpuError::OutOfRange`],
    /// [`GpuError::Unsupported`] for a checksum that is no CRC, [`GpuError::Lost`].
    pub fn digest(
        &self,
        kind: ChecksumKind,
        address: u64,
        bytes: u64,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> impl Future<Output = Result<Checksum, GpuError>> + Send + 'static {
        let (reply, mut answer) = oneshot::channel();
        let quick = self.engine.is_quick() && bytes <= SHORT_BYTES;
        let look_until = quick.then(|| Instant::now() + LOOK_MAX);
        let digest = Digest { kind, address, bytes, keep };
        let sent = self.engine.send(|slot| Command::Digest { digest, reply, slot });
        let engine = Arc::clone(&self.engine);
        async move {
            let _engine = engine;
            sent.await;
            if let Some(found) = look_until.and_then(|until| soon(&mut answer, until)) {
                return found;
            }
            answer.await.unwrap_or(Err(GpuError::Closed))
        }
    }

    /// What the engine did so far.
    pub fn stats(&self) -> CopyStats {
        let counters = self.engine.counters();
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CopyStats {
            batches: value(&counters.batches),
            failed: value(&counters.failed),
            into_device_bytes: value(&counters.into_device_bytes),
            from_device_bytes: value(&counters.from_device_bytes),
            unpinned_bytes: value(&counters.unpinned_bytes),
            runs: value(&counters.runs),
            copies: value(&counters.copies),
            gathered: value(&counters.gathered),
            digested_bytes: value(&counters.digested_bytes),
        }
    }
}

/// The answer, if it comes until then.
fn soon<T>(answer: &mut oneshot::Receiver<T>, until: Instant) -> Option<T> {
    while Instant::now() < until {
        match answer.try_recv() {
            Ok(done) => return Some(done),
            Err(oneshot::error::TryRecvError::Empty) => std::hint::spin_loop(),
            Err(oneshot::error::TryRecvError::Closed) => return None,
        }
    }
    None
}

impl std::fmt::Debug for CopyQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyQueue").field("gpu", self.gpu()).finish_non_exhaustive()
    }
}
