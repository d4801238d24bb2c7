//! URLs that carry their own permission for a while.

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Method, Uri};
use jiff::Timestamp;
use keyway_auth::sigv4::SignError;

use crate::error::ClientError;
use crate::http::{Client, Query};

impl Client {
    /// A URL whose holder may read the object.
    pub fn presign_get(&self, bucket: &str, key: &str) -> Presign {
        self.presign(Method::GET, bucket, key)
    }

    /// A URL whose holder may write the object.
    pub fn presign_put(&self, bucket: &str, key: &str) -> Presign {
        self.presign(Method::PUT, bucket, key)
    }

    fn presign(&self, method: Method, bucket: &str, key: &str) -> Presign {
        Presign {
            client: self.clone(),
            method,
            bucket: bucket.into(),
            key: key.into(),
            headers: HeaderMap::new(),
        }
    }
}

/// A URL in the making.
#[derive(Debug)]
#[must_use = "nothing is made before `expires_in`"]
pub struct Presign {
    client: Client,
    method: Method,
    bucket: Arc<str>,
    key: Arc<str>,
    headers: HeaderMap,
}

impl Presign {
    /// Binds the holder to send this content type.
    ///
    /// # Errors
    /// When the value cannot stand in a header.
    pub fn content_type(mut self, content_type: &str) -> Result<Self, ClientError> {
        let value = HeaderValue::from_str(content_type).map_err(::http::Error::from)?;
        self.headers.insert("content-type", value);
        Ok(self)
    }

    /// The URL, good from now for this long; 7 days at most.
    ///
    /// # Errors
    /// [`ClientError::Sign`] for another life, or a client without credentials.
    pub fn expires_in(self, life: Duration) -> Result<Uri, ClientError> {
        let signer = self.client.signer().ok_or(SignError::NoCredentials)?;
        let target = self.client.address().target(Some(&self.bucket), Some(&self.key))?;
        let uri = target.absolute(&Query::default())?;
        Ok(signer.presign(&self.method, &uri, &self.headers, life, Timestamp::now())?)
    }
}
