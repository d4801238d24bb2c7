//! Asking an issuer: two GETs, for its description and for its keys.
//!
//! No redirect is followed, no more is read than a bound, and each asking has connections of its
//! own, which end with it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use keyway_auth::directory::Provider;
use keyway_auth::oidc::{InvalidKeys, KeySet, keys_url};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// Most bytes of an issuer's description.
const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Most bytes of its keys.
const KEYS_BYTES_MAX: usize = 256 << 10;

/// Why an issuer's keys are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssuerError {
    /// It did not answer in time.
    #[error("the issuer does not answer in time")]
    TimedOut,
    /// It did not answer a short while ago.
    #[error("the issuer did not answer lately")]
    Lately,
    /// Too many requests wait for it.
    #[error("too many requests wait for the issuer")]
    Busy,
    /// No connection, or one that broke.
    #[error("the issuer cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another status than 200: redirects are not followed.
    #[error("the issuer answers with status {0}")]
    Status(StatusCode),
    /// An answer that is too long.
    #[error("the issuer's answer is too long")]
    TooLong,
    /// An answer that is of no use.
    #[error(transparent)]
    Invalid(#[from] InvalidKeys),
    /// The provider's authorities cannot be used.
    #[error(transparent)]
    Authorities(#[from] InvalidAuthorities),
    /// The system's authorities, or TLS, cannot be used.
    #[error("the system's authorities cannot be used")]
    System(#[source] std::io::Error),
    /// The server ends.
    #[error("the server ends")]
    Interrupted,
}

/// A text that holds no certificates of authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("authorities are certificates in PEM, at least one")]
pub struct InvalidAuthorities;

/// Reads authorities.
///
/// # Errors
/// [`InvalidAuthorities`].
pub(crate) fn authorities(pem: &str) -> Result<RootCertStore, InvalidAuthorities> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|_| InvalidAuthorities)?;
        store.add(certificate).map_err(|_| InvalidAuthorities)?;
    }
    if store.is_empty() { Err(InvalidAuthorities) } else { Ok(store) }
}

type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Asks issuers.
pub(super) struct Asker {
    timeout: Duration,
    /// TLS with the system's authorities, which are read once.
    system: OnceLock<ClientConfig>,
}

impl Asker {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, system: OnceLock::new() }
    }

    /// The keys that a provider's issuer tells.
    pub(super) async fn keys(&self, provider: &Provider) -> Result<KeySet, IssuerError> {
        let asked = tokio::time::timeout(self.timeout, self.ask(provider)).await;
        asked.map_err(|_| IssuerError::TimedOut)?
    }

    async fn ask(&self, provider: &Provider) -> Result<KeySet, IssuerError> {
        let client = client(self.tls(provider)?);
        let url = provider.issuer.discovery_url();
        let url = url.parse().map_err(|_| InvalidKeys::Address)?;
        let description = get(&client, url, DESCRIPTION_BYTES_MAX).await?;
        let url = keys_url(&provider.issuer, &description)?;
        let keys = get(&client, url, KEYS_BYTES_MAX).await?;
        Ok(KeySet::read(&keys)?)
    }

    fn tls(&self, provider: &Provider) -> Result<ClientConfig, IssuerError> {
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let broken = |error: rustls::Error| IssuerError::System(std::io::Error::other(error));
        let begun = ClientConfig::builder_with_provider(ring);
        let begun = begun.with_safe_default_protocol_versions().map_err(broken)?;
        if let Some(pem) = &provider.ca_pem {
            return Ok(begun.with_root_certificates(authorities(pem)?).with_no_client_auth());
        }
        if let Some(known) = self.system.get() {
            return Ok(known.clone());
        }
        // A system that has none still has loopback.
        let config = if provider.issuer.as_str().starts_with("http://") {
            begun.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        } else {
            let config = begun.with_native_roots().map_err(IssuerError::System)?;
            let config = config.with_no_client_auth();
            self.system.get_or_init(|| config).clone()
        };
        Ok(config)
    }
}

fn client(tls: ClientConfig) -> HttpClient {
    let mut tcp = HttpConnector::new();
    // Which addresses may go without TLS was decided where they were read.
    tcp.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector)
}

async fn get(client: &HttpClient, url: Uri, bytes_max: usize) -> Result<Bytes, IssuerError> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = url;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    let response = client.request(request).await;
    let response = response.map_err(|error| IssuerError::Unreachable(error.into()))?;
    if response.status() != StatusCode::OK {
        return Err(IssuerError::Status(response.status()));
    }
    match Limited::new(response.into_body(), bytes_max).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(IssuerError::TooLong),
        Err(error) => Err(IssuerError::Unreachable(error)),
    }
}
