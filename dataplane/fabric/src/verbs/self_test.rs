//! What an adapter can really do, found out by trying.
//!
//! A port is connected to itself. A window is bound, written through, invalidated, and then
//! written through once more, which must fail; a second one is written beside, which must
//! fail, too. Documentation and capability bits are believed about none of this.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keyway_proto::key::{Direction, Revoker};
use keyway_proto::{KeyStrength, RemoteKey, RemoteWindow};

use super::domain::Access;
use super::lend_costs::{LendCosts, lend_costs};
use super::{Armed, Batch, Device, Domain, Link, LinkError, LinkShape, Port, Registration};
use super::{Quirks, VerbsError};
use crate::gpu::GpuError;
use crate::memory::{HostBuffer, HostSliceMut, LeaseClass, LeasePool, LendError, MemoryError};

/// How long one step may take; the adapter itself gives up after 7 s.
const STEP_MAX: Duration = Duration::from_secs(15);
const REMOTE: &str = "window, remote invalidation";
const LOCAL: &str = "window, local invalidation";
/// Bytes of the window; the buffer has as many behind it.
pub(super) const WINDOW_BYTES: usize = 4096;

/// What an adapter's port was found to do with memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// The strongest keys that were proven; `None` when nothing was.
    pub strength: Option<KeyStrength>,
    /// Whether a window's own bounds hold inside the registration that it lies in. Where not,
    /// each window needs a registration of its own.
    pub exact: bool,
    /// How the device differs from the specification.
    pub quirks: Quirks,
    /// What it costs to register memory for one transfer, beside a copy.
    pub costs: Option<LendCosts>,
    /// What was tried, and how it ended.
    pub steps: Vec<Step>,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What.
    pub what: &'static str,
    /// Why it did not end as it must.
    pub outcome: Result<(), String>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Lend(#[from] LendError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("the bytes did not arrive")]
    NotWritten,
    #[error("a dead key still opened the memory")]
    Undead,
    #[error("the bytes were not read")]
    NotRead,
    #[error("a key for reading let a write in")]
    Opened,
    #[error("a write beside the window arrived")]
    Beside,
    #[error("the adapter did not answer in time")]
    Late,
}

/// Tries what a port can do. Takes milliseconds on an adapter, up to seconds where refused
/// requests are only noticed by their time-out.
pub async fn self_test(port: &Port) -> SelfTest {
    let device = port.device();
    let mut steps = Vec::new();
    let mut strength = None;
    let mut exact = false;
    if device.has_windows() {
        let remote = tried(&mut steps, REMOTE, window(port, Revoker::Node)).await;
        exact = tried(&mut steps, "bounds of a window", bounds(port)).await;
        strength = remote.then_some(KeyStrength::Window);
        if !remote && tried(&mut steps, LOCAL, window(port, Revoker::Client)).await {
            strength = Some(KeyStrength::WindowLocal);
        }
    }
    if tried(&mut steps, "registration", registration(port)).await {
        strength = strength.or(Some(KeyStrength::Registration));
    }
    if tried(&mut steps, "slab", slab(port)).await {
        strength = strength.or(Some(KeyStrength::Slab));
    }
    let costs = lend_costs(device).await;
    SelfTest { strength, exact, quirks: device.quirks(), costs, steps }
}

impl SelfTest {
    /// Whether keys of strength `slab` are taken where there are no windows: the adapter gives no
    /// others, or registers so slowly that a copy is by far quicker.
    pub fn prefers_slab(&self) -> bool {
        match self.strength {
            Some(KeyStrength::Slab) => true,
            Some(KeyStrength::Registration) => self.costs.is_some_and(|costs| costs.favour_slab()),
            _ => false,
        }
    }
}

impl fmt::Display for SelfTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.strength {
            Some(strength) => write!(f, "{strength}")?,
            None => f.write_str("none")?,
        }
        for step in &self.steps {
            match &step.outcome {
                Ok(()) => write!(f, "; {}: holds", step.what)?,
                Err(why) => write!(f, "; {}: {why}", step.what)?,
            }
        }
        if let Some(costs) = &self.costs {
            write!(f, "; {costs}")?;
        }
        Ok(())
    }
}

pub(super) async fn tried(
    steps: &mut Vec<Step>,
    what: &'static str,
    attempt: impl Future<Output = Result<(), StepError>>,
) -> bool {
    let outcome = match tokio::time::timeout(STEP_MAX, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(StepError::Late),
    };
    let holds = outcome.is_ok();
    steps.push(Step { what, outcome: outcome.map_err(|error| error.to_string()) });
    holds
}

/// A window that dies by this revoker's invalidation.
async fn window(port: &Port, revoker: Revoker) -> Result<(), StepError> {
    let mut bench = Bench::new(port)?;
    let mut armed = bench.arm().await?;
    let window = armed.remote();
    match revoker {
        Revoker::Node => {
            bench.write(window, 0, 0x5a, Some(window.key)).await?;
            armed.invalidated().await?;
        }
        // Windows are never slabs' keys.
        Revoker::Client | Revoker::Nobody => {
            bench.write(window, 0, 0x5a, None).await?;
            armed.revoke().await?;
        }
    }
    drop(armed);
    bench.expect(0, 0x5a).then_some(()).ok_or(StepError::NotWritten)?;
    bench.refused(window, 0, StepError::Undead).await
}

/// A write behind the window's end, inside its registration.
async fn bounds(port: &Port) -> Result<(), StepError> {
    let mut bench = Bench::new(port)?;
    let mut armed = bench.arm().await?;
    let beside = WINDOW_BYTES as u64;
    let refused = bench.refused(armed.remote(), beside, StepError::Beside).await;
    armed.fence().await;
    refused
}

/// A registration made for one transfer.
async fn registration(port: &Port) -> Result<(), StepError> {
    let mut bench = Bench::new(port)?;
    let slice = bench.buffer.slice_mut(..WINDOW_BYTES)?;
    let anchor = slice.exact_anchor();
    let domain = Arc::clone(bench.client.domain());
    let lent = Armed::register(bench.client.clone(), &domain, slice, anchor, Direction::Write);
    let mut armed = lent.map_err(|(error, _)| error)?;
    let window = armed.remote();
    bench.write(window, 0, 0x5a, None).await?;
    armed.revoke().await?;
    drop(armed);
    bench.expect(0, 0x5a).then_some(()).ok_or(StepError::NotWritten)?;
    bench.refused(window, 0, StepError::Undead).await
}

/// A registration that stays, and lets two transfers in, one after the other.
async fn slab(port: &Port) -> Result<(), StepError> {
    let mut bench = Bench::new(port)?;
    let mut buffer = HostBuffer::zeroed(2 * WINDOW_BYTES)?;
    let slice = buffer.slice_mut(..WINDOW_BYTES)?;
    let (anchor, address) = (slice.exact_anchor(), slice.address());
    drop(slice);
    let slab = bench.client.domain().register(anchor, Access::Remote(Direction::Write))?;
    for value in [0x5a, 0xa5] {
        // All of the buffer, which nobody looks into until the write has ended.
        let link = bench.client.clone();
        let mut armed = Armed::piece(link, buffer, &slab, address, WINDOW_BYTES as u32);
        bench.write(armed.remote(), 0, value, None).await?;
        armed.revoke().await?;
        buffer = armed.release().expect("a piece that was revoked comes back");
        let (inside, beside) = buffer.bytes()?.split_at(WINDOW_BYTES);
        let arrived = inside.iter().all(|byte| *byte == value);
        beside.iter().all(|byte| *byte == 0).then_some(()).ok_or(StepError::Beside)?;
        arrived.then_some(()).ok_or(StepError::NotWritten)?;
    }
    // Behind its end.
    let mut armed = Armed::piece(bench.client.clone(), buffer, &slab, address, WINDOW_BYTES as u32);
    let refused = bench.refused(armed.remote(), WINDOW_BYTES as u64, StepError::Beside).await;
    armed.fence().await;
    refused
}

/// A port connected to itself: a client with a buffer, a node with a lease pool.
pub(super) struct Bench {
    pub(super) client: Link,
    node: Link,
    buffer: HostBuffer,
    memory: Arc<Registration>,
    pool: LeasePool,
    leases: Arc<Registration>,
}

impl Bench {
    pub(super) fn new(port: &Port) -> Result<Self, StepError> {
        let (client_domain, node_domain) = (domain(port)?, domain(port)?);
        let windows = u32::from(port.device().has_windows());
        let client = port.link(&client_domain, LinkShape { sends: 8, windows })?;
        let node = port.link(&node_domain, LinkShape { sends: 8, windows: 0 })?;
        let (to_client, to_node) = (client.address(), node.address());
        let client = client.connect(&to_node)?;
        let node = node.connect(&to_client)?;
        let mut buffer = HostBuffer::zeroed(2 * WINDOW_BYTES)?;
        let anchor = buffer.slice_mut(..)?.anchor();
        let access = if windows > 0 { Access::Windows } else { Access::Local };
        let memory = client_domain.register(anchor, access)?;
        let pool = LeasePool::new(0)?;
        let leases = node_domain.register_pool(&pool)?;
        Ok(Self { client, node, buffer, memory, pool, leases })
    }

    async fn arm(&mut self) -> Result<Armed<HostSliceMut>, StepError> {
        let slice = self.buffer.slice_mut(..WINDOW_BYTES)?;
        let (memory, address) = (Arc::clone(&self.memory), slice.address());
        let armed = self.client.arm(slice, memory, address, WINDOW_BYTES as u32, Direction::Write);
        armed.await.map_err(|(error, _)| error.into())
    }

    pub(super) async fn write(
        &self,
        window: RemoteWindow,
        offset: u64,
        value: u8,
        invalidate: Option<RemoteKey>,
    ) -> Result<(), LinkError> {
        let mut lease = self.pool.lease(LeaseClass::Page).await;
        lease.fill(value);
        let bytes: Bytes = lease.into_bytes(0..WINDOW_BYTES);
        let mut batch = Batch::default();
        batch.write(&self.leases, bytes, window.address + offset, window.key);
        if let Some(key) = invalidate {
            batch.invalidate(key);
        }
        self.node.post(batch).await.map(drop)
    }

    /// A write that must fail, and change nothing.
    async fn refused(
        &mut self,
        window: RemoteWindow,
        offset: u64,
        otherwise: StepError,
    ) -> Result<(), StepError> {
        let before = self.expect(0, 0x5a);
        match self.write(window, offset, 0xa5, None).await {
            Err(LinkError::Access) if self.expect(0, 0x5a) == before => Ok(()),
            Err(LinkError::Access) | Ok(()) => Err(otherwise),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the bytes of a window's length from `from` on all have this value.
    fn expect(&self, from: usize, value: u8) -> bool {
        self.buffer
            .bytes()
            .is_ok_and(|bytes| bytes[from..from + WINDOW_BYTES].iter().all(|byte| *byte == value))
    }
}

fn domain(port: &Port) -> Result<Arc<Domain>, VerbsError> {
    let device: &Arc<Device> = port.device();
    Domain::new(device)
}
