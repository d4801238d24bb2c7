//! OTLP exporters, by gRPC: in the clear, or over TLS where the endpoint is `https`.

use std::path::Path;

use opentelemetry_otlp::{
    LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithTonicConfig,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject};
use tonic::transport::{Certificate, ClientTlsConfig};

use super::TelemetryError;
use crate::config::Telemetry;

/// Where telemetry goes.
pub(super) struct Collector<'c> {
    endpoint: &'c str,
    tls: Option<ClientTlsConfig>,
}

/// Builds an exporter of the type given: all three have the same steps and no trait for them.
macro_rules! exporter {
    ($collector:ident, $exporter:ident) => {{
        let builder = $exporter::builder().with_tonic().with_endpoint($collector.endpoint);
        let builder = match &$collector.tls {
            Some(tls) => builder.with_tls_config(tls.clone()),
            None => builder,
        };
        builder.build().map_err(TelemetryError::Otlp)
    }};
}

impl<'c> Collector<'c> {
    /// The configured one, if there is one.
    pub(super) fn of(config: &'c Telemetry) -> Result<Option<Self>, TelemetryError> {
        let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
        // A URL's scheme is written in either case.
        let scheme = endpoint.split_once("://").map_or("", |(scheme, _)| scheme);
        let tls = match &config.otlp_authority_file {
            _ if !scheme.eq_ignore_ascii_case("https") => None,
            None => Some(ClientTlsConfig::new().with_native_roots()),
            Some(path) => Some(ClientTlsConfig::new().ca_certificate(authority(path)?)),
        };
        Ok(Some(Self { endpoint, tls }))
    }

    pub(super) fn metrics(&self) -> Result<MetricExporter, TelemetryError> {
        exporter!(self, MetricExporter)
    }

    pub(super) fn spans(&self) -> Result<SpanExporter, TelemetryError> {
        exporter!(self, SpanExporter)
    }

    pub(super) fn logs(&self) -> Result<LogExporter, TelemetryError> {
        exporter!(self, LogExporter)
    }
}

/// The certificates of a PEM file, of which there is at least one: with none, every export would
/// fail later, where nobody looks.
fn authority(path: &Path) -> Result<Certificate, TelemetryError> {
    let refused = |source| TelemetryError::Authority { path: path.to_owned(), source };
    let pem = std::fs::read(path).map_err(|error| refused(pem::Error::Io(error)))?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    if found.map_err(refused)?.is_empty() {
        return Err(refused(pem::Error::NoItemsFound));
    }
    Ok(Certificate::from_pem(pem))
}
