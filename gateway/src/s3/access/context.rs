//! What a request tells of itself to conditions: docs/policy-reference.md lists the keys.

use http::header::{AUTHORIZATION, IF_MATCH, IF_NONE_MATCH, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, Method};
use jiff::Timestamp;
use keyway_auth::policy::{Context, Key, TagKey, Value};
use percent_encoding::percent_decode_str;

use super::Seen;
use super::caller::Caller;
use super::query::parameter;
use super::request::{Request, header};
use crate::config::TlsVersion;
use crate::s3::errors::Failure;
use crate::s3::signed::made_at;

/// Headers that are values as they are.
const HEADERS: [(Key, HeaderName); 15] = [
    (Key::XAmzAcl, HeaderName::from_static("x-amz-acl")),
    (Key::XAmzContentSha256, HeaderName::from_static("x-amz-content-sha256")),
    (Key::XAmzCopySource, HeaderName::from_static("x-amz-copy-source")),
    (Key::XAmzGrantFullControl, HeaderName::from_static("x-amz-grant-full-control")),
    (Key::XAmzGrantRead, HeaderName::from_static("x-amz-grant-read")),
    (Key::XAmzGrantReadAcp, HeaderName::from_static("x-amz-grant-read-acp")),
    (Key::XAmzGrantWrite, HeaderName::from_static("x-amz-grant-write")),
    (Key::XAmzGrantWriteAcp, HeaderName::from_static("x-amz-grant-write-acp")),
    (Key::XAmzMetadataDirective, HeaderName::from_static("x-amz-metadata-directive")),
    (Key::XAmzObjectOwnership, HeaderName::from_static("x-amz-object-ownership")),
    (Key::XAmzSse, HeaderName::from_static("x-amz-server-side-encryption")),
    (Key::XAmzSseKmsKeyId, HeaderName::from_static("x-amz-server-side-encryption-aws-kms-key-id")),
    (
        Key::XAmzSseCustomerAlgorithm,
        HeaderName::from_static("x-amz-server-side-encryption-customer-algorithm"),
    ),
    (Key::XAmzStorageClass, HeaderName::from_static("x-amz-storage-class")),
    (Key::XAmzWebsiteRedirectLocation, HeaderName::from_static("x-amz-website-redirect-location")),
];
const LOCK_MODE: HeaderName = HeaderName::from_static("x-amz-object-lock-mode");
const LOCK_HOLD: HeaderName = HeaderName::from_static("x-amz-object-lock-legal-hold");
const LOCK_UNTIL: HeaderName = HeaderName::from_static("x-amz-object-lock-retain-until-date");
const TAGGING: HeaderName = HeaderName::from_static("x-amz-tagging");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");

/// Operations that make an object; `false` for those that make a part of one.
const CREATIONS: [(&str, bool); 6] = [
    ("PutObject", true),
    ("CopyObject", true),
    ("CompleteMultipartUpload", true),
    ("CreateMultipartUpload", false),
    ("UploadPart", false),
    ("UploadPartCopy", false),
];

/// What holds of every request: whence, how, and by whom it came.
pub(super) fn add_surroundings(caller: &mut Caller, seen: &Seen<'_>, region: &str) {
    let tags = caller.identity().tags.clone();
    let (now, signed) = (caller.now(), caller.own_tenant().is_some());
    let claims = caller.principal.as_ref().and_then(|principal| principal.claims.clone());
    let issuer = caller.identity().issuer.clone();
    let context = &mut caller.context;
    if let Some(claims) = claims {
        context.set(Key::TokenIssueTime, claims.issued);
        if let (Some(identity), Some(issuer)) = (claims.source.web(), &issuer) {
            let one = |text: &String| vec![Value::from(text.clone())];
            context
                .set(Key::FederatedProvider, issuer.arn(identity.tenant))
                .set_claim(issuer.name(), "sub", one(&identity.subject))
                .set_claim(issuer.name(), "aud", one(&identity.audience));
        }
    }
    if let Some(info) = seen.info {
        context.set(Key::SourceIp, info.remote().ip().to_canonical());
        if let Some(version) = info.tls() {
            context.set(Key::TlsVersion, if version == TlsVersion::V1_3 { 1.3 } else { 1.2 });
        }
    }
    let secure = seen.info.is_some_and(|info| info.tls().is_some());
    context.set(Key::SecureTransport, secure).set(Key::RequestedRegion, region.to_owned());
    for (key, name) in [(Key::UserAgent, USER_AGENT), (Key::Referer, REFERER)] {
        // These decide nothing by themselves; the first stands, as everywhere.
        if let Some(text) = seen.headers.get(name).and_then(|value| value.to_str().ok()) {
            context.set(key, text.to_owned());
        }
    }
    if signed {
        add_signature(context, seen, now);
    }
    for (tag, value) in tags {
        context.set_tag(TagKey::Principal, tag, value);
    }
}

fn add_signature(context: &mut Context<'static>, seen: &Seen<'_>, now: Timestamp) {
    let by_header = seen.headers.contains_key(AUTHORIZATION);
    let by = match seen.form {
        Some(_) => "POST",
        None if by_header => "REST-HEADER",
        None => "REST-QUERY-STRING",
    };
    context.set(Key::AuthType, by).set(Key::SignatureVersion, "AWS4-HMAC-SHA256");
    let in_query = || parameter(seen.uri.query().unwrap_or_default(), "X-Amz-Date").ok().flatten();
    let in_header = || seen.headers.get(DATE).and_then(|value| value.to_str().ok());
    let made = match (seen.form, in_header()) {
        (Some(form), _) => form.date.as_deref().and_then(made_at),
        (None, Some(text)) if by_header => made_at(text),
        _ => in_query().and_then(|text| made_at(&text)),
    };
    if let Some(made) = made {
        let age = now.as_millisecond().saturating_sub(made.as_millisecond()).max(0);
        #[expect(clippy::cast_precision_loss, reason = "a week has 6e8 ms")]
        context.set(Key::SignatureAge, age as f64);
    }
}

/// The same, and what the request says of what it wants.
///
/// # Errors
/// `InvalidArgument` for a parameter or header that could be read in two ways.
pub(super) fn add_request(
    caller: &mut Caller,
    request: &Request,
    seen: &Seen<'_>,
    region: &str,
) -> Result<(), Failure> {
    add_surroundings(caller, seen, region);
    let now = caller.now();
    let context = &mut caller.context;
    for (key, name) in &HEADERS {
        if let Some(text) = header(seen.headers, name)? {
            context.set(*key, text.to_owned());
        }
    }
    let query = seen.uri.query().unwrap_or_default();
    if let Some(version) = parameter(query, "versionId")?.filter(|version| !version.is_empty()) {
        context.set(Key::VersionId, version.into_owned());
    }
    if request.operation.starts_with("List") {
        for (key, name) in [(Key::Prefix, "prefix"), (Key::Delimiter, "delimiter")] {
            if let Some(text) = parameter(query, name)? {
                context.set(key, text.into_owned());
            }
        }
        let limit = parameter(query, "max-keys")?.and_then(|text| text.parse::<u32>().ok());
        if let Some(limit) = limit {
            context.set(Key::MaxKeys, limit);
        }
    }
    if matches!(*seen.method, Method::PUT | Method::POST | Method::DELETE) {
        for (key, name) in [(Key::IfMatch, IF_MATCH), (Key::IfNoneMatch, IF_NONE_MATCH)] {
            if let Some(text) = header(seen.headers, &name)? {
                context.set(key, text.to_owned());
            }
        }
        if let Some((_, makes)) = CREATIONS.iter().find(|(name, _)| *name == request.operation) {
            context.set(Key::ObjectCreationOperation, *makes);
        }
        add_lock(context, seen.headers, now)?;
        add_tags(context, seen.headers)?;
    }
    Ok(())
}

fn add_lock(
    context: &mut Context<'static>,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<(), Failure> {
    for (key, name) in [(Key::LockMode, LOCK_MODE), (Key::LockLegalHold, LOCK_HOLD)] {
        if let Some(text) = header(headers, &name)? {
            context.set(key, text.to_owned());
        }
    }
    let until = header(headers, &LOCK_UNTIL)?.and_then(|text| text.parse::<Timestamp>().ok());
    if let Some(until) = until {
        let days = until.duration_since(now).as_secs_f64() / 86_400.0;
        context.set(Key::LockRetainUntil, until).set(Key::LockRemainingDays, days.ceil());
    }
    Ok(())
}

/// The tags that an object is to have.
fn add_tags(context: &mut Context<'static>, headers: &HeaderMap) -> Result<(), Failure> {
    let Some(text) = header(headers, &TAGGING)? else { return Ok(()) };
    let decoded = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8().map(std::borrow::Cow::into_owned).ok()
    };
    let mut names: Vec<Value<'static>> = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (decoded(name), decoded(value)) else { continue };
        names.push(name.clone().into());
        context.set_tag(TagKey::RequestObject, name, value);
    }
    context.set_all(Key::RequestObjectTagKeys, names);
    Ok(())
}
