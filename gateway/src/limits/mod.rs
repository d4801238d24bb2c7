//! Limits: what strangers may try, and what tenants and users may take.
//!
//! | what | where |
//! |---|---|
//! | a rate, and what was taken of it | [`meter`] |
//! | who failed to say who they are, and how often | [`strangers`] |
//! | requests, bytes, sessions and keys of tenants and users | [`usage`] |
//! | bodies that are slowed down | [`pace`] |
//!
//! All of it is this process's: after a restart everybody begins anew. What is stored is bounded
//! elsewhere, with the metadata (`gateway/meta/src/catalog/usage.rs`).
//!
//! What may not enter: HTTP, S3's words, metadata.
//!
//! Cost for a caller without limits: a few loads. With them: a look-up in a map and one
//! compare-and-swap for each rate.

mod meter;
mod pace;
mod strangers;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keyway_auth::directory::Limits;
use keyway_proto::TenantId;

use crate::config::Auth;
use strangers::Strangers;
use usage::Accounts;

pub(crate) use pace::Pace;
pub(crate) use strangers::{Attempt, CODES, Penalty, WORDLESS};
pub(crate) use usage::{Holder, Opening, Usage};

/// What is limited, of tenants and users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Requests in a second.
    Requests,
    /// Bytes in a second; only direct transfers are refused for it.
    Bytes,
    /// Keys of direct transfers in flight.
    Keys,
    /// Sessions for direct transfers.
    Sessions,
}

impl Limited {
    const ALL: [Self; 4] = [Self::Requests, Self::Bytes, Self::Keys, Self::Sessions];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Bytes => "bytes",
            Self::Keys => "keys",
            Self::Sessions => "sessions",
        }
    }
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limit of {} is reached", .what.as_str())]
pub(crate) struct Exceeded {
    /// Which.
    pub(crate) what: Limited,
    /// When there may be room again.
    pub(crate) retry_after: Duration,
}

/// Keeps all limits of this process.
pub struct Limiter {
    since: Instant,
    strangers: Strangers,
    accounts: Accounts,
    counts: Arc<Counts>,
}

/// What was refused.
#[derive(Default)]
struct Counts {
    limited: [AtomicU64; Limited::ALL.len()],
}

impl Counts {
    fn count(&self, what: Limited) {
        self.limited[what as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What was counted, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitStats {
    /// Attempts that failed, by S3's code.
    pub failures: Vec<(&'static str, u64)>,
    /// Attempts that were refused unverified.
    pub unverified: u64,
    /// Times that an address or a key came under a penalty.
    pub penalties: u64,
    /// Requests over a limit of their tenant or user, by what is limited.
    pub limited: Vec<(&'static str, u64)>,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new(&Auth::default())
    }
}

impl Limiter {
    /// With these settings for strangers.
    pub fn new(config: &Auth) -> Self {
        Self {
            since: Instant::now(),
            strangers: Strangers::new(config),
            accounts: Accounts::default(),
            counts: Arc::default(),
        }
    }

    /// Whether an attempt to say who one is may be verified; `is_key` tells whether its key is
    /// one of ours.
    ///
    /// # Errors
    /// For how long it is not.
    pub(crate) fn may_try(
        &self,
        attempt: &Attempt<'_>,
        is_key: impl FnOnce() -> bool,
    ) -> Result<(), Duration> {
        self.strangers.may_try(attempt, is_key, usage::elapsed_ns(self.since))
    }

    /// An attempt failed, with this code of S3's; gives the penalties that begin with it.
    pub(crate) fn failed(&self, attempt: &Attempt<'_>, code: &str) -> Vec<Penalty> {
        self.strangers.failed(attempt, code, usage::elapsed_ns(self.since))
    }

    /// What somebody of a tenant may take: within the tenant's limits and, where it is a user,
    /// within its own.
    pub(crate) fn usage(
        &self,
        tenant: TenantId,
        of_tenant: Limits,
        user: Option<(&Arc<str>, Limits)>,
    ) -> Usage {
        let user = user.map(|(name, limits)| {
            let user = Some(Arc::clone(name));
            (Holder { tenant, user }, limits)
        });
        let holders = user.into_iter().chain([(Holder { tenant, user: None }, of_tenant)]);
        self.accounts.usage(holders, self.since, &self.counts)
    }

    /// What was counted.
    pub fn stats(&self) -> LimitStats {
        let limited = Limited::ALL.iter().zip(&self.counts.limited);
        LimitStats {
            limited: limited
                .map(|(what, count)| (what.as_str(), count.load(Ordering::Relaxed)))
                .collect(),
            ..self.strangers.stats()
        }
    }
}

#[cfg(test)]
mod tests;
