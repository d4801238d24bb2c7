//! OTLP exporters, by gRPC.

use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, SpanExporter, WithExportConfig,
};

use super::TelemetryError;

fn failed(source: ExporterBuildError) -> TelemetryError {
    TelemetryError::Otlp(source)
}

pub(super) fn metrics(endpoint: &str) -> Result<MetricExporter, TelemetryError> {
    MetricExporter::builder().with_tonic().with_endpoint(endpoint).build().map_err(failed)
}

pub(super) fn spans(endpoint: &str) -> Result<SpanExporter, TelemetryError> {
    SpanExporter::builder().with_tonic().with_endpoint(endpoint).build().map_err(failed)
}

pub(super) fn logs(endpoint: &str) -> Result<LogExporter, TelemetryError> {
    LogExporter::builder().with_tonic().with_endpoint(endpoint).build().map_err(failed)
}
