//! The actions that policies speak of: S3's for general-purpose buckets, those of temporary
//! credentials, and Keyway's own.

use std::fmt;

use super::error::Flaw;
use super::pattern::{Glob, Piece};

/// What an action is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// A tenant as a whole.
    Account,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
    /// A role.
    Role,
}

macro_rules! actions {
    ($($level:ident { $($variant:ident $name:literal,)+ })+) => {
        /// An action, as policies name it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Action {
            $($(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )+)+
        }

        impl Action {
            /// All of them.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)+)+];

            /// The name with its service, such as `s3:GetObject`.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)+)+
                }
            }

            /// What it is done to.
            pub const fn level(self) -> Level {
                match self {
                    $($(Self::$variant)|+ => Level::$level,)+
                }
            }
        }
    };
}

// Source: the service authorization reference of S3, without what general-purpose buckets do
// not have: access points, access grants, batch jobs, storage lens.
actions! {
    Account {
        GetAccountPublicAccessBlock "s3:GetAccountPublicAccessBlock",
        ListAllMyBuckets "s3:ListAllMyBuckets",
        PutAccountPublicAccessBlock "s3:PutAccountPublicAccessBlock",
        AdminRead "keyway:AdminRead",
        AdminWrite "keyway:AdminWrite",
        OpenSession "keyway:OpenSession",
        GetSessionToken "sts:GetSessionToken",
    }
    Bucket {
        CreateBucket "s3:CreateBucket",
        CreateBucketMetadataTableConfiguration "s3:CreateBucketMetadataTableConfiguration",
        DeleteBucket "s3:DeleteBucket",
        DeleteBucketMetadataTableConfiguration "s3:DeleteBucketMetadataTableConfiguration",
        DeleteBucketPolicy "s3:DeleteBucketPolicy",
        DeleteBucketWebsite "s3:DeleteBucketWebsite",
        GetAccelerateConfiguration "s3:GetAccelerateConfiguration",
        GetAnalyticsConfiguration "s3:GetAnalyticsConfiguration",
        GetBucketAcl "s3:GetBucketAcl",
        GetBucketCors "s3:GetBucketCORS",
        GetBucketLocation "s3:GetBucketLocation",
        GetBucketLogging "s3:GetBucketLogging",
        GetBucketMetadataTableConfiguration "s3:GetBucketMetadataTableConfiguration",
        GetBucketNotification "s3:GetBucketNotification",
        GetBucketObjectLockConfiguration "s3:GetBucketObjectLockConfiguration",
        GetBucketOwnershipControls "s3:GetBucketOwnershipControls",
        GetBucketPolicy "s3:GetBucketPolicy",
        GetBucketPolicyStatus "s3:GetBucketPolicyStatus",
        GetBucketPublicAccessBlock "s3:GetBucketPublicAccessBlock",
        GetBucketRequestPayment "s3:GetBucketRequestPayment",
        GetBucketTagging "s3:GetBucketTagging",
        GetBucketVersioning "s3:GetBucketVersioning",
        GetBucketWebsite "s3:GetBucketWebsite",
        GetEncryptionConfiguration "s3:GetEncryptionConfiguration",
        GetIntelligentTieringConfiguration "s3:GetIntelligentTieringConfiguration",
        GetInventoryConfiguration "s3:GetInventoryConfiguration",
        GetLifecycleConfiguration "s3:GetLifecycleConfiguration",
        GetMetricsConfiguration "s3:GetMetricsConfiguration",
        GetReplicationConfiguration "s3:GetReplicationConfiguration",
        ListBucket "s3:ListBucket",
        ListBucketMultipartUploads "s3:ListBucketMultipartUploads",
        ListBucketVersions "s3:ListBucketVersions",
        ListTagsForResource "s3:ListTagsForResource",
        PutAccelerateConfiguration "s3:PutAccelerateConfiguration",
        PutAnalyticsConfiguration "s3:PutAnalyticsConfiguration",
        PutBucketAcl "s3:PutBucketAcl",
        PutBucketCors "s3:PutBucketCORS",
        PutBucketLogging "s3:PutBucketLogging",
        PutBucketNotification "s3:PutBucketNotification",
        PutBucketObjectLockConfiguration "s3:PutBucketObjectLockConfiguration",
        PutBucketOwnershipControls "s3:PutBucketOwnershipControls",
        PutBucketPolicy "s3:PutBucketPolicy",
        PutBucketPublicAccessBlock "s3:PutBucketPublicAccessBlock",
        PutBucketRequestPayment "s3:PutBucketRequestPayment",
        PutBucketTagging "s3:PutBucketTagging",
        PutBucketVersioning "s3:PutBucketVersioning",
        PutBucketWebsite "s3:PutBucketWebsite",
        PutEncryptionConfiguration "s3:PutEncryptionConfiguration",
        PutIntelligentTieringConfiguration "s3:PutIntelligentTieringConfiguration",
        PutInventoryConfiguration "s3:PutInventoryConfiguration",
        PutLifecycleConfiguration "s3:PutLifecycleConfiguration",
        PutMetricsConfiguration "s3:PutMetricsConfiguration",
        PutReplicationConfiguration "s3:PutReplicationConfiguration",
        TagResource "s3:TagResource",
        UntagResource "s3:UntagResource",
    }
    Object {
        AbortMultipartUpload "s3:AbortMultipartUpload",
        BypassGovernanceRetention "s3:BypassGovernanceRetention",
        DeleteObject "s3:DeleteObject",
        DeleteObjectTagging "s3:DeleteObjectTagging",
        DeleteObjectVersion "s3:DeleteObjectVersion",
        DeleteObjectVersionTagging "s3:DeleteObjectVersionTagging",
        GetObject "s3:GetObject",
        GetObjectAcl "s3:GetObjectAcl",
        GetObjectAttributes "s3:GetObjectAttributes",
        GetObjectLegalHold "s3:GetObjectLegalHold",
        GetObjectRetention "s3:GetObjectRetention",
        GetObjectTagging "s3:GetObjectTagging",
        GetObjectTorrent "s3:GetObjectTorrent",
        GetObjectVersion "s3:GetObjectVersion",
        GetObjectVersionAcl "s3:GetObjectVersionAcl",
        GetObjectVersionAttributes "s3:GetObjectVersionAttributes",
        GetObjectVersionForReplication "s3:GetObjectVersionForReplication",
        GetObjectVersionTagging "s3:GetObjectVersionTagging",
        GetObjectVersionTorrent "s3:GetObjectVersionTorrent",
        InitiateReplication "s3:InitiateReplication",
        ListMultipartUploadParts "s3:ListMultipartUploadParts",
        ObjectOwnerOverrideToBucketOwner "s3:ObjectOwnerOverrideToBucketOwner",
        PutObject "s3:PutObject",
        PutObjectAcl "s3:PutObjectAcl",
        PutObjectLegalHold "s3:PutObjectLegalHold",
        PutObjectRetention "s3:PutObjectRetention",
        PutObjectTagging "s3:PutObjectTagging",
        PutObjectVersionAcl "s3:PutObjectVersionAcl",
        PutObjectVersionTagging "s3:PutObjectVersionTagging",
        ReplicateDelete "s3:ReplicateDelete",
        ReplicateObject "s3:ReplicateObject",
        ReplicateTags "s3:ReplicateTags",
        RestoreObject "s3:RestoreObject",
        RdmaGet "keyway:RdmaGet",
        RdmaPut "keyway:RdmaPut",
    }
    Role {
        AssumeRole "sts:AssumeRole",
        AssumeRoleWithWebIdentity "sts:AssumeRoleWithWebIdentity",
    }
}

// A set of them is one integer.
const _: () = assert!(Action::ALL.len() <= u128::BITS as usize);

impl Action {
    /// The action with this name; upper and lower case are one.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.name().eq_ignore_ascii_case(name))
    }

    /// Whether the action says how another one is carried out, or gives nobody more than they
    /// have. What S3 action it comes with needs an `Allow`; the gate needs only that nothing
    /// denies it.
    pub const fn is_gate(self) -> bool {
        matches!(self, Self::RdmaGet | Self::RdmaPut | Self::OpenSession | Self::GetSessionToken)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of actions.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ActionSet(u128);

impl ActionSet {
    /// All actions.
    pub fn all() -> Self {
        Action::ALL.iter().copied().collect()
    }

    /// Whether the action is one of them.
    pub const fn contains(self, action: Action) -> bool {
        self.0 >> (action as u8) & 1 == 1
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not among these.
    #[must_use]
    pub fn complement(self) -> Self {
        Self(Self::all().0 & !self.0)
    }

    /// Its actions, in the table's order.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL.iter().copied().filter(move |action| self.contains(*action))
    }
}

impl FromIterator<Action> for ActionSet {
    fn from_iter<I: IntoIterator<Item = Action>>(actions: I) -> Self {
        Self(actions.into_iter().fold(0, |set, action| set | 1 << (action as u8)))
    }
}

impl fmt::Debug for ActionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Action::name)).finish()
    }
}

/// The actions that an element such as `s3:Get*` stands for.
///
/// # Errors
/// When it is not of the form `service:Name`. A service has no wildcards, but `*` alone is
/// every action of every service.
pub(super) fn expand(text: &str) -> Result<ActionSet, Flaw> {
    if text == "*" {
        return Ok(ActionSet::all());
    }
    let refused = || Flaw::Action(text.to_owned());
    let (service, name) = text.split_once(':').ok_or_else(refused)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let wild = |c: char| c.is_ascii_alphanumeric() || c == '*' || c == '?';
    if service.is_empty() || !service.chars().all(plain) {
        return Err(refused());
    }
    if name.is_empty() || !name.chars().all(wild) {
        return Err(refused());
    }
    let glob = Glob::new(&Piece::wildcards(&text.to_ascii_lowercase()));
    let matches = |action: &Action| glob.matches(&action.name().to_ascii_lowercase());
    Ok(Action::ALL.iter().copied().filter(matches).collect())
}
