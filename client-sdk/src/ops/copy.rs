//! Copies within the service.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use ::http::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::{ClientError, ServiceError};
use crate::http::{Call, Client};
use crate::xml;

const SOURCE: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

impl Client {
    /// Copies an object without its bytes passing through here.
    pub fn copy_object(&self, from: (&str, &str), to: (&str, &str)) -> CopyObject {
        CopyObject {
            client: self.clone(),
            source: format!("/{}/{}", from.0, from.1),
            bucket: to.0.into(),
            key: to.1.into(),
            if_none_match: false,
        }
    }
}

/// A copy; await it for the ETag of what was written.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct CopyObject {
    client: Client,
    source: String,
    bucket: Arc<str>,
    key: Arc<str>,
    if_none_match: bool,
}

impl CopyObject {
    /// Fails with status 412 where the target exists.
    pub fn if_absent(mut self) -> Self {
        self.if_none_match = true;
        self
    }

    async fn send(self) -> Result<Option<String>, ClientError> {
        let mut call = Call::object(Method::PUT, &self.bucket, &self.key);
        let source = utf8_percent_encode(&self.source, SOURCE).to_string();
        call.header("x-amz-copy-source", &source)?;
        if self.if_none_match {
            call.header("if-none-match", "*")?;
        }
        let (document, _) = self.client.document(&call).await?;
        let result: xml::CopyResult = xml::parse(&document)?;
        match result.code {
            None => Ok(result.etag),
            Some(code) => Err(ClientError::Service(Box::new(ServiceError {
                status: StatusCode::OK,
                code,
                message: result.message.unwrap_or_default(),
                request_id: result.request_id,
            }))),
        }
    }
}

impl IntoFuture for CopyObject {
    type Output = Result<Option<String>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
