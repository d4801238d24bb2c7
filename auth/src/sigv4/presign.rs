//! Signatures in the query string: URLs that carry their own permission for a while.

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Uri};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{SignError, Signer, amz_date, canonical};

/// The longest life of a presigned URL: S3's own limit.
pub const PRESIGN_EXPIRY_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What RFC 3986 leaves unreserved stays as it is; the rest is encoded.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

impl Signer {
    /// The URL that lets its holder send `method` to `uri` until `now + expires`. Headers
    /// given here are part of the permission: the holder must send them unchanged.
    ///
    /// # Errors
    /// When the URI names no host, or `expires` is not between 1 s and
    /// [`PRESIGN_EXPIRY_MAX`].
    pub fn presign(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        expires: Duration,
        now: Timestamp,
    ) -> Result<Uri, SignError> {
        if expires < Duration::from_secs(1) || expires > PRESIGN_EXPIRY_MAX {
            return Err(SignError::Expiry);
        }
        let date = amz_date(now)?;
        let host = canonical::host(uri).ok_or(SignError::NoHost)?;
        let mut headers = headers.clone();
        headers.insert(header::HOST, HeaderValue::from_str(&host)?);
        let headers = canonical::signed_headers(&headers)?;

        let credential = self.credential(&date);
        let iso_date = date.fmt_iso8601();
        let expires = expires.as_secs().to_string();
        let names = canonical::names(&headers);
        let mut pairs = canonical::query_pairs(uri.query());
        pairs.extend([
            ("X-Amz-Algorithm".into(), "AWS4-HMAC-SHA256".into()),
            ("X-Amz-Credential".into(), credential.into()),
            ("X-Amz-Date".into(), iso_date.as_str().into()),
            ("X-Amz-Expires".into(), expires.into()),
            ("X-Amz-SignedHeaders".into(), names.into()),
        ]);
        if let Some(token) = self.session_token() {
            pairs.push(("X-Amz-Security-Token".into(), token.into()));
        }
        let request = s3s_sigv4::create_presigned_canonical_request_with_raw_uri_path(
            method.as_str(),
            canonical::path(uri),
            &pairs,
            headers.as_slice(),
        );
        pairs.push(("X-Amz-Signature".into(), self.signature(&request, &date).into()));
        with_query(uri, &pairs)
    }
}

fn with_query(
    uri: &Uri,
    pairs: &[(std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)],
) -> Result<Uri, SignError> {
    let mut target = canonical::path(uri).to_owned();
    for (index, (name, value)) in pairs.iter().enumerate() {
        let joint = if index == 0 { '?' } else { '&' };
        let (name, value) = (utf8_percent_encode(name, QUERY), utf8_percent_encode(value, QUERY));
        let _ = write!(target, "{joint}{name}={value}");
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().map_err(http::Error::from)?);
    Uri::from_parts(parts).map_err(|error| SignError::Uri(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::{AccessKeyId, SecretKey};

    fn signer() -> Signer {
        Signer::new(
            AccessKeyId::new("AKIAIOSFODNN7EXAMPLE"),
            SecretKey::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned()),
            "us-east-1",
            "s3",
        )
    }

    fn now() -> Timestamp {
        "2013-05-24T00:00:00Z".parse().expect("a time")
    }

    /// Goal: the example of S3's documentation ("Authenticating requests: using query
    /// parameters").
    #[test]
    fn published_example() {
        let uri = Uri::from_static("https://examplebucket.s3.amazonaws.com/test.txt");
        let url = signer()
            .presign(&Method::GET, &uri, &HeaderMap::new(), Duration::from_secs(86_400), now())
            .expect("signs")
            .to_string();
        assert!(url.starts_with(
            "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        ));
        assert!(url.ends_with(
            "&X-Amz-Signature=\
             aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        ));
    }

    #[test]
    fn a_life_of_nothing_or_of_more_than_a_week_is_refused() {
        let uri = Uri::from_static("https://host/key");
        for expires in [Duration::ZERO, PRESIGN_EXPIRY_MAX + Duration::from_secs(1)] {
            let refused = signer().presign(&Method::GET, &uri, &HeaderMap::new(), expires, now());
            assert!(matches!(refused, Err(SignError::Expiry)), "{expires:?}");
        }
    }
}
