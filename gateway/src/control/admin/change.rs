//! Calls that change something.
//!
//! What is there and what is to be are compared under the accounts' lock, so that two callers
//! who make the same thing make it once.

use http::StatusCode;
use jiff::Timestamp;
use keyway_auth::directory::{
    AccessKey, Change, Group, Key, KeyState, Kind, Limits, ManagedPolicy, Name, NamedPolicy, Role,
    RoleRecord, Standing, Tenant, User, UserKind, role_id, user_id,
};
use keyway_auth::root::{check_access_key, check_secret, generated_secret};
use keyway_auth::{AccessKeyId, Principal, SecretKey};
use keyway_proto::{TenantId, Weight};
use serde::de::DeserializeOwned;

use super::call::{AdminCall, Target, Verb};
use super::document::{
    GroupDocument, GroupSettings, HolderKind, KeyDocument, KeySettings, KeyStanding,
    PolicyDocument, PolicySettings, RoleDocument, RoleSettings, SELF, TenantDocument,
    TenantSettings, UserDocument, UserSettings,
};
use super::error::AdminError;
use super::{AdminAnswer, Administration, answered, reached};
use crate::accounts::Cut;
use crate::control::{ControlError, parsed};

impl Administration {
    pub(super) async fn changed(
        &self,
        own: TenantId,
        call: &AdminCall,
        document: &[u8],
    ) -> Result<AdminAnswer, AdminError> {
        let put = call.verb == Verb::Put;
        let find = |tenant: &str| reached(&self.accounts.directory(), own, tenant);
        match &call.target {
            Target::Tenant(_) if own != TenantId::ROOT => Err(AdminError::Denied),
            Target::Tenant(tenant) if put => self.put_tenant(tenant, read(document)?).await,
            Target::Tenant(tenant) => self.delete_tenant(tenant).await,
            Target::User(of, name) if put => self.put_user(find(of)?, name, read(document)?).await,
            Target::User(of, name) => {
                let gone = Change::DeleteUser(find(of)?, name.clone());
                self.delete(Kind::User, gone).await
            }
            Target::Role(of, name) if put => self.put_role(find(of)?, name, read(document)?).await,
            Target::Role(of, name) => {
                let gone = Change::DeleteRole(find(of)?, name.clone());
                self.delete(Kind::Role, gone).await
            }
            Target::Group(of, name) if put => {
                self.put_group(find(of)?, name, read(document)?).await
            }
            Target::Group(of, name) => {
                let gone = Change::DeleteGroup(find(of)?, name.clone());
                self.delete(Kind::Group, gone).await
            }
            Target::Policy(of, name) if put => {
                self.put_policy(find(of)?, name, read(document)?).await
            }
            Target::Policy(of, name) => {
                let gone = Change::DeletePolicy(find(of)?, name.clone());
                self.delete(Kind::Policy, gone).await
            }
            Target::Provider(of, name) if put => {
                self.put_provider(find(of)?, name, read(document)?).await
            }
            Target::Provider(of, name) => {
                let gone = Change::DeleteProvider(find(of)?, name.clone());
                self.delete(Kind::Provider, gone).await
            }
            Target::Key(of, id) if put => self.put_key(find(of)?, id, read(document)?).await,
            Target::Key(of, id) => self.delete_key(find(of)?, id).await,
            _ => Err(AdminError::MethodNotAllowed("GET")),
        }
    }

    async fn put_tenant(
        &self,
        text: &str,
        settings: TenantSettings,
    ) -> Result<AdminAnswer, AdminError> {
        if matches!(text, Principal::ROOT | SELF) {
            return Err(AdminError::Denied);
        }
        let limits: Limits = settings.limits.try_into()?;
        let weight = settings.weight.map_or(Ok(Weight::default()), Weight::try_from);
        let weight = weight.map_err(|_| AdminError::OutOfBounds("weight"))?;
        let known = self.accounts.directory().tenant_number(text);
        let Some(number) = known else {
            let name: Name = text.parse().map_err(AdminError::Name)?;
            let tenant = Tenant {
                number: TenantId::ROOT,
                name: settings.name.unwrap_or(name),
                state: settings.state.into(),
                created: self.accounts.now(),
                public_access_block: settings.public_access_block.into(),
                limits,
                quota: settings.quota.into(),
                verification: settings.verify.map(Into::into),
                weight,
            };
            let made = self.accounts.add_tenant(tenant).await?;
            return answered(StatusCode::CREATED, &TenantDocument::from(&made), Cut::default());
        };
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.tenant(number);
                let known = known.ok_or_else(|| AdminError::no_such(Kind::Tenant, text))?;
                let tenant = Tenant {
                    number,
                    name: settings.name.unwrap_or_else(|| known.name.clone()),
                    state: settings.state.into(),
                    created: known.created,
                    public_access_block: settings.public_access_block.into(),
                    limits,
                    quota: settings.quota.into(),
                    verification: settings.verify.map(Into::into),
                    weight,
                };
                told = Some(TenantDocument::from(&tenant));
                Ok::<_, AdminError>(Some(Change::PutTenant(tenant)))
            })
            .await?;
        answered(StatusCode::OK, &told, cut)
    }

    /// A tenant that can still act could make a bucket while it is deleted: it is suspended first.
    async fn delete_tenant(&self, text: &str) -> Result<AdminAnswer, AdminError> {
        let directory = self.accounts.directory();
        let Some(number) = directory.tenant_number(text) else { return Ok(gone(Cut::default())) };
        if number != TenantId::ROOT {
            if directory.tenant(number).is_some_and(|tenant| tenant.state == Standing::Active) {
                return Err(AdminError::StillActive);
            }
            if !self.catalog.buckets(number, "", "", 1).await?.is_empty() {
                return Err(AdminError::HasBuckets);
            }
        }
        self.delete(Kind::Tenant, Change::DeleteTenant(number)).await
    }

    async fn put_user(
        &self,
        tenant: TenantId,
        name: &Name,
        settings: UserSettings,
    ) -> Result<AdminAnswer, AdminError> {
        let limits: Limits = settings.limits.try_into()?;
        let now = self.accounts.now();
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.user(tenant, name);
                let user = User {
                    tenant,
                    name: name.clone(),
                    id: known.map_or_else(user_id, |user| user.id.clone()),
                    kind: match settings.kind {
                        HolderKind::Person => UserKind::Person,
                        HolderKind::Service => UserKind::Service,
                    },
                    state: settings.state.into(),
                    created: known.map_or(now, |user| user.created),
                    groups: settings.groups,
                    policies: settings.policies,
                    tags: settings.tags,
                    sessions_valid_from: later(
                        known.and_then(|user| user.sessions_valid_from),
                        settings.sessions_valid_from,
                        now,
                    ),
                    limits,
                    quota: settings.quota.into(),
                };
                told = Some((status(known.is_none()), UserDocument::from(&user)));
                let same = known.is_some_and(|known| **known == user);
                Ok::<_, AdminError>((!same).then_some(Change::PutUser(user)))
            })
            .await?;
        let (status, document) = told.ok_or(AdminError::Interrupted)?;
        answered(status, &document, cut)
    }

    async fn put_role(
        &self,
        tenant: TenantId,
        name: &Name,
        settings: RoleSettings,
    ) -> Result<AdminAnswer, AdminError> {
        let now = self.accounts.now();
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.role(tenant, name).map(|role| &role.record);
                let record = RoleRecord {
                    tenant,
                    name: name.clone(),
                    id: known.map_or_else(role_id, |role| role.id.clone()),
                    state: settings.state.into(),
                    created: known.map_or(now, |role| role.created),
                    trust: settings.trust,
                    policies: settings.policies,
                    session_max_s: settings.session_max_s,
                    tags: settings.tags,
                    sessions_valid_from: later(
                        known.and_then(|role| role.sessions_valid_from),
                        settings.sessions_valid_from,
                        now,
                    ),
                };
                told = Some((status(known.is_none()), RoleDocument::from(&record)));
                let same = known.is_some_and(|known| *known == record);
                let role = Role::read(record)?;
                Ok::<_, AdminError>((!same).then_some(Change::PutRole(role)))
            })
            .await?;
        let (status, document) = told.ok_or(AdminError::Interrupted)?;
        answered(status, &document, cut)
    }

    async fn put_group(
        &self,
        tenant: TenantId,
        name: &Name,
        settings: GroupSettings,
    ) -> Result<AdminAnswer, AdminError> {
        let now = self.accounts.now();
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.group(tenant, name);
                let created = known.map_or(now, |group| group.created);
                let policies = settings.policies;
                let group = Group { tenant, name: name.clone(), created, policies };
                told = Some((status(known.is_none()), GroupDocument::from(&group)));
                Ok::<_, AdminError>(Some(Change::PutGroup(group)))
            })
            .await?;
        let (status, document) = told.ok_or(AdminError::Interrupted)?;
        answered(status, &document, cut)
    }

    async fn put_policy(
        &self,
        tenant: TenantId,
        name: &Name,
        settings: PolicySettings,
    ) -> Result<AdminAnswer, AdminError> {
        let now = self.accounts.now();
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.policy(tenant, name);
                let created = known.map_or(now, |policy| policy.record.created);
                let document = settings.document;
                let record = ManagedPolicy { tenant, name: name.clone(), created, document };
                told = Some((status(known.is_none()), PolicyDocument::from(&record)));
                Ok::<_, AdminError>(Some(Change::PutPolicy(NamedPolicy::read(record)?)))
            })
            .await?;
        let (status, document) = told.ok_or(AdminError::Interrupted)?;
        answered(status, &document, cut)
    }

    async fn put_key(
        &self,
        tenant: TenantId,
        id: &str,
        settings: KeySettings,
    ) -> Result<AdminAnswer, AdminError> {
        check_access_key(id)?;
        let given = settings.secret.map(SecretKey::new);
        if let Some(secret) = &given {
            check_secret(secret)?;
        }
        if self.accounts.is_root_key(id) {
            return Err(AdminError::Denied);
        }
        let now = self.accounts.now();
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.key(id);
                let drawn = (known.is_none() && given.is_none()).then(generated_secret);
                let secret = match (known, &given) {
                    (Some(known), Some(given)) if known.record.tenant == tenant => {
                        if !known.secret().same_as(given) {
                            return Err(AdminError::SecretChanged);
                        }
                        known.secret().clone()
                    }
                    (Some(known), _) => known.secret().clone(),
                    (None, Some(given)) => given.clone(),
                    (None, None) => drawn.clone().ok_or(AdminError::Interrupted)?,
                };
                let record = AccessKey {
                    id: AccessKeyId::new(id),
                    tenant,
                    user: settings.user,
                    state: match settings.state {
                        KeyStanding::Active => KeyState::Active,
                        KeyStanding::Disabled => KeyState::Disabled,
                    },
                    created: known.map_or(now, |key| key.record.created),
                    expires: settings.expires,
                    policy: settings.policy,
                    description: settings.description,
                };
                let mut document = KeyDocument::of(&record, None);
                document.secret = drawn.map(|secret| secret.expose().to_owned());
                told = Some((status(known.is_none()), document));
                Ok(Some(Change::PutKey(Key::read(record, secret)?)))
            })
            .await?;
        let (status, mut document) = told.ok_or(AdminError::Interrupted)?;
        document.last_used = self.accounts.last_used(id);
        answered(status, &document, cut)
    }

    async fn delete_key(&self, tenant: TenantId, id: &str) -> Result<AdminAnswer, AdminError> {
        let mine = |directory: &keyway_auth::Directory| {
            directory.key(id).is_some_and(|key| key.record.tenant == tenant)
        };
        let change = |directory: &keyway_auth::Directory| {
            let gone = Change::DeleteKey(AccessKeyId::new(id));
            Ok::<_, AdminError>(mine(directory).then_some(gone))
        };
        Ok(gone(self.accounts.change(change).await?))
    }

    /// To delete what is not there succeeds.
    async fn delete(&self, kind: Kind, change: Change) -> Result<AdminAnswer, AdminError> {
        use crate::accounts::AccountsError::Directory;
        use keyway_auth::directory::DirectoryError::NoSuch;
        match self.accounts.change(|_| Ok::<_, AdminError>(Some(change))).await {
            Ok(cut) => Ok(gone(cut)),
            Err(AdminError::Accounts(Directory(NoSuch { kind: missing, .. })))
                if missing == kind =>
            {
                Ok(gone(Cut::default()))
            }
            Err(error) => Err(error),
        }
    }
}

/// The time until which sessions are ended: it never goes back, so that a document that does not
/// know of it revives none.
fn later(known: Option<Timestamp>, given: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    known.max(given.map(|given| given.min(now)))
}

pub(super) fn status(made: bool) -> StatusCode {
    if made { StatusCode::CREATED } else { StatusCode::OK }
}

fn gone(cut: Cut) -> AdminAnswer {
    AdminAnswer { status: StatusCode::NO_CONTENT, json: Vec::new(), cut }
}

/// The document of a PUT; none at all stands for one without a field.
fn read<T: DeserializeOwned>(document: &[u8]) -> Result<T, AdminError> {
    let document = if document.is_empty() { b"{}" } else { document };
    parsed(document).map_err(|error| match error {
        ControlError::Malformed(position) => AdminError::Malformed(position),
        _ => AdminError::NoSuchEndpoint,
    })
}
