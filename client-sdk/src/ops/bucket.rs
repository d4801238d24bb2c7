//! Buckets.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use ::http::Method;
use jiff::Timestamp;

use super::document_time;
use crate::error::ClientError;
use crate::http::{Call, Client};
use crate::xml;

impl Client {
    /// Creates a bucket.
    ///
    /// # Errors
    /// `BucketAlreadyOwnedByYou` or `BucketAlreadyExists` where there is one.
    pub async fn create_bucket(&self, bucket: &str) -> Result<(), ClientError> {
        self.document(&Call::bucket(Method::PUT, &bucket.into())).await.map(drop)
    }

    /// Deletes an empty bucket.
    ///
    /// # Errors
    /// `NoSuchBucket`, `BucketNotEmpty`.
    pub async fn delete_bucket(&self, bucket: &str) -> Result<(), ClientError> {
        self.document(&Call::bucket(Method::DELETE, &bucket.into())).await.map(drop)
    }

    /// Succeeds where the bucket exists and may be read.
    ///
    /// # Errors
    /// [`ClientError::is_not_found`] where there is none.
    pub async fn head_bucket(&self, bucket: &str) -> Result<(), ClientError> {
        self.call(&Call::bucket(Method::HEAD, &bucket.into())).await.map(drop)
    }

    /// Lists the caller's buckets.
    pub fn list_buckets(&self) -> ListBuckets {
        ListBuckets { client: self.clone() }
    }
}

/// A listing of buckets; await it.
#[derive(Debug)]
#[must_use = "a request is sent when it is awaited"]
pub struct ListBuckets {
    client: Client,
}

/// A bucket in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBucket {
    /// Its name.
    pub name: String,
    /// When it was created, if the service says so.
    pub created: Option<Timestamp>,
}

impl IntoFuture for ListBuckets {
    type Output = Result<Vec<ListedBucket>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (document, _) = self.client.document(&Call::service(Method::GET)).await?;
            let listing: xml::ListAllMyBucketsResult = xml::parse(&document)?;
            let listed = |entry: xml::BucketEntry| ListedBucket {
                created: document_time(entry.creation_date.as_deref()),
                name: entry.name,
            };
            Ok(listing.buckets.bucket.into_iter().map(listed).collect())
        })
    }
}
