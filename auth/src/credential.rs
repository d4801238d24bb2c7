//! Access keys and the principals behind them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use keyway_proto::TenantId;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use crate::directory::{Limits, Quota, Standing};
use crate::policy::{Caller, Policy, PublicAccessBlock};

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
    /// The user within it; `root` for the tenant itself.
    pub user: Arc<str>,
    /// The access key that signed.
    pub access_key: AccessKeyId,
    /// What policies know of it.
    pub identity: Arc<Identity>,
}

/// Somebody, as policies see them.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Who it is.
    pub caller: Caller,
    /// The policies of the user and of its groups.
    pub policies: Vec<Arc<Policy>>,
    /// The access key's own: where there are any, one of them must allow as well.
    pub session: Vec<Arc<Policy>>,
    /// The user's tags: `aws:PrincipalTag/…`.
    pub tags: BTreeMap<String, String>,
    /// What the user may take, whatever the tenant may.
    pub limits: Limits,
}

impl Identity {
    /// Of somebody to whom no policy of their own speaks.
    pub fn of(caller: Caller) -> Self {
        let (policies, session) = (Vec::new(), Vec::new());
        Self { caller, policies, session, tags: BTreeMap::new(), limits: Limits::default() }
    }
}

impl Principal {
    /// The name of a tenant itself, among its users.
    pub const ROOT: &'static str = "root";

    /// A tenant itself, signing with this key.
    pub fn root(tenant: TenantId, access_key: AccessKeyId) -> Self {
        let identity = Arc::new(Identity::of(Caller::root(tenant)));
        Self { tenant, user: Arc::from(Self::ROOT), access_key, identity }
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

/// Where access keys are looked up.
pub trait CredentialStore: Send + Sync + 'static {
    /// The key with this id; `None` when there is none, or it, its user or its tenant may not
    /// sign now.
    fn find(&self, id: &str) -> Option<Credential>;

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
    /// What it may store.
    pub quota: Quota,
}
