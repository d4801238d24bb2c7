//! GetObjectAttributes: what an object is, without its bytes, part by part.

use keyway_meta::{Object, PartSummary};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::checksums::Told;
use super::errors::Failure;
use super::{Core, conditions, encryption, page, resolve};

/// GetObjectAttributes.
pub(super) async fn get_object_attributes(
    core: &Core,
    request: S3Request<GetObjectAttributesInput>,
) -> Result<S3Response<GetObjectAttributesOutput>, Failure> {
    let input = &request.input;
    let key = resolve::key(&input.key)?;
    let version = resolve::version(input.version_id.as_deref())?;
    let wanted = Wanted::of(&input.object_attributes)?;
    let limit = page::limit("max-parts", input.max_parts)?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = u16::try_from(marker).map_err(|_| page::out_of_bounds("part-number-marker"))?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let object = core.catalog.read(&bucket, &key, version).await?;
    let customer = encryption::shown(core, &request.headers, &request.extensions)?;
    let encrypted = object.headers.encryption.as_ref();
    encryption::opened(core, &bucket, &key, encrypted, customer.as_ref())?;
    let class = object.headers.storage_class.clone();
    let mut output = GetObjectAttributesOutput {
        last_modified: Some(conditions::timestamp(object.modified)),
        version_id: resolve::told_version(&bucket, object.name()),
        ..GetObjectAttributesOutput::default()
    };
    if wanted.etag {
        output.e_tag = Some(ETag::Strong(object.etag.clone()));
    }
    if wanted.checksum {
        output.checksum = object.checksum.is_some().then(|| checksum(&object));
    }
    if wanted.parts && !object.parts.is_empty() {
        output.object_parts = Some(parts(&object, after, limit));
    }
    if wanted.storage_class {
        let class = class.unwrap_or_else(|| StorageClass::STANDARD.to_owned());
        output.storage_class = Some(StorageClass::from(class));
    }
    if wanted.size {
        output.object_size = Some(i64::try_from(object.size).unwrap_or(i64::MAX));
    }
    Ok(S3Response::new(output))
}

/// The attributes asked for.
#[derive(Default)]
struct Wanted {
    etag: bool,
    checksum: bool,
    parts: bool,
    storage_class: bool,
    size: bool,
}

impl Wanted {
    fn of(names: &[ObjectAttributes]) -> Result<Self, Failure> {
        let invalid =
            || Failure::refuse(S3ErrorCode::InvalidArgument, "Invalid attribute name specified.");
        let mut wanted = Self::default();
        // The protocol layer takes a header's whole list for one name.
        for name in names.iter().flat_map(|list| list.as_str().split(',')).map(str::trim) {
            let field = match name {
                ObjectAttributes::ETAG => &mut wanted.etag,
                ObjectAttributes::CHECKSUM => &mut wanted.checksum,
                ObjectAttributes::OBJECT_PARTS => &mut wanted.parts,
                ObjectAttributes::STORAGE_CLASS => &mut wanted.storage_class,
                ObjectAttributes::OBJECT_SIZE => &mut wanted.size,
                _ => return Err(invalid()),
            };
            *field = true;
        }
        if names.is_empty() { Err(invalid()) } else { Ok(wanted) }
    }
}

fn checksum(object: &Object) -> Checksum {
    let told = Told::object(object.checksum.as_ref(), object.parts.len());
    Checksum {
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        checksum_type: told.kind,
        ..Checksum::default()
    }
}

fn parts(object: &Object, after: u16, limit: usize) -> GetObjectAttributesParts {
    let mut rest = object.parts.iter().filter(|part| part.number > after);
    let told: Vec<&PartSummary> = rest.by_ref().take(limit).collect();
    let more = rest.next().is_some();
    let next = told.last().map_or(after, |part| part.number);
    GetObjectAttributesParts {
        is_truncated: Some(more),
        max_parts: Some(page::told(limit)),
        part_number_marker: Some(i32::from(after)),
        next_part_number_marker: Some(i32::from(next)),
        total_parts_count: i32::try_from(object.parts.len()).ok(),
        // S3 lists parts only where each has a checksum that its client asked for.
        parts: told
            .iter()
            .all(|part| part.checksum.is_some())
            .then(|| told.iter().map(|part| part_told(part)).collect()),
    }
}

fn part_told(part: &PartSummary) -> ObjectPart {
    let told = Told::part(part.checksum.as_ref());
    ObjectPart {
        part_number: Some(i32::from(part.number)),
        size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        ..ObjectPart::default()
    }
}
