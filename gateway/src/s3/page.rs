//! Pages of listings: their tokens, limits and encodings.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use keyway_proto::{Checksum, ChecksumKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::S3ErrorCode;
use s3s::dto::EncodingType;

use super::errors::Failure;
use super::resolve;

/// Most entries in one page of objects, parts or uploads: S3's own limit.
pub(super) const PAGE_MAX: usize = 1000;
/// The scope of tokens that continue a listing of buckets.
pub(super) const BUCKETS: u64 = u64::MAX;
/// Longest token that is looked at: a key of 1,024 bytes, its check, in base64.
const TOKEN_CHARS_MAX: usize = 2048;
/// Bytes of the check in front of a token's text.
const CHECK_BYTES: usize = 4;

/// A token that continues after `after`, good in one scope (a bucket) alone. It is opaque to
/// clients; its check only tells a damaged or foreign token from ours.
pub(super) fn encode(scope: u64, after: &str) -> String {
    let mut bytes = check(scope, after.as_bytes()).to_vec();
    bytes.extend_from_slice(after.as_bytes());
    BASE64URL.encode(bytes)
}

/// The text in a token.
///
/// # Errors
/// `InvalidArgument` for what [`encode`] did not make for this scope.
pub(super) fn decode(scope: u64, token: &str) -> Result<String, Failure> {
    let invalid = || {
        Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "The continuation token provided is incorrect",
        )
    };
    if token.len() > TOKEN_CHARS_MAX {
        return Err(invalid());
    }
    let bytes = BASE64URL.decode(token).map_err(|_| invalid())?;
    let (given, text) = bytes.split_at_checked(CHECK_BYTES).ok_or_else(invalid)?;
    if given != check(scope, text) {
        return Err(invalid());
    }
    String::from_utf8(text.to_vec()).map_err(|_| invalid())
}

fn check(scope: u64, text: &[u8]) -> [u8; CHECK_BYTES] {
    let bytes = [&scope.to_be_bytes(), text].concat();
    let checksum = Checksum::of(ChecksumKind::Crc32c, &bytes);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(checksum.value());
    check
}

/// The page size that `max-keys` and its like ask for: never more than [`PAGE_MAX`].
///
/// # Errors
/// `InvalidArgument` for a negative number.
pub(super) fn limit(name: &'static str, max: Option<i32>) -> Result<usize, Failure> {
    let Some(max) = max else { return Ok(PAGE_MAX) };
    usize::try_from(max).map(|max| max.min(PAGE_MAX)).map_err(|_| out_of_bounds(name))
}

/// A limit that S3 refuses.
pub(super) fn out_of_bounds(name: &'static str) -> Failure {
    Failure::refuse(
        S3ErrorCode::InvalidArgument,
        format!("Argument {name} must be an integer within its bounds"),
    )
}

/// The page size as an answer tells it.
pub(super) fn told(limit: usize) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

/// How keys are written in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// As they are.
    Plain,
    /// Percent-encoded.
    Url,
}

/// What stays as it is under [`Encoding::Url`]. A space becomes `%20`, which every decoder of
/// `+` understands too.
const KEPT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'*').remove(b'/');

impl Encoding {
    /// The encoding that `encoding-type` asks for.
    ///
    /// # Errors
    /// `InvalidArgument` for any but `url`.
    pub(super) fn parse(given: Option<&EncodingType>) -> Result<Self, Failure> {
        match given.map(EncodingType::as_str) {
            None | Some("") => Ok(Self::Plain),
            Some(url) if url.eq_ignore_ascii_case("url") => Ok(Self::Url),
            Some(_) => Err(Failure::refuse(
                S3ErrorCode::InvalidArgument,
                "Invalid Encoding Method specified in Request",
            )),
        }
    }

    /// Refuses parameters that the answer is to repeat and, written so, has no form for. As no
    /// key can have such characters either, nobody misses what they would have found.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check(self, repeated: &[Option<&str>]) -> Result<(), Failure> {
        if self == Self::Plain && !repeated.iter().flatten().all(|text| resolve::is_nameable(text))
        {
            return Err(Failure::refuse(
                S3ErrorCode::InvalidArgument,
                "Control characters can be listed by with encoding-type=url alone.",
            ));
        }
        Ok(())
    }

    /// A key, prefix, delimiter or marker as the answer writes it.
    pub(super) fn text(self, raw: &str) -> String {
        match self {
            Self::Plain => raw.to_owned(),
            Self::Url => utf8_percent_encode(raw, KEPT).to_string(),
        }
    }

    /// The encoding's name in the answer.
    pub(super) fn name(self) -> Option<EncodingType> {
        (self == Self::Url).then(|| EncodingType::from_static(EncodingType::URL))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_round_trip_in_their_scope_alone(scope: u64, after: String) {
            let after: String = after.chars().take(256).collect();
            let token = encode(scope, &after);
            prop_assert_eq!(decode(scope, &token).ok(), Some(after));
            prop_assert!(decode(scope ^ 1, &token).is_err());
        }

        #[test]
        fn foreign_tokens_are_refused(token: String) {
            prop_assert!(decode(7, &token).is_err());
        }
    }

    #[test]
    fn encodings() {
        assert_eq!(Encoding::Url.text("a b/é+%.txt"), "a%20b/%C3%A9%2B%25.txt");
        assert_eq!(Encoding::Plain.text("a b"), "a b");
        assert!(Encoding::parse(Some(&EncodingType::from("hex".to_owned()))).is_err());
    }

    #[test]
    fn limits() {
        assert_eq!(limit("max-keys", None).ok(), Some(1000));
        assert_eq!(limit("max-keys", Some(5000)).ok(), Some(1000));
        assert_eq!(limit("max-keys", Some(0)).ok(), Some(0));
        assert!(limit("max-keys", Some(-1)).is_err());
    }
}
