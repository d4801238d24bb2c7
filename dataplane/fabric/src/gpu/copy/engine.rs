//! The handle on a GPU's copy thread: one per process and GPU.
//!
//! The queue is bounded by permits: whoever finds none waits in order, and a permit comes back
//! with its batch. So memory that waits to be copied is bounded as well.

use std::any::Any;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use keyway_proto::{Checksum, ChecksumKind};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Counters;
use super::batch::{CopyBatch, CopyDone};
use super::worker::Worker;
use crate::gpu::GpuError;
use crate::gpu::device::Gpu;

/// Batches that may be on their way at once.
const BATCHES_MAX: usize = 1024;

/// A GPU's copy thread. Dropping the last handle waits until all copies are done.
pub(in crate::gpu) struct Engine {
    gpu: Arc<Gpu>,
    slots: Arc<Semaphore>,
    commands: Option<Sender<Command>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether the thread and those who wait for it can run at once.
    parallel: bool,
    counters: Arc<Counters>,
}

/// What the thread is asked to do.
pub(super) enum Command {
    Copy { batch: CopyBatch, reply: oneshot::Sender<CopyDone>, slot: OwnedSemaphorePermit },
    Digest { digest: Digest, reply: DigestReply, slot: OwnedSemaphorePermit },
}

pub(super) type DigestReply = oneshot::Sender<Result<Checksum, GpuError>>;

/// Bytes to digest, and what keeps them.
pub(super) struct Digest {
    pub(super) kind: ChecksumKind,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) keep: Arc<dyn Any + Send + Sync>,
}

impl Engine {
    pub(super) fn of(gpu: &Arc<Gpu>) -> Result<Arc<Self>, GpuError> {
        let mut engine = gpu.engine.lock();
        if let Some(engine) = engine.upgrade() {
            return Ok(engine);
        }
        let started = Arc::new(Self::start(gpu)?);
        *engine = Arc::downgrade(&started);
        Ok(started)
    }

    fn start(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let counters = Arc::new(Counters::default());
        // Bounded by the permits.
        let (commands, queue) = crossbeam_channel::unbounded();
        let worker = Worker::new(gpu, queue, Arc::clone(&counters))?;
        let thread = std::thread::Builder::new()
            .name(format!("kw-gpu-{}", gpu.ordinal()))
            .spawn(move || worker.run())
            .map_err(|error| GpuError::Thread(Arc::new(error)))?;
        let parallel = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Ok(Self {
            gpu: Arc::clone(gpu),
            parallel,
            slots: Arc::new(Semaphore::new(BATCHES_MAX)),
            commands: Some(commands),
            thread: Mutex::new(Some(thread)),
            counters,
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Whether a short batch would be done before its task could be put to sleep and woken.
    pub(super) fn is_quick(&self) -> bool {
        self.parallel && self.slots.available_permits() == BATCHES_MAX
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sends a command, at once where there is room; the future waits for room otherwise.
    pub(super) fn send(
        self: &Arc<Self>,
        command: impl FnOnce(OwnedSemaphorePermit) -> Command + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let waiting = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => {
                self.give(command(slot));
                None
            }
            Err(_) => Some((Arc::clone(self), command)),
        };
        async move {
            if let Some((engine, command)) = waiting {
                let slot = Arc::clone(&engine.slots).acquire_owned().await;
                engine.give(command(slot.expect("the engine never closes its semaphore")));
            }
        }
    }

    fn give(&self, command: Command) {
        // A thread that is gone drops the command, whose reply tells.
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.get_mut().take()
            && thread.join().is_err()
        {
            tracing::error!(gpu = self.gpu.ordinal(), "a copy thread panicked");
        }
    }
}
