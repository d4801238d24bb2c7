//! Every failure's S3 code: the one place where causes become answers.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use keyway_auth::SecretsError;
use keyway_auth::grant::GrantError;
use keyway_dataplane::{DirectError, SessionError, TransferError};
use keyway_meta::{CatalogError, DeleteMarker, MetaError};
use keyway_proto::InvalidName;
use s3s::stream::aws_chunked_stream::AwsChunkedStreamError;
use s3s::stream::upload_stream::UploadStreamError;
use s3s::{BodySizeLimitExceeded, S3Error, S3ErrorCode};

use super::answer::VERSION_ID;
use super::conditions;
use super::rdma;
use super::service::RequestId;
use crate::control::ControlError;
use crate::limits::{Exceeded, Limited};

const DELETE_MARKER: HeaderName = HeaderName::from_static("x-amz-delete-marker");

/// Why an operation does not give what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Failure {
    /// The catalog refused or failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The storage node refused or failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A name that breaks S3's rules.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// An extent on a node that this gateway does not know.
    #[error("the catalog names {0}, which this gateway does not know")]
    UnknownNode(keyway_proto::NodeId),
    /// A node whose receipt lacks a digest that the plan asked for.
    #[error("the node's receipt lacks its {0}")]
    MissingDigest(keyway_proto::ChecksumKind),
    /// A condition that asks for the object only if it changed, and it did not.
    #[error("the object was not modified")]
    NotModified(Validators),
    /// A range that covers no byte of the object.
    #[error("the range covers no byte of the {size} there are")]
    RangeNotSatisfiable {
        /// The object's size in bytes.
        size: u64,
    },
    /// A write with an RDMA token that is served over HTTP alone.
    #[error("the RDMA transfer was declined")]
    RdmaDeclined,
    /// A direct transfer failed on its own account, and not on the store's.
    #[error(transparent)]
    Direct(DirectError),
    /// A read of more bytes than the client's windows hold.
    #[error("{needed} bytes do not fit windows of {room}")]
    WindowTooSmall {
        /// Bytes that the windows hold.
        room: u64,
        /// Bytes to be moved.
        needed: u64,
    },
    /// A receipt for another transfer than was asked for.
    #[error("the node's receipt is for another transfer")]
    StrangeReceipt,
    /// A token in a request whose key nobody watches over.
    #[error("a token came past the envelope")]
    Unwatched,
    /// An object's key that the service cannot open, or seal.
    #[error("the key of an object")]
    Key(#[source] SecretsError),
    /// A control endpoint refused or failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Whoever asks has taken what it may.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// Too many attempts to say who one is failed: this one is not verified for so long.
    #[error("too many attempts failed")]
    Penalised(Duration),
    /// A request that S3 refuses.
    #[error("{code:?}")]
    Refused {
        /// S3's code.
        code: S3ErrorCode,
        /// What the client is told; S3's own words for the code without it.
        message: Option<Cow<'static, str>>,
    },
}

/// The headers that a 304 carries.
#[derive(Debug, Clone)]
pub(super) struct Validators {
    /// `ETag`, in quotes.
    pub(super) etag: HeaderValue,
    /// `Last-Modified`.
    pub(super) modified: HeaderValue,
}

impl From<DirectError> for Failure {
    /// What fails on the store's side is what it would be over HTTP.
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::Transfer(error) => Self::Transfer(error),
            error => Self::Direct(error),
        }
    }
}

impl Failure {
    /// A refusal with S3's `code`, told as `message`.
    pub(super) fn refuse(code: S3ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { code, message: Some(message.into()) }
    }

    /// A refusal with S3's own words for `code`.
    pub(super) fn code(code: S3ErrorCode) -> Self {
        Self::Refused { code, message: None }
    }

    /// A feature that this server does not have.
    pub(super) fn not_implemented(what: &'static str) -> Self {
        Self::refuse(S3ErrorCode::NotImplemented, what)
    }

    /// The answer to the client; internal causes are logged under `id` and not told.
    pub(super) fn answer(self, id: &RequestId) -> S3Error {
        let mut error = match &self {
            Self::Catalog(cause) => catalog(cause),
            Self::Transfer(cause) => transfer(cause),
            Self::Name(cause) => name(cause),
            Self::UnknownNode(_)
            | Self::MissingDigest(_)
            | Self::StrangeReceipt
            | Self::Key(_)
            | Self::Unwatched => S3Error::new(S3ErrorCode::InternalError),
            Self::Direct(cause) => {
                tracing::warn!(request_id = %id, %cause, "a direct transfer failed");
                direct(cause)
            }
            Self::WindowTooSmall { room, needed } => window_too_small(*room, *needed),
            Self::Control(cause) => control(cause),
            Self::Exceeded(cause) => exceeded(*cause),
            Self::Penalised(left) => later(
                S3Error::with_message(S3ErrorCode::SlowDown, "Too many attempts have failed."),
                *left,
            ),
            Self::NotModified(validators) => not_modified(validators),
            Self::RangeNotSatisfiable { size } => range_not_satisfiable(*size),
            Self::RdmaDeclined => rdma_declined(),
            Self::Refused { code, message } => {
                let mut error = S3Error::new(code.clone());
                if let Some(message) = message {
                    error.set_message(message.clone());
                }
                error
            }
        };
        if error.code() == &S3ErrorCode::InternalError {
            tracing::error!(request_id = %id, cause = %self, "internal error");
        }
        if error.status_code().is_none() {
            error.set_status_code(custom_status(error.code()));
        }
        error
    }
}

fn catalog(cause: &CatalogError) -> S3Error {
    let code = match cause {
        CatalogError::NoSuchBucket => S3ErrorCode::NoSuchBucket,
        CatalogError::BucketExists => S3ErrorCode::BucketAlreadyOwnedByYou,
        CatalogError::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
        CatalogError::NoSuchKey => S3ErrorCode::NoSuchKey,
        CatalogError::NoSuchVersion => S3ErrorCode::NoSuchVersion,
        CatalogError::Deleted(marker) => return deleted(S3ErrorCode::NoSuchKey, marker),
        CatalogError::IsDeleteMarker(marker) => {
            return deleted(S3ErrorCode::MethodNotAllowed, marker);
        }
        CatalogError::Locked => {
            return S3Error::with_message(
                S3ErrorCode::AccessDenied,
                "Access Denied because object protected by object lock.",
            );
        }
        CatalogError::InvalidBucketState => S3ErrorCode::InvalidBucketState,
        CatalogError::NoSuchUpload => S3ErrorCode::NoSuchUpload,
        CatalogError::InvalidPart(_) => S3ErrorCode::InvalidPart,
        CatalogError::InvalidPartOrder => S3ErrorCode::InvalidPartOrder,
        CatalogError::PartTooSmall(_) => S3ErrorCode::EntityTooSmall,
        CatalogError::TooLarge => S3ErrorCode::EntityTooLarge,
        CatalogError::PreconditionFailed => S3ErrorCode::PreconditionFailed,
        CatalogError::ChecksumMismatch => S3ErrorCode::BadDigest,
        CatalogError::NotDurable => S3ErrorCode::SlowDown,
        CatalogError::QuotaExceeded => {
            return custom(
                "QuotaExceeded",
                "The bucket's owner, or the user who writes, stores as much as it may.",
            );
        }
        CatalogError::Store(store) => return meta(store),
        _ => S3ErrorCode::InternalError,
    };
    S3Error::new(code)
}

/// A delete marker is where an object was asked for.
fn deleted(code: S3ErrorCode, marker: &DeleteMarker) -> S3Error {
    let by_name = code == S3ErrorCode::MethodNotAllowed;
    let mut error = S3Error::new(code);
    let mut headers = beside_xml(DELETE_MARKER, HeaderValue::from_static("true"));
    if let Ok(name) = HeaderValue::try_from(marker.name().to_string()) {
        headers.insert(VERSION_ID, name);
    }
    if by_name {
        headers.insert(ALLOW, HeaderValue::from_static("DELETE"));
        headers.insert(LAST_MODIFIED, conditions::http_date(marker.modified));
    }
    error.set_headers(headers);
    error
}

fn meta(cause: &MetaError) -> S3Error {
    match cause {
        MetaError::Conflict => S3Error::new(S3ErrorCode::ConditionalRequestConflict),
        MetaError::Full => storage_full(),
        _ => S3Error::new(S3ErrorCode::InternalError),
    }
}

fn transfer(cause: &TransferError) -> S3Error {
    match cause {
        TransferError::BodyTooShort { .. } | TransferError::BodyTooLong { .. } => {
            S3Error::new(S3ErrorCode::IncompleteBody)
        }
        TransferError::Body(body) => body_failure(&*body.0),
        TransferError::Full => storage_full(),
        TransferError::Busy => S3Error::new(S3ErrorCode::SlowDown),
        TransferError::Unreachable(_) | TransferError::OtherCatalog => unreachable_node(),
        _ => S3Error::new(S3ErrorCode::InternalError),
    }
}

/// A body of more bytes than it may have.
#[derive(Debug, thiserror::Error)]
#[error("the body is larger than it may be")]
pub(super) struct EntityTooLarge;

/// The code for a request body that broke. Whatever is not recognised came from the
/// connection: the client did not send what it announced.
pub(super) fn body_failure(cause: &(dyn std::error::Error + 'static)) -> S3Error {
    let mut next = Some(cause);
    // Bodies are wrapped a handful of times; the bound only guards against a cycle.
    for _ in 0..16 {
        let Some(error) = next else { break };
        if let Some(chunked) = error.downcast_ref::<AwsChunkedStreamError>() {
            if !matches!(chunked, AwsChunkedStreamError::Underlying(_)) {
                return S3Error::new(chunked.to_s3_error_code());
            }
        } else if let Some(upload) = error.downcast_ref::<UploadStreamError>() {
            match upload {
                UploadStreamError::Sha256Mismatch => return payload_hash_mismatch(),
                UploadStreamError::Underlying(_) => {}
                other => return S3Error::new(other.to_s3_error_code()),
            }
        } else if error.is::<BodySizeLimitExceeded>() || error.is::<EntityTooLarge>() {
            return S3Error::new(S3ErrorCode::EntityTooLarge);
        } else if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::TimedOut
        {
            return S3Error::new(S3ErrorCode::RequestTimeout);
        }
        next = error.source();
    }
    S3Error::new(S3ErrorCode::IncompleteBody)
}

/// `XAmzContentSHA256Mismatch`: the body is not the one that was signed.
pub(super) fn payload_hash_mismatch() -> S3Error {
    custom(
        "XAmzContentSHA256Mismatch",
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    )
}

fn name(cause: &InvalidName) -> S3Error {
    match cause {
        InvalidName::Bucket => S3Error::new(S3ErrorCode::InvalidBucketName),
        InvalidName::KeyTooLong(_) => S3Error::new(S3ErrorCode::KeyTooLongError),
        _ => S3Error::with_message(S3ErrorCode::InvalidURI, "The object key is empty."),
    }
}

fn storage_full() -> S3Error {
    custom("InsufficientStorage", "There is no space left to store the object.")
}

fn not_modified(validators: &Validators) -> S3Error {
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(ETAG, validators.etag.clone());
    headers.insert(LAST_MODIFIED, validators.modified.clone());
    error.set_headers(headers);
    error
}

fn range_not_satisfiable(size: u64) -> S3Error {
    let mut error = S3Error::new(S3ErrorCode::InvalidRange);
    if let Ok(value) = HeaderValue::try_from(format!("bytes */{size}")) {
        error.set_headers(beside_xml(CONTENT_RANGE, value));
    }
    error
}

/// An error whose code is not in the crate's table.
pub(super) fn custom(code: &'static str, message: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(custom_status(error.code()));
    error
}

fn custom_status(code: &S3ErrorCode) -> StatusCode {
    match code.as_str() {
        "AccessForbidden" | "QuotaExceeded" => StatusCode::FORBIDDEN,
        "InsufficientStorage" => StatusCode::INSUFFICIENT_STORAGE,
        "InvalidPartNumber" => StatusCode::RANGE_NOT_SATISFIABLE,
        "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
        "RDMANotSupported" => StatusCode::NOT_IMPLEMENTED,
        "RDMATransferFailed" => StatusCode::INTERNAL_SERVER_ERROR,
        "NoSuchEndpoint"
        | "NoSuchRail"
        | "NoSuchSession"
        | "NoSuchPublicAccessBlockConfiguration"
        | "ServerSideEncryptionConfigurationNotFoundError" => StatusCode::NOT_FOUND,
        "IncompatibleSession" => StatusCode::CONFLICT,
        "TooManySessions" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

fn rdma_declined() -> S3Error {
    let mut error =
        custom("RDMANotSupported", "The transfer cannot use RDMA. Send the body over HTTP.");
    error.set_headers(beside_xml(rdma::REPLY, rdma::DECLINED));
    error
}

/// None of these words is the token's.
fn direct(cause: &DirectError) -> S3Error {
    let invalid = |message| custom("InvalidRDMAToken", message);
    match cause {
        DirectError::NoSuchSession => invalid("The token's session is not open."),
        DirectError::Grant(GrantError::Overloaded) => S3Error::new(S3ErrorCode::SlowDown),
        DirectError::Grant(_) => invalid("The storage node refused the transfer's grant."),
        DirectError::InvalidPlan(_) => invalid("The token's windows do not fit the transfer."),
        _ => custom("RDMATransferFailed", "The transfer failed. Please try again."),
    }
}

fn window_too_small(room: u64, needed: u64) -> S3Error {
    let mut error = custom("RDMAWindowTooSmall", "");
    error.set_message(format!("The token's windows hold {room} bytes of the {needed} asked for."));
    error
}

fn control(cause: &ControlError) -> S3Error {
    match cause {
        ControlError::NoSuchEndpoint => {
            custom("NoSuchEndpoint", "This server has no control endpoint of that name.")
        }
        ControlError::MethodNotAllowed => S3Error::new(S3ErrorCode::MethodNotAllowed),
        ControlError::Malformed(_) => {
            let mut error = custom("MalformedJSON", "");
            error.set_message(cause.to_string());
            error
        }
        ControlError::OutOfBounds(_) => {
            S3Error::with_message(S3ErrorCode::InvalidArgument, cause.to_string())
        }
        ControlError::NoSuchSession => custom("NoSuchSession", "You have no session of that id."),
        ControlError::NodesUnreachable(_) => unreachable_node(),
        ControlError::Session(cause) => session(cause),
    }
}

fn session(cause: &SessionError) -> S3Error {
    match cause {
        SessionError::NoSuchRail => custom("NoSuchRail", "There is no such rail."),
        SessionError::Incompatible(_) => {
            let mut error = custom("IncompatibleSession", "");
            error.set_message(cause.to_string());
            error
        }
        SessionError::TooMany => custom("TooManySessions", "There are too many sessions."),
        SessionError::Unreachable(_) => unreachable_node(),
        _ => S3Error::new(S3ErrorCode::InternalError),
    }
}

fn exceeded(cause: Exceeded) -> S3Error {
    let slow_down = |message| S3Error::with_message(S3ErrorCode::SlowDown, message);
    let error = match cause.what {
        Limited::Requests => slow_down("You have made as many requests as you may."),
        Limited::Bytes => slow_down("You have moved as many bytes as you may."),
        Limited::Keys => slow_down("You have as many direct transfers under way as you may."),
        // Clients know it from nodes, and go over HTTP.
        Limited::Sessions => custom("TooManySessions", "You have as many sessions as you may."),
    };
    later(error, cause.retry_after)
}

/// An error that passes: the client is told when.
fn later(mut error: S3Error, after: Duration) -> S3Error {
    // Whole seconds, and never none.
    let seconds = after.as_secs().saturating_add(1);
    error.set_headers(beside_xml(RETRY_AFTER, HeaderValue::from(seconds)));
    error
}

fn unreachable_node() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::ServiceUnavailable,
        "A storage node cannot be reached. Please try again.",
    )
}

/// An error's headers replace all others, the type of its body included.
fn beside_xml(name: HeaderName, value: HeaderValue) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    headers.insert(name, value);
    headers
}

#[cfg(test)]
mod tests;
