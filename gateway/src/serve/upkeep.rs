//! What a running server does on its own: asks its nodes how they are, and notices new
//! certificates.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{self, MissedTickBehavior};

use crate::admin::Readiness;
use crate::node::Nodes;
use crate::server::TlsAcceptor;
use crate::telemetry::Metrics;

/// How often nodes are asked and certificate files looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Upkeep {
    pub(super) nodes: Nodes,
    pub(super) metrics: Arc<Metrics>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) acceptor: Option<TlsAcceptor>,
}

impl Upkeep {
    /// Runs until `stop` turns true.
    pub(super) async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut ticks = time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = ticks.tick() => {}
            }
            ask_nodes(&self.nodes, &self.metrics, &self.readiness).await;
            if let Some(acceptor) = &self.acceptor {
                match acceptor.reload() {
                    Ok(true) => tracing::info!("the certificate was exchanged"),
                    Ok(false) => {}
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "the new certificate cannot be used");
                    }
                }
            }
        }
    }
}

/// Asks every node once, all at the same time, and keeps the answers.
pub(super) async fn ask_nodes(nodes: &Nodes, metrics: &Metrics, readiness: &Readiness) {
    let asked = nodes.iter().map(|node| async move {
        let answer = time::timeout(ANSWER_TIMEOUT, node.status()).await;
        (node.id(), answer.ok().and_then(Result::ok))
    });
    let answers = futures::future::join_all(asked).await;
    readiness.set_nodes_answer(answers.iter().all(|(_, status)| status.is_some()));
    metrics.set_nodes(answers);
}
