//! Who asks: signatures to principals.
//!
//! The protocol layer verifies signatures, that every `x-amz-*` header is signed, and the
//! clock skew. What is added here: the principal, and the refusal of what it would ignore.

use std::sync::Arc;

use keyway_auth::{CredentialStore, Principal};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::errors::Failure;
use crate::server::RequestInfo;

/// Looks secrets up, for signatures to be verified with.
pub(super) struct Secrets(pub(super) Arc<dyn CredentialStore>);

#[async_trait::async_trait]
impl S3Auth for Secrets {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.find(access_key) {
            Some(credential) => Ok(SecretKey::from(credential.secret.expose())),
            None => Err(S3Error::new(S3ErrorCode::InvalidAccessKeyId)),
        }
    }
}

/// Lets signed requests in, with their [`Principal`] in the request's extensions.
#[derive(Clone)]
pub(super) struct Gate(pub(super) Arc<dyn CredentialStore>);

impl Gate {
    /// The principal behind verified credentials.
    ///
    /// # Errors
    /// `AccessDenied` without a signature, or when the key went away since it was verified.
    pub(super) fn principal(&self, credentials: Option<&Credentials>) -> S3Result<Principal> {
        credentials
            .and_then(|credentials| self.0.find(&credentials.access_key))
            .map(|credential| credential.principal)
            .ok_or_else(|| S3Error::with_message(S3ErrorCode::AccessDenied, "Access Denied"))
    }
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let principal = self.principal(cx.credentials())?;
        if let Some(info) = cx.extensions_mut().get::<RequestInfo>().cloned() {
            info.set_operation(cx.s3_op().name());
            info.set_access_key(principal.access_key.clone());
        }
        cx.extensions_mut().insert(principal);
        Ok(())
    }
}

/// The principal that [`Gate`] left with the request.
///
/// # Errors
/// `AccessDenied` when there is none.
pub(super) fn caller(extensions: &http::Extensions) -> Result<&Principal, Failure> {
    extensions.get().ok_or_else(|| Failure::code(S3ErrorCode::AccessDenied))
}
