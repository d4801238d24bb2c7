//! PutObject.

use keyway_meta::{ChecksumType, Object, ObjectChecksum};
use keyway_proto::{ChecksumKind, VersionId};
use s3s::dto::{ETag, PutObjectInput, PutObjectOutput};
use s3s::{S3Request, S3Response};

use super::access::caller;
use super::checksums::{Declared, Told};
use super::conditions::write_condition;
use super::encryption::{self, Cover};
use super::errors::Failure;
use super::form;
use super::headers::{self, object_headers};
use super::{Core, durability, etag, lock, notification, rdma, resolve, store};
use crate::notify::{Act, Reporter};

/// PutObject: everything is checked before the one commit that makes the object visible.
pub(super) async fn put_object(
    core: &Core,
    mut request: S3Request<PutObjectInput>,
) -> Result<S3Response<PutObjectOutput>, Failure> {
    let (headers, extensions) = (&request.headers, &request.extensions);
    let length = request.input.content_length;
    let offered = rdma::offered_write(core, headers, extensions, length).await?;
    headers::refuse_unsupported(&request.headers)?;
    let caller = caller(&request.extensions)?;
    let input = &mut request.input;
    let key = resolve::key(&input.key)?;
    let declared = Declared::from_headers(&request.headers)?;
    let asked = durability::asked(&request.headers)?;
    let encrypted = encryption::asked(core, &request.headers, &request.extensions)?;
    let condition = write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let form = request.extensions.get::<form::Signed>().map(|form| form.size);
    // Of a form's file that is the least.
    let announced = match (&offered, form) {
        (Some(offered), _) => offered.length(),
        (None, Some(form)) => form.at_least(core)?,
        (None, None) => store::announced_length(core, input.content_length)?,
    };
    let mut object_headers = object_headers!(core, input)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    object_headers.lock = lock::applied(core, &bucket, object_headers.lock).await?;
    let cover = Cover::fresh(core, &bucket, &key, encrypted)?;
    object_headers.encryption.clone_from(&cover.encryption);
    let data_key = cover.key.as_ref();
    let stored_by = caller.storing_in(&bucket);
    core.catalog.has_room(&bucket, &key, announced, stored_by.as_ref()).await?;
    let act = if form.is_some() { Act::Post } else { Act::Put };
    let reporter = notification::reporter(core, caller, &bucket, act).await?;

    let policy = durability::etag_policy(asked, bucket.settings.etag);
    let durability = durability::of_body(&bucket, asked, announced);
    let digests = etag::digests(policy).union(declared.digests());
    let tenant = caller.account();
    let (stored, moved, length) = match (&offered, form) {
        (Some(offered), _) => {
            let stored = rdma::store(core, caller, offered, digests, durability, data_key).await?;
            (stored.0, stored.1, announced)
        }
        (None, Some(size)) => {
            let (body, pace) = (input.body.take(), caller.usage.pace());
            let (stored, length) =
                form::store(core, tenant, size, digests, data_key, body, &pace).await?;
            (stored, None, length)
        }
        (None, None) => {
            let length = announced;
            let room = core.signed_chunks.room(&request.headers, length).await;
            let body = store::intake(input.body.take(), length).paced(caller.usage.pace());
            let stored =
                store::store(core, tenant, length, digests, durability, data_key, body).await?;
            drop(room);
            (stored, None, length)
        }
    };
    if let Err(failure) = declared.verify(&stored.digests, request.trailing_headers.as_ref()) {
        stored.release().await;
        return Err(failure);
    }

    let kind = declared.kind().unwrap_or(ChecksumKind::Crc64Nvme);
    let checksum = ObjectChecksum {
        value: etag::required(&stored.digests, kind)?,
        kind: ChecksumType::FullObject,
    };
    let tag = etag::etag(policy, &stored.digests, length)?;
    let told = Told::object(Some(&checksum), 0);
    let object = Object {
        version: VersionId::generate(),
        named: false,
        size: length,
        modified: core.clock.now(),
        etag: tag.clone(),
        checksum: Some(checksum),
        headers: object_headers,
        parts: Vec::new(),
        extents: stored.extents(),
        durability: stored.durability,
        stored_by,
    };
    let mut headers = rdma::written(moved);
    durability::tell(asked, stored.durability, &mut headers);
    cover.tell(&mut headers);
    let kept = stored.keep();
    let site = Reporter::site(&bucket, reporter.as_ref());
    let published = core.catalog.publish(site, &key, object, condition).await;
    let version = kept.settle(published).await?;

    let output = PutObjectOutput {
        e_tag: Some(ETag::Strong(tag)),
        checksum_crc32: told.crc32,
        checksum_crc32c: told.crc32c,
        checksum_crc64nvme: told.crc64nvme,
        checksum_sha1: told.sha1,
        checksum_sha256: told.sha256,
        checksum_type: told.kind,
        version_id: resolve::told_version(&bucket, version),
        ..PutObjectOutput::default()
    };
    Ok(S3Response::with_headers(output, headers))
}
