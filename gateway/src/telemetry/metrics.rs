//! The instruments, and how a request is recorded.
//!
//! What changes with every request is counted in atomics and observed when somebody reads;
//! only its three histograms are recorded as they happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter, MeterProvider};
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use parking_lot::RwLock;
use prometheus::{Encoder, TextEncoder};

use super::export::Collector;
use super::process;
use super::table::{self, Definition};
use super::{TelemetryError, resource};
use crate::config::Telemetry;
use keyway_dataplane::NodeStatus;
use keyway_proto::NodeId;

/// The server's instruments and their readers.
pub struct Metrics {
    provider: SdkMeterProvider,
    registry: prometheus::Registry,
    counts: Arc<Counts>,
    traces: bool,
    request_duration: Histogram<f64>,
    request_body: Histogram<u64>,
    response_body: Histogram<u64>,
}

/// What is counted here and observed by the readers.
#[derive(Default)]
struct Counts {
    active_requests: AtomicI64,
    connections: AtomicI64,
    connections_sent_away: AtomicU64,
    panics: AtomicU64,
    nodes: RwLock<Vec<(NodeId, Option<NodeStatus>)>>,
}

/// A request that ended.
pub(crate) struct Completed<'a> {
    pub(crate) method: &'a Method,
    pub(crate) operation: Option<&'static str>,
    /// None when the client went away before there was one.
    pub(crate) status: Option<u16>,
    /// Whether the response's body broke off.
    pub(crate) broken: bool,
    pub(crate) duration: Duration,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

impl Metrics {
    /// Sets up the instruments with the Prometheus reader, and the OTLP exporter where an
    /// endpoint is configured. Needs a tokio runtime around it then.
    ///
    /// # Errors
    /// [`TelemetryError`] when the endpoint is none.
    pub fn new(config: &Telemetry) -> Result<Self, TelemetryError> {
        let registry = prometheus::Registry::new();
        let prometheus = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .build()
            .map_err(TelemetryError::Prometheus)?;
        let mut builder =
            SdkMeterProvider::builder().with_resource(resource()).with_reader(prometheus);
        if let Some(collector) = Collector::of(config)? {
            let exporter = collector.metrics()?;
            let interval = Duration::from_millis(config.metrics_interval_ms);
            let reader = PeriodicReader::builder(exporter).with_interval(interval).build();
            builder = builder.with_reader(reader);
        }
        let provider = builder.build();
        let meter = provider.meter("keyway");
        let counts = Arc::new(Counts::default());
        observe(&meter, &counts);
        Ok(Self {
            request_duration: histogram_f64(&meter, &table::REQUEST_DURATION),
            request_body: histogram_u64(&meter, &table::REQUEST_BODY),
            response_body: histogram_u64(&meter, &table::RESPONSE_BODY),
            traces: config.otlp_endpoint.is_some(),
            provider,
            registry,
            counts,
        })
    }

    /// All metrics in Prometheus' text form.
    pub fn prometheus_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::warn!(%error, "cannot encode metrics");
        }
        text
    }

    /// Keeps what the nodes last said of themselves; `None` for those that did not answer.
    pub fn set_nodes(&self, nodes: Vec<(NodeId, Option<NodeStatus>)>) {
        *self.counts.nodes.write() = nodes;
    }

    /// Exports what is pending and ends the readers.
    ///
    /// # Errors
    /// When the last export fails.
    pub fn shutdown(&self) -> Result<(), OTelSdkError> {
        self.provider.shutdown()
    }

    /// Where instruments of this server are made.
    pub(super) fn meter(&self) -> Meter {
        self.provider.meter("keyway")
    }

    /// Whether requests get spans.
    pub(super) fn traces(&self) -> bool {
        self.traces
    }

    /// Counts a connection for as long as the answer lives.
    pub(crate) fn connection(self: &Arc<Self>) -> ConnectionCount {
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionCount(Arc::clone(self))
    }

    pub(crate) fn connections_sent_away(&self, count: usize) {
        self.counts.connections_sent_away.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn request_begins(&self) {
        self.counts.active_requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn request_ends(&self, request: &Completed<'_>) {
        self.counts.active_requests.fetch_sub(1, Ordering::Relaxed);
        let mut attributes = [
            KeyValue::new(table::METHOD, method_name(request.method)),
            KeyValue::new(table::OPERATION, request.operation.unwrap_or("unknown")),
            KeyValue::new(table::STATUS, request.status.map_or(0, i64::from)),
            KeyValue::new(table::ERROR, ""),
        ];
        // The last one stands only where there is something to say.
        let told = match (request.status, request.broken) {
            (Some(_), false) => &attributes[..3],
            (status, _) => {
                let error = if status.is_none() { "cancelled" } else { "broken" };
                attributes[3] = KeyValue::new(table::ERROR, error);
                &attributes[..]
            }
        };
        self.request_duration.record(request.duration.as_secs_f64(), told);
        self.request_body.record(request.received_bytes, told);
        self.response_body.record(request.sent_bytes, told);
    }

    pub(crate) fn panic(&self) {
        self.counts.panics.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a connection until it is dropped.
pub(crate) struct ConnectionCount(Arc<Metrics>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Methods are bounded: a client must not be able to make attributes.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}

pub(super) fn histogram_f64(meter: &Meter, metric: &'static Definition) -> Histogram<f64> {
    meter
        .f64_histogram(metric.name)
        .with_unit(metric.unit)
        .with_description(metric.description)
        .with_boundaries(metric.bounds.to_vec())
        .build()
}

pub(super) fn histogram_u64(meter: &Meter, metric: &'static Definition) -> Histogram<u64> {
    meter
        .u64_histogram(metric.name)
        .with_unit(metric.unit)
        .with_description(metric.description)
        .with_boundaries(metric.bounds.to_vec())
        .build()
}

/// Registers the instruments that are read only when somebody asks.
fn observe(meter: &Meter, counts: &Arc<Counts>) {
    let level = |metric: &'static Definition, read: fn(&Counts) -> i64| {
        let counts = Arc::clone(counts);
        up_down(meter, metric).with_callback(move |o| o.observe(read(&counts), &[])).build();
    };
    level(&table::ACTIVE_REQUESTS, |counts| counts.active_requests.load(Ordering::Relaxed));
    level(&table::CONNECTIONS, |counts| counts.connections.load(Ordering::Relaxed));
    level(&table::MEMORY, |_| process::resident_bytes().map_or(0, saturating));
    level(&table::DESCRIPTORS, |_| process::descriptors().map_or(0, saturating));

    let node = |metric: &'static Definition, read: fn(&NodeStatus) -> u64| {
        let counts = Arc::clone(counts);
        let observe = move |o: &dyn opentelemetry::metrics::AsyncInstrument<i64>| {
            for (id, status) in counts.nodes.read().iter() {
                if let Some(status) = status {
                    o.observe(saturating(read(status)), &[node_attribute(*id)]);
                }
            }
        };
        up_down(meter, metric).with_callback(observe).build();
    };
    node(&table::NODE_TRANSFERS, |status| status.transfers);
    node(&table::STORE_CAPACITY, |status| status.capacity_bytes);
    node(&table::STORE_FREE, |status| status.free_bytes);
    node(&table::STORE_CHUNKS, |status| status.chunks);

    let up = Arc::clone(counts);
    up_down(meter, &table::NODE_UP)
        .with_callback(move |o| {
            for (id, status) in up.nodes.read().iter() {
                o.observe(i64::from(status.is_some()), &[node_attribute(*id)]);
            }
        })
        .build();

    let count = |metric: &'static Definition, read: fn(&Counts) -> &AtomicU64| {
        let counts = Arc::clone(counts);
        meter
            .u64_observable_counter(metric.name)
            .with_unit(metric.unit)
            .with_description(metric.description)
            .with_callback(move |o| o.observe(read(&counts).load(Ordering::Relaxed), &[]))
            .build();
    };
    count(&table::PANICS, |counts| &counts.panics);
    count(&table::CONNECTIONS_SENT_AWAY, |counts| &counts.connections_sent_away);
    meter
        .f64_observable_counter(table::CPU_TIME.name)
        .with_unit(table::CPU_TIME.unit)
        .with_description(table::CPU_TIME.description)
        .with_callback(|o| o.observe(process::cpu_seconds(), &[]))
        .build();
}

pub(super) fn up_down<'a>(
    meter: &'a Meter,
    metric: &'static Definition,
) -> opentelemetry::metrics::AsyncInstrumentBuilder<
    'a,
    opentelemetry::metrics::ObservableUpDownCounter<i64>,
    i64,
> {
    meter
        .i64_observable_up_down_counter(metric.name)
        .with_unit(metric.unit)
        .with_description(metric.description)
}

pub(super) fn node_attribute(id: NodeId) -> KeyValue {
    KeyValue::new(table::NODE, i64::from(id.0))
}

pub(super) fn saturating(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use keyway_dataplane::NodeStats;
    use keyway_meta::{GroupCommit, MetaStats};

    use super::*;
    use crate::limits::Limiter;
    use crate::maintenance::MaintenanceStats;
    use crate::notify::{NotifyStats, TargetStats};
    use crate::s3::DirectCounts;

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.prometheus_text()).unwrap()
    }

    #[test]
    fn a_request_shows_in_prometheus_form() {
        let metrics = Arc::new(Metrics::new(&Telemetry::default()).unwrap());
        let connection = metrics.connection();
        metrics.request_begins();
        let shown = text(&metrics);
        let line = |start: &str| shown.lines().find(|l| l.starts_with(start)).map(str::to_owned);
        assert!(line("http_server_active_requests{").unwrap().ends_with(" 1"), "{shown}");
        assert!(line("keyway_server_connections{").unwrap().ends_with(" 1"));
        metrics.request_ends(&Completed {
            method: &Method::GET,
            operation: Some("GetObject"),
            status: Some(206),
            broken: false,
            duration: Duration::from_millis(2),
            received_bytes: 0,
            sent_bytes: 4096,
        });
        drop(connection);
        let shown = text(&metrics);
        let count = shown
            .lines()
            .find(|l| l.starts_with("http_server_response_body_size_bytes_sum{"))
            .unwrap_or_else(|| panic!("{shown}"));
        assert!(count.contains("keyway_operation=\"GetObject\""), "{count}");
        assert!(count.contains("http_response_status_code=\"206\""), "{count}");
        assert!(count.ends_with(" 4096"), "{count}");
        assert!(shown.contains("process_memory_usage_bytes"));
        assert!(shown.contains("process_cpu_time_seconds_total"));
    }

    /// A server's metrics, with something in each.
    fn filled() -> Metrics {
        let metrics = Metrics::new(&Telemetry::default()).unwrap();
        metrics.request_ends(&Completed {
            method: &Method::GET,
            operation: None,
            status: None,
            broken: false,
            duration: Duration::ZERO,
            received_bytes: 0,
            sent_bytes: 0,
        });
        let status = NodeStatus {
            node: NodeId(1),
            store: "memory".into(),
            access: String::new(),
            capacity_bytes: 10,
            free_bytes: 5,
            chunks: 1,
            transfers: 0,
        };
        metrics.set_nodes(vec![(NodeId(1), Some(status))]);
        metrics.observe_node(NodeId(1), || Some(NodeStats::default()));
        metrics.observe_maintenance(|| Some(MaintenanceStats::default()));
        metrics.observe_direct(|| Some(DirectCounts::default().stats()));
        let target = TargetStats {
            target: "hook".into(),
            delivered: 1,
            failed: 0,
            dropped: 0,
            backlog: 2,
            oldest_s: 3,
        };
        metrics
            .observe_notify(move || Some(NotifyStats { targets: vec![target.clone()], strays: 0 }));
        metrics.observe_limits(|| Some(Limiter::default().stats()));
        metrics.observe_meta(|| Some(MetaStats { conflicts: 3, ..MetaStats::default() }));
        metrics.group_commits()(GroupCommit { batches: 5, duration: Duration::from_millis(1) });
        metrics
    }

    #[test]
    fn every_metric_of_the_table_exists_under_its_name() {
        let shown = text(&filled());
        for metric in table::ALL {
            let name = metric.name.replace('.', "_");
            assert!(shown.contains(&format!("# TYPE {name}")), "{name} is not in\n{shown}");
        }
        let value = |start: &str, attribute: &str| {
            let line = |line: &&str| line.starts_with(start) && line.contains(attribute);
            shown.lines().find(line).and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
        };
        let conflicts = value("keyway_meta_commits_total{", "keyway_outcome=\"conflict\"");
        assert_eq!(conflicts.as_deref(), Some("3"), "{shown}");
        let batches = value("keyway_meta_group_size_sum{", "");
        assert_eq!(batches.as_deref(), Some("5"), "{shown}");
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_exist() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/grafana/keyway.json");
        let dashboard: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let shown = text(&filled());
        let exists = |name: &str| shown.contains(&format!("# TYPE {name} "));
        let mut asked = 0;
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let question = target["expr"].as_str().unwrap();
                // A metric's name stands before its braces; a histogram has three series.
                for (brace, _) in question.match_indices('{') {
                    let mut words =
                        question[..brace].rsplit(|c: char| c != '_' && !c.is_alphanumeric());
                    let name = words.next().unwrap();
                    let series = ["_bucket", "_sum", "_count"];
                    let whole = series.iter().find_map(|end| name.strip_suffix(end));
                    assert!(exists(name) || whole.is_some_and(exists), "{name} in {question}");
                    asked += 1;
                }
            }
        }
        assert!(asked > 30, "only {asked} metrics found in the dashboard");
    }
}
