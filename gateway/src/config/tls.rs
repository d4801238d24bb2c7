//! How the S3 endpoint is secured.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A TLS mode with what it needs.
// Variants are structs, empty or not: serde refuses unknown fields only in those.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", deny_unknown_fields)]
pub enum Tls {
    /// Plaintext on a loopback address, [`Generated`](Self::Generated) elsewhere.
    Auto {},
    /// A development certificate, under an authority kept in the data directory.
    Generated {},
    /// Certificate chain and key in PEM files.
    Files {
        /// Certificate chain, the server's own first.
        cert_file: PathBuf,
        /// Private key.
        key_file: PathBuf,
    },
    /// No TLS, whatever the address.
    Plaintext {},
}

impl Tls {
    /// The mode for a server at `address`: never [`Auto`](Self::Auto).
    pub fn resolve(&self, address: SocketAddr) -> Self {
        match self {
            Self::Auto {} if address.ip().is_loopback() => Self::Plaintext {},
            Self::Auto {} => Self::Generated {},
            chosen => chosen.clone(),
        }
    }
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_needs_a_word_or_loopback() {
        let at = |text: &str| text.parse().unwrap();
        assert_eq!(Tls::Auto {}.resolve(at("127.0.0.1:1")), Tls::Plaintext {});
        assert_eq!(Tls::Auto {}.resolve(at("[::1]:1")), Tls::Plaintext {});
        assert_eq!(Tls::Auto {}.resolve(at("0.0.0.0:1")), Tls::Generated {});
        assert_eq!(Tls::Auto {}.resolve(at("192.0.2.1:1")), Tls::Generated {});
        assert_eq!(Tls::Plaintext {}.resolve(at("0.0.0.0:1")), Tls::Plaintext {});
    }
}
