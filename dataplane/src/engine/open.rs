//! Opening a node.

use std::sync::Arc;

use keyway_fabric::memory::{LeasePool, MemoryError};
use keyway_proto::NodeId;
use serde::{Deserialize, Serialize};

use super::{EngineConfig, LocalNode};
use crate::direct::{Direct, DirectUnavailable, IpcConfig, RdmaConfig};
use crate::store::StoreConfig;
use crate::store::file::{FileStore, OpenStoreError};
use crate::store::memory::MemoryStore;

/// What an operator says about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeConfig {
    /// The node's id, unique in its cluster.
    pub id: NodeId,
    /// Where its chunks live.
    pub store: StoreConfig,
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
    /// The store did not open.
    #[error("cannot open the store")]
    Store(#[from] OpenStoreError),
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
        let pool = LeasePool::new(config.store.pool_bytes)?;
        let NodeConfig { id, store, engine, rdma, ipc } = config;
        let direct = Direct::open(id, rdma, &ipc, &pool).await?;
        let store_pool = pool.clone();
        // Rebuilding the index reads the disk.
        let opening = tokio::task::spawn_blocking(move || FileStore::open(id, &store, store_pool));
        let store = opening.await.map_err(|_| OpenError::Stopped)??;
        Ok(Self::with(id, Arc::new(store), pool, &engine, direct))
    }

    /// A node whose chunks live in this process's memory, with its adapters.
    ///
    /// # Errors
    /// [`OpenError::Pool`] when there is no memory for the buffers, [`OpenError::Direct`].
    pub async fn open_in_memory(
        id: NodeId,
        capacity_bytes: u64,
        pool_bytes: usize,
        engine: &EngineConfig,
        rdma: RdmaConfig,
        ipc: &IpcConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let pool = LeasePool::new(pool_bytes)?;
        let direct = Direct::open(id, rdma, ipc, &pool).await?;
        let store = Arc::new(MemoryStore::new(capacity_bytes));
        Ok(Self::with(id, store, pool, engine, direct))
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
