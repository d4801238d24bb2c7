//! Requests and answers, one at a time.
//!
//! [`Call`] describes a request that can be made again, [`Client::attempt`] signs and sends
//! it once over a pooled connection, [`Answer`] is what came back. Retries sit one level up,
//! because a part of a large read resumes where the body broke.
//!
//! The connections, the signer and the address are a [`Wire`], which what outlives a client for a
//! moment can hold.
//!
//! Cost of one small request beside the kernel's: one signature (three short SHA-256 runs),
//! one header map, a pooled connection popped and pushed under an uncontended lock.

mod answer;
mod body;
mod bulk;
mod connection;
mod endpoint;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use ::http::header::{self, HeaderName, HeaderValue};
use ::http::{HeaderMap, Method, Request};
use bytes::Bytes;
use jiff::Timestamp;
use keyway_auth::sigv4::{Payload, Signer};
use keyway_proto::{Checksum, ChecksumKind};

use crate::builder::{ClientBuilder, TransferDefaults};
use crate::error::ClientError;
use crate::phases::{BodyPhases, BodySums};
use crate::rdma::Rdma;
use crate::retry::{Retries, RetryPolicy};
use crate::staging::Staging;
use crate::transfer::Checks;

pub(crate) use answer::Answer;
pub(crate) use body::{BodyProgress, CallBody, Fetched, RequestBody};
pub(crate) use endpoint::{Endpoint, Query};
pub(crate) use pool::{Pool, PoolLimits};

/// A client of one S3 endpoint. Clones are cheap and share connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    wire: Arc<Wire>,
    retry: RetryPolicy,
    defaults: TransferDefaults,
    rdma: Rdma,
    staging: Staging,
    bodies: BodySums,
    checks: Checks,
}

/// What requests are signed with and sent over.
pub(crate) struct Wire {
    pub(crate) endpoint: Endpoint,
    pub(crate) signer: Option<Signer>,
    pub(crate) pool: Pool,
}

/// What a signature says of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Covered {
    /// That there is none, or nothing: the body's own checksum header answers for it.
    #[default]
    ByChecksum,
    /// Its SHA-256.
    Itself,
    /// Nothing, though there is none: the bytes travel past HTTP.
    Nothing,
}

/// A request that can be sent any number of times.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) bucket: Option<Arc<str>>,
    pub(crate) key: Option<Arc<str>>,
    /// The path of a call to the service itself, instead of bucket and key.
    control: Option<Arc<str>>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: CallBody,
    pub(crate) covered: Covered,
    pub(crate) progress: Option<BodyProgress>,
}

impl Call {
    pub(crate) fn service(method: Method) -> Self {
        Self {
            method,
            bucket: None,
            key: None,
            control: None,
            query: Query::default(),
            headers: HeaderMap::new(),
            body: CallBody::default(),
            covered: Covered::default(),
            progress: None,
        }
    }

    pub(crate) fn bucket(method: Method, bucket: &Arc<str>) -> Self {
        Self { bucket: Some(Arc::clone(bucket)), ..Self::service(method) }
    }

    pub(crate) fn object(method: Method, bucket: &Arc<str>, key: &Arc<str>) -> Self {
        Self { key: Some(Arc::clone(key)), ..Self::bucket(method, bucket) }
    }

    /// A call to the service itself; its body is signed.
    pub(crate) fn control(method: Method, path: &str) -> Self {
        let covered = Covered::Itself;
        Self { control: Some(path.into()), covered, ..Self::service(method) }
    }

    /// Adds a header whose value the caller made.
    ///
    /// # Errors
    /// When the value cannot stand in a header.
    pub(crate) fn header(
        &mut self,
        name: impl TryInto<HeaderName, Error: Into<::http::Error>>,
        value: &str,
    ) -> Result<(), ClientError> {
        let name = name.try_into().map_err(Into::into)?;
        let value = HeaderValue::from_str(value).map_err(::http::Error::from)?;
        self.headers.insert(name, value);
        Ok(())
    }
}

impl Client {
    /// Starts putting a client together.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    pub(crate) fn new(
        wire: Arc<Wire>,
        retry: RetryPolicy,
        defaults: TransferDefaults,
        rdma: Rdma,
        staging: Staging,
    ) -> Self {
        let (bodies, checks) = (BodySums::default(), Checks::default());
        Self { shared: Arc::new(Shared { wire, retry, defaults, rdma, staging, bodies, checks }) }
    }

    /// The endpoint's address.
    pub fn endpoint(&self) -> String {
        self.shared.wire.endpoint.to_string()
    }

    pub(crate) fn address(&self) -> &Endpoint {
        &self.shared.wire.endpoint
    }

    pub(crate) fn signer(&self) -> Option<&Signer> {
        self.shared.wire.signer.as_ref()
    }

    pub(crate) fn retries(&self) -> Retries {
        Retries::new(self.shared.retry)
    }

    pub(crate) fn defaults(&self) -> &TransferDefaults {
        &self.shared.defaults
    }

    pub(crate) fn rdma(&self) -> &Rdma {
        &self.shared.rdma
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.shared.staging
    }

    pub(crate) fn bodies(&self) -> &BodySums {
        &self.shared.bodies
    }

    pub(crate) fn checks(&self) -> &Checks {
        &self.shared.checks
    }

    /// Where the time of this client's and its clones' reads over HTTP went.
    pub fn body_phases(&self) -> BodyPhases {
        self.shared.bodies.read()
    }

    /// Signs and sends a call once. An answer of any status but success is an error.
    pub(crate) async fn attempt(&self, call: &Call) -> Result<Answer, ClientError> {
        self.shared.wire.attempt(call).await
    }

    /// Sends a call until it is answered for good; gives the answer and the retries made.
    pub(crate) async fn call(&self, call: &Call) -> Result<(Answer, u32), ClientError> {
        let mut retries = self.retries();
        loop {
            match self.attempt(call).await {
                Ok(answer) => return Ok((answer, retries.spent())),
                Err(error) => retries.after(error).await?,
            }
        }
    }

    /// Sends a call whose answer is a document, until document and all have come.
    pub(crate) async fn document(&self, call: &Call) -> Result<(Bytes, u32), ClientError> {
        let mut retries = self.retries();
        loop {
            let attempt = async { self.attempt(call).await?.document().await };
            match attempt.await {
                Ok(document) => return Ok((document, retries.spent())),
                Err(error) => retries.after(error).await?,
            }
        }
    }
}

impl Wire {
    /// Signs and sends a call once. An answer of any status but success is an error.
    pub(crate) async fn attempt(&self, call: &Call) -> Result<Answer, ClientError> {
        self.exchange(call, self.pool.stall_timeout()).await?.successful(&call.method).await
    }

    /// Signs and sends a call once, and waits so long for the head of its answer, whatever its
    /// status.
    pub(crate) async fn exchange(
        &self,
        call: &Call,
        answer_timeout: Duration,
    ) -> Result<Answer, ClientError> {
        let target = match &call.control {
            Some(path) => self.endpoint.control(path),
            None => self.endpoint.target(call.bucket.as_deref(), call.key.as_deref())?,
        };
        let mut request = Request::new(RequestBody::new(&call.body, call.progress.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = target.uri(&call.query)?;
        *request.headers_mut() = call.headers.clone();
        request.headers_mut().insert(header::HOST, target.host.clone());
        if let Some(signer) = &self.signer {
            let (mut parts, body) = request.into_parts();
            signer.sign(&mut parts, call.payload(), Timestamp::now())?;
            request = Request::from_parts(parts, body);
        }
        let (response, connection) = self.pool.send(&target, request, answer_timeout).await?;
        Ok(Answer::new(response, connection, self.pool.stall_timeout()))
    }
}

impl Call {
    fn payload(&self) -> Payload {
        match self.covered {
            Covered::ByChecksum if self.body.is_empty() => Payload::EMPTY,
            Covered::Itself if let CallBody::Bytes(body) = &self.body => {
                let sum = Checksum::of(ChecksumKind::Sha256, body);
                Payload::Sha256(sum.value().try_into().expect("SHA-256 has 32 bytes"))
            }
            Covered::ByChecksum | Covered::Itself | Covered::Nothing => Payload::Unsigned,
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint())
            .field("signer", &self.shared.wire.signer)
            .finish_non_exhaustive()
    }
}
