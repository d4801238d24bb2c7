//! Deletions.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use ::http::Method;
use keyway_proto::{Checksum, ChecksumKind};

use crate::error::ClientError;
use crate::http::{Call, Client, Query};
use crate::xml;

/// Keys deleted by one request: S3's own limit.
const KEYS_PER_REQUEST: usize = 1000;

impl Client {
    /// Deletes an object. Deleting what is not there succeeds.
    pub fn delete_object(&self, bucket: &str, key: &str) -> DeleteObject {
        DeleteObject { client: self.clone(), bucket: bucket.into(), key: key.into(), version: None }
    }

    /// Deletes any number of objects, 1,000 in a request. Gives those that stayed; cancelling
    /// leaves the rest undeleted.
    ///
    /// # Errors
    /// When a whole request failed; the requests before it took effect.
    pub async fn delete_objects<K: AsRef<str>>(
        &self,
        bucket: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<DeleteFailure>, ClientError> {
        let bucket: Arc<str> = bucket.into();
        let mut keys = keys.into_iter().map(|key| key.as_ref().to_owned()).peekable();
        let mut failures = Vec::new();
        while keys.peek().is_some() {
            let batch: Vec<String> = keys.by_ref().take(KEYS_PER_REQUEST).collect();
            failures.extend(self.delete_batch(&bucket, batch).await?);
        }
        Ok(failures)
    }

    async fn delete_batch(
        &self,
        bucket: &Arc<str>,
        keys: Vec<String>,
    ) -> Result<Vec<DeleteFailure>, ClientError> {
        let objects = keys.into_iter().map(|key| xml::DeleteEntry { key }).collect();
        let mut call = Call::bucket(Method::POST, bucket);
        call.query = Query::flag("delete");
        let body = xml::write(&xml::Delete { quiet: true, objects })?;
        // S3 wants a digest of this body; MD5 is the one that every service knows.
        let md5 = Checksum::of(ChecksumKind::Md5, &body);
        call.body = body.into();
        call.header("content-md5", &md5.to_base64())?;
        call.header("content-type", "application/xml")?;
        let (document, _) = self.document(&call).await?;
        let result: xml::DeleteResult = xml::parse(&document)?;
        let failure = |entry: xml::DeleteErrorEntry| DeleteFailure {
            key: entry.key,
            code: entry.code,
            message: entry.message,
        };
        Ok(result.errors.into_iter().map(failure).collect())
    }
}

/// An object that was to be deleted and stayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteFailure {
    /// Its key.
    pub key: String,
    /// S3's error code.
    pub code: String,
    /// The service's explanation.
    pub message: String,
}

/// A deletion; await it.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct DeleteObject {
    client: Client,
    bucket: Arc<str>,
    key: Arc<str>,
    version: Option<String>,
}

impl DeleteObject {
    /// Deletes this version, for good.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }
}

impl IntoFuture for DeleteObject {
    type Output = Result<(), ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut call = Call::object(Method::DELETE, &self.bucket, &self.key);
            if let Some(version) = &self.version {
                call.query = Query::default().with("versionId", version);
            }
            self.client.call(&call).await.map(drop)
        })
    }
}
