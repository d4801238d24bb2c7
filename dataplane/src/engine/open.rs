//! Opening a node.

use std::sync::Arc;

use keyway_fabric::ipc::Buffers;
use keyway_fabric::memory::{LeasePool, MemoryError};
use keyway_proto::NodeId;
use serde::{Deserialize, Serialize};

use super::owner::Owner;
use super::{EngineConfig, LocalNode, NodeMemory};
use crate::direct::{Direct, DirectUnavailable, IpcConfig, RdmaConfig};
use crate::store::file::{FileStore, OpenStoreError};
use crate::store::memory::MemoryStore;
use crate::store::tier::{MemoryTier, TierConfig};
use crate::store::{BlobStore, StoreConfig};

/// What an operator says about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeConfig {
    /// The node's id, unique in its cluster.
    pub id: NodeId,
    /// Where its chunks live.
    pub store: StoreConfig,
    /// What it keeps in memory of that.
    pub tier: TierConfig,
    /// How many transfers it takes on.
    pub engine: EngineConfig,
    /// How it reaches into clients' own memory.
    pub rdma: RdmaConfig,
    /// How it serves clients of its own host.
    pub ipc: IpcConfig,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            id: NodeId(1),
            store: StoreConfig::default(),
            tier: TierConfig::default(),
            engine: EngineConfig::default(),
            rdma: RdmaConfig::default(),
            ipc: IpcConfig::default(),
        }
    }
}

/// Why a node did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused the memory for the buffers.
    #[error("cannot make the buffer pool")]
    Pool(#[from] MemoryError),
    /// The kernel refused the memory for the tier.
    #[error("cannot make the memory tier")]
    Tier(#[source] MemoryError),
    /// The store did not open.
    #[error("cannot open the store")]
    Store(#[from] OpenStoreError),
    /// Whose chunks the store keeps cannot be read.
    #[error("cannot read whose chunks the store keeps")]
    Owner(#[source] std::io::Error),
    /// RDMA, or a door for local clients, is required, and cannot be had.
    #[error("cannot serve direct transfers")]
    Direct(#[from] DirectUnavailable),
    /// The runtime is shutting down.
    #[error("the node was stopped while it opened")]
    Stopped,
}

impl LocalNode {
    /// A node over a file store, which is made when it is not there. Must run within a
    /// tokio runtime, which the node's tasks use from then on.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(config: NodeConfig) -> Result<Arc<Self>, OpenError> {
        let NodeConfig { id, store, tier, engine, rdma, ipc } = config;
        let memory = NodeMemory::map(store.pool_bytes, &tier)?;
        let direct = Direct::open(id, rdma, &ipc, &memory).await?;
        let store_pool = memory.leases.clone();
        let dir = store.dir.clone();
        // Rebuilding the index reads the disk.
        let opening = tokio::task::spawn_blocking(move || FileStore::open(id, &store, store_pool));
        let store = opening.await.map_err(|_| OpenError::Stopped)??;
        let owner = Owner::of(dir).map_err(OpenError::Owner)?;
        let stores = tiered(Arc::new(store), &memory, tier);
        Ok(Self::with(id, stores, memory, &engine, direct, owner))
    }

    /// A node whose chunks live in this process's memory, with its adapters.
    ///
    /// # Errors
    /// [`OpenError::Pool`] and [`OpenError::Tier`] when there is no memory,
    /// [`OpenError::Direct`].
    pub async fn open_in_memory(
        id: NodeId,
        capacity_bytes: u64,
        pool_bytes: usize,
        tier: TierConfig,
        engine: &EngineConfig,
        rdma: RdmaConfig,
        ipc: &IpcConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let memory = NodeMemory::map(pool_bytes, &tier)?;
        let direct = Direct::open(id, rdma, ipc, &memory).await?;
        let store = Arc::new(MemoryStore::new(capacity_bytes));
        let stores = tiered(store, &memory, tier);
        Ok(Self::with(id, stores, memory, engine, direct, Owner::default()))
    }

    /// A node whose chunks live in this process's memory, for tests and benchmarks.
    ///
    /// # Errors
    /// [`OpenError::Pool`] when there is no memory for the buffers.
    pub fn in_memory(
        id: NodeId,
        capacity_bytes: u64,
        pool_bytes: usize,
    ) -> Result<Arc<Self>, OpenError> {
        let pool = LeasePool::new(pool_bytes)?;
        let store = Arc::new(MemoryStore::new(capacity_bytes));
        Ok(Self::over(id, store, pool, &EngineConfig::default()))
    }
}

impl NodeMemory {
    /// Buffers of `pool_bytes`, and the memory of the tier where one is wanted.
    fn map(pool_bytes: usize, tier: &TierConfig) -> Result<Self, OpenError> {
        let leases = LeasePool::new(pool_bytes)?;
        let tier = match tier.size_bytes {
            0 => None,
            _ => Some(tier.map().map_err(OpenError::Tier)?),
        };
        Ok(Self { leases, tier })
    }

    /// All of it, for pinning.
    pub(crate) fn anchors(&self) -> Vec<Buffers> {
        let leases = self.leases.clone();
        let mut anchors = vec![Buffers::first(move || leases.anchor())];
        if let Some(tier) = self.tier.clone() {
            anchors.push(Buffers::behind(move || tier.anchor()));
        }
        anchors
    }
}

type Stores = (Arc<dyn BlobStore>, Option<Arc<MemoryTier>>);

/// The store, behind a memory tier where there is memory for one.
fn tiered(store: Arc<dyn BlobStore>, memory: &NodeMemory, config: TierConfig) -> Stores {
    let Some(arena) = memory.tier.clone() else { return (store, None) };
    let tier = Arc::new(MemoryTier::within(store, memory.leases.clone(), arena, config));
    (Arc::clone(&tier) as _, Some(tier))
}
