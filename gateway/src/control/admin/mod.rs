//! The administration: tenants, users, roles, groups, policies, providers and keys, as documents
//! under paths.
//!
//! GET tells, PUT makes a thing be as the document says, DELETE makes it be gone. All of them may
//! be repeated. `keyway admin openapi` prints the OpenAPI document (docs/openapi.json), which is made
//! from [`call::ROUTES`] and the types in [`document`].
//!
//! Who may: what is asked of policies is `keyway:AdminRead` and `keyway:AdminWrite` on the
//! caller's own tenant; whoever asks has asked. Here stands which tenants it reaches: one's own,
//! and from the root tenant all. Tenants themselves are made by the root tenant.
//!
//! What may not enter: HTTP bodies, signatures, S3's error codes.

mod call;
mod change;
mod document;
mod error;
pub mod openapi;
mod provider;

use std::sync::Arc;

use http::StatusCode;
use keyway_auth::Directory;
use keyway_auth::directory::{Kind, Name};
use keyway_meta::Catalog;
use keyway_proto::TenantId;
use serde::Serialize;

use crate::accounts::{Accounts, Cut};

pub use call::{AdminCall, Target, Verb};
pub use document::*;
pub use error::AdminError;

/// Largest document in a request, in bytes: a policy, and what JSON escapes of it.
pub const ADMIN_DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// What the administration works on.
#[derive(Clone)]
pub struct Administration {
    accounts: Arc<Accounts>,
    catalog: Arc<Catalog>,
}

/// The answer to a call that was done.
#[derive(Clone, Debug)]
pub struct AdminAnswer {
    /// The status.
    pub status: StatusCode,
    /// The document; empty where there is none.
    pub json: Vec<u8>,
    /// What the change cut off.
    pub cut: Cut,
}

impl Administration {
    /// Over these.
    pub fn new(accounts: Arc<Accounts>, catalog: Arc<Catalog>) -> Self {
        Self { accounts, catalog }
    }

    /// The accounts.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// Does what somebody of this tenant calls for, who may read or write as the call does. A
    /// change that was begun is made, though the caller goes away.
    ///
    /// # Errors
    /// [`AdminError`]; nothing was changed then.
    pub async fn answer(
        &self,
        own: TenantId,
        call: AdminCall,
        document: &[u8],
    ) -> Result<AdminAnswer, AdminError> {
        if call.verb == Verb::Get {
            return self.told(own, &call).await;
        }
        let (this, document) = (self.clone(), document.to_vec());
        let changed = tokio::spawn(async move { this.changed(own, &call, &document).await });
        changed.await.map_err(|_| AdminError::Interrupted)?
    }

    async fn told(&self, own: TenantId, call: &AdminCall) -> Result<AdminAnswer, AdminError> {
        let directory = self.accounts.directory();
        let directory = &*directory;
        let find = |tenant: &str| reached(directory, own, tenant);
        match &call.target {
            Target::Tenants => {
                let root = own == TenantId::ROOT;
                let visible = directory.tenants().filter(|tenant| root || tenant.number == own);
                ok(&Tenants { tenants: visible.map(|tenant| (&**tenant).into()).collect() })
            }
            Target::Tenant(tenant) => {
                let number = find(tenant)?;
                let mut document = match directory.tenant(number) {
                    Some(tenant) => TenantDocument::from(&**tenant),
                    None => TenantDocument::root(),
                };
                document.usage = Some(self.usage(number, None).await?);
                ok(&document)
            }
            Target::Users(tenant) => {
                let users = directory.users(find(tenant)?);
                ok(&Users { users: users.map(|user| (&**user).into()).collect() })
            }
            Target::User(tenant, name) => {
                let number = find(tenant)?;
                let user = directory.user(number, name);
                let user = user.ok_or_else(|| no_such(Kind::User, name))?;
                let mut document = UserDocument::from(&**user);
                document.usage = Some(self.usage(number, Some(name.as_str())).await?);
                ok(&document)
            }
            Target::Roles(tenant) => {
                let roles = directory.roles(find(tenant)?);
                ok(&Roles { roles: roles.map(|role| (&role.record).into()).collect() })
            }
            Target::Role(tenant, name) => {
                let role = directory.role(find(tenant)?, name);
                let role = role.ok_or_else(|| no_such(Kind::Role, name))?;
                ok(&RoleDocument::from(&role.record))
            }
            Target::Groups(tenant) => {
                let groups = directory.groups(find(tenant)?);
                ok(&Groups { groups: groups.map(|group| (&**group).into()).collect() })
            }
            Target::Group(tenant, name) => {
                let group = directory.group(find(tenant)?, name);
                ok(&GroupDocument::from(&**group.ok_or_else(|| no_such(Kind::Group, name))?))
            }
            Target::Policies(tenant) => {
                let policies = directory.policies(find(tenant)?);
                let policies = policies.map(|policy| (&policy.record).into()).collect();
                ok(&Policies { policies })
            }
            Target::Policy(tenant, name) => {
                let policy = directory.policy(find(tenant)?, name);
                let policy = policy.ok_or_else(|| no_such(Kind::Policy, name))?;
                ok(&PolicyDocument::from(&policy.record))
            }
            Target::Providers(tenant) => {
                let providers = directory.providers(find(tenant)?);
                let providers = providers.map(|provider| (&**provider).into()).collect();
                ok(&Providers { providers })
            }
            Target::Provider(tenant, name) => {
                let provider = directory.provider(find(tenant)?, name);
                let provider = provider.ok_or_else(|| no_such(Kind::Provider, name))?;
                ok(&ProviderDocument::from(&**provider))
            }
            Target::Keys(tenant) => {
                let tenant = find(tenant)?;
                let mut keys: Vec<_> =
                    directory.keys().filter(|key| key.record.tenant == tenant).collect();
                keys.sort_by(|left, right| left.record.id.cmp(&right.record.id));
                let told = |id: &str| self.accounts.last_used(id);
                let keys = keys
                    .into_iter()
                    .map(|key| KeyDocument::of(&key.record, told(key.record.id.as_str())));
                ok(&Keys { keys: keys.collect() })
            }
            Target::Key(tenant, id) => {
                let tenant = find(tenant)?;
                let key = directory.key(id).filter(|key| key.record.tenant == tenant);
                let key = key.ok_or_else(|| AdminError::no_such(Kind::Key, id))?;
                ok(&KeyDocument::of(&key.record, self.accounts.last_used(id)))
            }
        }
    }

    async fn usage(&self, tenant: TenantId, user: Option<&str>) -> Result<Usage, AdminError> {
        let usage = self.catalog.usage(tenant, user).await?;
        Ok(Usage { bytes: usage.bytes, objects: usage.objects })
    }
}

/// The tenant that is meant, if the caller reaches it: to everybody else none other is there.
fn reached(directory: &Directory, own: TenantId, text: &str) -> Result<TenantId, AdminError> {
    if text == SELF {
        return Ok(own);
    }
    let found = directory.tenant_number(text);
    match found {
        Some(number) if number == own || own == TenantId::ROOT => Ok(number),
        None if own == TenantId::ROOT => Err(AdminError::no_such(Kind::Tenant, text)),
        _ => Err(AdminError::Denied),
    }
}

fn no_such(kind: Kind, name: &Name) -> AdminError {
    AdminError::no_such(kind, name.as_str())
}

fn ok(document: &impl Serialize) -> Result<AdminAnswer, AdminError> {
    answered(StatusCode::OK, document, Cut::default())
}

fn answered(
    status: StatusCode,
    document: &impl Serialize,
    cut: Cut,
) -> Result<AdminAnswer, AdminError> {
    let json = serde_json::to_vec(document).expect("types of ours have a JSON form");
    Ok(AdminAnswer { status, json, cut })
}
