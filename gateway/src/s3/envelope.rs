//! What surrounds every request: its id, and S3's answers where the protocol layer has others.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use keyway_proto::checksum::MultiHasher;
use keyway_proto::{Checksum, ChecksumKind, DigestSet, Digests};
use s3s::service::S3Service;
use s3s::{Body, S3Error, S3ErrorCode, StdError};

use super::checksums::Declared;
use super::claim::{Claim, Strangers};
use super::cors::{self, Cors};
use super::errors::{self, Failure};
use super::form;
use super::host::BaseDomains;
use super::rdma::{Lent, TIMING};
use super::service::RequestId;
use super::{Core, framing, signed, sts};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// The methods that S3 has operations for.
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE, Method::OPTIONS];

/// The same, for who has used another.
const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, PUT, POST, DELETE, OPTIONS");

/// Parameters that may have control characters: the operations see to them.
const LISTED_BY: [&str; 5] = ["prefix", "delimiter", "marker", "start-after", "key-marker"];

/// What the envelope must know of the configuration.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) domains: BaseDomains,
    pub(super) xml_max_bytes: usize,
    pub(super) cors: Cors,
    pub(super) strangers: Strangers,
    pub(super) forms: Arc<Core>,
}

/// Answers one request.
pub(super) async fn call(
    inner: &S3Service,
    mut request: Request<Body>,
    surroundings: &Surroundings,
) -> Response<Body> {
    let begun = Instant::now();
    let id = match request.extensions().get::<RequestId>() {
        Some(id) => id.clone(),
        None => {
            let id = RequestId::generate();
            request.extensions_mut().insert(id.clone());
            id
        }
    };
    let head_only = request.method() == Method::HEAD;
    let told = surroundings.cors.told(&request).await;
    let form = match form::is_meant(&request, &surroundings.domains) {
        true => Some(form::open(&mut request, &surroundings.domains).await),
        false => None,
    };
    let lent = Lent::begin(&mut request);
    let mut claim = Claim::of(&request, &id);
    if let Some(Ok(form)) = &form {
        claim.is_of_form(form.access_key(), form.token());
    }
    let is_sts = sts::is_meant(request.method(), request.uri(), request.headers());
    let unverified = claim.refuse(&request, &surroundings.strangers);
    let unverified = unverified.map(|failure| failure.answer(&id));
    let mut response = match unverified.or_else(|| refuse_early(&request)) {
        Some(error) => refused(error),
        None if cors::is_preflight(&request) => match surroundings.cors.preflight(&request).await {
            Ok(response) => response,
            Err(failure) => refused(failure.answer(&id)),
        },
        None => match form {
            None => pass(inner, request, &id, surroundings).await,
            Some(form) => match form.and_then(|form| form.into_put(request, &surroundings.forms)) {
                Ok((put, answer)) => answer.tell(pass(inner, put, &id, surroundings).await),
                Err(failure) => refused(failure.answer(&id)),
            },
        },
    };
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        // The cause is logged where it is known, under the same id; some of the protocol
        // layer's are not.
        tracing::error!(request_id = %id, "answered with an internal error");
    }
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().entry(ALLOW).or_insert(ALLOWED);
    }
    if response.status().is_client_error() {
        claim.judge(&response, &surroundings.strangers);
    }
    if is_sts {
        response = sts::translated(response, &id);
    } else if response.status().is_client_error() || response.status().is_server_error() {
        name_request(&mut response, &id, head_only);
    }
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if response.status().is_success() && !response.headers().contains_key(TIMING) {
        let took = format!("gateway;dur={:.3}", begun.elapsed().as_secs_f64() * 1e3);
        response.headers_mut().extend(HeaderValue::try_from(took).map(|took| (TIMING, took)));
    }
    response.headers_mut().extend(told);
    if let Some(lent) = lent {
        lent.tell(response.headers_mut());
    }
    response
}

async fn pass(
    inner: &S3Service,
    request: Request<Body>,
    id: &RequestId,
    surroundings: &Surroundings,
) -> Response<Body> {
    let (request, outcome) = match watch_xml(framing::watch(request), surroundings) {
        Ok(watched) => watched,
        Err(failure) => return refused(failure.answer(id)),
    };
    let response = inner.call(request).await.unwrap_or_else(|error| {
        tracing::error!(request_id = %id, %error, "the protocol layer failed");
        refused(S3Error::new(S3ErrorCode::InternalError))
    });
    // The protocol layer takes a body that breaks for a failure of ours.
    match outcome.and_then(|outcome| outcome.get().cloned()) {
        Some(code) if response.status().is_server_error() => refused(code.error()),
        _ => response,
    }
}

/// What S3 refuses in words of its own, before a signature is verified.
fn refuse_early(request: &Request<Body>) -> Option<S3Error> {
    if !METHODS.contains(request.method()) {
        return Some(S3Error::new(S3ErrorCode::MethodNotAllowed));
    }
    let query = request.uri().query().unwrap_or_default();
    let has = |name: &str| {
        query.split('&').any(|pair| {
            pair.split('=').next().is_some_and(|given| given.eq_ignore_ascii_case(name))
        })
    };
    let header_v2 = request
        .headers()
        .get(AUTHORIZATION)
        .is_some_and(|value| value.as_bytes().starts_with(b"AWS "));
    if header_v2 || (has("Signature") && has("AWSAccessKeyId")) {
        return Some(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use \
             AWS4-HMAC-SHA256.",
        ));
    }
    if request.headers().contains_key(AUTHORIZATION) && has("X-Amz-Signature") {
        return Some(S3Error::with_message(
            S3ErrorCode::InvalidArgument,
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, \
             Signature query string parameter or the Authorization header should be specified",
        ));
    }
    if query.split('&').any(has_stray_control) {
        return Some(S3Error::with_message(
            S3ErrorCode::InvalidArgument,
            "Query parameters cannot contain control characters.",
        ));
    }
    let is_sts = sts::is_meant(request.method(), request.uri(), request.headers());
    let service = if is_sts { signed::STS } else { signed::S3 };
    signed::refuse_form(request.headers(), query, service)
}

/// Whether a parameter has a control character where no operation could want one. The protocol
/// layer would refuse it in words that repeat it, and fail, for XML has no form for it.
fn has_stray_control(parameter: &str) -> bool {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    // What stands in a URI is printable; the rest is percent-encoded.
    let has_control = |text: &str| {
        text.as_bytes().windows(3).any(|encoded| match encoded {
            [b'%', b'0', low] => !matches!(low, b'9' | b'a' | b'A' | b'd' | b'D'),
            [b'%', b'1', _] => true,
            _ => false,
        })
    };
    has_control(name) || (has_control(value) && !LISTED_BY.contains(&name))
}

fn refused(error: S3Error) -> Response<Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Puts the request's id into an error's XML, where clients look for it.
fn name_request(response: &mut Response<Body>, id: &RequestId, head_only: bool) {
    const END: &[u8] = b"</Error>";
    let is_xml = response.headers().get(CONTENT_TYPE).is_some_and(|t| t == "application/xml");
    let Some(xml) = response.body().bytes().filter(|_| is_xml && !head_only) else { return };
    let Some(rest) = xml.strip_suffix(END) else { return };
    let mut named = Vec::with_capacity(xml.len() + 64);
    named.extend_from_slice(rest);
    named.extend_from_slice(b"<RequestId>");
    named.extend_from_slice(id.as_str().as_bytes());
    named.extend_from_slice(b"</RequestId>");
    named.extend_from_slice(END);
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = Body::from(named);
}

/// Why a watched body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BadXmlBody {
    Digest,
    PayloadHash,
    Incomplete,
    TooLong,
}

impl BadXmlBody {
    fn error(self) -> S3Error {
        match self {
            Self::Digest => S3Error::new(S3ErrorCode::BadDigest),
            Self::PayloadHash => errors::payload_hash_mismatch(),
            Self::Incomplete => S3Error::new(S3ErrorCode::IncompleteBody),
            Self::TooLong => S3Error::new(S3ErrorCode::MaxMessageLengthExceeded),
        }
    }
}

type Outcome = Arc<OnceLock<BadXmlBody>>;

/// Subresources whose PUT or POST carries a document.
const DOCUMENTS: [&str; 23] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "retention",
    "tagging",
    "versioning",
    "website",
];

/// Has the digests of a document verified while it is read: those of `DeleteObjects` and its
/// like, which the protocol layer reads whole and hands on without its bytes. Bodies of objects
/// pass untouched.
fn watch_xml(
    request: Request<Body>,
    surroundings: &Surroundings,
) -> Result<(Request<Body>, Option<Outcome>), Failure> {
    let Some(declared) = document(&request, &surroundings.domains) else {
        return Ok((request, None));
    };
    let declared = declared?;
    let payload_hash = payload_hash(request.headers());
    let digests = payload_hash.iter().map(Checksum::kind).fold(declared.digests(), DigestSet::with);
    let outcome = Outcome::default();
    let watched = outcome.clone();
    let room = surroundings.xml_max_bytes;
    let announced = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok());
    let request = request.map(|body| {
        Body::http_body_unsync(XmlBody {
            body,
            hasher: Some(MultiHasher::new(digests)),
            declared,
            payload_hash,
            room,
            announced,
            outcome: watched,
        })
    });
    Ok((request, Some(outcome)))
}

/// What is declared of the request's body, where that is a document; `None` for objects.
fn document(request: &Request<Body>, domains: &BaseDomains) -> Option<Result<Declared, Failure>> {
    if !matches!(*request.method(), Method::PUT | Method::POST) {
        return None;
    }
    let query = request.uri().query().unwrap_or_default();
    let names = || query.split('&').filter_map(|pair| pair.split('=').next());
    if names().any(|name| DOCUMENTS.contains(&name)) {
        return Some(Declared::from_headers(request.headers()));
    }
    let completes = request.method() == Method::POST
        && names().any(|name| matches!(name, "uploadId" | "uploads"));
    let creates_bucket = request.method() == Method::PUT && names_bucket(request, domains);
    // The checksum headers of these speak of an object, not of the document.
    (completes || creates_bucket).then(|| Ok(Declared::default()))
}

fn names_bucket(request: &Request<Body>, domains: &BaseDomains) -> bool {
    let path = request.uri().path();
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let host = host.or_else(|| request.uri().host()).unwrap_or_default();
    match domains.bucket(host) {
        Some(_) => path == "/",
        None => {
            let rest = path.strip_prefix('/').unwrap_or(path);
            rest.split_once('/').is_none_or(|(_, key)| key.is_empty())
        }
    }
}

fn payload_hash(headers: &HeaderMap) -> Option<Checksum> {
    let text = headers.get(CONTENT_SHA256)?.as_bytes();
    let mut value = [0; 32];
    hex::decode_to_slice(text, &mut value).ok()?;
    Checksum::new(ChecksumKind::Sha256, &value)
}

/// A document on its way in, hashed as it passes. It fails at its end when it is not the one
/// that was declared.
struct XmlBody {
    body: Body,
    hasher: Option<MultiHasher>,
    declared: Declared,
    payload_hash: Option<Checksum>,
    room: usize,
    announced: Option<usize>,
    outcome: Outcome,
}

impl XmlBody {
    fn take(&mut self, data: &Bytes) -> Result<(), BadXmlBody> {
        self.room = self.room.checked_sub(data.len()).ok_or(BadXmlBody::TooLong)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(data);
        }
        self.announced = self.announced.map(|rest| rest.saturating_sub(data.len()));
        // With the last byte, and not after it: the protocol layer compares the payload's hash
        // then too, and its failure would be nameless.
        if self.announced == Some(0) { self.end() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<(), BadXmlBody> {
        let Some(hasher) = self.hasher.take() else { return Ok(()) };
        let digests: Digests = hasher.finish();
        if let Some(expected) = &self.payload_hash
            && digests.value(ChecksumKind::Sha256) != Some(expected)
        {
            return Err(BadXmlBody::PayloadHash);
        }
        self.declared.verify(&digests, None).map_err(|_| BadXmlBody::Digest)
    }

    fn fail(&mut self, bad: BadXmlBody, cause: StdError) -> StdError {
        self.hasher = None;
        // The first cause is the one to tell.
        let _ = self.outcome.set(bad);
        cause
    }
}

impl http_body::Body for XmlBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let step = match &polled {
            Some(Ok(frame)) => frame.data_ref().map_or(Ok(()), |data| self.take(data)),
            Some(Err(_)) => Err(BadXmlBody::Incomplete),
            None => self.end(),
        };
        Poll::Ready(match (step, polled) {
            (Ok(()), polled) => polled,
            (Err(bad), Some(Err(cause))) => Some(Err(self.fail(bad, cause))),
            (Err(bad), _) => Some(Err(self.fail(bad, "the document is refused".into()))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        // The digests of an empty document are checked too.
        self.hasher.is_none() && self.body.is_end_stream()
    }
}
