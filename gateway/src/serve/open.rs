//! Opens the stores as configured.

use std::sync::Arc;

use keyway_dataplane::{EngineConfig, LocalNode, NodeConfig, StoreConfig};
use keyway_meta::{Catalog, EmbeddedStore, MetaConfig};
use keyway_proto::NodeId;
use keyway_proto::unit::GIB;

use super::ServeError;
use super::data_dir::DataDir;
use crate::config::{Engine, Maintenance, Meta, Node};
use crate::maintenance::MaintenanceConfig;

/// Capacity of a memory store when none is configured.
const MEMORY_STORE_BYTES: u64 = GIB;

pub(super) async fn catalog(config: &Meta, data: &DataDir) -> Result<Arc<Catalog>, ServeError> {
    let path = data.meta()?;
    let meta = MetaConfig { cache_bytes: config.cache_bytes, reserve_bytes: config.reserve_bytes };
    // Recovery reads and writes: not on a thread that serves.
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(&path, &meta)).await;
    let store = opened.map_err(|_| ServeError::Cancelled)?.map_err(ServeError::Meta)?;
    Ok(Arc::new(Catalog::new(Arc::new(store))))
}

pub(super) async fn node(config: &Node, data: &DataDir) -> Result<Arc<LocalNode>, ServeError> {
    let (id, store) = (NodeId(config.id), &config.store);
    let opened = match store.engine {
        Engine::Memory => {
            let capacity = store.capacity_bytes.unwrap_or(MEMORY_STORE_BYTES);
            LocalNode::in_memory(id, capacity, store.buffer_bytes)
        }
        Engine::File => {
            let dir = match &store.dir {
                Some(dir) => dir.clone(),
                None => data.store()?,
            };
            let store = StoreConfig {
                dir,
                capacity_bytes: store.capacity_bytes,
                volume_bytes: store.volume_bytes,
                pool_bytes: store.buffer_bytes,
                io_uring: store.io_uring,
                direct_io: store.direct_io,
                scrub_bytes_per_second: store.scrub_bytes_per_second,
            };
            let engine = EngineConfig {
                transfers_max: config.max_transfers.get(),
                transfers_waiting_max: config.max_waiting_transfers,
            };
            LocalNode::open(NodeConfig { id, store, engine }).await
        }
    };
    opened.map_err(ServeError::Node)
}

pub(super) fn maintenance(config: &Maintenance) -> MaintenanceConfig {
    MaintenanceConfig {
        reap_period_ms: config.reap_period_ms,
        sweep_period_ms: config.sweep_period_ms,
        orphan_grace_ms: config.orphan_grace_ms,
        completion_memory_ms: config.completion_memory_ms,
    }
}
