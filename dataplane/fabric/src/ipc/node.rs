//! The node's end of a link: claims keys, copies under them, ends them.
//!
//! Sketch of a GET of one batch: one compare-and-swap claims the key, one copy per run, one
//! store ends it. No message, no system call.
//!
//! The order of the link's end: no new claims; what is under way ends; regions are unmapped;
//! all keys are dead; the client is told; the waiters of [`NodeLink::destroyed`] are told.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use keyway_proto::key::Direction;
use keyway_proto::{Checksum, ChecksumKind, RemoteKey, RemoteWindow};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::batch::{Batch, Copies, Copying, Landed, Posted};
use super::channel::Channel;
use super::gate::Gate;
use super::gpus::NodeGpus;
use super::message::{Memory, Message, Refusal};
use super::table::{Entry, Table};
use crate::LinkError;
use crate::gpu::{CopyQueue, GpuUuid};
use crate::memory::{DeviceMapping, ExportHandle, SharedMemory};

/// A checksum that a GPU computes.
pub type Digesting = Pin<Box<dyn Future<Output = Result<Checksum, LinkError>> + Send>>;

/// Most regions of one link.
const REGIONS_MAX: usize = 1024;

/// What kind of memory a client has lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory.
    Host,
    /// A GPU's.
    Gpu,
}

/// A client's memory, mapped here.
pub(super) struct Region {
    /// In the client's address space.
    base: u64,
    bytes: u64,
    pub(super) mapping: Mapping,
    pub(super) gate: Gate,
}

/// How it is mapped.
pub(super) enum Mapping {
    Host(Arc<SharedMemory>),
    Gpu { mapping: Arc<DeviceMapping>, queue: CopyQueue },
}

/// A key that a transfer has claimed.
pub(super) struct Claim {
    entry: Entry,
    pub(super) region: Arc<Region>,
    /// Copies under the key.
    pub(super) gate: Gate,
}

/// The node's end. Clones share it; the last one's drop ends the link.
#[derive(Clone)]
pub struct NodeLink {
    shared: Arc<Shared>,
    _last: Arc<Last>,
}

struct Shared {
    table: Table,
    state: Mutex<State>,
    gpus: Arc<NodeGpus>,
    /// All copies of the link.
    gate: Gate,
    end: Notify,
    status: watch::Receiver<Option<LinkError>>,
}

#[derive(Default)]
pub(super) struct State {
    is_closing: bool,
    regions: HashMap<u32, Arc<Region>>,
    claims: HashMap<RemoteKey, Claim>,
}

/// Ends the link when nobody holds it any more.
struct Last(Arc<Shared>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.end.notify_one();
    }
}

impl NodeLink {
    pub(super) fn serve(channel: Channel, table: Table, gpus: Arc<NodeGpus>) -> Self {
        let (told, status) = watch::channel(None);
        let shared = Arc::new(Shared {
            table,
            state: Mutex::default(),
            gpus,
            gate: Gate::default(),
            end: Notify::new(),
            status,
        });
        tokio::spawn(serve(Arc::clone(&shared), channel, told));
        Self { _last: Arc::new(Last(Arc::clone(&shared))), shared }
    }

    /// Claims the keys of a transfer: all of them, or none.
    ///
    /// # Errors
    /// [`LinkError::Access`] when a key is not open for exactly these bytes in this direction,
    /// [`LinkError::Closed`] when the link ends.
    pub fn claim(
        &self,
        windows: &[RemoteWindow],
        direction: Direction,
    ) -> Result<MemoryKind, LinkError> {
        let mut state = self.shared.state.lock();
        if state.is_closing {
            return Err(LinkError::Closed);
        }
        for (at, window) in windows.iter().enumerate() {
            if let Err(error) = self.shared.claim_one(&mut state, window, direction) {
                for claimed in &windows[..at] {
                    state.claims.remove(&claimed.key);
                    self.shared.table.end(claimed.key);
                }
                return Err(error);
            }
        }
        Ok(state.kind(windows))
    }

    /// What memory claimed keys open.
    pub fn kind(&self, windows: &[RemoteWindow]) -> MemoryKind {
        self.shared.state.lock().kind(windows)
    }

    /// Begins a batch.
    ///
    /// # Errors
    /// [`LinkError::Access`] when a copy leaves what its key opens, or its windows are on
    /// several GPUs; nothing is copied then. [`LinkError::Closed`] when the link ends.
    pub fn begin(&self, batch: Batch) -> Result<Posted, LinkError> {
        let Batch { writes, reads, ends } = batch;
        let mut copies = Copies::default();
        {
            let state = self.shared.state.lock();
            if state.is_closing {
                return Err(LinkError::Closed);
            }
            copies.keep(self.shared.gate.enter());
            // A gathering has a thousand writes under one key: it is looked up once.
            let mut known: Option<(RemoteKey, &Claim)> = None;
            for (bytes, address, key) in writes {
                let claim = match known {
                    Some((of, claim)) if of == key => claim,
                    _ => state.claim(key)?,
                };
                if known.is_none_or(|(of, _)| of != key) {
                    copies.enter(claim);
                    known = Some((key, claim));
                }
                let offset = claim.reach(address, bytes.len() as u64, Direction::Write)?;
                copies.write(claim, bytes, offset)?;
            }
            for (to, runs) in reads {
                copies.read(&state, to, &runs)?;
            }
        }
        Ok(Posted { copying: copies.begin(), ends })
    }

    /// Waits until a batch is copied and its keys have ended.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the runtime ends.
    pub async fn landed(&self, posted: Posted) -> Result<Landed, LinkError> {
        let Posted { copying, ends } = posted;
        let landed = match copying {
            Copying::Done(copied) => copied?,
            Copying::Task(task) => task.await.map_err(|_| LinkError::Closed)??,
        };
        for key in ends {
            self.shared.end_key(key).await;
        }
        Ok(landed)
    }

    /// Begins to compute a checksum of a run of the client's memory where it lies: in a GPU,
    /// which does it itself. `None` for host memory, or a checksum that a GPU does not compute.
    ///
    /// # Errors
    /// [`LinkError::Access`] when the run leaves what its key opens, [`LinkError::Closed`];
    /// the future's: [`LinkError::Adapter`].
    pub fn digest(
        &self,
        kind: ChecksumKind,
        run: &RemoteWindow,
    ) -> Result<Option<Digesting>, LinkError> {
        if !kind.combines() {
            return Ok(None);
        }
        let state = self.shared.state.lock();
        if state.is_closing {
            return Err(LinkError::Closed);
        }
        let (claim, offset) = state.reach(run, Direction::Read)?;
        let Mapping::Gpu { mapping, queue } = &claim.region.mapping else { return Ok(None) };
        // The mapping stays, and the key does not end, before the GPU is done.
        let passes = [self.shared.gate.enter(), claim.gate.enter(), claim.region.gate.enter()];
        let keep = Arc::new((Arc::clone(mapping), passes));
        let from = mapping.address() + offset as u64;
        let digesting = queue.digest(kind, from, u64::from(run.length), keep);
        Ok(Some(Box::pin(async move {
            digesting.await.map_err(|error| LinkError::Adapter(error.to_string().into()))
        })))
    }

    /// Begins a batch and waits for it.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn post(&self, batch: Batch) -> Result<Landed, LinkError> {
        self.landed(self.begin(batch)?).await
    }

    /// Waits until nothing is copied under these keys any more.
    pub async fn drained(&self, windows: &[RemoteWindow]) {
        for window in windows {
            let gate = self.shared.state.lock().claims.get(&window.key).map(|it| it.gate.clone());
            if let Some(gate) = gate {
                gate.idle().await;
            }
        }
    }

    /// Whether the link still serves.
    pub fn is_alive(&self) -> bool {
        self.shared.status.borrow().is_none()
    }

    /// Resolves, with the reason, when nothing of the client's is mapped any more.
    pub async fn destroyed(&self) -> LinkError {
        let mut status = self.shared.status.clone();
        match status.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(LinkError::Closed),
            Err(_) => LinkError::Closed,
        }
    }

    /// Ends the link and waits for its end.
    pub async fn fence(&self) -> LinkError {
        self.shared.end.notify_one();
        self.destroyed().await
    }
}

impl fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLink").field("is_alive", &self.is_alive()).finish_non_exhaustive()
    }
}

impl Shared {
    fn claim_one(
        &self,
        state: &mut State,
        window: &RemoteWindow,
        direction: Direction,
    ) -> Result<(), LinkError> {
        let entry = self.table.claim(window.key).ok_or(LinkError::Access)?;
        let asked = (window.address, u64::from(window.length), direction);
        let fits = (entry.address, entry.length, entry.direction) == asked;
        let region = state.regions.get(&entry.region).filter(|region| {
            fits && offset_in(region.base, region.bytes, entry.address, entry.length).is_some()
        });
        let Some(region) = region.cloned() else {
            // The client's own table contradicts its own token.
            self.table.end(window.key);
            return Err(LinkError::Access);
        };
        state.claims.insert(window.key, Claim { entry, region, gate: Gate::default() });
        Ok(())
    }

    /// Ends a key that was claimed, when nothing is copied under it any more.
    async fn end_key(&self, key: RemoteKey) {
        let claim = self.state.lock().claims.remove(&key);
        if let Some(claim) = claim {
            claim.gate.idle().await;
            self.table.end(key);
        }
    }
}

impl State {
    fn kind(&self, windows: &[RemoteWindow]) -> MemoryKind {
        let is_gpu = |window: &RemoteWindow| {
            let claim = self.claims.get(&window.key);
            claim.is_some_and(|claim| matches!(claim.region.mapping, Mapping::Gpu { .. }))
        };
        if windows.iter().any(is_gpu) { MemoryKind::Gpu } else { MemoryKind::Host }
    }

    /// Where in its mapping a window lies that a claimed key opens.
    pub(super) fn reach(
        &self,
        window: &RemoteWindow,
        direction: Direction,
    ) -> Result<(&Claim, usize), LinkError> {
        let claim = self.claim(window.key)?;
        Ok((claim, claim.reach(window.address, u64::from(window.length), direction)?))
    }

    /// The claim of a key.
    fn claim(&self, key: RemoteKey) -> Result<&Claim, LinkError> {
        self.claims.get(&key).ok_or(LinkError::Access)
    }
}

impl Claim {
    /// Where in the region's mapping `bytes` bytes of the client's at `address` lie, if the key
    /// opens them.
    fn reach(&self, address: u64, bytes: u64, direction: Direction) -> Result<usize, LinkError> {
        let within = offset_in(self.entry.address, self.entry.length, address, bytes);
        if self.entry.direction != direction || within.is_none() {
            return Err(LinkError::Access);
        }
        usize::try_from(address - self.region.base).map_err(|_| LinkError::Access)
    }
}

/// Where `[address, address + length)` begins in a run, if it lies in it.
fn offset_in(base: u64, bytes: u64, address: u64, length: u64) -> Option<u64> {
    let offset = address.checked_sub(base)?;
    (offset.checked_add(length)? <= bytes).then_some(offset)
}

/// Serves the client until either end wants to go.
async fn serve(shared: Arc<Shared>, channel: Channel, told: watch::Sender<Option<LinkError>>) {
    let channel = Arc::new(channel);
    let why = loop {
        let received = tokio::select! {
            biased;
            () = shared.end.notified() => break LinkError::Closed,
            received = channel.receive() => received,
        };
        match received {
            Ok(Some((Message::Register { region, base, bytes, memory }, file))) => {
                let mapped = shared.register(region, base, bytes, memory, file).await;
                let reply = match mapped {
                    Ok(()) => Message::Registered { region },
                    Err(why) => Message::Refused { region, why },
                };
                if channel.send(&reply, None).await.is_err() {
                    break LinkError::Unreachable;
                }
            }
            Ok(Some((Message::Unregister { region }, None))) => {
                let gone = shared.state.lock().regions.remove(&region);
                let channel = Arc::clone(&channel);
                tokio::spawn(async move {
                    if let Some(gone) = gone {
                        unmapped(gone).await;
                    }
                    let _ = channel.send(&Message::Unregistered { region }, None).await;
                });
            }
            Ok(Some((Message::Bye, None))) => break LinkError::Closed,
            Ok(None) => break LinkError::Unreachable,
            Ok(Some(_)) | Err(_) => break LinkError::Misbehaved,
        }
    };
    shared.end_all().await;
    // The client may be gone.
    let _ = channel.send(&Message::Bye, None).await;
    told.send_replace(Some(why));
}

impl Shared {
    async fn register(
        &self,
        id: u32,
        base: u64,
        bytes: u64,
        memory: Memory,
        file: Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        if base.checked_add(bytes).is_none() {
            return Err(Refusal::Unsafe);
        }
        {
            let state = self.state.lock();
            if state.regions.len() >= REGIONS_MAX || state.regions.contains_key(&id) {
                return Err(Refusal::TooMany);
            }
        }
        let mapping = match (memory, file) {
            (Memory::Host, Some(file)) => Mapping::Host(map_host(file, bytes).await?),
            (Memory::Host, None) => return Err(Refusal::Unsafe),
            (Memory::GpuIpc { gpu, handle }, None) => {
                self.map_gpu(gpu, ExportHandle::Ipc(handle), bytes).await?
            }
            (Memory::GpuFile { gpu }, Some(file)) => {
                self.map_gpu(gpu, ExportHandle::Vmm(file), bytes).await?
            }
            (Memory::GpuIpc { .. } | Memory::GpuFile { .. }, _) => return Err(Refusal::Unsafe),
        };
        let region = Arc::new(Region { base, bytes, mapping, gate: Gate::default() });
        self.state.lock().regions.insert(id, region);
        Ok(())
    }

    async fn map_gpu(
        &self,
        gpu: [u8; 16],
        handle: ExportHandle,
        bytes: u64,
    ) -> Result<Mapping, Refusal> {
        let gpus = Arc::clone(&self.gpus);
        let mapped =
            tokio::task::spawn_blocking(move || gpus.map(GpuUuid(gpu), &handle, bytes)).await;
        let (mapping, queue) = mapped.map_err(|_| Refusal::Failed)??;
        Ok(Mapping::Gpu { mapping, queue })
    }

    /// Nothing of the client's is touched or mapped after this.
    async fn end_all(&self) {
        let (regions, claims) = {
            let mut state = self.state.lock();
            state.is_closing = true;
            let regions: Vec<_> = state.regions.drain().map(|(_, region)| region).collect();
            (regions, std::mem::take(&mut state.claims))
        };
        self.gate.idle().await;
        let keys: Vec<_> = claims.keys().copied().collect();
        drop(claims);
        for region in regions {
            unmapped(region).await;
        }
        keys.into_iter().for_each(|key| self.table.end(key));
    }
}

async fn map_host(file: OwnedFd, bytes: u64) -> Result<Arc<SharedMemory>, Refusal> {
    let bytes = usize::try_from(bytes).map_err(|_| Refusal::Unsafe)?;
    let mapped = tokio::task::spawn_blocking(move || SharedMemory::open(file, bytes)).await;
    let mapped = mapped.map_err(|_| Refusal::Failed)?.map_err(|error| {
        tracing::debug!(%error, "a client's memory was not mapped");
        Refusal::Unsafe
    })?;
    Ok(Arc::new(mapped))
}

/// Unmaps a region once nothing is copied there any more.
async fn unmapped(region: Arc<Region>) {
    region.gate.idle().await;
    let (done, unmapped) = oneshot::channel::<()>();
    tokio::task::spawn_blocking(move || {
        drop(region);
        drop(done);
    });
    let _ = unmapped.await;
}
