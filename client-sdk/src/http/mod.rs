//! Requests and answers, one at a time.
//!
//! [`Call`] describes a request that can be made again, [`Client::attempt`] signs and sends
//! it once over a pooled connection, [`Answer`] is what came back. Retries sit one level up,
//! because a part of a large read resumes where the body broke.
//!
//! Cost of one small request beside the kernel's: one signature (three short SHA-256 runs),
//! one header map, a pooled connection popped and pushed under an uncontended lock.

mod answer;
mod body;
mod endpoint;
mod pool;

use std::sync::Arc;

use ::http::header::{self, HeaderName, HeaderValue};
use ::http::{HeaderMap, Method, Request};
use bytes::Bytes;
use jiff::Timestamp;
use keyway_auth::sigv4::{Payload, Signer};

use crate::builder::{ClientBuilder, TransferDefaults};
use crate::error::ClientError;
use crate::retry::{Retries, RetryPolicy};

pub(crate) use answer::Answer;
pub(crate) use body::{BodyProgress, RequestBody};
pub(crate) use endpoint::{Endpoint, Query};
pub(crate) use pool::{Pool, PoolLimits};

/// A client of one S3 endpoint. Clones are cheap and share connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: Endpoint,
    signer: Option<Signer>,
    pool: Pool,
    retry: RetryPolicy,
    defaults: TransferDefaults,
}

/// A request that can be sent any number of times.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) bucket: Option<Arc<str>>,
    pub(crate) key: Option<Arc<str>>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) progress: Option<BodyProgress>,
}

impl Call {
    pub(crate) fn service(method: Method) -> Self {
        Self {
            method,
            bucket: None,
            key: None,
            query: Query::default(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            progress: None,
        }
    }

    pub(crate) fn bucket(method: Method, bucket: &Arc<str>) -> Self {
        Self { bucket: Some(Arc::clone(bucket)), ..Self::service(method) }
    }

    pub(crate) fn object(method: Method, bucket: &Arc<str>, key: &Arc<str>) -> Self {
        Self { key: Some(Arc::clone(key)), ..Self::bucket(method, bucket) }
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
        endpoint: Endpoint,
        signer: Option<Signer>,
        pool: Pool,
        retry: RetryPolicy,
        defaults: TransferDefaults,
    ) -> Self {
        Self { shared: Arc::new(Shared { endpoint, signer, pool, retry, defaults }) }
    }

    /// The endpoint's address.
    pub fn endpoint(&self) -> String {
        self.shared.endpoint.to_string()
    }

    pub(crate) fn address(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    pub(crate) fn signer(&self) -> Option<&Signer> {
        self.shared.signer.as_ref()
    }

    pub(crate) fn retries(&self) -> Retries {
        Retries::new(self.shared.retry)
    }

    pub(crate) fn defaults(&self) -> &TransferDefaults {
        &self.shared.defaults
    }

    /// Signs and sends a call once. An answer of any status but success is an error.
    pub(crate) async fn attempt(&self, call: &Call) -> Result<Answer, ClientError> {
        let shared = &*self.shared;
        let target = shared.endpoint.target(call.bucket.as_deref(), call.key.as_deref())?;
        let mut request = Request::new(RequestBody::new(call.body.clone(), call.progress.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = target.uri(&call.query)?;
        *request.headers_mut() = call.headers.clone();
        request.headers_mut().insert(header::HOST, target.host.clone());
        if let Some(signer) = &shared.signer {
            let (mut parts, body) = request.into_parts();
            // The body's own checksum header, covered by the signature, answers for it.
            let payload = if call.body.is_empty() { Payload::EMPTY } else { Payload::Unsigned };
            signer.sign(&mut parts, payload, Timestamp::now())?;
            request = Request::from_parts(parts, body);
        }
        let (response, connection) = shared.pool.send(&target, request).await?;
        let mut answer = Answer::new(response, connection, shared.pool.stall_timeout());
        if answer.status().is_success() {
            Ok(answer)
        } else {
            Err(answer.read_error(&call.method).await)
        }
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

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint())
            .field("signer", &self.shared.signer)
            .finish_non_exhaustive()
    }
}
