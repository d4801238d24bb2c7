//! What a signature says of itself: its form, judged in S3's words before the protocol layer
//! verifies it, and the headers that it covers.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use percent_encoding::percent_decode_str;
use s3s::{S3Error, S3ErrorCode};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Of another signature that S3 has and this server has not: the protocol layer says so.
const ASYMMETRIC: &str = "AWS4-ECDSA-P256-SHA256";
/// The service that signatures are for, but for calls of [`STS`].
pub(super) const S3: &str = "s3";
/// The service that makes temporary credentials.
pub(super) const STS: &str = "sts";
const TERMINAL: &str = "aws4_request";
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");

/// What `x-amz-content-sha256` may say instead of a hash.
const PAYLOADS: [&str; 6] = [
    "UNSIGNED-PAYLOAD",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
    "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER",
];

/// Refuses a signature whose form says that it cannot be one for the service that is meant. `None` lets it
/// pass: to be verified, or, where there is none, to be refused for that.
pub(super) fn refuse_form(headers: &HeaderMap, query: &str, service: &str) -> Option<S3Error> {
    if let Some(text) = authorization(headers) {
        return refuse_authorization(text, service).or_else(|| refuse_payload(headers));
    }
    parameter(query, "X-Amz-Signature")?;
    let invalid = |message: String| {
        S3Error::with_message(S3ErrorCode::AuthorizationQueryParametersError, message)
    };
    if parameter(query, "X-Amz-Algorithm")
        .is_some_and(|algorithm| algorithm != ALGORITHM && algorithm != ASYMMETRIC)
    {
        return Some(invalid(format!("X-Amz-Algorithm only supports \"{ALGORITHM}\"")));
    }
    let credential = parameter(query, "X-Amz-Credential")?;
    let message = scope_error(&credential, service)?;
    Some(invalid(format!("Error parsing the X-Amz-Credential parameter; {message}")))
}

fn refuse_authorization(text: &str, service: &str) -> Option<S3Error> {
    let malformed = |message: &str| {
        Some(S3Error::with_message(
            S3ErrorCode::AuthorizationHeaderMalformed,
            format!("The authorization header is malformed; {message}"),
        ))
    };
    let (algorithm, _) = text.split_once(' ').unwrap_or((text, ""));
    match algorithm {
        ALGORITHM => {}
        ASYMMETRIC => return None,
        _ => {
            return Some(S3Error::with_message(
                S3ErrorCode::InvalidArgument,
                "Unsupported Authorization Type",
            ));
        }
    }
    let parts = ["Credential", "SignedHeaders", "Signature"].map(|name| component(text, name));
    let [Some(credential), Some(_), Some(_)] = parts else {
        return malformed(
            "the authorization header requires three components: Credential, SignedHeaders, and \
             Signature.",
        );
    };
    malformed(&scope_error(credential, service)?)
}

/// What is wrong with a credential's scope: `id/yyyymmdd/region/service/aws4_request`.
pub(super) fn scope_error(credential: &str, expected: &str) -> Option<String> {
    // From the right: an id may have slashes.
    let mut parts = credential.rsplitn(5, '/');
    let (Some(terminal), Some(service), Some(_region), Some(date), Some(_id)) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Some(format!(
            "the Credential is mal-formed; expecting \
             \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/{TERMINAL}\"."
        ));
    };
    if terminal != TERMINAL {
        return Some(format!(
            "incorrect terminal \"{terminal}\". This endpoint uses \"{TERMINAL}\"."
        ));
    }
    if service != expected {
        return Some(format!(
            "incorrect service \"{service}\". This endpoint belongs to \"{expected}\"."
        ));
    }
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(format!(
            "incorrect date format \"{date}\". This date in the credential must be in the \
             format \"yyyyMMdd\"."
        ));
    }
    None
}

/// Whether a verified signature, in a header, is one over the whole body: by its hash, which the
/// protocol layer computes where no header has it.
pub(super) fn covers_body(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_SHA256).into_iter();
    let first = values.next().is_none_or(|value| is_hash(value.as_bytes()));
    first && values.next().is_none()
}

fn is_hash(value: &[u8]) -> bool {
    value.len() == 64 && value.iter().all(u8::is_ascii_hexdigit)
}

fn refuse_payload(headers: &HeaderMap) -> Option<S3Error> {
    let value = headers.get(CONTENT_SHA256)?.as_bytes();
    if is_hash(value) || PAYLOADS.iter().any(|payload| payload.as_bytes() == value) {
        return None;
    }
    Some(S3Error::with_message(
        S3ErrorCode::InvalidArgument,
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, \
         STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, or a \
         valid sha256 value.",
    ))
}

/// When a signature was made, by its date: `20260102T030405Z`.
pub(super) fn made_at(text: &str) -> Option<Timestamp> {
    let time = DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// The access key that a request names as its own.
pub(super) fn access_key(headers: &HeaderMap, query: &str) -> Option<String> {
    let by_header =
        authorization(headers).and_then(|text| component(text, "Credential").map(str::to_owned));
    let credential = by_header.or_else(|| parameter(query, "X-Amz-Credential"))?;
    // From the right: an id may have slashes.
    credential.rsplitn(5, '/').nth(4).map(str::to_owned)
}

/// The names of the headers that a signature covers.
pub(super) struct SignedNames(String);

impl SignedNames {
    /// Those of the request's one signature; `None` without any.
    pub(super) fn of(headers: &HeaderMap, query: &str) -> Option<Self> {
        let by_header = authorization(headers)
            .and_then(|text| component(text, "SignedHeaders").map(str::to_owned));
        by_header.or_else(|| parameter(query, "X-Amz-SignedHeaders")).map(Self)
    }

    /// Whether the header is among them.
    pub(super) fn contains(&self, name: &HeaderName) -> bool {
        self.0.split(';').any(|signed| signed.eq_ignore_ascii_case(name.as_str()))
    }
}

/// The `Authorization` header, where there is one and no other.
fn authorization(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).into_iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

/// The value of one of the header's components: `algorithm name=value, name=value, …`.
fn component<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, components) = text.split_once(' ')?;
    components
        .split(',')
        .find_map(|component| component.trim().strip_prefix(name)?.strip_prefix('='))
}

/// The value of a query parameter, decoded.
fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HOST;

    use super::*;

    fn headers(authorization: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(authorization))])
    }

    #[test]
    fn signatures_have_an_age() {
        let at = made_at("20260102T030405Z").expect("a time");
        assert_eq!(at.to_string(), "2026-01-02T03:04:05Z");
        assert!(made_at("2026-01-02").is_none());
    }

    #[test]
    fn signed_names_are_those_of_their_own_component() {
        let names = |text| SignedNames::of(&headers(text), "").expect("there is a component");
        let plain = names("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=Host;range,Signature=0");
        assert!(plain.contains(&HOST));
        let tight = names("AWS4-HMAC-SHA256 SignedHeaders=range,Credential=a,Signature=0");
        assert!(!tight.contains(&HOST));
        // A scope is the client's text: it is no list of headers.
        let hidden = "AWS4-HMAC-SHA256 Credential=a/SignedHeaders=host;x, SignedHeaders=range";
        assert!(!names(hidden).contains(&HOST));
        let query = "X-Amz-SignedHeaders=host%3Brange&X-Amz-Signature=0";
        let presigned = SignedNames::of(&HeaderMap::new(), query).expect("there is a parameter");
        assert!(presigned.contains(&HOST));
        assert!(SignedNames::of(&HeaderMap::new(), "a=b").is_none());
    }

    #[test]
    fn ids_may_have_slashes() {
        assert_eq!(scope_error("a/b/c/20260101/us-east-1/s3/aws4_request", S3), None);
        assert!(scope_error("20260101/us-east-1/s3/aws4_request", S3).is_some());
    }

    #[test]
    fn a_signature_is_for_one_service() {
        for (signed, meant) in [(S3, STS), (STS, S3)] {
            let scope = |service| format!("a/20260101/us-east-1/{service}/aws4_request");
            assert_eq!(scope_error(&scope(signed), signed), None);
            assert!(scope_error(&scope(signed), meant).is_some());
        }
    }
}
