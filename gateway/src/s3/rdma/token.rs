//! The header `x-amz-rdma-token`.
//!
//! That it is signed is the protocol layer's to see to, as for every `x-amz-*` header.

use http::{HeaderMap, HeaderName};
use keyway_proto::{RdmaToken, SessionToken};
use s3s::S3ErrorCode;

use crate::s3::errors::Failure;

/// The token's header.
pub(in crate::s3) const TOKEN: HeaderName = HeaderName::from_static("x-amz-rdma-token");

/// A well-formed token.
pub(super) enum Token {
    /// Of a session with a node.
    Session(SessionToken),
    /// Of a dynamically connected target: served where an adapter of the node's reaches it.
    Dynamic(RdmaToken),
}

/// The request's token, if it carries one.
///
/// # Errors
/// `InvalidRDMAToken` for a malformed one, or several. The answer does not repeat it.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<Token>, Failure> {
    let mut values = headers.get_all(TOKEN).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(parse);
    match (parsed, values.next()) {
        (Some(token), None) => Ok(Some(token)),
        _ => Err(Failure::refuse(
            S3ErrorCode::Custom("InvalidRDMAToken".into()),
            "The RDMA token is malformed.",
        )),
    }
}

fn parse(text: &str) -> Option<Token> {
    if SessionToken::is_meant(text) {
        return text.parse().ok().map(Token::Session);
    }
    text.parse().ok().map(Token::Dynamic)
}
