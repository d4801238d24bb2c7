//! How bytes get into a client's memory and out of it: one trait, and a kind of link beside
//! each: connected and mapped ones here, [`dynamic`](super::dynamic) ones there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use keyway_fabric::LinkError;
use keyway_fabric::ipc::{self, MemoryKind, NodeLink};
use keyway_fabric::memory::{Destination, Lease};
use keyway_fabric::verbs::{self, Link};
use keyway_proto::{RemoteKey, RemoteWindow};

use super::rail::TenantDomain;

/// A session's link, as the movers use it.
pub(super) trait Transport: Clone + Send + Sync + 'static {
    /// Copies that are begun together.
    type Batch: Default + Send + 'static;
    /// A batch under way.
    type Posted: Send + 'static;

    /// Bytes after which a batch is begun.
    const BATCH_BYTES: u64;
    /// Requests after which it is, however small.
    const BATCH_REQUESTS: usize;

    /// The longest write into these windows that is worth its while.
    fn write_bytes_max(&self, target: &[RemoteWindow]) -> u64;

    /// The link, where both ends are on one host: bytes are then copied to any memory of ours.
    fn local(&self) -> Option<&NodeLink>;

    /// Whether the link's device reaches these bytes where they lie.
    fn reaches(&self, bytes: &Bytes) -> bool;

    /// Writes bytes to a run of the client's memory. They are as many.
    fn write(&self, batch: &mut Self::Batch, bytes: Bytes, run: RemoteWindow);

    /// Reads runs of the client's memory into a lease, one behind the other.
    fn read(&self, batch: &mut Self::Batch, lease: Lease, runs: &[RemoteWindow]);

    /// Ends a key behind everything under it.
    fn end(&self, batch: &mut Self::Batch, key: RemoteKey);

    /// Requests in a batch.
    fn requests(batch: &Self::Batch) -> usize;

    /// Begins a batch, when there is room for it.
    fn begin(
        &self,
        batch: Self::Batch,
    ) -> impl Future<Output = Result<Self::Posted, LinkError>> + Send;

    /// Waits for a batch, and gives back what was read into.
    fn landed(
        &self,
        posted: Self::Posted,
    ) -> impl Future<Output = Result<Vec<Lease>, LinkError>> + Send;

    /// Whether anything was begun under the transfer's keys. Else they are left as they are: they
    /// may be dead, where a request ran twice, and to invalidate a dead key ends its session.
    fn was_used(&self) -> bool;

    /// Waits until nothing is under way under these keys.
    fn drain(&self, windows: &[RemoteWindow])
    -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Ends the link; when this returns, no key of it opens anything.
    fn fence(&self) -> impl Future<Output = ()> + Send;

    /// Begins a batch and waits for it.
    fn post(&self, batch: Self::Batch) -> impl Future<Output = Result<(), LinkError>> + Send {
        async {
            let posted = self.begin(batch).await?;
            self.landed(posted).await.map(drop)
        }
    }
}

/// A queue pair, in its tenant's domain.
#[derive(Clone)]
pub(super) struct VerbsWay {
    pub(super) link: Link,
    domain: Arc<TenantDomain>,
    was_used: Arc<AtomicBool>,
}

impl VerbsWay {
    pub(super) fn new(link: Link, domain: Arc<TenantDomain>) -> Self {
        Self { link, domain, was_used: Arc::default() }
    }

    /// The same for one transfer, which has used it for nothing yet.
    pub(super) fn unused(&self) -> Self {
        Self::new(self.link.clone(), Arc::clone(&self.domain))
    }
}

impl Transport for VerbsWay {
    type Batch = verbs::Batch;
    type Posted = verbs::Posted;

    const BATCH_BYTES: u64 = 1 << 20;
    /// A quarter of a node's send queue.
    const BATCH_REQUESTS: usize = 32;

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

    fn end(&self, batch: &mut verbs::Batch, key: RemoteKey) {
        batch.invalidate(key);
    }

    fn requests(batch: &verbs::Batch) -> usize {
        batch.len()
    }

    async fn begin(&self, batch: verbs::Batch) -> Result<verbs::Posted, LinkError> {
        let posted = self.link.begin(batch).await?;
        // Not before: one that is dropped while it waits for room has posted nothing.
        self.was_used.store(true, Ordering::Relaxed);
        Ok(posted)
    }

    async fn landed(&self, posted: verbs::Posted) -> Result<Vec<Lease>, LinkError> {
        Ok(self.link.landed(posted).await?.leases)
    }

    fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Relaxed)
    }

    /// A queue pair completes in order: what follows all tells of all.
    async fn drain(&self, _: &[RemoteWindow]) -> Result<(), LinkError> {
        self.link.heartbeat().await
    }

    async fn fence(&self) {
        self.link.fence().await;
    }
}

impl Transport for NodeLink {
    type Batch = ipc::Batch;
    type Posted = ipc::Posted;

    const BATCH_BYTES: u64 = 4 << 20;
    const BATCH_REQUESTS: usize = 1024;

    /// A GPU's engine is fastest with long copies, and sleeps meanwhile; the host's memory is
    /// copied by several threads at once.
    fn write_bytes_max(&self, target: &[RemoteWindow]) -> u64 {
        match self.kind(target) {
            MemoryKind::Gpu => 16 << 20,
            MemoryKind::Host => Self::BATCH_BYTES,
        }
    }

    fn local(&self) -> Option<&NodeLink> {
        Some(self)
    }

    fn reaches(&self, _: &Bytes) -> bool {
        true
    }

    fn write(&self, batch: &mut ipc::Batch, bytes: Bytes, run: RemoteWindow) {
        batch.write(bytes, run.address, run.key);
    }

    fn read(&self, batch: &mut ipc::Batch, lease: Lease, runs: &[RemoteWindow]) {
        batch.read(lease, runs);
    }

    fn end(&self, batch: &mut ipc::Batch, key: RemoteKey) {
        batch.end(key);
    }

    fn requests(batch: &ipc::Batch) -> usize {
        batch.len()
    }

    async fn begin(&self, batch: ipc::Batch) -> Result<ipc::Posted, LinkError> {
        NodeLink::begin(self, batch)
    }

    async fn landed(&self, posted: ipc::Posted) -> Result<Vec<Lease>, LinkError> {
        let landed = NodeLink::landed(self, posted).await?;
        Ok(landed.destinations.into_iter().filter_map(Destination::into_lease).collect())
    }

    /// The keys were found alive when they were claimed, and nobody else ends them.
    fn was_used(&self) -> bool {
        true
    }

    async fn drain(&self, windows: &[RemoteWindow]) -> Result<(), LinkError> {
        self.drained(windows).await;
        Ok(())
    }

    async fn fence(&self) {
        NodeLink::fence(self).await;
    }
}
