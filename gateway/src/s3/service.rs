//! The HTTP service: what surrounds every S3 request.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use s3s::service::{S3Service, S3ServiceBuilder};

use super::{S3Config, S3State};

/// Why a configuration cannot be served.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConfig {
    /// A base domain that is no host name, or lies within another.
    #[error("invalid base domain {0:?}")]
    BaseDomain(String),
    /// A limit that is zero or beyond S3's own.
    #[error("{field} is out of bounds")]
    Limit {
        /// The field's name.
        field: &'static str,
    },
}

/// The S3 service over `state`.
///
/// Requests may carry a [`RequestId`] in their extensions; without one the service makes
/// one. Every answer carries it as `x-amz-request-id`.
///
/// # Errors
/// [`InvalidConfig`] when a field of `config` is out of bounds.
pub fn service(state: S3State, config: &S3Config) -> Result<S3HttpService, InvalidConfig> {
    let _ = (&state, config);
    let builder = S3ServiceBuilder::new(Operations { _state: state });
    Ok(S3HttpService { inner: builder.build() })
}

struct Operations {
    _state: S3State,
}

impl s3s::S3 for Operations {}

/// The id of one request, as it appears in `x-amz-request-id` and in the logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The id with this text; `None` unless it is 1 to 64 characters of `A-Z a-z 0-9 -`.
    pub fn new(text: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        ((1..=64).contains(&text.len()) && text.bytes().all(allowed)).then(|| Self(text.into()))
    }

    /// A new, random id.
    pub fn generate() -> Self {
        Self(format!("{:016X}", fastrand::u64(..)).into())
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The S3 service: a tower service that never fails, to be mounted as a fallback.
#[derive(Clone)]
pub struct S3HttpService {
    inner: S3Service,
}

impl<B> tower::Service<Request<B>> for S3HttpService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Response = Response<s3s::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        let request = request.map(s3s::Body::http_body_unsync);
        Box::pin(async move {
            Ok(inner.call(request).await.unwrap_or_else(|_| {
                let mut response = Response::new(s3s::Body::empty());
                *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                response
            }))
        })
    }
}
