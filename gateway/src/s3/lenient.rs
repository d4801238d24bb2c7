//! Reads whose headers the protocol layer would refuse, and S3 does not.
//!
//! S3 ignores a `Range` or a date that it cannot parse, and answers a HEAD of a range with
//! 206. The protocol layer fails the first with 400 and the second with 200. Its hook for own
//! routes comes after the signature was verified: such reads are taken there.

use std::sync::Arc;

use http::header::{HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE};
use http::{Extensions, HeaderMap, HeaderName, Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use s3s::dto::{ETagCondition, Range, Timestamp, TimestampFormat};
use s3s::path::S3Path;
use s3s::route::S3Route;
use s3s::{Body, S3ErrorCode, S3Request, S3Response, S3Result};

use super::access::{Caller, Gate, Seen, caller, hidden};
use super::answer::Overrides;
use super::conditions::ReadConditions;
use super::errors::Failure;
use super::get::{self, Read};
use super::host::BaseDomains;
use super::service::RequestId;
use super::{Core, encryption, rdma};
use crate::server::RequestInfo;

/// The route for those reads.
pub(super) struct LenientReads {
    pub(super) core: Arc<Core>,
    pub(super) gate: Gate,
    pub(super) domains: BaseDomains,
}

#[async_trait::async_trait]
impl S3Route for LenientReads {
    fn is_match(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        _: &mut Extensions,
    ) -> bool {
        let head = *method == Method::HEAD;
        if !head && *method != Method::GET {
            return false;
        }
        let query = uri.query().unwrap_or_default();
        let needed = (head && (headers.contains_key(RANGE) || query.contains("partNumber=")))
            || unparsable(headers);
        needed && reads_object(query) && self.names(uri, headers).is_some()
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let info = request.extensions.get::<RequestInfo>().cloned();
        let id = request.extensions.get::<RequestId>().cloned();
        let failed = |failure: Failure| failure.answer(&id.unwrap_or_else(RequestId::generate));
        let Some((bucket, key)) = self.names(&request.uri, &request.headers) else {
            return Err(failed(Failure::code(S3ErrorCode::InvalidURI)));
        };
        let seen = Seen {
            credentials: request.credentials.as_ref(),
            method: &request.method,
            uri: &request.uri,
            headers: &request.headers,
            info: info.as_ref(),
            form: None,
        };
        let head = request.method == Method::HEAD;
        let operation = if head { "HeadObject" } else { "GetObject" };
        let path = S3Path::object(&bucket, &key);
        let admitted = self.gate.admit(operation, &path, &seen, &mut request.extensions).await;
        admitted.map_err(failed)
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let id = request.extensions.get::<RequestId>().cloned();
        let caller = request.extensions.get::<Arc<Caller>>().cloned();
        self.answer(&request)
            .await
            .map_err(|failure| hidden(caller.as_ref(), failure))
            .map_err(|failure| failure.answer(&id.unwrap_or_else(RequestId::generate)))
    }
}

impl LenientReads {
    async fn answer(&self, request: &S3Request<Body>) -> Result<S3Response<Body>, Failure> {
        let caller = caller(&request.extensions)?;
        let (bucket, key) = self
            .names(&request.uri, &request.headers)
            .ok_or_else(|| Failure::code(S3ErrorCode::InvalidURI))?;
        let mut read = read(bucket, key, &request.uri, &request.headers)?;
        read.customer = encryption::shown(&self.core, &request.headers, &request.extensions)?;
        let mut found = if request.method == Method::HEAD {
            get::head(&self.core, caller, read).await?
        } else {
            let offered = rdma::offered_read(&request.headers, &request.extensions)?;
            get::get(&self.core, caller, read, offered.as_ref()).await?
        };
        let status = if found.partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let body = found.body.take().map_or_else(Body::empty, |body| {
            Body::from(Box::pin(body) as s3s::stream::DynByteStream)
        });
        let mut response = S3Response::with_status(body, status);
        response.headers = found.headers;
        Ok(response)
    }

    /// Bucket and key, where the address names an object.
    fn names(&self, uri: &Uri, headers: &HeaderMap) -> Option<(String, String)> {
        let path = percent_decode_str(uri.path()).decode_utf8().ok()?;
        let path = path.strip_prefix('/')?;
        let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (bucket, key) = match self.domains.bucket(host) {
            Some(bucket) => (bucket, path),
            None => {
                let (bucket, key) = path.split_once('/')?;
                (bucket.to_owned(), key)
            }
        };
        (!key.is_empty()).then(|| (bucket, key.to_owned()))
    }
}

/// Whether a header is there that the protocol layer would refuse.
fn unparsable(headers: &HeaderMap) -> bool {
    let range = headers.get(RANGE).is_some_and(|_| range(headers).is_none());
    let odd_date = |name| headers.contains_key(&name) && date(headers, name).is_none();
    range || odd_date(IF_MODIFIED_SINCE) || odd_date(IF_UNMODIFIED_SINCE)
}

/// Whether the query asks for the object itself, and not for a subresource of it.
fn reads_object(query: &str) -> bool {
    query.split('&').all(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        matches!(name, "" | "x-id" | "partNumber" | "versionId")
            || name.starts_with("response-")
            || name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"))
    })
}

fn read(bucket: String, key: String, uri: &Uri, headers: &HeaderMap) -> Result<Read, Failure> {
    let query = uri.query().unwrap_or_default();
    let parameter =
        |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let part_number = match parameter("partNumber") {
        None => None,
        Some(text) => {
            let number: i32 = text.parse().unwrap_or(0);
            get::check_part_number(number)?;
            Some(number)
        }
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    Ok(Read {
        bucket,
        key,
        conditions: ReadConditions {
            if_match: condition(headers, &IF_MATCH)?,
            if_none_match: condition(headers, &IF_NONE_MATCH)?,
            if_modified_since: date(headers, IF_MODIFIED_SINCE),
            if_unmodified_since: date(headers, IF_UNMODIFIED_SINCE),
        },
        range: range(headers),
        part_number,
        with_checksum: get::wants_checksum(text("x-amz-checksum-mode")),
        version_id: parameter("versionId").map(str::to_owned),
        expected_owner: text("x-amz-expected-bucket-owner").map(str::to_owned),
        customer: None,
        overrides: Overrides::from_query(uri.query())?,
    })
}

/// The one range that the header names; `None` where S3 reads the whole object instead.
fn range(headers: &HeaderMap) -> Option<Range> {
    let mut values = headers.get_all(RANGE).into_iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    // The parser takes a suffix without a number for one of no bytes.
    Range::parse(value.to_str().ok().filter(|text| *text != "bytes=-")?).ok()
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<Timestamp> {
    let text = headers.get(name)?.to_str().ok()?;
    Timestamp::parse(TimestampFormat::HttpDate, text).ok()
}

fn condition(headers: &HeaderMap, name: &HeaderName) -> Result<Option<ETagCondition>, Failure> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    ETagCondition::parse_http_header(value.as_bytes()).map(Some).map_err(|_| {
        Failure::refuse(S3ErrorCode::InvalidArgument, format!("invalid header: {name}"))
    })
}
