//! The AWS SDK for Rust, pointed at a server of the harness.

use anyhow::Result;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Credentials, Region};
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};

use crate::server::{Server, Transport};

/// A client with the SDK's default checksums and retries, trusting the server's certificate.
///
/// # Errors
/// When the certificate cannot be read.
pub fn client(server: &Server, transport: Transport) -> Result<Client> {
    let mut http =
        aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
    if transport == Transport::Tls {
        let certificate = std::fs::read(server.certificate_file())?;
        let trust = TrustStore::empty().with_pem_certificate(certificate);
        http = http.tls_context(TlsContext::builder().with_trust_store(trust).build()?);
    }
    let credentials = server.credentials();
    let config = aws_sdk_s3::Config::builder()
        .behavior_version_latest()
        .endpoint_url(server.url())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new(
            &credentials.access_key,
            &credentials.secret_key,
            None,
            None,
            "harness",
        ))
        .force_path_style(true)
        .http_client(http.build_https())
        .build();
    Ok(Client::from_conf(config))
}
