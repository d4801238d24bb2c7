//! Access keys and the principals behind them.

use std::fmt;
use std::sync::Arc;

use keyway_proto::TenantId;
use secrecy::{ExposeSecret, SecretString};

/// The public half of an access key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The tenant.
    pub tenant: TenantId,
    /// The user within it.
    pub user: Arc<str>,
    /// The access key that signed.
    pub access_key: AccessKeyId,
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
    /// The key with this id; `None` when there is none or it is disabled.
    fn find(&self, id: &str) -> Option<Credential>;
}
