//! Signatures in the `Authorization` header.

use std::fmt::Write as _;

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use jiff::Timestamp;

use super::canonical::{self, SignedHeaders};
use super::{SignError, Signer, amz_date};

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
pub(super) const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// What a signature says about the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: the transport or a checksum header answers for it.
    Unsigned,
    /// Its SHA-256.
    Sha256([u8; 32]),
    /// Chunks without signatures, followed by trailers (`aws-chunked`).
    StreamingUnsignedTrailer,
}

impl Payload {
    /// The payload of a request without a body.
    pub const EMPTY: Self = Self::Sha256([
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9,
        0x24, 0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52,
        0xb8, 0x55,
    ]);
}

impl Signer {
    /// Signs a request's head at the time `now`: adds `host` where it is missing,
    /// `x-amz-date`, `x-amz-content-sha256`, the session token if there is one, and
    /// `authorization`. Every `x-amz-*` header present is covered by the signature; one
    /// added later is not, and servers refuse it.
    ///
    /// # Errors
    /// When the request names no host, or a header to be signed is not text.
    pub fn sign(
        &self,
        parts: &mut Parts,
        payload: Payload,
        now: Timestamp,
    ) -> Result<(), SignError> {
        let date = amz_date(now)?;
        if !parts.headers.contains_key(header::HOST) {
            let host = canonical::host(&parts.uri).ok_or(SignError::NoHost)?;
            let host = HeaderValue::from_str(&host)?;
            parts.headers.insert(header::HOST, host);
        }
        let hash;
        let (said, payload) = match payload {
            Payload::Unsigned => ("UNSIGNED-PAYLOAD", s3s_sigv4::Payload::Unsigned),
            Payload::Sha256(digest) => {
                hash = hex::encode(digest);
                (hash.as_str(), s3s_sigv4::Payload::SingleChunk(&hash))
            }
            Payload::StreamingUnsignedTrailer => (
                "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                s3s_sigv4::Payload::UnsignedMultipleChunksWithTrailer,
            ),
        };
        parts.headers.insert(DATE, HeaderValue::from_str(&date.fmt_iso8601())?);
        parts.headers.insert(CONTENT_SHA256, HeaderValue::from_str(said)?);
        if let Some(token) = self.session_token() {
            let mut token = HeaderValue::from_str(token)?;
            token.set_sensitive(true);
            parts.headers.insert(SECURITY_TOKEN, token);
        }
        let headers = canonical::signed_headers(&parts.headers)?;
        let request = s3s_sigv4::create_canonical_request_with_raw_uri_path(
            parts.method.as_str(),
            canonical::path(&parts.uri),
            &canonical::query_pairs(parts.uri.query()),
            headers.as_slice(),
            payload,
        );
        let text = self.authorization(&headers, &request, &date);
        let mut value = HeaderValue::from_str(&text)?;
        value.set_sensitive(true);
        parts.headers.insert(header::AUTHORIZATION, value);
        Ok(())
    }

    fn authorization(
        &self,
        headers: &SignedHeaders<'_>,
        canonical_request: &str,
        date: &s3s_sigv4::AmzDate,
    ) -> String {
        let mut text = String::with_capacity(384);
        let _ = write!(
            text,
            "AWS4-HMAC-SHA256 Credential={},SignedHeaders={},Signature={}",
            self.credential(date),
            canonical::names(headers),
            self.signature(canonical_request, date),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::credential::{AccessKeyId, SecretKey};

    fn example_signer() -> Signer {
        Signer::new(
            AccessKeyId::new("AKIAIOSFODNN7EXAMPLE"),
            SecretKey::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
            "us-east-1",
            "s3",
        )
    }

    fn signed(request: http::request::Builder, payload: Payload) -> Parts {
        let (mut parts, ()) = request.body(()).expect("a request").into_parts();
        let now = "2013-05-24T00:00:00Z".parse().expect("a time");
        example_signer().sign(&mut parts, payload, now).expect("signs");
        parts
    }

    fn authorization(parts: &Parts) -> &str {
        parts.headers[header::AUTHORIZATION].to_str().expect("text")
    }

    /// Goal: byte-for-byte the signatures of S3's documentation ("Signature calculations for
    /// the authorization header: transferring payload in a single chunk").
    #[test]
    fn published_examples() {
        let get = Request::get("https://examplebucket.s3.amazonaws.com/test.txt")
            .header("range", "bytes=0-9");
        assert_eq!(
            authorization(&signed(get, Payload::EMPTY)),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );

        let put = Request::put("https://examplebucket.s3.amazonaws.com/test%24file.text")
            .header("date", "Fri, 24 May 2013 00:00:00 GMT")
            .header("x-amz-storage-class", "REDUCED_REDUNDANCY");
        let body = Payload::Sha256(Sha256::digest(b"Welcome to Amazon S3.").into());
        assert!(authorization(&signed(put, body)).ends_with(
            "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class,\
             Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        ));

        let lifecycle = Request::get("https://examplebucket.s3.amazonaws.com/?lifecycle");
        assert!(authorization(&signed(lifecycle, Payload::EMPTY)).ends_with(
            "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        ));

        let list = Request::get("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J");
        assert!(authorization(&signed(list, Payload::EMPTY)).ends_with(
            "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        ));
    }

    #[test]
    fn every_amz_header_is_covered_and_a_changed_one_changes_the_signature() {
        let request = |token: &str| {
            Request::get("http://127.0.0.1:9000/b/k")
                .header("x-amz-rdma-token", token)
                .header("user-agent", "anything")
        };
        let one = signed(request("one"), Payload::Unsigned);
        let two = signed(request("two"), Payload::Unsigned);
        assert!(authorization(&one).contains("x-amz-rdma-token"));
        assert!(!authorization(&one).contains("user-agent"));
        assert_ne!(authorization(&one), authorization(&two));
        assert_eq!(one.headers[header::HOST], "127.0.0.1:9000");
        assert_eq!(one.headers[CONTENT_SHA256], "UNSIGNED-PAYLOAD");
    }

    #[test]
    fn a_session_token_travels_signed() {
        let signer = example_signer().with_session_token("temporary".to_owned().into());
        let (mut parts, ()) =
            Request::get("http://localhost/b").body(()).expect("a request").into_parts();
        let now = "2013-05-24T00:00:00Z".parse().expect("a time");
        signer.sign(&mut parts, Payload::StreamingUnsignedTrailer, now).expect("signs");
        assert_eq!(parts.headers[SECURITY_TOKEN], "temporary");
        assert!(authorization(&parts).contains(";x-amz-security-token,"));
        assert!(!format!("{:?}", parts.headers).contains("temporary"));
    }

    #[test]
    fn what_cannot_be_signed_is_refused() {
        let (mut parts, ()) = Request::get("/path").body(()).expect("a request").into_parts();
        let now = "2013-05-24T00:00:00Z".parse().expect("a time");
        assert!(matches!(
            example_signer().sign(&mut parts, Payload::EMPTY, now),
            Err(SignError::NoHost)
        ));
        parts.headers.insert(header::HOST, HeaderValue::from_static("h"));
        parts
            .headers
            .insert("x-amz-meta-name", HeaderValue::from_bytes(b"\xff").expect("opaque bytes"));
        assert!(matches!(
            example_signer().sign(&mut parts, Payload::EMPTY, now),
            Err(SignError::HeaderNotText(_))
        ));
    }
}
