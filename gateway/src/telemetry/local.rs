//! Instruments over what other parts of this process tell: the node, metadata, maintenance,
//! direct transfers.
//!
//! Counters are read when somebody reads the metrics, and cost nothing before. Durable commits
//! are recorded one by one: there are at most some thousands of them a second.

use keyway_dataplane::NodeStats;
use keyway_meta::{GroupCommit, MetaStats};
use keyway_proto::NodeId;
use keyway_proto::key::Relinquished;
use opentelemetry::KeyValue;
use opentelemetry::metrics::AsyncInstrument;

use super::metrics::{Metrics, histogram_f64, histogram_u64, node_attribute, saturating, up_down};
use super::table::{self, Definition};
use crate::limits::LimitStats;
use crate::maintenance::MaintenanceStats;
use crate::notify::{NotifyStats, TargetStats};
use crate::s3::DirectStats;

/// Counts, each with its reason.
type Reasons = Vec<(&'static str, u64)>;

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
        level(&table::TIER_CAPACITY, |stats| stats.tier.capacity_bytes);
        level(&table::TIER_USED, |stats| stats.tier.used_bytes);
        level(&table::TIER_CHUNKS, |stats| stats.tier.chunks);
        level(&table::TIER_DIRTY, |stats| stats.tier.dirty_bytes);
        level(&table::NODE_WAITING, |stats| stats.waiting);
        level(&table::SESSIONS, |stats| stats.direct.sessions);
        level(&table::RAILS, |stats| stats.direct.rails);
        let count = |metric: &'static Definition, pick: fn(&NodeStats) -> u64| {
            let read = read.clone();
            let attributes = [node_attribute(id)];
            self.counter(metric, move || read().as_ref().map(pick), attributes);
        };
        count(&table::NODE_FAILED, |stats| stats.failed);
        count(&table::STORE_DAMAGED, |stats| stats.store.damaged_blocks);
        count(&table::TIER_HITS, |stats| stats.tier.hits);
        count(&table::TIER_HIT_BYTES, |stats| stats.tier.hit_bytes);
        count(&table::TIER_MISSES, |stats| stats.tier.misses);
        count(&table::TIER_MISS_BYTES, |stats| stats.tier.miss_bytes);
        count(&table::TIER_FILLED, |stats| stats.tier.filled_bytes);
        count(&table::TIER_EVICTIONS, |stats| stats.tier.evictions);
        count(&table::TIER_EVICTED, |stats| stats.tier.evicted_bytes);
        count(&table::TIER_REFUSED, |stats| stats.tier.refused);
        count(&table::TIER_DAMAGED, |stats| stats.tier.damaged);
        count(&table::TIER_FLUSHED, |stats| stats.tier.flushed_bytes);
        count(&table::TIER_FLUSH_FAILURES, |stats| stats.tier.flush_failures);
        count(&table::TIER_LOST, |stats| stats.tier.lost);
        count(&table::GRANTS_REFUSED, |stats| stats.direct.refused);
        self.counters(&table::KEYS_ENDED, move |o| {
            let Some(direct) = read().map(|stats| stats.direct) else { return };
            for (fate, count) in [
                (Relinquished::Invalidated, direct.invalidated),
                (Relinquished::Quiet, direct.quiet),
                (Relinquished::Fenced, direct.fenced),
            ] {
                let fate = KeyValue::new(table::KEY, fate.as_str());
                o.observe(count, &[node_attribute(id), fate]);
            }
        });
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
        count(&table::SETTLED, |stats| stats.settled);
        count(&table::LOST, |stats| stats.lost);
        count(&table::EXPIRED, |stats| stats.expired);
        count(&table::UPLOADS_ABORTED, |stats| stats.uploads_aborted);
        count(&table::MAINTENANCE_FAILURES, |stats| stats.failures);
    }

    /// Tells of events on their way to targets, as long as `read` answers.
    pub fn observe_notify(
        &self,
        read: impl Fn() -> Option<NotifyStats> + Clone + Send + Sync + 'static,
    ) {
        let attribute = |of: &TargetStats| [KeyValue::new(table::TARGET, of.target.to_string())];
        let count = |metric: &'static Definition, pick: fn(&TargetStats) -> u64| {
            let read = read.clone();
            self.counters(metric, move |o| {
                for target in read().into_iter().flat_map(|stats| stats.targets) {
                    o.observe(pick(&target), &attribute(&target));
                }
            });
        };
        count(&table::NOTIFY_DELIVERED, |target| target.delivered);
        count(&table::NOTIFY_FAILED, |target| target.failed);
        count(&table::NOTIFY_DROPPED, |target| target.dropped);
        let level = |metric: &'static Definition, pick: fn(&TargetStats) -> u64| {
            let read = read.clone();
            let observe = move |o: &dyn AsyncInstrument<i64>| {
                for target in read().into_iter().flat_map(|stats| stats.targets) {
                    o.observe(saturating(pick(&target)), &attribute(&target));
                }
            };
            up_down(&self.meter(), metric).with_callback(observe).build();
        };
        level(&table::NOTIFY_BACKLOG, |target| target.backlog);
        level(&table::NOTIFY_OLDEST, |target| target.oldest_s);
        self.counter(&table::NOTIFY_STRAYS, move || Some(read()?.strays), []);
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

    /// Tells of limits, as long as `read` answers.
    pub fn observe_limits(
        &self,
        read: impl Fn() -> Option<LimitStats> + Clone + Send + Sync + 'static,
    ) {
        let by_reason = |metric: &'static Definition, pick: fn(LimitStats) -> Reasons| {
            let read = read.clone();
            self.counters(metric, move |o| {
                for (reason, count) in read().into_iter().flat_map(pick) {
                    o.observe(count, &[KeyValue::new(table::REASON, reason)]);
                }
            });
        };
        by_reason(&table::AUTH_FAILURES, |stats| stats.failures);
        by_reason(&table::LIMITED, |stats| stats.limited);
        let unverified = read.clone();
        self.counter(&table::AUTH_UNVERIFIED, move || Some(unverified()?.unverified), []);
        self.counter(&table::AUTH_PENALTIES, move || Some(read()?.penalties), []);
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

    /// Tells of the metadata store in this process, as long as `read` answers.
    pub fn observe_meta(
        &self,
        read: impl Fn() -> Option<MetaStats> + Clone + Send + Sync + 'static,
    ) {
        let count = |metric: &'static Definition, pick: fn(&MetaStats) -> u64| {
            let read = read.clone();
            self.counter(metric, move || read().as_ref().map(pick), []);
        };
        count(&table::META_READS, |stats| stats.reads);
        count(&table::META_SCANS, |stats| stats.scans);
        count(&table::META_SCANNED, |stats| stats.scanned_entries);
        let commits = &table::META_COMMITS;
        self.meter()
            .u64_observable_counter(commits.name)
            .with_unit(commits.unit)
            .with_description(commits.description)
            .with_callback(move |o| {
                let Some(stats) = read() else { return };
                for (outcome, count) in [
                    ("committed", stats.committed),
                    ("conflict", stats.conflicts),
                    ("full", stats.refused_full),
                    ("failed", stats.failed),
                ] {
                    o.observe(count, &[KeyValue::new(table::OUTCOME, outcome)]);
                }
            })
            .build();
    }

    /// What the metadata store's writer is to call after each durable commit.
    pub fn group_commits(&self) -> impl Fn(GroupCommit) + Send + use<> {
        let meter = self.meter();
        let size = histogram_u64(&meter, &table::META_GROUP_SIZE);
        let duration = histogram_f64(&meter, &table::META_GROUP_DURATION);
        move |group| {
            size.record(group.batches as u64, &[]);
            duration.record(group.duration.as_secs_f64(), &[]);
        }
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
