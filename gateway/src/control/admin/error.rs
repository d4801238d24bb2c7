//! Why a call was not done, and how that is told.

use http::StatusCode;
use keyway_auth::InvalidCredentials;
use keyway_auth::directory::{DirectoryError, InvalidName, Kind};
use keyway_auth::oidc::InvalidIssuer;
use keyway_auth::policy::PolicyError;
use keyway_meta::{CatalogError, MetaError};

use super::super::Position;
use super::document::{ErrorDocument, ErrorWords};
use crate::accounts::AccountsError;
use crate::oidc::InvalidAuthorities;

/// Why a call was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// No endpoint has this path.
    #[error("this server has no administration endpoint of that name")]
    NoSuchEndpoint,
    /// The endpoint has no such method, but these.
    #[error("the endpoint has no such method, but {0}")]
    MethodNotAllowed(&'static str),
    /// The caller does not reach it, whether it is there or not.
    #[error("Access Denied")]
    Denied,
    /// The document is not the one that was to be sent.
    #[error("the document is malformed at line {}, column {}", .0.line, .0.column)]
    Malformed(Position),
    /// A field is beyond what may be asked for.
    #[error("{0} is out of bounds")]
    OutOfBounds(&'static str),
    /// A provider's issuer that is none.
    #[error(transparent)]
    Issuer(#[from] InvalidIssuer),
    /// A provider's authorities that are none.
    #[error(transparent)]
    Authorities(#[from] InvalidAuthorities),
    /// A name in the path that nothing can have.
    #[error(transparent)]
    Name(InvalidName),
    /// A policy that is malformed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An access key's id or secret that clients could not use.
    #[error(transparent)]
    Credentials(#[from] InvalidCredentials),
    /// Another secret for a key that has one.
    #[error("a key's secret never changes: make another key")]
    SecretChanged,
    /// A tenant that is to be deleted and can still act.
    #[error("the tenant is active: suspend it first")]
    StillActive,
    /// A tenant that is to be deleted and has buckets.
    #[error("the tenant has buckets")]
    HasBuckets,
    /// The accounts refused or failed.
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The server ends.
    #[error("the server ends")]
    Interrupted,
}

impl AdminError {
    pub(super) fn no_such(kind: Kind, name: &str) -> Self {
        let missing = DirectoryError::NoSuch { kind, name: name.to_owned() };
        Self::Accounts(missing.into())
    }

    /// The status and the code.
    pub fn told(&self) -> (StatusCode, &'static str) {
        match self {
            Self::NoSuchEndpoint => (StatusCode::NOT_FOUND, "NoSuchEndpoint"),
            Self::MethodNotAllowed(_) => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::Denied => (StatusCode::FORBIDDEN, "AccessDenied"),
            Self::Malformed(_) => (StatusCode::BAD_REQUEST, "MalformedJSON"),
            Self::Issuer(_) => (StatusCode::BAD_REQUEST, "InvalidIssuer"),
            Self::Authorities(_) => (StatusCode::BAD_REQUEST, "InvalidCertificate"),
            Self::OutOfBounds(_) => (StatusCode::BAD_REQUEST, "InvalidArgument"),
            Self::Name(_) => (StatusCode::BAD_REQUEST, "InvalidName"),
            Self::Policy(_) => (StatusCode::BAD_REQUEST, PolicyError::CODE),
            Self::Credentials(_) => (StatusCode::BAD_REQUEST, "InvalidCredentials"),
            Self::SecretChanged => (StatusCode::CONFLICT, "SecretChanged"),
            Self::StillActive => (StatusCode::CONFLICT, "StillActive"),
            Self::HasBuckets => (StatusCode::CONFLICT, "InUse"),
            Self::Accounts(AccountsError::Directory(error)) => directory(error),
            Self::Accounts(AccountsError::Store(MetaError::Full)) => {
                (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage")
            }
            Self::Accounts(_) | Self::Catalog(_) | Self::Interrupted => {
                (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
            }
        }
    }

    /// The answer's document. Internal causes are logged and not told.
    pub fn document(&self) -> Vec<u8> {
        let (status, code) = self.told();
        let message = if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(cause = %self, "the administration failed");
            "We encountered an internal error. Please try again.".to_owned()
        } else {
            self.to_string()
        };
        let words = ErrorWords { code: code.to_owned(), message };
        serde_json::to_vec(&ErrorDocument { error: words }).expect("it has a JSON form")
    }
}

fn directory(error: &DirectoryError) -> (StatusCode, &'static str) {
    match error {
        DirectoryError::NoSuch { kind, .. } => (
            StatusCode::NOT_FOUND,
            match kind {
                Kind::Tenant => "NoSuchTenant",
                Kind::User => "NoSuchUser",
                Kind::Role => "NoSuchRole",
                Kind::Group => "NoSuchGroup",
                Kind::Policy => "NoSuchPolicy",
                Kind::Provider => "NoSuchProvider",
                Kind::Key => "NoSuchKey",
            },
        ),
        DirectoryError::Taken { .. } => (StatusCode::CONFLICT, "AlreadyExists"),
        DirectoryError::InUse { .. } => (StatusCode::CONFLICT, "InUse"),
        DirectoryError::Root => (StatusCode::FORBIDDEN, "AccessDenied"),
        DirectoryError::TooMany(_) => (StatusCode::CONFLICT, "LimitExceeded"),
        DirectoryError::SessionLength => (StatusCode::BAD_REQUEST, "InvalidArgument"),
        _ => (StatusCode::BAD_REQUEST, "InvalidName"),
    }
}
