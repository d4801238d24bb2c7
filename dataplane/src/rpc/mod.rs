//! The node's network door: the seam `plan → receipt` served over gRPC with mutual TLS.
//!
//! Sketch, per data frame of at most 1 MiB: one copy into the message's buffer, TLS over it,
//! one `write`. HTTP/2 windows bound what is under way to each receiver, and hold all of a
//! connection's transfers, so that one which stalls holds up nobody else. A caller that goes
//! away resets its stream: the delivery or the body is dropped here, and the transfer freed.
//!
//! The gateway's half is `keyway_gateway::node::remote`; [`failure`] carries errors across, and
//! [`direct`] what became of a client's key.

pub mod direct;
pub mod failure;
mod service;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use keyway_rpc::schema::node_server::NodeServer;
use keyway_rpc::{
    CONNECTION_WINDOW_BYTES, MESSAGE_BYTES_MAX, STREAM_WINDOW_BYTES, STREAMS_MAX, TlsError,
    TlsPaths,
};
use tokio::net::TcpListener;
use tonic::codegen::http;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tracing::Span;

use crate::node::StorageNode;

pub use service::NodeService;

/// How long a peer may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often an idle connection is asked whether it lives.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long it may take to say so.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the node is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcServeError {
    /// The certificates cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificates cannot be used, or the listener failed.
    #[error("cannot serve the node")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves `node` on `listener` until `stop` resolves; then refuses new transfers and waits
/// for those under way. Only peers with a certificate of the private authority are let in.
///
/// # Errors
/// [`RpcServeError`] when the certificates do not serve.
pub async fn serve<N: StorageNode + ?Sized>(
    node: Arc<N>,
    listener: TcpListener,
    tls: &TlsPaths,
    stop: impl Future<Output = ()>,
) -> Result<(), RpcServeError> {
    serve_traced(node, listener, tls, |_| Span::none(), stop).await
}

/// As [`serve`], with each call, to its last frame, in the span that `span` makes of its head.
///
/// # Errors
/// As [`serve`].
pub async fn serve_traced<N: StorageNode + ?Sized>(
    node: Arc<N>,
    listener: TcpListener,
    tls: &TlsPaths,
    span: impl Fn(&http::Request<()>) -> Span + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) -> Result<(), RpcServeError> {
    let service = NodeServer::new(NodeService::new(node))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    Server::builder()
        .tls_config(tls.server()?.timeout(HANDSHAKE_TIMEOUT))?
        .trace_fn(span)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(service)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), stop)
        .await?;
    Ok(())
}
