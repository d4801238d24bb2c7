//! DeleteObject and DeleteObjects.

use futures::StreamExt;
use keyway_auth::policy::Traits;
use keyway_meta::catalog::{Clearance, Deleted, Site, Stamp, WriteCondition};
use keyway_meta::{Bucket, CatalogError, VersionName};
use keyway_proto::{ObjectKey, VersionId};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::{self, Caller, caller};
use super::checksums::Declared;
use super::conditions::write_condition;
use super::errors::Failure;
use super::service::RequestId;
use super::{Core, headers, notification, resolve};
use crate::notify::{Act, Reporter};

/// Most keys of one DeleteObjects: S3's own limit.
const KEYS_MAX: usize = 1000;
/// Deletions under way at once for one DeleteObjects: enough to share group commits.
const CONCURRENT_MAX: usize = 32;

/// DeleteObject. Deleting what is not there succeeds.
pub(super) async fn delete_object(
    core: &Core,
    request: S3Request<DeleteObjectInput>,
) -> Result<S3Response<DeleteObjectOutput>, Failure> {
    headers::refuse_unsupported(&request.headers)?;
    let input = &request.input;
    if input.if_match_size.is_some() || input.if_match_last_modified_time.is_some() {
        return Err(Failure::not_implemented("Deletions are conditional on If-Match alone."));
    }
    let key = resolve::key(&input.key)?;
    let version = resolve::version(input.version_id.as_deref())?;
    let bypass = input.bypass_governance_retention == Some(true);
    let condition = write_condition(input.if_match.as_ref(), None)?;
    let owner = input.expected_bucket_owner.as_deref();
    let caller = caller(&request.extensions)?;
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let reporter = notification::reporter(core, caller, &bucket, Act::Delete).await?;
    let site = Reporter::site(&bucket, reporter.as_ref());
    let deleted = delete(core, site, &key, version, condition, bypass).await?;
    let told = deleted.version.and_then(|name| resolve::told_version(&bucket, name));
    Ok(S3Response::new(DeleteObjectOutput {
        delete_marker: deleted.marker.then_some(true),
        version_id: told,
        ..DeleteObjectOutput::default()
    }))
}

/// DeleteObjects: each key for itself; failures are listed, not raised.
pub(super) async fn delete_objects(
    core: &Core,
    request: S3Request<DeleteObjectsInput>,
) -> Result<S3Response<DeleteObjectsOutput>, Failure> {
    headers::refuse_unsupported(&request.headers)?;
    // Its value was compared when the document was read.
    if Declared::from_headers(&request.headers)?.is_empty() {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "Missing required header for this request: Content-MD5",
        ));
    }
    let caller = caller(&request.extensions)?;
    let id = request.extensions.get::<RequestId>();
    let input = &request.input;
    let objects = &input.delete.objects;
    if objects.is_empty() || objects.len() > KEYS_MAX {
        return Err(Failure::code(S3ErrorCode::MalformedXML));
    }
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let reporter = notification::reporter(core, caller, &bucket, Act::Delete).await?;
    let site = Reporter::site(&bucket, reporter.as_ref());
    let bypass = input.bypass_governance_retention == Some(true);
    let one = |object| delete_one(core, caller, bypass, (&bucket, site), object);
    let deletions: Vec<_> = objects.iter().map(one).collect();
    let outcomes: Vec<Result<Deleted, Failure>> =
        futures::stream::iter(deletions).buffered(CONCURRENT_MAX).collect().await;

    let quiet = input.delete.quiet == Some(true);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (object, outcome) in objects.iter().zip(outcomes) {
        match outcome {
            Ok(_) if quiet => {}
            Ok(done) => deleted.push(told_deletion(object, done)),
            Err(failure) => errors.push(told(id, object, failure)),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        request_charged: None,
    }))
}

/// Removes a version for good, or deletes what is current.
async fn delete(
    core: &Core,
    site: Site<'_>,
    key: &ObjectKey,
    version: Option<VersionName>,
    condition: WriteCondition,
    bypass_governance: bool,
) -> Result<Deleted, CatalogError> {
    let now = core.clock.now();
    match version {
        None => {
            let stamp = Stamp { version: VersionId::generate(), at: now };
            core.catalog.delete(site, key, condition, stamp).await
        }
        Some(name) => {
            let clearance = Clearance { now, bypass_governance };
            core.catalog.delete_version(site, key, name, condition, clearance).await
        }
    }
}

async fn delete_one(
    core: &Core,
    caller: &Caller,
    bypass: bool,
    (bucket, site): (&Bucket, Site<'_>),
    object: &ObjectIdentifier,
) -> Result<Deleted, Failure> {
    let resource = access::object(&bucket.name, &object.key);
    let version = object.version_id.is_some();
    let traits = Traits { version, bypass_governance: bypass, ..Traits::default() };
    for need in access::needs("DeleteObjects", traits) {
        caller.may_here(need.action, &resource)?;
    }
    let key = resolve::key(&object.key)?;
    let version = resolve::version(object.version_id.as_deref())?;
    let condition = match &object.e_tag {
        Some(etag) => WriteCondition::EtagIs(etag.value().to_owned()),
        None => WriteCondition::None,
    };
    Ok(delete(core, site, &key, version, condition, bypass).await?)
}

/// A marker that was made has a field of its own; one that was removed is told twice, as S3 does.
fn told_deletion(object: &ObjectIdentifier, done: Deleted) -> DeletedObject {
    DeletedObject {
        key: Some(object.key.clone()),
        version_id: object.version_id.clone(),
        delete_marker: done.marker.then_some(true),
        delete_marker_version_id: done.version.filter(|_| done.marker).map(|name| name.to_string()),
    }
}

fn told(id: Option<&RequestId>, object: &ObjectIdentifier, failure: Failure) -> Error {
    let error = failure.answer(&id.cloned().unwrap_or_else(RequestId::generate));
    Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(speakable(&object.key)),
        message: error.message().map(str::to_owned),
        version_id: object.version_id.clone(),
    }
}

/// The key as XML can name it: a refused key may hold what XML has no form for.
fn speakable(key: &str) -> String {
    key.replace(|c: char| c < ' ' && !matches!(c, '\t' | '\n' | '\r'), "\u{fffd}")
}
