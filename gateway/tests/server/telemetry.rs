//! Goal: traces, metrics and logs reach an OTLP endpoint, a client's trace goes on in ours,
//! and no secret comes along. Method: a collector that keeps the bytes of what it is sent.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use keyway_gateway::audit::{self, Audit, Event};
use keyway_gateway::config::{AccessLog, Limits, Telemetry};
use keyway_gateway::server::Server;
use keyway_gateway::telemetry::{self, Metrics};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::wire::Wire;

/// Path and body of everything received.
type Received = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

async fn collector() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let kept = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let service = service_fn(move |request| keep(request, Arc::clone(&kept)));
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (endpoint, received)
}

async fn keep(
    request: http::Request<Incoming>,
    kept: Received,
) -> Result<http::Response<Empty<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes().to_vec());
    kept.lock().push((path, body.unwrap_or_default()));
    let response = http::Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", "0");
    Ok(response.body(Empty::new()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_reaches_the_collector_but_secrets() {
    let (endpoint, received) = collector().await;
    let config = Telemetry {
        otlp_endpoint: Some(endpoint),
        access_log: AccessLog::All,
        ..Telemetry::default()
    };
    let installed = telemetry::install(&config).unwrap();
    let metrics = Arc::new(Metrics::new(&config).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = Router::new().route("/bucket/key", get(|| async { "ok" }));
    let limits = Limits::default();
    let server = Server::new(listener, router, None, &limits, Arc::clone(&metrics), AccessLog::All);
    let address = server.address().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(server.run(stopped, Duration::from_secs(5)));

    let mut wire = Wire::connect(address).await;
    // The client asks to be traced: the flag decides, not the ratio.
    wire.send(
        "GET /bucket/key?X-Amz-Signature=hush-query HTTP/1.1\r\nhost: test\r\n\
         authorization: AWS4-HMAC-SHA256 hush-header\r\n\
         traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
    )
    .await;
    assert_eq!(wire.response().await.status, 200);
    let dir = tempfile::tempdir().unwrap();
    let (audited, limits) = (dir.path().join("audit"), audit::Limits { file_bytes: 99, files: 1 });
    let audit = Audit::open(&audited, limits).unwrap();
    audit.tell(Event::Lost { events: 7_654_321 });
    drop(audit);
    stop.send(true).unwrap();
    server.await.unwrap();
    tokio::task::spawn_blocking(move || {
        let _ = metrics.shutdown();
        installed.shutdown();
    })
    .await
    .unwrap();

    let deadline = Instant::now() + Duration::from_secs(10);
    let trace_id = [
        0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31,
        0x9c,
    ];
    let wanted: [(&str, &[u8]); 4] = [
        ("TraceService", &trace_id),
        ("MetricsService", b"http.server.request.duration"),
        ("LogsService", b"keyway::access"),
        ("LogsService", b"\"events\":7654321"),
    ];
    for (service, content) in wanted {
        loop {
            let found = received.lock().iter().any(|(path, body)| {
                path.contains(service) && body.windows(content.len()).any(|part| part == content)
            });
            if found {
                break;
            }
            let paths: Vec<_> = received.lock().iter().map(|(path, _)| path.clone()).collect();
            assert!(Instant::now() < deadline, "nothing for {service} in {paths:?}");
            tokio::task::yield_now().await;
        }
    }
    for (path, body) in received.lock().iter() {
        assert!(!body.windows(4).any(|part| part == b"hush"), "a secret went to {path}");
    }
}
