//! What a caller takes of what its tenant and its user may have.
//!
//! A caller has a share in one account or two. Of all that is limited, both must have room; what
//! one gave and the other refused is given back.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keyway_auth::directory::Limits;
use keyway_proto::TenantId;
use parking_lot::RwLock;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::meter::{Meter, Rate};
use super::pace::Pace;
use super::{Counts, Exceeded, Limited};

/// Accounts from which on those that are idle are forgotten.
const ACCOUNTS_MANY: usize = 1 << 14;
/// How long a direct transfer waits until earlier ones are paid for.
const DIRECT_PATIENCE: Duration = Duration::from_secs(2);
/// When to come back where nobody can tell when there will be room.
const SOON: Duration = Duration::from_secs(1);

/// Whose: a tenant's, or a user's of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) tenant: TenantId,
    pub(crate) user: Option<Arc<str>>,
}

/// What somebody has taken.
#[derive(Default)]
struct Account {
    requests: Meter,
    bytes: Meter,
    keys: AtomicU64,
    /// Held while a session is opened: sessions are counted first.
    opening: Arc<Mutex<()>>,
}

impl Account {
    fn is_idle(&self, now_ns: u64) -> bool {
        self.requests.is_idle(now_ns) && self.bytes.is_idle(now_ns)
    }
}

/// Those of whom something is limited.
#[derive(Default)]
pub(super) struct Accounts(RwLock<HashMap<Holder, Arc<Account>>>);

impl Accounts {
    fn of(&self, holder: &Holder, now_ns: u64) -> Arc<Account> {
        if let Some(account) = self.0.read().get(holder) {
            return Arc::clone(account);
        }
        let mut all = self.0.write();
        if all.len() >= ACCOUNTS_MANY && all.len().is_power_of_two() {
            all.retain(|_, account| Arc::strong_count(account) > 1 || !account.is_idle(now_ns));
        }
        Arc::clone(all.entry(holder.clone()).or_default())
    }

    /// The shares of a caller: its user's first.
    pub(super) fn usage(
        &self,
        holders: impl Iterator<Item = (Holder, Limits)>,
        since: Instant,
        counts: &Arc<Counts>,
    ) -> Usage {
        let limited = holders.filter(|(_, limits)| limits.are_of_use());
        let shares: Vec<Share> = limited
            .map(|(holder, limits)| {
                let account = self.of(&holder, elapsed_ns(since));
                Share { account, holder, limits }
            })
            .collect();
        if shares.is_empty() {
            return Usage::default();
        }
        Usage(Some(Arc::new(Shares { shares, since, counts: Arc::clone(counts) })))
    }
}

struct Share {
    account: Arc<Account>,
    holder: Holder,
    limits: Limits,
}

struct Shares {
    shares: Vec<Share>,
    since: Instant,
    counts: Arc<Counts>,
}

/// What a caller may take; of most callers nothing is limited.
#[derive(Clone, Default)]
pub(crate) struct Usage(Option<Arc<Shares>>);

/// A key in flight, counted while it lives.
#[derive(Default)]
#[must_use = "it is counted while it lives"]
pub(crate) struct KeyInFlight(Vec<Arc<Account>>);

/// The right to open a session, alone.
#[derive(Default)]
#[must_use = "it is given back when it is dropped"]
pub(crate) struct Opening(Vec<OwnedMutexGuard<()>>);

impl Usage {
    fn shares(&self) -> &[Share] {
        self.0.as_deref().map_or(&[], |shares| &shares.shares)
    }

    fn now_ns(&self) -> u64 {
        self.0.as_deref().map_or(0, |shares| elapsed_ns(shares.since))
    }

    fn exceeded(&self, what: Limited, retry_after: Duration) -> Exceeded {
        if let Some(shares) = &self.0 {
            shares.counts.count(what);
        }
        Exceeded { what, retry_after }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub(crate) fn request(&self) -> Result<(), Exceeded> {
        let take = |share: &Share, now| match requests(share) {
            Some(rate) => share.account.requests.take(rate, 1, now, 0).map(drop),
            None => Ok(()),
        };
        let back = |share: &Share| {
            if let Some(rate) = requests(share) {
                share.account.requests.give_back(rate, 1);
            }
        };
        let taken = all_or_none(self.shares(), |share| take(share, self.now_ns()), back);
        taken.map_err(|wait| self.exceeded(Limited::Requests, Duration::from_nanos(wait)))
    }

    /// Whether bytes are limited.
    pub(super) fn paces(&self) -> bool {
        self.shares().iter().any(|share| share.limits.bytes_per_second.is_some())
    }

    /// The least number of bytes in a second that somebody's limit allows.
    pub(super) fn slowest(&self) -> Option<u64> {
        let limits = self.shares().iter().filter_map(|share| share.limits.bytes_per_second);
        limits.map(NonZeroU64::get).min()
    }

    /// What slows the caller's bodies down.
    pub(crate) fn pace(&self) -> Pace {
        Pace::new(self)
    }

    /// Takes bytes, and tells how long to wait before they are moved.
    pub(super) fn pay(&self, bytes: u64) -> Duration {
        let now = self.now_ns();
        let waits = self.shares().iter().filter_map(|share| {
            let taken = share.account.bytes.take(byte_rate(share)?, bytes, now, u64::MAX);
            Some(taken.unwrap_or_else(|wait| wait))
        });
        Duration::from_nanos(waits.max().unwrap_or(0))
    }

    /// Takes a key and the bytes that are to move under it, and waits a little until earlier ones
    /// are paid for. Cancelling it gives the key back, and not the bytes.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub(crate) async fn direct(&self, bytes: u64) -> Result<KeyInFlight, Exceeded> {
        let mut key = KeyInFlight::default();
        for share in self.shares() {
            let Some(most) = share.limits.keys_in_flight else { continue };
            let one_more = |keys: u64| (keys < most).then_some(keys + 1);
            let counted =
                share.account.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
            if counted.is_err() {
                return Err(self.exceeded(Limited::Keys, SOON));
            }
            key.0.push(Arc::clone(&share.account));
        }
        let patience = u64::try_from(DIRECT_PATIENCE.as_nanos()).unwrap_or(u64::MAX);
        let now = self.now_ns();
        let mut longest = 0;
        let take = |share: &Share| {
            if let Some(rate) = byte_rate(share) {
                longest = longest.max(share.account.bytes.take(rate, bytes, now, patience)?);
            }
            Ok(())
        };
        let back = |share: &Share| {
            if let Some(rate) = byte_rate(share) {
                share.account.bytes.give_back(rate, bytes);
            }
        };
        let taken = all_or_none(self.shares(), take, back);
        taken.map_err(|wait| self.exceeded(Limited::Bytes, Duration::from_nanos(wait)))?;
        if longest > 0 {
            tokio::time::sleep(Duration::from_nanos(longest)).await;
        }
        Ok(key)
    }

    /// Waits for the right to open a session, where their number is limited: until it is given
    /// back, nobody else of the same account opens one. So what is counted meanwhile holds.
    pub(crate) async fn opening(&self) -> Opening {
        let mut opening = Opening::default();
        // Users come before their tenants everywhere, so nobody waits in a circle.
        for share in self.shares().iter().filter(|share| share.limits.sessions.is_some()) {
            opening.0.push(Arc::clone(&share.account.opening).lock_owned().await);
        }
        opening
    }

    /// Whose sessions are limited, and to how many.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (&Holder, u64)> {
        let limited = |share: &Share| share.limits.sessions;
        self.shares().iter().filter_map(move |share| Some((&share.holder, limited(share)?)))
    }

    /// There are as many sessions as may be.
    pub(crate) fn too_many_sessions(&self) -> Exceeded {
        self.exceeded(Limited::Sessions, SOON)
    }
}

impl Drop for KeyInFlight {
    fn drop(&mut self) {
        for account in &self.0 {
            account.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn requests(share: &Share) -> Option<Rate> {
    share.limits.requests_per_second.map(Rate::of_second)
}

fn byte_rate(share: &Share) -> Option<Rate> {
    share.limits.bytes_per_second.map(Rate::of_second)
}

/// Takes of all shares; what was taken is given back where one refuses.
fn all_or_none(
    shares: &[Share],
    mut take: impl FnMut(&Share) -> Result<(), u64>,
    back: impl Fn(&Share),
) -> Result<(), u64> {
    for (at, share) in shares.iter().enumerate() {
        if let Err(wait) = take(share) {
            shares[..at].iter().for_each(back);
            return Err(wait);
        }
    }
    Ok(())
}

pub(super) fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
