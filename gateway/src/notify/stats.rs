//! Counters, since the start, and what waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of one target's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStats {
    /// The target's name.
    pub target: Arc<str>,
    /// Events that it acknowledged.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Events that were given up, since too many waited.
    pub dropped: u64,
    /// Events that wait.
    pub backlog: u64,
    /// How long the oldest of them has waited.
    pub oldest_s: u64,
}

/// What became of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotifyStats {
    /// By targets.
    pub targets: Vec<TargetStats>,
    /// Events for targets that are not there any more, or not for the bucket's tenant.
    pub strays: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) backlog: AtomicU64,
    pub(super) oldest_s: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self, target: Arc<str>) -> TargetStats {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TargetStats {
            target,
            delivered: value(&self.delivered),
            failed: value(&self.failed),
            dropped: value(&self.dropped),
            backlog: value(&self.backlog),
            oldest_s: value(&self.oldest_s),
        }
    }
}
