//! An OpenTelemetry collector over TLS that keeps what it is sent.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, async_trait};

/// How long what was done may take to be told here.
const DELIVERY: Duration = Duration::from_secs(30);

/// A running collector.
pub(crate) struct Collector {
    /// Its URL.
    pub(crate) endpoint: String,
    received: watch::Receiver<Received>,
}

/// All that came so far.
#[derive(Clone, Default)]
pub(crate) struct Received {
    pub(crate) spans: Vec<Span>,
    /// Of the three services, those that were called.
    pub(crate) signals: BTreeSet<&'static str>,
}

#[derive(Clone)]
struct Sink(Arc<watch::Sender<Received>>);

impl Collector {
    /// Starts one with the certificate `name` of the directory `pki`.
    pub(crate) async fn start(pki: &Path, name: &str) -> Result<Self> {
        let read = |file: String| std::fs::read(pki.join(file)).context("a certificate");
        let identity =
            Identity::from_pem(read(format!("{name}.pem"))?, read(format!("{name}.key"))?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("https://{}", listener.local_addr()?);
        let (sender, received) = watch::channel(Received::default());
        let sink = Sink(Arc::new(sender));
        let server = Server::builder()
            .tls_config(ServerTlsConfig::new().identity(identity))?
            .add_service(TraceServiceServer::new(sink.clone()))
            .add_service(MetricsServiceServer::new(sink.clone()))
            .add_service(LogsServiceServer::new(sink));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Ok(Self { endpoint, received })
    }

    /// Waits until what was received satisfies `whole`, and answers it.
    pub(crate) async fn until(&self, whole: impl Fn(&Received) -> bool) -> Result<Received> {
        let mut received = self.received.clone();
        let found = tokio::time::timeout(DELIVERY, received.wait_for(|seen| whole(seen))).await;
        let found = found.map(|found| found.map(|seen| seen.clone()));
        let so_far = || {
            let seen = self.received.borrow();
            format!("{} spans, {:?}", seen.spans.len(), seen.signals)
        };
        found.with_context(so_far)?.context("the collector ended")
    }
}

#[async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans;
        let scopes = resources.into_iter().flat_map(|resource| resource.scope_spans);
        let spans: Vec<Span> = scopes.flat_map(|scope| scope.spans).collect();
        self.0.send_modify(|received| {
            received.spans.extend(spans);
            received.signals.insert("traces");
        });
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[async_trait]
impl MetricsService for Sink {
    async fn export(
        &self,
        _: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.0.send_modify(|received| {
            received.signals.insert("metrics");
        });
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[async_trait]
impl LogsService for Sink {
    async fn export(
        &self,
        _: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.0.send_modify(|received| {
            received.signals.insert("logs");
        });
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}
