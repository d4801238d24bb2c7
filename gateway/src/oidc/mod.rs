//! OpenID Connect issuers: asked for their keys, which are held for a while.
//!
//! Whoever asks for a role with a token of theirs is a stranger, so what a token can set off is bounded:
//!
//! | what | bound |
//! |---|---|
//! | asking an issuer | one at a time, and once in `oidc.refetch_interval_ms`, whatever tokens name |
//! | one asking | `oidc.timeout_ms` for all of it, so many bytes of each answer ([`ask`]) |
//! | keys | `oidc.keys_max_age_s` old; then the issuer must answer |
//! | requests that wait for an issuer | [`WAITING_MAX`], for as long as one asking |
//! | providers whose keys are held | [`HELD_MAX`]; the longest unused are forgotten |
//!
//! A request that names a key which is held waits for nothing.
//!
//! What may not enter: who trusts whom, S3's and STS's words.

mod ask;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use keyway_auth::directory::Provider;
use keyway_auth::oidc::{KeySet, Token};
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::Instant;

use crate::config::Oidc;
use ask::Asker;

pub(crate) use ask::authorities;
pub use ask::{InvalidAuthorities, IssuerError};

/// Most requests that wait for one issuer.
const WAITING_MAX: usize = 64;
/// Most providers whose keys are held.
const HELD_MAX: usize = 1024;

/// The issuers of all tenants.
pub struct Issuers {
    asker: Arc<Asker>,
    keys_max_age: Duration,
    refetch_interval: Duration,
    clock_skew_s: u32,
    held: Mutex<HashMap<String, (Arc<Issuer>, Instant)>>,
}

/// A provider's issuer.
struct Issuer {
    /// As it was when it was asked: another authority is another issuer.
    provider: Arc<Provider>,
    keys: ArcSwapOption<Keys>,
    turn: Arc<tokio::sync::Mutex<Turn>>,
    waiting: Semaphore,
}

/// Who has it asks the issuer.
#[derive(Default)]
struct Turn {
    asked: Option<Instant>,
}

/// Keys that an issuer told.
pub(crate) struct Keys {
    set: KeySet,
    since: Instant,
}

impl Keys {
    pub(crate) fn set(&self) -> &KeySet {
        &self.set
    }
}

impl Default for Issuers {
    fn default() -> Self {
        Self::new(&Oidc::default())
    }
}

impl Issuers {
    /// With these bounds.
    pub fn new(config: &Oidc) -> Self {
        Self {
            asker: Arc::new(Asker::new(Duration::from_millis(config.timeout_ms))),
            keys_max_age: Duration::from_secs(config.keys_max_age_s.into()),
            refetch_interval: Duration::from_millis(config.refetch_interval_ms),
            clock_skew_s: config.clock_skew_s,
            held: Mutex::default(),
        }
    }

    /// How far an issuer's clock may be off.
    pub(crate) fn clock_skew_s(&self) -> u32 {
        self.clock_skew_s
    }

    /// The keys of a provider's issuer, asked for anew where none is the one that the token names.
    ///
    /// # Errors
    /// [`IssuerError`]. An issuer that did not answer is not asked again before the interval ends.
    pub(crate) async fn keys(
        &self,
        provider: &Arc<Provider>,
        token: &Token<'_>,
    ) -> Result<Arc<Keys>, IssuerError> {
        let issuer = self.issuer(provider);
        let named = |keys: &Arc<Keys>| token.names_one_of(&keys.set);
        if let Some(keys) = issuer.fresh(self.keys_max_age).filter(named) {
            return Ok(keys);
        }
        let _place = issuer.waiting.try_acquire().map_err(|_| IssuerError::Busy)?;
        let turn = Arc::clone(&issuer.turn).lock_owned().await;
        let fresh = issuer.fresh(self.keys_max_age);
        let lately = turn.asked.is_some_and(|asked| asked.elapsed() < self.refetch_interval);
        match fresh {
            Some(keys) if named(&keys) || lately => return Ok(keys),
            None if lately => return Err(IssuerError::Lately),
            _ => {}
        }
        // Whoever goes away meanwhile does not take the answer from the others.
        let asked = tokio::spawn(ask(Arc::clone(&self.asker), Arc::clone(&issuer), turn)).await;
        asked.map_err(|_| IssuerError::Interrupted)?
    }

    /// What is known of a provider's issuer; nothing, if the provider was changed.
    fn issuer(&self, provider: &Arc<Provider>) -> Arc<Issuer> {
        let now = Instant::now();
        let mut held = self.held.lock();
        if let Some((issuer, used)) = held.get_mut(&provider.id)
            && *issuer.provider == **provider
        {
            *used = now;
            return Arc::clone(issuer);
        }
        if held.len() >= HELD_MAX && !held.contains_key(&provider.id) {
            let unused = held.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(id) = unused.map(|(id, _)| id.clone()) {
                held.remove(&id);
            }
        }
        let issuer = Arc::new(Issuer {
            provider: Arc::clone(provider),
            keys: ArcSwapOption::empty(),
            turn: Arc::default(),
            waiting: Semaphore::new(WAITING_MAX),
        });
        held.insert(provider.id.clone(), (Arc::clone(&issuer), now));
        issuer
    }
}

impl Issuer {
    fn fresh(&self, max_age: Duration) -> Option<Arc<Keys>> {
        self.keys.load_full().filter(|keys| keys.since.elapsed() < max_age)
    }
}

/// Asks an issuer, and keeps what it tells.
async fn ask(
    asker: Arc<Asker>,
    issuer: Arc<Issuer>,
    mut turn: OwnedMutexGuard<Turn>,
) -> Result<Arc<Keys>, IssuerError> {
    turn.asked = Some(Instant::now());
    let told = asker.keys(&issuer.provider).await;
    match told {
        Ok(set) => {
            let keys = Arc::new(Keys { set, since: Instant::now() });
            issuer.keys.store(Some(Arc::clone(&keys)));
            Ok(keys)
        }
        Err(error) => {
            let (tenant, provider) = (issuer.provider.tenant, &issuer.provider.name);
            tracing::warn!(%tenant, %provider, %error, "an issuer does not tell its keys");
            Err(error)
        }
    }
}
