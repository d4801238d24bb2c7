//! Spans of requests, and the W3C trace context that joins them to the client's and the
//! node's.

use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::Metrics;

/// Target of all spans that are exported.
pub const TRACE_TARGET: &str = "keyway::trace";

/// The request's span, child of the client's when it sent a context; none where requests are
/// not traced. Bucket and key are in the path; the query, which may carry a signature, is not.
pub(crate) fn request_span(
    metrics: &Metrics,
    request: &Request<Body>,
    request_id: &str,
) -> Option<Span> {
    if !metrics.traces() {
        return None;
    }
    let span = tracing::info_span!(
        target: TRACE_TARGET,
        "request",
        otel.kind = "server",
        http.request.method = %request.method(),
        url.path = request.uri().path(),
        keyway.request.id = request_id,
    );
    let parent = TraceContextPropagator::new().extract(&Incoming(request.headers()));
    // Fails only where no exporter is installed: then nobody looks for the parent either.
    let _ = span.set_parent(parent);
    Some(span)
}

/// The span of a gateway's call to the node in this process, child of the gateway's request.
/// For `keyway_dataplane::rpc`.
pub(crate) fn node_span(call: &Request<()>) -> Span {
    // /PACKAGE.SERVICE/METHOD
    let mut path = call.uri().path().splitn(3, '/').skip(1);
    let span = tracing::info_span!(
        target: TRACE_TARGET,
        "node",
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.service = path.next(),
        rpc.method = path.next(),
    );
    if !span.is_disabled() {
        let parent = TraceContextPropagator::new().extract(&Incoming(call.headers()));
        let _ = span.set_parent(parent);
    }
    span
}

/// Adds the current span's trace context to the headers of a request that leaves here.
pub fn inject(headers: &mut HeaderMap) {
    let context = Span::current().context();
    TraceContextPropagator::new().inject_context(&context, &mut Outgoing(headers));
}

struct Incoming<'a>(&'a HeaderMap);

impl Extractor for Incoming<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct Outgoing<'a>(&'a mut HeaderMap);

impl Injector for Outgoing<'_> {
    fn set(&mut self, key: &str, value: String) {
        let name = HeaderName::from_bytes(key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            self.0.insert(name, value);
        }
    }
}
