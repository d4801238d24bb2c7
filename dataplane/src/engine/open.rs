//! Opening a node.

use std::sync::Arc;

use keyway_fabric::memory::{LeasePool, MemoryError};
use keyway_proto::NodeId;

use super::{EngineConfig, LocalNode};
use crate::store::memory::MemoryStore;

/// Why a node did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused the memory for the buffers.
    #[error("cannot make the buffer pool")]
    Pool(#[from] MemoryError),
}

impl LocalNode {
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
