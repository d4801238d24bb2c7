//! Forms: objects that browsers upload, `POST /bucket` with a policy that somebody signed.
//!
//! A form is read up to its file ([`mod@read`]); its signature and its policy are verified
//! ([`policy`]); and it goes on as the PUT that it stands for, whose headers its fields say
//! ([`fields`]), with [`Signed`] in its extensions. So everything holds for it that holds for a PUT:
//! policies of access, limits, quotas, locks, the audit log. Two things differ: the length of the
//! file is not announced ([`intake`]), and the answer is the one that the form asks for ([`answer`]).
//!
//! The protocol layer's own forms hold a file in memory where its length is not known, read twice
//! given fields as the last one, and refuse what follows the file. They are switched off.

mod answer;
mod fields;
mod intake;
mod policy;
mod read;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::TryStreamExt;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, REFERER, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Request, Uri};
use http_body::Frame;
use http_body_util::StreamBody;
use jiff::Timestamp;
use keyway_auth::sigv4::{PostScope, is_signature_of_policy};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::auth::{Credentials, SecretKey};
use s3s::{Body, S3ErrorCode};
use zeroize::Zeroizing;

use super::Core;
use super::access::denied;
use super::errors::Failure;
use super::host::BaseDomains;
use super::signed;
use crate::server::RequestInfo;
use policy::{PolicyError, PostPolicy};
use read::Form;

pub(super) use answer::Answer;
pub(super) use intake::{FileSize, store};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How long a signature stands, whatever its policy says: as presigned URLs do.
const AGE_S_MAX: i64 = 7 * 86_400;
/// How far ahead a signer's clock may be.
const SKEW_S_MAX: i64 = 15 * 60;
/// What stays as it is in a path.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Headers of the form's request that are the PUT's, too: they say who asks, and nothing of the
/// object.
const KEPT: [http::HeaderName; 3] = [HOST, USER_AGENT, REFERER];

/// A PUT that stands for a form.
#[derive(Clone)]
pub(super) struct Signed {
    /// Who signed; nobody for a form without a policy.
    pub(super) credentials: Option<Credentials>,
    token: Option<Arc<Zeroizing<String>>>,
    /// When it was signed.
    pub(super) date: Option<String>,
    pub(super) size: FileSize,
}

impl Signed {
    /// The session token that came with it.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_ref().map(|token| token.as_str())
    }
}

/// A form that was read and not verified.
pub(super) struct Opened {
    form: Form,
    bucket: String,
    /// Whether the host names the bucket.
    by_host: bool,
    /// Of the whole request.
    length: u64,
}

/// Whether a request is a form for a bucket.
pub(super) fn is_meant(request: &Request<Body>, domains: &BaseDomains) -> bool {
    *request.method() == Method::POST
        && request.uri().query().unwrap_or_default().is_empty()
        && read::boundary(request.headers()).is_some()
        && bucket(request, domains).is_some()
}

/// The bucket that a form is for, and whether its host names it.
fn bucket(request: &Request<Body>, domains: &BaseDomains) -> Option<(String, bool)> {
    let path = request.uri().path();
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let host = host.or_else(|| request.uri().host()).unwrap_or_default();
    if let Some(bucket) = domains.bucket(host) {
        return (path == "/").then_some((bucket, true));
    }
    let name = path.strip_prefix('/')?;
    let name = name.strip_suffix('/').unwrap_or(name);
    (!name.is_empty() && !name.contains('/')).then(|| (name.to_owned(), false))
}

/// Reads a form up to its file; leaves the request without its body.
///
/// # Errors
/// Those of [`read::read`]; `MissingContentLength`; `AccessDenied` for headers that would say
/// something of the object: no policy covers them. `InvalidArgument` for a second signature.
pub(super) async fn open(
    request: &mut Request<Body>,
    domains: &BaseDomains,
) -> Result<Opened, Failure> {
    let headers = request.headers();
    if headers.contains_key(AUTHORIZATION) {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "Only one auth mechanism allowed; a form is signed by its fields.",
        ));
    }
    let ours = |name: &str| name.starts_with("x-amz-") || name.starts_with("x-keyway-");
    if headers.keys().any(|name| ours(name.as_str())) {
        return Err(Failure::refuse(
            S3ErrorCode::AccessDenied,
            "There were headers present in the request which were not signed",
        ));
    }
    let boundary = read::boundary(headers).unwrap_or_else(|| Err(read::malformed()))?;
    let mut lengths = headers.get_all(CONTENT_LENGTH).into_iter();
    let length = lengths.next().and_then(|value| value.to_str().ok()?.parse().ok());
    let length = length.filter(|_| lengths.next().is_none());
    let length = length.ok_or_else(|| Failure::code(S3ErrorCode::MissingContentLength))?;
    let (bucket, by_host) = bucket(request, domains).ok_or_else(denied)?;
    if let Some(info) = request.extensions().get::<RequestInfo>() {
        info.set_operation("PostObject");
    }
    let body = std::mem::take(request.body_mut());
    let form = read::read(body, &boundary).await?;
    Ok(Opened { form, bucket, by_host, length })
}

impl Opened {
    fn field(&self, name: &str) -> Option<&str> {
        self.form.fields.get(name).map(String::as_str)
    }

    /// The access key that the form names as its signer's.
    pub(super) fn access_key(&self) -> Option<&str> {
        self.field("x-amz-credential")?.rsplitn(5, '/').nth(4)
    }

    /// Its session token.
    pub(super) fn token(&self) -> Option<&str> {
        self.field("x-amz-security-token")
    }

    /// Verifies the form, and makes it the PUT that it stands for.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`, `InvalidAccessKeyId`, `InvalidPolicyDocument`, `EntityTooLarge`;
    /// `AccessDenied` for a form that is not what its policy allows; `InvalidArgument` for fields
    /// that are missing or mean nothing.
    pub(super) fn into_put(
        mut self,
        request: Request<Body>,
        core: &Core,
    ) -> Result<(Request<Body>, Answer), Failure> {
        let credentials = self.credentials(core)?;
        let key = match self.field("key") {
            None => return Err(missing("key")),
            Some("") => {
                let message = "User key must have a length greater than 0.";
                return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
            }
            Some(key) => key.to_owned(),
        };
        let policy = match credentials {
            Some(_) => Some(self.checked_policy(core)?),
            None => None,
        };
        if self.field("bucket").is_some_and(|bucket| bucket != self.bucket) {
            let message = "The field bucket names another bucket than the address.";
            return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
        }
        let range = policy.and_then(|policy| policy.range);
        let size = FileSize::of(self.length.saturating_sub(self.form.received), range);
        size.at_least(core)?;
        let mut headers = fields::headers(&self.form.fields)?;
        for name in KEPT {
            if let Some(value) = request.headers().get(&name) {
                headers.insert(name, value.clone());
            }
        }
        let (mut head, _) = request.into_parts();
        let answer = Answer::of(&self.form.fields, &self.bucket, &key, &head);
        let token = self.form.fields.remove("x-amz-security-token");
        head.extensions.insert(Signed {
            credentials,
            token: token.map(|token| Arc::new(Zeroizing::new(token))),
            date: self.form.fields.remove("x-amz-date"),
            size,
        });
        head.method = Method::PUT;
        head.uri = self.address(&head.uri, &key)?;
        head.headers = headers;
        let frames = self.form.file.map_ok(Frame::data).map_err(read::carried);
        let body = Body::http_body_unsync(StreamBody::new(frames));
        Ok((Request::from_parts(head, body), answer))
    }

    /// The address of the object.
    fn address(&self, uri: &Uri, key: &str) -> Result<Uri, Failure> {
        let key = utf8_percent_encode(key, PATH);
        let path = if self.by_host { format!("/{key}") } else { format!("/{}/{key}", self.bucket) };
        let invalid = || Failure::code(S3ErrorCode::InvalidURI);
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| invalid())?);
        Uri::from_parts(parts).map_err(|_| invalid())
    }

    /// Who signed; `None` for a form that says nothing of that.
    fn credentials(&self, core: &Core) -> Result<Option<Credentials>, Failure> {
        let has = |name: &&str| self.form.fields.contains_key(*name);
        if has(&"awsaccesskeyid") || has(&"signature") {
            return Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "The authorization mechanism you have provided is not supported. Please use \
                 AWS4-HMAC-SHA256.",
            ));
        }
        if !fields::SIGNING.iter().any(has) && !has(&"policy") {
            return Ok(None);
        }
        let required = |name: &'static str| self.field(name).ok_or_else(|| missing(name));
        let policy = required("policy")?;
        let invalid = |message: String| Failure::refuse(S3ErrorCode::InvalidArgument, message);
        if required("x-amz-algorithm")? != ALGORITHM {
            return Err(invalid(format!("X-Amz-Algorithm only supports \"{ALGORITHM}\"")));
        }
        let credential = required("x-amz-credential")?;
        if let Some(wrong) = signed::scope_error(credential, signed::S3) {
            return Err(invalid(format!("Error parsing the X-Amz-Credential parameter; {wrong}")));
        }
        let mut parts = credential.rsplitn(5, '/').skip(1);
        let (Some(service), Some(region), Some(day), Some(access_key)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(missing("x-amz-credential"));
        };
        let (date, signature) = (required("x-amz-date")?, required("x-amz-signature")?);
        let made = signed::made_at(date).filter(|_| date.starts_with(day));
        let made = made.ok_or_else(|| {
            invalid("X-Amz-Date must be YYYYMMDDTHHMMSSZ, on the day of X-Amz-Credential.".into())
        })?;
        let secret = core.credentials.secret(access_key);
        let secret = secret.ok_or_else(|| Failure::code(S3ErrorCode::InvalidAccessKeyId))?;
        let scope = PostScope { date, region, service };
        if !is_signature_of_policy(&secret, scope, policy, signature) {
            return Err(Failure::code(S3ErrorCode::SignatureDoesNotMatch));
        }
        let age_s = now(core).as_second().saturating_sub(made.as_second());
        if age_s < -SKEW_S_MAX {
            return Err(Failure::code(S3ErrorCode::RequestTimeTooSkewed));
        }
        if age_s > AGE_S_MAX {
            return Err(not_allowed(&PolicyError::NotMet("Policy expired.".to_owned())));
        }
        let access_key = access_key.to_owned();
        // Nothing is signed with it from here on.
        Ok(Some(Credentials { access_key, secret_key: SecretKey::from("") }))
    }

    fn checked_policy(&self, core: &Core) -> Result<PostPolicy, Failure> {
        let json = BASE64.decode(self.field("policy").unwrap_or_default());
        let json = json.map_err(|_| PolicyError::Malformed("Invalid Base64 Encoding.".to_owned()));
        let policy = json.and_then(|json| PostPolicy::parse(&json));
        let policy = policy.map_err(|error| not_allowed(&error))?;
        let mut fields: BTreeMap<String, String> = self.form.fields.clone();
        // The address names it, whether a field does so or not.
        fields.insert("bucket".to_owned(), self.bucket.clone());
        policy.check(&fields, now(core)).map_err(|error| not_allowed(&error))?;
        Ok(policy)
    }
}

fn now(core: &Core) -> Timestamp {
    let ms = i64::try_from(core.clock.now().0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

fn not_allowed(error: &PolicyError) -> Failure {
    let code = match error {
        PolicyError::Malformed(_) => S3ErrorCode::InvalidPolicyDocument,
        PolicyError::NotMet(_) => S3ErrorCode::AccessDenied,
    };
    Failure::refuse(code, error.to_string())
}

fn missing(field: &str) -> Failure {
    Failure::refuse(
        S3ErrorCode::InvalidArgument,
        format!(
            "Bucket POST must contain a field named '{field}'.  If it is specified, please check \
             the order of the fields."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(method: Method, uri: &'static str, host: &'static str) -> Option<(String, bool)> {
        let domains = BaseDomains::new(&["s3.example.com".to_owned()]).expect("valid");
        let request = Request::builder().method(method).uri(uri).header(HOST, host);
        bucket(&request.body(Body::empty()).expect("valid"), &domains)
    }

    #[test]
    fn forms_are_for_buckets() {
        let by_path = Some(("b".to_owned(), false));
        assert_eq!(bucket_of(Method::POST, "/b", "h"), by_path);
        assert_eq!(bucket_of(Method::POST, "/b/", "h"), by_path);
        assert_eq!(bucket_of(Method::POST, "/", "b.s3.example.com"), Some(("b".to_owned(), true)));
        assert_eq!(bucket_of(Method::POST, "/b/key", "h"), None);
        assert_eq!(bucket_of(Method::POST, "/", "h"), None);
        assert_eq!(bucket_of(Method::POST, "/key", "b.s3.example.com"), None);
    }
}
