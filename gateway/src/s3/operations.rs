//! The protocol layer's trait, operation by operation: one line each.

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

use super::access::{Caller, hidden};
use super::service::RequestId;
use super::{
    Core, acl, attributes, buckets, configuration, copy, cors, delete, encryption, get, lifecycle,
    list, lock, multipart, notification, probes, put, tagging, versions,
};

/// The operations of this server. Those not named here answer `NotImplemented`.
pub(super) struct Operations(pub(super) Arc<Core>);

macro_rules! operations {
    ($($method:ident: $input:ident => $output:ident = $family:ident::$function:ident;)*) => {
        #[async_trait::async_trait]
        impl S3 for Operations {
            $(
                async fn $method(
                    &self,
                    request: S3Request<$input>,
                ) -> S3Result<S3Response<$output>> {
                    let id = request.extensions.get::<RequestId>().cloned();
                    let caller = request.extensions.get::<Arc<Caller>>().cloned();
                    let result = $family::$function(&self.0, request).await;
                    result.map_err(|failure| {
                        hidden(caller.as_ref(), failure).answer(&id.unwrap_or_else(RequestId::generate))
                    })
                }
            )*
        }
    };
}

operations! {
    create_bucket: CreateBucketInput => CreateBucketOutput = buckets::create_bucket;
    head_bucket: HeadBucketInput => HeadBucketOutput = buckets::head_bucket;
    list_buckets: ListBucketsInput => ListBucketsOutput = buckets::list_buckets;
    delete_bucket: DeleteBucketInput => DeleteBucketOutput = buckets::delete_bucket;
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput
        = buckets::get_bucket_location;

    put_object: PutObjectInput => PutObjectOutput = put::put_object;
    get_object: GetObjectInput => GetObjectOutput = get::get_object;
    head_object: HeadObjectInput => HeadObjectOutput = get::head_object;
    copy_object: CopyObjectInput => CopyObjectOutput = copy::copy_object;
    delete_object: DeleteObjectInput => DeleteObjectOutput = delete::delete_object;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput = delete::delete_objects;
    list_objects: ListObjectsInput => ListObjectsOutput = list::list_objects;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output = list::list_objects_v2;

    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput
        = multipart::create;
    upload_part: UploadPartInput => UploadPartOutput = multipart::upload_part;
    upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput = copy::upload_part_copy;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput
        = multipart::complete;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput
        = multipart::abort;
    list_parts: ListPartsInput => ListPartsOutput = multipart::list_parts;
    list_multipart_uploads: ListMultipartUploadsInput => ListMultipartUploadsOutput
        = multipart::list_uploads;

    put_bucket_versioning: PutBucketVersioningInput => PutBucketVersioningOutput
        = versions::put_bucket_versioning;
    get_bucket_versioning: GetBucketVersioningInput => GetBucketVersioningOutput
        = versions::get_bucket_versioning;
    put_object_tagging: PutObjectTaggingInput => PutObjectTaggingOutput
        = tagging::put_object_tagging;
    get_object_tagging: GetObjectTaggingInput => GetObjectTaggingOutput
        = tagging::get_object_tagging;
    delete_object_tagging: DeleteObjectTaggingInput => DeleteObjectTaggingOutput
        = tagging::delete_object_tagging;
    put_bucket_tagging: PutBucketTaggingInput => PutBucketTaggingOutput
        = tagging::put_bucket_tagging;
    get_bucket_tagging: GetBucketTaggingInput => GetBucketTaggingOutput
        = tagging::get_bucket_tagging;
    delete_bucket_tagging: DeleteBucketTaggingInput => DeleteBucketTaggingOutput
        = tagging::delete_bucket_tagging;
    get_object_attributes: GetObjectAttributesInput => GetObjectAttributesOutput
        = attributes::get_object_attributes;

    list_object_versions: ListObjectVersionsInput => ListObjectVersionsOutput
        = versions::list_object_versions;

    get_bucket_acl: GetBucketAclInput => GetBucketAclOutput = acl::get_bucket_acl;
    put_bucket_acl: PutBucketAclInput => PutBucketAclOutput = acl::put_bucket_acl;
    get_object_acl: GetObjectAclInput => GetObjectAclOutput = acl::get_object_acl;
    put_object_acl: PutObjectAclInput => PutObjectAclOutput = acl::put_object_acl;
    get_bucket_policy: GetBucketPolicyInput => GetBucketPolicyOutput
        = configuration::get_bucket_policy;
    put_bucket_policy: PutBucketPolicyInput => PutBucketPolicyOutput
        = configuration::put_bucket_policy;
    delete_bucket_policy: DeleteBucketPolicyInput => DeleteBucketPolicyOutput
        = configuration::delete_bucket_policy;
    get_bucket_policy_status: GetBucketPolicyStatusInput => GetBucketPolicyStatusOutput
        = configuration::get_bucket_policy_status;
    get_public_access_block: GetPublicAccessBlockInput => GetPublicAccessBlockOutput
        = configuration::get_public_access_block;
    put_public_access_block: PutPublicAccessBlockInput => PutPublicAccessBlockOutput
        = configuration::put_public_access_block;
    delete_public_access_block: DeletePublicAccessBlockInput => DeletePublicAccessBlockOutput
        = configuration::delete_public_access_block;
    get_bucket_ownership_controls: GetBucketOwnershipControlsInput
        => GetBucketOwnershipControlsOutput = configuration::get_ownership_controls;
    put_bucket_ownership_controls: PutBucketOwnershipControlsInput
        => PutBucketOwnershipControlsOutput = configuration::put_ownership_controls;
    delete_bucket_ownership_controls: DeleteBucketOwnershipControlsInput
        => DeleteBucketOwnershipControlsOutput = configuration::delete_ownership_controls;

    put_bucket_cors: PutBucketCorsInput => PutBucketCorsOutput = cors::put_bucket_cors;
    get_bucket_cors: GetBucketCorsInput => GetBucketCorsOutput = cors::get_bucket_cors;
    delete_bucket_cors: DeleteBucketCorsInput => DeleteBucketCorsOutput = cors::delete_bucket_cors;

    put_bucket_encryption: PutBucketEncryptionInput => PutBucketEncryptionOutput
        = encryption::put_bucket_encryption;
    get_bucket_encryption: GetBucketEncryptionInput => GetBucketEncryptionOutput
        = encryption::get_bucket_encryption;
    delete_bucket_encryption: DeleteBucketEncryptionInput => DeleteBucketEncryptionOutput
        = encryption::delete_bucket_encryption;
    get_bucket_replication: GetBucketReplicationInput => GetBucketReplicationOutput
        = probes::get_bucket_replication;
    delete_bucket_replication: DeleteBucketReplicationInput => DeleteBucketReplicationOutput
        = probes::delete_bucket_replication;
    get_bucket_website: GetBucketWebsiteInput => GetBucketWebsiteOutput
        = probes::get_bucket_website;
    delete_bucket_website: DeleteBucketWebsiteInput => DeleteBucketWebsiteOutput
        = probes::delete_bucket_website;
    get_bucket_accelerate_configuration: GetBucketAccelerateConfigurationInput
        => GetBucketAccelerateConfigurationOutput = probes::get_bucket_accelerate;
    put_bucket_accelerate_configuration: PutBucketAccelerateConfigurationInput
        => PutBucketAccelerateConfigurationOutput = probes::put_bucket_accelerate;
    get_bucket_logging: GetBucketLoggingInput => GetBucketLoggingOutput
        = probes::get_bucket_logging;
    put_bucket_logging: PutBucketLoggingInput => PutBucketLoggingOutput
        = probes::put_bucket_logging;
    get_bucket_notification_configuration: GetBucketNotificationConfigurationInput
        => GetBucketNotificationConfigurationOutput = notification::get_bucket_notification;
    put_bucket_notification_configuration: PutBucketNotificationConfigurationInput
        => PutBucketNotificationConfigurationOutput = notification::put_bucket_notification;
    get_bucket_request_payment: GetBucketRequestPaymentInput => GetBucketRequestPaymentOutput
        = probes::get_bucket_request_payment;
    put_bucket_request_payment: PutBucketRequestPaymentInput => PutBucketRequestPaymentOutput
        = probes::put_bucket_request_payment;
    put_bucket_lifecycle_configuration: PutBucketLifecycleConfigurationInput
        => PutBucketLifecycleConfigurationOutput = lifecycle::put_bucket_lifecycle;
    get_bucket_lifecycle_configuration: GetBucketLifecycleConfigurationInput
        => GetBucketLifecycleConfigurationOutput = lifecycle::get_bucket_lifecycle;
    delete_bucket_lifecycle: DeleteBucketLifecycleInput => DeleteBucketLifecycleOutput
        = lifecycle::delete_bucket_lifecycle;
    put_object_lock_configuration: PutObjectLockConfigurationInput
        => PutObjectLockConfigurationOutput = lock::put_object_lock_configuration;
    get_object_lock_configuration: GetObjectLockConfigurationInput
        => GetObjectLockConfigurationOutput = lock::get_object_lock_configuration;
    put_object_retention: PutObjectRetentionInput => PutObjectRetentionOutput
        = lock::put_object_retention;
    get_object_retention: GetObjectRetentionInput => GetObjectRetentionOutput
        = lock::get_object_retention;
    put_object_legal_hold: PutObjectLegalHoldInput => PutObjectLegalHoldOutput
        = lock::put_object_legal_hold;
    get_object_legal_hold: GetObjectLegalHoldInput => GetObjectLegalHoldOutput
        = lock::get_object_legal_hold;
}
