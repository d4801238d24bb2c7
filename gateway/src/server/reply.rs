//! Answers that the server gives itself, before or instead of S3's.

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};

/// A refusal in S3's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A handler panicked.
    Internal,
    /// Too many requests under way.
    SlowDown,
    /// The request's body stalled.
    RequestTimeout,
    /// The header section is too large.
    HeaderTooLarge,
}

impl Refusal {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "We encountered an internal error. Please try again.",
            ),
            Self::SlowDown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "SlowDown",
                "Too many requests are under way. Please reduce your request rate.",
            ),
            Self::RequestTimeout => (
                StatusCode::BAD_REQUEST,
                "RequestTimeout",
                "The connection was idle for too long while the body was awaited.",
            ),
            Self::HeaderTooLarge => (
                StatusCode::BAD_REQUEST,
                "RequestHeaderSectionTooLarge",
                "The header section of the request is larger than allowed.",
            ),
        }
    }

    /// The answer. Nothing of it comes from the client, so nothing needs escaping.
    pub(super) fn response(self, request_id: &str) -> Response<Body> {
        let (status, code, message) = self.parts();
        let xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>{message}</Message><RequestId>{request_id}</RequestId></Error>"
        );
        let mut response = Response::new(Body::from(xml));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        if matches!(self, Self::RequestTimeout | Self::HeaderTooLarge) {
            // What is left of the request is not worth reading.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
