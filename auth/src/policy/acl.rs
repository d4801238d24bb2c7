//! Access control lists, as far as they still mean something.
//!
//! Every bucket is "bucket owner enforced": its owner owns every object, and access is by
//! policy alone. A request may say what is the case anyway (`private`,
//! `bucket-owner-full-control`, full control for the owner), and is refused if it says more.

use std::fmt;

use keyway_proto::TenantId;

use super::public::PublicAccessBlock;

/// A canned ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CannedAcl {
    /// `private`
    Private,
    /// `public-read`
    PublicRead,
    /// `public-read-write`
    PublicReadWrite,
    /// `authenticated-read`
    AuthenticatedRead,
    /// `aws-exec-read`
    AwsExecRead,
    /// `bucket-owner-read`
    BucketOwnerRead,
    /// `bucket-owner-full-control`
    BucketOwnerFullControl,
    /// `log-delivery-write`
    LogDeliveryWrite,
}

impl CannedAcl {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Private,
        Self::PublicRead,
        Self::PublicReadWrite,
        Self::AuthenticatedRead,
        Self::AwsExecRead,
        Self::BucketOwnerRead,
        Self::BucketOwnerFullControl,
        Self::LogDeliveryWrite,
    ];

    /// The name in `x-amz-acl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::PublicRead => "public-read",
            Self::PublicReadWrite => "public-read-write",
            Self::AuthenticatedRead => "authenticated-read",
            Self::AwsExecRead => "aws-exec-read",
            Self::BucketOwnerRead => "bucket-owner-read",
            Self::BucketOwnerFullControl => "bucket-owner-full-control",
            Self::LogDeliveryWrite => "log-delivery-write",
        }
    }

    /// Whether it says no more than that the bucket's owner has full control.
    pub const fn is_the_owners(self) -> bool {
        matches!(self, Self::Private | Self::BucketOwnerFullControl)
    }

    /// Whether it grants something to everybody, or to everybody who has a key.
    pub const fn is_public(self) -> bool {
        matches!(self, Self::PublicRead | Self::PublicReadWrite | Self::AuthenticatedRead)
    }
}

impl fmt::Display for CannedAcl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A grant of an explicit ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// To whom.
    pub grantee: Grantee,
    /// What.
    pub permission: Permission,
}

/// Whom a grant is to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Grantee {
    /// A tenant, by its canonical id.
    Tenant(TenantId),
    /// The group of everybody, or of everybody who has a key.
    Public,
    /// Another group, or somebody by e-mail address.
    Other,
}

/// What a grant is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// `FULL_CONTROL`
    FullControl,
    /// `READ`, `WRITE`, `READ_ACP` or `WRITE_ACP`
    Part,
}

/// What a request says of ACLs, in headers and body.
#[derive(Debug, Clone, Copy, Default)]
pub struct AclRequest<'a> {
    /// `x-amz-acl`.
    pub canned: Option<&'a str>,
    /// `x-amz-grant-*`, or the body's list.
    pub grants: &'a [Grant],
}

/// Why an ACL was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AclError {
    /// There is no canned ACL of that name.
    #[error("there is no canned ACL {0:?}")]
    UnknownCanned(String),
    /// Both a canned ACL and grants.
    #[error("a canned ACL and grants exclude each other")]
    Both,
    /// The public-access block forbids it.
    #[error("the public-access block forbids ACLs that are public")]
    Public,
    /// It would grant more than the bucket's owner has.
    #[error("the bucket does not allow ACLs: its owner owns every object, and policies decide")]
    NotSupported,
}

impl AclError {
    /// S3's error code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownCanned(_) => "InvalidArgument",
            Self::Both => "InvalidRequest",
            Self::Public => "AccessDenied",
            Self::NotSupported => "AccessControlListNotSupported",
        }
    }
}

impl AclRequest<'_> {
    /// Whether the request says anything of ACLs, and so needs the action for it.
    pub const fn is_there(&self) -> bool {
        self.canned.is_some() || !self.grants.is_empty()
    }

    /// Accepts what says no more than is the case.
    ///
    /// # Errors
    /// For anything else, with S3's code for it.
    pub fn check(&self, owner: TenantId, block: PublicAccessBlock) -> Result<(), AclError> {
        let find = |name: &str| {
            let mut all = CannedAcl::ALL.into_iter();
            all.find(|acl| acl.name() == name)
                .ok_or_else(|| AclError::UnknownCanned(name.to_owned()))
        };
        let canned = self.canned.map(find).transpose()?;
        if canned.is_some() && !self.grants.is_empty() {
            return Err(AclError::Both);
        }
        let public = canned.is_some_and(CannedAcl::is_public)
            || self.grants.iter().any(|grant| grant.grantee == Grantee::Public);
        if public && block.block_public_acls {
            return Err(AclError::Public);
        }
        let owners = Grant { grantee: Grantee::Tenant(owner), permission: Permission::FullControl };
        let plain = canned.is_none_or(CannedAcl::is_the_owners)
            && self.grants.iter().all(|grant| *grant == owners);
        if plain { Ok(()) } else { Err(AclError::NotSupported) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: TenantId = TenantId(1);

    fn canned(name: &str, block: PublicAccessBlock) -> Result<(), AclError> {
        AclRequest { canned: Some(name), grants: &[] }.check(OWNER, block)
    }

    #[test]
    fn what_is_the_case_anyway_may_be_said() {
        let open = PublicAccessBlock::default();
        assert_eq!(AclRequest::default().check(OWNER, open), Ok(()));
        for acl in CannedAcl::ALL {
            let expected = match acl {
                CannedAcl::Private | CannedAcl::BucketOwnerFullControl => Ok(()),
                _ => Err(AclError::NotSupported),
            };
            assert_eq!(canned(acl.name(), open), expected, "{acl}");
        }
        let refused = canned("Private", open).expect_err("names are exact");
        assert_eq!(refused.code(), "InvalidArgument");
    }

    #[test]
    fn the_block_speaks_first() {
        assert_eq!(canned("public-read", PublicAccessBlock::ALL), Err(AclError::Public));
        assert_eq!(canned("private", PublicAccessBlock::ALL), Ok(()));
        let everybody = [Grant { grantee: Grantee::Public, permission: Permission::Part }];
        let request = AclRequest { canned: None, grants: &everybody };
        assert_eq!(request.check(OWNER, PublicAccessBlock::ALL), Err(AclError::Public));
        let refused = request.check(OWNER, PublicAccessBlock::default()).expect_err("refused");
        assert_eq!(refused.code(), "AccessControlListNotSupported");
    }

    #[test]
    fn grants_to_the_owner_are_the_owners() {
        let check = |tenant, permission| {
            let grants = [Grant { grantee: Grantee::Tenant(tenant), permission }];
            AclRequest { canned: None, grants: &grants }.check(OWNER, PublicAccessBlock::ALL)
        };
        assert_eq!(check(OWNER, Permission::FullControl), Ok(()));
        assert_eq!(check(OWNER, Permission::Part), Err(AclError::NotSupported));
        assert_eq!(check(TenantId(2), Permission::FullControl), Err(AclError::NotSupported));
        let request = AclRequest {
            canned: Some("private"),
            grants: &[Grant { grantee: Grantee::Other, permission: Permission::Part }],
        };
        assert_eq!(request.check(OWNER, PublicAccessBlock::ALL), Err(AclError::Both));
    }
}
