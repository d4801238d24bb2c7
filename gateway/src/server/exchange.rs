//! What surrounds every request: its id, admission, panics, and what is told of it.
//!
//! Cost without tracing: two allocations (the shared record of the request, the boxed
//! future), a few relaxed counters, and three histograms at the end.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use futures::FutureExt;
use http::header::{CONNECTION, EXPECT, HOST, SERVER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use keyway_auth::AccessKeyId;
use parking_lot::Mutex;
use tower::ServiceExt;
use tracing::Instrument;

use super::body::{RequestBody, ResponseBody, drained};
use super::guard::{ConnectionState, Progress};
use super::reply::Refusal;
use crate::config::{AccessLog, Limits, TlsVersion};
use crate::s3::RequestId;
use crate::telemetry::{Completed, Metrics, request_span};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");

/// What is read of a body that the handler did not want, to keep the connection.
const DRAIN_BYTES_MAX: u64 = 256 * 1024;
/// How long for.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Operations told by name, sorted: names come with requests, attributes must be few.
const OPERATIONS: [&str; 27] = [
    "AbortMultipartUpload",
    "Administer",
    "CloseSession",
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateBucket",
    "CreateMultipartUpload",
    "DeleteBucket",
    "DeleteObject",
    "DeleteObjects",
    "GetBucketLocation",
    "GetObject",
    "GetObjectAttributes",
    "HeadBucket",
    "HeadObject",
    "ListBuckets",
    "ListMultipartUploads",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
    "ListRails",
    "OpenSession",
    "PostObject",
    "PutObject",
    "Sts",
    "UploadPart",
    "UploadPartCopy",
];

/// What is known of a request while it runs. In the request's extensions, beside its
/// [`RequestId`]: who parses and authenticates says here what it found.
#[derive(Clone)]
pub struct RequestInfo(Arc<Info>);

struct Info {
    id: RequestId,
    remote: SocketAddr,
    tls: Option<TlsVersion>,
    operation: OnceLock<&'static str>,
    access_key: OnceLock<AccessKeyId>,
    received_bytes: AtomicU64,
    stalled: AtomicBool,
    /// What the handler left of the body.
    unread: Mutex<Option<Incoming>>,
}

impl RequestInfo {
    /// The request's id.
    pub fn id(&self) -> &RequestId {
        &self.0.id
    }

    /// The client's address.
    pub fn remote(&self) -> SocketAddr {
        self.0.remote
    }

    /// The version of TLS that the request came over; none for plaintext.
    pub fn tls(&self) -> Option<TlsVersion> {
        self.0.tls
    }

    /// Names the S3 operation, for example `GetObject`; names that this server has no
    /// operation for are told as `other`. The first name stands.
    pub fn set_operation(&self, operation: &str) {
        let known = OPERATIONS.binary_search(&operation).map_or("other", |at| OPERATIONS[at]);
        let _ = self.0.operation.set(known);
    }

    /// Names the access key whose signature was verified. The first one stands.
    pub fn set_access_key(&self, access_key: AccessKeyId) {
        let _ = self.0.access_key.set(access_key);
    }

    /// Whether somebody's signature was verified.
    pub fn is_verified(&self) -> bool {
        self.0.access_key.get().is_some()
    }

    pub(super) fn add_received(&self, bytes: usize) {
        self.0.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn set_stalled(&self) {
        self.0.stalled.store(true, Ordering::Relaxed);
    }

    pub(super) fn leave_unread(&self, rest: Incoming) {
        *self.0.unread.lock() = Some(rest);
    }
}

/// What all exchanges of a server share.
pub(super) struct Exchanges {
    limits: Limits,
    metrics: Arc<Metrics>,
    access_log: AccessLog,
    ids: RequestIds,
    host_id: HeaderValue,
    /// Requests under way.
    active: AtomicU64,
}

impl Exchanges {
    pub(super) fn new(limits: &Limits, metrics: Arc<Metrics>, access_log: AccessLog) -> Self {
        let host_id = format!("keyway-{:016x}", fastrand::u64(..));
        Self {
            limits: limits.clone(),
            metrics,
            access_log,
            ids: RequestIds::new(),
            host_id: HeaderValue::try_from(host_id).expect("hex digits are a header value"),
            active: AtomicU64::new(0),
        }
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The service of one connection.
    pub(super) fn service(
        self: &Arc<Self>,
        router: Router,
        remote: Remote,
        connection: Arc<ConnectionState>,
    ) -> ExchangeService {
        ExchangeService { shared: Arc::clone(self), router, remote, connection }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) address: SocketAddr,
    pub(super) tls: Option<TlsVersion>,
}

/// Serves the requests of one connection.
pub(super) struct ExchangeService {
    shared: Arc<Exchanges>,
    router: Router,
    remote: Remote,
    connection: Arc<ConnectionState>,
}

impl hyper::service::Service<Request<Incoming>> for ExchangeService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let exchange = Exchange::begin(&self.shared, &self.connection, self.remote, &request);
        let request = exchange.prepare(request);
        let refusal = exchange.refusal(request.headers());
        let router = self.router.clone();
        Box::pin(async move {
            let mut response = match refusal {
                Some(refusal) => {
                    drop(request);
                    exchange.refuse(refusal)
                }
                None => exchange.run(router, request).await,
            };
            exchange.settle_body(&mut response).await;
            Ok(exchange.answer(response))
        })
    }
}

/// One request and its response. Dropping it is the end: that is when it is told of.
pub(super) struct Exchange {
    shared: Arc<Exchanges>,
    connection: Arc<ConnectionState>,
    info: RequestInfo,
    started: Instant,
    method: Method,
    /// Whether the client waits for a word before it sends the body.
    expects_continue: bool,
    /// Requests under way when this one began, itself included.
    active: u64,
    /// None until the response's head is ready: the client went away before.
    status: Option<StatusCode>,
    sent_bytes: u64,
    broken: bool,
}

impl Exchange {
    fn begin(
        shared: &Arc<Exchanges>,
        connection: &Arc<ConnectionState>,
        remote: Remote,
        request: &Request<Incoming>,
    ) -> Self {
        connection.begin(request.version() == Version::HTTP_2);
        let active = shared.active.fetch_add(1, Ordering::Relaxed) + 1;
        shared.metrics.request_begins();
        let info = Info {
            id: shared.ids.next(),
            remote: remote.address,
            tls: remote.tls,
            operation: OnceLock::new(),
            access_key: OnceLock::new(),
            received_bytes: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            unread: Mutex::default(),
        };
        Self {
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            info: RequestInfo(Arc::new(info)),
            started: Instant::now(),
            method: request.method().clone(),
            expects_continue: request.headers().contains_key(EXPECT),
            active,
            status: None,
            sent_bytes: 0,
            broken: false,
        }
    }

    /// The request as handlers see it.
    fn prepare(&self, request: Request<Incoming>) -> Request<Body> {
        let (mut parts, body) = request.into_parts();
        // HTTP/2 names the host in the URI; signatures cover the header.
        if parts.version == Version::HTTP_2
            && !parts.headers.contains_key(HOST)
            && let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            parts.headers.insert(HOST, host);
        }
        parts.extensions.insert(self.info.id().clone());
        parts.extensions.insert(self.info.clone());
        let progress = Progress::new(&self.shared.limits);
        Request::from_parts(parts, Body::new(RequestBody::new(body, self.info.clone(), progress)))
    }

    /// Why the request is not even looked at, if so.
    fn refusal(&self, headers: &HeaderMap) -> Option<Refusal> {
        if self.active > u64::from(self.shared.limits.max_concurrent_requests.get()) {
            return Some(Refusal::SlowDown);
        }
        // Name, value, and the four bytes between and behind them on the wire.
        let length =
            |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
        let bytes: usize = headers.iter().map(length).sum();
        (bytes > self.shared.limits.header_bytes).then_some(Refusal::HeaderTooLarge)
    }

    async fn run(&self, router: Router, request: Request<Body>) -> Response<Body> {
        let span = request_span(&self.shared.metrics, &request, self.info.id().as_str());
        let handled = AssertUnwindSafe(router.oneshot(request)).catch_unwind();
        let handled = match span {
            None => handled.await,
            Some(span) => handled.instrument(span).await,
        };
        match handled {
            // A handler that met a stalled body answers whatever it makes of an error there.
            Ok(Ok(response)) if !response.status().is_success() && self.is_stalled() => {
                self.refuse(Refusal::RequestTimeout)
            }
            Ok(Ok(response)) => response,
            Err(_) => {
                self.panicked();
                self.refuse(Refusal::Internal)
            }
        }
    }

    /// Sees to what is left of the request's body, so that the client reads its answer and not
    /// a reset: a little is read and forgotten, and the connection stays; before more, or
    /// what a client did not even begin to send, the connection ends, slowly.
    async fn settle_body(&self, response: &mut Response<Body>) {
        let Some(rest) = self.info.0.unread.lock().take() else { return };
        if self.connection.is_http2() {
            // The stream alone is reset, and that says that nothing is wrong.
            return;
        }
        let begun =
            !self.expects_continue || self.info.0.received_bytes.load(Ordering::Relaxed) > 0;
        let little = rest.size_hint().upper().is_some_and(|bytes| bytes <= DRAIN_BYTES_MAX);
        if begun && little && !self.is_stalled() && drained(rest, DRAIN_TIME).await {
            return;
        }
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        self.connection.linger();
    }

    fn answer(mut self, response: Response<Body>) -> Response<ResponseBody> {
        self.status = Some(response.status());
        let (mut parts, body) = response.into_parts();
        if let Ok(id) = HeaderValue::from_str(self.info.id().as_str()) {
            parts.headers.insert(REQUEST_ID, id);
        }
        parts.headers.insert(HOST_ID, self.shared.host_id.clone());
        parts.headers.insert(SERVER, HeaderValue::from_static("Keyway"));
        Response::from_parts(parts, ResponseBody::new(body, self))
    }

    fn refuse(&self, refusal: Refusal) -> Response<Body> {
        refusal.response(self.info.id().as_str())
    }

    fn is_stalled(&self) -> bool {
        self.info.0.stalled.load(Ordering::Relaxed)
    }

    pub(super) fn panicked(&self) {
        self.shared.metrics.panic();
        tracing::error!(request_id = %self.info.id(), "a request's handler panicked");
    }

    pub(super) fn add_sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }

    pub(super) fn broke_off(&mut self) {
        self.broken = true;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.connection.end();
        self.shared.active.fetch_sub(1, Ordering::Relaxed);
        let info = &self.info.0;
        let completed = Completed {
            method: &self.method,
            operation: info.operation.get().copied(),
            status: self.status.map(|status| status.as_u16()),
            broken: self.broken,
            duration: self.started.elapsed(),
            received_bytes: info.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes,
        };
        self.shared.metrics.request_ends(&completed);
        let told = match self.shared.access_log {
            AccessLog::Off => false,
            AccessLog::Errors => completed.status.is_some_and(|status| status >= 500),
            AccessLog::All => true,
        };
        if told {
            tracing::info!(
                target: "keyway::access",
                request_id = %info.id,
                remote = %info.remote,
                method = %self.method,
                operation = completed.operation,
                access_key = info.access_key.get().map(AccessKeyId::as_str),
                status = completed.status,
                broken = completed.broken,
                received_bytes = completed.received_bytes,
                sent_bytes = completed.sent_bytes,
                duration_us = u64::try_from(completed.duration.as_micros()).unwrap_or(u64::MAX),
            );
        }
    }
}

/// Makes request ids: unique within the process, and by 64 random bits across them.
struct RequestIds {
    base: u64,
    count: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        Self { base: fastrand::u64(..), count: AtomicU64::new(0) }
    }

    fn next(&self) -> RequestId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let mut text = HexText::default();
        let _ = write!(text, "{:016X}", mix(self.base.wrapping_add(count)));
        RequestId::new(text.as_str()).expect("hex digits are a request id")
    }
}

/// A bijection, so that ids that count up do not look alike (the finalizer of SplitMix64).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 16 hex digits without an allocation.
#[derive(Default)]
struct HexText {
    bytes: [u8; 16],
    length: usize,
}

impl HexText {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for HexText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn operations_are_sorted() {
        assert!(OPERATIONS.is_sorted());
    }

    #[test]
    fn request_ids_are_sixteen_hex_digits_and_differ() {
        let ids = RequestIds::new();
        let seen: HashSet<String> = (0..10_000).map(|_| ids.next().to_string()).collect();
        assert_eq!(seen.len(), 10_000);
        assert!(seen.iter().all(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit())));
    }
}
