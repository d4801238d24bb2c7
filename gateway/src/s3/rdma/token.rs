//! The headers `x-amz-rdma-token` and `x-amz-rdma-agent`.
//!
//! That they are signed is the protocol layer's to see to, as for every `x-amz-*` header.

use http::{HeaderMap, HeaderName};
use keyway_proto::{RdmaToken, SessionToken};
use s3s::S3ErrorCode;

use crate::s3::errors::Failure;

/// The token's header.
pub(in crate::s3) const TOKEN: HeaderName = HeaderName::from_static("x-amz-rdma-token");

/// The header that names the kind of token. Clients may leave it out.
const AGENT: HeaderName = HeaderName::from_static("x-amz-rdma-agent");

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
/// `InvalidRDMAToken` for a malformed one, several, or one that is not its agent's. The answer does
/// not repeat it.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<Token>, Failure> {
    let mut values = headers.get_all(TOKEN).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(parse);
    match (parsed, values.next()) {
        (Some(token), None) if token.is_of_agent(headers) => Ok(Some(token)),
        _ => Err(Failure::refuse(
            S3ErrorCode::Custom("InvalidRDMAToken".into()),
            "The RDMA token is malformed.",
        )),
    }
}

impl Token {
    const fn agent(&self) -> &'static str {
        match self {
            Self::Session(_) => "keyway",
            Self::Dynamic(_) => "cuobj",
        }
    }

    /// Whether the request names its agent, or none. Another one's token may have this form and
    /// mean something else.
    fn is_of_agent(&self, headers: &HeaderMap) -> bool {
        headers.get_all(AGENT).into_iter().all(|agent| agent == self.agent())
    }
}

fn parse(text: &str) -> Option<Token> {
    if SessionToken::is_meant(text) {
        return text.parse().ok().map(Token::Session);
    }
    text.parse().ok().map(Token::Dynamic)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const OF_SESSION: &str = "kw1:0000000100000001:0000000000001000:00001000:00000001";
    const DYNAMIC: &str =
        "0000000000001000:00001000:00000001:0001:000011:1:fe800000000000000000000000000001";

    fn is_taken(text: &'static str, agents: &[&'static str]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(TOKEN, HeaderValue::from_static(text));
        for agent in agents {
            headers.append(AGENT, HeaderValue::from_static(agent));
        }
        token(&headers).is_ok_and(|token| token.is_some())
    }

    #[test]
    fn a_token_is_its_agents() {
        for (text, agent, another) in
            [(OF_SESSION, "keyway", "cuobj"), (DYNAMIC, "cuobj", "keyway")]
        {
            assert!(is_taken(text, &[]) && is_taken(text, &[agent]), "{agent}");
            for wrong in [&[another][..], &["unheard-of"], &[""], &[agent, another]] {
                assert!(!is_taken(text, wrong), "{agent} {wrong:?}");
            }
        }
    }

    #[test]
    fn an_agent_without_a_token_says_nothing() {
        let mut headers = HeaderMap::new();
        headers.insert(AGENT, HeaderValue::from_static("unheard-of"));
        assert!(matches!(token(&headers), Ok(None)));
    }
}
