//! Buckets: create, head, list, delete, location.

use std::str::FromStr;

use http::HeaderName;
use keyway_meta::{Bucket, BucketSettings, Versioning};
use keyway_proto::BucketName;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::errors::Failure;
use super::{Core, conditions, etag, headers, page, resolve, verification};

/// Most buckets in one page: S3's own limit.
const BUCKETS_PAGE_MAX: usize = 10_000;
const ETAG_POLICY: HeaderName = HeaderName::from_static("x-keyway-etag-policy");
/// The region that S3 leaves unnamed in its location answers.
const DEFAULT_REGION: &str = "us-east-1";

/// CreateBucket. Creating one's own bucket again is `BucketAlreadyOwnedByYou`.
pub(super) async fn create_bucket(
    core: &Core,
    request: S3Request<CreateBucketInput>,
) -> Result<S3Response<CreateBucketOutput>, Failure> {
    let caller = caller(&request.extensions)?;
    let input = &request.input;
    headers::refuse_unsupported(&request.headers)?;
    let object_lock = input.object_lock_enabled_for_bucket == Some(true);
    let versioning = if object_lock { Versioning::Enabled } else { Versioning::Unversioned };
    let name = BucketName::from_str(&input.bucket)?;
    let asked = input.create_bucket_configuration.as_ref();
    let asked = asked.and_then(|asked| asked.location_constraint.as_ref());
    caller.may_create(&name, asked.map(BucketLocationConstraint::as_str))?;
    let region = region_of(core, input.create_bucket_configuration.as_ref())?;
    let etag = match request.headers.get(ETAG_POLICY) {
        None => core.default_etag,
        Some(value) => etag::parse_policy(value.to_str().unwrap_or_default())?,
    };
    let verification = verification::asked(&request.headers)?;
    let settings = BucketSettings {
        region,
        etag,
        versioning,
        object_lock,
        verification,
        tells: false,
        encrypts: false,
    };
    core.catalog.create_bucket(caller.tenant, &name, settings, core.clock.now()).await?;
    let output =
        CreateBucketOutput { location: Some(format!("/{name}")), ..CreateBucketOutput::default() };
    Ok(S3Response::new(output))
}

/// HeadBucket.
pub(super) async fn head_bucket(
    core: &Core,
    request: S3Request<HeadBucketInput>,
) -> Result<S3Response<HeadBucketOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let output = HeadBucketOutput {
        bucket_region: Some(region(core, &bucket).to_owned()),
        ..HeadBucketOutput::default()
    };
    Ok(S3Response::new(output))
}

/// ListBuckets, in pages where the client asks for them.
pub(super) async fn list_buckets(
    core: &Core,
    request: S3Request<ListBucketsInput>,
) -> Result<S3Response<ListBucketsOutput>, Failure> {
    let tenant = caller(&request.extensions)?.tenant;
    let input = request.input;
    let limit = match input.max_buckets {
        None => BUCKETS_PAGE_MAX,
        Some(max) => usize::try_from(max)
            .ok()
            .filter(|max| (1..=BUCKETS_PAGE_MAX).contains(max))
            .ok_or_else(|| page::out_of_bounds("max-buckets"))?,
    };
    page::Encoding::Plain.check(&[input.prefix.as_deref()])?;
    let prefix = input.prefix.as_deref().unwrap_or_default();
    let after = match &input.continuation_token {
        Some(token) => page::decode(page::BUCKETS, token)?,
        None => String::new(),
    };
    // One more than asked for tells whether another page follows.
    let mut found = core.catalog.buckets(tenant, prefix, &after, limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let token =
        found.last().filter(|_| more).map(|bucket| page::encode(page::BUCKETS, &bucket.name));
    let id = resolve::owner_id(tenant);
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(found.iter().map(|bucket| listed(core, bucket)).collect()),
        continuation_token: token,
        owner: Some(Owner { display_name: None, id: Some(id) }),
        prefix: input.prefix,
    }))
}

fn listed(core: &Core, bucket: &Bucket) -> s3s::dto::Bucket {
    s3s::dto::Bucket {
        bucket_arn: None,
        bucket_region: Some(region(core, bucket).to_owned()),
        creation_date: Some(conditions::timestamp(bucket.created)),
        name: Some(bucket.name.to_string()),
    }
}

/// DeleteBucket.
pub(super) async fn delete_bucket(
    core: &Core,
    request: S3Request<DeleteBucketInput>,
) -> Result<S3Response<DeleteBucketOutput>, Failure> {
    let caller = caller(&request.extensions)?;
    let input = &request.input;
    let name = BucketName::from_str(&input.bucket)?;
    if input.expected_bucket_owner.is_some() {
        let owner = input.expected_bucket_owner.as_deref();
        resolve::bucket(core, caller, &input.bucket, owner).await?;
    }
    core.catalog.delete_bucket(caller.tenant, &name).await?;
    Ok(S3Response::new(DeleteBucketOutput::default()))
}

/// GetBucketLocation.
pub(super) async fn get_bucket_location(
    core: &Core,
    request: S3Request<GetBucketLocationInput>,
) -> Result<S3Response<GetBucketLocationOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let region = region(core, &bucket);
    let constraint =
        (region != DEFAULT_REGION).then(|| BucketLocationConstraint::from(region.to_owned()));
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint: constraint }))
}

fn region<'a>(core: &'a Core, bucket: &'a Bucket) -> &'a str {
    match bucket.settings.region.as_str() {
        "" => &core.region,
        given => given,
    }
}

/// The region to store: empty for the server's own. Another one than the server's is no place
/// that this server could keep the bucket at.
fn region_of(
    core: &Core,
    configuration: Option<&CreateBucketConfiguration>,
) -> Result<String, Failure> {
    let given = configuration
        .and_then(|configuration| configuration.location_constraint.as_ref())
        .map(BucketLocationConstraint::as_str);
    match given {
        None | Some("") => Ok(String::new()),
        Some(region) if region == core.region => Ok(String::new()),
        Some(_) => Err(Failure::code(S3ErrorCode::IllegalLocationConstraintException)),
    }
}
