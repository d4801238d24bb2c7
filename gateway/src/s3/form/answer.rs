//! The answer that a form asks for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HOST, LOCATION};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, Uri};
use percent_encoding::utf8_percent_encode;
use s3s::Body;

use super::PATH;
use crate::s3::sts::escaped;
use crate::server::RequestInfo;

/// What is told of an object that was stored.
pub(in crate::s3) struct Answer {
    bucket: String,
    key: String,
    location: String,
    status: StatusCode,
    redirect: Option<Uri>,
}

impl Answer {
    pub(super) fn of(
        fields: &BTreeMap<String, String>,
        bucket: &str,
        key: &str,
        head: &Parts,
    ) -> Self {
        let status = match fields.get("success_action_status").map(String::as_str) {
            Some("200") => StatusCode::OK,
            Some("201") => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        };
        let redirect = fields.get("success_action_redirect").or_else(|| fields.get("redirect"));
        // What is no address of a page is passed over, as on S3.
        let redirect = redirect.and_then(|text| text.parse::<Uri>().ok()).filter(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()
        });
        let host = head.headers.get(HOST).and_then(|value| value.to_str().ok());
        let host = host.or_else(|| head.uri.authority().map(|a| a.as_str())).unwrap_or_default();
        let info = head.extensions.get::<RequestInfo>();
        let secure = info.is_some_and(|info| info.tls().is_some());
        let scheme = if secure { "https" } else { "http" };
        let path = utf8_percent_encode(key, PATH);
        let by_host = head.uri.path() == "/";
        let location = match by_host {
            true => format!("{scheme}://{host}/{path}"),
            false => format!("{scheme}://{host}/{bucket}/{path}"),
        };
        Self { bucket: bucket.to_owned(), key: key.to_owned(), location, status, redirect }
    }

    /// Puts this in the place of a PUT's answer; refusals pass as they are.
    pub(in crate::s3) fn tell(self, mut response: Response<Body>) -> Response<Body> {
        if response.status() != StatusCode::OK {
            return response;
        }
        let etag = response.headers().get(ETAG).and_then(|value| value.to_str().ok());
        let etag = etag.unwrap_or_default().to_owned();
        let (status, location, body) = match &self.redirect {
            Some(page) => (StatusCode::SEE_OTHER, self.redirected(page, &etag), Body::empty()),
            None if self.status == StatusCode::CREATED => {
                (self.status, self.location.clone(), Body::from(self.document(&etag)))
            }
            None => (self.status, self.location.clone(), Body::empty()),
        };
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH);
        if self.redirect.is_none() && self.status == StatusCode::CREATED {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        }
        if let Ok(location) = HeaderValue::try_from(location) {
            headers.insert(LOCATION, location);
        }
        *response.status_mut() = status;
        *response.body_mut() = body;
        response
    }

    fn redirected(&self, page: &Uri, etag: &str) -> String {
        let encoded =
            |text: &str| utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let page = page.to_string();
        let joint = if page.contains('?') { '&' } else { '?' };
        let (bucket, key, etag) = (encoded(&self.bucket), encoded(&self.key), encoded(etag));
        format!("{page}{joint}bucket={bucket}&key={key}&etag={etag}")
    }

    fn document(&self, etag: &str) -> String {
        let text = |text: &str| -> String { Cow::into_owned(escaped(text)) };
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<PostResponse><Location>{}</Location>\
             <Bucket>{}</Bucket><Key>{}</Key><ETag>{}</ETag></PostResponse>",
            text(&self.location),
            text(&self.bucket),
            text(&self.key),
            text(etag),
        )
    }
}
