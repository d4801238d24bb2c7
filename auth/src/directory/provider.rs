//! Providers: the issuers whose word a tenant takes for who somebody is.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use keyway_proto::TenantId;
use serde::{Deserialize, Serialize};

use super::Directory;
use super::change::{DirectoryError, Kind};
use super::name::Name;
use crate::oidc::Issuer;
use crate::root::random_letters;

/// Most providers of a tenant.
pub const PROVIDERS_MAX: usize = 100;
/// Most audiences of a provider.
pub const AUDIENCES_MAX: usize = 100;
/// Longest audience.
pub const AUDIENCE_CHARS_MAX: usize = 255;

/// An OpenID Connect provider of a tenant's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// Whose.
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: Name,
    /// Never that of another, even of the same name; another issuer is another provider.
    pub id: String,
    /// When it was made.
    pub created: Timestamp,
    /// Whose tokens are taken. No other provider of the tenant's has it.
    pub issuer: Issuer,
    /// For whom its tokens must be: one of these.
    #[serde(default)]
    pub audiences: BTreeSet<String>,
    /// The authorities that its certificate must go back to, in PEM; the system's if none is given.
    #[serde(default)]
    pub ca_pem: Option<String>,
}

/// A new provider's id.
pub fn provider_id() -> String {
    format!("KWO{}", random_letters())
}

/// Whether a text can be an audience.
pub fn is_audience(text: &str) -> bool {
    (1..=AUDIENCE_CHARS_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

impl Directory {
    /// A tenant's provider of this name.
    pub fn provider(&self, tenant: TenantId, name: &Name) -> Option<&Arc<Provider>> {
        self.providers.get(&(tenant, name.clone()))
    }

    /// A tenant's providers, by name.
    pub fn providers(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Provider>> {
        super::of_tenant(&self.providers, tenant)
    }

    /// The provider that speaks for an issuer in a tenant which is active.
    pub fn provider_of(&self, tenant: TenantId, issuer: &str) -> Option<&Arc<Provider>> {
        self.require_active(tenant).ok()?;
        self.providers(tenant).find(|provider| provider.issuer.as_str() == issuer)
    }

    pub(super) fn put_provider(&mut self, provider: Provider) -> Result<(), DirectoryError> {
        self.require_tenant(provider.tenant)?;
        if provider.audiences.len() > AUDIENCES_MAX {
            return Err(DirectoryError::TooMany("a provider's audiences"));
        }
        let others = || self.providers(provider.tenant).filter(|other| other.name != provider.name);
        // Names of condition keys know no upper and lower case.
        let name = provider.issuer.name();
        if others().any(|other| other.issuer.name().eq_ignore_ascii_case(name)) {
            return Err(DirectoryError::Taken { kind: Kind::Provider, name: name.to_owned() });
        }
        if others().count() >= PROVIDERS_MAX {
            return Err(DirectoryError::TooMany("a tenant's providers"));
        }
        let key = (provider.tenant, provider.name.clone());
        self.providers.insert(key, Arc::new(provider));
        Ok(())
    }
}
