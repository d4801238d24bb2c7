//! Who asks: signatures to principals.
//!
//! The protocol layer verifies signatures, that every `x-amz-*` header is signed, and the
//! clock skew. What is added here: the principal, and the refusal of what it would ignore.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use keyway_auth::{CredentialStore, Principal};
use percent_encoding::percent_decode_str;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::errors::Failure;
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
        if !own_headers_signed(cx.headers(), cx.uri().query().unwrap_or_default()) {
            return Err(S3Error::with_message(
                S3ErrorCode::AccessDenied,
                "There were headers present in the request which were not signed",
            ));
        }
        if let Some(info) = cx.extensions_mut().get::<RequestInfo>().cloned() {
            info.set_operation(cx.s3_op().name());
            info.set_access_key(principal.access_key.clone());
        }
        cx.extensions_mut().insert(principal);
        Ok(())
    }
}

/// Whether every `x-keyway-*` header is covered by the signature: the protocol layer sees to
/// `x-amz-*` alone, and ours change what a request means just as well.
fn own_headers_signed(headers: &HeaderMap, query: &str) -> bool {
    let mut ours = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX)).peekable();
    if ours.peek().is_none() {
        return true;
    }
    let by_header = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split_once("SignedHeaders="))
        .map(|(_, rest)| rest.split(',').next().unwrap_or_default().trim().to_owned());
    let by_query = || {
        let pair = query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-SignedHeaders="))?;
        Some(percent_decode_str(pair).decode_utf8_lossy().into_owned())
    };
    let Some(signed) = by_header.or_else(by_query) else { return false };
    ours.all(|name| signed.split(';').any(|signed| signed.eq_ignore_ascii_case(name.as_str())))
}

/// The principal that [`Gate`] left with the request.
///
/// # Errors
/// `AccessDenied` when there is none.
pub(super) fn caller(extensions: &http::Extensions) -> Result<&Principal, Failure> {
    extensions.get().ok_or_else(|| Failure::code(S3ErrorCode::AccessDenied))
}
