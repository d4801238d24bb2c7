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
    /// GetBucketPolicy.
    get_bucket_policy: GetBucketPolicyInput => GetBucketPolicyOutput,
        S3ErrorCode::NoSuchBucketPolicy;
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

/// GetBucketAcl: the owner has full control.
pub(super) async fn get_bucket_acl(
    core: &Core,
    request: S3Request<GetBucketAclInput>,
) -> Answer<GetBucketAclOutput> {
    let input = &request.input;
    let caller = caller(&request.extensions)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    let id = resolve::owner_id(bucket.tenant);
    Ok(S3Response::new(GetBucketAclOutput {
        grants: Some(vec![full_control(&id)]),
        owner: Some(owner_of(id)),
    }))
}

/// GetObjectAcl: the owner has full control.
pub(super) async fn get_object_acl(
    core: &Core,
    request: S3Request<GetObjectAclInput>,
) -> Answer<GetObjectAclOutput> {
    let input = &request.input;
    let caller = caller(&request.extensions)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller, &input.bucket, owner).await?;
    resolve::null_version(input.version_id.as_deref())?;
    core.catalog.object(&bucket, &resolve::key(&input.key)?).await?;
    let id = resolve::owner_id(bucket.tenant);
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(vec![full_control(&id)]),
        owner: Some(owner_of(id)),
        ..GetObjectAclOutput::default()
    }))
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

fn full_control(id: &str) -> Grant {
    Grant {
        grantee: Some(Grantee {
            display_name: None,
            email_address: None,
            id: Some(id.to_owned()),
            type_: Type::from_static(Type::CANONICAL_USER),
            uri: None,
        }),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }
}

fn owner_of(id: String) -> Owner {
    Owner { display_name: None, id: Some(id) }
}
