//! Signatures as a client must not make them: every step in the test's hands.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use s3s_sigv4::{AmzDate, Payload};

use crate::fixture::{ACCESS_KEY, SECRET_KEY};

const SCOPE: (&str, &str) = ("us-east-1", "s3");

/// The payload of a request without a body.
pub(crate) const EMPTY: Payload<'static> =
    Payload::SingleChunk(s3s_sigv4::EMPTY_STRING_SHA256_HASH);

/// Signs the head anew with `names` alone, and answers the signature.
pub(crate) fn sign_only(
    request: &mut Request<Full<Bytes>>,
    names: &[&str],
    payload: Payload<'_>,
) -> String {
    let text = |name: &str| request.headers()[name].to_str().unwrap();
    let date = AmzDate::parse(text("x-amz-date")).unwrap();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (*name, text(name))).collect();
    let none: [(&str, &str); 0] = [];
    let canonical = s3s_sigv4::create_canonical_request_with_raw_uri_path(
        request.method().as_str(),
        request.uri().path(),
        &none,
        &headers[..],
        payload,
    );
    let signature =
        sign(&s3s_sigv4::create_string_to_sign(&canonical, &date, SCOPE.0, SCOPE.1), &date);
    let value = format!(
        "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{}/{}/{}/aws4_request, SignedHeaders={}, \
         Signature={signature}",
        date.fmt_date(),
        SCOPE.0,
        SCOPE.1,
        names.join(";"),
    );
    request.headers_mut().insert("authorization", value.parse().unwrap());
    signature
}

/// The query of a presigned GET of `path` that covers `range: <value>` and nothing else.
pub(crate) fn presign_range(path: &str, value: &str) -> String {
    let text = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let date = AmzDate::parse(&text).unwrap();
    let credential =
        format!("{ACCESS_KEY}/{}/{}/{}/aws4_request", date.fmt_date(), SCOPE.0, SCOPE.1);
    let pairs = [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", &credential),
        ("X-Amz-Date", &text),
        ("X-Amz-Expires", "60"),
        ("X-Amz-SignedHeaders", "range"),
    ];
    let canonical = s3s_sigv4::create_presigned_canonical_request_with_raw_uri_path(
        "GET",
        path,
        &pairs,
        [("range", value)],
    );
    let to_sign = s3s_sigv4::create_string_to_sign(&canonical, &date, SCOPE.0, SCOPE.1);
    let query: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}={}", value.replace('/', "%2F"))).collect();
    format!("{}&X-Amz-Signature={}", query.join("&"), sign(&to_sign, &date))
}

/// One signed chunk, and its signature.
pub(crate) fn chunk(date: &str, previous: &str, data: &str) -> (String, String) {
    let date = AmzDate::parse(date).unwrap();
    let to_sign =
        s3s_sigv4::create_chunk_string_to_sign(&date, SCOPE.0, SCOPE.1, previous, &[data]);
    let signature = sign(&to_sign, &date);
    (format!("{:x};chunk-signature={signature}\r\n{data}\r\n", data.len()), signature)
}

fn sign(text: &str, date: &AmzDate) -> String {
    s3s_sigv4::calculate_signature(text, SECRET_KEY, date, SCOPE.0, SCOPE.1)
}
