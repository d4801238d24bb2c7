//! Calls to the service's administration (docs/openapi.json).

use ::http::Method;
use ::http::header::{CONTENT_TYPE, HeaderValue};
use bytes::Bytes;

use crate::error::ClientError;
use crate::http::{Call, Client};

const PREFIX: &str = "/_keyway/v1/admin/";

/// What is done to what a path of the administration names. All may be repeated.
#[derive(Clone, Debug)]
pub enum Administer {
    /// It is told.
    Get,
    /// It is as this JSON says.
    Put(Vec<u8>),
    /// It is gone.
    Delete,
}

impl Client {
    /// Calls the administration. The path, such as `tenants/acme/users/anna`, stands in the URL
    /// as it is; the answer is JSON, empty after a deletion.
    ///
    /// # Errors
    /// [`ClientError::Service`] with the code of the error's document.
    pub async fn administer(&self, what: Administer, path: &str) -> Result<Bytes, ClientError> {
        let (method, document) = match what {
            Administer::Get => (Method::GET, None),
            Administer::Put(document) => (Method::PUT, Some(document)),
            Administer::Delete => (Method::DELETE, None),
        };
        let mut call = Call::control(method, &format!("{PREFIX}{path}"));
        if let Some(document) = document {
            call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            call.body = Bytes::from(document).into();
        }
        Ok(self.document(&call).await?.0)
    }
}
