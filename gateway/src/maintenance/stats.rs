//! Counters, since the start.

use std::sync::atomic::{AtomicU64, Ordering};

/// What maintenance did since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceStats {
    /// Chunks released by their nodes.
    pub chunks_released: u64,
    /// Their bytes.
    pub bytes_released: u64,
    /// Times that a chunk had to wait because its node did not answer.
    pub chunks_deferred: u64,
    /// Chunks looked at by the sweeper.
    pub chunks_swept: u64,
    /// Chunks that the sweeper found unowned and condemned.
    pub chunks_condemned: u64,
    /// Completed uploads forgotten.
    pub completions_forgotten: u64,
    /// Objects and parts that were visible first and durable later.
    pub settled: u64,
    /// Objects and parts that lost their bytes in between, and were taken back.
    pub lost: u64,
    /// Objects, other versions and delete markers that went by lifecycle rules.
    pub expired: u64,
    /// Uploads aborted by them.
    pub uploads_aborted: u64,
    /// Rounds that were cut short.
    pub failures: u64,
}

#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) chunks_released: Counter,
    pub(super) bytes_released: Counter,
    pub(super) chunks_deferred: Counter,
    pub(super) chunks_swept: Counter,
    pub(super) chunks_condemned: Counter,
    pub(super) completions_forgotten: Counter,
    pub(super) settled: Counter,
    pub(super) lost: Counter,
    pub(super) expired: Counter,
    pub(super) uploads_aborted: Counter,
    pub(super) failures: Counter,
}

impl Counters {
    pub(super) fn snapshot(&self) -> MaintenanceStats {
        MaintenanceStats {
            chunks_released: self.chunks_released.value(),
            bytes_released: self.bytes_released.value(),
            chunks_deferred: self.chunks_deferred.value(),
            chunks_swept: self.chunks_swept.value(),
            chunks_condemned: self.chunks_condemned.value(),
            completions_forgotten: self.completions_forgotten.value(),
            settled: self.settled.value(),
            lost: self.lost.value(),
            expired: self.expired.value(),
            uploads_aborted: self.uploads_aborted.value(),
            failures: self.failures.value(),
        }
    }
}
