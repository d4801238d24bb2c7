//! Why bytes travelled over HTTP although RDMA was allowed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::phases::{Phases, TransferSums};

/// Why a request's bytes travelled over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fallback {
    /// libibverbs is not installed.
    #[error("libibverbs is missing")]
    NoLibrary,
    /// The machine has no RDMA device.
    #[error("there is no RDMA device")]
    NoDevice,
    /// No wanted port is active and has an address.
    #[error("no RDMA port can be used")]
    NoPort,
    /// No port passed its self-test.
    #[error("no RDMA port passed its self-test")]
    SelfTest,
    /// The service offers no rails.
    #[error("the service offers no RDMA")]
    NoRails,
    /// No rail is on a network of ours.
    #[error("no rail of the service can be reached")]
    NoPair,
    /// Keys would be weaker than required.
    #[error("keys would be weaker than required")]
    TooWeak,
    /// All rails rest, for they failed a moment ago.
    #[error("all rails failed a moment ago")]
    Paused,
    /// The service opened no session.
    #[error("no session was opened")]
    NoSession,
    /// The memory could not be registered.
    #[error("the memory cannot be registered")]
    Registration,
    /// The service declined.
    #[error("the service declined")]
    Declined,
    /// The bytes are on a node that is not on a rail of ours.
    #[error("the bytes are on another node")]
    OtherNode,
    /// The service took no notice of the token.
    #[error("the service took no notice of the token")]
    Ignored,
    /// Transfers by RDMA failed.
    #[error("transfers by RDMA failed")]
    Failed,
    /// One window, or one bounce buffer of a GPU's, does not hold so many bytes.
    #[error("more bytes than one window or bounce buffer holds")]
    TooLarge,
    /// No node of this host takes local clients.
    #[error("no node of this host takes local clients")]
    NoDoor,
    /// The memory is of a kind that no other process can map.
    #[error("the memory cannot be shared with another process")]
    NotShared,
    /// So few bytes reach a GPU sooner through this process's own copy engine.
    #[error("few bytes are quicker over HTTP")]
    Small,
}

impl Fallback {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::NoLibrary,
        Self::NoDevice,
        Self::NoPort,
        Self::SelfTest,
        Self::NoRails,
        Self::NoPair,
        Self::TooWeak,
        Self::Paused,
        Self::NoSession,
        Self::Registration,
        Self::Declined,
        Self::OtherNode,
        Self::Ignored,
        Self::Failed,
        Self::TooLarge,
        Self::NoDoor,
        Self::NotShared,
        Self::Small,
    ];
}

/// Requests whose bytes travelled over HTTP, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks([u32; Fallback::ALL.len()]);

impl Fallbacks {
    /// Requests in all.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// Requests for this reason.
    pub fn count(&self, reason: Fallback) -> u32 {
        self.0[reason as usize]
    }

    /// The reasons that occurred, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Fallback, u32)> {
        Fallback::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    pub(crate) fn add(&mut self, reason: Fallback) {
        self.0[reason as usize] += 1;
    }

    /// Adds another transfer's.
    pub fn merge(&mut self, other: &Self) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine += other;
        }
    }
}

impl fmt::Display for Fallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (reason, count)) in self.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{reason} ({count})")?;
        }
        Ok(())
    }
}

/// Counters of a client.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) transfers: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) sessions: AtomicU64,
    pub(super) phases: TransferSums,
    fallbacks: [AtomicU64; Fallback::ALL.len()],
}

/// What a client did by RDMA since it was built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaStats {
    /// Transfers that moved their bytes.
    pub transfers: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Transfers that failed, and were made again or given up.
    pub failures: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Where the transfers' time went.
    pub phases: Phases,
    /// Requests that travelled over HTTP instead, by reason.
    pub fallbacks: Vec<(Fallback, u64)>,
}

impl Counters {
    pub(super) fn fell_back(&self, reason: Fallback) {
        self.fallbacks[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> RdmaStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let reasons = Fallback::ALL.into_iter().zip(self.fallbacks.iter().map(count));
        RdmaStats {
            transfers: count(&self.transfers),
            bytes: count(&self.bytes),
            failures: count(&self.failures),
            sessions: count(&self.sessions),
            phases: self.phases.read(),
            fallbacks: reasons.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_counted_under_its_own_name() {
        let (mut fallbacks, counters) = (Fallbacks::default(), Counters::default());
        for reason in Fallback::ALL {
            fallbacks.add(reason);
            counters.fell_back(reason);
        }
        fallbacks.add(Fallback::Paused);
        let twice = |(reason, count)| (count == 2) == (reason == Fallback::Paused);
        assert!(fallbacks.iter().all(twice));
        assert_eq!(fallbacks.total(), Fallback::ALL.len() as u32 + 1);
        assert_eq!(counters.stats().fallbacks.len(), Fallback::ALL.len());
        let mut both = fallbacks;
        both.merge(&fallbacks);
        assert_eq!(both.count(Fallback::NoDevice), 2);
        let one = Fallbacks::default();
        assert!(one.is_empty() && one.to_string().is_empty());
    }
}
