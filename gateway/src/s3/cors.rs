//! Requests from pages of other origins: the rules of a bucket, and what browsers are told by them.
//!
//! A browser asks first (a preflight, which is never signed) or sends the request and looks at the
//! answer's headers; both are decided by the bucket's first rule that fits. A preflight names no
//! tenant unless its address is presigned: without a known access key the bucket is looked for
//! among those of `s3.public_tenant`.

use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, HOST, ORIGIN,
    VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use keyway_auth::CredentialStore;
use keyway_meta::{CatalogError, ConfigurationKind};
use keyway_proto::{BucketName, TenantId};
use percent_encoding::percent_decode_str;
use s3s::dto::*;
use s3s::{Body, S3ErrorCode, S3Request, S3Response};
use serde::{Deserialize, Serialize};

use super::access::{caller, session_token};
use super::errors::Failure;
use super::host::BaseDomains;
use super::{Core, resolve};
use crate::configuration;

/// Most rules of a bucket: S3's own limit.
const RULES_MAX: usize = 100;
/// The methods that a rule may name.
const METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

/// One rule, as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    id: Option<String>,
    origins: Vec<String>,
    methods: Vec<String>,
    headers: Vec<String>,
    exposed: Vec<String>,
    max_age_s: Option<i32>,
}

/// What a page of another origin asks, or asks for leave to.
struct Asked<'a> {
    origin: &'a str,
    method: &'a str,
    /// Names in lowercase; only a preflight has them.
    headers: Vec<String>,
}

impl Rule {
    /// # Errors
    /// `InvalidRequest`, as S3 words it.
    fn of(rule: &CORSRule) -> Result<Self, Failure> {
        let refuse = |message: String| Err(Failure::refuse(S3ErrorCode::InvalidRequest, message));
        for method in &rule.allowed_methods {
            if !METHODS.contains(&method.as_str()) {
                return refuse(format!(
                    "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
                ));
            }
        }
        if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
            return Err(Failure::code(S3ErrorCode::MalformedXML));
        }
        let headers = rule.allowed_headers.clone().unwrap_or_default();
        for (what, patterns) in
            [("AllowedOrigin", &rule.allowed_origins), ("AllowedHeader", &headers)]
        {
            if let Some(bad) = patterns.iter().find(|text| text.matches('*').count() > 1) {
                return refuse(format!("{what} \"{bad}\" can not have more than one wildcard."));
            }
        }
        let exposed = rule.expose_headers.clone().unwrap_or_default();
        if let Some(bad) = exposed.iter().find(|name| name.contains('*')) {
            return refuse(format!(
                "ExposeHeader \"{bad}\" contains wildcard. We currently do not support wildcard \
                 for ExposeHeader."
            ));
        }
        let odd_name = |name: &&String| HeaderName::try_from(name.as_str()).is_err();
        if let Some(bad) = exposed.iter().find(odd_name) {
            return refuse(format!("ExposeHeader \"{bad}\" is no header's name."));
        }
        Ok(Self {
            id: rule.id.clone(),
            origins: rule.allowed_origins.clone(),
            methods: rule.allowed_methods.clone(),
            headers,
            exposed,
            max_age_s: rule.max_age_seconds,
        })
    }

    fn told(self) -> CORSRule {
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        CORSRule {
            id: self.id,
            allowed_origins: self.origins,
            allowed_methods: self.methods,
            allowed_headers: some(self.headers),
            expose_headers: some(self.exposed),
            max_age_seconds: self.max_age_s,
        }
    }

    fn fits(&self, asked: &Asked<'_>) -> bool {
        let known = |name: &String| {
            self.headers.iter().any(|pattern| matches(&pattern.to_ascii_lowercase(), name))
        };
        self.origins.iter().any(|pattern| matches(pattern, asked.origin))
            && self.methods.iter().any(|method| method == asked.method)
            && asked.headers.iter().all(known)
    }
}

/// Whether the text is as the pattern, in which one `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => {
            text.len() >= before.len() + after.len()
                && text.starts_with(before)
                && text.ends_with(after)
        }
    }
}

/// PutBucketCors.
pub(super) async fn put_bucket_cors(
    core: &Core,
    request: S3Request<PutBucketCorsInput>,
) -> Result<S3Response<PutBucketCorsOutput>, Failure> {
    let input = &request.input;
    let given = &input.cors_configuration.cors_rules;
    if given.is_empty() || given.len() > RULES_MAX {
        return Err(Failure::code(S3ErrorCode::MalformedXML));
    }
    let rules = given.iter().map(Rule::of).collect::<Result<Vec<Rule>, Failure>>()?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    configuration::set(&core.catalog, &bucket, ConfigurationKind::Cors, &rules).await?;
    Ok(S3Response::new(PutBucketCorsOutput::default()))
}

/// GetBucketCors.
pub(super) async fn get_bucket_cors(
    core: &Core,
    request: S3Request<GetBucketCorsInput>,
) -> Result<S3Response<GetBucketCorsOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let rules: Option<Vec<Rule>> =
        configuration::get(&core.catalog, &bucket, ConfigurationKind::Cors).await?;
    let rules = rules.ok_or_else(|| Failure::code(S3ErrorCode::NoSuchCORSConfiguration))?;
    let rules = rules.into_iter().map(Rule::told).collect();
    Ok(S3Response::new(GetBucketCorsOutput { cors_rules: Some(rules) }))
}

/// DeleteBucketCors.
pub(super) async fn delete_bucket_cors(
    core: &Core,
    request: S3Request<DeleteBucketCorsInput>,
) -> Result<S3Response<DeleteBucketCorsOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    core.catalog.configure(&bucket, ConfigurationKind::Cors, None).await?;
    Ok(S3Response::new(DeleteBucketCorsOutput::default()))
}

/// Decides by the rules of buckets, before and beside the operations.
#[derive(Clone)]
pub(super) struct Cors {
    pub(super) core: Arc<Core>,
    pub(super) credentials: Arc<dyn CredentialStore>,
    pub(super) domains: BaseDomains,
}

impl Cors {
    /// Answers a preflight.
    ///
    /// # Errors
    /// `BadRequest` for one that asks nothing, `AccessForbidden` where no rule fits: a bucket that
    /// is not there is not told from one without rules.
    pub(super) async fn preflight(
        &self,
        request: &Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let bad = |message: &'static str| {
            Failure::refuse(S3ErrorCode::Custom("BadRequest".into()), message)
        };
        let headers = request.headers();
        let origin = text(headers, &ORIGIN)
            .ok_or_else(|| bad("Insufficient information. Origin request header needed."))?;
        let method = text(headers, &ACCESS_CONTROL_REQUEST_METHOD)
            .filter(|method| METHODS.contains(method))
            .ok_or_else(|| bad("Invalid Access-Control-Request-Method"))?;
        let names = text(headers, &ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
        let names = names.split(',').map(|name| name.trim().to_ascii_lowercase());
        let asked =
            Asked { origin, method, headers: names.filter(|name| !name.is_empty()).collect() };
        let forbidden = |message: &'static str| {
            Failure::refuse(S3ErrorCode::Custom("AccessForbidden".into()), message)
        };
        let rules = self.rules(request).await?;
        let rules =
            rules.ok_or_else(|| forbidden("CORSResponse: CORS is not enabled for this bucket."))?;
        let rule = rules.iter().find(|rule| rule.fits(&asked)).ok_or_else(|| {
            forbidden(
                "CORSResponse: This CORS request is not allowed. This is usually because the \
                 evalution of Origin, request method / Access-Control-Request-Method or \
                 Access-Control-Request-Headers are not whitelisted by the resource's CORS spec.",
            )
        })?;
        let mut response = Response::new(Body::empty());
        let told = response.headers_mut();
        tell(rule, &asked, told);
        if !asked.headers.is_empty() {
            insert(told, ACCESS_CONTROL_ALLOW_HEADERS, &asked.headers.join(", "));
        }
        if let Some(age) = rule.max_age_s {
            told.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(age));
        }
        Ok(response)
    }

    /// What the answer to this request tells the page that sent it; nothing to all others.
    pub(super) async fn told(&self, request: &Request<Body>) -> HeaderMap {
        let mut told = HeaderMap::new();
        let Some(origin) = text(request.headers(), &ORIGIN) else { return told };
        let asked = Asked { origin, method: request.method().as_str(), headers: Vec::new() };
        match self.rules(request).await {
            Ok(Some(rules)) => {
                if let Some(rule) = rules.iter().find(|rule| rule.fits(&asked)) {
                    tell(rule, &asked, &mut told);
                }
            }
            Ok(None) => {}
            Err(failure) => tracing::warn!(cause = %failure, "a bucket's CORS rules are not read"),
        }
        told
    }

    /// The rules of the bucket that the request is for; `None` where there is none of either.
    async fn rules(&self, request: &Request<Body>) -> Result<Option<Vec<Rule>>, Failure> {
        let Some(name) = self.bucket(request) else { return Ok(None) };
        let bucket = match self.core.catalog.bucket(self.tenant(request), &name).await {
            Err(CatalogError::NoSuchBucket) => return Ok(None),
            found => found?,
        };
        Ok(configuration::get(&self.core.catalog, &bucket, ConfigurationKind::Cors).await?)
    }

    fn bucket(&self, request: &Request<Body>) -> Option<BucketName> {
        let host = text(request.headers(), &HOST).or_else(|| request.uri().host());
        let name = match self.domains.bucket(host.unwrap_or_default()) {
            Some(bucket) => bucket,
            None => {
                let path = percent_decode_str(request.uri().path()).decode_utf8().ok()?;
                path.strip_prefix('/')?.split('/').next()?.to_owned()
            }
        };
        name.parse().ok()
    }

    /// The tenant of the access key that the request names, true or not: which tenant's rules are
    /// told is no secret to those who know its keys' ids.
    fn tenant(&self, request: &Request<Body>) -> TenantId {
        let named = text(request.headers(), &AUTHORIZATION)
            .and_then(|text| text.split_once("Credential="))
            .map(|(_, rest)| rest);
        let query = request.uri().query().unwrap_or_default();
        let presigned = || query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-Credential="));
        let key = named.or_else(presigned).and_then(|text| text.split(['/', '%']).next());
        let token = session_token(request.headers(), query).ok().flatten();
        let signer = key.and_then(|key| self.credentials.principal(key, token.as_deref()).ok());
        signer.map_or(self.core.public_tenant, |principal| principal.tenant)
    }
}

/// Whether the request is a preflight: S3 knows no other OPTIONS.
pub(super) fn is_preflight(request: &Request<Body>) -> bool {
    *request.method() == Method::OPTIONS
}

fn tell(rule: &Rule, asked: &Asked<'_>, told: &mut HeaderMap) {
    if rule.origins.iter().any(|origin| origin == "*") {
        told.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    } else {
        insert(told, ACCESS_CONTROL_ALLOW_ORIGIN, asked.origin);
        told.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    insert(told, ACCESS_CONTROL_ALLOW_METHODS, &rule.methods.join(", "));
    if !rule.exposed.is_empty() {
        insert(told, ACCESS_CONTROL_EXPOSE_HEADERS, &rule.exposed.join(", "));
    }
    told.insert(
        VARY,
        HeaderValue::from_static(
            "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
        ),
    );
}

fn insert(map: &mut HeaderMap, name: HeaderName, value: &str) {
    // Methods and names were checked, and the origin came as a header.
    if let Ok(value) = HeaderValue::from_str(value) {
        map.insert(name, value);
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wildcard_stands_for_anything() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("https://a.example", "https://a.example", true),
            ("https://a.example", "https://b.example", false),
            ("https://*.example", "https://a.b.example", true),
            ("https://*.example", "https://.example", true),
            ("https://*.example", "https://example", false),
            ("aba*aba", "aba", false),
            ("x-amz-*", "x-amz-date", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
