//! What a form's fields say of its object, as the headers of a PUT say it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::S3ErrorCode;
use s3s::dto::Tagging;
use s3s::xml::{Deserialize as _, Deserializer};

use crate::s3::errors::Failure;

/// Fields that are headers of a PUT by the same name.
const HEADERS: [&str; 19] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-expected-bucket-owner",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
];
const USER_PREFIX: &str = "x-amz-meta-";
/// Headers of a PUT, too, which says what they must be.
const ENCRYPTION_PREFIX: &str = "x-amz-server-side-encryption";
/// Fields that sign, and no headers.
pub(super) const SIGNING: [&str; 5] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-signature",
];
/// What stays as it is in a query's value.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The headers of the PUT that a form stands for.
///
/// # Errors
/// `InvalidArgument` for a value that no header can have, and for `x-amz-*` fields that nothing is
/// known of: what they were to bring about would not come about. `MalformedXML` for tags.
pub(super) fn headers(fields: &BTreeMap<String, String>) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for (field, value) in fields {
        let invalid = || {
            let message = format!("The field {field} has a value that is not served here.");
            Failure::refuse(S3ErrorCode::InvalidArgument, message)
        };
        let (name, value) = match field.as_str() {
            "acl" => ("x-amz-acl", value.clone()),
            "tagging" => ("x-amz-tagging", tags(value)?),
            "x-amz-acl" | "x-amz-tagging" => {
                let message = format!("A form says it as {}.", field.trim_start_matches("x-amz-"));
                return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
            }
            name if HEADERS.contains(&name) || name.starts_with(ENCRYPTION_PREFIX) => {
                (name, value.clone())
            }
            name if name.starts_with(USER_PREFIX) => (name, metadata(value)),
            name if SIGNING.contains(&name) || !name.starts_with("x-amz-") => continue,
            _ => {
                let message = format!("The field {field} is not served here.");
                return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
            }
        };
        if value.is_empty() && !name.starts_with(USER_PREFIX) {
            // A browser sends the fields that nobody filled in.
            continue;
        }
        let name = HeaderName::try_from(name).map_err(|_| invalid())?;
        // A line break would be another header.
        if !value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            return Err(invalid());
        }
        headers.insert(name, HeaderValue::try_from(value).map_err(|_| invalid())?);
    }
    Ok(headers)
}

/// RFC 2047 for what is not printable ASCII: headers are read so.
fn metadata(value: &str) -> String {
    if value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return value.to_owned();
    }
    format!("=?UTF-8?B?{}?=", BASE64.encode(value))
}

/// `<Tagging>…` as a header has it.
fn tags(xml: &str) -> Result<String, Failure> {
    let mut document = Deserializer::new(xml.as_bytes());
    let tagging = Tagging::deserialize(&mut document)
        .and_then(|tagging| document.expect_eof().map(|()| tagging))
        .map_err(|_| Failure::code(S3ErrorCode::MalformedXML))?;
    let encoded = |text: Option<&String>| {
        utf8_percent_encode(text.map_or("", String::as_str), PLAIN).to_string()
    };
    let pairs = tagging.tag_set.iter().map(|tag| {
        let (key, value) = (encoded(tag.key.as_ref()), encoded(tag.value.as_ref()));
        format!("{key}={value}")
    });
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Result<Vec<(String, String)>, Failure> {
        let headers = headers(&BTreeMap::from([(name.to_owned(), value.to_owned())]))?;
        let text = |value: &HeaderValue| value.to_str().unwrap_or("?").to_owned();
        Ok(headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect())
    }

    fn one(name: &str, value: &str) -> Option<(String, String)> {
        of(name, value).ok().and_then(|headers| headers.into_iter().next())
    }

    #[test]
    fn fields_become_headers() {
        let pair = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(one("content-type", "a/b"), pair("content-type", "a/b"));
        assert_eq!(one("acl", "private"), pair("x-amz-acl", "private"));
        assert_eq!(one("x-amz-meta-a", "é"), pair("x-amz-meta-a", "=?UTF-8?B?w6k=?="));
        let xml =
            "<Tagging><TagSet><Tag><Key>a b</Key><Value>c&amp;d</Value></Tag></TagSet></Tagging>";
        assert_eq!(one("tagging", xml), pair("x-amz-tagging", "a%20b=c%26d"));
        for silent in ["submit", "x-ignore-a", "key", "authorization", "x-amz-date", "host"] {
            assert_eq!(one(silent, "a"), None, "{silent}");
        }
    }

    #[test]
    fn what_would_smuggle_is_refused() {
        for (name, value) in [
            ("content-type", "a\r\nx-amz-acl: public-read"),
            ("x-amz-copy-source", "/other/key"),
            ("x-amz-rdma-token", "x"),
            ("x-amz-meta-a b", "c"),
            ("x-amz-acl", "private"),
            ("tagging", "<Tagging>"),
        ] {
            assert!(of(name, value).is_err(), "{name}");
        }
        assert_eq!(one("x-keyway-durability", "memory"), None);
    }
}
