//! Causes and their answers.

use std::sync::Arc;

use keyway_dataplane::node::BodyError;

use super::*;

fn answered(failure: impl Into<Failure>) -> (String, u16) {
    let error = failure.into().answer(&RequestId::generate());
    let status = error.status_code().expect("every answer has a status");
    (error.code().as_str().to_owned(), status.as_u16())
}

fn reached(what: Limited) -> Failure {
    Exceeded { what, retry_after: Duration::from_millis(1) }.into()
}

#[test]
fn what_passes_says_when() {
    for failure in [reached(Limited::Keys), Failure::Penalised(Duration::from_millis(900))] {
        let error = failure.answer(&RequestId::generate());
        let headers = error.headers().expect("it has headers");
        assert_eq!(headers[RETRY_AFTER], "1");
    }
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
        (CatalogError::QuotaExceeded.into(), "QuotaExceeded", 403),
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
        (reached(Limited::Requests), "SlowDown", 503),
        (reached(Limited::Bytes), "SlowDown", 503),
        (reached(Limited::Keys), "SlowDown", 503),
        (reached(Limited::Sessions), "TooManySessions", 503),
        (Failure::Penalised(Duration::ZERO), "SlowDown", 503),
        (ControlError::from(SessionError::NoSuchRail).into(), "NoSuchRail", 404),
        (ControlError::from(SessionError::TooMany).into(), "TooManySessions", 503),
        (ControlError::from(SessionError::Incompatible("x")).into(), "IncompatibleSession", 409),
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
