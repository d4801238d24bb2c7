//! Connections kept for the next request.
//!
//! HTTP/1.1 without multiplexing: one request owns a connection until its answer has been
//! read to the end, so large bodies never wait behind each other. A connection whose answer
//! was dropped half-read is closed, not drained: the bytes in flight are unbounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use ::http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower::Service;

use super::body::RequestBody;
use super::endpoint::Target;
use crate::error::{ClientError, Malformed};

/// Idle connections kept per address.
const IDLE_MAX: usize = 64;
/// Bytes that a connection buffers while reading a body.
const READ_BUFFER_BYTES: usize = 512 * 1024;

/// Bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLimits {
    pub(crate) connections_max: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) stall_timeout: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// Connections to any number of addresses (virtual-host buckets have one each).
pub(crate) struct Pool {
    connector: HttpsConnector<HttpConnector>,
    limits: PoolLimits,
    permits: Arc<Semaphore>,
    idle: Arc<Idle>,
}

type Idle = Mutex<HashMap<Authority, Vec<SendRequest<RequestBody>>>>;

/// A connection on loan to one request.
pub(crate) struct Connection {
    sender: SendRequest<RequestBody>,
    authority: Authority,
    idle: Arc<Idle>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Gives the connection back after an answer that was read to its end.
    pub(crate) fn release(self) {
        if self.sender.is_closed() {
            return;
        }
        let mut idle = lock(&self.idle);
        match idle.get_mut(&self.authority) {
            Some(kept) if kept.len() < IDLE_MAX => kept.push(self.sender),
            Some(_) => {}
            None => {
                idle.insert(self.authority, vec![self.sender]);
            }
        }
    }
}

impl Pool {
    pub(crate) fn new(tls: rustls::ClientConfig, limits: PoolLimits) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        // Without it a small request waits for the acknowledgement of the one before.
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        tcp.set_connect_timeout(Some(limits.connect_timeout));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Self {
            connector,
            limits,
            permits: Arc::new(Semaphore::new(limits.connections_max)),
            idle: Arc::default(),
        }
    }

    pub(crate) fn stall_timeout(&self) -> Duration {
        self.limits.stall_timeout
    }

    /// Sends a request and waits so long for the head of its answer.
    ///
    /// A kept connection that the server closed meanwhile is no failure: the request comes
    /// back unsent and goes out over the next one.
    pub(crate) async fn send(
        &self,
        target: &Target,
        mut request: Request<RequestBody>,
        answer_timeout: Duration,
    ) -> Result<(Response<Incoming>, Connection), ClientError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let mut permit = permit.expect("the pool never closes its semaphore");
        loop {
            let (sender, kept) = match self.kept(&target.authority).await {
                Some(sender) => (sender, true),
                None => (self.connect(target).await?, false),
            };
            let idle = Arc::clone(&self.idle);
            let authority = target.authority.clone();
            let mut connection = Connection { sender, authority, idle, _permit: permit };
            let sent = connection.sender.try_send_request(request);
            let sent = timeout(answer_timeout, sent).await;
            match sent.map_err(|_| ClientError::Stalled(answer_timeout))? {
                Ok(response) => return Ok((response, connection)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) if kept => {
                        request = unsent;
                        permit = connection._permit;
                    }
                    _ => return Err(ClientError::Transport(error.into_error())),
                },
            }
        }
    }

    /// A kept connection that is ready; those that were closed are dropped on the way.
    async fn kept(&self, authority: &Authority) -> Option<SendRequest<RequestBody>> {
        loop {
            let mut sender = lock(&self.idle).get_mut(authority)?.pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    async fn connect(&self, target: &Target) -> Result<SendRequest<RequestBody>, ClientError> {
        let failed = |source| ClientError::Connect {
            endpoint: format!("{}://{}", target.scheme, target.authority),
            source,
        };
        let address = address(&target.scheme, &target.authority)?;
        let mut connector = self.connector.clone();
        // The connector bounds the TCP part; this also bounds the TLS handshake.
        let stream = timeout(self.limits.connect_timeout, connector.call(address))
            .await
            .map_err(|_| failed("the handshake takes too long".into()))?
            .map_err(failed)?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(READ_BUFFER_BYTES)
            .handshake(stream)
            .await
            .map_err(ClientError::Transport)?;
        tokio::spawn(async move {
            // A broken connection shows at the request that uses it.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection closed");
            }
        });
        Ok(sender)
    }
}

fn address(scheme: &Scheme, authority: &Authority) -> Result<Uri, ClientError> {
    Uri::builder()
        .scheme(scheme.clone())
        .authority(authority.clone())
        .path_and_query(PathAndQuery::from_static("/"))
        .build()
        .map_err(|error| Malformed::because("an address that is no URI", error).into())
}

/// A poisoned lock holds whole values all the same: they are pushed and popped.
fn lock(
    idle: &Idle,
) -> std::sync::MutexGuard<'_, HashMap<Authority, Vec<SendRequest<RequestBody>>>> {
    idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
