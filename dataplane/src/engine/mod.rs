//! The engine of a node: executes plans over a blob store.
//!
//! [`get`], [`gather`] and [`put`] hold the data paths, [`chunk`] is what the first two read,
//! [`admission`] says who may start, and
//! [`digest`] computes what receipts carry. Everything here runs on tokio and does no I/O
//! of its own: devices belong to the store. Transfers into clients' own memory are
//! [`direct`](crate::direct)'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use keyway_fabric::memory::{Arena, LeasePool, PoolStats};
use keyway_proto::key::Relinquished;
use keyway_proto::{
    CatalogId, ChunkId, DirectWork, Door, GetPlan, LocalSessionOffer, LocalSessionRequest, NodeId,
    PutPlan, Rail, Receipt, SessionOffer, SessionOwner, SessionRequest, SessionSelector, Standing,
    TenantId, Weight,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::direct::{Direct, DirectStats, Needs, execute};
use crate::node::{
    Body, ChunkInfo, Delivery, DirectError, NodeStatus, Prefetched, SealingKey, SessionError,
    StorageNode, TransferError, Transferred,
};
use crate::store::tier::{MemoryTier, TierStats};
use crate::store::{BlobStore, StoreUsage};

mod admission;
mod chunk;
mod digest;
mod gather;
mod get;
mod open;
mod owner;
mod put;
#[cfg(test)]
mod tests;

pub(crate) use admission::{Admission, Asking, Turn};
pub(crate) use gather::{Gathering, Run, Step};
pub(crate) use get::start as start_get;
pub use open::{NodeConfig, OpenError};
use owner::Owner;
pub(crate) use put::{begin_chunk, publish, stored};

/// How many transfers a node takes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Transfers under way at once.
    pub transfers_max: usize,
    /// Of these, the most of one tenant.
    pub transfers_per_tenant_max: usize,
    /// Transfers waiting for their turn; one more is answered with `Busy`.
    pub transfers_waiting_max: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { transfers_max: 256, transfers_per_tenant_max: 192, transfers_waiting_max: 4096 }
    }
}

/// The memory that a node's bytes lie in on their way: devices register all of it. Clones
/// share it.
#[derive(Clone, Debug)]
pub struct NodeMemory {
    /// Buffers for transfers.
    pub leases: LeasePool,
    /// What is hot, where there is a memory tier.
    pub tier: Option<Arena>,
}

/// A storage node in this process.
pub struct LocalNode {
    id: NodeId,
    store: Arc<dyn BlobStore>,
    /// The same store, where it is a tier.
    tier: Option<Arc<MemoryTier>>,
    memory: NodeMemory,
    admission: Admission,
    counters: Arc<Counters>,
    direct: Arc<Direct>,
    owner: Owner,
}

impl LocalNode {
    /// A node over an open store, whose buffers come from `pool`.
    pub fn over(
        id: NodeId,
        store: Arc<dyn BlobStore>,
        pool: LeasePool,
        config: &EngineConfig,
    ) -> Arc<Self> {
        let memory = NodeMemory { leases: pool, tier: None };
        Self::with(id, (store, None), memory, config, Direct::without_rails(id), Owner::default())
    }

    /// As [`over`](Self::over), for a store with a memory tier.
    pub fn over_tier(
        id: NodeId,
        tier: Arc<MemoryTier>,
        pool: LeasePool,
        config: &EngineConfig,
    ) -> Arc<Self> {
        let memory = NodeMemory { leases: pool, tier: Some(tier.arena().clone()) };
        let stores = (Arc::clone(&tier) as _, Some(tier));
        Self::with(id, stores, memory, config, Direct::without_rails(id), Owner::default())
    }

    fn with(
        id: NodeId,
        (store, tier): (Arc<dyn BlobStore>, Option<Arc<MemoryTier>>),
        memory: NodeMemory,
        config: &EngineConfig,
        direct: Direct,
        owner: Owner,
    ) -> Arc<Self> {
        let (admission, direct) = (Admission::new(config), Arc::new(direct));
        let counters = Arc::default();
        Arc::new(Self { id, store, tier, memory, admission, counters, direct, owner })
    }

    /// The memory that the node's bytes lie in, for registration with devices.
    pub fn memory(&self) -> &NodeMemory {
        &self.memory
    }

    /// What the node did since it was opened, and how full it is.
    pub fn stats(&self) -> NodeStats {
        NodeStats {
            gets: self.counters.gets.load(Ordering::Relaxed),
            puts: self.counters.puts.load(Ordering::Relaxed),
            failed: self.counters.failed.load(Ordering::Relaxed),
            delivered_bytes: self.counters.delivered_bytes.load(Ordering::Relaxed),
            stored_bytes: self.counters.stored_bytes.load(Ordering::Relaxed),
            transfers: self.admission.transfers() as u64,
            waiting: self.admission.waiting() as u64,
            store: self.store.usage(),
            tier: self.tier.as_ref().map(|tier| tier.stats()).unwrap_or_default(),
            pool: self.memory.leases.stats(),
            direct: self.direct.stats(),
        }
    }

    /// Ends all sessions, key first, and stops the store: background work ends, and devices let
    /// go of all memory. Transfers under way fail.
    pub async fn close(&self) {
        self.direct.close().await;
        self.store.close().await;
    }
}

#[async_trait]
impl StorageNode for LocalNode {
    fn id(&self) -> NodeId {
        self.id
    }

    fn claim(&self, catalog: Option<CatalogId>) -> Result<(), TransferError> {
        self.owner.claim(catalog)
    }

    async fn get(&self, plan: GetPlan) -> Result<Delivery, TransferError> {
        self.counters.gets.fetch_add(1, Ordering::Relaxed);
        let (tenant, weight, bytes) = (plan.tenant, plan.weight, plan.length());
        let turn = self.admission.admit(Asking { tenant, weight, bytes }).await?;
        let reading =
            get::start(&plan, &*self.store, &self.memory.leases, turn, &self.counters).await;
        reading.map(Delivery::from).inspect_err(|_| self.counters.count_failure())
    }

    async fn put(&self, plan: PutPlan, body: Body) -> Result<Receipt, TransferError> {
        self.counters.puts.fetch_add(1, Ordering::Relaxed);
        let (tenant, weight, bytes) = (plan.tenant, plan.weight, plan.length());
        let _turn = self.admission.admit(Asking { tenant, weight, bytes }).await?;
        let (store, tier) = (&*self.store, self.tier.as_deref());
        let receipt = put::run(&plan, body, store, tier, &self.memory.leases).await;
        match &receipt {
            Ok(receipt) => {
                self.counters.stored_bytes.fetch_add(receipt.bytes, Ordering::Relaxed);
            }
            Err(_) => self.counters.count_failure(),
        }
        receipt
    }

    async fn release(&self, chunks: &[ChunkId]) -> Result<(), TransferError> {
        self.store.release(chunks);
        Ok(())
    }

    async fn settle(
        &self,
        chunks: &[ChunkId],
        wait: Duration,
    ) -> Result<Vec<Standing>, TransferError> {
        if let Some(tier) = &self.tier {
            return Ok(tier.settle(chunks, wait).await);
        }
        let standing = |chunk: &ChunkId| match self.store.pin(*chunk) {
            Some(_) => Standing::Durable,
            None => Standing::Missing,
        };
        Ok(chunks.iter().map(standing).collect())
    }

    async fn chunks(
        &self,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ChunkInfo>, TransferError> {
        Ok(self.store.chunks(after, limit))
    }

    async fn prefetch(
        &self,
        tenant: TenantId,
        chunks: &[ChunkId],
    ) -> Result<Prefetched, TransferError> {
        // Counted as the smallest: what it brings in is charged to those who read it.
        let weight = Weight::default();
        let _turn = self.admission.admit(Asking { tenant, weight, bytes: 0 }).await?;
        match &self.tier {
            Some(tier) => Ok(tier.load(chunks).await),
            None => Ok(Prefetched { missed: chunks.len() as u64, ..Prefetched::default() }),
        }
    }

    async fn status(&self) -> Result<NodeStatus, TransferError> {
        let usage = self.store.usage();
        Ok(NodeStatus {
            node: self.id,
            store: self.store.engine().to_owned(),
            access: self.store.access(),
            capacity_bytes: usage.capacity_bytes,
            free_bytes: usage.free_bytes,
            chunks: usage.chunks,
            transfers: self.admission.transfers() as u64,
        })
    }

    async fn rails(&self) -> Result<Vec<Rail>, TransferError> {
        Ok(self.direct.rails())
    }

    async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
    ) -> Result<SessionOffer, SessionError> {
        self.direct.open_session(owner, request, &self.memory).await
    }

    async fn door(&self) -> Result<Option<Door>, TransferError> {
        Ok(self.direct.door())
    }

    async fn open_local_session(
        &self,
        owner: SessionOwner,
        request: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        self.direct.open_local_session(owner, request)
    }

    async fn close_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        Ok(self.direct.close_sessions(&selector).await)
    }

    async fn count_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        Ok(self.direct.count_sessions(&selector))
    }

    async fn transfer(&self, grant: Bytes) -> Transferred {
        let accepted = match self.direct.accept(&grant, &self.memory).await {
            Ok(accepted) => accepted,
            Err(error) => return Transferred::refused(error),
        };
        let counter = match accepted.plan.work {
            DirectWork::Get(..) | DirectWork::Gather(..) => &self.counters.gets,
            DirectWork::Put(..) => &self.counters.puts,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let needs = Needs {
            store: Arc::clone(&self.store),
            tier: self.tier.clone(),
            pool: self.memory.leases.clone(),
            admission: self.admission.clone(),
            counters: Arc::clone(&self.counters),
            direct: Arc::clone(&self.direct),
        };
        // A task of its own ends the key when this future is dropped.
        let (_alive, abandoned) = oneshot::channel();
        match tokio::spawn(execute(needs, accepted, abandoned)).await {
            Ok(transferred) => transferred,
            // The task panicked or the runtime stops: nobody knows.
            Err(_) => {
                Transferred { moved: Err(DirectError::Cancelled), key: Relinquished::Unknown }
            }
        }
    }

    async fn sealing_key(&self) -> Result<SealingKey, TransferError> {
        Ok(self.direct.sealing_key())
    }
}

/// A snapshot of a node's counters, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// GETs taken on.
    pub gets: u64,
    /// PUTs taken on.
    pub puts: u64,
    /// Transfers that failed; cancelled ones are not counted.
    pub failed: u64,
    /// Object bytes handed to GETs.
    pub delivered_bytes: u64,
    /// Object bytes stored by PUTs.
    pub stored_bytes: u64,
    /// Transfers under way.
    pub transfers: u64,
    /// Transfers waiting for their turn.
    pub waiting: u64,
    /// The store.
    pub store: StoreUsage,
    /// The memory tier.
    pub tier: TierStats,
    /// The buffers.
    pub pool: PoolStats,
    /// Direct transfers.
    pub direct: DirectStats,
}

#[derive(Default)]
pub(crate) struct Counters {
    gets: AtomicU64,
    puts: AtomicU64,
    failed: AtomicU64,
    pub(crate) delivered_bytes: AtomicU64,
    pub(crate) stored_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}
