//! Connections kept for the next request.
//!
//! HTTP/1.1 without multiplexing: one request owns a connection until its answer has been
//! read to the end, so large bodies never wait behind each other. A connection whose answer
//! was dropped half-read is closed, not drained: the bytes in flight are unbounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use ::http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::Service;

use super::body::RequestBody;
use super::connection::{Connection, Kept, Place};
use super::endpoint::Target;
use crate::error::{ClientError, Malformed};

/// Idle connections kept per address.
const IDLE_MAX: usize = 64;

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

/// Connections that nobody uses.
#[derive(Default)]
pub(super) struct Idle(Mutex<HashMap<Authority, Vec<Kept>>>);

impl Idle {
    /// Takes a connection that may be used again.
    pub(super) fn keep(&self, authority: Authority, connection: Kept) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.lock();
        match idle.get_mut(&authority) {
            Some(kept) if kept.len() < IDLE_MAX => kept.push(connection),
            Some(_) => {}
            None => {
                idle.insert(authority, vec![connection]);
            }
        }
    }

    fn take(&self, authority: &Authority) -> Option<Kept> {
        self.lock().get_mut(authority)?.pop()
    }

    /// A poisoned lock holds whole values all the same: they are pushed and popped.
    fn lock(&self) -> MutexGuard<'_, HashMap<Authority, Vec<Kept>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            let (kept, is_kept) = match self.kept(&target.authority).await {
                Some(kept) => (kept, true),
                None => (self.connect(target).await?, false),
            };
            let idle = Arc::clone(&self.idle);
            let place = Place { authority: target.authority.clone(), idle, permit };
            let mut connection = Connection { kept, place };
            let sent = connection.kept.sender.try_send_request(request);
            let sent = timeout(answer_timeout, sent).await;
            match sent.map_err(|_| ClientError::Stalled(answer_timeout))? {
                Ok(response) => return Ok((response, connection)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) if is_kept => {
                        request = unsent;
                        permit = connection.place.permit;
                    }
                    _ => return Err(ClientError::of_connection(error.into_error())),
                },
            }
        }
    }

    /// A kept connection that is ready; those that were closed are dropped on the way.
    async fn kept(&self, authority: &Authority) -> Option<Kept> {
        loop {
            let mut kept = self.idle.take(authority)?;
            if kept.sender.ready().await.is_ok() {
                return Some(kept);
            }
        }
    }

    async fn connect(&self, target: &Target) -> Result<Kept, ClientError> {
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
        Kept::over(stream).await
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
