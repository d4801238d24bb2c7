//! A storage node as a process of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keyway_dataplane::rpc::{self, RpcServeError};
use keyway_dataplane::{LocalNode, StorageNode};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::data_dir::DataDir;
use super::{ServeError, admin_address, end_metrics, listen, local_address, open, upkeep};
use crate::admin::{self, Readiness};
use crate::config::Config;
use crate::node::Nodes;
use crate::server::Server;
use crate::telemetry::{self, Metrics};

/// A node that runs until it is stopped.
pub struct RunningNode {
    /// Address that gateways reach it at.
    pub address: SocketAddr,
    /// Address of the admin listener.
    pub admin_address: SocketAddr,
    stop: watch::Sender<bool>,
    rpc: JoinHandle<Result<(), RpcServeError>>,
    background: Vec<JoinHandle<()>>,
    drain_timeout: Duration,
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    node: Arc<LocalNode>,
    _data: DataDir,
}

impl RunningNode {
    /// Refuses new transfers, lets those under way finish within the drain timeout, and closes
    /// the store. Answers whether all of them finished.
    pub async fn stop(mut self) -> bool {
        self.readiness.set_draining();
        let _ = self.stop.send(true);
        let ended = tokio::time::timeout(self.drain_timeout, &mut self.rpc).await;
        if ended.is_err() {
            self.rpc.abort();
        }
        for task in self.background {
            let _ = task.await;
        }
        self.node.close().await;
        end_metrics(self.metrics).await;
        matches!(ended, Ok(Ok(Ok(()))))
    }
}

/// Starts a node that gateways reach over mutual TLS.
///
/// # Errors
/// [`ServeError`] says which part did not start; nothing runs on then.
pub async fn serve_node(config: Config) -> Result<RunningNode, ServeError> {
    let tls = config.cluster.tls()?;
    // Read once here, so that a wrong path is told before anything starts.
    tls.server().map_err(|error| ServeError::Rpc(error.into()))?;
    let data = DataDir::lock(&config.data_dir)?;
    let metrics = Arc::new(Metrics::new(&config.telemetry)?);
    let node = open::node(&config.node, &data).await?;
    super::observe_node(&metrics, &node);
    let nodes = Nodes::single(Arc::clone(&node) as Arc<dyn StorageNode>);
    let readiness = Arc::new(Readiness::default());
    upkeep::ask_nodes(&nodes, &metrics, &readiness).await;

    let listener = listen(config.cluster.address)?;
    let address = local_address(&listener, config.cluster.address)?;
    let admin_at = admin_address(&config, config.cluster.address, address);
    let admin_listener = listen(admin_at)?;
    let admin_address = local_address(&admin_listener, admin_at)?;
    let (stop, stopped) = watch::channel(false);
    let drain_timeout = Duration::from_millis(config.listen.drain_timeout_ms);
    let routes = admin::router(Arc::clone(&metrics), Arc::clone(&readiness));
    let admin = Server::admin(admin_listener, routes)?;
    let admin = admin.run(stopped.clone(), drain_timeout);
    let upkeep = upkeep::Upkeep {
        nodes,
        metrics: Arc::clone(&metrics),
        readiness: Arc::clone(&readiness),
        acceptor: None,
    };
    let (served, mut done) = (Arc::clone(&node), stopped.clone());
    let rpc = tokio::spawn(async move {
        let stopped = async move { drop(done.wait_for(|stop| *stop).await) };
        rpc::serve_traced(served, listener, &tls, telemetry::node_span, stopped).await
    });
    let background = vec![
        tokio::spawn(upkeep.run(stopped)),
        tokio::spawn(async move {
            let _ = admin.await;
        }),
    ];
    Ok(RunningNode {
        address,
        admin_address,
        stop,
        rpc,
        background,
        drain_timeout,
        readiness,
        metrics,
        node,
        _data: data,
    })
}
