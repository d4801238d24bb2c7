//! What of a request enters its canonical form.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{self, HeaderName};
use percent_encoding::percent_decode_str;

use super::SignError;

/// Header names and values to be signed, in canonical order.
pub(super) type SignedHeaders<'a> = Vec<(&'a str, &'a str)>;

/// Picks the headers that change a request's meaning: `host`, every `x-amz-*` and
/// `x-keyway-*`, content type and digest, range and conditions. The rest may be rewritten on
/// the way by honest proxies, and stays out.
pub(super) fn signed_headers(headers: &HeaderMap) -> Result<SignedHeaders<'_>, SignError> {
    let mut signed = Vec::with_capacity(headers.len());
    for (name, value) in headers.iter().filter(|(name, _)| enters(name)) {
        let value = std::str::from_utf8(value.as_bytes())
            .map_err(|_| SignError::HeaderNotText(name.clone()))?;
        signed.push((name.as_str(), value));
    }
    // Stable: several values of one name keep their order.
    signed.sort_by_key(|(name, _)| *name);
    Ok(signed)
}

/// The list of names that goes beside the signature.
pub(super) fn names(headers: &SignedHeaders<'_>) -> String {
    let mut list = String::with_capacity(128);
    let mut last = "";
    for (name, _) in headers {
        if *name != last {
            if !list.is_empty() {
                list.push(';');
            }
            list.push_str(name);
            last = name;
        }
    }
    list
}

/// A query string's pairs, decoded: the canonical form encodes them in its own way.
pub(super) fn query_pairs(query: Option<&str>) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy();
    query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

/// The path as it travels. The signature covers exactly these bytes, so whoever builds the
/// URI decides how the key is encoded, once.
pub(super) fn path(uri: &http::Uri) -> &str {
    match uri.path() {
        "" => "/",
        path => path,
    }
}

/// What the `Host` header of a request to `uri` says: no port where it is the scheme's own.
pub(super) fn host(uri: &http::Uri) -> Option<Cow<'_, str>> {
    let authority = uri.authority()?;
    let own_port = match uri.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    Some(match authority.port_u16() {
        Some(port) if port != own_port => Cow::Owned(format!("{}:{port}", authority.host())),
        _ => Cow::Borrowed(authority.host()),
    })
}

fn enters(name: &HeaderName) -> bool {
    const PLAIN: [HeaderName; 9] = [
        header::HOST,
        header::CONTENT_TYPE,
        HeaderName::from_static("content-md5"),
        header::DATE,
        header::RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
    ];
    let name_text = name.as_str();
    name_text.starts_with("x-amz-") || name_text.starts_with("x-keyway-") || PLAIN.contains(name)
}
