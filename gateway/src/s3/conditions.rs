//! Conditional requests: which object a read or a write will accept.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use keyway_meta::catalog::WriteCondition;
use keyway_meta::{Object, UnixMs};
use s3s::S3ErrorCode;
use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};

use super::errors::{Failure, Validators};

/// The four conditions of a read, or of a copy's source.
#[derive(Debug, Default)]
pub(super) struct ReadConditions {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
    pub(super) if_modified_since: Option<Timestamp>,
    pub(super) if_unmodified_since: Option<Timestamp>,
}

/// How the conditions met the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    NotModified,
    Failed,
}

impl ReadConditions {
    /// Whether a read may go on.
    ///
    /// # Errors
    /// `PreconditionFailed` (412), or `NotModified` (304) with the object's validators.
    pub(super) fn check_read(&self, object: &Object) -> Result<(), Failure> {
        match self.verdict(object) {
            Verdict::Holds => Ok(()),
            Verdict::Failed => Err(Failure::code(S3ErrorCode::PreconditionFailed)),
            Verdict::NotModified => Err(Failure::NotModified(Validators {
                etag: quoted(&object.etag),
                modified: http_date(object.modified),
            })),
        }
    }

    /// Whether a copy may go on: a copy knows no 304.
    ///
    /// # Errors
    /// `PreconditionFailed` (412).
    pub(super) fn check_copy(&self, source: &Object) -> Result<(), Failure> {
        match self.verdict(source) {
            Verdict::Holds => Ok(()),
            _ => Err(Failure::code(S3ErrorCode::PreconditionFailed)),
        }
    }

    /// The precedence of RFC 9110, section 13.2.2: an entity tag overrules its date.
    fn verdict(&self, object: &Object) -> Verdict {
        let modified = whole_seconds(object.modified);
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !names(condition, &object.etag) => return Verdict::Failed,
            (None, Some(since)) if modified > *since => return Verdict::Failed,
            _ => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) if names(condition, &object.etag) => Verdict::NotModified,
            (None, Some(since)) if modified <= *since => Verdict::NotModified,
            _ => Verdict::Holds,
        }
    }
}

/// What a write asks of the object that it replaces.
///
/// # Errors
/// `NotImplemented` for what S3 does not know either: `If-None-Match` with an ETag, and both
/// headers together.
pub(super) fn write_condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> Result<WriteCondition, Failure> {
    match (if_match, if_none_match) {
        (None, None) => Ok(WriteCondition::None),
        (None, Some(ETagCondition::Any)) => Ok(WriteCondition::Absent),
        (Some(ETagCondition::Any), None) => Ok(WriteCondition::EtagIs("*".to_owned())),
        (Some(ETagCondition::ETag(etag)), None) => {
            Ok(WriteCondition::EtagIs(etag.value().to_owned()))
        }
        _ => Err(Failure::not_implemented(
            "A header you provided implies functionality that is not implemented: a write is \
             conditional on If-Match, or on If-None-Match: *.",
        )),
    }
}

/// Whether the condition names this ETag, alone or in a list.
fn names(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        // A list `"a", "b"` arrives as one value with the outer quotes taken off.
        ETagCondition::ETag(given) => given.value().split(',').any(|one| {
            let one = one.trim();
            one.strip_prefix("W/").unwrap_or(one).trim_matches('"') == etag
        }),
    }
}

/// The ETag in quotes, as the header has it.
pub(super) fn quoted(etag: &str) -> HeaderValue {
    // Our ETags are hexadecimal digits and dashes.
    ETag::Strong(etag.to_owned())
        .to_http_header()
        .unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// A time as XML has it.
pub(super) fn timestamp(at: UnixMs) -> Timestamp {
    Timestamp::from(system_time(Duration::from_millis(at.0)))
}

/// A time that a client gave; `None` before 1970.
pub(super) fn unix_ms(given: &Timestamp) -> Option<UnixMs> {
    let mut text = Vec::with_capacity(24);
    given.format(TimestampFormat::EpochSeconds, &mut text).ok()?;
    let seconds: f64 = std::str::from_utf8(&text).ok()?.parse().ok()?;
    let ms = (seconds * 1000.0).round();
    // Later than the year 9999 is as good as it.
    (ms >= 0.0).then(|| UnixMs(ms.min(253_402_300_799_000.0) as u64))
}

/// A time as HTTP has it: whole seconds.
fn whole_seconds(at: UnixMs) -> Timestamp {
    Timestamp::from(system_time(Duration::from_secs(at.0 / 1000)))
}

fn system_time(since: Duration) -> SystemTime {
    // The year 9999 is the last that the formats know.
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    UNIX_EPOCH + since.min(LAST)
}

/// A time as XML has it, for a header.
pub(super) fn date_time(at: UnixMs) -> String {
    let mut text = Vec::with_capacity(24);
    match timestamp(at).format(TimestampFormat::DateTime, &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}

pub(super) fn http_date(at: UnixMs) -> HeaderValue {
    let mut text = Vec::with_capacity(29);
    match whole_seconds(at).format(TimestampFormat::HttpDate, &mut text) {
        Ok(()) => HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("")),
        Err(_) => HeaderValue::from_static(""),
    }
}

#[cfg(test)]
mod tests {
    use keyway_meta::ObjectHeaders;
    use keyway_proto::VersionId;

    use super::*;

    const MODIFIED_S: u64 = 1_700_000_000;

    fn object() -> Object {
        Object {
            durability: keyway_proto::Durability::Disk,
            stored_by: None,
            version: VersionId::new(0, [0; 10]),
            named: false,
            size: 3,
            modified: UnixMs(MODIFIED_S * 1000 + 700),
            etag: "abc".to_owned(),
            checksum: None,
            headers: ObjectHeaders::default(),
            parts: Vec::new(),
            extents: Vec::new(),
        }
    }

    fn etag(text: &str) -> Option<ETagCondition> {
        Some(text.parse().expect("an entity tag"))
    }

    fn date(offset_s: i64) -> Option<Timestamp> {
        let seconds = MODIFIED_S.checked_add_signed(offset_s).expect("in range");
        Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    /// Goal: S3's table of combinations. Method: every pair that its manual spells out.
    #[test]
    fn precedence() {
        let none = ReadConditions::default;
        for (conditions, expected) in [
            (none(), Verdict::Holds),
            (ReadConditions { if_match: etag("\"abc\""), ..none() }, Verdict::Holds),
            (ReadConditions { if_match: etag("*"), ..none() }, Verdict::Holds),
            (ReadConditions { if_match: etag("abc"), ..none() }, Verdict::Holds),
            (ReadConditions { if_match: etag("\"x\", \"abc\""), ..none() }, Verdict::Holds),
            (ReadConditions { if_match: etag("\"x\""), ..none() }, Verdict::Failed),
            (ReadConditions { if_none_match: etag("\"abc\""), ..none() }, Verdict::NotModified),
            (ReadConditions { if_none_match: etag("*"), ..none() }, Verdict::NotModified),
            (ReadConditions { if_none_match: etag("W/\"abc\""), ..none() }, Verdict::NotModified),
            (ReadConditions { if_none_match: etag("\"x\""), ..none() }, Verdict::Holds),
            (ReadConditions { if_modified_since: date(0), ..none() }, Verdict::NotModified),
            (ReadConditions { if_modified_since: date(-1), ..none() }, Verdict::Holds),
            (ReadConditions { if_unmodified_since: date(0), ..none() }, Verdict::Holds),
            (ReadConditions { if_unmodified_since: date(-1), ..none() }, Verdict::Failed),
            (
                ReadConditions {
                    if_match: etag("\"abc\""),
                    if_unmodified_since: date(-1),
                    ..none()
                },
                Verdict::Holds,
            ),
            (
                ReadConditions {
                    if_none_match: etag("\"abc\""),
                    if_modified_since: date(-1),
                    ..none()
                },
                Verdict::NotModified,
            ),
            (
                ReadConditions {
                    if_none_match: etag("\"x\""),
                    if_modified_since: date(0),
                    ..none()
                },
                Verdict::Holds,
            ),
            (
                ReadConditions {
                    if_match: etag("\"x\""),
                    if_none_match: etag("\"abc\""),
                    ..none()
                },
                Verdict::Failed,
            ),
        ] {
            assert_eq!(conditions.verdict(&object()), expected, "{conditions:?}");
        }
    }

    #[test]
    fn writes_know_two_conditions() {
        let any = ETagCondition::Any;
        let one = etag("\"abc\"").expect("given");
        assert_eq!(write_condition(None, Some(&any)).ok(), Some(WriteCondition::Absent));
        assert_eq!(
            write_condition(Some(&one), None).ok(),
            Some(WriteCondition::EtagIs("abc".to_owned()))
        );
        assert!(write_condition(None, Some(&one)).is_err());
        assert!(write_condition(Some(&one), Some(&any)).is_err());
    }
}
