//! Errors across the network: a [`TransferError`] travels whole, as a status's detail.

use std::fmt;
use std::sync::Arc;

use keyway_rpc::convert::{chunk_bytes, chunk_id};
use keyway_rpc::schema::TransferFailure;
use keyway_rpc::schema::transfer_failure::{
    BodyTooLong, BodyTooShort, Busy, Damaged, Failure, Full, OtherCatalog, Store,
};
use prost::Message as _;
use tonic::{Code, Status};

use crate::node::{BodyError, TransferError};

/// The reasons of [`TransferError::InvalidPlan`] that nodes give. One that is not among them
/// comes from a newer node, and is told in general words.
const INVALID_PLAN_REASONS: &[&str] = &[
    "a chunk's length is out of bounds",
    "a range leaves its chunk",
    "a chunk id is used already",
    ANOTHER_NODE,
    MALFORMED,
];
/// The plan names another node.
pub(super) const ANOTHER_NODE: &str = "the plan is for another node";
/// The plan's message says nothing that this node understands.
pub(super) const MALFORMED: &str = "the message is malformed";

/// The status that carries `error`.
pub fn status(error: &TransferError) -> Status {
    let (code, failure) = told(error);
    let detail = TransferFailure { failure: Some(failure) };
    Status::with_details(code, error.to_string(), detail.encode_to_vec().into())
}

/// The message for `error`, where it is a part of an answer.
pub(super) fn transfer_failure(error: &TransferError) -> TransferFailure {
    TransferFailure { failure: Some(told(error).1) }
}

fn told(error: &TransferError) -> (Code, Failure) {
    match error {
        TransferError::NoSuchChunk(chunk) => {
            (Code::NotFound, Failure::NoSuchChunk(chunk_bytes(*chunk)))
        }
        TransferError::InvalidPlan(reason) => {
            (Code::InvalidArgument, Failure::InvalidPlan((*reason).to_owned()))
        }
        TransferError::Damaged { chunk, offset } => {
            let damaged = Damaged { chunk: chunk_bytes(*chunk), offset: *offset };
            (Code::DataLoss, Failure::Damaged(damaged))
        }
        TransferError::BodyTooShort { received, expected } => {
            let short = BodyTooShort { received: *received, expected: *expected };
            (Code::InvalidArgument, Failure::BodyTooShort(short))
        }
        TransferError::BodyTooLong { expected } => {
            let long = BodyTooLong { expected: *expected };
            (Code::InvalidArgument, Failure::BodyTooLong(long))
        }
        TransferError::Body(cause) => (Code::Aborted, Failure::Body(cause.to_string())),
        TransferError::Full => (Code::ResourceExhausted, Failure::Full(Full {})),
        TransferError::Busy => (Code::Unavailable, Failure::Busy(Busy {})),
        TransferError::Store { reason, sticky } => {
            let store = Store { reason: reason.to_string(), sticky: *sticky };
            (Code::Internal, Failure::Store(store))
        }
        TransferError::OtherCatalog => {
            (Code::FailedPrecondition, Failure::OtherCatalog(OtherCatalog {}))
        }
        TransferError::Unreachable(why) => {
            (Code::Unavailable, Failure::Unreachable(why.to_string()))
        }
    }
}

/// The error that a status carries. One without a detail was made on the way: the node did
/// not answer.
pub fn error(status: &Status) -> TransferError {
    known(status).unwrap_or_else(|| unreachable(&format!("{}: {}", status.code(), Causes(status))))
}

/// The node cannot be reached, or answers what this version does not understand.
pub fn unreachable(why: &str) -> TransferError {
    TransferError::Unreachable(why.into())
}

fn known(status: &Status) -> Option<TransferError> {
    transfer_error(TransferFailure::decode(status.details()).ok()?)
}

/// The error in a message; `None` for one that this version does not know.
pub(super) fn transfer_error(message: TransferFailure) -> Option<TransferError> {
    Some(match message.failure? {
        Failure::NoSuchChunk(chunk) => TransferError::NoSuchChunk(chunk_id(&chunk).ok()?),
        Failure::InvalidPlan(reason) => {
            let reason = INVALID_PLAN_REASONS.iter().find(|known| **known == reason);
            TransferError::InvalidPlan(reason.copied().unwrap_or("the node refused the plan"))
        }
        Failure::Damaged(Damaged { chunk, offset }) => {
            TransferError::Damaged { chunk: chunk_id(&chunk).ok()?, offset }
        }
        Failure::BodyTooShort(BodyTooShort { received, expected }) => {
            TransferError::BodyTooShort { received, expected }
        }
        Failure::BodyTooLong(BodyTooLong { expected }) => TransferError::BodyTooLong { expected },
        Failure::Body(cause) => TransferError::Body(BodyError(Arc::new(RemoteCause(cause)))),
        Failure::Full(Full {}) => TransferError::Full,
        Failure::Busy(Busy {}) => TransferError::Busy,
        Failure::Store(Store { reason, sticky }) => {
            TransferError::Store { reason: reason.into(), sticky }
        }
        Failure::OtherCatalog(OtherCatalog {}) => TransferError::OtherCatalog,
        Failure::Unreachable(why) => TransferError::Unreachable(why.into()),
    })
}

/// Why a body broke, as the other side told it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RemoteCause(pub(super) String);

/// A status with the errors below it: the code alone says little of a broken connection.
struct Causes<'s>(&'s Status);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.message())?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use keyway_proto::ChunkId;

    use super::*;

    #[test]
    fn every_error_arrives_as_it_was_sent() {
        let chunk = ChunkId::new(1, [2; 10]);
        let mut errors = vec![
            TransferError::NoSuchChunk(chunk),
            TransferError::Damaged { chunk, offset: 65536 },
            TransferError::BodyTooShort { received: 1, expected: 2 },
            TransferError::BodyTooLong { expected: 3 },
            TransferError::Body(BodyError(Arc::new(RemoteCause("cut".into())))),
            TransferError::Full,
            TransferError::Busy,
            TransferError::OtherCatalog,
            TransferError::Store { reason: "fsync".into(), sticky: true },
            TransferError::Store { reason: "read".into(), sticky: false },
            TransferError::Unreachable("gone".into()),
        ];
        errors.extend(INVALID_PLAN_REASONS.iter().map(|why| TransferError::InvalidPlan(why)));
        for sent in errors {
            let arrived = error(&status(&sent));
            assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
        }
    }

    #[test]
    fn what_carries_no_error_of_ours_is_unreachable() {
        for status in [
            Status::unavailable("reset"),
            Status::with_details(Code::Internal, "odd", vec![0xff; 9].into()),
            Status::with_details(Code::Internal, "empty", bytes::Bytes::new()),
        ] {
            assert!(matches!(error(&status), TransferError::Unreachable(_)), "{status:?}");
        }
    }
}
