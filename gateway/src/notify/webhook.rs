//! Events to an HTTP server: a POST for each.
//!
//! No redirect is followed, and of an answer only the status counts.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use super::target::{DeliveryError, InvalidTarget};

/// Bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);

/// An HTTP server.
pub(super) struct Webhook {
    url: Uri,
    authorization: Option<HeaderValue>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Webhook {
    /// # Errors
    /// [`InvalidTarget`] for an address, or a token, that HTTP cannot carry.
    pub(super) fn new(
        url: &str,
        token: Option<&str>,
        tls: ClientConfig,
    ) -> Result<Self, InvalidTarget> {
        let url = url.parse().map_err(|_| InvalidTarget::Address)?;
        let authorization = token.map(|token| {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            value.map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        let authorization = authorization.transpose().map_err(|_| InvalidTarget::Token)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .build(connector);
        Ok(Self { url, authorization, client })
    }

    pub(super) async fn send(&self, message: Bytes) -> Result<(), DeliveryError> {
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static("keyway"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let sent = self.client.request(request).await;
        let response = sent.map_err(|error| DeliveryError::Unreachable(error.into()))?;
        let status = response.status();
        // It has the event, whatever becomes of the rest of its answer.
        let _ = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => Err(DeliveryError::Refused(status)),
            status => Err(DeliveryError::Status(status)),
        }
    }
}
