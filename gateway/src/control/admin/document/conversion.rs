//! From accounts to their documents, and back.

use keyway_auth::directory::{
    self, AccessKey, Group, KeyState, ManagedPolicy, Provider, RoleRecord, Standing, Tenant, User,
    UserKind,
};
use keyway_auth::policy::PublicAccessBlock;
use keyway_proto::{TenantId, Verification, Weight};

use super::*;
use crate::control::admin::error::AdminError;

impl TenantDocument {
    /// The tenant that there is from the first start on.
    pub(in crate::control::admin) fn root() -> Self {
        Self {
            name: keyway_auth::Principal::ROOT.to_owned(),
            number: number(TenantId::ROOT),
            state: State::Active,
            created: None,
            public_access_block: Block::default(),
            limits: Limits::default(),
            quota: Quota::default(),
            verify: None,
            weight: Weight::default().get(),
            usage: None,
        }
    }
}

impl From<&Tenant> for TenantDocument {
    fn from(tenant: &Tenant) -> Self {
        let block = tenant.public_access_block;
        Self {
            name: tenant.name.to_string(),
            number: number(tenant.number),
            state: tenant.state.into(),
            created: Some(tenant.created),
            public_access_block: Block {
                block_public_acls: block.block_public_acls,
                ignore_public_acls: block.ignore_public_acls,
                block_public_policy: block.block_public_policy,
                restrict_public_buckets: block.restrict_public_buckets,
            },
            limits: tenant.limits.into(),
            quota: tenant.quota.into(),
            verify: tenant.verification.map(Into::into),
            weight: tenant.weight.get(),
            usage: None,
        }
    }
}

impl From<directory::Limits> for Limits {
    fn from(limits: directory::Limits) -> Self {
        Self {
            requests_per_second: limits.requests_per_second.map(NonZeroU64::get),
            bytes_per_second: limits.bytes_per_second.map(NonZeroU64::get),
            sessions: limits.sessions,
            keys_in_flight: limits.keys_in_flight,
        }
    }
}

impl TryFrom<Limits> for directory::Limits {
    type Error = AdminError;

    /// A rate of nothing is no rate: whoever is to do nothing is suspended.
    fn try_from(limits: Limits) -> Result<Self, AdminError> {
        let rate = |name: &'static str, rate: Option<u64>| match rate.map(NonZeroU64::new) {
            None => Ok(None),
            Some(Some(rate)) => Ok(Some(rate)),
            Some(None) => Err(AdminError::OutOfBounds(name)),
        };
        Ok(Self {
            requests_per_second: rate("requests_per_second", limits.requests_per_second)?,
            bytes_per_second: rate("bytes_per_second", limits.bytes_per_second)?,
            sessions: limits.sessions,
            keys_in_flight: limits.keys_in_flight,
        })
    }
}

impl From<directory::Quota> for Quota {
    fn from(quota: directory::Quota) -> Self {
        Self { bytes: quota.bytes, objects: quota.objects }
    }
}

impl From<Quota> for directory::Quota {
    fn from(quota: Quota) -> Self {
        Self { bytes: quota.bytes, objects: quota.objects }
    }
}

impl From<Verification> for Verify {
    fn from(verification: Verification) -> Self {
        match verification {
            Verification::BeforeDelivery => Self::BeforeDelivery,
            Verification::Inline => Self::Inline,
            Verification::Client => Self::Client,
        }
    }
}

impl From<Verify> for Verification {
    fn from(verify: Verify) -> Self {
        match verify {
            Verify::BeforeDelivery => Self::BeforeDelivery,
            Verify::Inline => Self::Inline,
            Verify::Client => Self::Client,
        }
    }
}

impl From<Block> for PublicAccessBlock {
    fn from(block: Block) -> Self {
        Self {
            block_public_acls: block.block_public_acls,
            ignore_public_acls: block.ignore_public_acls,
            block_public_policy: block.block_public_policy,
            restrict_public_buckets: block.restrict_public_buckets,
        }
    }
}

impl From<&User> for UserDocument {
    fn from(user: &User) -> Self {
        Self {
            name: user.name.to_string(),
            id: user.id.clone(),
            arn: format!("arn:aws:iam::{}:user/{}", number(user.tenant), user.name),
            created: user.created,
            settings: UserSettings {
                kind: match user.kind {
                    UserKind::Person => HolderKind::Person,
                    UserKind::Service => HolderKind::Service,
                },
                state: user.state.into(),
                groups: user.groups.clone(),
                policies: user.policies.clone(),
                tags: user.tags.clone(),
                sessions_valid_from: user.sessions_valid_from,
                limits: user.limits.into(),
                quota: user.quota.into(),
            },
            usage: None,
        }
    }
}

impl From<&RoleRecord> for RoleDocument {
    fn from(role: &RoleRecord) -> Self {
        Self {
            name: role.name.to_string(),
            id: role.id.clone(),
            arn: format!("arn:aws:iam::{}:role/{}", number(role.tenant), role.name),
            created: role.created,
            settings: RoleSettings {
                trust: role.trust.clone(),
                state: role.state.into(),
                policies: role.policies.clone(),
                session_max_s: role.session_max_s,
                tags: role.tags.clone(),
                sessions_valid_from: role.sessions_valid_from,
            },
        }
    }
}

impl From<&Group> for GroupDocument {
    fn from(group: &Group) -> Self {
        let policies = group.policies.iter().map(Name::to_string).collect();
        Self { name: group.name.to_string(), created: group.created, policies }
    }
}

impl From<&ManagedPolicy> for PolicyDocument {
    fn from(policy: &ManagedPolicy) -> Self {
        let document = policy.document.clone();
        Self { name: policy.name.to_string(), created: policy.created, document }
    }
}

impl From<&Provider> for ProviderDocument {
    fn from(provider: &Provider) -> Self {
        Self {
            name: provider.name.to_string(),
            arn: provider.issuer.arn(provider.tenant),
            created: provider.created,
            settings: ProviderSettings {
                issuer: provider.issuer.to_string(),
                audiences: provider.audiences.clone(),
                ca_pem: provider.ca_pem.clone(),
            },
        }
    }
}

impl KeyDocument {
    pub(in crate::control::admin) fn of(key: &AccessKey, last_used: Option<Timestamp>) -> Self {
        Self {
            id: key.id.to_string(),
            user: key.user.as_ref().map(Name::to_string),
            state: match key.state {
                KeyState::Active => KeyStanding::Active,
                KeyState::Disabled => KeyStanding::Disabled,
            },
            created: key.created,
            expires: key.expires,
            policy: key.policy.clone(),
            description: key.description.clone(),
            last_used,
            secret: None,
        }
    }
}

impl From<Standing> for State {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Active => Self::Active,
            Standing::Suspended => Self::Suspended,
        }
    }
}

impl From<State> for Standing {
    fn from(state: State) -> Self {
        match state {
            State::Active => Self::Active,
            State::Suspended => Self::Suspended,
        }
    }
}

/// A tenant's number, as ARNs have it.
fn number(tenant: TenantId) -> String {
    format!("{:012}", tenant.0)
}
