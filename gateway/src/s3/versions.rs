//! Versions: whether a bucket keeps them, and which there are.

use keyway_meta::catalog::{VersionEntry, VersionPage};
use keyway_meta::{CatalogError, VersionName, Versioning};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::durability::{Awaited, SETTLES_MAX, settled};
use super::errors::Failure;
use super::page::{self, Encoding};
use super::{Core, checksums, conditions, list, resolve};

/// PutBucketVersioning. What is in memory alone is made durable first.
pub(super) async fn put_bucket_versioning(
    core: &Core,
    request: S3Request<PutBucketVersioningInput>,
) -> Result<S3Response<PutBucketVersioningOutput>, Failure> {
    let caller = caller(&request.extensions)?;
    let input = &request.input;
    let configuration = &input.versioning_configuration;
    let mfa = configuration.mfa_delete.as_ref().map(MFADelete::as_str);
    if input.mfa.is_some() || mfa == Some(MFADelete::ENABLED) {
        return Err(Failure::not_implemented("MFA Delete is not implemented by this server."));
    }
    let versioning = match configuration.status.as_ref().map(BucketVersioningStatus::as_str) {
        Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
        Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
        _ => return Err(Failure::code(S3ErrorCode::IllegalVersioningConfigurationException)),
    };
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    for _ in 0..SETTLES_MAX {
        match core.catalog.set_versioning(bucket.tenant, &bucket.name, versioning).await {
            Err(CatalogError::NotDurable) => settled(core, Awaited::Bucket(&bucket)).await?,
            done => {
                done?;
                return Ok(S3Response::new(PutBucketVersioningOutput::default()));
            }
        }
    }
    Err(Failure::code(S3ErrorCode::OperationAborted))
}

/// GetBucketVersioning: nothing for a bucket that never kept any.
pub(super) async fn get_bucket_versioning(
    core: &Core,
    request: S3Request<GetBucketVersioningInput>,
) -> Result<S3Response<GetBucketVersioningOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let status = match bucket.settings.versioning {
        Versioning::Unversioned => None,
        Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
        Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
    };
    Ok(S3Response::new(GetBucketVersioningOutput {
        status: status.map(BucketVersioningStatus::from_static),
        ..GetBucketVersioningOutput::default()
    }))
}

/// ListObjectVersions.
pub(super) async fn list_object_versions(
    core: &Core,
    request: S3Request<ListObjectVersionsInput>,
) -> Result<S3Response<ListObjectVersionsOutput>, Failure> {
    let input = &request.input;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    let key_marker = input.key_marker.as_deref();
    encoding.check(&[input.prefix.as_deref(), input.delimiter.as_deref(), key_marker])?;
    let limit = page::limit("max-keys", input.max_keys)?;
    let key_marker = key_marker.unwrap_or_default().to_owned();
    let version_marker = input.version_id_marker.as_deref().filter(|text| !text.is_empty());
    if version_marker.is_some() && key_marker.is_empty() {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "A version-id marker cannot be specified without a key marker.",
        ));
    }
    let after_version = resolve::version(version_marker)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let query = list::query(input.prefix.as_deref(), input.delimiter.as_deref(), key_marker, limit);
    let page = match limit {
        0 => VersionPage::default(),
        _ => core.catalog.versions(&bucket, &query, after_version).await?,
    };
    let owner = Owner { display_name: None, id: Some(resolve::owner_id(bucket.tenant)) };
    let (mut versions, mut markers) = (Vec::new(), Vec::new());
    for entry in page.versions {
        match entry.object {
            Some(_) => versions.push(listed_version(encoding, entry, owner.clone())),
            None => markers.push(listed_marker(encoding, &entry, owner.clone())),
        }
    }
    let next_version = page.next.as_ref().and_then(|(_, name)| *name);
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(bucket.name.to_string()),
        prefix: Some(encoding.text(&query.prefix)),
        delimiter: list::named(encoding, input.delimiter.as_deref()),
        key_marker: Some(encoding.text(&query.after)),
        version_id_marker: Some(version_marker.unwrap_or_default().to_owned()),
        next_key_marker: page.next.as_ref().map(|(key, _)| encoding.text(key)),
        next_version_id_marker: next_version.map(|name: VersionName| name.to_string()),
        max_keys: Some(page::told(limit)),
        is_truncated: Some(page.next.is_some()),
        common_prefixes: Some(list::prefixes(encoding, &page.common_prefixes)),
        versions: Some(versions),
        delete_markers: Some(markers),
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

fn listed_version(encoding: Encoding, entry: VersionEntry, owner: Owner) -> ObjectVersion {
    let mut listed = ObjectVersion {
        key: Some(encoding.text(&entry.key)),
        version_id: Some(entry.name.to_string()),
        is_latest: Some(entry.is_latest),
        last_modified: Some(conditions::timestamp(entry.modified)),
        owner: Some(owner),
        storage_class: Some(ObjectVersionStorageClass::from_static("STANDARD")),
        ..ObjectVersion::default()
    };
    if let Some(summary) = entry.object {
        listed.size = Some(i64::try_from(summary.size).unwrap_or(i64::MAX));
        listed.e_tag = Some(ETag::Strong(summary.etag));
        listed.checksum_algorithm =
            summary.checksum.map(|(kind, _)| vec![checksums::algorithm_name(kind)]);
        listed.checksum_type = summary.checksum.map(|(_, of)| checksums::type_name(of));
        if let Some(class) = summary.storage_class {
            listed.storage_class = Some(ObjectVersionStorageClass::from(class));
        }
    }
    listed
}

fn listed_marker(encoding: Encoding, entry: &VersionEntry, owner: Owner) -> DeleteMarkerEntry {
    DeleteMarkerEntry {
        key: Some(encoding.text(&entry.key)),
        version_id: Some(entry.name.to_string()),
        is_latest: Some(entry.is_latest),
        last_modified: Some(conditions::timestamp(entry.modified)),
        owner: Some(owner),
    }
}
