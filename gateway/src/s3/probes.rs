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
    /// GetBucketReplication.
    get_bucket_replication: GetBucketReplicationInput => GetBucketReplicationOutput,
        S3ErrorCode::ReplicationConfigurationNotFoundError;
    /// GetBucketWebsite.
    get_bucket_website: GetBucketWebsiteInput => GetBucketWebsiteOutput,
        S3ErrorCode::NoSuchWebsiteConfiguration;
}

/// Fails unless the bucket is there; then there is nothing to do or to tell.
macro_rules! nothing_there {
    ($($(#[$doc:meta])* $name:ident: $input:ident => $output:ident;)*) => {
        $(
            $(#[$doc])*
            pub(super) async fn $name(core: &Core, request: S3Request<$input>) -> Answer<$output> {
                let input = &request.input;
                let owner = input.expected_bucket_owner.as_deref();
                resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
                Ok(S3Response::new($output::default()))
            }
        )*
    };
}

nothing_there! {
    /// DeleteBucketReplication.
    delete_bucket_replication: DeleteBucketReplicationInput => DeleteBucketReplicationOutput;
    /// DeleteBucketWebsite.
    delete_bucket_website: DeleteBucketWebsiteInput => DeleteBucketWebsiteOutput;
    /// GetBucketAccelerateConfiguration: never set.
    get_bucket_accelerate: GetBucketAccelerateConfigurationInput
        => GetBucketAccelerateConfigurationOutput;
    /// GetBucketLogging: off.
    get_bucket_logging: GetBucketLoggingInput => GetBucketLoggingOutput;
}

/// Takes a document that asks for what is so anyway, and refuses all others.
macro_rules! only_nothing {
    ($($(#[$doc:meta])* $name:ident: $input:ident => $output:ident, $field:ident, $idle:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) async fn $name(core: &Core, request: S3Request<$input>) -> Answer<$output> {
                let input = &request.input;
                let owner = input.expected_bucket_owner.as_deref();
                resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
                if !$idle(&input.$field) {
                    return Err(Failure::not_implemented(
                        "This configuration is not implemented by this server.",
                    ));
                }
                Ok(S3Response::new($output::default()))
            }
        )*
    };
}

only_nothing! {
    /// PutBucketAccelerateConfiguration.
    put_bucket_accelerate: PutBucketAccelerateConfigurationInput
        => PutBucketAccelerateConfigurationOutput, accelerate_configuration,
        |given: &AccelerateConfiguration| given.status.as_ref().is_some_and(
            |status| status.as_str() == BucketAccelerateStatus::SUSPENDED);
    /// PutBucketLogging.
    put_bucket_logging: PutBucketLoggingInput => PutBucketLoggingOutput, bucket_logging_status,
        |given: &BucketLoggingStatus| given.logging_enabled.is_none();
    /// PutBucketRequestPayment.
    put_bucket_request_payment: PutBucketRequestPaymentInput => PutBucketRequestPaymentOutput,
        request_payment_configuration,
        |given: &RequestPaymentConfiguration| given.payer.as_str() == Payer::BUCKET_OWNER;
}

/// GetBucketRequestPayment: the owner pays.
pub(super) async fn get_bucket_request_payment(
    core: &Core,
    request: S3Request<GetBucketRequestPaymentInput>,
) -> Answer<GetBucketRequestPaymentOutput> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
    Ok(S3Response::new(GetBucketRequestPaymentOutput { payer }))
}
