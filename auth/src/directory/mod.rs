//! Who there is: tenants, their users, roles, groups, policies, providers and access keys.
//!
//! A [`Directory`] is a snapshot: look-ups in it need no I/O and no lock, and a [`Change`] makes
//! another one or is refused. Whoever keeps it stores the change, then publishes the new
//! snapshot. [`find`](Directory::find) is what every request asks: from an access key's id to its
//! secret, and to who signs with it.
//!
//! What may not enter: storage, clocks (the time is told), HTTP.
//!
//! Cost of `find`: one hash, one look-up for the tenant, the user, and each of its groups and
//! policies; one allocation for the identity. Cost of a change: the maps are copied, about 50 ns
//! for each record that there is.

mod change;
mod name;
mod provider;
mod record;
mod session;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use keyway_proto::TenantId;

use crate::credential::{AccessKeyId, Credential, Identity, Principal};
use crate::policy::{Caller, Policy};

pub use change::{Change, DirectoryError, KEYS_PER_USER_MAX, Kind};
pub use name::{InvalidName, NAME_CHARS_MAX, Name};
pub use provider::{
    AUDIENCE_CHARS_MAX, AUDIENCES_MAX, PROVIDERS_MAX, Provider, is_audience, provider_id,
};
pub use record::{
    AccessKey, Group, Key, KeyState, Limits, ManagedPolicy, NamedPolicy, Quota, ROLE_SESSION_S,
    Role, RoleRecord, Standing, Tenant, User, UserKind, role_id, user_id,
};
pub(crate) use record::{id_of_text, id_text};

/// Largest number of a tenant: an account number has twelve digits.
pub const TENANT_NUMBER_MAX: u64 = 999_999_999_999;

/// A snapshot of who there is.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    tenants: BTreeMap<TenantId, Arc<Tenant>>,
    users: BTreeMap<(TenantId, Name), Arc<User>>,
    roles: BTreeMap<(TenantId, Name), Arc<Role>>,
    groups: BTreeMap<(TenantId, Name), Arc<Group>>,
    policies: BTreeMap<(TenantId, Name), Arc<NamedPolicy>>,
    providers: BTreeMap<(TenantId, Name), Arc<Provider>>,
    keys: HashMap<AccessKeyId, Arc<Key>>,
}

/// Why an access key does not open anything. Its holder is told the same in all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// There is no such key.
    #[error("no such key")]
    Unknown,
    /// It was disabled.
    #[error("the key is disabled")]
    Disabled,
    /// Its time has passed.
    #[error("the key has expired")]
    Expired,
    /// Its user is suspended.
    #[error("the user is suspended")]
    UserSuspended,
    /// Its tenant is suspended.
    #[error("the tenant is suspended")]
    TenantSuspended,
    /// It is a session's, whose role is suspended.
    #[error("the role is suspended")]
    RoleSuspended,
    /// It is a session's that was begun before sessions of its user or role were ended.
    #[error("the session was ended")]
    Revoked,
}

impl Directory {
    /// The credential behind an access key, if it may sign at this time.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn find(&self, id: &str, now: Timestamp) -> Result<Credential, Refused> {
        let key = self.keys.get(id).ok_or(Refused::Unknown)?;
        self.usable(key, now)?;
        let record = &key.record;
        let identity = match &record.user {
            None => Identity::of(Caller::root(record.tenant)),
            Some(user) => self.identity(self.user(record.tenant, user).ok_or(Refused::Unknown)?),
        };
        let identity = Arc::new(Identity { session: key.narrowed.clone(), ..identity });
        let user = record.user.as_ref().map_or_else(|| Principal::ROOT.into(), Name::shared);
        let access_key = record.id.clone();
        let tenant = record.tenant;
        let principal = Principal { tenant, user, access_key, identity, claims: None };
        Ok(Credential { principal, secret: key.secret.clone() })
    }

    /// Whether a key may sign at this time.
    ///
    /// # Errors
    /// [`Refused`] says why it may not.
    pub fn usable(&self, key: &Key, now: Timestamp) -> Result<(), Refused> {
        let record = &key.record;
        if record.state == KeyState::Disabled {
            return Err(Refused::Disabled);
        }
        if record.expires.is_some_and(|expires| expires <= now) {
            return Err(Refused::Expired);
        }
        self.require_active(record.tenant)?;
        if let Some(user) = &record.user {
            let user = self.user(record.tenant, user).ok_or(Refused::Unknown)?;
            if user.state == Standing::Suspended {
                return Err(Refused::UserSuspended);
            }
        }
        Ok(())
    }

    fn require_active(&self, tenant: TenantId) -> Result<(), Refused> {
        // Tenant 0 is always there, and nobody can suspend it.
        match self.tenants.get(&tenant).map(|tenant| tenant.state) {
            None if tenant != TenantId::ROOT => Err(Refused::Unknown),
            Some(Standing::Suspended) => Err(Refused::TenantSuspended),
            _ => Ok(()),
        }
    }

    /// A user, as policies see it.
    fn identity(&self, user: &User) -> Identity {
        let mut names: Vec<&Name> = user.policies.iter().collect();
        let groups = user.groups.iter().filter_map(|name| self.group(user.tenant, name));
        groups.for_each(|group| names.extend(&group.policies));
        names.sort_unstable();
        names.dedup();
        let mut identity = Identity::of(Caller::user(user.tenant, user.name.as_str(), &user.id));
        identity.policies = self.parsed(user.tenant, names);
        identity.tags.clone_from(&user.tags);
        identity.limits = user.limits;
        identity
    }

    fn parsed<'a>(
        &self,
        tenant: TenantId,
        names: impl IntoIterator<Item = &'a Name>,
    ) -> Vec<Arc<Policy>> {
        let parsed = |name| Some(Arc::clone(&self.policy(tenant, name)?.parsed));
        names.into_iter().filter_map(parsed).collect()
    }

    /// All tenants but number 0, by number.
    pub fn tenants(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.tenants.values()
    }

    /// The tenant with this number; tenant 0 has no record unless it was given settings.
    pub fn tenant(&self, number: TenantId) -> Option<&Arc<Tenant>> {
        self.tenants.get(&number)
    }

    /// The number behind a tenant's name, or its twelve digits.
    pub fn tenant_number(&self, text: &str) -> Option<TenantId> {
        if text == Principal::ROOT {
            return Some(TenantId::ROOT);
        }
        if Name::is_account(text) {
            let number = TenantId(text.parse().ok()?);
            let is_there = number == TenantId::ROOT || self.tenants.contains_key(&number);
            return is_there.then_some(number);
        }
        let mut all = self.tenants.values();
        all.find(|tenant| tenant.name.as_str() == text).map(|tenant| tenant.number)
    }

    /// A tenant's user of this name.
    pub fn user(&self, tenant: TenantId, name: &Name) -> Option<&Arc<User>> {
        self.users.get(&(tenant, name.clone()))
    }

    /// A tenant's users, by name.
    pub fn users(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<User>> {
        of_tenant(&self.users, tenant)
    }

    /// A tenant's role of this name.
    pub fn role(&self, tenant: TenantId, name: &Name) -> Option<&Arc<Role>> {
        self.roles.get(&(tenant, name.clone()))
    }

    /// A tenant's roles, by name.
    pub fn roles(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Role>> {
        of_tenant(&self.roles, tenant)
    }

    /// A tenant's group of this name.
    pub fn group(&self, tenant: TenantId, name: &Name) -> Option<&Arc<Group>> {
        self.groups.get(&(tenant, name.clone()))
    }

    /// A tenant's groups, by name.
    pub fn groups(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<Group>> {
        of_tenant(&self.groups, tenant)
    }

    /// A tenant's policy of this name.
    pub fn policy(&self, tenant: TenantId, name: &Name) -> Option<&Arc<NamedPolicy>> {
        self.policies.get(&(tenant, name.clone()))
    }

    /// A tenant's policies, by name.
    pub fn policies(&self, tenant: TenantId) -> impl Iterator<Item = &Arc<NamedPolicy>> {
        of_tenant(&self.policies, tenant)
    }

    /// The access key of this id.
    pub fn key(&self, id: &str) -> Option<&Arc<Key>> {
        self.keys.get(id)
    }

    /// All access keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<Key>> {
        self.keys.values()
    }
}

fn of_tenant<T>(
    map: &BTreeMap<(TenantId, Name), Arc<T>>,
    tenant: TenantId,
) -> impl Iterator<Item = &Arc<T>> {
    // The empty name sorts first, and nobody has it.
    let all = map.range((tenant, Name::before_all())..);
    all.take_while(move |((of, _), _)| *of == tenant).map(|(_, record)| record)
}
