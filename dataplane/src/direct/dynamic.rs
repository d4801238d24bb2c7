//! Clients with dynamically connected targets: no session, and an initiator for each transfer.
//!
//! Sketch, per transfer: one address handle (under RoCE a system call), and one initiator that
//! an earlier transfer of the tenant left behind, or a new one (four system calls). The bytes take
//! the path of any other RDMA transfer.
//!
//! The key is the client's own, over memory that it registered for long: nothing here ends it. So
//! an answer waits until every work request has completed, or the initiator is destroyed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use keyway_fabric::LinkError;
use keyway_fabric::ipc::NodeLink;
use keyway_fabric::memory::Lease;
use keyway_fabric::verbs::dynamic::reaches;
use keyway_fabric::verbs::{self, DcDevice, DcTarget, Initiator, VerbsError};
use keyway_proto::{DcKey, DctAddress, RemoteKey, RemoteWindow, TenantId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::rail::{NodeRail, TenantDomain};
use super::transport::{Transport, VerbsWay};
use crate::engine::NodeMemory;
use crate::node::{DirectError, TransferError};

/// Initiators of one port that are in use; further transfers wait. As many more are kept.
const INITIATORS_MAX: usize = 64;

/// What a port that passed its test has for such clients.
pub(super) struct Dynamic {
    device: Arc<DcDevice>,
    key: DcKey,
    room: Arc<Semaphore>,
    spares: Mutex<Spares<(Arc<TenantDomain>, Initiator)>>,
}

impl Dynamic {
    /// Initiators that nobody used for `idle` are destroyed when the next transfer comes.
    pub(super) fn new(device: Arc<DcDevice>, key: DcKey, idle: Duration) -> Self {
        let room = Arc::new(Semaphore::new(INITIATORS_MAX));
        Self { device, key, room, spares: Mutex::new(Spares { idle, queue: VecDeque::new() }) }
    }

    /// Destroys what is kept for a tenant.
    pub(super) fn forget(&self, tenant: TenantId) {
        let forgotten = self.spares.lock().forget(tenant);
        drop(forgotten);
    }

    /// Keeps what a transfer left quiet for the next of its tenant.
    fn keep(&self, tenant: TenantId, kept: (Arc<TenantDomain>, Initiator)) {
        let surplus = self.spares.lock().keep(tenant, kept, Instant::now());
        // Outside of the lock: memory may be deregistered.
        drop(surplus);
    }

    fn spare(&self, tenant: TenantId) -> Option<(Arc<TenantDomain>, Initiator)> {
        let expired = self.spares.lock().expired(Instant::now());
        drop(expired);
        loop {
            let spare = self.spares.lock().take(tenant)?;
            if spare.1.is_alive() {
                return Some(spare);
            }
        }
    }
}

/// A way to the target for one transfer of the tenant.
///
/// # Errors
/// [`DirectError::NotServed`] where no port reaches it; [`TransferError::Busy`];
/// [`DirectError::Link`].
pub(super) async fn way(
    rails: &[Arc<NodeRail>],
    tenant: TenantId,
    at: DctAddress,
    memory: &NodeMemory,
) -> Result<DcWay, DirectError> {
    let serves = |rail: &&Arc<NodeRail>| rail.dynamic.is_some() && reaches(rail.port.info(), &at);
    let serving: Vec<_> = rails.iter().filter(serves).collect();
    if serving.is_empty() {
        return Err(DirectError::NotServed);
    }
    let rail = Arc::clone(serving[fastrand::usize(..serving.len())]);
    let dynamic = rail.dynamic.as_ref().ok_or(DirectError::NotServed)?;
    let room = Arc::clone(&dynamic.room).acquire_owned().await;
    let (room, memory) = (room.map_err(|_| DirectError::NotServed)?, memory.clone());
    let made = tokio::task::spawn_blocking(move || make(rail, tenant, &at, &memory, room));
    let made = made.await.map_err(|_| DirectError::Link("the node is shutting down".into()))?;
    made.map_err(|error| match error {
        VerbsError::OtherNetwork => DirectError::NotServed,
        VerbsError::TooManyLinks => TransferError::Busy.into(),
        error => DirectError::Link(error.to_string().into()),
    })
}

/// Blocks for system calls.
fn make(
    rail: Arc<NodeRail>,
    tenant: TenantId,
    at: &DctAddress,
    memory: &NodeMemory,
    room: OwnedSemaphorePermit,
) -> Result<DcWay, VerbsError> {
    let dynamic = rail.dynamic.as_ref().ok_or(VerbsError::NotMlx5)?;
    let (domain, initiator) = match dynamic.spare(tenant) {
        Some(spare) => spare,
        None => {
            let domain = rail.domain(tenant, memory)?;
            let initiator = Initiator::new(&rail.port, &dynamic.device, &domain.domain)?;
            (domain, initiator)
        }
    };
    let to = initiator.target(at, dynamic.key, rail.marks)?;
    let lent = Arc::new(Borrowed { rail, tenant, was_used: AtomicBool::new(false), _room: room });
    Ok(DcWay { initiator, to, domain, lent })
}

/// An initiator and its target, for one transfer.
#[derive(Clone)]
pub(super) struct DcWay {
    initiator: Initiator,
    to: Arc<DcTarget>,
    domain: Arc<TenantDomain>,
    lent: Arc<Borrowed>,
}

struct Borrowed {
    rail: Arc<NodeRail>,
    tenant: TenantId,
    /// Whether anything was posted.
    was_used: AtomicBool,
    _room: OwnedSemaphorePermit,
}

impl DcWay {
    /// The transfer has ended, and nothing of it is under way: the initiator may serve another.
    pub(super) fn settle(&self) {
        if let Some(dynamic) = self.lent.rail.dynamic.as_ref().filter(|_| self.initiator.is_alive())
        {
            dynamic.keep(self.lent.tenant, (Arc::clone(&self.domain), self.initiator.clone()));
        }
    }

    pub(super) async fn destroyed(&self) -> LinkError {
        self.initiator.destroyed().await
    }
}

impl Transport for DcWay {
    type Batch = verbs::Batch;
    type Posted = verbs::Posted;

    const BATCH_BYTES: u64 = VerbsWay::BATCH_BYTES;
    const BATCH_REQUESTS: usize = VerbsWay::BATCH_REQUESTS;

    fn write_bytes_max(&self, _: &[RemoteWindow]) -> u64 {
        Self::BATCH_BYTES
    }

    fn local(&self) -> Option<&NodeLink> {
        None
    }

    fn reaches(&self, bytes: &Bytes) -> bool {
        self.domain.covering(bytes).is_some()
    }

    fn write(&self, batch: &mut verbs::Batch, bytes: Bytes, run: RemoteWindow) {
        self.domain.write(batch, bytes, run);
    }

    fn read(&self, batch: &mut verbs::Batch, lease: Lease, runs: &[RemoteWindow]) {
        self.domain.read(batch, lease, runs);
    }

    /// Nothing of ours ends it; the strength says so.
    fn end(&self, _: &mut verbs::Batch, _: RemoteKey) {}

    fn requests(batch: &verbs::Batch) -> usize {
        batch.len()
    }

    async fn begin(&self, batch: verbs::Batch) -> Result<verbs::Posted, LinkError> {
        self.lent.was_used.store(true, Ordering::Relaxed);
        self.initiator.begin(&self.to, batch).await
    }

    async fn landed(&self, posted: verbs::Posted) -> Result<Vec<Lease>, LinkError> {
        Ok(self.initiator.landed(posted).await?.leases)
    }

    fn was_used(&self) -> bool {
        self.lent.was_used.load(Ordering::Relaxed)
    }

    /// A transfer that is given up does not wait for a stranger's adapter: the initiator goes.
    async fn drain(&self, _: &[RemoteWindow]) -> Result<(), LinkError> {
        Err(LinkError::Closed)
    }

    async fn fence(&self) {
        self.initiator.fence().await;
    }
}

/// What earlier transfers left, the longest unused first; at most [`INITIATORS_MAX`].
struct Spares<T> {
    idle: Duration,
    queue: VecDeque<(TenantId, Instant, T)>,
}

impl<T> Spares<T> {
    /// Takes the one of the tenant's that was used last.
    fn take(&mut self, tenant: TenantId) -> Option<T> {
        let at = self.queue.iter().rposition(|(of, ..)| *of == tenant)?;
        self.queue.remove(at).map(|(.., spare)| spare)
    }

    /// Keeps one; gives back the oldest where that is too many.
    fn keep(&mut self, tenant: TenantId, spare: T, now: Instant) -> Option<T> {
        self.queue.push_back((tenant, now, spare));
        let surplus = self.queue.len() > INITIATORS_MAX;
        surplus.then(|| self.queue.pop_front()).flatten().map(|(.., spare)| spare)
    }

    /// Gives back those that were not used for too long.
    fn expired(&mut self, now: Instant) -> Vec<T> {
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= self.idle;
        let old = self.queue.iter().take_while(|(_, since, _)| is_old(since)).count();
        self.queue.drain(..old).map(|(.., spare)| spare).collect()
    }

    fn forget(&mut self, tenant: TenantId) -> Vec<T> {
        let (forgotten, kept) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition::<Vec<_>, _>(|(of, ..)| *of == tenant);
        self.queue = kept.into();
        forgotten.into_iter().map(|(.., spare)| spare).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(10);

    fn spares() -> Spares<u32> {
        Spares { idle: IDLE, queue: VecDeque::new() }
    }

    #[test]
    fn a_tenant_gets_its_own_back_the_latest_first() {
        let (mut spares, now) = (spares(), Instant::now());
        for (tenant, spare) in [(1, 10), (2, 20), (1, 11)] {
            assert_eq!(spares.keep(TenantId(tenant), spare, now), None);
        }
        assert_eq!(spares.take(TenantId(3)), None);
        assert_eq!(spares.take(TenantId(1)), Some(11));
        assert_eq!(spares.take(TenantId(1)), Some(10));
        assert_eq!(spares.take(TenantId(1)), None);
        assert_eq!(spares.take(TenantId(2)), Some(20));
    }

    #[test]
    fn what_is_not_used_goes() {
        let (mut spares, start) = (spares(), Instant::now());
        spares.keep(TenantId(1), 10, start);
        spares.keep(TenantId(2), 20, start + IDLE / 2);
        assert_eq!(spares.expired(start + IDLE / 2), Vec::<u32>::new());
        assert_eq!(spares.expired(start + IDLE), [10]);
        assert_eq!(spares.forget(TenantId(1)), Vec::<u32>::new());
        assert_eq!(spares.forget(TenantId(2)), [20]);
        assert!(spares.queue.is_empty());
    }

    #[test]
    fn the_oldest_makes_room() {
        let (mut spares, now) = (spares(), Instant::now());
        for spare in 0..INITIATORS_MAX as u32 {
            assert_eq!(spares.keep(TenantId(spare.into()), spare, now), None);
        }
        assert_eq!(spares.keep(TenantId(0), 1000, now), Some(0));
        assert_eq!(spares.take(TenantId(0)), Some(1000));
    }
}
