//! CopyObject and UploadPartCopy.
//!
//! A copied object shares its source's chunks: one commit, no byte moved. A copied part has
//! chunks of its own, for chunks are shared whole and a part may be any range: its bytes go
//! from node to node in frames, as in a GET and a PUT.

use futures::StreamExt;
use keyway_meta::catalog::CopyFrom;
use keyway_meta::{
    Bucket, CatalogError, ChecksumType, Object, ObjectChecksum, ObjectHeaders, Part, VersionName,
};
use keyway_proto::checksum::Hasher;
use keyway_proto::unit::PART_BYTES_MAX;
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, Durability, ObjectKey, TenantId, UploadId, Verification,
    VersionId,
};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::{Caller, caller};
use super::body::Outgoing;
use super::checksums::{self, Told};
use super::conditions::{self, ReadConditions, write_condition};
use super::durability::Awaited;
use super::errors::Failure;
use super::headers::{self, object_headers};
use super::multipart::{part_checksums, upload_id};
use super::{Core, durability, etag, get, lock, notification, ranges, rdma, resolve, store};
use crate::notify::{Act, Reporter};

/// A copy is tried again when its source was replaced meanwhile: so often.
const ATTEMPTS_MAX: usize = 3;

/// Parts copied at once. Each is a GET that feeds a PUT, and holds buffers of both: too many
/// would take a node's buffers for their GETs, and wait for more of them in their PUTs.
pub(super) const PART_COPIES_MAX: usize = 4;

/// An object to copy from.
struct Source {
    bucket: Bucket,
    key: ObjectKey,
    version: Option<VersionName>,
}

impl Source {
    async fn found(&self, core: &Core) -> Result<Object, Failure> {
        match core.catalog.read(&self.bucket, &self.key, self.version).await {
            // Where S3 refuses the method for a GET, it refuses the request for a copy.
            Err(CatalogError::IsDeleteMarker(_)) => Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The source of a copy request may not specifically refer to a delete marker by \
                 version id.",
            )),
            found => Ok(found?),
        }
    }

    /// The version copied, as an answer names it.
    fn told(&self, found: &Object) -> Option<String> {
        resolve::told_version(&self.bucket, found.name())
    }
}

macro_rules! source_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.copy_source_if_match.take(),
            if_none_match: $input.copy_source_if_none_match.take(),
            if_modified_since: $input.copy_source_if_modified_since.take(),
            if_unmodified_since: $input.copy_source_if_unmodified_since.take(),
        }
    };
}

/// CopyObject.
pub(super) async fn copy_object(
    core: &Core,
    mut request: S3Request<CopyObjectInput>,
) -> Result<S3Response<CopyObjectOutput>, Failure> {
    rdma::refuse_copy(core, &request.headers)?;
    headers::refuse_unsupported(&request.headers)?;
    let caller = caller(&request.extensions)?;
    let input = &mut request.input;
    let key = resolve::key(&input.key)?;
    let directives = Directives {
        metadata: replaces(
            "metadata",
            input.metadata_directive.as_ref().map(MetadataDirective::as_str),
        )?,
        tags: replaces("tagging", input.tagging_directive.as_ref().map(TaggingDirective::as_str))?,
    };
    let condition = write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let kind = requested_kind(input.checksum_algorithm.as_ref())?;
    let conditions = source_conditions!(input);
    let mut given: ObjectHeaders = object_headers!(core, input)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    given.lock = lock::applied(core, &bucket, given.lock).await?;
    let owner = input.expected_source_bucket_owner.as_deref();
    let source = source(core, caller, &input.copy_source, owner).await?;
    // Copying a version onto its key brings it back.
    let onto_itself =
        source.bucket.id == bucket.id && source.key == key && source.version.is_none();
    let changes = directives.metadata
        || kind.is_some()
        || given.storage_class.is_some()
        || given.website_redirect_location.is_some();
    if onto_itself && !changes {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself \
             without changing the object's metadata, storage class, website redirect location \
             or encryption attributes.",
        ));
    }
    let reporter = notification::reporter(core, caller, &bucket, Act::Copy).await?;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let found = source.found(core).await?;
        conditions.check_copy(&found)?;
        let object = copied(core, caller.account(), &found, kind, directives, &given).await?;
        let result = CopyObjectResult {
            e_tag: Some(ETag::Strong(object.etag.clone())),
            last_modified: Some(conditions::timestamp(object.modified)),
            ..told_object(&object)
        };
        let from = CopyFrom { bucket: &source.bucket, key: &source.key, version: source.version };
        let to = (Reporter::site(&bucket, reporter.as_ref()), &key);
        match core.catalog.publish_copy(from, to, object, condition.clone()).await {
            Err(CatalogError::NoSuchKey) if attempt < ATTEMPTS_MAX => {}
            Err(CatalogError::NotDurable) if attempt < durability::SETTLES_MAX => {
                durability::settled(core, Awaited::Object(&source.bucket, &source.key)).await?;
            }
            Err(failure) => return Err(failure.into()),
            Ok(version) => {
                return Ok(S3Response::new(CopyObjectOutput {
                    copy_object_result: Some(result),
                    copy_source_version_id: source.told(&found),
                    version_id: resolve::told_version(&bucket, version),
                    ..CopyObjectOutput::default()
                }));
            }
        }
    }
}

/// The new object: the source's bytes, under its own or the given headers.
async fn copied(
    core: &Core,
    tenant: TenantId,
    source: &Object,
    kind: Option<ChecksumKind>,
    directives: Directives,
    given: &ObjectHeaders,
) -> Result<Object, Failure> {
    if source.size > PART_BYTES_MAX {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "The specified copy source is larger than the maximum allowable size for a copy \
             source: 5368709120",
        ));
    }
    let checksum = match kind {
        Some(kind) if source.checksum.as_ref().is_none_or(|known| known.value.kind() != kind) => {
            let value = checksum_of(core, tenant, source, kind).await?;
            Some(ObjectChecksum { value, kind: ChecksumType::FullObject })
        }
        _ => source.checksum.clone(),
    };
    let tags = if directives.tags { &given.tags } else { &source.headers.tags };
    let headers = if directives.metadata {
        ObjectHeaders { tags: tags.clone(), ..given.clone() }
    } else {
        ObjectHeaders {
            tags: tags.clone(),
            // These two are not metadata: a copy has those of its own request.
            storage_class: given.storage_class.clone(),
            website_redirect_location: given.website_redirect_location.clone(),
            lock: given.lock,
            ..source.headers.clone()
        }
    };
    Ok(Object {
        version: VersionId::generate(),
        modified: core.clock.now(),
        checksum,
        headers,
        ..source.clone()
    })
}

/// Reads the object once, for a checksum that nobody computed when it was written.
async fn checksum_of(
    core: &Core,
    tenant: TenantId,
    object: &Object,
    kind: ChecksumKind,
) -> Result<Checksum, Failure> {
    let whole = ByteRange::whole(object.size);
    let deliveries = get::deliver(core, tenant, object, whole, Verification::Inline).await?;
    let mut hasher = Hasher::new(kind);
    for mut delivery in deliveries {
        while let Some(frame) = delivery.body.next().await {
            hasher.update(&frame?);
        }
    }
    Ok(hasher.finish())
}

/// UploadPartCopy.
pub(super) async fn upload_part_copy(
    core: &Core,
    mut request: S3Request<UploadPartCopyInput>,
) -> Result<S3Response<UploadPartCopyOutput>, Failure> {
    rdma::refuse_copy(core, &request.headers)?;
    headers::refuse_unsupported(&request.headers)?;
    let caller = caller(&request.extensions)?;
    let input = &mut request.input;
    let key = resolve::key(&input.key)?;
    let number = get::check_part_number(input.part_number)?;
    let id = upload_id(&input.upload_id)?;
    let conditions = source_conditions!(input);
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let upload = core.catalog.upload(&bucket, &key, id).await?;
    let owner = input.expected_source_bucket_owner.as_deref();
    let source = source(core, caller, &input.copy_source, owner).await?;
    let found = source.found(core).await?;
    conditions.check_copy(&found)?;
    let range = source_range(&found, input.copy_source_range.as_deref())?;
    core.catalog.part_has_room(&bucket, id, number, range.length()).await?;
    let kind = upload.checksum.map(|(kind, _)| kind);
    let part = copy_part(core, caller.account(), &bucket, &found, range, number, kind).await?;
    let result = CopyPartResult {
        e_tag: Some(ETag::Strong(part.0.etag.clone())),
        last_modified: Some(conditions::timestamp(part.0.modified)),
        ..told_part(kind.and_then(|kind| checksum_in(&part.0, kind)))
    };
    publish_part(core, &bucket, &key, id, part).await?;
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: source.told(&found),
        ..UploadPartCopyOutput::default()
    }))
}

async fn copy_part(
    core: &Core,
    tenant: TenantId,
    bucket: &Bucket,
    source: &Object,
    range: ByteRange,
    number: u16,
    kind: Option<ChecksumKind>,
) -> Result<(Part, store::Stored), Failure> {
    let policy = bucket.settings.etag;
    let digests = kind.into_iter().fold(etag::digests(policy), |set, kind| set.with(kind));
    // How many can wait is bounded by the requests that the server takes on.
    let _turn = core.part_copies.acquire().await.expect("the semaphore is never closed");
    let deliveries = get::deliver(core, tenant, source, range, Verification::Inline).await?;
    let length = range.length();
    let body = store::intake(Some(StreamingBlob::new(Outgoing::new(deliveries))), length);
    let stored = store::store(core, tenant, length, digests, Durability::Disk, body).await?;
    let part = Part {
        number,
        size: length,
        etag: etag::etag(policy, &stored.digests, length)?,
        modified: core.clock.now(),
        checksums: part_checksums(&stored.digests),
        extents: stored.extents(),
        durability: stored.durability,
    };
    Ok((part, stored))
}

async fn publish_part(
    core: &Core,
    bucket: &Bucket,
    key: &ObjectKey,
    id: UploadId,
    (part, stored): (Part, store::Stored),
) -> Result<(), Failure> {
    let kept = stored.keep();
    kept.settle(core.catalog.publish_part(bucket, key, id, part).await).await
}

async fn source(
    core: &Core,
    caller: &Caller,
    source: &CopySource,
    expected_owner: Option<&str>,
) -> Result<Source, Failure> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(Failure::not_implemented("Copy sources are named as bucket/key."));
    };
    let version = resolve::version(version_id.as_deref())?;
    let key = resolve::key(key)?;
    let bucket = resolve::source(core, caller, bucket, expected_owner).await?;
    Ok(Source { bucket, key, version })
}

/// What of the source a copy does not take over.
#[derive(Clone, Copy)]
struct Directives {
    metadata: bool,
    tags: bool,
}

/// Whether the directive is to replace.
fn replaces(of: &'static str, directive: Option<&str>) -> Result<bool, Failure> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => {
            Err(Failure::refuse(S3ErrorCode::InvalidArgument, format!("Unknown {of} directive.")))
        }
    }
}

fn requested_kind(algorithm: Option<&ChecksumAlgorithm>) -> Result<Option<ChecksumKind>, Failure> {
    let Some(algorithm) = algorithm else { return Ok(None) };
    checksums::kind_by_name(algorithm.as_str()).map(Some).ok_or_else(checksums::unknown_algorithm)
}

/// The bytes that `x-amz-copy-source-range` names: both ends, both within the source.
fn source_range(source: &Object, text: Option<&str>) -> Result<ByteRange, Failure> {
    let Some(text) = text else {
        let whole = ByteRange::whole(source.size);
        return if whole.length() > PART_BYTES_MAX {
            Err(Failure::code(S3ErrorCode::EntityTooLarge))
        } else {
            Ok(whole)
        };
    };
    let invalid = || {
        Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first \
             and last are the zero-based offsets of the first and last bytes to copy",
        )
    };
    let parsed = Range::parse(text).map_err(|_| invalid())?;
    let Range::Int { last: Some(last), .. } = parsed else { return Err(invalid()) };
    if last >= source.size {
        return Err(Failure::code(S3ErrorCode::InvalidRange));
    }
    let range = ranges::bytes_of(source.size, parsed).ok_or_else(invalid)?;
    if range.length() > PART_BYTES_MAX {
        return Err(Failure::code(S3ErrorCode::EntityTooLarge));
    }
    Ok(range)
}

fn checksum_in(part: &Part, kind: ChecksumKind) -> Option<&Checksum> {
    part.checksums.iter().find(|checksum| checksum.kind() == kind)
}

fn told_object(object: &Object) -> CopyObjectResult {
    let told = Told::object(object.checksum.as_ref(), object.parts.len());
    CopyObjectResult {
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        checksum_type: told.kind,
        ..CopyObjectResult::default()
    }
}

fn told_part(checksum: Option<&Checksum>) -> CopyPartResult {
    let told = Told::part(checksum);
    CopyPartResult {
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        ..CopyPartResult::default()
    }
}
