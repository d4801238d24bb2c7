//! What a bucket's objects are encrypted with where their requests ask for nothing.

use keyway_meta::Bucket;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::ALGORITHM;
use super::asked::{Asked, no_key_service};
use crate::s3::access::caller;
use crate::s3::errors::Failure;
use crate::s3::{Core, resolve};

/// What holds for the bucket: its own choice, or the operator's.
pub(super) fn of(core: &Core, bucket: &Bucket) -> Asked {
    if encrypts(core, bucket) { Asked::Service } else { Asked::Nothing }
}

/// Whether the service encrypts what comes without a word about it.
fn encrypts(core: &Core, bucket: &Bucket) -> bool {
    core.encrypts_by_default || bucket.settings.encrypts
}

/// GetBucketEncryption.
pub(in crate::s3) async fn get_bucket_encryption(
    core: &Core,
    request: S3Request<GetBucketEncryptionInput>,
) -> Result<S3Response<GetBucketEncryptionOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    if !encrypts(core, &bucket) {
        // The protocol layer's own code of that name has another status than S3.
        return Err(Failure::refuse(
            S3ErrorCode::Custom("ServerSideEncryptionConfigurationNotFoundError".into()),
            "The server side encryption configuration was not found",
        ));
    }
    let rule = ServerSideEncryptionRule {
        apply_server_side_encryption_by_default: Some(ServerSideEncryptionByDefault {
            kms_master_key_id: None,
            sse_algorithm: ServerSideEncryption::from_static(ServerSideEncryption::AES256),
        }),
        bucket_key_enabled: Some(false),
        ..ServerSideEncryptionRule::default()
    };
    Ok(S3Response::new(GetBucketEncryptionOutput {
        server_side_encryption_configuration: Some(ServerSideEncryptionConfiguration {
            rules: vec![rule],
        }),
    }))
}

/// PutBucketEncryption.
pub(in crate::s3) async fn put_bucket_encryption(
    core: &Core,
    request: S3Request<PutBucketEncryptionInput>,
) -> Result<S3Response<PutBucketEncryptionOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    check(&input.server_side_encryption_configuration.rules)?;
    core.catalog.set_encryption(bucket.tenant, &bucket.name, true).await?;
    Ok(S3Response::new(PutBucketEncryptionOutput::default()))
}

/// DeleteBucketEncryption: what the operator chose holds again.
pub(in crate::s3) async fn delete_bucket_encryption(
    core: &Core,
    request: S3Request<DeleteBucketEncryptionInput>,
) -> Result<S3Response<DeleteBucketEncryptionOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    core.catalog.set_encryption(bucket.tenant, &bucket.name, false).await?;
    Ok(S3Response::new(DeleteBucketEncryptionOutput::default()))
}

/// Refuses all rules but the one that can be kept: the service encrypts, and holds the keys.
fn check(rules: &[ServerSideEncryptionRule]) -> Result<(), Failure> {
    let malformed = || Failure::code(S3ErrorCode::MalformedXML);
    let [rule] = rules else { return Err(malformed()) };
    let blocks = rule.blocked_encryption_types.as_ref().and_then(|b| b.encryption_type.as_ref());
    if blocks.is_some_and(|types| types.iter().any(|blocked| blocked.as_str() != "NONE")) {
        return Err(Failure::not_implemented(
            "Blocked encryption types are not implemented: a bucket policy with the condition key \
             s3:x-amz-server-side-encryption-customer-algorithm blocks SSE-C.",
        ));
    }
    let default = rule.apply_server_side_encryption_by_default.as_ref().ok_or_else(malformed)?;
    match default.sse_algorithm.as_str() {
        ALGORITHM if default.kms_master_key_id.is_some() => Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms",
        )),
        // It is about keys of a key service, and of no meaning for this one.
        ALGORITHM => Ok(()),
        name if name.starts_with("aws:kms") => Err(no_key_service()),
        _ => Err(malformed()),
    }
}
