//! Mutual TLS under a private authority: both ends present a certificate of it, and nothing
//! else is trusted.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// Where one end finds its authority, its certificate and its key, all PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsPaths {
    /// The private authority's certificate.
    pub ca_path: PathBuf,
    /// This end's certificate, followed by intermediates if there are any.
    pub cert_path: PathBuf,
    /// This end's private key.
    pub key_path: PathBuf,
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl TlsPaths {
    /// The server's side: peers without a certificate of the authority are refused.
    ///
    /// # Errors
    /// [`TlsError::Read`].
    pub fn server(&self) -> Result<ServerTlsConfig, TlsError> {
        Ok(ServerTlsConfig::new().identity(self.identity()?).client_ca_root(self.authority()?))
    }

    /// The client's side: the peer must present a certificate of the authority for
    /// `server_name`.
    ///
    /// # Errors
    /// [`TlsError::Read`].
    pub fn client(&self, server_name: &str) -> Result<ClientTlsConfig, TlsError> {
        Ok(ClientTlsConfig::new()
            .identity(self.identity()?)
            .ca_certificate(self.authority()?)
            .domain_name(server_name))
    }

    fn identity(&self) -> Result<Identity, TlsError> {
        Ok(Identity::from_pem(read(&self.cert_path)?, read(&self.key_path)?))
    }

    fn authority(&self) -> Result<Certificate, TlsError> {
        Ok(Certificate::from_pem(read(&self.ca_path)?))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}
