//! The headers of an answer that describes an object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE,
    CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, LAST_MODIFIED,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use keyway_meta::{Bucket, ChecksumType, Object, ObjectChecksum};
use s3s::S3ErrorCode;

use super::checksums;
use super::conditions;
use super::durability;
use super::errors::Failure;
use super::lock;
use super::ranges::Selection;
use super::resolve;

const CHECKSUM_TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");
/// The version that an answer is about.
pub(super) const VERSION_ID: HeaderName = HeaderName::from_static("x-amz-version-id");
const LOCK_MODE: HeaderName = HeaderName::from_static("x-amz-object-lock-mode");
const LOCK_UNTIL: HeaderName = HeaderName::from_static("x-amz-object-lock-retain-until-date");
const LEGAL_HOLD: HeaderName = HeaderName::from_static("x-amz-object-lock-legal-hold");
const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");
const PARTS_COUNT: HeaderName = HeaderName::from_static("x-amz-mp-parts-count");
const STORAGE_CLASS: HeaderName = HeaderName::from_static("x-amz-storage-class");
const REDIRECT: HeaderName = HeaderName::from_static("x-amz-website-redirect-location");
const USER_PREFIX: &str = "x-amz-meta-";
/// What S3 says of objects whose type nobody gave.
const UNKNOWN_TYPE: HeaderValue = HeaderValue::from_static("binary/octet-stream");

/// Values of the `response-*` query parameters, which replace the stored ones.
#[derive(Debug, Default)]
pub(super) struct Overrides(Vec<(HeaderName, HeaderValue)>);

impl Overrides {
    /// Reads them out of a query string. Absent ones cost nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that no header can hold.
    pub(super) fn from_query(query: Option<&str>) -> Result<Self, Failure> {
        let query = query.unwrap_or_default();
        if !query.contains("response-") {
            return Ok(Self::default());
        }
        let mut found = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(header) = overridable(name) else { continue };
            let value = value.replace('+', " ");
            let value = percent_encoding::percent_decode_str(&value).collect::<Vec<u8>>();
            let value = HeaderValue::try_from(value).map_err(|_| {
                Failure::refuse(
                    S3ErrorCode::InvalidArgument,
                    format!("The value of {name} is not a header's."),
                )
            })?;
            found.push((header, value));
        }
        Ok(Self(found))
    }
}

fn overridable(parameter: &str) -> Option<HeaderName> {
    Some(match parameter {
        "response-content-type" => CONTENT_TYPE,
        "response-content-language" => CONTENT_LANGUAGE,
        "response-expires" => EXPIRES,
        "response-cache-control" => CACHE_CONTROL,
        "response-content-disposition" => CONTENT_DISPOSITION,
        "response-content-encoding" => CONTENT_ENCODING,
        _ => return None,
    })
}

/// The headers for a read of `selection` out of `object`.
pub(super) fn headers(
    object: &Object,
    selection: &Selection,
    by_part: bool,
    with_checksum: bool,
    overrides: Overrides,
) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(16 + object.headers.user.len());
    map.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    map.insert(CONTENT_LENGTH, HeaderValue::from(selection.range.length()));
    map.insert(ETAG, conditions::quoted(&object.etag));
    map.insert(LAST_MODIFIED, conditions::http_date(object.modified));
    if let Some(range) = selection.content_range(object.size) {
        insert(&mut map, CONTENT_RANGE, &range);
    }
    if by_part && !object.parts.is_empty() {
        map.insert(PARTS_COUNT, HeaderValue::from(object.parts.len()));
    }
    stored(&mut map, object);
    durability::tell_reader(object.durability, &mut map);
    if with_checksum {
        checksum(&mut map, object, selection);
    }
    for (name, value) in overrides.0 {
        map.insert(name, value);
    }
    map
}

/// Names the version, where the bucket keeps any.
pub(super) fn tell_version(bucket: &Bucket, object: &Object, map: &mut HeaderMap) {
    if let Some(name) = resolve::told_version(bucket, object.name()) {
        insert(map, VERSION_ID, &name);
    }
}

fn stored(map: &mut HeaderMap, object: &Object) {
    let headers = &object.headers;
    map.insert(CONTENT_TYPE, UNKNOWN_TYPE);
    for (name, value) in [
        (CONTENT_TYPE, &headers.content_type),
        (CONTENT_ENCODING, &headers.content_encoding),
        (CONTENT_LANGUAGE, &headers.content_language),
        (CONTENT_DISPOSITION, &headers.content_disposition),
        (CACHE_CONTROL, &headers.cache_control),
        (EXPIRES, &headers.expires),
        (STORAGE_CLASS, &headers.storage_class),
        (REDIRECT, &headers.website_redirect_location),
    ] {
        if let Some(value) = value {
            insert(map, name, value);
        }
    }
    if let Some(retention) = headers.lock.retention {
        map.insert(LOCK_MODE, HeaderValue::from_static(lock::mode_name(retention.mode)));
        insert(map, LOCK_UNTIL, &conditions::date_time(retention.until));
    }
    if headers.lock.legal_hold {
        map.insert(LEGAL_HOLD, HeaderValue::from_static("ON"));
    }
    if !headers.tags.is_empty() {
        map.insert(TAGGING_COUNT, HeaderValue::from(headers.tags.len()));
    }
    for (name, value) in &headers.user {
        let Ok(name) = HeaderName::try_from(format!("{USER_PREFIX}{name}")) else { continue };
        insert(map, name, &as_header(value));
    }
}

/// The whole object's checksum, or the part's for a read by part number. A range has none.
fn checksum(map: &mut HeaderMap, object: &Object, selection: &Selection) {
    if let Some(part) = selection.part.and_then(|index| object.parts.get(index)) {
        if let Some(value) = &part.checksum {
            insert(map, checksums::header_of(value.kind()), &value.to_base64());
        }
    } else if selection.range.length() == object.size
        && let Some(of_object) = &object.checksum
    {
        insert(map, checksums::header_of(of_object.value.kind()), &text(of_object, object));
        map.insert(
            CHECKSUM_TYPE,
            HeaderValue::from_static(match of_object.kind {
                ChecksumType::FullObject => "FULL_OBJECT",
                ChecksumType::Composite => "COMPOSITE",
            }),
        );
    }
}

fn text(checksum: &ObjectChecksum, object: &Object) -> String {
    match checksum.kind {
        ChecksumType::FullObject => checksum.value.to_base64(),
        ChecksumType::Composite => {
            format!("{}-{}", checksum.value.to_base64(), object.parts.len())
        }
    }
}

fn insert(map: &mut HeaderMap, name: HeaderName, value: &str) {
    // What was stored came out of a header or is hexadecimal; anything else is left out
    // rather than failing the read.
    if let Ok(value) = HeaderValue::from_str(value) {
        map.insert(name, value);
    }
}

/// A metadata value as a header has it: RFC 2047 for what is not printable ASCII, as S3 does.
fn as_header(value: &str) -> std::borrow::Cow<'_, str> {
    if value.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return value.into();
    }
    format!("=?UTF-8?B?{}?=", BASE64.encode(value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_decoded() {
        let query = "x-id=GetObject&response-content-type=text%2Fplain&response-expires=a+b";
        let Overrides(found) = Overrides::from_query(Some(query)).expect("valid");
        assert_eq!(
            found,
            [
                (CONTENT_TYPE, HeaderValue::from_static("text/plain")),
                (EXPIRES, HeaderValue::from_static("a b"))
            ]
        );
        assert!(Overrides::from_query(Some("response-content-type=a%0d%0ab")).is_err());
    }

    #[test]
    fn metadata_outside_ascii_is_encoded() {
        assert_eq!(as_header("plain"), "plain");
        assert_eq!(as_header("é"), "=?UTF-8?B?w6k=?=");
        assert_eq!(as_header("a\nb"), "=?UTF-8?B?YQpi?=");
    }
}
