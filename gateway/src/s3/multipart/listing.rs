//! Listings of uploads and of their parts.

use keyway_meta::catalog::UploadPage;
use keyway_meta::{Part, Upload};
use keyway_proto::{ChecksumKind, UploadId};
use s3s::dto::*;
use s3s::{S3Request, S3Response};

use super::upload_id;
use crate::s3::access::caller;
use crate::s3::checksums::{self, Told};
use crate::s3::errors::Failure;
use crate::s3::page::{self, Encoding};
use crate::s3::{Core, conditions, list, resolve};

/// ListParts.
pub(in crate::s3) async fn list_parts(
    core: &Core,
    request: S3Request<ListPartsInput>,
) -> Result<S3Response<ListPartsOutput>, Failure> {
    let input = &request.input;
    let key = resolve::key(&input.key)?;
    let id = upload_id(&input.upload_id)?;
    let limit = page::limit("max-parts", input.max_parts)?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = u16::try_from(marker).map_err(|_| page::out_of_bounds("part-number-marker"))?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let upload = core.catalog.upload(&bucket, &key, id).await?;
    let page = core.catalog.parts(&bucket, &key, id, after, limit).await?;
    let kind = upload.checksum.map(|(kind, _)| kind);
    let id = resolve::owner_id(bucket.tenant);
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(bucket.name.to_string()),
        key: Some(key.to_string()),
        upload_id: Some(upload.id.to_string()),
        checksum_algorithm: kind.map(checksums::algorithm_name),
        checksum_type: upload.checksum.map(|(_, of)| checksums::type_name(of)),
        owner: Some(Owner { display_name: None, id: Some(id.clone()) }),
        initiator: Some(Initiator { display_name: None, id: Some(id) }),
        storage_class: Some(class(upload.headers.storage_class)),
        part_number_marker: Some(marker),
        next_part_number_marker: page.next.map(i32::from),
        max_parts: Some(page::told(limit)),
        is_truncated: Some(page.next.is_some()),
        parts: Some(page.parts.iter().map(|part| listed_part(part, kind)).collect()),
        ..ListPartsOutput::default()
    }))
}

fn listed_part(part: &Part, kind: Option<ChecksumKind>) -> s3s::dto::Part {
    let of_kind = kind.and_then(|kind| part.checksums.iter().find(|c| c.kind() == kind));
    let told = Told::part(of_kind);
    s3s::dto::Part {
        part_number: Some(i32::from(part.number)),
        size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
        e_tag: Some(ETag::Strong(part.etag.clone())),
        last_modified: Some(conditions::timestamp(part.modified)),
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        ..s3s::dto::Part::default()
    }
}

/// ListMultipartUploads.
pub(in crate::s3) async fn list_uploads(
    core: &Core,
    request: S3Request<ListMultipartUploadsInput>,
) -> Result<S3Response<ListMultipartUploadsOutput>, Failure> {
    let input = &request.input;
    let encoding = Encoding::parse(input.encoding_type.as_ref())?;
    let key_marker = input.key_marker.as_deref();
    encoding.check(&[input.prefix.as_deref(), input.delimiter.as_deref(), key_marker])?;
    let limit = page::limit("max-uploads", input.max_uploads)?;
    let key_marker = key_marker.unwrap_or_default().to_owned();
    // S3 ignores an upload marker without a key marker.
    let id_marker = match input.upload_id_marker.as_deref() {
        Some(text) if !key_marker.is_empty() && !text.is_empty() => {
            Some(text.parse().map_err(|_| page::out_of_bounds("upload-id-marker"))?)
        }
        _ => None,
    };
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let query = list::query(input.prefix.as_deref(), input.delimiter.as_deref(), key_marker, limit);
    let page = match limit {
        0 => UploadPage::default(),
        _ => core.catalog.uploads(&bucket, &query, id_marker).await?,
    };
    let id = resolve::owner_id(bucket.tenant);
    let next_upload = page.next.as_ref().and_then(|(_, id)| id.map(|id| id.to_string()));
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(bucket.name.to_string()),
        prefix: Some(encoding.text(&query.prefix)),
        delimiter: list::named(encoding, input.delimiter.as_deref()),
        key_marker: Some(encoding.text(&query.after)),
        upload_id_marker: Some(id_marker.map(|id: UploadId| id.to_string()).unwrap_or_default()),
        next_key_marker: page.next.as_ref().map(|(key, _)| encoding.text(key)),
        next_upload_id_marker: next_upload,
        max_uploads: Some(page::told(limit)),
        is_truncated: Some(page.next.is_some()),
        common_prefixes: Some(list::prefixes(encoding, &page.common_prefixes)),
        uploads: Some(
            page.uploads.into_iter().map(|upload| listed_upload(encoding, upload, &id)).collect(),
        ),
        encoding_type: encoding.name(),
        request_charged: None,
    }))
}

fn listed_upload(encoding: Encoding, upload: Upload, owner: &str) -> MultipartUpload {
    MultipartUpload {
        key: Some(encoding.text(&upload.key)),
        upload_id: Some(upload.id.to_string()),
        initiated: Some(conditions::timestamp(upload.initiated)),
        checksum_algorithm: upload.checksum.map(|(kind, _)| checksums::algorithm_name(kind)),
        checksum_type: upload.checksum.map(|(_, of)| checksums::type_name(of)),
        owner: Some(Owner { display_name: None, id: Some(owner.to_owned()) }),
        initiator: Some(Initiator { display_name: None, id: Some(owner.to_owned()) }),
        storage_class: Some(class(upload.headers.storage_class)),
    }
}

fn class(given: Option<String>) -> StorageClass {
    given.map_or(StorageClass::from_static(StorageClass::STANDARD), StorageClass::from)
}
