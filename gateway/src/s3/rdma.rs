//! Requests that carry an RDMA token, while this server moves bytes over HTTP alone.
//!
//! A read is declined and answered with the body; a write is declined before anything is
//! stored, for its body is elsewhere and an empty object is not what the client meant.

use http::{HeaderMap, HeaderName, HeaderValue};
use keyway_proto::RdmaToken;
use s3s::S3ErrorCode;

use super::errors::Failure;

/// The token's header.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("x-amz-rdma-token");
/// The header that tells how a token was met.
pub(super) const REPLY: HeaderName = HeaderName::from_static("x-amz-rdma-reply");
/// Declined: the bytes travel over HTTP.
pub(super) const DECLINED: HeaderValue = HeaderValue::from_static("501");

/// The header to add to a GET's answer, when the request carries a token.
///
/// # Errors
/// `InvalidRDMAToken` for a malformed one.
pub(super) fn declined_get(
    headers: &HeaderMap,
) -> Result<Option<(HeaderName, HeaderValue)>, Failure> {
    Ok(token(headers)?.map(|_| (REPLY, DECLINED)))
}

/// Refuses a write that carries a token.
///
/// # Errors
/// `RDMANotSupported`, or `InvalidRDMAToken` for a malformed token.
pub(super) fn decline_put(headers: &HeaderMap) -> Result<(), Failure> {
    match token(headers)? {
        None => Ok(()),
        Some(_) => Err(Failure::RdmaDeclined),
    }
}

fn token(headers: &HeaderMap) -> Result<Option<RdmaToken>, Failure> {
    let mut values = headers.get_all(TOKEN).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    match (parsed, values.next()) {
        (Some(token), None) => Ok(Some(token)),
        _ => Err(Failure::refuse(
            S3ErrorCode::Custom("InvalidRDMAToken".into()),
            "The RDMA token is malformed.",
        )),
    }
}
