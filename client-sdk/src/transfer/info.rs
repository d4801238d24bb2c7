//! What an answer's headers say about an object.

use std::collections::BTreeMap;

use ::http::StatusCode;
use jiff::Timestamp;
use keyway_proto::{ByteRange, Checksum, ChecksumKind};

use super::Unverified;
use crate::error::{ClientError, Malformed};
use crate::http::Answer;
use crate::rdma::Reply;

/// An object as the service describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// Its size in bytes, whatever range was asked for.
    pub size: u64,
    /// Its ETag, quotes included.
    pub etag: Option<String>,
    /// Its version, where the bucket keeps versions.
    pub version: Option<String>,
    /// When it was stored.
    pub last_modified: Option<Timestamp>,
    /// Its media type.
    pub content_type: Option<String>,
    /// The user's metadata, names without `x-amz-meta-`.
    pub metadata: BTreeMap<String, String>,
    /// System headers kept with it: `cache-control`, `content-disposition`,
    /// `content-encoding`, `content-language`.
    pub headers: BTreeMap<String, String>,
    /// The checksums of the whole, where the service keeps any.
    pub checksums: Vec<Checksum>,
    /// Whether the service's checksum is one of the parts' checksums.
    pub composite_checksum: bool,
}

/// The header of each kind of checksum that objects carry.
pub(super) const CHECKSUM_HEADERS: [(ChecksumKind, &str); 5] = [
    (ChecksumKind::Crc64Nvme, "x-amz-checksum-crc64nvme"),
    (ChecksumKind::Crc32c, "x-amz-checksum-crc32c"),
    (ChecksumKind::Crc32, "x-amz-checksum-crc32"),
    (ChecksumKind::Sha256, "x-amz-checksum-sha256"),
    (ChecksumKind::Sha1, "x-amz-checksum-sha1"),
];

impl ObjectInfo {
    pub(crate) fn from_answer(answer: &Answer) -> Result<Self, ClientError> {
        let size = match content_range(answer)? {
            Some((_, total)) => total,
            None => content_length(answer)?,
        };
        let text = |name| answer.text(name).map(ToOwned::to_owned);
        let mut info = Self {
            size,
            etag: text("etag"),
            version: text("x-amz-version-id"),
            last_modified: answer.text("last-modified").and_then(http_time),
            content_type: text("content-type"),
            ..Self::default()
        };
        for (name, value) in answer.headers() {
            let Ok(value) = std::str::from_utf8(value.as_bytes()) else { continue };
            if let Some(name) = name.as_str().strip_prefix("x-amz-meta-") {
                info.metadata.insert(name.to_owned(), value.to_owned());
            } else if matches!(
                name.as_str(),
                "cache-control" | "content-disposition" | "content-encoding" | "content-language"
            ) {
                info.headers.insert(name.as_str().to_owned(), value.to_owned());
            }
        }
        let composite = answer.text("x-amz-checksum-type") == Some("COMPOSITE");
        for (kind, name) in CHECKSUM_HEADERS {
            let Some(text) = answer.text(name) else { continue };
            // Without a type, a composite shows by its count of parts: `value-3`.
            match Checksum::from_base64(kind, text) {
                Some(value) if !composite => info.checksums.push(value),
                _ => info.composite_checksum = true,
            }
        }
        Ok(info)
    }

    /// The checksum that is cheapest to verify; the kinds are in that order.
    pub(super) fn checksum(&self) -> Result<Checksum, Unverified> {
        self.checksums.first().copied().ok_or(match self.composite_checksum {
            true => Unverified::Composite,
            false => Unverified::NoneStored,
        })
    }
}

/// The range that a 206 answer holds, and the object's size; `None` for a whole object.
pub(super) fn content_range(answer: &Answer) -> Result<Option<(ByteRange, u64)>, ClientError> {
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        return Ok(None);
    }
    let text = answer.text("content-range").ok_or_else(|| malformed("no content-range"))?;
    parse_content_range(text).map(Some).ok_or_else(|| malformed("a strange content-range"))
}

fn malformed(what: &'static str) -> ClientError {
    Malformed::new(what).into()
}

fn parse_content_range(text: &str) -> Option<(ByteRange, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total: u64 = total.parse().ok()?;
    let length = last.checked_sub(first)?.checked_add(1)?;
    let range = ByteRange::new(first, length)?;
    (range.end() <= total).then_some((range, total))
}

/// The length of what was asked for. S3 always says it: it is the body's, unless the bytes moved
/// past HTTP.
pub(super) fn content_length(answer: &Answer) -> Result<u64, ClientError> {
    if let Reply::Moved(moved) = Reply::of(answer.status(), answer.headers()) {
        return Ok(moved.bytes);
    }
    let text = answer.text("content-length").ok_or_else(|| malformed("no content-length"))?;
    text.parse().map_err(|e| Malformed::because("a strange content-length", e).into())
}

/// A time of HTTP's headers: `Fri, 20 Nov 2026 15:44:04 GMT`.
fn http_time(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::parse(text).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        let range = |offset, length| ByteRange::new(offset, length).expect("fits");
        assert_eq!(parse_content_range("bytes 0-4/5"), Some((range(0, 5), 5)));
        assert_eq!(parse_content_range("bytes 2-2/9"), Some((range(2, 1), 9)));
        for strange in [
            "",
            "bytes */5",
            "bytes 3-2/9",
            "bytes 0-9/5",
            "items 0-4/5",
            "bytes 0-18446744073709551615/5",
        ] {
            assert_eq!(parse_content_range(strange), None, "{strange}");
        }
    }

    #[test]
    fn http_times() {
        let time = http_time("Fri, 20 Nov 2026 15:44:04 GMT");
        assert_eq!(time, "2026-11-20T15:44:04Z".parse().ok());
        assert_eq!(http_time("yesterday"), None);
    }
}
