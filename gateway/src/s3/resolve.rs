//! From the names in a request to what the catalog holds.

use std::str::FromStr;

use keyway_meta::{Bucket, VersionName, Versioning};
use keyway_proto::{BucketName, ObjectKey, TenantId};
use s3s::S3ErrorCode;

use super::Core;
use super::access::Caller;
use super::errors::Failure;

/// The bucket of this name, among those that the caller's names mean.
///
/// # Errors
/// `InvalidBucketName`, `NoSuchBucket`, and `AccessDenied` when the client expects another
/// owner.
pub(super) async fn bucket(
    core: &Core,
    caller: &Caller,
    name: &str,
    expected_owner: Option<&str>,
) -> Result<Bucket, Failure> {
    of_tenant(core, caller, caller.tenant, name, expected_owner).await
}

/// The bucket of this name, among those that the caller copies from.
///
/// # Errors
/// As [`bucket`].
pub(super) async fn source(
    core: &Core,
    caller: &Caller,
    name: &str,
    expected_owner: Option<&str>,
) -> Result<Bucket, Failure> {
    of_tenant(core, caller, caller.source_tenant, name, expected_owner).await
}

/// The header that names an owner has chosen the tenant already: it is compared once more, so
/// that what was asked of policies is what is worked on. So is the bucket's row.
async fn of_tenant(
    core: &Core,
    caller: &Caller,
    tenant: TenantId,
    name: &str,
    expected_owner: Option<&str>,
) -> Result<Bucket, Failure> {
    let name = BucketName::from_str(name)?;
    if expected_owner.is_some_and(|owner| !is_owner(tenant, owner)) {
        return Err(Failure::code(S3ErrorCode::AccessDenied));
    }
    match caller.entered(tenant, &name) {
        Some(bucket) => Ok(bucket.clone()),
        None => Ok(core.catalog.bucket(tenant, &name).await?),
    }
}

/// The object key, byte for byte.
///
/// # Errors
/// `KeyTooLongError`, and `InvalidArgument` for control characters: S3's XML cannot name them.
pub(super) fn key(text: &str) -> Result<ObjectKey, Failure> {
    if !is_nameable(text) {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "Object keys cannot contain control characters.",
        ));
    }
    Ok(ObjectKey::from_str(text)?)
}

/// Whether XML has a form for the text.
pub(super) fn is_nameable(text: &str) -> bool {
    text.chars().all(|c| c >= ' ' || matches!(c, '\t' | '\n' | '\r'))
}

/// The version that a request names.
///
/// # Errors
/// `InvalidArgument` for what is no version's name.
pub(super) fn version(id: Option<&str>) -> Result<Option<VersionName>, Failure> {
    let Some(id) = id else { return Ok(None) };
    VersionName::parse(id).map(Some).ok_or_else(|| {
        Failure::refuse(S3ErrorCode::InvalidArgument, "Invalid version id specified")
    })
}

/// A version as an answer names it: not at all where the bucket never kept any.
pub(super) fn told_version(bucket: &Bucket, name: VersionName) -> Option<String> {
    match (name, bucket.settings.versioning) {
        (VersionName::Null, Versioning::Unversioned) => None,
        _ => Some(name.to_string()),
    }
}

/// The canonical id under which a tenant owns what it owns: 64 hexadecimal digits.
pub(super) fn owner_id(tenant: TenantId) -> String {
    format!("{:064x}", tenant.0)
}

/// The 12-digit account number of a tenant.
pub(super) fn account_id(tenant: TenantId) -> String {
    format!("{:012}", tenant.0)
}

/// The tenant that an account number or a canonical id names.
pub(super) fn tenant_of(text: &str) -> Option<TenantId> {
    let number = match text.len() {
        12 => text.parse().ok()?,
        64 => u64::from_str_radix(text.trim_start_matches('0'), 16)
            .or_else(|_| if text.bytes().all(|b| b == b'0') { Ok(0) } else { Err(()) })
            .ok()?,
        _ => return None,
    };
    is_owner(TenantId(number), text).then_some(TenantId(number))
}

fn is_owner(tenant: TenantId, text: &str) -> bool {
    text == account_id(tenant) || text == owner_id(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_are_kept_and_unspeakable_ones_refused() {
        for good in ["a//b", "../x", " ", "%2F", "é/ü", "a\tb", "\u{7f}"] {
            assert_eq!(&*key(good).expect(good), good);
        }
        assert!(key("a\u{1}b").is_err());
        assert!(key("").is_err());
        assert!(key(&"a".repeat(1025)).is_err());
    }

    #[test]
    fn a_tenant_has_two_names() {
        assert!(is_owner(TenantId(7), "000000000007"));
        assert!(is_owner(TenantId(7), &owner_id(TenantId(7))));
        assert!(!is_owner(TenantId(7), "7"));
        for tenant in [TenantId(0), TenantId(7)] {
            assert_eq!(tenant_of(&account_id(tenant)), Some(tenant));
            assert_eq!(tenant_of(&owner_id(tenant)), Some(tenant));
        }
        for none in ["", "7", "+00000000007", &"f".repeat(64), &"F".repeat(64)] {
            assert_eq!(tenant_of(none), None, "{none}");
        }
    }
}
