//! The records: what is known of a tenant, a user, a group, a policy and an access key.
//!
//! They are stored as they serialise: fields may be added with a default, and none may change
//! its meaning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use jiff::Timestamp;
use keyway_proto::{TenantId, Verification, Weight};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::name::Name;
use crate::credential::{AccessKeyId, SecretKey};
use crate::policy::{Policy, PolicyError, PublicAccessBlock};
use crate::root::random_letters;

/// Whether somebody's keys open anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// They do.
    #[default]
    Active,
    /// None does.
    Suspended,
}

/// What somebody may take at most; of what is not said there is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Requests in a second, and as many of them at once.
    pub requests_per_second: Option<NonZeroU64>,
    /// Bytes of objects in a second, in both directions together.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Sessions for direct transfers that are open.
    pub sessions: Option<u64>,
    /// Direct transfers under way: each has a key to a client's memory.
    pub keys_in_flight: Option<u64>,
}

impl Limits {
    /// Whether anything is bounded.
    pub fn are_of_use(&self) -> bool {
        *self != Self::default()
    }
}

/// What a tenant may store at most in all of its buckets, or a user of it; of what is not said there
/// is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Bytes of all versions of its objects, and of the parts of uploads in progress.
    pub bytes: Option<u64>,
    /// Objects, all versions of them, and parts.
    pub objects: Option<u64>,
}

/// A tenant: what AWS calls an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Never reused; its twelve digits are the account number.
    pub number: TenantId,
    /// Unique, and changeable.
    pub name: Name,
    /// Whether its keys open anything.
    #[serde(default)]
    pub state: Standing,
    /// When it was made.
    pub created: Timestamp,
    /// What adds to the public-access block of each of its buckets.
    #[serde(default)]
    pub public_access_block: PublicAccessBlock,
    /// What all that is its own may take together.
    #[serde(default)]
    pub limits: Limits,
    /// What it may store.
    #[serde(default)]
    pub quota: Quota,
    /// When what is read of its buckets is compared with its checksums, where they do not say.
    #[serde(default)]
    pub verification: Option<Verification>,
    /// Its share of what several want at once.
    #[serde(default)]
    pub weight: Weight,
}

/// Whom a user's keys are made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserKind {
    /// A person.
    #[default]
    Person,
    /// A program: a service account. Policies make no difference.
    Service,
}

/// A user of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Whose.
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: Name,
    /// `aws:userid`: never that of another, even of the same name.
    pub id: String,
    /// A person or a program.
    #[serde(default)]
    pub kind: UserKind,
    /// Whether its keys open anything.
    #[serde(default)]
    pub state: Standing,
    /// When it was made.
    pub created: Timestamp,
    /// The groups that it is in.
    #[serde(default)]
    pub groups: BTreeSet<Name>,
    /// The policies that speak to it.
    #[serde(default)]
    pub policies: BTreeSet<Name>,
    /// `aws:PrincipalTag/…`.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Temporary credentials that were made until then open nothing.
    #[serde(default)]
    pub sessions_valid_from: Option<Timestamp>,
    /// What its keys may take together, within what the tenant may.
    #[serde(default)]
    pub limits: Limits,
    /// What it may store in the tenant's buckets, within what the tenant may.
    #[serde(default)]
    pub quota: Quota,
}

/// A new user's id.
pub fn user_id() -> String {
    format!("KWU{}", random_letters())
}

/// Shortest and longest time that a role's sessions may be allowed to last, in seconds.
pub const ROLE_SESSION_S: std::ops::RangeInclusive<u32> = 3600..=43_200;

/// What is known of a role: somebody whom others may be for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleRecord {
    /// Whose.
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: Name,
    /// The first part of `aws:userid`: never that of another, even of the same name.
    pub id: String,
    /// Whether its sessions open anything.
    #[serde(default)]
    pub state: Standing,
    /// When it was made.
    pub created: Timestamp,
    /// The text of the policy that says who may take it.
    pub trust: String,
    /// The policies that speak to its sessions.
    #[serde(default)]
    pub policies: BTreeSet<Name>,
    /// How long a session may last, in seconds.
    pub session_max_s: u32,
    /// `aws:PrincipalTag/…`.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Sessions that were begun until then open nothing.
    #[serde(default)]
    pub sessions_valid_from: Option<Timestamp>,
}

/// A new role's id.
pub fn role_id() -> String {
    format!("KWR{}", random_letters())
}

/// A role with its trust policy read.
#[derive(Clone, Debug)]
pub struct Role {
    /// The record.
    pub record: RoleRecord,
    trust: Policy,
}

impl Role {
    /// Reads the trust policy.
    ///
    /// # Errors
    /// When it is malformed; where and how.
    pub fn read(record: RoleRecord) -> Result<Self, PolicyError> {
        let trust = Policy::trust(&record.trust)?;
        Ok(Self { record, trust })
    }

    /// The policy that says who may take it.
    pub fn trust(&self) -> &Policy {
        &self.trust
    }
}

/// A group of a tenant's users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Whose.
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: Name,
    /// When it was made.
    pub created: Timestamp,
    /// The policies that speak to its users.
    #[serde(default)]
    pub policies: BTreeSet<Name>,
}

/// A policy that users and groups of a tenant may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagedPolicy {
    /// Whose.
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: Name,
    /// When it was made.
    pub created: Timestamp,
    /// The policy's text.
    pub document: String,
}

/// A policy with its text read.
#[derive(Clone, Debug)]
pub struct NamedPolicy {
    /// The record.
    pub record: ManagedPolicy,
    /// The policy.
    pub(super) parsed: Arc<Policy>,
}

impl NamedPolicy {
    /// Reads the policy.
    ///
    /// # Errors
    /// When it is malformed; where and how.
    pub fn read(record: ManagedPolicy) -> Result<Self, PolicyError> {
        let parsed = Arc::new(Policy::identity(&record.document)?);
        Ok(Self { record, parsed })
    }
}

/// Whether a key was disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// It was not.
    #[default]
    Active,
    /// It was.
    Disabled,
}

/// An access key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// Unique among all tenants, and never another's.
    #[serde(serialize_with = "id_text", deserialize_with = "id_of_text")]
    pub id: AccessKeyId,
    /// Whose.
    pub tenant: TenantId,
    /// Whose within the tenant; none for the tenant itself.
    #[serde(default)]
    pub user: Option<Name>,
    /// Whether it was disabled.
    #[serde(default)]
    pub state: KeyState,
    /// When it was made.
    pub created: Timestamp,
    /// It opens nothing from then on.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// A policy that bounds what it may be used for.
    #[serde(default)]
    pub policy: Option<String>,
    /// What it is for, in its owner's words.
    #[serde(default)]
    pub description: String,
}

/// An access key with its secret and with its policy read.
#[derive(Clone)]
pub struct Key {
    /// The record.
    pub record: AccessKey,
    pub(super) secret: SecretKey,
    pub(super) narrowed: Vec<Arc<Policy>>,
}

impl Key {
    /// Reads the key's own policy, if it has one.
    ///
    /// # Errors
    /// When it is malformed; where and how.
    pub fn read(record: AccessKey, secret: SecretKey) -> Result<Self, PolicyError> {
        let narrowed = match &record.policy {
            Some(text) => vec![Arc::new(Policy::session(text)?)],
            None => Vec::new(),
        };
        Ok(Self { record, secret, narrowed })
    }

    /// Its secret.
    pub fn secret(&self) -> &SecretKey {
        &self.secret
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.record).finish()
    }
}

pub(crate) fn id_text<S: Serializer>(id: &AccessKeyId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

pub(crate) fn id_of_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<AccessKeyId, D::Error> {
    let text = String::deserialize(deserializer)?;
    crate::root::check_access_key(&text).map_err(serde::de::Error::custom)?;
    Ok(AccessKeyId::new(&text))
}
