//! Our errors in the trait's words.

use ::http::StatusCode;
use object_store::Error;
use object_store::path::Path;

use crate::error::ClientError;

/// What a request was conditional on, which decides what a failed condition means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Precondition {
    None,
    Absent,
    Unchanged,
}

/// The error of a request without conditions of its own.
pub(super) fn translate(error: ClientError, location: &Path) -> Error {
    Precondition::None.translate(error, location)
}

impl Precondition {
    pub(super) fn translate(self, error: ClientError, location: &Path) -> Error {
        let path = location.to_string();
        let status = error.status();
        let source = error.into();
        match status {
            // An object to be replaced that is not there has changed, too.
            Some(StatusCode::NOT_FOUND) if self == Self::Unchanged => {
                Error::Precondition { path, source }
            }
            Some(StatusCode::NOT_FOUND) => Error::NotFound { path, source },
            Some(StatusCode::NOT_MODIFIED) => Error::NotModified { path, source },
            Some(StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT)
                if self == Self::Absent =>
            {
                Error::AlreadyExists { path, source }
            }
            Some(StatusCode::PRECONDITION_FAILED) => Error::Precondition { path, source },
            // Two conditional writes at once: the other one won.
            Some(StatusCode::CONFLICT) if self == Self::Unchanged => {
                Error::Precondition { path, source }
            }
            Some(StatusCode::UNAUTHORIZED) => Error::Unauthenticated { path, source },
            Some(StatusCode::FORBIDDEN) => Error::PermissionDenied { path, source },
            _ => Error::Generic { store: "keyway", source },
        }
    }
}
