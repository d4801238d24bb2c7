//! Whether a port does dynamically connected transport, found out by trying.
//!
//! A target and an initiator are made on the same port. Bytes are written, and read back; then a
//! key that allows reading alone is written through, which must fail.

use std::sync::Arc;
use std::time::Duration;

use keyway_proto::key::Direction;
use keyway_proto::{DcKey, RemoteWindow};

use super::domain::Access;
use super::dynamic::{DcDevice, DcTarget, Initiator};
use super::dynamic_target::ListeningTarget;
use super::self_test::{StepError, WINDOW_BYTES};
use super::{Batch, Domain, LinkError, Marks, Port};
use crate::memory::{HostBuffer, LeaseClass, LeasePool};

/// How long it may take; the adapter itself gives up after 7 s.
const TEST_MAX: Duration = Duration::from_secs(15);

/// Why a port does not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoDynamic(Arc<str>);

/// Tries it.
///
/// # Errors
/// [`NoDynamic`]: what is missing, or went wrong.
pub async fn dynamic_test(port: &Port) -> Result<Arc<DcDevice>, NoDynamic> {
    let why = |error: &dyn std::error::Error| NoDynamic(error.to_string().into());
    let dc = DcDevice::open(port.device()).map_err(|error| why(&error))?;
    match tokio::time::timeout(TEST_MAX, attempt(port, &dc)).await {
        Ok(Ok(())) => Ok(dc),
        Ok(Err(error)) => Err(why(&error)),
        Err(_) => Err(why(&StepError::Late)),
    }
}

async fn attempt(port: &Port, dc: &Arc<DcDevice>) -> Result<(), StepError> {
    let (theirs, ours) = (Domain::new(port.device())?, Domain::new(port.device())?);
    let mut buffer = HostBuffer::zeroed(WINDOW_BYTES)?;
    let writable = buffer.slice_mut(..)?.exact_anchor();
    let address = writable.address();
    let writable = theirs.register(writable, Access::Remote(Direction::Write))?;
    let readable = buffer.slice_mut(..)?.exact_anchor();
    let readable = theirs.register(readable, Access::Remote(Direction::Read))?;
    let window = |key| RemoteWindow { address, length: WINDOW_BYTES as u32, key };
    let key = DcKey(fastrand::u64(..));
    let target = ListeningTarget::new(port, dc, &theirs, key)?;
    let to = |initiator: &Initiator| initiator.target(&target.address(), key, Marks::default());
    let bench = Bench::new(port, dc, &ours, to)?;
    bench.write(window(writable.remote_key()), 0x5a).await?;
    let holds =
        || -> Result<bool, StepError> { Ok(buffer.bytes()?.iter().all(|byte| *byte == 0x5a)) };
    holds()?.then_some(()).ok_or(StepError::NotWritten)?;
    let read = bench.read(window(readable.remote_key())).await?;
    read.iter().all(|byte| *byte == 0x5a).then_some(()).ok_or(StepError::NotRead)?;
    match bench.write(window(readable.remote_key()), 0xa5).await {
        Err(StepError::Link(LinkError::Access | LinkError::Request { .. })) if holds()? => Ok(()),
        Err(StepError::Link(LinkError::Access | LinkError::Request { .. })) | Ok(()) => {
            Err(StepError::Opened)
        }
        Err(error) => Err(error),
    }
}

/// The node's end.
struct Bench {
    initiator: Initiator,
    to: Arc<DcTarget>,
    pool: LeasePool,
    leases: Arc<super::Registration>,
}

impl Bench {
    fn new(
        port: &Port,
        dc: &Arc<DcDevice>,
        domain: &Arc<Domain>,
        to: impl FnOnce(&Initiator) -> Result<Arc<DcTarget>, super::VerbsError>,
    ) -> Result<Self, StepError> {
        let pool = LeasePool::new(0)?;
        let leases = domain.register_pool(&pool)?;
        let initiator = Initiator::new(port, dc, domain)?;
        let to = to(&initiator)?;
        Ok(Self { initiator, to, pool, leases })
    }

    async fn write(&self, window: RemoteWindow, value: u8) -> Result<(), StepError> {
        let length = window.length as usize;
        let mut lease = self.pool.lease(LeaseClass::Page).await;
        lease[..length].fill(value);
        let mut batch = Batch::default();
        batch.write(&self.leases, lease.into_bytes(0..length), window.address, window.key);
        let posted = self.initiator.begin(&self.to, batch).await?;
        self.initiator.landed(posted).await?;
        Ok(())
    }

    async fn read(&self, window: RemoteWindow) -> Result<Vec<u8>, StepError> {
        let lease = self.pool.lease(LeaseClass::Page).await;
        let mut batch = Batch::default();
        batch.read(&self.leases, lease, &[window]);
        let posted = self.initiator.begin(&self.to, batch).await?;
        let landed = self.initiator.landed(posted).await?;
        let leases = landed.leases.iter();
        Ok(leases.flat_map(|lease| lease[..window.length as usize].to_vec()).collect())
    }
}
