//! The HTTP server: connections, limits, TLS, and the end of it all.
//!
//! An accept loop of our own over hyper, because the limits live below HTTP: a connection
//! that sends nothing, or one byte a minute, is cut by [`guard`] before any request exists,
//! and earlier where [`crowd`] needs its seat for another. [`exchange`] surrounds every request:
//! id, admission, panics, telemetry.
//!
//! What an idle connection costs: a task, the socket, one timer, and under TLS rustls'
//! buffers; hyper allocates its read buffer with the first byte.

mod body;
mod crowd;
mod exchange;
mod guard;
mod reply;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time;

use crate::config::Limits;
use crate::telemetry::Metrics;

use crowd::{Crowd, Seat};
use exchange::{Exchanges, Remote};
use guard::{ConnectionState, Guarded};

pub use exchange::RequestInfo;
pub use tls::{TlsAcceptor, TlsError};

/// HTTP/1's read buffer, and so the largest frame of a body. Larger ones save few system
/// calls, but every connection that uploads holds one.
const HTTP1_BUFFER_BYTES: usize = 64 * 1024;
/// HTTP/2's windows: what a client may send ahead of the handler, per stream and per
/// connection. Memory under load is bounded by connections × the second: 32 MiB at 64.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;
/// HTTP/2's frames out: fewer and larger than the protocol's 16 KiB default.
const HTTP2_FRAME_BYTES: u32 = 64 * 1024;
/// Bytes of a response that HTTP/2 queues per stream while the client's window is full.
const HTTP2_SEND_BYTES: usize = 256 * 1024;
/// Ping interval on HTTP/2 connections, to notice a vanished client.
const HTTP2_PING: Duration = Duration::from_secs(30);
/// Pause after the system refuses an accept, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener that is bound, not yet served.
pub struct Server {
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    exchanges: Arc<Exchanges>,
}

impl Server {
    /// Serves `router` on `listener`, with TLS where an acceptor is given.
    pub fn new(
        listener: TcpListener,
        router: Router,
        tls: Option<TlsAcceptor>,
        limits: &Limits,
        metrics: Arc<Metrics>,
        access_log: crate::config::AccessLog,
    ) -> Self {
        let exchanges = Arc::new(Exchanges::new(limits, metrics, access_log));
        Self { listener, router, tls, limits: limits.clone(), exchanges }
    }

    /// Serves operators: plaintext, default limits, metrics that nobody reads.
    ///
    /// The admin listener is loopback or the operators' network: its limits are not theirs to
    /// tune, and its requests would only blur the S3 endpoint's metrics.
    ///
    /// # Errors
    /// [`TelemetryError`](crate::telemetry::TelemetryError) as of [`Metrics::new`].
    pub fn admin(
        listener: TcpListener,
        router: Router,
    ) -> Result<Self, crate::telemetry::TelemetryError> {
        let metrics = Arc::new(Metrics::new(&crate::config::Telemetry::default())?);
        let limits = Limits::default();
        Ok(Self::new(listener, router, None, &limits, metrics, crate::config::AccessLog::Off))
    }

    /// The address that the listener is bound to.
    ///
    /// # Errors
    /// What the system says when the socket is gone.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts and serves until `stop` turns true, then finishes the requests under way for
    /// at most `drain_timeout`. Answers whether all of them ended in time; connections that
    /// did not are cut.
    pub async fn run(self, mut stop: watch::Receiver<bool>, drain_timeout: Duration) -> bool {
        let crowd = Crowd::new(self.limits.max_connections.get() as usize);
        let graceful = GracefulShutdown::new();
        let connections = Connections {
            builder: Arc::new(builder(&self.limits)),
            router: self.router,
            tls: self.tls,
            limits: Arc::new(self.limits),
            exchanges: Arc::clone(&self.exchanges),
        };
        let mut tasks = tokio::task::JoinSet::new();
        'serve: loop {
            let newcomer = async {
                let (stream, remote) = accept(&self.listener).await;
                let (seat, sent_away) = crowd.seat().await;
                self.exchanges.metrics().connections_sent_away(sent_away);
                (stream, remote, seat)
            };
            let mut newcomer = pin!(newcomer);
            // Ended connections are forgotten while a newcomer waits: it may wait for them.
            let (stream, remote, seat) = loop {
                tokio::select! {
                    biased;
                    _ = stop.wait_for(|stop| *stop) => break 'serve,
                    Some(_) = tasks.join_next() => {}
                    newcomer = &mut newcomer => break newcomer,
                }
            };
            tasks.spawn(connections.clone().serve(stream, remote, seat, graceful.watcher()));
        }
        drop(self.listener);
        let drained = time::timeout(drain_timeout, graceful.shutdown()).await.is_ok();
        // What is left did not end in time: dropping the set cuts it.
        drop(tasks);
        drained
    }
}

/// Waits for a connection. Failures of single accepts are waited out.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client gave up while it waited: nothing is wrong with the listener.
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What every connection is served with.
#[derive(Clone)]
struct Connections {
    builder: Arc<auto::Builder<TokioExecutor>>,
    router: Router,
    tls: Option<TlsAcceptor>,
    limits: Arc<Limits>,
    exchanges: Arc<Exchanges>,
}

impl Connections {
    async fn serve(
        self,
        stream: TcpStream,
        remote: SocketAddr,
        seat: Seat,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        // Without it a small answer waits for the acknowledgement of the one before: 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let _counted = self.exchanges.metrics().connection();
        let state = Arc::clone(seat.state());
        let stream = Guarded::new(stream, Arc::clone(&state), &self.limits);
        match &self.tls {
            None => {
                let remote = Remote { address: remote, tls: None };
                self.serve_http(stream, remote, state, watcher).await;
            }
            Some(tls) => {
                let limit = Duration::from_millis(self.limits.header_timeout_ms);
                match time::timeout(limit, tls.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let remote = Remote { address: remote, tls: Some(tls::version(&stream)) };
                        self.serve_http(stream, remote, state, watcher).await;
                    }
                    Ok(Err(error)) => tracing::debug!(%remote, %error, "TLS handshake failed"),
                    Err(_) => tracing::debug!(%remote, "TLS handshake took too long"),
                }
            }
        }
    }

    async fn serve_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        remote: Remote,
        state: Arc<ConnectionState>,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let service = self.exchanges.service(self.router.clone(), remote, state);
        let connection = self.builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(remote = %remote.address, %error, "connection ended");
        }
    }
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The guard has both the header's and the idle timeout; hyper's one serves as both.
        .header_read_timeout(None)
        .max_buf_size(limits.header_bytes.max(HTTP1_BUFFER_BYTES))
        .max_headers(limits.header_fields);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .max_send_buf_size(HTTP2_SEND_BYTES)
        .max_concurrent_streams(limits.http2_streams.get())
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(Duration::from_millis(limits.body_stall_timeout_ms));
    builder
}
