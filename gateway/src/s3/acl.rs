//! ACLs, as far as they still mean something: the owner has full control, and nobody else
//! anything. What says so is accepted, all else is refused (docs/policies.md).

use http::HeaderMap;
use keyway_auth::policy::{self, AclRequest, PublicAccessBlock};
use keyway_proto::TenantId;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::errors::Failure;
use super::{Core, configuration, resolve};

type Answer<T> = Result<S3Response<T>, Failure>;

/// The group of everybody, and the one of everybody who has a key.
const PUBLIC_GROUPS: [&str; 2] = [
    "http://acs.amazonaws.com/groups/global/AllUsers",
    "http://acs.amazonaws.com/groups/global/AuthenticatedUsers",
];

/// The headers that grant, with whether it is full control.
const GRANTS: [(&str, bool); 5] = [
    ("x-amz-grant-full-control", true),
    ("x-amz-grant-read", false),
    ("x-amz-grant-read-acp", false),
    ("x-amz-grant-write", false),
    ("x-amz-grant-write-acp", false),
];

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
    let version = resolve::version(input.version_id.as_deref())?;
    core.catalog.read(&bucket, &resolve::key(&input.key)?, version).await?;
    let id = resolve::owner_id(bucket.tenant);
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(vec![full_control(&id)]),
        owner: Some(owner_of(id)),
        ..GetObjectAclOutput::default()
    }))
}

/// PutBucketAcl.
pub(super) async fn put_bucket_acl(
    core: &Core,
    request: S3Request<PutBucketAclInput>,
) -> Answer<PutBucketAclOutput> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let block = configuration::whole_block(core, &bucket).await?;
    check(&request.headers, input.access_control_policy.as_ref(), bucket.tenant, block)?;
    Ok(S3Response::new(PutBucketAclOutput::default()))
}

/// PutObjectAcl.
pub(super) async fn put_object_acl(
    core: &Core,
    request: S3Request<PutObjectAclInput>,
) -> Answer<PutObjectAclOutput> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let version = resolve::version(input.version_id.as_deref())?;
    core.catalog.read(&bucket, &resolve::key(&input.key)?, version).await?;
    let block = configuration::whole_block(core, &bucket).await?;
    check(&request.headers, input.access_control_policy.as_ref(), bucket.tenant, block)?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

/// Accepts what says no more than is the case.
fn check(
    headers: &HeaderMap,
    document: Option<&AccessControlPolicy>,
    owner: TenantId,
    block: PublicAccessBlock,
) -> Result<(), Failure> {
    let canned = headers.get("x-amz-acl").map(|value| value.to_str().unwrap_or_default());
    let mut grants = granted(headers)?;
    match document {
        Some(_) if canned.is_some() || !grants.is_empty() => {
            return Err(Failure::refuse(
                S3ErrorCode::UnexpectedContent,
                "This request does not support content",
            ));
        }
        Some(document) => grants = listed(document),
        None if canned.is_none() && grants.is_empty() => {
            return Err(Failure::refuse(
                S3ErrorCode::Custom("MissingSecurityHeader".into()),
                "Your request was missing a required header",
            ));
        }
        None => {}
    }
    AclRequest { canned, grants: &grants }.check(owner, block).map_err(|error| {
        let code = S3ErrorCode::from_bytes(error.code().as_bytes());
        Failure::refuse(code.unwrap_or(S3ErrorCode::InvalidArgument), error.to_string())
    })
}

/// The grants of headers: `id="…", uri="…"`.
fn granted(headers: &HeaderMap) -> Result<Vec<policy::Grant>, Failure> {
    let invalid =
        || Failure::refuse(S3ErrorCode::InvalidArgument, "Argument format not recognized");
    let mut grants = Vec::new();
    for (name, full) in GRANTS {
        for value in headers.get_all(name) {
            for part in value.to_str().map_err(|_| invalid())?.split(',') {
                let (kind, whom) = part.trim().split_once('=').ok_or_else(invalid)?;
                let whom = whom.trim_matches('"');
                grants.push(grant(grantee(kind, whom), full));
            }
        }
    }
    Ok(grants)
}

/// The grants of a document.
fn listed(document: &AccessControlPolicy) -> Vec<policy::Grant> {
    let of = |one: &Grant| {
        let whom = one.grantee.as_ref();
        let id = whom.and_then(|whom| whom.id.as_deref());
        let uri = whom.and_then(|whom| whom.uri.as_deref());
        let grantee = match (id, uri) {
            (Some(id), None) => grantee("id", id),
            (None, Some(uri)) => grantee("uri", uri),
            _ => policy::Grantee::Other,
        };
        let permission = one.permission.as_ref().map(Permission::as_str);
        grant(grantee, permission == Some(Permission::FULL_CONTROL))
    };
    document.grants.iter().flatten().map(of).collect()
}

fn grant(grantee: policy::Grantee, full: bool) -> policy::Grant {
    let permission = if full { policy::Permission::FullControl } else { policy::Permission::Part };
    policy::Grant { grantee, permission }
}

fn grantee(kind: &str, whom: &str) -> policy::Grantee {
    match kind {
        "id" => resolve::tenant_of(whom).map_or(policy::Grantee::Other, policy::Grantee::Tenant),
        "uri" if PUBLIC_GROUPS.contains(&whom) => policy::Grantee::Public,
        _ => policy::Grantee::Other,
    }
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
