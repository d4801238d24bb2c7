//! Goal: the limits, panics, ids and the drain hold for any routes. Method: a server with
//! routes of the test's own, driven byte by byte; events instead of sleeps.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{get, put};
use bytes::Bytes;
use futures::stream;
use http_body_util::BodyExt;
use keyway_gateway::config::{AccessLog, Limits, Telemetry};
use keyway_gateway::server::Server;
use keyway_gateway::telemetry::Metrics;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::wire::Wire;

struct Bench {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    /// Wakes `/gate`.
    gate: Arc<Notify>,
    /// Woken by `/gate` when a request has arrived there.
    arrived: Arc<Notify>,
    stop: watch::Sender<bool>,
    server: JoinHandle<bool>,
}

async fn bench(limits: Limits) -> Bench {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = Arc::new(Metrics::new(&Telemetry::default()).unwrap());
    let (gate, arrived) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let router = routes(&gate, &arrived);
    let log = AccessLog::Off;
    let server = Server::new(listener, router, None, &limits, Arc::clone(&metrics), log);
    let address = server.address().unwrap();
    let (stop, stopped) = watch::channel(false);
    let server = tokio::spawn(server.run(stopped, Duration::from_secs(10)));
    Bench { address, metrics, gate, arrived, stop, server }
}

fn routes(gate: &Arc<Notify>, arrived: &Arc<Notify>) -> Router {
    let (gate, arrived) = (Arc::clone(gate), Arc::clone(arrived));
    Router::new()
        .route("/ok", get(|| async { "ok" }))
        .route("/host", get(host))
        .route("/panic", get(|| async { panic!("on purpose") as &'static str }))
        .route("/panic-in-body", get(panicking_body))
        .route("/gate", get(move || gated(Arc::clone(&gate), Arc::clone(&arrived))))
        .route("/endless", get(endless))
        .route("/refuse", put(|| async { (http::StatusCode::FORBIDDEN, "no") }))
        .route(
            "/sink",
            put(|request: Request| async move {
                match request.into_body().collect().await {
                    Ok(body) => Ok(body.to_bytes().len().to_string()),
                    Err(_) => Err(http::StatusCode::INTERNAL_SERVER_ERROR),
                }
            }),
        )
}

async fn host(headers: http::HeaderMap) -> String {
    headers["host"].to_str().unwrap().to_owned()
}

/// Sends half of its body, says so, and the rest when it is let go.
async fn gated(gate: Arc<Notify>, arrived: Arc<Notify>) -> http::Response<Body> {
    let halves = stream::unfold(0, move |half| {
        let (gate, arrived) = (Arc::clone(&gate), Arc::clone(&arrived));
        async move {
            match half {
                0 => arrived.notify_one(),
                1 => gate.notified().await,
                _ => return None,
            }
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"half.")), half + 1))
        }
    });
    let length = ("content-length", "10");
    http::Response::builder().header(length.0, length.1).body(Body::from_stream(halves)).unwrap()
}

async fn panicking_body() -> Body {
    Body::from_stream(stream::once(async {
        panic!("on purpose");
        #[expect(unreachable_code, reason = "gives the stream its type")]
        Ok::<Bytes, std::io::Error>(Bytes::new())
    }))
}

async fn endless() -> Body {
    let piece = Bytes::from(vec![0; 64 * 1024]);
    Body::from_stream(stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone())))
}

fn quick() -> Limits {
    Limits {
        header_timeout_ms: 300,
        idle_timeout_ms: 900,
        body_stall_timeout_ms: 300,
        ..Limits::default()
    }
}

#[tokio::test]
async fn every_answer_has_its_own_request_id() {
    let bench = bench(Limits::default()).await;
    let mut wire = Wire::connect(bench.address).await;
    let mut ids = HashSet::new();
    for path in ["/ok", "/missing", "/panic", "/ok"] {
        let response = wire.get(path).await;
        assert!(ids.insert(response.header("x-amz-request-id").unwrap().to_owned()));
        assert!(response.header("x-amz-id-2").is_some());
        assert_eq!(response.header("server"), Some("Keyway"));
        assert!(response.header("date").is_some());
    }
}

#[tokio::test]
async fn a_panic_costs_one_answer_and_no_connection() {
    let bench = bench(Limits::default()).await;
    let mut wire = Wire::connect(bench.address).await;
    let response = wire.get("/panic").await;
    assert_eq!(response.status, 500);
    assert!(response.text().contains("<Code>InternalError</Code>"), "{response:?}");
    assert!(response.text().contains(response.header("x-amz-request-id").unwrap()));
    assert_eq!(wire.get("/ok").await.body, b"ok");
    let mut other = Wire::connect(bench.address).await;
    other.send("GET /panic-in-body HTTP/1.1\r\nhost: test\r\n\r\n").await;
    other.closed().await;
    let metrics = String::from_utf8(bench.metrics.prometheus_text()).unwrap();
    let panics = metrics.lines().find(|l| l.starts_with("keyway_server_panics_total")).unwrap();
    assert!(panics.ends_with(" 2"), "{panics}");
}

#[tokio::test]
async fn http2_streams_fail_alone_and_name_their_host() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let bench = bench(Limits::default()).await;
    let stream = tokio::net::TcpStream::connect(bench.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, Body>(
        TokioExecutor::new(),
        TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let request = |path: &str| {
        let uri = format!("http://bucket.s3.example{path}");
        Request::builder().uri(uri).body(Body::empty()).unwrap()
    };
    // The stream may be reset before its head is out, or after.
    let broken = match sender.send_request(request("/panic-in-body")).await {
        Ok(response) => response.into_body().collect().await.err().is_some(),
        Err(_) => true,
    };
    assert!(broken);
    let response = sender.send_request(request("/host")).await.unwrap();
    assert!(response.headers().contains_key("x-amz-request-id"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    // Signatures cover the host's header, which HTTP/2 does not have.
    assert_eq!(body, "bucket.s3.example");
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let bench = bench(quick()).await;
    // Taken before the server can begin to count.
    let begun = Instant::now();
    let mut wire = Wire::connect(bench.address).await;
    assert!(wire.closed().await.is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(850), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_idle_connection_lives_longer_than_a_header() {
    let bench = bench(quick()).await;
    let mut wire = Wire::connect(bench.address).await;
    let idle = Instant::now();
    assert_eq!(wire.get("/ok").await.status, 200);
    wire.closed().await;
    assert!(idle.elapsed() >= Duration::from_millis(850), "{:?}", idle.elapsed());
}

#[tokio::test]
async fn a_header_that_trickles_is_cut() {
    let bench = bench(quick()).await;
    let mut wire = Wire::connect(bench.address).await;
    // One byte now and then, without end, would keep any timeout between reads from firing.
    let (mut reader, mut writer) = wire.0.split();
    let trickle = async {
        use tokio::io::AsyncWriteExt;
        let head = b"GET /ok HTTP/1.1\r\nhost: test\r\nx-padding: ";
        for byte in head.iter().chain(std::iter::repeat(&b'a')) {
            if writer.write_all(&[*byte]).await.is_err() {
                // Cut: the reader sees the end as well.
                return std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut rest = Vec::new();
    let cut = async {
        use tokio::io::AsyncReadExt;
        let _ = reader.read_to_end(&mut rest).await;
    };
    let either = async {
        tokio::select! { () = trickle => {}, () = cut => {} }
    };
    // Far from the limit, and from the size that the head may have.
    tokio::time::timeout(Duration::from_secs(30), either).await.expect("the head is cut");
}

#[tokio::test]
async fn a_body_that_stalls_is_answered_with_request_timeout() {
    let bench = bench(quick()).await;
    let mut wire = Wire::connect(bench.address).await;
    wire.send("PUT /sink HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nonly this").await;
    let response = wire.response().await;
    assert_eq!(response.status, 400);
    assert!(response.text().contains("<Code>RequestTimeout</Code>"), "{response:?}");
    wire.closed().await;
}

/// Goal: a client that sends everything before it reads gets its answer, and no reset.
#[tokio::test]
async fn a_refused_upload_is_answered_however_much_was_sent() {
    let bench = bench(Limits::default()).await;
    let body = vec![b'x'; 8 << 20];
    for framing in ["content-length: 8388608", "transfer-encoding: chunked"] {
        let mut wire = Wire::connect(bench.address).await;
        wire.send(&format!("PUT /refuse HTTP/1.1\r\nhost: test\r\n{framing}\r\n\r\n")).await;
        if framing.contains("chunked") {
            wire.send("800000\r\n").await;
        }
        tokio::io::AsyncWriteExt::write_all(&mut wire.0, &body).await.expect("it is read");
        let response = wire.response().await;
        assert_eq!((response.status, response.header("connection")), (403, Some("close")));
        assert!(wire.closed().await.is_empty());
    }
}

#[tokio::test]
async fn a_small_refused_upload_does_not_cost_the_connection() {
    let bench = bench(Limits::default()).await;
    let mut wire = Wire::connect(bench.address).await;
    for length in [1, 200_000] {
        let head =
            format!("PUT /refuse HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n");
        wire.send(&(head + &"x".repeat(length))).await;
        let response = wire.response().await;
        assert_eq!((response.status, response.header("connection")), (403, None));
        assert_eq!(wire.get("/ok").await.body, b"ok");
    }
}

/// Goal: who asks first learns the refusal without sending, and is told to go on otherwise.
#[tokio::test]
async fn an_expected_word_is_the_right_one() {
    let bench = bench(Limits::default()).await;
    let head = |path: &str| {
        let fields = "host: test\r\ncontent-length: 3\r\nexpect: 100-continue";
        format!("PUT {path} HTTP/1.1\r\n{fields}\r\n\r\n")
    };
    let mut wire = Wire::connect(bench.address).await;
    wire.send(&head("/refuse")).await;
    let response = wire.response().await;
    assert_eq!((response.status, response.header("connection")), (403, Some("close")));
    // Whoever sends all the same does no harm.
    wire.send("abc").await;
    assert!(wire.closed().await.is_empty());

    let mut wire = Wire::connect(bench.address).await;
    wire.send(&head("/sink")).await;
    assert!(wire.head().await.starts_with("HTTP/1.1 100 "));
    wire.send("abc").await;
    assert_eq!(wire.response().await.body, b"3");
    assert_eq!(wire.get("/ok").await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let bench = bench(quick()).await;
    let mut wire = Wire::connect(bench.address).await;
    wire.send("GET /endless HTTP/1.1\r\nhost: test\r\n\r\n").await;
    // The server alone ends the request: the metric falls to none while we read nothing.
    let deadline = Instant::now() + Duration::from_secs(15);
    let mut seen = false;
    loop {
        let text = String::from_utf8(bench.metrics.prometheus_text()).unwrap();
        let line = text.lines().find(|l| l.starts_with("http_server_active_requests")).unwrap();
        seen |= line.ends_with(" 1");
        if seen && line.ends_with(" 0") {
            break;
        }
        assert!(Instant::now() < deadline, "still under way: {line}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn headers_beyond_the_limits_are_refused() {
    let limits = Limits { header_bytes: 8192, header_fields: 20, ..Limits::default() };
    let bench = bench(limits).await;
    let mut wire = Wire::connect(bench.address).await;
    let long = "a".repeat(9000);
    wire.send(&format!("GET /ok HTTP/1.1\r\nhost: test\r\nx-long: {long}\r\n\r\n")).await;
    let response = wire.response().await;
    assert_eq!(response.status, 400);
    assert!(response.text().contains("RequestHeaderSectionTooLarge"), "{response:?}");
    let mut wire = Wire::connect(bench.address).await;
    let many: String = (0..30).map(|n| format!("x-{n}: a\r\n")).collect();
    wire.send(&format!("GET /ok HTTP/1.1\r\nhost: test\r\n{many}\r\n")).await;
    assert_eq!(wire.response().await.status, 431);
}

#[tokio::test]
async fn requests_beyond_the_cap_are_told_to_slow_down() {
    let one = NonZeroU32::new(1).unwrap();
    let bench = bench(Limits { max_concurrent_requests: one, ..Limits::default() }).await;
    let mut first = Wire::connect(bench.address).await;
    first.send("GET /gate HTTP/1.1\r\nhost: test\r\n\r\n").await;
    bench.arrived.notified().await;
    let mut second = Wire::connect(bench.address).await;
    let response = second.get("/ok").await;
    assert_eq!(response.status, 503);
    assert!(response.text().contains("<Code>SlowDown</Code>"));
    bench.gate.notify_one();
    assert_eq!(first.response().await.body, b"half.half.");
}

#[tokio::test]
async fn connections_beyond_the_cap_wait_for_their_turn() {
    let one = NonZeroU32::new(1).unwrap();
    let bench = bench(Limits { max_connections: one, ..Limits::default() }).await;
    let mut first = Wire::connect(bench.address).await;
    assert_eq!(first.get("/ok").await.status, 200);
    let mut second = Wire::connect(bench.address).await;
    second.send("GET /ok HTTP/1.1\r\nhost: test\r\n\r\n").await;
    let early = tokio::time::timeout(Duration::from_millis(200), second.head()).await;
    assert!(early.is_err(), "the second connection was served while the first was open");
    drop(first);
    assert!(second.head().await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_drain_finishes_what_is_under_way_and_takes_nothing_new() {
    let bench = bench(Limits::default()).await;
    let mut idle = Wire::connect(bench.address).await;
    assert_eq!(idle.get("/ok").await.status, 200);
    let mut busy = Wire::connect(bench.address).await;
    busy.send("GET /gate HTTP/1.1\r\nhost: test\r\n\r\n").await;
    bench.arrived.notified().await;
    bench.stop.send(true).unwrap();
    // The idle connection's end shows that the drain has begun.
    idle.closed().await;
    assert!(tokio::net::TcpStream::connect(bench.address).await.is_err());
    assert!(!bench.server.is_finished());
    bench.gate.notify_one();
    assert_eq!(busy.response().await.body, b"half.half.");
    assert!(bench.server.await.unwrap(), "all requests finished");
}
