//! Temporary credentials, and which of them have sessions with nodes.
//!
//! None is kept: a token tells whose it is with every request. What has to be known between
//! requests is which temporary keys may have a session with a node, so that those are closed when
//! the key expires, or when whom it goes back to is cut off: they are noted before they open one.
//! What a gateway forgets when it ends needs no closing: no transfer goes on without its request,
//! and the next request is authenticated anew.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use keyway_auth::directory::{Name, Refused};
use keyway_auth::session::{
    Assumed, Claims, Issued, Link, Origin, Source, TokenError, WebIdentity,
};
use keyway_auth::{AccessKeyId, CredentialStore as _, Principal, SecretsError, Unauthenticated};
use keyway_proto::{SessionOwner, SessionSelector, TenantId};
use parking_lot::Mutex;

use super::Accounts;

/// Most temporary keys of a tenant that have sessions with nodes.
const WATCHED_MAX: usize = 1 << 16;

impl Accounts {
    /// Makes temporary credentials for whoever asks, in a role or as they are: good for so many
    /// seconds, and no longer than the access key that they go back to.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn issue(
        &self,
        caller: &Principal,
        role: Option<Assumed>,
        seconds: u32,
    ) -> Result<Issued, SecretsError> {
        let source = match &caller.claims {
            Some(claims) => claims.source.clone(),
            None => Origin::Key(Source {
                key: caller.access_key.clone(),
                tenant: caller.tenant,
                holder: caller.identity.caller.id().to_owned(),
            }),
        };
        let through = caller.claims.as_ref().map(|claims| claims.links()).unwrap_or_default();
        self.make(source, through, role, seconds)
    }

    /// Makes temporary credentials in a role for somebody for whom an issuer vouched, good for so
    /// many seconds.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn issue_to_web_identity(
        &self,
        identity: WebIdentity,
        role: Assumed,
        seconds: u32,
    ) -> Result<Issued, SecretsError> {
        self.make(Origin::Web(identity), Vec::new(), Some(role), seconds)
    }

    fn make(
        &self,
        source: Origin,
        through: Vec<Link>,
        role: Option<Assumed>,
        seconds: u32,
    ) -> Result<Issued, SecretsError> {
        let issued = self.now();
        // To the second, as it is told.
        let end = issued.as_second().saturating_add(i64::from(seconds));
        let end = Timestamp::from_second(end).unwrap_or(Timestamp::MAX);
        let directory = self.directory();
        let key = source.key().and_then(|id| directory.key(id.as_str()));
        let key_ends = key.and_then(|key| key.record.expires);
        let expires = key_ends.map_or(end, |key_ends| key_ends.min(end));
        self.issuer.issue(&Claims { source, role, through, issued, expires })
    }

    /// Who signs with a temporary key and its token.
    pub(super) fn temporary(
        &self,
        id: &str,
        token: Option<&str>,
    ) -> Result<Principal, Unauthenticated> {
        let token = token.ok_or(Unauthenticated::InvalidToken)?;
        let opened = self.issuer.open(id, token, self.now()).map_err(|error| match error {
            TokenError::Expired => Unauthenticated::ExpiredToken,
            _ => Unauthenticated::InvalidToken,
        })?;
        self.standing(AccessKeyId::new(id), Arc::new(opened)).map_err(|why| {
            tracing::debug!(access_key = id, %why, "a temporary key was refused");
            Unauthenticated::NoSuchKey
        })
    }

    /// Whom the claims stand for, now.
    fn standing(&self, id: AccessKeyId, claims: Arc<Claims>) -> Result<Principal, Refused> {
        let source = match claims.source.key() {
            Some(key) => Some(self.find(key.as_str()).ok_or(Refused::Unknown)?.principal),
            None => None,
        };
        self.directory.load().session(id, claims, source.as_ref())
    }

    /// Whether a temporary key that was let in would be let in again.
    pub(super) fn still_stands(&self, principal: &Principal, claims: &Arc<Claims>) -> bool {
        let (id, claims) = (principal.access_key.clone(), Arc::clone(claims));
        claims.expires > self.now() && self.standing(id, claims).is_ok()
    }
}

/// Temporary keys that may have sessions with nodes.
#[derive(Default)]
pub(super) struct Watched(Mutex<HashMap<TenantId, HashMap<AccessKeyId, Arc<Claims>>>>);

impl Watched {
    /// Notes a key; `false` when its tenant has too many.
    pub(super) fn add(&self, principal: &Principal, claims: &Arc<Claims>) -> bool {
        let mut all = self.0.lock();
        let keys = all.entry(principal.tenant).or_default();
        if keys.len() >= WATCHED_MAX && !keys.contains_key(&principal.access_key) {
            return false;
        }
        keys.insert(principal.access_key.clone(), Arc::clone(claims));
        true
    }

    /// The sessions of keys that go back to this access key.
    pub(super) fn of_key(&self, id: &str) -> Vec<SessionSelector> {
        self.those(|claims| claims.source.key().is_some_and(|key| key.as_str() == id))
    }

    /// The sessions of keys that go back to this tenant.
    pub(super) fn of_tenant(&self, tenant: TenantId) -> Vec<SessionSelector> {
        self.those(|claims| claims.source.tenant() == tenant)
    }

    /// The sessions of keys that stand for this role, or were taken in it.
    pub(super) fn of_role(&self, tenant: TenantId, name: &Name) -> Vec<SessionSelector> {
        self.those(|claims| claims.needs(tenant, name))
    }

    /// The sessions of keys that go back to the word of this provider.
    pub(super) fn of_provider(&self, tenant: TenantId, name: &Name) -> Vec<SessionSelector> {
        self.those(|claims| {
            let identity = claims.source.web();
            identity.is_some_and(|identity| identity.tenant == tenant && identity.provider == *name)
        })
    }

    fn those(&self, are: impl Fn(&Claims) -> bool) -> Vec<SessionSelector> {
        let all = self.0.lock();
        let keys = all.iter().flat_map(|(tenant, keys)| keys.iter().map(|key| (*tenant, key)));
        let those = keys.filter(|(_, (_, claims))| are(claims));
        those.map(|(tenant, (id, _))| selector(tenant, id)).collect()
    }

    /// The sessions of keys that have expired, which are forgotten.
    pub(super) fn expired(&self, now: Timestamp) -> Vec<SessionSelector> {
        let mut expired = Vec::new();
        self.0.lock().retain(|tenant, keys| {
            keys.retain(|id, claims| {
                let lives = claims.expires > now;
                if !lives {
                    expired.push(selector(*tenant, id));
                }
                lives
            });
            !keys.is_empty()
        });
        expired
    }
}

fn selector(tenant: TenantId, id: &AccessKeyId) -> SessionSelector {
    SessionSelector::Owner(SessionOwner { tenant, access_key: id.as_str().into() })
}
