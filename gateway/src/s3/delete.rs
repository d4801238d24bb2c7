//! DeleteObject and DeleteObjects.

use futures::StreamExt;
use keyway_auth::policy::Traits;
use keyway_meta::catalog::WriteCondition;
use keyway_meta::{Bucket, CatalogError};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::{self, Caller, caller};
use super::checksums::Declared;
use super::conditions::write_condition;
use super::errors::Failure;
use super::service::RequestId;
use super::{Core, headers, resolve};

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
    resolve::null_version(input.version_id.as_deref())?;
    let condition = write_condition(input.if_match.as_ref(), None)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    core.catalog.delete(&bucket, &key, condition).await?;
    Ok(S3Response::new(DeleteObjectOutput::default()))
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
    let bypass = input.bypass_governance_retention == Some(true);
    let deletions: Vec<_> =
        objects.iter().map(|object| delete_one(core, caller, bypass, &bucket, object)).collect();
    let outcomes: Vec<Result<(), Failure>> =
        futures::stream::iter(deletions).buffered(CONCURRENT_MAX).collect().await;

    let quiet = input.delete.quiet == Some(true);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (object, outcome) in objects.iter().zip(outcomes) {
        match outcome {
            Ok(()) if quiet => {}
            Ok(()) => deleted.push(DeletedObject {
                key: Some(object.key.clone()),
                version_id: object.version_id.clone(),
                ..DeletedObject::default()
            }),
            Err(failure) => errors.push(told(id, object, failure)),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        request_charged: None,
    }))
}

async fn delete_one(
    core: &Core,
    caller: &Caller,
    bypass: bool,
    bucket: &Bucket,
    object: &ObjectIdentifier,
) -> Result<(), Failure> {
    let resource = access::object(&bucket.name, &object.key);
    let version = object.version_id.is_some();
    let traits = Traits { version, bypass_governance: bypass, ..Traits::default() };
    for need in access::needs("DeleteObjects", traits) {
        caller.may_here(need.action, &resource)?;
    }
    let key = resolve::key(&object.key)?;
    resolve::null_version(object.version_id.as_deref())?;
    let condition = match &object.e_tag {
        Some(etag) => WriteCondition::EtagIs(etag.value().to_owned()),
        None => WriteCondition::None,
    };
    match core.catalog.delete(bucket, &key, condition).await {
        Ok(_) => Ok(()),
        Err(CatalogError::NoSuchKey) if object.e_tag.is_none() => Ok(()),
        Err(failure) => Err(failure.into()),
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
