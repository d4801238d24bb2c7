//! Accounts: who there is, kept in the metadata and held in memory.
//!
//! Requests ask a snapshot, a [`Directory`], which a change replaces whole: no look-up waits for
//! I/O or for a writer. A change is checked against the rules, stored durably, and published; then
//! whom it shuts out is cut off ([`cutoff`]). One process writes: the metadata has one owner.
//!
//! | step of a change | where |
//! |---|---|
//! | the rules | `keyway_auth::directory` |
//! | the row; secrets sealed in it | [`rows`] |
//! | sessions of whom it shuts out | [`cutoff`] |
//! | temporary credentials, and those of them that have sessions | [`temporary`] |
//! | times of use, expiry, what could not be cut off at once | [`upkeep`] |
//!
//! What may not enter: HTTP, S3's words.

mod cutoff;
mod rows;
mod temporary;
mod upkeep;
mod used;

use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use keyway_auth::directory::{Change, DirectoryError, Name, Quota, Tenant};
use keyway_auth::session::{Issuer, is_temporary};
use keyway_auth::{
    AccessKeyId, Credential, CredentialStore, Directory, KeyProvider, Principal, RootCredentials,
    SecretKey, SecretsError, Terms, Unauthenticated,
};
use keyway_meta::{MetaError, UnixMs};
use keyway_proto::TenantId;
use tokio::sync::Mutex;

use crate::node::Nodes;
use crate::s3::Clock;

pub use cutoff::Cut;

/// Why accounts could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountsError {
    /// A rule forbids the change.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// A secret could not be sealed or opened.
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    /// A stored record cannot be used: nobody may be let in, or kept out, by a part of them.
    #[error("the stored {record} cannot be used: {why}")]
    Damaged {
        /// Which.
        record: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The accounts.
pub struct Accounts {
    rows: keyway_meta::Accounts,
    secrets: Arc<dyn KeyProvider>,
    issuer: Issuer,
    root: RootCredentials,
    clock: Arc<dyn Clock>,
    nodes: Nodes,
    directory: ArcSwap<Directory>,
    /// Held from the check of a change to its publication.
    writing: Mutex<()>,
    used: used::Used,
    cut: cutoff::Pending,
    watched: temporary::Watched,
}

impl Accounts {
    /// Reads all of them.
    ///
    /// # Errors
    /// [`AccountsError`]: a record that cannot be used is not passed over.
    pub async fn open(
        rows: keyway_meta::Accounts,
        secrets: Arc<dyn KeyProvider>,
        root: RootCredentials,
        clock: Arc<dyn Clock>,
        nodes: Nodes,
    ) -> Result<Self, AccountsError> {
        let used = used::Used::default();
        let mut directory = Directory::default();
        for (account, document) in rows.all().await? {
            rows::read(&mut directory, &used, &*secrets, &account, &document)?;
        }
        let issuer = Issuer::new(Arc::clone(&secrets))?;
        Ok(Self {
            rows,
            secrets,
            issuer,
            root,
            clock,
            nodes,
            directory: ArcSwap::from_pointee(directory),
            writing: Mutex::new(()),
            used,
            cut: cutoff::Pending::default(),
            watched: temporary::Watched::default(),
        })
    }

    /// The snapshot of now.
    pub fn directory(&self) -> Arc<Directory> {
        self.directory.load_full()
    }

    /// What the tenant may store, or one of its users; of a user who is gone there is no bound.
    pub fn quota(&self, tenant: TenantId, user: Option<&str>) -> Quota {
        let directory = self.directory.load();
        match user {
            None => directory.tenant(tenant).map(|tenant| tenant.quota),
            Some(name) => {
                let name: Option<Name> = name.parse().ok();
                name.and_then(|name| Some(directory.user(tenant, &name)?.quota))
            }
        }
        .unwrap_or_default()
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        timestamp(self.clock.now())
    }

    /// When the key was last used, if it ever was; told to the minute.
    pub fn last_used(&self, id: &str) -> Option<Timestamp> {
        self.used.of(id).map(timestamp)
    }

    /// Whether the id is that of the root credentials, which are configured and not kept here.
    pub fn is_root_key(&self, id: &str) -> bool {
        self.root.find(id).is_some()
    }

    /// Makes a change. When it is answered it is durable, it holds for every request that
    /// begins, and the sessions of whom it shuts out are closed on all nodes that answered.
    /// A change that is dropped may have been made.
    ///
    /// `decide` sees the directory that the change applies to: nobody else changes it meanwhile.
    ///
    /// # Errors
    /// [`AccountsError`], or what `decide` refuses with.
    pub async fn change<E: From<AccountsError>>(
        &self,
        decide: impl FnOnce(&Directory) -> Result<Option<Change>, E>,
    ) -> Result<Cut, E> {
        let turn = self.writing.lock().await;
        let before = self.directory();
        let Some(change) = decide(&before)? else { return Ok(Cut::default()) };
        let after = before.with(change.clone()).map_err(AccountsError::from)?;
        let (account, document) = rows::written(&change, &*self.secrets)?;
        let written = self.rows.write(&account, document.as_deref()).await;
        written.map_err(AccountsError::from)?;
        self.directory.store(Arc::new(after));
        drop(turn);
        let sides = cutoff::Sides { before: &before, after: &self.directory(), now: self.now() };
        let shut = cutoff::shut_out(&sides, &self.watched, &change);
        Ok(self.cut.off(&self.nodes, shut).await)
    }

    /// Makes a tenant under a number that none ever had.
    ///
    /// # Errors
    /// As [`change`](Self::change); `Taken` when another one has the name.
    pub async fn add_tenant(&self, tenant: Tenant) -> Result<Tenant, AccountsError> {
        let _turn = self.writing.lock().await;
        let before = self.directory();
        // With the least number: what the rules say of it holds for any.
        if before.tenants().any(|other| other.name == tenant.name) {
            let (kind, name) = (keyway_auth::directory::Kind::Tenant, tenant.name.to_string());
            return Err(DirectoryError::Taken { kind, name }.into());
        }
        before.with(Change::PutTenant(Tenant { number: TenantId(1), ..tenant.clone() }))?;
        let numbered = |number| rows::encode(&Tenant { number, ..tenant.clone() });
        let number = self.rows.add_tenant(numbered).await?;
        let tenant = Tenant { number, ..tenant };
        self.directory.store(Arc::new(before.with(Change::PutTenant(tenant.clone()))?));
        Ok(tenant)
    }
}

impl CredentialStore for Accounts {
    fn find(&self, id: &str) -> Option<Credential> {
        if let Some(root) = self.root.find(id) {
            return Some(root);
        }
        let now = self.clock.now();
        match self.directory.load().find(id, timestamp(now)) {
            Ok(credential) => Some(credential),
            Err(why) => {
                tracing::debug!(access_key = id, %why, "a key was refused");
                None
            }
        }
    }

    fn secret(&self, id: &str) -> Option<SecretKey> {
        let temporary = self.issuer.secret(id);
        temporary.or_else(|| self.find(id).map(|credential| credential.secret))
    }

    fn principal(&self, id: &str, token: Option<&str>) -> Result<Principal, Unauthenticated> {
        if is_temporary(id) {
            return self.temporary(id, token);
        }
        if token.is_some() {
            return Err(Unauthenticated::InvalidToken);
        }
        self.find(id).map(|found| found.principal).ok_or(Unauthenticated::NoSuchKey)
    }

    fn stands(&self, principal: &Principal) -> bool {
        match &principal.claims {
            Some(claims) => self.still_stands(principal, claims),
            None => self.find(principal.access_key.as_str()).is_some(),
        }
    }

    fn watch(&self, principal: &Principal) -> bool {
        let claims = principal.claims.as_ref();
        claims.is_none_or(|claims| self.watched.add(principal, claims))
    }

    fn used(&self, id: &str) {
        // The root's is configured and not kept; temporary ones are not kept either.
        if !self.is_root_key(id) && !is_temporary(id) {
            self.used.touch(id, self.clock.now());
        }
    }

    fn keys_of(&self, tenant: TenantId, user: &str) -> Vec<AccessKeyId> {
        let directory = self.directory.load();
        let of_user = directory.keys().map(|key| &key.record).filter(|key| {
            key.tenant == tenant && key.user.as_ref().is_some_and(|name| name.as_str() == user)
        });
        of_user.map(|key| key.id.clone()).collect()
    }

    fn terms(&self, tenant: TenantId) -> Terms {
        let directory = self.directory.load();
        directory.tenant(tenant).map_or_else(Terms::default, |tenant| Terms {
            standing: tenant.state,
            block: tenant.public_access_block,
            limits: tenant.limits,
            verification: tenant.verification,
            weight: tenant.weight,
        })
    }
}

fn timestamp(at: UnixMs) -> Timestamp {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}
