//! Every failure's S3 code: the one place where causes become answers.

use std::borrow::Cow;

use http::header::{ALLOW, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
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
    /// A control endpoint refused or failed.
    #[error(transparent)]
    Control(#[from] ControlError),
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
            | Self::Unwatched => S3Error::new(S3ErrorCode::InternalError),
            Self::Direct(cause) => {
                tracing::warn!(request_id = %id, %cause, "a direct transfer failed");
                direct(cause)
            }
            Self::WindowTooSmall { room, needed } => window_too_small(*room, *needed),
            Self::Control(cause) => control(cause),
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
        TransferError::Unreachable(_) => unreachable_node(),
        _ => S3Error::new(S3ErrorCode::InternalError),
    }
}

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
        } else if error.is::<BodySizeLimitExceeded>() {
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
        "AccessForbidden" => StatusCode::FORBIDDEN,
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
mod tests {
    use std::sync::Arc;

    use keyway_dataplane::node::BodyError;

    use super::*;

    fn answered(failure: impl Into<Failure>) -> (String, u16) {
        let error = failure.into().answer(&RequestId::generate());
        let status = error.status_code().expect("every answer has a status");
        (error.code().as_str().to_owned(), status.as_u16())
    }

    /// Goal: no cause reaches the client as a 500 but those that are the server's fault.
    #[test]
    fn causes_have_their_codes() {
        let broken = |error: Box<dyn std::error::Error + Send + Sync>| {
            TransferError::Body(BodyError(Arc::from(error)))
        };
        for (failure, code, status) in [
            (Failure::from(CatalogError::NoSuchBucket), "NoSuchBucket", 404),
            (CatalogError::BucketExists.into(), "BucketAlreadyOwnedByYou", 409),
            (CatalogError::BucketNotEmpty.into(), "BucketNotEmpty", 409),
            (CatalogError::NoSuchKey.into(), "NoSuchKey", 404),
            (CatalogError::NoSuchUpload.into(), "NoSuchUpload", 404),
            (CatalogError::InvalidPart(3).into(), "InvalidPart", 400),
            (CatalogError::InvalidPartOrder.into(), "InvalidPartOrder", 400),
            (CatalogError::PartTooSmall(1).into(), "EntityTooSmall", 400),
            (CatalogError::TooLarge.into(), "EntityTooLarge", 400),
            (CatalogError::PreconditionFailed.into(), "PreconditionFailed", 412),
            (CatalogError::ChecksumMismatch.into(), "BadDigest", 400),
            (CatalogError::Store(MetaError::Full).into(), "InsufficientStorage", 507),
            (CatalogError::Store(MetaError::Damaged("x")).into(), "InternalError", 500),
            (TransferError::Full.into(), "InsufficientStorage", 507),
            (TransferError::Busy.into(), "SlowDown", 503),
            (TransferError::Unreachable("gone".into()).into(), "ServiceUnavailable", 503),
            (TransferError::BodyTooLong { expected: 1 }.into(), "IncompleteBody", 400),
            (broken("reset".into()).into(), "IncompleteBody", 400),
            (
                broken(Box::new(UploadStreamError::Sha256Mismatch)).into(),
                "XAmzContentSHA256Mismatch",
                400,
            ),
            (
                broken(Box::new(AwsChunkedStreamError::SignatureMismatch)).into(),
                "SignatureDoesNotMatch",
                403,
            ),
            (
                broken(Box::new(AwsChunkedStreamError::Underlying(Box::new(
                    AwsChunkedStreamError::ChunkMetaTooLarge(2, 1),
                ))))
                .into(),
                "EntityTooLarge",
                400,
            ),
            (InvalidName::Bucket.into(), "InvalidBucketName", 400),
            (InvalidName::KeyTooLong(1025).into(), "KeyTooLongError", 400),
            (Failure::RangeNotSatisfiable { size: 3 }, "InvalidRange", 416),
            (Failure::UnknownNode(keyway_proto::NodeId(9)), "InternalError", 500),
            (DirectError::NoSuchSession.into(), "InvalidRDMAToken", 400),
            (DirectError::InvalidPlan("x").into(), "InvalidRDMAToken", 400),
            (DirectError::Grant(GrantError::Replayed).into(), "InvalidRDMAToken", 400),
            (DirectError::Grant(GrantError::Overloaded).into(), "SlowDown", 503),
            (DirectError::Link("x".into()).into(), "RDMATransferFailed", 500),
            (DirectError::TimedOut.into(), "RDMATransferFailed", 500),
            (DirectError::Cancelled.into(), "RDMATransferFailed", 500),
            (DirectError::Transfer(TransferError::Full).into(), "InsufficientStorage", 507),
            (Failure::WindowTooSmall { room: 1, needed: 2 }, "RDMAWindowTooSmall", 400),
            (Failure::RdmaDeclined, "RDMANotSupported", 501),
            (ControlError::NoSuchEndpoint.into(), "NoSuchEndpoint", 404),
            (ControlError::NoSuchSession.into(), "NoSuchSession", 404),
            (ControlError::MethodNotAllowed.into(), "MethodNotAllowed", 405),
            (ControlError::OutOfBounds("windows").into(), "InvalidArgument", 400),
            (ControlError::from(SessionError::NoSuchRail).into(), "NoSuchRail", 404),
            (ControlError::from(SessionError::TooMany).into(), "TooManySessions", 503),
            (
                ControlError::from(SessionError::Incompatible("x")).into(),
                "IncompatibleSession",
                409,
            ),
            (
                ControlError::from(SessionError::Unreachable("x".into())).into(),
                "ServiceUnavailable",
                503,
            ),
            (ControlError::from(SessionError::Adapter("x".into())).into(), "InternalError", 500),
        ] {
            assert_eq!(answered(failure), (code.to_owned(), status));
        }
    }
}
