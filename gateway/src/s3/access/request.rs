//! What a request needs: its operation's actions, and what they are done to.

use http::{HeaderMap, HeaderName};
use keyway_auth::policy::{Action, Need, Operation, Resource, Traits};
use s3s::S3ErrorCode;
use s3s::dto::CopySource;
use s3s::path::S3Path;

use super::query::parameter;
use super::way::{self, TokenOf};
use super::{Seen, denied, resource};
use crate::s3::errors::Failure;

const COPY_SOURCE: HeaderName = HeaderName::from_static("x-amz-copy-source");

/// Operations on the caller's own tenant, whomever else a header names.
const OWN: [&str; 2] = ["CreateBucket", "ListBuckets"];

/// A request, as far as policies are concerned.
pub(in crate::s3) struct Request {
    pub(super) operation: &'static str,
    /// Whether it is about the caller's own tenant alone.
    pub(super) own: bool,
    /// What must be allowed; none for an operation that no policy can speak of.
    pub(super) needs: Option<Vec<Need>>,
    pub(super) bucket: Option<String>,
    pub(super) resource: Resource,
    /// The bucket and the object that are copied.
    pub(super) source: Option<(String, Resource)>,
    /// What its token is of.
    pub(super) token: Option<TokenOf>,
    /// The gate that its token must pass.
    pub(super) gate: Option<Action>,
}

impl Request {
    /// Reads it from all but the body.
    ///
    /// # Errors
    /// `InvalidArgument` for a parameter or header that could be read in two ways, and for a copy
    /// source that is none; `AccessDenied` for a form, whose object is named by its body.
    pub(super) fn of(
        operation: &'static str,
        path: &S3Path,
        seen: &Seen<'_>,
    ) -> Result<Self, Failure> {
        if operation == "PostObject" {
            return Err(denied());
        }
        let source = source(seen.headers)?;
        let version = parameter(seen.uri.query().unwrap_or_default(), "versionId")?;
        let token = way::token_of(seen.headers);
        let traits = Traits {
            version: version.is_some_and(|version| !version.is_empty()),
            source_version: source.as_ref().is_some_and(|source| source.version),
            rdma: token.is_some(),
            ..traits(seen.headers)
        };
        let found = Operation::find(operation);
        let gate = found.and_then(|operation| {
            let mut needs = operation.needs(traits);
            needs.find(|need| need.action.is_gate()).map(|need| need.action)
        });
        let needs = found.map(|found| {
            // What names its objects, or more of what it asks for, in its body asks later.
            let needs = found.needs(traits).filter(|need| !need.action.is_gate());
            match operation {
                "DeleteObjects" => Vec::new(),
                "CreateBucket" => needs.filter(|n| n.action != Action::CreateBucket).collect(),
                _ => needs.collect(),
            }
        });
        let bucket = match path {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(bucket.to_string()),
        };
        let source = source.map(|Source { bucket, key, .. }| {
            let resource = Resource::object(&bucket, &key);
            (bucket, resource)
        });
        let own = OWN.contains(&operation);
        let resource = resource(path);
        Ok(Self { operation, own, needs, bucket, resource, source, token, gate })
    }
}

/// What is copied.
struct Source {
    bucket: String,
    key: String,
    version: bool,
}

fn source(headers: &HeaderMap) -> Result<Option<Source>, Failure> {
    let Some(text) = header(headers, &COPY_SOURCE)? else { return Ok(None) };
    let invalid = || {
        Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
        )
    };
    match CopySource::parse(text).map_err(|_| invalid())? {
        CopySource::Bucket { bucket, key, version_id } => Ok(Some(Source {
            bucket: bucket.to_string(),
            key: key.to_string(),
            version: version_id.is_some(),
        })),
        _ => Err(Failure::not_implemented("Copy sources are named as bucket/key.")),
    }
}

/// A header that means something: there once, or not at all.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, Failure> {
    let mut values = headers.get_all(name).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    match value.to_str() {
        Ok(text) if values.next().is_none() => Ok(Some(text)),
        _ => {
            let message = format!("The header {name} must be there once, in ASCII.");
            Err(Failure::refuse(S3ErrorCode::InvalidArgument, message))
        }
    }
}

/// What headers say of further actions.
fn traits(headers: &HeaderMap) -> Traits {
    let has = |name: &str| headers.contains_key(name);
    let is_true = |name: &str| {
        let mut values = headers.get_all(name).into_iter();
        values.any(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
    };
    Traits {
        acl: has("x-amz-acl") || headers.keys().any(|n| n.as_str().starts_with("x-amz-grant-")),
        tagging: has("x-amz-tagging"),
        retention: has("x-amz-object-lock-mode") || has("x-amz-object-lock-retain-until-date"),
        legal_hold: has("x-amz-object-lock-legal-hold"),
        bypass_governance: is_true("x-amz-bypass-governance-retention"),
        object_lock: is_true("x-amz-bucket-object-lock-enabled"),
        ownership: has("x-amz-object-ownership"),
        ..Traits::default()
    }
}

/// What an operation needs for each of the objects that its body names.
pub(in crate::s3) fn needs(operation: &'static str, traits: Traits) -> impl Iterator<Item = Need> {
    Operation::find(operation).into_iter().flat_map(move |operation| operation.needs(traits))
}

/// The resource of a key that a request's body names.
pub(in crate::s3) fn object(bucket: &str, key: &str) -> Resource {
    Resource::object(bucket, key)
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method, Uri};

    use super::*;

    fn needed(
        operation: &'static str,
        uri: &'static str,
        headers: &[(&'static str, &'static str)],
    ) -> Result<Request, Failure> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let (headers, uri) = (headers.collect::<HeaderMap>(), Uri::from_static(uri));
        let seen = Seen {
            credentials: None,
            method: &Method::PUT,
            uri: &uri,
            headers: &headers,
            info: None,
            form: None,
        };
        Request::of(operation, &S3Path::object("bucket", "key"), &seen)
    }

    fn actions(request: &Request) -> Vec<&'static str> {
        let needs = request.needs.iter().flatten();
        needs.map(|need| need.action.name()).collect()
    }

    #[test]
    fn headers_and_parameters_make_needs() {
        let get = needed("GetObject", "/bucket/key", &[]).expect("sound");
        assert_eq!(actions(&get), ["s3:GetObject"]);
        let get = needed("GetObject", "/bucket/key?versionId=null", &[]).expect("sound");
        assert_eq!(actions(&get), ["s3:GetObjectVersion"]);
        let put = needed("PutObject", "/bucket/key", &[("x-amz-grant-read", "x")]).expect("sound");
        assert_eq!(actions(&put), ["s3:PutObject", "s3:PutObjectAcl"]);
        let source = [("x-amz-copy-source", "/other/a%2Fb?versionId=7")];
        let copy = needed("CopyObject", "/bucket/key", &source).expect("sound");
        assert_eq!(actions(&copy), ["s3:GetObjectVersion", "s3:PutObject"]);
        let (bucket, resource) = copy.source.expect("it is there");
        assert_eq!((bucket.as_str(), resource.as_str()), ("other", "other/a/b"));
        let unheard = needed("RenameObject", "/bucket/key", &[]).expect("sound");
        assert!(unheard.needs.is_none());
    }

    #[test]
    fn what_could_be_read_twice_is_refused() {
        let twice = [("x-amz-copy-source", "/a/b"), ("x-amz-copy-source", "/c/d")];
        assert!(needed("CopyObject", "/bucket/key", &twice).is_err());
        assert!(needed("GetObject", "/bucket/key?versionId=1&versionId=2", &[]).is_err());
        assert!(needed("CopyObject", "/bucket/key", &[("x-amz-copy-source", "nokey")]).is_err());
        assert!(needed("PostObject", "/bucket", &[]).is_err());
    }
}
