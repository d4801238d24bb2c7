//! How a client is put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::ConfigBuilderExt;
use keyway_auth::sigv4::Signer;
use keyway_proto::{KeyStrength, TransferPath};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::credentials::Credentials;
use crate::http::{Client, Endpoint, Pool, PoolLimits, Wire};
use crate::rdma::{InvalidMark, Rdma, RdmaConfig};
use crate::retry::RetryPolicy;
use crate::staging::{Staging, StagingConfig};

/// Largest part of a GET: one window of an adapter holds it.
pub(crate) const GET_PART_BYTES_MAX: u64 = 1 << 30;

/// Which path a transfer may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// The best that both ends offer.
    #[default]
    Auto,
    /// This one, or failure.
    Require(TransferPath),
}

/// How a bucket is named in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// `https://endpoint/bucket/key`.
    #[default]
    Path,
    /// `https://bucket.endpoint/key`.
    VirtualHost,
}

/// Whom an `https` endpoint is trusted by.
#[derive(Clone, Debug, Default)]
pub enum Tls {
    /// The machine's certificate authorities.
    #[default]
    SystemRoots,
    /// The authorities in this PEM file, and no others.
    CaFile(PathBuf),
}

/// Why a client could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No endpoint was given.
    #[error("an endpoint is needed, such as http://127.0.0.1:9000")]
    NoEndpoint,
    /// The endpoint is not `http://` or `https://`, a host, and perhaps a port.
    #[error("{0:?} is not an endpoint: http or https, a host, perhaps a port")]
    Endpoint(String),
    /// The certificate authorities cannot be read.
    #[error("no certificate authorities from {path:?}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The machine's certificate authorities cannot be read.
    #[error("the machine's certificate authorities cannot be read")]
    SystemRoots(#[source] std::io::Error),
    /// TLS does not accept the configuration.
    #[error("TLS refuses the configuration")]
    Tls(#[from] rustls::Error),
    /// A part size outside what S3 allows.
    #[error("a part has 5 MiB to 5 GiB; {0} bytes were asked for")]
    PartBytes(u64),
    /// A required path that this build does not know.
    #[error("the path {0} is not available in this client")]
    PathUnavailable(TransferPath),
    /// A traffic class or service level that packets cannot carry.
    #[error(transparent)]
    Rdma(#[from] InvalidMark),
}

/// What transfers are cut into, unless an operation says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferDefaults {
    /// None: as the path has it.
    pub(crate) get_part_bytes: Option<u64>,
    pub(crate) put_part_bytes: u64,
    pub(crate) concurrency: usize,
}

/// Puts a [`Client`] together; see [`Client::builder`].
#[derive(Debug)]
pub struct ClientBuilder {
    endpoint: Option<String>,
    region: String,
    credentials: Option<Credentials>,
    addressing: Addressing,
    path: PathPolicy,
    tls: Tls,
    retry: RetryPolicy,
    defaults: TransferDefaults,
    limits: PoolLimits,
    rdma: RdmaConfig,
    staging: StagingConfig,
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        Self {
            endpoint: None,
            region: "us-east-1".to_owned(),
            credentials: None,
            addressing: Addressing::Path,
            path: PathPolicy::Auto,
            tls: Tls::SystemRoots,
            retry: RetryPolicy::default(),
            defaults: TransferDefaults {
                get_part_bytes: None,
                put_part_bytes: 16 << 20,
                concurrency: 8,
            },
            limits: PoolLimits::default(),
            rdma: RdmaConfig::default(),
            staging: StagingConfig::default(),
        }
    }

    /// Where to: `http://host:port` or `https://host`.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// The region that signatures name; `us-east-1` unless said.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = region.into();
        self
    }

    /// Who signs; without credentials requests go unsigned.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// How buckets are named in requests; in the path unless said.
    #[must_use]
    pub fn addressing(mut self, addressing: Addressing) -> Self {
        self.addressing = addressing;
        self
    }

    /// Which path transfers may take.
    #[must_use]
    pub fn path(mut self, path: PathPolicy) -> Self {
        self.path = path;
        self
    }

    /// How RDMA adapters are used, where the path policy allows it.
    #[must_use]
    pub fn rdma(mut self, rdma: RdmaConfig) -> Self {
        self.rdma = rdma;
        self
    }

    /// Refuses keys to the caller's memory that are weaker than this: such transfers go over
    /// HTTP, or fail where RDMA is required.
    #[must_use]
    pub fn require_strength(mut self, strength: KeyStrength) -> Self {
        self.rdma.strength_min = strength;
        self
    }

    /// Host memory, pinned for each GPU that transfers name, through which their bodies pass;
    /// 128 MiB unless said. A body holds 1 MiB of it, and a little more for each copy under way;
    /// more bodies than that wait for one another.
    #[must_use]
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging.bytes = bytes;
        self
    }

    /// Whom an `https` endpoint is trusted by.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Bounds on retries.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Bytes of one ranged read of a large GET, at most 1 GiB; unless said, 32 MiB where adapters
    /// move them, and 8 MiB elsewhere.
    #[must_use]
    pub fn get_part_bytes(mut self, bytes: u64) -> Self {
        self.defaults.get_part_bytes = Some(bytes.clamp(1, GET_PART_BYTES_MAX));
        self
    }

    /// Bytes of one part of a large PUT; 16 MiB unless said. Larger objects are uploaded in
    /// parts, and an object of more than 10,000 parts in larger ones.
    #[must_use]
    pub fn put_part_bytes(mut self, bytes: u64) -> Self {
        self.defaults.put_part_bytes = bytes;
        self
    }

    /// Parts of one transfer in flight at a time; 8 unless said.
    #[must_use]
    pub fn concurrency(mut self, parts: usize) -> Self {
        self.defaults.concurrency = parts.max(1);
        self
    }

    /// Connections at a time, all operations together; further requests wait. 256 unless
    /// said.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.limits.connections_max = connections.max(1);
        self
    }

    /// How long a connection attempt may take; 5 s unless said.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.limits.connect_timeout = timeout;
        self
    }

    /// How long an answer or the next piece of a body may be waited for; 30 s unless said.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.limits.stall_timeout = timeout;
        self
    }

    /// The client. It connects with the first request.
    ///
    /// # Errors
    /// [`ConfigError`] says which value does not hold.
    pub fn build(self) -> Result<Client, ConfigError> {
        let endpoint = self.endpoint.ok_or(ConfigError::NoEndpoint)?;
        let endpoint = Endpoint::parse(&endpoint, self.addressing)?;
        match self.path {
            PathPolicy::Auto
            | PathPolicy::Require(
                TransferPath::Http
                | TransferPath::VerbsHost
                | TransferPath::VerbsGpu
                | TransferPath::IpcHost
                | TransferPath::IpcGpu,
            ) => {}
            PathPolicy::Require(path) => return Err(ConfigError::PathUnavailable(path)),
        }
        let part = self.defaults.put_part_bytes;
        if !(keyway_proto::unit::PART_BYTES_MIN..=keyway_proto::unit::PART_BYTES_MAX)
            .contains(&part)
        {
            return Err(ConfigError::PartBytes(part));
        }
        let rdma = self.rdma.resolved()?;
        let signer = self.credentials.map(|credentials| {
            let signer =
                Signer::new(credentials.access_key, credentials.secret, &self.region, "s3");
            match credentials.session_token {
                Some(token) => signer.with_session_token(token),
                None => signer,
            }
        });
        let tls = tls_config(endpoint.is_tls().then_some(&self.tls))?;
        let pool = Pool::new(tls, self.limits);
        let wire = Arc::new(Wire { endpoint, signer, pool });
        let rdma = Rdma::new(Arc::clone(&wire), self.path, rdma);
        Ok(Client::new(wire, self.retry, self.defaults, rdma, Staging::new(self.staging)))
    }
}

/// The TLS side of a client; without roots where the endpoint needs none.
fn tls_config(tls: Option<&Tls>) -> Result<rustls::ClientConfig, ConfigError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    Ok(match tls {
        None => config.with_root_certificates(rustls::RootCertStore::empty()),
        Some(Tls::SystemRoots) => config.with_native_roots().map_err(ConfigError::SystemRoots)?,
        Some(Tls::CaFile(path)) => config.with_root_certificates(roots(path)?),
    }
    .with_no_client_auth())
}

fn roots(path: &Path) -> Result<rustls::RootCertStore, ConfigError> {
    let unreadable = |source| ConfigError::CaFile { path: path.to_owned(), source };
    let mut store = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        store.add(certificate.map_err(unreadable)?)?;
    }
    if store.is_empty() {
        return Err(unreadable(rustls_pki_types::pem::Error::NoItemsFound));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_is_said() {
        let build = |builder: ClientBuilder| builder.build().map(|_| ());
        assert!(matches!(build(Client::builder()), Err(ConfigError::NoEndpoint)));
        for endpoint in ["", "host", "ftp://host", "http://", "http://host/path", "http://u@h"] {
            let refused = build(Client::builder().endpoint(endpoint));
            assert!(matches!(refused, Err(ConfigError::Endpoint(_))), "{endpoint}");
        }
        let local = || Client::builder().endpoint("http://127.0.0.1:1");
        assert!(matches!(build(local().put_part_bytes(1 << 20)), Err(ConfigError::PartBytes(_))));
        assert!(build(local().path(PathPolicy::Require(TransferPath::Http))).is_ok());
        let strange = local().rdma(RdmaConfig::default().service_level(16));
        assert!(matches!(build(strange), Err(ConfigError::Rdma(_))));
        let missing = Client::builder()
            .endpoint("https://127.0.0.1:1")
            .tls(Tls::CaFile("/nonexistent.pem".into()));
        assert!(matches!(build(missing), Err(ConfigError::CaFile { .. })));
    }
}
