//! The public-access block: what keeps a tenant's data from everybody by mistake.

use serde::{Deserialize, Serialize};

use super::Policy;

/// The four settings of a bucket, of a tenant, or of both together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PublicAccessBlock {
    /// Refuses ACLs that grant to groups.
    pub block_public_acls: bool,
    /// Ignores such ACLs. There are none here: kept, because clients read it back.
    pub ignore_public_acls: bool,
    /// Refuses bucket policies that allow to the public.
    pub block_public_policy: bool,
    /// Of a bucket whose policy is public, lets only its owner's tenant in.
    pub restrict_public_buckets: bool,
}

impl PublicAccessBlock {
    /// All four, as new buckets have them.
    pub const ALL: Self = Self {
        block_public_acls: true,
        ignore_public_acls: true,
        block_public_policy: true,
        restrict_public_buckets: true,
    };

    /// What holds where both do: the stricter of each setting.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self {
            block_public_acls: self.block_public_acls || other.block_public_acls,
            ignore_public_acls: self.ignore_public_acls || other.ignore_public_acls,
            block_public_policy: self.block_public_policy || other.block_public_policy,
            restrict_public_buckets: self.restrict_public_buckets || other.restrict_public_buckets,
        }
    }

    /// Whether the policy may become the bucket's. S3's answer to one that may not is
    /// `AccessDenied`.
    pub fn accepts(self, policy: &Policy) -> bool {
        !(self.block_public_policy && policy.is_public())
    }
}
