//! Access keys and the principals behind them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use keyway_proto::{TenantId, Verification, Weight};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use crate::directory::{Limits, Standing};
use crate::oidc::Issuer;
use crate::policy::{Caller, Policy, PublicAccessBlock};
use crate::session::Claims;

/// The public half of an access key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessKeyId(Arc<str>);

impl AccessKeyId {
    /// The id with this text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// It hashes and sorts as its text does.
impl Borrow<str> for AccessKeyId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccessKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The secret half: wiped when dropped, never printed.
#[derive(Clone)]
pub struct SecretKey(SecretString);

impl SecretKey {
    /// Takes the secret over.
    pub fn new(text: String) -> Self {
        Self(text.into())
    }

    /// Whether both are the same, in time that does not depend on where they differ.
    pub fn same_as(&self, other: &Self) -> bool {
        self.expose().as_bytes().ct_eq(other.expose().as_bytes()).into()
    }

    /// The secret, for signing alone.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(hidden)")
    }
}

/// Who a signature stands for.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The tenant.
    pub tenant: TenantId,
    /// The user or the role within it; `root` for the tenant itself.
    pub user: Arc<str>,
    /// The access key that signed.
    pub access_key: AccessKeyId,
    /// What policies know of it.
    pub identity: Arc<Identity>,
    /// What the token says, where the access key is a temporary one.
    pub claims: Option<Arc<Claims>>,
}

/// Somebody, as policies see them.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Who it is.
    pub caller: Caller,
    /// The policies of the user and of its groups, or of the role.
    pub policies: Vec<Arc<Policy>>,
    /// The access key's own, or the session's: where there are any, one of them must allow as
    /// well.
    pub session: Vec<Arc<Policy>>,
    /// The user's or the role's tags: `aws:PrincipalTag/…`.
    pub tags: BTreeMap<String, String>,
    /// What the user may take, whatever the tenant may.
    pub limits: Limits,
    /// Who vouched for it, where it is a web identity in a role.
    pub issuer: Option<Issuer>,
}

impl Identity {
    /// Of somebody to whom no policy of their own speaks.
    pub fn of(caller: Caller) -> Self {
        let (policies, session) = (Vec::new(), Vec::new());
        let (tags, limits) = (BTreeMap::new(), Limits::default());
        Self { caller, policies, session, tags, limits, issuer: None }
    }
}

impl Principal {
    /// The name of a tenant itself, among its users.
    pub const ROOT: &'static str = "root";

    /// A tenant itself, signing with this key.
    pub fn root(tenant: TenantId, access_key: AccessKeyId) -> Self {
        let identity = Arc::new(Identity::of(Caller::root(tenant)));
        Self { tenant, user: Arc::from(Self::ROOT), access_key, identity, claims: None }
    }
}

/// An access key as the store knows it.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Who it stands for.
    pub principal: Principal,
    /// Its secret.
    pub secret: SecretKey,
}

/// Why nobody is let in with an access key and its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unauthenticated {
    /// There is no such key, or it, its holder or its tenant may not sign now.
    #[error("there is no such access key")]
    NoSuchKey,
    /// A token is missing, was not made for this key, or came with a key that has none.
    #[error("the session token is not one of this access key")]
    InvalidToken,
    /// The token's time has passed.
    #[error("the session token has expired")]
    ExpiredToken,
}

/// Where access keys are looked up.
pub trait CredentialStore: Send + Sync + 'static {
    /// The key with this id; `None` when there is none, or it, its user or its tenant may not
    /// sign now.
    fn find(&self, id: &str) -> Option<Credential>;

    /// The secret that belongs to an id, of a key or of temporary credentials: for a signature
    /// to be verified, and for nothing else. Who signed is what [`principal`](Self::principal)
    /// says.
    fn secret(&self, id: &str) -> Option<SecretKey> {
        self.find(id).map(|credential| credential.secret)
    }

    /// Who signs with this id, and with the session token that came with it.
    ///
    /// # Errors
    /// [`Unauthenticated`]: also for a token that comes with a key which is not temporary.
    fn principal(&self, id: &str, token: Option<&str>) -> Result<Principal, Unauthenticated> {
        if token.is_some() {
            return Err(Unauthenticated::InvalidToken);
        }
        let found = self.find(id).ok_or(Unauthenticated::NoSuchKey)?;
        Ok(found.principal)
    }

    /// Whether whoever was let in once would be let in again now.
    fn stands(&self, principal: &Principal) -> bool {
        self.find(principal.access_key.as_str()).is_some()
    }

    /// Somebody is about to open a session for direct transfers, which ends when they are cut
    /// off. `false` when no more of them can be watched.
    fn watch(&self, principal: &Principal) -> bool {
        let _ = principal;
        true
    }

    /// The key with this id has signed a request, as was verified.
    fn used(&self, id: &str) {
        let _ = id;
    }

    /// The access keys of a tenant's user: each may have sessions.
    fn keys_of(&self, tenant: TenantId, user: &str) -> Vec<AccessKeyId> {
        let _ = (tenant, user);
        Vec::new()
    }

    /// What holds for a tenant and all of its buckets, whoever asks.
    fn terms(&self, tenant: TenantId) -> Terms {
        let _ = tenant;
        Terms::default()
    }
}

/// What a tenant's standing means for its buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Nobody is let into the buckets of a tenant that is suspended.
    pub standing: Standing,
    /// Adds to the block of each bucket.
    pub block: PublicAccessBlock,
    /// What all that is the tenant's may take together.
    pub limits: Limits,
    /// When what is read of its buckets is compared with its checksums.
    pub verification: Option<Verification>,
    /// Its share of what several want at once.
    pub weight: Weight,
}
