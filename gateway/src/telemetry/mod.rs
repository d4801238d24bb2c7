//! What the server tells of itself: logs, traces and metrics.
//!
//! The binary [`install`]s logs and traces for the whole process; every server has
//! [`Metrics`] of its own. Neither secrets, signatures, rkeys nor tokens come here: query
//! strings and authorization headers are never recorded.

mod export;
mod local;
mod metrics;
mod process;
mod table;
mod trace;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{LogFormat, Telemetry};
use export::Collector;

pub use metrics::Metrics;
pub use table::metrics_reference;
pub use trace::{TRACE_TARGET, inject};

pub(crate) use metrics::Completed;
pub(crate) use trace::{node_span, request_span};

/// What lines of the audit log are exported under.
pub const AUDIT_TARGET: &str = "keyway::audit";

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The OTLP endpoint is none.
    #[error("cannot export by OTLP")]
    Otlp(#[source] ExporterBuildError),
    /// The authorities that the OTLP endpoint's certificate may come from cannot be read.
    #[error("cannot read telemetry.otlp_authority_file {}", path.display())]
    Authority {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The Prometheus reader was refused.
    #[error("cannot set up the Prometheus reader")]
    Prometheus(#[source] OTelSdkError),
    /// The log filter does not parse.
    #[error("telemetry.log_filter is not a filter")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// Another part of the process has installed a subscriber.
    #[error("logging is set up already")]
    Installed(#[source] tracing_subscriber::util::TryInitError),
}

/// Logs and traces of the process; [`shutdown`](Self::shutdown) exports what is pending.
#[derive(Debug)]
pub struct Installed {
    tracer: Option<SdkTracerProvider>,
    logger: Option<SdkLoggerProvider>,
}

impl Installed {
    /// Exports what is pending. Blocks for as long as the exporters take.
    pub fn shutdown(&self) {
        let tracer = self.tracer.as_ref().map(SdkTracerProvider::shutdown);
        let logger = self.logger.as_ref().map(SdkLoggerProvider::shutdown);
        for error in [tracer, logger].into_iter().flatten().filter_map(Result::err) {
            tracing::warn!(%error, "the last telemetry could not be exported");
        }
    }
}

/// Sends the process's logs to standard error, and logs and traces to the OTLP endpoint where
/// one is configured. Needs a tokio runtime around it then.
///
/// # Errors
/// [`TelemetryError`] when the filter or endpoint is wrong, or a subscriber is installed.
pub fn install(config: &Telemetry) -> Result<Installed, TelemetryError> {
    // Spans name buckets and keys, which do not belong into the log; the audit has a file.
    let filter = format!("{},{TRACE_TARGET}=off,{AUDIT_TARGET}=off", config.log_filter);
    let filter = EnvFilter::try_new(filter).map_err(TelemetryError::Filter)?;
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none();
    let console = fmt::layer().with_writer(std::io::stderr).with_ansi(ansi);
    let console = match config.log_format {
        LogFormat::Pretty => console.with_filter(filter).boxed(),
        LogFormat::Json => console.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let (tracer, logger) = match Collector::of(config)? {
        None => (None, None),
        Some(collector) => (
            Some(tracer_provider(&collector, config.trace_ratio)?),
            Some(
                SdkLoggerProvider::builder()
                    .with_resource(resource())
                    .with_batch_exporter(collector.logs()?)
                    .build(),
            ),
        ),
    };
    let spans = tracer.as_ref().map(|provider| {
        opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("keyway"))
            .with_filter(Targets::new().with_target(TRACE_TARGET, LevelFilter::TRACE))
    });
    let events = logger.as_ref().map(|provider| {
        // The exporter's own transport logs too: exporting that would never end.
        let ours = Targets::new().with_target("keyway", LevelFilter::INFO);
        OpenTelemetryTracingBridge::new(provider).with_filter(ours)
    });
    tracing_subscriber::registry()
        .with(console)
        .with(spans)
        .with(events)
        .try_init()
        .map_err(TelemetryError::Installed)?;
    Ok(Installed { tracer, logger })
}

fn tracer_provider(
    collector: &Collector<'_>,
    ratio: f64,
) -> Result<SdkTracerProvider, TelemetryError> {
    // A client that sends a trace context has decided; otherwise the ratio does.
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)));
    Ok(SdkTracerProvider::builder()
        .with_resource(resource())
        .with_sampler(sampler)
        .with_batch_exporter(collector.spans()?)
        .build())
}

/// What all telemetry says of its source.
fn resource() -> Resource {
    Resource::builder()
        .with_service_name("keyway")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}
