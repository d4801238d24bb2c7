//! The condition keys that policies may ask for.

use std::fmt;

use crate::oidc::Issuer;

/// What a key's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// Text.
    Text,
    /// Several texts.
    List,
    /// A number.
    Number,
    /// A time.
    Date,
    /// True or false.
    Bool,
    /// An IP address.
    Ip,
    /// An ARN.
    Arn,
}

macro_rules! keys {
    ($($variant:ident $name:literal $type:ident $scope:ident $present:literal,)+) => {
        /// A condition key without a name of its own in it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Key {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )+
        }

        impl Key {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name with its service, such as `aws:SourceIp`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// What its value is.
            pub const fn value_type(self) -> KeyType {
                match self {
                    $(Self::$variant => KeyType::$type,)+
                }
            }

            /// Which requests have it; empty for a key that no request has here, because
            /// what it tells of does not exist in Keyway.
            pub const fn present(self) -> &'static str {
                match self {
                    $(Self::$variant => $present,)+
                }
            }

            /// The actions that know it.
            pub(super) const fn scope(self) -> Scope {
                match self {
                    $(Self::$variant => Scope::$scope,)+
                }
            }
        }
    };
}

/// Whose requests a key can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// All actions'.
    Any,
    /// The listings'.
    List,
    /// Listings' of objects and their versions.
    ListObjects,
    /// Those of actions on object versions.
    Version,
    /// Those of actions on objects.
    Object,
    /// `s3:CreateBucket`'s.
    Create,
    /// Those of actions on roles.
    Role,
}

// Source: the references of global condition keys and of S3's own.
keys! {
    CalledVia "aws:CalledVia" List Any "",
    CalledViaFirst "aws:CalledViaFirst" Text Any "",
    CalledViaLast "aws:CalledViaLast" Text Any "",
    CurrentTime "aws:CurrentTime" Date Any "always",
    EpochTime "aws:EpochTime" Date Any "always",
    FederatedProvider "aws:FederatedProvider" Text Any "requests in a session of a web identity: the provider's ARN",
    MultiFactorAuthAge "aws:MultiFactorAuthAge" Number Any "",
    MultiFactorAuthPresent "aws:MultiFactorAuthPresent" Bool Any "",
    PrincipalAccount "aws:PrincipalAccount" Text Any "signed requests",
    PrincipalArn "aws:PrincipalArn" Arn Any "signed requests",
    PrincipalIsAwsService "aws:PrincipalIsAWSService" Bool Any "always: false",
    PrincipalOrgId "aws:PrincipalOrgID" Text Any "",
    PrincipalOrgPaths "aws:PrincipalOrgPaths" List Any "",
    PrincipalServiceName "aws:PrincipalServiceName" Text Any "",
    PrincipalServiceNamesList "aws:PrincipalServiceNamesList" List Any "",
    PrincipalType "aws:PrincipalType" Text Any "always: Account, User, AssumedRole or Anonymous",
    Referer "aws:Referer" Text Any "requests with that header",
    RequestedRegion "aws:RequestedRegion" Text Any "always",
    ResourceAccount "aws:ResourceAccount" Text Any "requests to a bucket",
    ResourceOrgId "aws:ResourceOrgID" Text Any "",
    ResourceOrgPaths "aws:ResourceOrgPaths" List Any "",
    SecureTransport "aws:SecureTransport" Bool Any "always",
    SourceAccount "aws:SourceAccount" Text Any "",
    SourceArn "aws:SourceArn" Arn Any "",
    SourceIdentity "aws:SourceIdentity" Text Any "",
    SourceIp "aws:SourceIp" Ip Any "always",
    SourceOrgId "aws:SourceOrgID" Text Any "",
    SourceOrgPaths "aws:SourceOrgPaths" List Any "",
    SourceOwner "aws:SourceOwner" Text Any "",
    SourceVpc "aws:SourceVpc" Text Any "",
    SourceVpce "aws:SourceVpce" Text Any "",
    TagKeys "aws:TagKeys" List Any "requests that tag a bucket",
    TokenIssueTime "aws:TokenIssueTime" Date Any "requests with temporary credentials",
    UserAgent "aws:UserAgent" Text Any "requests with that header",
    UserId "aws:userid" Text Any "always: the user's or session's id, the account of its root, or anonymous",
    Username "aws:username" Text Any "requests of a user",
    ViaAwsService "aws:ViaAWSService" Bool Any "always: false",
    VpcSourceIp "aws:VpcSourceIp" Ip Any "",

    AccessPointNetworkOrigin "s3:AccessPointNetworkOrigin" Text Any "",
    AuthType "s3:authType" Text Any "signed requests: REST-HEADER, REST-QUERY-STRING or POST",
    DataAccessPointAccount "s3:DataAccessPointAccount" Text Any "",
    DataAccessPointArn "s3:DataAccessPointArn" Arn Any "",
    Delimiter "s3:delimiter" Text List "listings that give one",
    IfMatch "s3:if-match" Text Object "writes with that header",
    IfNoneMatch "s3:if-none-match" Text Object "writes with that header",
    InventoryAccessibleOptionalFields "s3:InventoryAccessibleOptionalFields" List Any "",
    LocationConstraint "s3:locationconstraint" Text Create "CreateBucket with a location",
    LockLegalHold "s3:object-lock-legal-hold" Text Object "writes with a legal hold",
    LockMode "s3:object-lock-mode" Text Object "writes with a retention",
    LockRemainingDays "s3:object-lock-remaining-retention-days" Number Object "writes with a retention",
    LockRetainUntil "s3:object-lock-retain-until-date" Date Object "writes with a retention",
    MaxKeys "s3:max-keys" Number ListObjects "listings of objects and versions that give one",
    ObjectCreationOperation "s3:ObjectCreationOperation" Bool Object "PutObject: true for what makes an object, false for UploadPart",
    Prefix "s3:prefix" Text List "listings that give one",
    RequestObjectTagKeys "s3:RequestObjectTagKeys" List Object "writes with object tags",
    S3ResourceAccount "s3:ResourceAccount" Text Any "requests to a bucket",
    SignatureAge "s3:signatureAge" Number Any "signed requests, in milliseconds",
    SignatureVersion "s3:signatureversion" Text Any "signed requests: AWS4-HMAC-SHA256",
    TlsVersion "s3:TlsVersion" Number Any "requests over TLS: 1.2 or 1.3",
    VersionId "s3:VersionId" Text Version "requests that name a version",
    XAmzAcl "s3:x-amz-acl" Text Any "requests with that header",
    XAmzContentSha256 "s3:x-amz-content-sha256" Text Any "requests with that header",
    XAmzCopySource "s3:x-amz-copy-source" Text Object "copies",
    XAmzGrantFullControl "s3:x-amz-grant-full-control" Text Any "requests with that header",
    XAmzGrantRead "s3:x-amz-grant-read" Text Any "requests with that header",
    XAmzGrantReadAcp "s3:x-amz-grant-read-acp" Text Any "requests with that header",
    XAmzGrantWrite "s3:x-amz-grant-write" Text Any "requests with that header",
    XAmzGrantWriteAcp "s3:x-amz-grant-write-acp" Text Any "requests with that header",
    XAmzMetadataDirective "s3:x-amz-metadata-directive" Text Object "copies with that header",
    XAmzObjectOwnership "s3:x-amz-object-ownership" Text Create "CreateBucket with that header",
    XAmzSse "s3:x-amz-server-side-encryption" Text Object "requests with that header",
    XAmzSseKmsKeyId "s3:x-amz-server-side-encryption-aws-kms-key-id" Arn Object "requests with that header",
    XAmzSseCustomerAlgorithm "s3:x-amz-server-side-encryption-customer-algorithm" Text Object "requests with that header",
    XAmzStorageClass "s3:x-amz-storage-class" Text Object "requests with that header",
    XAmzWebsiteRedirectLocation "s3:x-amz-website-redirect-location" Text Object "requests with that header",

    ExternalId "sts:ExternalId" Text Role "AssumeRole with an ExternalId",
    RoleSessionName "sts:RoleSessionName" Text Role "AssumeRole, AssumeRoleWithWebIdentity",
    StsSourceIdentity "sts:SourceIdentity" Text Role "",
    TransitiveTagKeys "sts:TransitiveTagKeys" List Role "",

    Path "keyway:Path" Text Any "always: the way that the bytes take, `http` where none was asked for",
    KeyStrength "keyway:KeyStrength" Text Any "always: the key's strength, `http` where there is none",
}

macro_rules! families {
    ($($variant:ident $prefix:literal $present:literal,)+) => {
        /// Condition keys that end in a tag's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum TagKey {
            $(
                #[doc = concat!("`", $prefix, "<tag>`")]
                $variant,
            )+
        }

        impl TagKey {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// What stands before the tag's name.
            pub const fn prefix(self) -> &'static str {
                match self {
                    $(Self::$variant => $prefix,)+
                }
            }

            /// Which requests have it.
            pub const fn present(self) -> &'static str {
                match self {
                    $(Self::$variant => $present,)+
                }
            }
        }
    };
}

families! {
    Principal "aws:PrincipalTag/" "requests of a user or session that has the tag",
    Request "aws:RequestTag/" "requests that tag a bucket",
    Resource "aws:ResourceTag/" "requests to a bucket that has the tag",
    Bucket "s3:BucketTag/" "requests to a bucket that has the tag",
    ExistingObject "s3:ExistingObjectTag/" "reads and tagging of an object that has the tag",
    RequestObject "s3:RequestObjectTag/" "writes with object tags",
}

impl TagKey {
    /// Whether it tells of what is stored, which must be looked up before a policy is asked.
    pub const fn is_stored(self) -> bool {
        matches!(self, Self::Resource | Self::Bucket | Self::ExistingObject)
    }
}

/// A key, as a policy names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRef {
    /// One of the table's.
    Known(Key),
    /// The value of this tag. Tags' names are case-sensitive, unlike everything else here.
    Tag(TagKey, Box<str>),
    /// What a web identity's token says, by its issuer's name, such as
    /// `idp.example.com/realm:sub`; or another service's, which no request here has.
    Foreign(Box<str>),
}

/// What web identities' tokens say to conditions, after their issuer's name; the last two may be
/// several.
pub(super) const CLAIMS: [(&str, &str); 4] = [
    ("sub", "who it is"),
    ("aud", "for whom the token is: `azp`, or `aud` where there is none"),
    ("oaud", "`aud`, where there is `azp`"),
    ("amr", "how they said who they are"),
];
const CLAIM_LISTS: [&str; 2] = ["oaud", "amr"];

/// The services whose keys are all known.
const SERVICES: [&str; 4] = ["aws", "s3", "sts", "keyway"];

impl KeyRef {
    /// The key with this name; upper and lower case are one. `None` for what is not of the form
    /// `service:name`, and for names that these services do not have.
    pub fn find(name: &str) -> Option<Self> {
        let (service, own) = name.split_once(':')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let of_issuer = claim_of(name).is_some();
        if service.is_empty() || own.is_empty() || !(service.chars().all(plain) || of_issuer) {
            return None;
        }
        let known = Key::ALL.iter().find(|key| key.name().eq_ignore_ascii_case(name));
        if let Some(key) = known {
            return Some(Self::Known(*key));
        }
        for tag in TagKey::ALL {
            let prefix = tag.prefix();
            let Some((head, rest)) = name.split_at_checked(prefix.len()) else { continue };
            if head.eq_ignore_ascii_case(prefix) && !rest.is_empty() {
                return Some(Self::Tag(*tag, rest.into()));
            }
        }
        let ours = SERVICES.iter().any(|known| known.eq_ignore_ascii_case(service));
        (!ours).then(|| Self::Foreign(name.into()))
    }

    /// Whether it may have several values.
    pub fn is_list(&self) -> bool {
        match self {
            Self::Known(key) => key.value_type() == KeyType::List,
            Self::Foreign(name) => claim_of(name).is_some_and(|(_, claim)| {
                CLAIM_LISTS.iter().any(|list| list.eq_ignore_ascii_case(claim))
            }),
            Self::Tag(..) => false,
        }
    }

    /// Whether it is something that a web identity's token says.
    pub(super) fn is_claim(&self) -> bool {
        matches!(self, Self::Foreign(name) if claim_of(name).is_some())
    }
}

/// An issuer's name, and which of the claims.
fn claim_of(name: &str) -> Option<(&str, &str)> {
    let (issuer, claim) = name.rsplit_once(':')?;
    let known = CLAIMS.iter().any(|(known, _)| known.eq_ignore_ascii_case(claim));
    (known && Issuer::is_name(&issuer.to_ascii_lowercase())).then_some((issuer, claim))
}

impl fmt::Display for KeyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(key) => f.write_str(key.name()),
            Self::Tag(tag, name) => write!(f, "{}{name}", tag.prefix()),
            Self::Foreign(name) => f.write_str(name),
        }
    }
}
