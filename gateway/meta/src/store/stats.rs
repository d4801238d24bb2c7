//! What an engine counts of itself: read when somebody asks, and a few relaxed additions before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::MetaError;

/// Counters of an engine since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Keys read, one by one.
    pub reads: u64,
    /// Ranges scanned.
    pub scans: u64,
    /// Entries that the scans answered.
    pub scanned_entries: u64,
    /// Batches applied.
    pub committed: u64,
    /// Batches whose preconditions did not hold.
    pub conflicts: u64,
    /// Batches refused for want of space, the device's or the tenant's.
    pub refused_full: u64,
    /// Batches that the engine failed on.
    pub failed: u64,
}

/// One commit, shared by all batches that waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCommit {
    /// Batches applied by it.
    pub batches: usize,
    /// From the group's first check to its durability.
    pub duration: Duration,
}

/// The counters behind [`MetaStats`].
#[derive(Default)]
pub(super) struct Counters {
    reads: AtomicU64,
    scans: AtomicU64,
    scanned_entries: AtomicU64,
    committed: AtomicU64,
    conflicts: AtomicU64,
    refused_full: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn scanned(&self, entries: usize) {
        self.scans.fetch_add(1, Ordering::Relaxed);
        self.scanned_entries.fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Counts the outcome of one batch.
    pub(super) fn batch(&self, outcome: &Result<(), MetaError>) {
        let counter = match outcome {
            Ok(()) => &self.committed,
            Err(MetaError::Conflict) => &self.conflicts,
            Err(MetaError::Full | MetaError::Exceeded) => &self.refused_full,
            Err(MetaError::Engine(_) | MetaError::Damaged(_)) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> MetaStats {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MetaStats {
            reads: value(&self.reads),
            scans: value(&self.scans),
            scanned_entries: value(&self.scanned_entries),
            committed: value(&self.committed),
            conflicts: value(&self.conflicts),
            refused_full: value(&self.refused_full),
            failed: value(&self.failed),
        }
    }
}
