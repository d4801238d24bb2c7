//! A request's query, decoded as the protocol layer decodes it.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use s3s::S3ErrorCode;

use crate::s3::errors::Failure;

/// The value of a parameter; empty where it has none.
///
/// # Errors
/// `InvalidArgument` for a parameter that is there twice, or is not UTF-8: two readers must not
/// take two values for it.
pub(super) fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, Failure> {
    let mut found = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if decoded(key).as_deref() != Some(name) {
            continue;
        }
        let value = decoded(value).ok_or_else(|| odd(name))?;
        if found.replace(value).is_some() {
            return Err(odd(name));
        }
    }
    Ok(found)
}

fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Some(Cow::Owned(percent_decode_str(&spaced).decode_utf8().ok()?.into_owned()));
    }
    percent_decode_str(text).decode_utf8().ok()
}

fn odd(name: &str) -> Failure {
    let message = format!("The parameter {name} must be there once, in UTF-8.");
    Failure::refuse(S3ErrorCode::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_however_they_are_written() {
        let get = |query: &'static str| {
            parameter(query, "prefix").map(|found| found.map(Cow::into_owned)).map_err(drop)
        };
        let found = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(get("list-type=2&prefix=a%2Fb+c%2B"), found("a/b c+"));
        assert_eq!(get("%70refix=x"), found("x"));
        assert_eq!(get("prefix"), found(""));
        assert_eq!(get("xprefix=a&PREFIX=b"), Ok(None));
        assert_eq!(get("prefix=a&prefix=a"), Err(()));
        assert_eq!(get("prefix=a&%70refix=b"), Err(()));
        assert_eq!(get("prefix=%ff"), Err(()));
    }
}
