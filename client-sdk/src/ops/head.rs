//! What an object is, without its bytes.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use ::http::Method;

use crate::error::ClientError;
use crate::http::{Call, Client, Query};
use crate::transfer::ObjectInfo;

impl Client {
    /// Asks what an object is, checksum included.
    pub fn head_object(&self, bucket: &str, key: &str) -> HeadObject {
        HeadObject {
            client: self.clone(),
            bucket: bucket.into(),
            key: key.into(),
            version: None,
            if_match: None,
        }
    }
}

/// A question about an object; await it.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct HeadObject {
    client: Client,
    bucket: Arc<str>,
    key: Arc<str>,
    version: Option<String>,
    if_match: Option<String>,
}

impl HeadObject {
    /// Asks about this version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Fails with status 412 unless the object has this ETag.
    pub fn if_match(mut self, etag: impl Into<String>) -> Self {
        self.if_match = Some(etag.into());
        self
    }

    async fn send(self) -> Result<ObjectInfo, ClientError> {
        let mut call = Call::object(Method::HEAD, &self.bucket, &self.key);
        call.header("x-amz-checksum-mode", "ENABLED")?;
        if let Some(version) = &self.version {
            call.query = Query::default().with("versionId", version);
        }
        if let Some(etag) = &self.if_match {
            call.header("if-match", etag)?;
        }
        let (answer, _) = self.client.call(&call).await?;
        ObjectInfo::from_answer(&answer)
    }
}

impl IntoFuture for HeadObject {
    type Output = Result<ObjectInfo, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
