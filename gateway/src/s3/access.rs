//! Who asks: signatures to principals.
//!
//! The protocol layer verifies signatures, that every `x-amz-*` header is signed, and the
//! clock skew. What is added here: the principal, and the refusal of what it would ignore.

use std::sync::Arc;

use http::header::HOST;
use http::{HeaderMap, Uri};
use keyway_auth::{CredentialStore, Principal};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::errors::Failure;
use super::signed::SignedNames;
use crate::server::RequestInfo;

const OWN_PREFIX: &str = "x-keyway-";

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
    /// `AccessDenied` without a signature, when the key went away since it was verified, and
    /// for a signature that leaves out what it must cover.
    pub(super) fn principal(
        &self,
        credentials: Option<&Credentials>,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> S3Result<Principal> {
        let denied =
            |message: &'static str| S3Error::with_message(S3ErrorCode::AccessDenied, message);
        let principal = credentials
            .and_then(|credentials| self.0.find(&credentials.access_key))
            .map(|credential| credential.principal)
            .ok_or_else(|| denied("Access Denied"))?;
        if !covers_what_it_must(headers, uri) {
            return Err(denied("There were headers present in the request which were not signed"));
        }
        Ok(principal)
    }
}

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let principal = self.principal(cx.credentials(), cx.headers(), cx.uri())?;
        if let Some(info) = cx.extensions_mut().get::<RequestInfo>().cloned() {
            info.set_operation(cx.s3_op().name());
            info.set_access_key(principal.access_key.clone());
        }
        cx.extensions_mut().insert(principal);
        Ok(())
    }
}

/// Whether the signature covers the host, without which it would hold for every other server
/// that knows the key, and every `x-keyway-*` header: the protocol layer sees to `x-amz-*`
/// alone, and ours change what a request means just as well.
fn covers_what_it_must(headers: &HeaderMap, uri: &Uri) -> bool {
    let Some(signed) = SignedNames::of(headers, uri.query().unwrap_or_default()) else {
        return false;
    };
    let mut ours = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX));
    signed.contains(&HOST) && ours.all(|name| signed.contains(name))
}

/// The principal that [`Gate`] left with the request.
///
/// # Errors
/// `AccessDenied` when there is none.
pub(super) fn caller(extensions: &http::Extensions) -> Result<&Principal, Failure> {
    extensions.get().ok_or_else(|| Failure::code(S3ErrorCode::AccessDenied))
}
