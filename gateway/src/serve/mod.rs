//! The composition root: from a [`Config`] to a running server.
//!
//! Order of the start: the directory's lock, credentials, metadata, the node, TLS, and the
//! listeners last, so that nobody is answered by half a server. The stop goes the other way.

mod data_dir;
mod descriptors;
mod node;
mod open;
mod root;
mod upkeep;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use http::StatusCode;
use keyway_auth::{CredentialStore, KeyFileError, RootError};
use keyway_dataplane::rpc::RpcServeError;
use keyway_dataplane::{LocalNode, StorageNode, TransferError};
use keyway_proto::NodeId;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::accounts::AccountsError;
use crate::admin::{self, Readiness};
use crate::audit::AuditError;
use crate::config::{Config, ConfigError, Tls};
use crate::control::ROUTES;
use crate::control::admin::Administration;
use crate::limits::Limiter;
use crate::maintenance::{Maintenance, MaintenanceError, SettleReport};
use crate::node::{Nodes, RemoteNode, RemoteNodeError};
use crate::notify::InvalidTarget;
use crate::oidc::Issuers;
use crate::pki::{Authority, PkiError, host_names};
use crate::s3::{self, S3State, SystemClock};
use crate::server::{Server, TlsAcceptor, TlsError};
use crate::telemetry::{Metrics, TelemetryError};

pub use data_dir::{DataDir, DataDirError};
pub use node::{RunningNode, serve_node};
pub use root::Root;

/// Connections that wait until they are accepted, as far as the system allows: a burst of them
/// must not have to try again a second later.
const BACKLOG: u32 = 4096;
/// How long a stop waits for operators' requests: they take milliseconds.
const ADMIN_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The key file was refused.
    #[error("cannot use the key of stored secrets")]
    KeyFile(#[source] KeyFileError),
    /// The root credentials cannot be used.
    #[error("cannot use the stored root credentials")]
    Root(#[source] RootError),
    /// The stored accounts cannot be used.
    #[error("cannot read who there is")]
    Accounts(#[source] AccountsError),
    /// The audit log cannot be gone on with.
    #[error("cannot use the audit log")]
    Audit(#[source] AuditError),
    /// The metadata store did not open.
    #[error("cannot open the metadata store")]
    Meta(#[source] keyway_meta::MetaError),
    /// What tenants store could not be counted.
    #[error("cannot count what is stored")]
    Usage(#[source] keyway_meta::CatalogError),
    /// What was in memory alone when the last process ended cannot be judged.
    #[error("cannot settle what was not durable")]
    Settle(#[source] MaintenanceError),
    /// A node keeps another catalog's chunks.
    #[error("cannot use {node}")]
    Claim {
        /// The node.
        node: NodeId,
        /// Why.
        #[source]
        source: TransferError,
    },
    /// The storage node did not open.
    #[error("cannot open the storage node")]
    Node(#[source] keyway_dataplane::OpenError),
    /// A remote node cannot be used as configured.
    #[error(transparent)]
    RemoteNode(#[from] RemoteNodeError),
    /// A gateway without nodes has nowhere to put bytes.
    #[error("cluster.nodes names no node, or one id twice")]
    NoNodes,
    /// The node's RPC cannot be served.
    #[error("cannot serve the node")]
    Rpc(#[source] RpcServeError),
    /// A target of events cannot be used.
    #[error("cannot use the target {name} of events")]
    Notify {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: InvalidTarget,
    },
    /// The S3 settings were refused.
    #[error("cannot serve S3")]
    S3(#[source] s3::InvalidConfig),
    /// TLS cannot be served.
    #[error("cannot serve TLS")]
    Tls(#[from] TlsError),
    /// No certificate could be made.
    #[error("cannot make a certificate")]
    Pki(#[from] PkiError),
    /// Telemetry cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The system does not offer the congestion control that was configured.
    #[error("the system refuses the congestion control {name:?}")]
    Congestion {
        /// Its name.
        name: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A task of the start was cancelled: the runtime is ending.
    #[error("the start was cancelled")]
    Cancelled,
}

/// A server that runs until it is stopped. Dropping it lets it run on.
pub struct Running {
    /// Address of the S3 endpoint.
    pub address: SocketAddr,
    /// Address of the admin listener.
    pub admin_address: SocketAddr,
    /// Certificate of the authority that clients are to trust, where this server made its own.
    pub authority: Option<PathBuf>,
    /// Whether the S3 endpoint speaks TLS.
    pub tls: bool,
    /// The root credentials.
    pub root: Root,
    stop: watch::Sender<bool>,
    s3: JoinHandle<bool>,
    stop_admin: watch::Sender<bool>,
    admin: JoinHandle<bool>,
    background: Vec<JoinHandle<()>>,
    acceptor: Option<TlsAcceptor>,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    /// The node in this process, if it is here.
    node: Option<Arc<LocalNode>>,
    // Last: everything above may use the directory until it has ended.
    _data: DataDir,
}

impl Running {
    /// The S3 endpoint's URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Reads the certificate files again. Answers whether they had changed.
    ///
    /// # Errors
    /// [`TlsError`]; the former certificate stays in use.
    pub fn reload_certificate(&self) -> Result<bool, TlsError> {
        self.acceptor.as_ref().map_or(Ok(false), TlsAcceptor::reload)
    }

    /// Stops accepting, lets requests under way finish within the drain timeout, and closes
    /// the stores. Answers whether all requests finished.
    pub async fn stop(self) -> bool {
        self.readiness.set_draining();
        let _ = self.stop.send(true);
        let drained = self.s3.await.unwrap_or(false);
        // Last to go: until here it tells that the server is draining.
        let _ = self.stop_admin.send(true);
        let _ = self.admin.await;
        for task in self.background {
            let _ = task.await;
        }
        if let Some(node) = &self.node {
            node.close().await;
        }
        end_metrics(self.metrics).await;
        drained
    }
}

/// Starts gateway, node and metadata in this process, over one directory.
///
/// # Errors
/// [`ServeError`] says which part did not start; nothing runs on then.
pub async fn serve(config: Config) -> Result<Running, ServeError> {
    let data = DataDir::lock(&config.data_dir)?;
    let node = open::node(&config.node, &data).await?;
    let nodes = Nodes::single(Arc::clone(&node) as Arc<dyn StorageNode>);
    start(config, data, nodes, Some(node)).await
}

/// Starts gateway and metadata in this process, over the nodes of other processes.
///
/// # Errors
/// As [`serve`]. Nodes that cannot be reached yet are no error: they may come later.
pub async fn serve_gateway(config: Config) -> Result<Running, ServeError> {
    let data = DataDir::lock(&config.data_dir)?;
    let mut nodes: Vec<Arc<dyn StorageNode>> = Vec::new();
    for node in config.cluster.nodes()? {
        nodes.push(Arc::new(RemoteNode::new(&node)?));
    }
    let nodes = Nodes::new(nodes).ok_or(ServeError::NoNodes)?;
    start(config, data, nodes, None).await
}

async fn start(
    config: Config,
    data: DataDir,
    nodes: Nodes,
    node: Option<Arc<LocalNode>>,
) -> Result<Running, ServeError> {
    let root = root::root(&config, &data)?;
    let metrics = Arc::new(Metrics::new(&config.telemetry)?);
    let store = open::metadata(&config.meta, &data, &metrics).await?;
    let id = keyway_meta::catalog_id(&*store).await.map_err(ServeError::Meta)?;
    for node in nodes.iter() {
        let claimed = node.claim(Some(id));
        claimed.map_err(|source| ServeError::Claim { node: node.id(), source })?;
    }
    let (accounts, secrets) = open::accounts(&store, &data, &root.credentials, &nodes).await?;
    let catalog = Arc::new(open::catalog(store, &accounts).await?);
    let audit = open::audit(&config.audit, &data).await?;
    let notifier = Arc::new(open::notifier(&config)?);
    let told = Arc::downgrade(&notifier);
    metrics.observe_notify(move || Some(told.upgrade()?.stats()));
    let upkept = open::maintenance(&config.maintenance);
    let maintenance = Maintenance::new(Arc::clone(&catalog), nodes.clone(), upkept);
    let maintenance = Arc::new(maintenance.telling(Arc::clone(&notifier)));
    // Before the first request: what was lost with a memory must not be read.
    match maintenance.settle(Duration::ZERO).await {
        Ok(report) if report == SettleReport::default() => {}
        Ok(report) => tracing::info!(?report, "settled what was in memory alone"),
        Err(error) => return Err(ServeError::Settle(error)),
    }
    // And what was released before must not fill the device.
    match maintenance.sweep_at_start().await {
        Ok(report) if report.condemned == 0 => {}
        Ok(report) => tracing::info!(?report, "swept what nobody owns"),
        Err(MaintenanceError::Node { node, source: source @ TransferError::OtherCatalog }) => {
            return Err(ServeError::Claim { node, source });
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the sweep at the start is put off");
        }
    }
    let limiter = Arc::new(Limiter::new(&config.auth));
    let told = Arc::downgrade(&limiter);
    metrics.observe_limits(move || Some(told.upgrade()?.stats()));
    let state = S3State {
        catalog: Arc::clone(&catalog),
        nodes: nodes.clone(),
        credentials: Arc::clone(&accounts) as Arc<dyn CredentialStore>,
        secrets,
        audit,
        notifier: Arc::clone(&notifier),
        limiter,
        administration: Some(Administration::new(Arc::clone(&accounts), Arc::clone(&catalog))),
        clock: Arc::new(SystemClock),
        issuers: Arc::new(Issuers::new(&config.oidc)),
        maintenance: Some(Arc::clone(&maintenance)),
    };
    let s3 = s3::service(state, &config.s3).map_err(ServeError::S3)?;
    let direct_counts = Arc::downgrade(s3.direct_counts());
    metrics.observe_direct(move || Some(direct_counts.upgrade()?.stats()));
    let mounted = |router: Router, path| router.route_service(path, s3.clone());
    let router = ROUTES
        .into_iter()
        .fold(Router::new(), mounted)
        .route("/_keyway/v1", any(reserved))
        .route("/_keyway/v1/{*rest}", any(reserved))
        .fallback_service(s3);
    let listener = listen(config.listen.address)?;
    if let Some(name) = &config.listen.tcp_congestion {
        // Accepted connections inherit it.
        rustix::net::sockopt::set_tcp_congestion(&listener, name).map_err(|source| {
            ServeError::Congestion { name: name.clone(), source: source.into() }
        })?;
    }
    let address = local_address(&listener, config.listen.address)?;
    let (acceptor, authority) = tls(&config, address, &data)?;
    let admin_listener = listen(admin_address(&config, config.listen.address, address))?;
    let admin_address = local_address(&admin_listener, config.listen.address)?;

    let (stop, stopped) = watch::channel(false);
    let (stop_admin, admin_stopped) = watch::channel(false);
    let drain_timeout = Duration::from_millis(config.listen.drain_timeout_ms);
    let readiness = Arc::new(Readiness::default());
    upkeep::ask_nodes(&nodes, &metrics, &readiness).await;
    let server = Server::new(
        listener,
        router,
        acceptor.clone(),
        &descriptors::provide(&config.limits),
        Arc::clone(&metrics),
        config.telemetry.access_log,
    );
    let routes = admin::router(Arc::clone(&metrics), Arc::clone(&readiness));
    let admin = Server::admin(admin_listener, routes)?;
    let upkeep = upkeep::Upkeep {
        nodes: nodes.clone(),
        metrics: Arc::clone(&metrics),
        readiness: Arc::clone(&readiness),
        acceptor: acceptor.clone(),
    };
    let told = Arc::downgrade(&maintenance);
    metrics.observe_maintenance(move || Some(told.upgrade()?.stats()));
    if let Some(node) = &node {
        observe_node(&metrics, node);
    }
    let mut done = stopped.clone();
    let maintain = async move {
        // A dropped sender ends it as well: nobody is left to stop it.
        maintenance.run(async { drop(done.wait_for(|stop| *stop).await) }).await;
    };
    let mut done = stopped.clone();
    let keep_accounts = async move {
        accounts.run(async { drop(done.wait_for(|stop| *stop).await) }).await;
    };
    let mut done = stopped.clone();
    let notify = async move {
        notifier.run(&catalog, async { drop(done.wait_for(|stop| *stop).await) }).await;
    };
    Ok(Running {
        address,
        admin_address,
        authority,
        tls: acceptor.is_some(),
        root,
        stop,
        s3: tokio::spawn(server.run(stopped.clone(), drain_timeout)),
        stop_admin,
        admin: tokio::spawn(admin.run(admin_stopped, ADMIN_DRAIN_TIMEOUT)),
        background: vec![
            tokio::spawn(upkeep.run(stopped)),
            tokio::spawn(maintain),
            tokio::spawn(keep_accounts),
            tokio::spawn(notify),
        ],
        acceptor,
        readiness,
        metrics,
        node,
        _data: data,
    })
}

/// Has the metrics tell of `node` for as long as it is there.
fn observe_node(metrics: &Metrics, node: &Arc<LocalNode>) {
    let told = Arc::downgrade(node);
    metrics.observe_node(node.id(), move || Some(told.upgrade()?.stats()));
}

/// Exports the last metrics, which may wait for a network that is gone: not on a thread of
/// the runtime.
async fn end_metrics(metrics: Arc<Metrics>) {
    let exported = tokio::task::spawn_blocking(move || metrics.shutdown()).await;
    if let Ok(Err(error)) = exported {
        tracing::debug!(%error, "the last metrics could not be exported");
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|source| ServeError::Listen { address, source })
}

fn local_address(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, ServeError> {
    listener.local_addr().map_err(|source| ServeError::Listen { address: asked, source })
}

/// Where the admin listener goes: beside the main endpoint, on loopback, unless configured.
fn admin_address(config: &Config, asked: SocketAddr, bound: SocketAddr) -> SocketAddr {
    let beside = match asked.port() {
        0 => 0,
        _ => bound.port().checked_add(1).unwrap_or(0),
    };
    config.listen.admin_address.unwrap_or_else(|| (std::net::Ipv4Addr::LOCALHOST, beside).into())
}

/// The acceptor for the configured mode, and the authority that clients are to trust when it
/// is this server's own.
fn tls(
    config: &Config,
    address: SocketAddr,
    data: &DataDir,
) -> Result<(Option<TlsAcceptor>, Option<PathBuf>), ServeError> {
    let minimum = config.listen.tls_minimum_version;
    match config.listen.tls.resolve(address) {
        Tls::Plaintext {} => Ok((None, None)),
        Tls::Files { cert_file, key_file } => {
            Ok((Some(TlsAcceptor::new(&cert_file, &key_file, minimum)?), None))
        }
        Tls::Auto {} | Tls::Generated {} => {
            let authority = Authority::open_or_create(&data.tls())?;
            let names = host_names(address.ip(), &config.listen.tls_names);
            let identity = authority.issue("server", &names)?;
            let acceptor = TlsAcceptor::new(&identity.certificate, &identity.key, minimum)?;
            Ok((Some(acceptor), Some(authority.certificate())))
        }
    }
}

/// Keyway's own endpoints: the names are taken, so that no client comes to rely on S3's answer
/// for them.
async fn reserved() -> (StatusCode, axum::Json<serde_json::Value>) {
    let error = serde_json::json!({
        "error": {
            "code": "NoSuchEndpoint",
            "message": "this server has no control endpoint of that name",
        }
    });
    (StatusCode::NOT_FOUND, axum::Json(error))
}
