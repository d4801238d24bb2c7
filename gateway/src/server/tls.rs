//! TLS on the S3 listener: rustls with ring, certificates that can be exchanged while it
//! runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use crate::config::TlsVersion;

/// What clients may speak inside TLS, most liked first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// TLS 1.3 session tickets per connection: one lets a client resume; more are CPU time at
/// every handshake.
const TICKETS: usize = 1;

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The certificate file holds none.
    #[error("{} holds no certificate", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Key and certificate do not fit, or their kind is not supported.
    #[error("the certificate in {} cannot be used", path.display())]
    Unusable {
        /// The certificate file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The versions asked for are not available.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
}

/// Accepts TLS connections with the newest certificate from its files. Cheap to clone.
#[derive(Clone)]
pub struct TlsAcceptor {
    inner: tokio_rustls::TlsAcceptor,
    current: Arc<Current>,
}

impl TlsAcceptor {
    /// An acceptor with the certificate chain and key from these PEM files.
    ///
    /// # Errors
    /// [`TlsError`] when they cannot be read or do not belong together.
    pub fn new(certificate: &Path, key: &Path, minimum: TlsVersion) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let both = [&rustls::version::TLS13, &rustls::version::TLS12];
        let versions = match minimum {
            TlsVersion::V1_3 => &both[..1],
            TlsVersion::V1_2 => &both[..],
        };
        let current = Arc::new(Current::load(certificate, key)?);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(TlsError::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
        config.send_tls13_tickets = TICKETS;
        Ok(Self { inner: tokio_rustls::TlsAcceptor::from(Arc::new(config)), current })
    }

    /// Shakes hands.
    ///
    /// # Errors
    /// What the client did wrong, or that it went away.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.inner.accept(stream).await
    }

    /// Reads the files again; connections from now on get what they hold. Answers whether
    /// the files had changed.
    ///
    /// # Errors
    /// As [`new`](Self::new); the former certificate stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.current.reload()
    }
}

/// The certificate in use.
#[derive(Debug)]
struct Current {
    certificate: PathBuf,
    key: PathBuf,
    loaded: ArcSwap<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    certified: Arc<CertifiedKey>,
    /// When the files were written, as far as the file system tells.
    written: [Option<SystemTime>; 2],
}

impl Current {
    fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let loaded = load(certificate, key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            loaded: ArcSwap::from_pointee(loaded),
        })
    }

    fn reload(&self) -> Result<bool, TlsError> {
        let written = [written(&self.certificate), written(&self.key)];
        if written == self.loaded.load().written {
            return Ok(false);
        }
        self.loaded.store(Arc::new(load(&self.certificate, &self.key)?));
        Ok(true)
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.loaded.load().certified))
    }
}

fn load(certificate: &Path, key: &Path) -> Result<Loaded, TlsError> {
    // The times first: a file that changes while it is read will be read again.
    let written = [written(certificate), written(key)];
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(unreadable(certificate))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: certificate.to_owned() });
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(unreadable(key))?;
    let unusable = |source| TlsError::Unusable { path: certificate.to_owned(), source };
    let provider = rustls::crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, private, &provider).map_err(unusable)?;
    Ok(Loaded { certified: Arc::new(certified), written })
}

fn written(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
/// The version that a connection speaks; the server offers no others than these two.
pub(super) fn version<S>(stream: &TlsStream<S>) -> TlsVersion {
    match stream.get_ref().1.protocol_version() {
        Some(rustls::ProtocolVersion::TLSv1_2) => TlsVersion::V1_2,
        _ => TlsVersion::V1_3,
    }
}
