//! The documents that are sent and answered.

mod conversion;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use jiff::Timestamp;
use keyway_auth::directory::Name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The caller's own tenant, in a path.
pub(super) const SELF: &str = "self";

/// Whether keys open anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// They do.
    #[default]
    Active,
    /// None does.
    Suspended,
}

/// The settings of S3's public-access block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Block {
    /// ACLs that grant to everybody are refused.
    pub block_public_acls: bool,
    /// Kept; there are no such ACLs.
    pub ignore_public_acls: bool,
    /// Bucket policies that are public are refused.
    pub block_public_policy: bool,
    /// Buckets whose policy is public let in only their owner's tenant.
    pub restrict_public_buckets: bool,
}

/// What somebody may take at most; of what is left out there is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Requests in a second, and as many of them at once; at least 1.
    pub requests_per_second: Option<u64>,
    /// Bytes of objects in a second, in both directions together; at least 1.
    pub bytes_per_second: Option<u64>,
    /// Sessions for direct transfers that are open.
    pub sessions: Option<u64>,
    /// Direct transfers under way.
    pub keys_in_flight: Option<u64>,
}

/// What somebody may store at most; of what is left out there is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Bytes of all versions of objects, and of the parts of uploads in progress.
    pub bytes: Option<u64>,
    /// Objects, all versions of them, and parts.
    pub objects: Option<u64>,
}

/// When what is read is compared with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// All of it before the first byte leaves.
    BeforeDelivery,
    /// Each block before its own bytes leave.
    Inline,
    /// By the reader.
    Client,
}

/// What somebody stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Bytes of all versions of objects, and of the parts of uploads in progress.
    pub bytes: u64,
    /// Objects, all versions of them, and parts.
    pub objects: u64,
}

/// What is sent of a tenant.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSettings {
    /// Another name; the one in the path unless said.
    #[schema(value_type = Option<String>)]
    pub name: Option<Name>,
    /// Whether its keys open anything.
    pub state: State,
    /// What adds to the public-access block of each of its buckets.
    pub public_access_block: Block,
    /// What all that is its own may take together.
    pub limits: Limits,
    /// What it may store.
    pub quota: Quota,
    /// When what is read of its buckets is compared with its checksums, where they did not say.
    pub verify: Option<Verify>,
    /// Its share of what several tenants want at once, 1 to 10,000; 100 unless it is said.
    #[schema(minimum = 1, maximum = 10000)]
    pub weight: Option<u32>,
}

/// A tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TenantDocument {
    /// Its name.
    pub name: String,
    /// Its number, of twelve digits.
    pub number: String,
    /// Whether its keys open anything.
    pub state: State,
    /// When it was made; none for the root tenant.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created: Option<Timestamp>,
    /// What adds to the public-access block of each of its buckets.
    pub public_access_block: Block,
    /// What all that is its own may take together.
    pub limits: Limits,
    /// What it may store.
    pub quota: Quota,
    /// When what is read of its buckets is compared with its checksums, where they did not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verify: Option<Verify>,
    /// Its share of what several tenants want at once.
    pub weight: u32,
    /// What it stores.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Usage>,
}

/// Whom a user's keys are made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HolderKind {
    /// A person.
    #[default]
    Person,
    /// A program: a service account.
    Service,
}

/// What is sent of a user.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UserSettings {
    /// A person or a program.
    pub kind: HolderKind,
    /// Whether its keys open anything.
    pub state: State,
    /// The groups that it is in.
    #[schema(value_type = Vec<String>)]
    pub groups: BTreeSet<Name>,
    /// The policies that speak to it.
    #[schema(value_type = Vec<String>)]
    pub policies: BTreeSet<Name>,
    /// `aws:PrincipalTag/…`.
    pub tags: BTreeMap<String, String>,
    /// Temporary credentials that were made until then open nothing. It never goes back, and what
    /// lies ahead means now.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub sessions_valid_from: Option<Timestamp>,
    /// What its keys may take together, within what the tenant may.
    pub limits: Limits,
    /// What it may store in the tenant's buckets, within what the tenant may.
    pub quota: Quota,
}

/// A user.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserDocument {
    /// Its name.
    pub name: String,
    /// `aws:userid`.
    pub id: String,
    /// Its ARN, as bucket policies name it.
    pub arn: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The rest, as it is sent.
    #[serde(flatten)]
    pub settings: UserSettings,
    /// What it stores in the tenant's buckets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Usage>,
}

/// What is sent of a role.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleSettings {
    /// The text of the policy that says who may take it, with `sts:AssumeRole` and
    /// `sts:AssumeRoleWithWebIdentity`.
    pub trust: String,
    /// Whether its sessions open anything.
    #[serde(default)]
    pub state: State,
    /// The policies that speak to its sessions.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub policies: BTreeSet<Name>,
    /// How long a session may last, in seconds: from 3600 to 43200.
    #[serde(default = "role_session_s")]
    pub session_max_s: u32,
    /// `aws:PrincipalTag/…`.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Sessions that were begun until then open nothing. It never goes back, and what lies ahead
    /// means now.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub sessions_valid_from: Option<Timestamp>,
}

/// An hour.
const fn role_session_s() -> u32 {
    3600
}

/// A role.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RoleDocument {
    /// Its name.
    pub name: String,
    /// The first part of its sessions' `aws:userid`.
    pub id: String,
    /// Its ARN.
    pub arn: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The rest, as it is sent.
    #[serde(flatten)]
    pub settings: RoleSettings,
}

/// What is sent of a group.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GroupSettings {
    /// The policies that speak to its users.
    #[schema(value_type = Vec<String>)]
    pub policies: BTreeSet<Name>,
}

/// A group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupDocument {
    /// Its name.
    pub name: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The policies that speak to its users.
    pub policies: Vec<String>,
}

/// What is sent of a policy.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySettings {
    /// The policy's text: JSON within JSON, so that it comes back as it was written.
    pub document: String,
}

/// A policy.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyDocument {
    /// Its name.
    pub name: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The policy's text.
    pub document: String,
}

/// What is sent of an OpenID Connect provider.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderSettings {
    /// Its issuer, as its tokens have it: `https://host[:port][/path]`. Another issuer is another
    /// provider: what was taken by the word of the one before ends.
    pub issuer: String,
    /// For whom its tokens must be: one of these, also called client ids.
    #[serde(default)]
    pub audiences: BTreeSet<String>,
    /// The authorities that the issuer's certificate must go back to, in PEM; the system's unless
    /// given.
    #[serde(default)]
    pub ca_pem: Option<String>,
}

/// An OpenID Connect provider.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProviderDocument {
    /// Its name.
    pub name: String,
    /// Its ARN, as roles' trust policies name it under `Federated`.
    pub arn: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// The rest, as it is sent.
    #[serde(flatten)]
    pub settings: ProviderSettings,
}

/// Whether a key was disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeyStanding {
    /// It was not.
    #[default]
    Active,
    /// It was.
    Disabled,
}

/// What is sent of a key.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeySettings {
    /// The user whose it is; none for the tenant itself. It never changes.
    #[schema(value_type = Option<String>)]
    pub user: Option<Name>,
    /// Whether it is disabled.
    pub state: KeyStanding,
    /// It opens nothing from then on.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
    /// A policy that bounds what it may be used for.
    pub policy: Option<String>,
    /// What it is for.
    pub description: String,
    /// The secret of a new key; one is drawn unless it is given. It never changes.
    #[schema(format = Password)]
    pub secret: Option<String>,
}

/// A key.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyDocument {
    /// Its id.
    pub id: String,
    /// The user whose it is; none for the tenant itself.
    pub user: Option<String>,
    /// Whether it is disabled.
    pub state: KeyStanding,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// It opens nothing from then on.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires: Option<Timestamp>,
    /// A policy that bounds what it may be used for.
    pub policy: Option<String>,
    /// What it is for.
    pub description: String,
    /// When it was last used, to the minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used: Option<Timestamp>,
    /// The secret that was drawn: in the answer that makes the key, and never again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(format = Password)]
    pub secret: Option<String>,
}

macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident { $field:ident: $of:ident })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Serialize, Deserialize, ToSchema)]
            pub struct $name {
                /// By name.
                pub $field: Vec<$of>,
            }
        )+
    };
}

lists! {
    /// Tenants, without the root tenant.
    Tenants { tenants: TenantDocument }
    /// A tenant's users.
    Users { users: UserDocument }
    /// A tenant's roles.
    Roles { roles: RoleDocument }
    /// A tenant's groups.
    Groups { groups: GroupDocument }
    /// A tenant's policies.
    Policies { policies: PolicyDocument }
    /// A tenant's OpenID Connect providers.
    Providers { providers: ProviderDocument }
    /// A tenant's keys.
    Keys { keys: KeyDocument }
}

/// Why a call was not done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorDocument {
    /// The words for it.
    pub error: ErrorWords,
}

/// A code for programs and a message for people.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorWords {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
}
