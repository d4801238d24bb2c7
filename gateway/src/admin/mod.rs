//! The admin listener: `/healthz`, `/readyz`, `/metrics`. Plain HTTP without signatures, on
//! loopback unless the operator says otherwise.
//!
//! `/healthz` says that the process runs, `/readyz` that it serves: all storage nodes
//! answered when last asked, and no stop is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::telemetry::Metrics;

/// Whether the server takes requests, and why not.
#[derive(Debug, Default)]
pub struct Readiness {
    draining: AtomicBool,
    nodes_answer: AtomicBool,
}

impl Readiness {
    /// A stop has begun: load balancers are to look elsewhere.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether all storage nodes answered when last asked.
    pub fn set_nodes_answer(&self, answer: bool) {
        self.nodes_answer.store(answer, Ordering::Relaxed);
    }

    fn verdict(&self) -> (StatusCode, &'static str) {
        if self.draining.load(Ordering::Relaxed) {
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        } else if self.nodes_answer.load(Ordering::Relaxed) {
            (StatusCode::OK, "ready\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "a storage node does not answer\n")
        }
    }
}

#[derive(Clone)]
struct Admin {
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
}

/// The admin listener's routes.
pub fn router(metrics: Arc<Metrics>, readiness: Arc<Readiness>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(|State(admin): State<Admin>| async move { admin.readiness.verdict() }),
        )
        .route("/metrics", get(metrics_page))
        .with_state(Admin { metrics, readiness })
}

async fn metrics_page(State(admin): State<Admin>) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (headers, admin.metrics.prometheus_text()).into_response()
}
