//! Who a request says it is from, for the audit log, where that turns out to be wrong.

use http::{Request, Response};
use s3s::Body;

use super::service::RequestId;
use super::signed;
use crate::audit::{self, Audit, Event};
use crate::server::RequestInfo;

/// S3's words for whoever is not who they say.
const CODES: [&str; 7] = [
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];
/// Longest access key that is told, of a request that may name any text.
const ACCESS_KEY_CHARS_MAX: usize = 128;

/// What is kept of a request until it is answered.
pub(super) struct Claim {
    access_key: Option<String>,
    request: audit::Request,
}

impl Claim {
    pub(super) fn of(request: &Request<Body>, id: &RequestId) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let access_key = signed::access_key(request.headers(), query);
        let access_key =
            access_key.map(|key| key.chars().take(ACCESS_KEY_CHARS_MAX).collect::<String>());
        let remote = request.extensions().get::<RequestInfo>();
        let remote = remote.map(|info| info.remote().to_string());
        let request_id = Some(id.to_string());
        Self { access_key, request: audit::Request { request_id, remote } }
    }

    /// Tells of an answer that says that the claim is wrong.
    pub(super) fn judge(self, response: &Response<Body>, audit: &Audit) {
        let Some(xml) = response.body().bytes() else { return };
        let text = String::from_utf8_lossy(&xml);
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        let Some((code, _)) = code.filter(|(code, _)| CODES.contains(code)) else { return };
        let (code, access_key) = (code.to_owned(), self.access_key);
        audit.tell(Event::NotAuthenticated { code, access_key, request: self.request });
    }
}
