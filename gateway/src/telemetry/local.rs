//! Instruments over counters that others keep: the node in this process, maintenance, and
//! direct transfers.
//!
//! They are read when somebody reads the metrics, and cost nothing before.

use keyway_dataplane::NodeStats;
use keyway_proto::NodeId;
use opentelemetry::KeyValue;
use opentelemetry::metrics::AsyncInstrument;

use super::metrics::{Metrics, node_attribute, saturating, up_down};
use super::table::{self, Definition};
use crate::maintenance::MaintenanceStats;
use crate::s3::DirectStats;

impl Metrics {
    /// Tells of the node in this process, as long as `read` answers.
    pub fn observe_node(
        &self,
        id: NodeId,
        read: impl Fn() -> Option<NodeStats> + Clone + Send + Sync + 'static,
    ) {
        let meter = self.meter();
        let level = |metric: &'static Definition, pick: fn(&NodeStats) -> u64| {
            let read = read.clone();
            let observe = move |o: &dyn opentelemetry::metrics::AsyncInstrument<i64>| {
                if let Some(stats) = read() {
                    o.observe(saturating(pick(&stats)), &[node_attribute(id)]);
                }
            };
            up_down(&meter, metric).with_callback(observe).build();
        };
        level(&table::POOL_CAPACITY, |stats| stats.pool.capacity_bytes);
        level(&table::POOL_LEASED, |stats| stats.pool.leased_bytes);
        level(&table::NODE_WAITING, |stats| stats.waiting);
        let count = |metric: &'static Definition, pick: fn(&NodeStats) -> u64| {
            let read = read.clone();
            let attributes = [node_attribute(id)];
            self.counter(metric, move || read().as_ref().map(pick), attributes);
        };
        count(&table::NODE_FAILED, |stats| stats.failed);
        count(&table::STORE_DAMAGED, |stats| stats.store.damaged_blocks);
    }

    /// Tells of maintenance, as long as `read` answers.
    pub fn observe_maintenance(
        &self,
        read: impl Fn() -> Option<MaintenanceStats> + Clone + Send + Sync + 'static,
    ) {
        let count = |metric: &'static Definition, pick: fn(&MaintenanceStats) -> u64| {
            let read = read.clone();
            self.counter(metric, move || read().as_ref().map(pick), []);
        };
        count(&table::CHUNKS_RELEASED, |stats| stats.chunks_released);
        count(&table::BYTES_RELEASED, |stats| stats.bytes_released);
        count(&table::CHUNKS_DEFERRED, |stats| stats.chunks_deferred);
        count(&table::CHUNKS_SWEPT, |stats| stats.chunks_swept);
        count(&table::CHUNKS_CONDEMNED, |stats| stats.chunks_condemned);
        count(&table::UPLOADS_FORGOTTEN, |stats| stats.completions_forgotten);
        count(&table::MAINTENANCE_FAILURES, |stats| stats.failures);
    }

    /// Tells of direct transfers, as long as `read` answers.
    pub fn observe_direct(
        &self,
        read: impl Fn() -> Option<DirectStats> + Clone + Send + Sync + 'static,
    ) {
        let transfers = read.clone();
        self.counters(&table::DIRECT_TRANSFERS, move |o| {
            for (path, key, count) in transfers().into_iter().flat_map(|stats| stats.transfers) {
                o.observe(
                    count,
                    &[KeyValue::new(table::PATH, path), KeyValue::new(table::KEY, key)],
                );
            }
        });
        self.counters(&table::DIRECT_DECLINED, move |o| {
            for (reason, count) in read().into_iter().flat_map(|stats| stats.declined) {
                o.observe(count, &[KeyValue::new(table::REASON, reason)]);
            }
        });
    }

    fn counters(
        &self,
        metric: &'static Definition,
        observe: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static,
    ) {
        self.meter()
            .u64_observable_counter(metric.name)
            .with_unit(metric.unit)
            .with_description(metric.description)
            .with_callback(observe)
            .build();
    }

    fn counter<const N: usize>(
        &self,
        metric: &'static Definition,
        read: impl Fn() -> Option<u64> + Send + Sync + 'static,
        attributes: [KeyValue; N],
    ) {
        self.counters(metric, move |o| {
            if let Some(value) = read() {
                o.observe(value, &attributes);
            }
        });
    }
}
