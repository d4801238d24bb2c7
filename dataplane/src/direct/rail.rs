//! The ports of this node that take sessions, opened and tried at start.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use keyway_fabric::gpu::{Gpu, GpuUuid};
use keyway_fabric::memory::{Arena, Lease};
use keyway_fabric::verbs::{
    Access, Batch, Device, Domain, LinkShape, Marks, NoDynamic, Opened, PathRecord, Port, PortInfo,
    Registration, ResolveError, SelfTest, VerbsError, device_memory_test, dynamic_test,
    open_ports_for, self_test,
};
use keyway_proto::{KeyStrength, NodeId, Rail, RemoteWindow, TenantId};
use keyway_sys::NativeError;
use parking_lot::Mutex;

use super::RdmaConfig;
use super::dynamic::Dynamic;
use crate::engine::NodeMemory;
use crate::store::AccessMode;

/// Links of a port beside its sessions': initiators that are kept for later transfers, the
/// self-test's, and those that are being destroyed.
const LINKS_BESIDE: u32 = 96;

/// Why a node that must have RDMA has none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaUnavailable {
    /// libibverbs is missing or failed.
    #[error("RDMA is required")]
    Library(#[from] NativeError),
    /// No port is usable.
    #[error("RDMA is required, and no port passed its self-test")]
    NoPort,
}

/// An opened port.
pub(super) struct NodeRail {
    pub(super) number: u32,
    pub(super) port: Port,
    pub(super) strength: KeyStrength,
    /// What the node's packets carry.
    pub(super) marks: Marks,
    /// For clients with dynamically connected targets, where they are served.
    pub(super) dynamic: Option<Dynamic>,
    /// The domains of the tenants that have sessions here.
    domains: Mutex<HashMap<TenantId, Weak<TenantDomain>>>,
}

/// A tenant's protection domain on a port, with the node's memory registered in it. Lives as
/// long as the tenant has a session there.
pub(crate) struct TenantDomain {
    pub(super) domain: Arc<Domain>,
    pub(super) leases: Arc<Registration>,
    tier: Option<Arc<Registration>>,
}

impl TenantDomain {
    fn new(device: &Arc<Device>, memory: &NodeMemory) -> Result<Self, VerbsError> {
        let domain = Domain::new(device)?;
        let leases = domain.register_pool(&memory.leases)?;
        let register = |arena: &Arena| domain.register(arena.anchor(), Access::Local);
        // Without it bytes are copied into leases on their way: slower, and no worse.
        let tier = memory.tier.as_ref().and_then(|arena| {
            let refused = |error: &VerbsError| {
                tracing::warn!(%error, "the memory tier is not registered with the adapter");
            };
            register(arena).inspect_err(refused).ok()
        });
        Ok(Self { domain, leases, tier })
    }

    /// The registration that the bytes lie in.
    pub(super) fn covering(&self, bytes: &[u8]) -> Option<&Arc<Registration>> {
        let covers = |registration: &&Arc<Registration>| {
            registration.covers(bytes.as_ptr() as u64, bytes.len())
        };
        [Some(&self.leases), self.tier.as_ref()].into_iter().flatten().find(covers)
    }

    /// Writes bytes of the node's memory to a run of a client's.
    pub(super) fn write(&self, batch: &mut Batch, bytes: Bytes, run: RemoteWindow) {
        let registration = self.covering(&bytes).unwrap_or(&self.leases);
        batch.write(registration, bytes, run.address, run.key);
    }

    /// Reads runs of a client's memory into a lease, one behind the other.
    pub(super) fn read(&self, batch: &mut Batch, lease: Lease, runs: &[RemoteWindow]) {
        batch.read(&self.leases, lease, runs);
    }
}

impl NodeRail {
    /// The tenant's domain. Registers the node's memory for its first session: milliseconds,
    /// and some tens more for each GiB of a memory tier.
    pub(super) fn domain(
        &self,
        tenant: TenantId,
        memory: &NodeMemory,
    ) -> Result<Arc<TenantDomain>, VerbsError> {
        let mut domains = self.domains.lock();
        if let Some(domain) = domains.get(&tenant).and_then(Weak::upgrade) {
            return Ok(domain);
        }
        domains.retain(|_, domain| domain.strong_count() > 0);
        let made = Arc::new(TenantDomain::new(self.port.device(), memory)?);
        domains.insert(tenant, Arc::downgrade(&made));
        Ok(made)
    }

    pub(super) fn describe(&self, node: NodeId) -> Rail {
        let info = self.port.info();
        Rail {
            node,
            rail: self.number,
            name: format!("{}/{}", info.device, info.number),
            link: info.link,
            gid: info.gid,
            strength: self.strength,
        }
    }
}

/// A port, looked at and tried, for operators.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// The adapter and port: `mlx5_0/1`.
    pub name: String,
    /// The adapter's firmware.
    pub firmware: String,
    /// The port's addresses and limits.
    pub info: PortInfo,
    /// Whether the adapter says that it has type-2B memory windows.
    pub has_windows: bool,
    /// Sessions that the adapter has room for at a time.
    pub sessions_max: u32,
    /// The path from the port to itself, as RDMA-CM resolves it, or why it does not.
    pub path: Result<PathRecord, Arc<ResolveError>>,
    /// What it can really do with host memory.
    pub found: SelfTest,
    /// Whether it does dynamically connected transport, or why not.
    pub dynamic: Result<(), NoDynamic>,
    /// What it can do with the memory of each GPU whose driver lets adapters reach it.
    pub gpus: Vec<(GpuUuid, SelfTest)>,
}

/// Opens and tries every active port. Takes up to seconds. Where there is one, GPUs are opened
/// and tried with it. Gives beside them the adapters and ports that cannot be opened, and why.
///
/// # Errors
/// When libibverbs is missing or fails.
pub async fn examine() -> Result<(Vec<PortReport>, Vec<(String, VerbsError)>), NativeError> {
    let mut reports = Vec::new();
    let Opened { ports, left_out, .. } = open_ports(&RdmaConfig::default())?;
    let reachable = if ports.is_empty() { Vec::new() } else { reachable_gpus().await };
    for port in ports {
        let mut gpus = Vec::new();
        for gpu in &reachable {
            gpus.push((gpu.uuid(), device_memory_test(&port, gpu).await));
        }
        let (info, device) = (port.info().clone(), port.device());
        reports.push(PortReport {
            name: format!("{}/{}", info.device, info.number),
            firmware: device.firmware(),
            has_windows: device.has_windows(),
            sessions_max: port.links_max(LinkShape::NODE),
            found: self_test(&port).await,
            path: port.resolve(info.gid).map_err(Arc::new),
            dynamic: dynamic_test(&port).await.map(drop),
            gpus,
            info,
        });
    }
    Ok((reports, left_out))
}

/// The GPUs whose memory adapters may reach.
async fn reachable_gpus() -> Vec<Arc<Gpu>> {
    let open = || {
        let gpus = Gpu::list().unwrap_or_default().into_iter();
        let reachable = gpus.filter(|gpu| gpu.limits.dma_buf);
        reachable.filter_map(|gpu| Gpu::open(gpu.ordinal).ok()).collect()
    };
    tokio::task::spawn_blocking(open).await.unwrap_or_default()
}

/// Opens and tries the ports that are wanted. Says in the log what was found, and why not
/// where nothing was.
pub(super) async fn open(config: &RdmaConfig) -> Result<Vec<NodeRail>, RdmaUnavailable> {
    if config.mode == AccessMode::Off {
        return Ok(Vec::new());
    }
    let required = config.mode == AccessMode::Require;
    let Opened { ports, left_out, .. } = match open_ports(config) {
        Ok(opened) => opened,
        Err(error) if required => return Err(error.into()),
        Err(error) => {
            tracing::info!(%error, "no RDMA");
            return Ok(Vec::new());
        }
    };
    for (port, error) in left_out {
        tracing::info!(%error, port, "RDMA port left out");
    }
    let RdmaConfig { traffic_class, service_level, sessions_max, .. } = *config;
    let marks = Marks { traffic_class, service_level };
    let mut rails = Vec::new();
    for port in ports {
        let found: SelfTest = self_test(&port).await;
        let info = port.info();
        tracing::info!(device = %info.device, port = info.number, gid = %info.gid, %found, "RDMA port");
        if let Some(strength) = found.strength {
            let takes = port.links_max(LinkShape::NODE);
            if (takes as usize) < sessions_max {
                tracing::warn!(
                    device = %info.device, port = info.number, sessions = takes,
                    "the adapter has room for fewer sessions than node.rdma.max_sessions"
                );
            }
            let number = rails.len() as u32;
            let dynamic = dynamic(&port, config).await;
            let domains = Mutex::default();
            rails.push(NodeRail { number, port, strength, marks, dynamic, domains });
        }
    }
    if rails.is_empty() && required {
        return Err(RdmaUnavailable::NoPort);
    }
    Ok(rails)
}

/// What serves clients with dynamically connected targets, where the operator wants it and the port
/// can do it.
async fn dynamic(port: &Port, config: &RdmaConfig) -> Option<Dynamic> {
    let key = config.dc_key?;
    let (device, port_number) = (&port.info().device, port.info().number);
    match dynamic_test(port).await {
        Ok(dc) => {
            tracing::info!(%device, port = port_number, "DC targets are served");
            Some(Dynamic::new(dc, key, Duration::from_millis(config.idle_timeout_ms)))
        }
        Err(why) => {
            tracing::info!(%device, port = port_number, %why, "DC targets are not served");
            None
        }
    }
}

/// The wanted ports. Each has room for all sessions: clients choose among the rails.
fn open_ports(config: &RdmaConfig) -> Result<Opened, NativeError> {
    let sessions = u32::try_from(config.sessions_max).unwrap_or(u32::MAX);
    open_ports_for(&config.devices, sessions.saturating_add(LINKS_BESIDE), LinkShape::NODE)
}
