//! Changes, and the rules that they must keep.
//!
//! What one record names is there: a user's groups and policies, a group's policies, a key's
//! tenant and user. So nothing is deleted that another record names, and nothing is left behind
//! that would come alive again under a name used anew.

use std::fmt;
use std::sync::Arc;

use keyway_proto::TenantId;

use super::name::Name;
use super::provider::Provider;
use super::record::{Group, Key, NamedPolicy, ROLE_SESSION_S, Role, Tenant, User};
use super::{Directory, TENANT_NUMBER_MAX};
use crate::credential::AccessKeyId;

/// Most access keys of one user: rotation needs two.
pub const KEYS_PER_USER_MAX: usize = 16;
/// Most groups of one user, and most policies of one user or group: each costs every request.
const NAMED_MAX: usize = 32;

/// Something that is to be different.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The tenant is as said.
    PutTenant(Tenant),
    /// The tenant is gone.
    DeleteTenant(TenantId),
    /// The user is as said.
    PutUser(User),
    /// The user is gone.
    DeleteUser(TenantId, Name),
    /// The role is as said.
    PutRole(Role),
    /// The role is gone.
    DeleteRole(TenantId, Name),
    /// The group is as said.
    PutGroup(Group),
    /// The group is gone.
    DeleteGroup(TenantId, Name),
    /// The policy is as said.
    PutPolicy(NamedPolicy),
    /// The policy is gone.
    DeletePolicy(TenantId, Name),
    /// The provider is as said.
    PutProvider(Provider),
    /// The provider is gone.
    DeleteProvider(TenantId, Name),
    /// The key is as said.
    PutKey(Key),
    /// The key is gone.
    DeleteKey(AccessKeyId),
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tenant.
    Tenant,
    /// A user.
    User,
    /// A role.
    Role,
    /// A group.
    Group,
    /// A policy.
    Policy,
    /// An OpenID Connect provider.
    Provider,
    /// An access key.
    Key,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant",
            Self::User => "user",
            Self::Role => "role",
            Self::Group => "group",
            Self::Policy => "policy",
            Self::Provider => "provider",
            Self::Key => "key",
        })
    }
}

/// Why a change was refused; nothing was changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// What it names is not there.
    #[error("there is no {kind} {name:?}")]
    NoSuch {
        /// What was named.
        kind: Kind,
        /// How.
        name: String,
    },
    /// Another one has that name, number or id.
    #[error("another {kind} is called {name:?}")]
    Taken {
        /// What was to be called so.
        kind: Kind,
        /// How.
        name: String,
    },
    /// Something names what is to be deleted.
    #[error("the {kind} {name:?} is in use: {by} names it")]
    InUse {
        /// What was to be deleted.
        kind: Kind,
        /// Its name.
        name: String,
        /// What kind of record names it.
        by: Kind,
    },
    /// Tenant 0 runs the service: it cannot be suspended, renamed or deleted.
    #[error("the root tenant cannot be suspended, renamed or deleted")]
    Root,
    /// More than there may be.
    #[error("too many of {0}")]
    TooMany(&'static str),
    /// A tenant's name that reads as an account number, or a number that does not.
    #[error("a tenant's number has at most twelve digits, and its name is not twelve digits")]
    TenantNumber,
    /// A role whose sessions could last for a time out of bounds.
    #[error("a role's sessions may last from {} to {} seconds", ROLE_SESSION_S.start(), ROLE_SESSION_S.end())]
    SessionLength,
}

impl Directory {
    /// The directory after a change.
    ///
    /// # Errors
    /// [`DirectoryError`] when a rule forbids it.
    pub fn with(&self, change: Change) -> Result<Self, DirectoryError> {
        let mut next = self.clone();
        next.apply(change)?;
        Ok(next)
    }

    /// Applies a change in place: for building a directory out of many.
    ///
    /// # Errors
    /// [`DirectoryError`] when a rule forbids it; the directory is as it was.
    pub fn apply(&mut self, change: Change) -> Result<(), DirectoryError> {
        match change {
            Change::PutTenant(tenant) => self.put_tenant(tenant),
            Change::DeleteTenant(number) => self.delete_tenant(number),
            Change::PutUser(user) => self.put_user(user),
            Change::DeleteUser(tenant, name) => self.delete_user(tenant, name),
            Change::PutRole(role) => self.put_role(role),
            Change::DeleteRole(tenant, name) => {
                let gone = self.roles.remove(&(tenant, name.clone()));
                gone.map(drop).ok_or_else(|| no_such(Kind::Role, name.as_str()))
            }
            Change::PutGroup(group) => self.put_group(group),
            Change::DeleteGroup(tenant, name) => self.delete_group(tenant, name),
            Change::PutPolicy(policy) => self.put_policy(policy),
            Change::DeletePolicy(tenant, name) => self.delete_policy(tenant, name),
            Change::PutProvider(provider) => self.put_provider(provider),
            Change::DeleteProvider(tenant, name) => {
                let gone = self.providers.remove(&(tenant, name.clone()));
                gone.map(drop).ok_or_else(|| no_such(Kind::Provider, name.as_str()))
            }
            Change::PutKey(key) => self.put_key(key),
            Change::DeleteKey(id) => {
                let gone = self.keys.remove(&id);
                gone.map(drop).ok_or_else(|| no_such(Kind::Key, id.as_str()))
            }
        }
    }

    fn put_tenant(&mut self, tenant: Tenant) -> Result<(), DirectoryError> {
        if tenant.number == TenantId::ROOT {
            return Err(DirectoryError::Root);
        }
        if tenant.number.0 > TENANT_NUMBER_MAX || Name::is_account(tenant.name.as_str()) {
            return Err(DirectoryError::TenantNumber);
        }
        let mut others = self.tenants.values().filter(|other| other.number != tenant.number);
        if others.any(|other| other.name == tenant.name) {
            return Err(taken(Kind::Tenant, tenant.name.as_str()));
        }
        self.tenants.insert(tenant.number, Arc::new(tenant));
        Ok(())
    }

    fn delete_tenant(&mut self, number: TenantId) -> Result<(), DirectoryError> {
        if number == TenantId::ROOT {
            return Err(DirectoryError::Root);
        }
        let name = match self.tenants.get(&number) {
            Some(tenant) => tenant.name.clone(),
            None => return Err(no_such(Kind::Tenant, &number.to_string())),
        };
        let by = if self.users(number).next().is_some() {
            Some(Kind::User)
        } else if self.roles(number).next().is_some() {
            Some(Kind::Role)
        } else if self.groups(number).next().is_some() {
            Some(Kind::Group)
        } else if self.policies(number).next().is_some() {
            Some(Kind::Policy)
        } else if self.providers(number).next().is_some() {
            Some(Kind::Provider)
        } else {
            self.keys.values().any(|key| key.record.tenant == number).then_some(Kind::Key)
        };
        if let Some(by) = by {
            return Err(in_use(Kind::Tenant, name.as_str(), by));
        }
        self.tenants.remove(&number);
        Ok(())
    }

    fn put_user(&mut self, user: User) -> Result<(), DirectoryError> {
        self.require_tenant(user.tenant)?;
        if user.groups.len() > NAMED_MAX {
            return Err(DirectoryError::TooMany("a user's groups"));
        }
        for group in &user.groups {
            self.group(user.tenant, group).ok_or_else(|| no_such(Kind::Group, group.as_str()))?;
        }
        self.require_policies(user.tenant, user.policies.iter())?;
        self.users.insert((user.tenant, user.name.clone()), Arc::new(user));
        Ok(())
    }

    fn delete_user(&mut self, tenant: TenantId, name: Name) -> Result<(), DirectoryError> {
        let has =
            |key: &Arc<Key>| key.record.tenant == tenant && key.record.user.as_ref() == Some(&name);
        if self.keys.values().any(has) {
            return Err(in_use(Kind::User, name.as_str(), Kind::Key));
        }
        let text = name.clone();
        let gone = self.users.remove(&(tenant, name));
        gone.map(drop).ok_or_else(|| no_such(Kind::User, text.as_str()))
    }

    fn put_role(&mut self, role: Role) -> Result<(), DirectoryError> {
        let record = &role.record;
        self.require_tenant(record.tenant)?;
        self.require_policies(record.tenant, record.policies.iter())?;
        if !ROLE_SESSION_S.contains(&record.session_max_s) {
            return Err(DirectoryError::SessionLength);
        }
        self.roles.insert((record.tenant, record.name.clone()), Arc::new(role));
        Ok(())
    }

    fn put_group(&mut self, group: Group) -> Result<(), DirectoryError> {
        self.require_tenant(group.tenant)?;
        self.require_policies(group.tenant, group.policies.iter())?;
        self.groups.insert((group.tenant, group.name.clone()), Arc::new(group));
        Ok(())
    }

    fn delete_group(&mut self, tenant: TenantId, name: Name) -> Result<(), DirectoryError> {
        if self.users(tenant).any(|user| user.groups.contains(&name)) {
            return Err(in_use(Kind::Group, name.as_str(), Kind::User));
        }
        let text = name.clone();
        let gone = self.groups.remove(&(tenant, name));
        gone.map(drop).ok_or_else(|| no_such(Kind::Group, text.as_str()))
    }

    fn put_policy(&mut self, policy: NamedPolicy) -> Result<(), DirectoryError> {
        let (tenant, name) = (policy.record.tenant, policy.record.name.clone());
        self.require_tenant(tenant)?;
        self.policies.insert((tenant, name), Arc::new(policy));
        Ok(())
    }

    fn delete_policy(&mut self, tenant: TenantId, name: Name) -> Result<(), DirectoryError> {
        let by = if self.users(tenant).any(|user| user.policies.contains(&name)) {
            Some(Kind::User)
        } else if self.roles(tenant).any(|role| role.record.policies.contains(&name)) {
            Some(Kind::Role)
        } else {
            let named = self.groups(tenant).any(|group| group.policies.contains(&name));
            named.then_some(Kind::Group)
        };
        if let Some(by) = by {
            return Err(in_use(Kind::Policy, name.as_str(), by));
        }
        let text = name.clone();
        let gone = self.policies.remove(&(tenant, name));
        gone.map(drop).ok_or_else(|| no_such(Kind::Policy, text.as_str()))
    }

    fn put_key(&mut self, key: Key) -> Result<(), DirectoryError> {
        let record = &key.record;
        self.require_tenant(record.tenant)?;
        if let Some(user) = &record.user {
            self.user(record.tenant, user).ok_or_else(|| no_such(Kind::User, user.as_str()))?;
        }
        let same =
            |other: &Key| other.record.tenant == record.tenant && other.record.user == record.user;
        match self.keys.get(&record.id) {
            // An id stands for one holder for ever: logs and sessions name it.
            Some(known) if !same(known) => return Err(taken(Kind::Key, record.id.as_str())),
            Some(_) => {}
            None => {
                if self.keys.values().filter(|other| same(other)).count() >= KEYS_PER_USER_MAX {
                    return Err(DirectoryError::TooMany("a user's keys"));
                }
            }
        }
        self.keys.insert(record.id.clone(), Arc::new(key));
        Ok(())
    }

    pub(super) fn require_tenant(&self, number: TenantId) -> Result<(), DirectoryError> {
        if number == TenantId::ROOT || self.tenants.contains_key(&number) {
            return Ok(());
        }
        Err(no_such(Kind::Tenant, &number.to_string()))
    }

    fn require_policies<'a>(
        &self,
        tenant: TenantId,
        names: impl ExactSizeIterator<Item = &'a Name>,
    ) -> Result<(), DirectoryError> {
        if names.len() > NAMED_MAX {
            return Err(DirectoryError::TooMany("policies"));
        }
        for name in names {
            self.policy(tenant, name).ok_or_else(|| no_such(Kind::Policy, name.as_str()))?;
        }
        Ok(())
    }
}

fn no_such(kind: Kind, name: &str) -> DirectoryError {
    DirectoryError::NoSuch { kind, name: name.to_owned() }
}

fn taken(kind: Kind, name: &str) -> DirectoryError {
    DirectoryError::Taken { kind, name: name.to_owned() }
}

fn in_use(kind: Kind, name: &str, by: Kind) -> DirectoryError {
    DirectoryError::InUse { kind, name: name.to_owned(), by }
}

#[cfg(test)]
mod tests;
