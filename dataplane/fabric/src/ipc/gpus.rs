//! The GPUs that a node serves clients of its host with.
//!
//! Nothing is opened before a client names a GPU: a context takes some hundred megabytes of its
//! memory. With the first one, the node's own buffers are pinned, once for all GPUs.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Refusal;
use crate::gpu::{CopyQueue, Gpu, GpuUuid, Pinned};
use crate::memory::{DeviceMapping, ExportHandle};
use crate::verbs::Anchor;

/// Gives out a run of the node's own memory, for pinning.
pub type Buffers = Box<dyn Fn() -> Anchor + Send + Sync>;

/// The GPUs of this host, as the node uses them.
pub struct NodeGpus {
    buffers: Vec<Buffers>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    queues: HashMap<GpuUuid, CopyQueue>,
    pins: Option<Vec<Pinned>>,
}

impl NodeGpus {
    /// None is opened yet. `buffers` are what bytes are copied from and to.
    pub fn new(buffers: Vec<Buffers>) -> Self {
        Self { buffers, open: Mutex::default() }
    }

    /// Maps a client's allocation. Blocks: for some 10 ms, and for a second or more with the
    /// first allocation on a GPU.
    pub(super) fn map(
        &self,
        gpu: GpuUuid,
        handle: &ExportHandle,
        bytes: u64,
    ) -> Result<(Arc<DeviceMapping>, CopyQueue), Refusal> {
        let queue = self.queue(gpu)?;
        match DeviceMapping::open(queue.gpu(), handle, bytes) {
            Ok(mapping) => Ok((mapping, queue)),
            Err(error) => {
                tracing::info!(%error, "a client's GPU memory was not mapped");
                Err(Refusal::Failed)
            }
        }
    }

    fn queue(&self, uuid: GpuUuid) -> Result<CopyQueue, Refusal> {
        let mut open = self.open.lock();
        if let Some(queue) = open.queues.get(&uuid) {
            return Ok(queue.clone());
        }
        let opened = Gpu::by_uuid(uuid).and_then(|gpu| Ok((CopyQueue::open(&gpu)?, gpu)));
        let (queue, gpu) = opened.map_err(|error| {
            tracing::info!(%error, "a GPU that a client named cannot be used");
            Refusal::NoGpu
        })?;
        if open.pins.is_none() {
            let pinned = self.buffers.iter().map(|buffers| Pinned::register(&gpu, buffers()));
            let pinned = pinned.filter_map(|pinned| {
                // Copies work all the same, at a fifth of the speed.
                let refused =
                    |error: &_| tracing::warn!(%error, "the node's buffers are not pinned");
                pinned.inspect_err(refused).ok()
            });
            open.pins = Some(pinned.collect());
        }
        open.queues.insert(uuid, queue.clone());
        Ok(queue)
    }
}

impl std::fmt::Debug for NodeGpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeGpus").field("open", &self.open.lock().queues.len()).finish()
    }
}
