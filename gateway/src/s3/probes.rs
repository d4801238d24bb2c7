//! What an unversioned bucket without any configuration says of itself, as S3 says it.
//! Clients ask before they act, and take these answers for a no.

use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::errors::Failure;
use super::{Core, resolve};

type Answer<T> = Result<S3Response<T>, Failure>;

/// Fails unless the bucket is there; then with `code`, which says that nothing is configured.
macro_rules! nothing_configured {
    ($($(#[$doc:meta])* $name:ident: $input:ident => $output:ident, $code:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) async fn $name(core: &Core, request: S3Request<$input>) -> Answer<$output> {
                let input = &request.input;
                let owner = input.expected_bucket_owner.as_deref();
                resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
                Err(Failure::code($code))
            }
        )*
    };
}

nothing_configured! {
    /// GetBucketCors.
    get_bucket_cors: GetBucketCorsInput => GetBucketCorsOutput,
        S3ErrorCode::NoSuchCORSConfiguration;
    /// GetBucketTagging.
    get_bucket_tagging: GetBucketTaggingInput => GetBucketTaggingOutput, S3ErrorCode::NoSuchTagSet;
    /// GetBucketLifecycleConfiguration.
    get_bucket_lifecycle: GetBucketLifecycleConfigurationInput
        => GetBucketLifecycleConfigurationOutput, S3ErrorCode::NoSuchLifecycleConfiguration;
    /// GetObjectLockConfiguration.
    get_object_lock: GetObjectLockConfigurationInput => GetObjectLockConfigurationOutput,
        S3ErrorCode::ObjectLockConfigurationNotFoundError;
}

/// GetBucketVersioning: never enabled.
pub(super) async fn get_bucket_versioning(
    core: &Core,
    request: S3Request<GetBucketVersioningInput>,
) -> Answer<GetBucketVersioningOutput> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}

/// GetObjectTagging: no tags.
pub(super) async fn get_object_tagging(
    core: &Core,
    request: S3Request<GetObjectTaggingInput>,
) -> Answer<GetObjectTaggingOutput> {
    let input = &request.input;
    let caller = caller(&request.extensions)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    resolve::null_version(input.version_id.as_deref())?;
    core.catalog.object(&bucket, &resolve::key(&input.key)?).await?;
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set: Vec::new(), version_id: None }))
}
