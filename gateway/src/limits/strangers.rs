//! Strangers: who failed to say who they are, and is slowed down.
//!
//! Failures are counted for the address that they come from (an IPv6 network of 64 bits is one) and
//! for the access key that they name. Who fails more often than the configuration allows is under a
//! penalty for a while, and what it tries then is not verified: neither is a signature computed for
//! it nor a line written.
//!
//! **Others behind the same address** are not to suffer, nor whoever has a key that others guess
//! at. So two things are verified in spite of a penalty: of an address, what names a key that is one
//! of ours; of a key, what comes from another place; as long as this key did not fail from this
//! address itself in the last minute. Whoever guesses at one key from one address gets one try
//! a minute once the penalty has begun, and none of it stops the key's holder elsewhere.
//!
//! Tables are bounded: the longest unused entries are forgotten first, those of keys never crowd
//! out those of addresses.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;

use super::LimitStats;
use super::meter::{Meter, Rate};
use crate::config::Auth;

/// Addresses, keys, and keys at addresses that are remembered.
const REMEMBERED_MAX: usize = 1 << 14;
/// How long a key that failed from an address has itself failed there.
const FAILED_LATELY: Duration = Duration::from_secs(60);
/// What a HEAD is told that failed: it has no words, and may have failed for any of them.
pub(crate) const WORDLESS: &str = "Forbidden";
/// S3's words for whoever is not who they say, and STS's for a token that says nothing.
pub(crate) const CODES: [&str; 10] = [
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
    "ExpiredToken",
    "ExpiredTokenException",
    WORDLESS,
    "InvalidAccessKeyId",
    "InvalidIdentityToken",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// Somebody says who they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    /// Whence.
    pub(crate) remote: IpAddr,
    /// The key that it names, if it names one.
    pub(crate) access_key: Option<&'a str>,
}

/// What came under a penalty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Penalty {
    /// An address, or a network of them.
    Address(String),
    /// The access key that was named.
    AccessKey,
}

/// Counts failures.
pub(super) struct Strangers {
    /// None: nobody is slowed down.
    rate: Option<Rate>,
    penalty: Duration,
    hasher: RandomState,
    addresses: Cache<IpAddr, Arc<Record>>,
    keys: Cache<u64, Arc<Record>>,
    /// When a key last failed from an address.
    failed: Cache<(IpAddr, u64), u64>,
    failures: [AtomicU64; CODES.len()],
    unverified: AtomicU64,
    penalties: AtomicU64,
}

#[derive(Default)]
struct Record {
    failures: Meter,
    /// The end of the penalty.
    until_ns: AtomicU64,
}

impl Record {
    /// What is left of a penalty.
    fn left_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.load(Ordering::Relaxed).saturating_sub(now_ns)
    }

    /// Counts a failure; whether a penalty begins with it.
    fn fail(&self, rate: Rate, penalty: Duration, now_ns: u64) -> bool {
        if self.failures.take(rate, 1, now_ns, 0).is_ok() {
            return false;
        }
        let until = now_ns.saturating_add(nanos(penalty));
        let begins = |seen: u64| (seen <= now_ns).then_some(until);
        self.until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begins).is_ok()
    }
}

impl Strangers {
    pub(super) fn new(config: &Auth) -> Self {
        let burst = u64::from(config.failures_burst);
        let per_second = NonZeroU64::from(config.failures_per_second);
        Self {
            rate: (burst > 0).then(|| Rate::new(per_second, burst)),
            penalty: Duration::from_millis(config.penalty_ms),
            hasher: RandomState::new(),
            addresses: Cache::new(REMEMBERED_MAX),
            keys: Cache::new(REMEMBERED_MAX),
            failed: Cache::new(REMEMBERED_MAX),
            failures: Default::default(),
            unverified: AtomicU64::new(0),
            penalties: AtomicU64::new(0),
        }
    }

    pub(super) fn may_try(
        &self,
        attempt: &Attempt<'_>,
        is_key: impl FnOnce() -> bool,
        now_ns: u64,
    ) -> Result<(), Duration> {
        if self.rate.is_none() {
            return Ok(());
        }
        let origin = origin(attempt.remote);
        let key = attempt.access_key.map(|key| self.hasher.hash_one(key));
        let left = |record: Option<Arc<Record>>| record.map_or(0, |it| it.left_ns(now_ns));
        let of_key = key.and_then(|key| self.keys.get(&key));
        let left = left(self.addresses.get(&origin)).max(left(of_key));
        if left == 0 {
            return Ok(());
        }
        let lately = |failed: u64| now_ns.saturating_sub(failed) < nanos(FAILED_LATELY);
        let itself = |key: u64| self.failed.get(&(origin, key)).is_some_and(lately);
        if key.is_some_and(|key| !itself(key)) && is_key() {
            return Ok(());
        }
        self.unverified.fetch_add(1, Ordering::Relaxed);
        Err(Duration::from_nanos(left))
    }

    pub(super) fn failed(&self, attempt: &Attempt<'_>, code: &str, now_ns: u64) -> Vec<Penalty> {
        if let Some(at) = CODES.iter().position(|known| *known == code) {
            self.failures[at].fetch_add(1, Ordering::Relaxed);
        }
        let Some(rate) = self.rate else { return Vec::new() };
        let origin = origin(attempt.remote);
        let mut penalties = Vec::new();
        if record(&self.addresses, origin).fail(rate, self.penalty, now_ns) {
            penalties.push(Penalty::Address(named(origin)));
        }
        if let Some(key) = attempt.access_key.map(|key| self.hasher.hash_one(key)) {
            self.failed.insert((origin, key), now_ns);
            if record(&self.keys, key).fail(rate, self.penalty, now_ns) {
                penalties.push(Penalty::AccessKey);
            }
        }
        self.penalties.fetch_add(penalties.len() as u64, Ordering::Relaxed);
        penalties
    }

    pub(super) fn stats(&self) -> LimitStats {
        let failures = CODES.into_iter().zip(&self.failures);
        LimitStats {
            failures: failures.map(|(code, n)| (code, n.load(Ordering::Relaxed))).collect(),
            unverified: self.unverified.load(Ordering::Relaxed),
            penalties: self.penalties.load(Ordering::Relaxed),
            limited: Vec::new(),
        }
    }
}

/// The entry of a table, made where there is none. Of two that are made at once one may be lost,
/// and with it one failure.
fn record<K: std::hash::Hash + Eq + Clone>(table: &Cache<K, Arc<Record>>, key: K) -> Arc<Record> {
    table.get(&key).unwrap_or_else(|| {
        let record = Arc::<Record>::default();
        table.insert(key, Arc::clone(&record));
        record
    })
}

/// Whom an address stands for: somebody with an IPv6 address has 2⁶⁴ of them.
fn origin(remote: IpAddr) -> IpAddr {
    match remote.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
    }
}

fn named(origin: IpAddr) -> String {
    match origin {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(network) => format!("{network}/64"),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
