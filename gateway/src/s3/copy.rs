//! CopyObject and UploadPartCopy.
//!
//! A copied object shares its source's chunks: one commit, no byte moved. That holds for encrypted
//! ones as long as the same holder has the key to both; else, and where a copy is encrypted and its
//! source is not, its bytes are written anew. A copied part has chunks of its own, for chunks are
//! shared whole and a part may be any range. Bytes that are written go from node to node in frames,
//! as in a GET and a PUT.

use futures::StreamExt;
use http::HeaderMap;
use keyway_dataplane::{Delivery, TransferError};
use keyway_meta::catalog::CopyFrom;
use keyway_meta::{
    Bucket, CatalogError, ChecksumType, EtagPolicy, Object, ObjectChecksum, ObjectHeaders, Part,
    StoredBy, VersionName,
};
use keyway_proto::checksum::Hasher;
use keyway_proto::unit::PART_BYTES_MAX;
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, DataKey, DigestSet, Durability, ObjectKey, TenantId,
    UploadId, Verification, VersionId,
};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::{Caller, caller};
use super::body::Outgoing;
use super::checksums::{self, Told};
use super::conditions::{self, ReadConditions, write_condition};
use super::durability::Awaited;
use super::encryption::{self, Asked, Chunks, Cover, Customer, Opened};
use super::errors::Failure;
use super::headers::{self, object_headers};
use super::multipart::{part_checksums, upload_id};
use super::{Core, durability, etag, get, lock, notification, ranges, rdma, resolve, store};
use crate::notify::{Act, Reporter};

/// A copy is tried again when its source was replaced meanwhile: so often.
const ATTEMPTS_MAX: usize = 3;

/// Parts, and objects, whose bytes are copied at once. Each is a GET that feeds a PUT, and holds
/// buffers of both: too many would take a node's buffers for their GETs, and wait for more of them
/// in their PUTs.
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

    /// The object, and its key where it is encrypted.
    fn opened<'a>(
        &self,
        core: &Core,
        found: &'a Object,
        customer: Option<&'a Customer>,
    ) -> Result<Opened<'a>, Failure> {
        let encryption = found.headers.encryption.as_ref();
        let key = encryption::opened(core, &self.bucket, &self.key, encryption, customer)?;
        Ok(Opened { object: found, key, customer })
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
    let encrypted = encryption::asked(core, &request.headers, &request.extensions)?;
    let customer = encryption::shown_for_source(core, &request.headers, &request.extensions)?;
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
        || !matches!(encrypted, Asked::Nothing)
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
        let opened = source.opened(core, &found, customer.as_ref())?;
        let (cover, chunks) = Cover::of_copy(core, &bucket, &key, encrypted.clone(), &opened)?;
        let tenant = caller.account();
        let mut object = copied(core, tenant, &opened, kind, directives, &given).await?;
        object.headers.encryption.clone_from(&cover.encryption);
        object.stored_by = caller.storing_in(&bucket);
        let result = CopyObjectResult {
            e_tag: Some(ETag::Strong(object.etag.clone())),
            last_modified: Some(conditions::timestamp(object.modified)),
            ..told_object(&object)
        };
        let from = CopyFrom { bucket: &source.bucket, key: &source.key, version: source.version };
        let site = Reporter::site(&bucket, reporter.as_ref());
        let published = match chunks {
            Chunks::Shared => {
                let to = (site, &key);
                let published = core.catalog.publish_copy(from, to, object, condition.clone());
                published.await.map_err(Failure::from)
            }
            Chunks::Written => match rewritten(core, tenant, &opened, cover.key.as_ref()).await {
                Ok(stored) => {
                    (object.extents, object.durability) = (stored.extents(), stored.durability);
                    let (kept, condition) = (stored.keep(), condition.clone());
                    let published = core.catalog.publish(site, &key, object, condition).await;
                    kept.settle(published).await
                }
                Err(failure) => Err(failure),
            },
        };
        match published {
            Err(Failure::Catalog(CatalogError::NoSuchKey)) if attempt < ATTEMPTS_MAX => {}
            Err(Failure::Catalog(CatalogError::NotDurable))
                if attempt < durability::SETTLES_MAX =>
            {
                durability::settled(core, Awaited::Object(&source.bucket, &source.key)).await?;
            }
            Err(failure) => return Err(failure),
            Ok(version) => {
                let mut headers = HeaderMap::new();
                cover.tell(&mut headers);
                let output = CopyObjectOutput {
                    copy_object_result: Some(result),
                    copy_source_version_id: source.told(&found),
                    version_id: resolve::told_version(&bucket, version),
                    ..CopyObjectOutput::default()
                };
                return Ok(S3Response::with_headers(output, headers));
            }
        }
    }
}

/// The new object: the source's bytes, under its own or the given headers.
async fn copied(
    core: &Core,
    tenant: TenantId,
    opened: &Opened<'_>,
    kind: Option<ChecksumKind>,
    directives: Directives,
    given: &ObjectHeaders,
) -> Result<Object, Failure> {
    let source = opened.object;
    if source.size > PART_BYTES_MAX {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "The specified copy source is larger than the maximum allowable size for a copy \
             source: 5368709120",
        ));
    }
    let checksum = match kind {
        Some(kind) if source.checksum.as_ref().is_none_or(|known| known.value.kind() != kind) => {
            let value = checksum_of(core, tenant, opened, kind).await?;
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
    opened: &Opened<'_>,
    kind: ChecksumKind,
) -> Result<Checksum, Failure> {
    let deliveries = delivered(core, tenant, opened, ByteRange::whole(opened.object.size)).await?;
    let mut hasher = Hasher::new(kind);
    for mut delivery in deliveries {
        while let Some(frame) = delivery.body.next().await {
            hasher.update(&frame?);
        }
    }
    Ok(hasher.finish())
}

/// Writes the bytes of an object anew, under another key where there is one.
async fn rewritten(
    core: &Core,
    tenant: TenantId,
    opened: &Opened<'_>,
    key: Option<&DataKey>,
) -> Result<store::Stored, Failure> {
    let whole = ByteRange::whole(opened.object.size);
    let stored = written(core, tenant, opened, whole, DigestSet::NONE, key).await;
    stored.map_err(|failure| match failure {
        // Replaced while it was read, as it might have been before the commit.
        Failure::Transfer(TransferError::NoSuchChunk(_)) => CatalogError::NoSuchKey.into(),
        failure => failure,
    })
}

/// The same of some bytes.
async fn written(
    core: &Core,
    tenant: TenantId,
    opened: &Opened<'_>,
    range: ByteRange,
    digests: DigestSet,
    key: Option<&DataKey>,
) -> Result<store::Stored, Failure> {
    // How many can wait is bounded by the requests that the server takes on.
    let _turn = core.part_copies.acquire().await.expect("the semaphore is never closed");
    let deliveries = delivered(core, tenant, opened, range).await?;
    let length = range.length();
    let body = store::intake(Some(StreamingBlob::new(Outgoing::new(deliveries))), length);
    store::store(core, tenant, length, digests, Durability::Disk, key, body).await
}

/// Bytes of what is copied. Damage must not become content.
async fn delivered(
    core: &Core,
    tenant: TenantId,
    opened: &Opened<'_>,
    range: ByteRange,
) -> Result<Vec<Delivery>, Failure> {
    let object = (opened.object, opened.key.as_ref());
    get::deliver(core, tenant, object, range, Verification::Inline).await
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
    let customer = encryption::shown(core, &request.headers, &request.extensions)?;
    let of_source = encryption::shown_for_source(core, &request.headers, &request.extensions)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let upload = core.catalog.upload(&bucket, &key, id).await?;
    let owner = input.expected_source_bucket_owner.as_deref();
    let source = source(core, caller, &input.copy_source, owner).await?;
    let found = source.found(core).await?;
    conditions.check_copy(&found)?;
    let range = source_range(&found, input.copy_source_range.as_deref())?;
    let stored_by = caller.storing_in(&bucket);
    core.catalog.part_has_room(&bucket, id, number, range.length(), stored_by.as_ref()).await?;
    let kind = upload.checksum.map(|(kind, _)| kind);
    let encryption = upload.headers.encryption.as_ref();
    let cover = Cover::of_part(core, &bucket, &key, encryption, customer.as_ref())?;
    let opened = source.opened(core, &found, of_source.as_ref())?;
    let making =
        Making { policy: bucket.settings.etag, number, kind, key: cover.key.as_ref(), stored_by };
    let part = copy_part(core, caller.account(), &opened, range, making).await?;
    let result = CopyPartResult {
        e_tag: Some(ETag::Strong(part.0.etag.clone())),
        last_modified: Some(conditions::timestamp(part.0.modified)),
        ..told_part(kind.and_then(|kind| checksum_in(&part.0, kind)))
    };
    publish_part(core, &bucket, &key, id, part).await?;
    let mut headers = HeaderMap::new();
    cover.tell(&mut headers);
    let output = UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: source.told(&found),
        ..UploadPartCopyOutput::default()
    };
    Ok(S3Response::with_headers(output, headers))
}

/// A part that is made of a copy's bytes.
struct Making<'a> {
    policy: EtagPolicy,
    number: u16,
    kind: Option<ChecksumKind>,
    key: Option<&'a DataKey>,
    stored_by: Option<StoredBy>,
}

async fn copy_part(
    core: &Core,
    tenant: TenantId,
    source: &Opened<'_>,
    range: ByteRange,
    Making { policy, number, kind, key, stored_by }: Making<'_>,
) -> Result<(Part, store::Stored), Failure> {
    let digests = kind.into_iter().fold(etag::digests(policy), |set, kind| set.with(kind));
    let length = range.length();
    let stored = written(core, tenant, source, range, digests, key).await?;
    let part = Part {
        number,
        size: length,
        etag: etag::etag(policy, &stored.digests, length)?,
        modified: core.clock.now(),
        checksums: part_checksums(&stored.digests),
        extents: stored.extents(),
        durability: stored.durability,
        stored_by,
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
