//! Multipart uploads: create, upload part, complete, abort; [`listing`] has what is under way.

use http::HeaderMap;
use keyway_meta::catalog::{Completing, NamedPart, PendingIn};
use keyway_meta::{CatalogError, ChecksumType, ObjectLock, Part, Upload};
use keyway_proto::{Checksum, ChecksumKind, Digests, Durability, UploadId};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::checksums::{self, Declared, Told};
use super::conditions::write_condition;
use super::durability::Awaited;
use super::encryption::{self, Cover};
use super::errors::Failure;
use super::headers::{self, object_headers};
use super::page::Encoding;
use super::{Core, durability, etag, get, lock, notification, rdma, resolve, store};
use crate::notify::{Act, Reporter};

mod expected;
mod listing;

use expected::Expected;
pub(super) use listing::{list_parts, list_uploads};

/// CreateMultipartUpload.
pub(super) async fn create(
    core: &Core,
    mut request: S3Request<CreateMultipartUploadInput>,
) -> Result<S3Response<CreateMultipartUploadOutput>, Failure> {
    headers::refuse_unsupported(&request.headers)?;
    let caller = caller(&request.extensions)?;
    let input = &mut request.input;
    let key = resolve::key(&input.key)?;
    let checksum =
        chosen_checksum(input.checksum_algorithm.as_ref(), input.checksum_type.as_ref())?;
    let mut headers = object_headers!(core, input)?;
    let encrypted = encryption::asked(core, &request.headers, &request.extensions)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    if headers.lock != ObjectLock::default() {
        // What the bucket adds counts from the completion on.
        lock::applied(core, &bucket, headers.lock).await?;
    }
    let cover = Cover::fresh(core, &bucket, &key, encrypted)?;
    headers.encryption.clone_from(&cover.encryption);
    let id = UploadId::generate();
    let upload = Upload { id, key: key.clone(), initiated: core.clock.now(), headers, checksum };
    core.catalog.create_upload(&bucket, upload).await?;
    let mut headers = HeaderMap::new();
    cover.tell(&mut headers);
    let output = CreateMultipartUploadOutput {
        bucket: Some(bucket.name.to_string()),
        key: Some(key.to_string()),
        upload_id: Some(id.to_string()),
        checksum_algorithm: checksum.map(|(kind, _)| checksums::algorithm_name(kind)),
        checksum_type: checksum.map(|(_, of)| checksums::type_name(of)),
        ..CreateMultipartUploadOutput::default()
    };
    Ok(S3Response::with_headers(output, headers))
}

/// UploadPart: as PutObject, but what it makes visible is a part.
pub(super) async fn upload_part(
    core: &Core,
    mut request: S3Request<UploadPartInput>,
) -> Result<S3Response<UploadPartOutput>, Failure> {
    let (headers, extensions) = (&request.headers, &request.extensions);
    let length = request.input.content_length;
    let offered = rdma::offered_write(core, headers, extensions, length).await?;
    headers::refuse_unsupported(&request.headers)?;
    let caller = caller(&request.extensions)?;
    let input = &mut request.input;
    let key = resolve::key(&input.key)?;
    let number = get::check_part_number(input.part_number)?;
    let id = upload_id(&input.upload_id)?;
    let declared = Declared::from_headers(&request.headers)?;
    let asked = durability::asked(&request.headers)?;
    let customer = encryption::shown(core, &request.headers, &request.extensions)?;
    let length = match &offered {
        Some(offered) => offered.length(),
        None => store::announced_length(core, input.content_length)?,
    };
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let upload = core.catalog.upload(&bucket, &key, id).await?;
    let kind = part_kind(&upload, declared.kind())?;
    let encryption = upload.headers.encryption.as_ref();
    let cover = Cover::of_part(core, &bucket, &key, encryption, customer.as_ref())?;
    let data_key = cover.key.as_ref();
    let stored_by = caller.storing_in(&bucket);
    core.catalog.part_has_room(&bucket, id, number, length, stored_by.as_ref()).await?;

    let policy = durability::etag_policy(asked, bucket.settings.etag);
    let durability = durability::of_body(&bucket, asked, length);
    let digests = etag::digests(policy).union(declared.digests());
    let digests = kind.into_iter().fold(digests, |set, kind| set.with(kind));
    let (stored, moved) = match &offered {
        Some(offered) => rdma::store(core, caller, offered, digests, durability, data_key).await?,
        None => {
            let room = core.signed_chunks.room(&request.headers, length).await;
            let body = store::intake(input.body.take(), length).paced(caller.usage.pace());
            let tenant = caller.account();
            let stored =
                store::store(core, tenant, length, digests, durability, data_key, body).await?;
            drop(room);
            (stored, None)
        }
    };
    if let Err(failure) = declared.verify(&stored.digests, request.trailing_headers.as_ref()) {
        stored.release().await;
        return Err(failure);
    }

    let tag = etag::etag(policy, &stored.digests, length)?;
    let told = match kind {
        Some(kind) => Told::part(Some(&etag::required(&stored.digests, kind)?)),
        None => Told::part(stored.digests.value(ChecksumKind::Crc64Nvme)),
    };
    let part = Part {
        number,
        size: length,
        etag: tag.clone(),
        modified: core.clock.now(),
        checksums: part_checksums(&stored.digests),
        extents: stored.extents(),
        durability: stored.durability,
        stored_by,
    };
    let mut headers = rdma::written(moved);
    durability::tell(asked, stored.durability, &mut headers);
    cover.tell(&mut headers);
    let kept = stored.keep();
    kept.settle(core.catalog.publish_part(&bucket, &key, id, part).await).await?;
    let output = UploadPartOutput {
        e_tag: Some(ETag::Strong(tag)),
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        ..UploadPartOutput::default()
    };
    Ok(S3Response::with_headers(output, headers))
}

/// CompleteMultipartUpload.
pub(super) async fn complete(
    core: &Core,
    request: S3Request<CompleteMultipartUploadInput>,
) -> Result<S3Response<CompleteMultipartUploadOutput>, Failure> {
    let caller = caller(&request.extensions)?;
    let input = &request.input;
    let key = resolve::key(&input.key)?;
    let id = upload_id(&input.upload_id)?;
    let condition = write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let named = named_parts(input.multipart_upload.as_ref())?;
    let expected = Expected::of(input, named.len())?;
    let asked = durability::asked(&request.headers)?;
    // It opens nothing, and need not be there.
    let customer = encryption::shown(core, &request.headers, &request.extensions)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let wanted = durability::of_object(&bucket, asked);
    let reporter = notification::reporter(core, caller, &bucket, Act::Complete).await?;
    let site = Reporter::site(&bucket, reporter.as_ref());
    let mut settles = 0;
    let object = loop {
        if wanted == Durability::Memory {
            // A part that is lost already must not be acknowledged as part of an object.
            durability::looked_at(core, PendingIn::Upload(id)).await?;
        }
        let now = core.clock.now();
        let completion = Completing {
            parts: &named,
            checksum: expected.checksum,
            condition: condition.clone(),
            durability: wanted,
            retention: lock::default_of(&core.catalog, &bucket, now).await?,
            now,
            stored_by: caller.storing_in(&bucket),
        };
        let accept = |upload: &Upload, parts: &[&Part]| expected.accept(upload, parts);
        let completing = core.catalog.complete_upload_if(site, &key, id, completion, accept);
        match completing.await {
            Err(CatalogError::NotDurable) if settles < durability::SETTLES_MAX => {
                settles += 1;
                durability::settled(core, Awaited::Parts(id)).await?;
            }
            completed => break completed??,
        }
    };
    let mut headers = HeaderMap::new();
    durability::tell(asked, object.durability, &mut headers);
    let md5 = customer.as_ref().map(|customer| &customer.md5);
    encryption::tell(object.headers.encryption.as_ref(), md5, &mut headers);
    let told = Told::object(object.checksum.as_ref(), object.parts.len());
    let output = CompleteMultipartUploadOutput {
        bucket: Some(bucket.name.to_string()),
        key: Some(key.to_string()),
        location: Some(format!("/{}/{}", bucket.name, Encoding::Url.text(&key))),
        version_id: resolve::told_version(&bucket, object.name()),
        e_tag: Some(ETag::Strong(object.etag)),
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        checksum_type: told.kind,
        ..CompleteMultipartUploadOutput::default()
    };
    Ok(S3Response::with_headers(output, headers))
}

/// AbortMultipartUpload.
pub(super) async fn abort(
    core: &Core,
    request: S3Request<AbortMultipartUploadInput>,
) -> Result<S3Response<AbortMultipartUploadOutput>, Failure> {
    let input = &request.input;
    let key = resolve::key(&input.key)?;
    let id = upload_id(&input.upload_id)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    core.catalog.abort_upload(&bucket, &key, id).await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// The id in a request. What is no id names no upload.
///
/// # Errors
/// `NoSuchUpload`.
pub(super) fn upload_id(text: &str) -> Result<UploadId, Failure> {
    // One form alone is ours, though the parser knows several of the same id.
    text.parse()
        .ok()
        .filter(|id: &UploadId| id.to_string() == text)
        .ok_or_else(|| Failure::code(S3ErrorCode::NoSuchUpload))
}

/// The checksums to keep of a part: all but the MD5, which its ETag has.
pub(super) fn part_checksums(digests: &Digests) -> Vec<Checksum> {
    digests.iter().filter(|digest| digest.kind() != ChecksumKind::Md5).copied().collect()
}

/// The checksum that an upload is created with; S3's table of what goes together.
fn chosen_checksum(
    algorithm: Option<&ChecksumAlgorithm>,
    of: Option<&s3s::dto::ChecksumType>,
) -> Result<Option<(ChecksumKind, ChecksumType)>, Failure> {
    let Some(algorithm) = algorithm else {
        return match of {
            None => Ok(None),
            Some(_) => Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The x-amz-checksum-type header can only be used with the \
                 x-amz-checksum-algorithm header.",
            )),
        };
    };
    let kind =
        checksums::kind_by_name(algorithm.as_str()).ok_or_else(checksums::unknown_algorithm)?;
    let default = match kind {
        ChecksumKind::Crc64Nvme => ChecksumType::FullObject,
        _ => ChecksumType::Composite,
    };
    let of = match of.map(s3s::dto::ChecksumType::as_str) {
        None => default,
        Some(s3s::dto::ChecksumType::FULL_OBJECT) => ChecksumType::FullObject,
        Some(s3s::dto::ChecksumType::COMPOSITE) => ChecksumType::Composite,
        Some(_) => {
            return Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "Value for x-amz-checksum-type header is invalid.",
            ));
        }
    };
    let possible = match of {
        ChecksumType::FullObject => kind.combines(),
        ChecksumType::Composite => kind != ChecksumKind::Crc64Nvme,
    };
    if !possible {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            format!("The {of:?} checksum type cannot be used with the {kind} checksum algorithm."),
        ));
    }
    Ok(Some((kind, of)))
}

/// The kind that is kept and told of a part: the upload's, else the client's.
fn part_kind(
    upload: &Upload,
    declared: Option<ChecksumKind>,
) -> Result<Option<ChecksumKind>, Failure> {
    match (upload.checksum, declared) {
        (Some((expected, _)), Some(given)) if expected != given => Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            format!(
                "Checksum Type mismatch occurred, expected checksum Type: {expected}, actual \
                 checksum Type: {given}"
            ),
        )),
        (Some((expected, _)), _) => Ok(Some(expected)),
        (None, declared) => Ok(declared),
    }
}

fn named_parts(document: Option<&CompletedMultipartUpload>) -> Result<Vec<NamedPart>, Failure> {
    let parts = document.and_then(|document| document.parts.as_deref()).unwrap_or_default();
    let most = usize::from(keyway_proto::unit::PART_NUMBER_MAX);
    if parts.is_empty() || parts.len() > most {
        return Err(Failure::code(S3ErrorCode::MalformedXML));
    }
    parts.iter().map(named_part).collect()
}

fn named_part(part: &CompletedPart) -> Result<NamedPart, Failure> {
    let malformed = || Failure::code(S3ErrorCode::MalformedXML);
    let number = get::check_part_number(part.part_number.ok_or_else(malformed)?)?;
    let etag = part.e_tag.as_ref().ok_or_else(malformed)?.value().to_owned();
    let given = [
        (ChecksumKind::Crc32, &part.checksum_crc32),
        (ChecksumKind::Crc32c, &part.checksum_crc32c),
        (ChecksumKind::Crc64Nvme, &part.checksum_crc64nvme),
        (ChecksumKind::Sha1, &part.checksum_sha1),
        (ChecksumKind::Sha256, &part.checksum_sha256),
    ];
    let mut checksum = None;
    for (kind, text) in given {
        let Some(text) = text else { continue };
        let value = Checksum::from_base64(kind, text).ok_or_else(malformed)?;
        if checksum.replace(value).is_some() {
            return Err(malformed());
        }
    }
    Ok(NamedPart { number, etag, checksum })
}
