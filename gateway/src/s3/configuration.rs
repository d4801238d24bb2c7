//! What a bucket's owner sets for access to it: policy, public-access block, ownership controls.
//!
//! Each is a document of its own in the catalog. A new bucket has none, which means: no policy,
//! all four settings of the block, and that its owner owns every object. What was deleted is kept
//! as such, for S3 tells that apart.

use keyway_auth::policy::{Action, Policy, PublicAccessBlock, Resource};
use keyway_meta::ConfigurationKind;
use keyway_meta::{Bucket, CatalogError, MetaError};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};
use serde::{Deserialize, Serialize};

use super::access::{Caller, caller};
use super::errors::Failure;
use super::{Core, resolve};

type Answer<T> = Result<S3Response<T>, Failure>;

/// The one kind of ownership that there is.
const ENFORCED: &str = ObjectOwnership::BUCKET_OWNER_ENFORCED;

/// A document that may have been deleted.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Stored<T> {
    Set(T),
    Deleted,
}

async fn stored<T: for<'de> Deserialize<'de>>(
    core: &Core,
    bucket: &Bucket,
    kind: ConfigurationKind,
) -> Result<Option<Stored<T>>, Failure> {
    let Some(document) = core.catalog.configuration(bucket, kind).await? else { return Ok(None) };
    let read = serde_json::from_slice(&document);
    read.map(Some).map_err(|_| CatalogError::from(MetaError::Damaged("bucket document")).into())
}

async fn store<T: Serialize>(
    core: &Core,
    bucket: &Bucket,
    kind: ConfigurationKind,
    document: &Stored<T>,
) -> Result<(), Failure> {
    let document = serde_json::to_vec(document).expect("types of ours have a JSON form");
    Ok(core.catalog.configure(bucket, kind, Some(&document)).await?)
}

/// The bucket's own block; none when it was deleted.
///
/// # Errors
/// The catalog's.
pub(super) async fn block_of(
    core: &Core,
    bucket: &Bucket,
) -> Result<Option<PublicAccessBlock>, Failure> {
    Ok(match stored(core, bucket, ConfigurationKind::PublicAccessBlock).await? {
        None => Some(PublicAccessBlock::ALL),
        Some(Stored::Set(block)) => Some(block),
        Some(Stored::Deleted) => None,
    })
}

/// The bucket's block and its tenant's together.
///
/// # Errors
/// The catalog's.
pub(super) async fn whole_block(
    core: &Core,
    bucket: &Bucket,
) -> Result<PublicAccessBlock, Failure> {
    let own = block_of(core, bucket).await?.unwrap_or_default();
    Ok(own.with(core.credentials.terms(bucket.tenant).block))
}

/// The bucket that a request is about; its input's types have nothing in common but these fields.
macro_rules! bucket_of {
    ($core:expr, $request:expr) => {{
        let input = &$request.input;
        let owner = input.expected_bucket_owner.as_deref();
        resolve::bucket($core, caller(&$request.extensions)?, &input.bucket, owner).await?
    }};
}

/// GetBucketPolicy.
pub(super) async fn get_bucket_policy(
    core: &Core,
    request: S3Request<GetBucketPolicyInput>,
) -> Answer<GetBucketPolicyOutput> {
    let bucket = bucket_of!(core, request);
    let text = core.catalog.configuration(&bucket, ConfigurationKind::Policy).await?;
    let text = text.ok_or_else(|| Failure::code(S3ErrorCode::NoSuchBucketPolicy))?;
    let policy = String::from_utf8_lossy(&text).into_owned();
    Ok(S3Response::new(GetBucketPolicyOutput { policy: Some(policy) }))
}

/// PutBucketPolicy.
pub(super) async fn put_bucket_policy(
    core: &Core,
    request: S3Request<PutBucketPolicyInput>,
) -> Answer<PutBucketPolicyOutput> {
    let bucket = bucket_of!(core, request);
    let input = &request.input;
    let caller = caller(&request.extensions)?;
    let policy = Policy::bucket(&input.policy, &bucket.name)
        .map_err(|error| Failure::refuse(S3ErrorCode::MalformedPolicy, error.to_string()))?;
    if !whole_block(core, &bucket).await?.accepts(&policy) {
        return Err(Failure::refuse(
            S3ErrorCode::AccessDenied,
            "The policy is public, and the public-access block forbids that.",
        ));
    }
    if input.confirm_remove_self_bucket_access != Some(true) && locks_out(caller, &bucket, &policy)
    {
        return Err(Failure::refuse(
            S3ErrorCode::MalformedPolicy,
            "The policy would keep its author from changing it again; \
             x-amz-confirm-remove-self-bucket-access says that this is meant.",
        ));
    }
    let text = input.policy.as_bytes();
    core.catalog.configure(&bucket, ConfigurationKind::Policy, Some(text)).await?;
    Ok(S3Response::new(PutBucketPolicyOutput::default()))
}

/// Whether the author of a policy could not change it any more.
fn locks_out(caller: &Caller, bucket: &Bucket, policy: &Policy) -> bool {
    let resource = Resource::bucket(&bucket.name);
    caller.would_deny(Action::PutBucketPolicy, &resource, policy)
}

/// DeleteBucketPolicy. To delete what is not there succeeds.
pub(super) async fn delete_bucket_policy(
    core: &Core,
    request: S3Request<DeleteBucketPolicyInput>,
) -> Answer<DeleteBucketPolicyOutput> {
    let bucket = bucket_of!(core, request);
    core.catalog.configure(&bucket, ConfigurationKind::Policy, None).await?;
    Ok(S3Response::new(DeleteBucketPolicyOutput::default()))
}

/// GetBucketPolicyStatus: whether the policy is public, as S3 means it.
pub(super) async fn get_bucket_policy_status(
    core: &Core,
    request: S3Request<GetBucketPolicyStatusInput>,
) -> Answer<GetBucketPolicyStatusOutput> {
    let bucket = bucket_of!(core, request);
    let rules = core.rules.of(core, bucket.tenant, &bucket.name).await?;
    let policy = rules.and_then(|rules| rules.policy);
    let policy = policy.ok_or_else(|| Failure::code(S3ErrorCode::NoSuchBucketPolicy))?;
    let status = PolicyStatus { is_public: Some(policy.is_public()) };
    Ok(S3Response::new(GetBucketPolicyStatusOutput { policy_status: Some(status) }))
}

/// GetPublicAccessBlock.
pub(super) async fn get_public_access_block(
    core: &Core,
    request: S3Request<GetPublicAccessBlockInput>,
) -> Answer<GetPublicAccessBlockOutput> {
    let bucket = bucket_of!(core, request);
    let block = block_of(core, &bucket).await?.ok_or_else(|| {
        Failure::refuse(
            S3ErrorCode::Custom("NoSuchPublicAccessBlockConfiguration".into()),
            "The public access block configuration was not found",
        )
    })?;
    let configuration = PublicAccessBlockConfiguration {
        block_public_acls: Some(block.block_public_acls),
        block_public_policy: Some(block.block_public_policy),
        ignore_public_acls: Some(block.ignore_public_acls),
        restrict_public_buckets: Some(block.restrict_public_buckets),
    };
    Ok(S3Response::new(GetPublicAccessBlockOutput {
        public_access_block_configuration: Some(configuration),
    }))
}

/// PutPublicAccessBlock. A setting that is left out is off.
pub(super) async fn put_public_access_block(
    core: &Core,
    request: S3Request<PutPublicAccessBlockInput>,
) -> Answer<PutPublicAccessBlockOutput> {
    let bucket = bucket_of!(core, request);
    let given = &request.input.public_access_block_configuration;
    let block = PublicAccessBlock {
        block_public_acls: given.block_public_acls.unwrap_or(false),
        ignore_public_acls: given.ignore_public_acls.unwrap_or(false),
        block_public_policy: given.block_public_policy.unwrap_or(false),
        restrict_public_buckets: given.restrict_public_buckets.unwrap_or(false),
    };
    store(core, &bucket, ConfigurationKind::PublicAccessBlock, &Stored::Set(block)).await?;
    Ok(S3Response::new(PutPublicAccessBlockOutput::default()))
}

/// DeletePublicAccessBlock: the bucket has none any more, its tenant may.
pub(super) async fn delete_public_access_block(
    core: &Core,
    request: S3Request<DeletePublicAccessBlockInput>,
) -> Answer<DeletePublicAccessBlockOutput> {
    let bucket = bucket_of!(core, request);
    let deleted: Stored<PublicAccessBlock> = Stored::Deleted;
    store(core, &bucket, ConfigurationKind::PublicAccessBlock, &deleted).await?;
    Ok(S3Response::new(DeletePublicAccessBlockOutput::default()))
}

/// GetBucketOwnershipControls.
pub(super) async fn get_ownership_controls(
    core: &Core,
    request: S3Request<GetBucketOwnershipControlsInput>,
) -> Answer<GetBucketOwnershipControlsOutput> {
    let bucket = bucket_of!(core, request);
    let stored: Option<Stored<String>> =
        stored(core, &bucket, ConfigurationKind::Ownership).await?;
    if let Some(Stored::Deleted) = stored {
        return Err(Failure::code(S3ErrorCode::OwnershipControlsNotFoundError));
    }
    let rule = OwnershipControlsRule { object_ownership: ENFORCED.to_owned().into() };
    Ok(S3Response::new(GetBucketOwnershipControlsOutput {
        ownership_controls: Some(OwnershipControls { rules: vec![rule] }),
    }))
}

/// PutBucketOwnershipControls: what is the case anyway may be said.
pub(super) async fn put_ownership_controls(
    core: &Core,
    request: S3Request<PutBucketOwnershipControlsInput>,
) -> Answer<PutBucketOwnershipControlsOutput> {
    let bucket = bucket_of!(core, request);
    match &request.input.ownership_controls.rules[..] {
        [rule] if rule.object_ownership.as_str() == ENFORCED => {}
        [_] => {
            return Err(Failure::not_implemented(
                "Every bucket is BucketOwnerEnforced: ACLs that grant more are not implemented.",
            ));
        }
        _ => return Err(Failure::code(S3ErrorCode::MalformedXML)),
    }
    let set = Stored::Set(ENFORCED.to_owned());
    store(core, &bucket, ConfigurationKind::Ownership, &set).await?;
    Ok(S3Response::new(PutBucketOwnershipControlsOutput::default()))
}

/// DeleteBucketOwnershipControls: nothing is said of it any more, and nothing changes.
pub(super) async fn delete_ownership_controls(
    core: &Core,
    request: S3Request<DeleteBucketOwnershipControlsInput>,
) -> Answer<DeleteBucketOwnershipControlsOutput> {
    let bucket = bucket_of!(core, request);
    let deleted: Stored<String> = Stored::Deleted;
    store(core, &bucket, ConfigurationKind::Ownership, &deleted).await?;
    Ok(S3Response::new(DeleteBucketOwnershipControlsOutput::default()))
}
