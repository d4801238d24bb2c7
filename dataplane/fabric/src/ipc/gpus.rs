//! The GPUs that a node serves clients of its host with.
//!
//! Nothing is opened before a client names a GPU: a context takes some hundred megabytes of its
//! memory. With the first one, the node's own buffers are pinned, once for all GPUs: the small
//! ones at once, a memory tier piece by piece behind, for it takes a quarter of a second per GiB.
//! What is not pinned yet is copied all the same, at a fifth of the speed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Refusal;
use crate::gpu::{CopyQueue, Gpu, GpuUuid, Pinned};
use crate::memory::{DeviceMapping, ExportHandle};
use crate::verbs::Anchor;

/// Bytes that are pinned at once of memory that is pinned behind. Copies do not cross pieces:
/// runs of such memory are aligned to their size, and no longer than 16 MiB.
const PIECE_BYTES: usize = 1 << 30;

/// Memory of the node's own, which bytes are copied from and to.
pub struct Buffers {
    anchor: Box<dyn Fn() -> Anchor + Send + Sync>,
    behind: bool,
}

impl Buffers {
    /// Pinned whole, before the first copy. `anchor` gives the memory out, for pinning.
    pub fn first(anchor: impl Fn() -> Anchor + Send + Sync + 'static) -> Self {
        Self { anchor: Box::new(anchor), behind: false }
    }

    /// Pinned piece by piece behind the first copies. Its runs cross no multiple of 16 MiB.
    pub fn behind(anchor: impl Fn() -> Anchor + Send + Sync + 'static) -> Self {
        Self { anchor: Box::new(anchor), behind: true }
    }
}

/// The GPUs of this host, as the node uses them.
pub struct NodeGpus {
    buffers: Vec<Buffers>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    queues: HashMap<GpuUuid, CopyQueue>,
    pins: Option<Pins>,
}

/// What is pinned, and will be.
type Pins = Arc<Mutex<Vec<Pinned>>>;

impl NodeGpus {
    /// None is opened yet.
    pub fn new(buffers: Vec<Buffers>) -> Self {
        Self { buffers, open: Mutex::default() }
    }

    /// Maps a client's allocation. Blocks: for some 10 ms, and for a second with the first
    /// allocation on a GPU.
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
            open.pins = Some(self.pin(&gpu));
        }
        open.queues.insert(uuid, queue.clone());
        Ok(queue)
    }

    /// Pins what comes first, and begins to pin the rest.
    fn pin(&self, gpu: &Arc<Gpu>) -> Pins {
        let (behind, first): (Vec<_>, Vec<_>) = self.buffers.iter().partition(|it| it.behind);
        let pins = Pins::default();
        for buffers in first {
            pin_one(&pins, gpu, (buffers.anchor)());
        }
        let pieces = behind.into_iter().flat_map(|it| (it.anchor)().pieces(PIECE_BYTES));
        let pieces: Vec<_> = pieces.collect();
        let (gpu, left) = (Arc::clone(gpu), Arc::downgrade(&pins));
        let thread = std::thread::Builder::new().name("kw-gpu-pin".to_owned());
        if let Err(error) = thread.spawn(move || pin_behind(&left, &gpu, pieces)) {
            tracing::warn!(%error, "the memory tier is not pinned");
        }
        pins
    }
}

/// Pins the pieces one by one, as long as anybody wants them.
fn pin_behind(pins: &Weak<Mutex<Vec<Pinned>>>, gpu: &Arc<Gpu>, pieces: Vec<Anchor>) {
    for piece in pieces {
        let Some(pins) = pins.upgrade() else { return };
        if !pin_one(&pins, gpu, piece) {
            return;
        }
    }
}

fn pin_one(pins: &Pins, gpu: &Arc<Gpu>, memory: Anchor) -> bool {
    match Pinned::register(gpu, memory) {
        Ok(pinned) => {
            pins.lock().push(pinned);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the node's buffers are not pinned");
            false
        }
    }
}

impl std::fmt::Debug for NodeGpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeGpus").field("open", &self.open.lock().queues.len()).finish()
    }
}
