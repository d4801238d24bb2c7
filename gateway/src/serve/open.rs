//! Opens the stores as configured.

use std::sync::Arc;

use keyway_auth::{KeyFile, KeyProvider, RootCredentials};
use keyway_dataplane::{
    EngineConfig, IpcConfig, LocalNode, NodeConfig, RdmaConfig, StoreConfig, TierConfig,
};
use keyway_meta::{Catalog, EmbeddedStore, MetaConfig, MetaStore, Quota};
use keyway_proto::NodeId;
use keyway_proto::unit::GIB;

use super::ServeError;
use super::data_dir::DataDir;
use crate::accounts::Accounts;
use crate::audit::{Audit, Limits};
use crate::config::{self, Config, Engine, Ipc, Maintenance, Meta, Node, Rdma, Tier};
use crate::maintenance::MaintenanceConfig;
use crate::node::Nodes;
use crate::notify::Notifier;
use crate::s3::SystemClock;
use crate::telemetry::Metrics;

/// Capacity of a memory store when none is configured.
const MEMORY_STORE_BYTES: u64 = GIB;

/// Opens the metadata store and has the metrics tell of it for as long as it is there.
pub(super) async fn metadata(
    config: &Meta,
    data: &DataDir,
    metrics: &Metrics,
) -> Result<Arc<dyn MetaStore>, ServeError> {
    let path = data.meta()?;
    let meta = MetaConfig { cache_bytes: config.cache_bytes, reserve_bytes: config.reserve_bytes };
    let groups = metrics.group_commits();
    // Recovery reads and writes: not on a thread that serves.
    let open = move || EmbeddedStore::open_observed(&path, &meta, groups);
    let opened = tokio::task::spawn_blocking(open).await;
    let store = opened.map_err(|_| ServeError::Cancelled)?.map_err(ServeError::Meta)?;
    let store = Arc::new(store);
    let told = Arc::downgrade(&store);
    metrics.observe_meta(move || Some(told.upgrade()?.stats()));
    Ok(store)
}

/// Reads who there is, and gives the directory's key, under which what is kept of their secrets is
/// sealed.
pub(super) async fn accounts(
    store: &Arc<dyn MetaStore>,
    data: &DataDir,
    root: &RootCredentials,
    nodes: &Nodes,
) -> Result<(Arc<Accounts>, Arc<dyn KeyProvider>), ServeError> {
    let key = KeyFile::open_or_create(&data.key_file()).map_err(ServeError::KeyFile)?;
    let key: Arc<dyn KeyProvider> = Arc::new(key);
    let rows = keyway_meta::Accounts::new(Arc::clone(store));
    let clock = Arc::new(SystemClock);
    let accounts = Accounts::open(rows, Arc::clone(&key), root.clone(), clock, nodes.clone()).await;
    Ok((accounts.map(Arc::new).map_err(ServeError::Accounts)?, key))
}

/// The catalog, which holds tenants and users to their quotas. A store from before there were any
/// is read whole, once.
pub(super) async fn catalog(
    store: Arc<dyn MetaStore>,
    accounts: &Arc<Accounts>,
) -> Result<Catalog, ServeError> {
    let accounts = Arc::clone(accounts);
    let catalog = Catalog::new(store).bounded_by(move |tenant, user| {
        let quota = accounts.quota(tenant, user);
        Quota { bytes: quota.bytes, objects: quota.objects }
    });
    if let Some(tenants) = catalog.count_usage().await.map_err(ServeError::Usage)? {
        tracing::debug!(tenants, "what tenants store is counted from now on");
    }
    Ok(catalog)
}

/// Opens the audit log, all of which is read: not on a thread that serves.
pub(super) async fn audit(config: &config::Audit, data: &DataDir) -> Result<Audit, ServeError> {
    if !config.enabled {
        return Ok(Audit::default());
    }
    let path = config.file.clone().unwrap_or_else(|| data.audit());
    let limits = Limits { file_bytes: config.file_bytes_max, files: config.files_max };
    let opened = tokio::task::spawn_blocking(move || Audit::open(&path, limits)).await;
    opened.map_err(|_| ServeError::Cancelled)?.map_err(ServeError::Audit)
}

/// The targets of events.
pub(super) fn notifier(config: &Config) -> Result<Notifier, ServeError> {
    Notifier::new(&config.notify, &config.s3.region)
        .map_err(|(name, source)| ServeError::Notify { name, source })
}

pub(super) async fn node(config: &Node, data: &DataDir) -> Result<Arc<LocalNode>, ServeError> {
    let (id, store) = (NodeId(config.id), &config.store);
    let engine = EngineConfig {
        transfers_max: config.max_transfers.get(),
        transfers_per_tenant_max: config.max_transfers_per_tenant.get(),
        transfers_waiting_max: config.max_waiting_transfers,
    };
    let (rdma, ipc) = (rdma(&config.rdma), ipc(&config.ipc, data));
    let tier = tier(&config.tier);
    let opened = match store.engine {
        Engine::Memory => {
            let capacity = store.capacity_bytes.unwrap_or(MEMORY_STORE_BYTES);
            let buffers = store.buffer_bytes;
            LocalNode::open_in_memory(id, capacity, buffers, tier, &engine, rdma, &ipc).await
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
            LocalNode::open(NodeConfig { id, store, tier, engine, rdma, ipc }).await
        }
    };
    opened.map_err(ServeError::Node)
}

fn tier(config: &Tier) -> TierConfig {
    TierConfig {
        size_bytes: config.size_bytes,
        admit: config.admit,
        huge_pages: config.huge_pages,
        verify: config.verify,
        scrub_bytes_per_second: config.scrub_bytes_per_second,
        dirty_bytes: config.dirty_bytes,
    }
}

fn rdma(config: &Rdma) -> RdmaConfig {
    RdmaConfig {
        mode: config.mode,
        devices: config.devices.clone(),
        traffic_class: config.traffic_class,
        service_level: config.service_level,
        sessions_max: config.max_sessions,
        sessions_per_key_max: config.max_sessions_per_key,
        windows_per_session_max: config.max_windows_per_session.get(),
        idle_timeout_ms: config.idle_timeout_ms,
        dc_key: config.dc_key,
        transfer_timeout_ms: config.transfer_timeout_ms,
    }
}

fn ipc(config: &Ipc, data: &DataDir) -> IpcConfig {
    IpcConfig {
        mode: config.mode,
        socket: Some(config.socket.clone().unwrap_or_else(|| data.door())),
        users: config.users.clone(),
    }
}

pub(super) fn maintenance(config: &Maintenance) -> MaintenanceConfig {
    MaintenanceConfig {
        reap_period_ms: config.reap_period_ms,
        sweep_period_ms: config.sweep_period_ms,
        orphan_grace_ms: config.orphan_grace_ms,
        completion_memory_ms: config.completion_memory_ms,
        lifecycle_period_ms: config.lifecycle_period_ms,
        lifecycle_day_ms: config.lifecycle_day_ms,
    }
}
