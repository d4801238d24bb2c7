//! What can go wrong, and whether asking again can help.

use std::time::Duration;

use keyway_auth::sigv4::SignError;
use keyway_fabric::gpu::GpuError;
use keyway_proto::{Checksum, TransferPath};

use crate::builder::ConfigError;
use crate::rdma::{Fallback, RdmaError};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client cannot be built as asked.
    #[error("the client's configuration does not hold")]
    Config(#[from] ConfigError),
    /// The bucket or key is none.
    #[error(transparent)]
    Name(#[from] keyway_proto::InvalidName),
    /// The request cannot be signed.
    #[error("the request cannot be signed")]
    Sign(#[from] SignError),
    /// A value given by the caller cannot stand in a request.
    #[error("a value cannot stand in an HTTP request")]
    Request(#[from] ::http::Error),
    /// No connection to the endpoint.
    #[error("no connection to {endpoint}")]
    Connect {
        /// Where to.
        endpoint: String,
        /// The transport's reason.
        #[source]
        source: BoxError,
    },
    /// The connection broke, or did not speak HTTP.
    #[error("the connection broke")]
    Transport(#[source] hyper::Error),
    /// The connection broke in the middle of a body.
    #[error("the connection broke")]
    Socket(#[source] std::io::Error),
    /// The peer sent or took nothing for too long.
    #[error("nothing moved for {0:?}")]
    Stalled(Duration),
    /// The body ended before its length.
    #[error("the body ended after {received} of {expected} bytes")]
    BrokenBody {
        /// Bytes that the answer announced.
        expected: u64,
        /// Bytes that came.
        received: u64,
    },
    /// The service refused.
    #[error(transparent)]
    Service(Box<ServiceError>),
    /// The answer is not one that S3 gives.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The bytes are not those that were stored or sent.
    #[error("checksum mismatch: expected {expected:?}, found {found:?}")]
    ChecksumMismatch {
        /// What the other side said.
        expected: Checksum,
        /// What the bytes give.
        found: Checksum,
    },
    /// The object was replaced while it was being read.
    #[error("the object changed during the transfer")]
    Changed,
    /// The object is larger than the memory given for it.
    #[error("the object has {needed} bytes; the target holds {available}")]
    TargetTooSmall {
        /// Bytes of the object or range.
        needed: u64,
        /// Bytes of the target.
        available: u64,
    },
    /// The range leaves the object.
    #[error("the range leaves the object of {size} bytes")]
    RangeOutside {
        /// Bytes of the object.
        size: u64,
    },
    /// The object is larger than S3 allows.
    #[error("{0} bytes are more than S3 stores in one object")]
    TooLarge(u64),
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// Another part of the same transfer failed first.
    #[error("the transfer was given up")]
    GivenUp,
    /// The required path is not to be had here.
    #[error("the path {path} is not available")]
    PathUnavailable {
        /// The path.
        path: TransferPath,
        /// Why not.
        #[source]
        reason: Fallback,
    },
    /// A transfer by RDMA failed. The memory's key is dead.
    #[error("the transfer by RDMA failed")]
    Rdma(#[from] RdmaError),
    /// The service took no notice of the request's RDMA token and stored something else than
    /// the caller's bytes.
    #[error("the service took no notice of the RDMA token")]
    TokenIgnored,
    /// There is no memory for the object.
    #[error("no memory for the object")]
    Memory(#[from] keyway_fabric::memory::MemoryError),
    /// A GPU whose memory the transfer names, or the way to it, cannot be used.
    #[error("the GPU's memory cannot be reached")]
    Gpu(#[from] GpuError),
    /// The file to be sent cannot be read.
    #[error("the file cannot be read")]
    File(#[from] std::io::Error),
}

/// An error answered by the service.
#[derive(Debug, thiserror::Error)]
#[error("{code} ({status}): {message}")]
pub struct ServiceError {
    /// The HTTP status.
    pub status: ::http::StatusCode,
    /// S3's error code; the status in words where the answer had no body.
    pub code: String,
    /// The service's explanation.
    pub message: String,
    /// The service's name for the request, to be quoted in complaints.
    pub request_id: Option<String>,
}

/// An answer that does not make sense.
#[derive(Debug, thiserror::Error)]
#[error("malformed answer: {what}")]
pub struct Malformed {
    what: &'static str,
    #[source]
    source: Option<BoxError>,
}

impl Malformed {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, source: None }
    }

    pub(crate) fn because(what: &'static str, source: impl Into<BoxError>) -> Self {
        Self { what, source: Some(source.into()) }
    }
}

/// Whether the same request may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryClass {
    /// The service asks for less: wait longer.
    Throttling,
    /// Bad luck: a broken connection, a failing server.
    Transient,
    /// The answer will be the same.
    Never,
}

impl ClientError {
    /// What ended an exchange: the connection, or the GPU that its body came from.
    pub(crate) fn of_connection(error: hyper::Error) -> Self {
        let cause = std::error::Error::source(&error);
        match cause.and_then(|cause| cause.downcast_ref::<GpuError>()) {
            Some(gpu) => Self::Gpu(gpu.clone()),
            None => Self::Transport(error),
        }
    }

    /// Whether the same request may succeed later.
    pub fn class(&self) -> RetryClass {
        match self {
            Self::Service(error) => error.class(),
            Self::Connect { .. }
            | Self::Transport(_)
            | Self::Socket(_)
            | Self::Stalled(_)
            | Self::BrokenBody { .. }
            | Self::Rdma(_) => RetryClass::Transient,
            _ => RetryClass::Never,
        }
    }

    /// Whether the request that failed so may have left this machine.
    pub(crate) fn request_left(&self) -> bool {
        !matches!(self, Self::Connect { .. } | Self::Sign(_) | Self::Request(_) | Self::Name(_))
    }

    /// The service's error, if it was the service that refused.
    pub fn service(&self) -> Option<&ServiceError> {
        match self {
            Self::Service(error) => Some(error),
            _ => None,
        }
    }

    /// S3's error code, such as `NoSuchKey`, if the service refused.
    pub fn code(&self) -> Option<&str> {
        self.service().map(|error| error.code.as_str())
    }

    /// The HTTP status, if the service refused.
    pub fn status(&self) -> Option<::http::StatusCode> {
        self.service().map(|error| error.status)
    }

    /// Whether there is no such object, bucket or upload.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(::http::StatusCode::NOT_FOUND)
    }
}

impl ServiceError {
    /// Client errors are never asked again, but for the two that mean "later": throttling,
    /// and a request that the server gave up waiting for.
    fn class(&self) -> RetryClass {
        match (self.status.as_u16(), self.code.as_str()) {
            (429, _) | (_, "SlowDown" | "ThrottlingException" | "RequestLimitExceeded") => {
                RetryClass::Throttling
            }
            (408, _) | (400, "RequestTimeout") => RetryClass::Transient,
            // A full disk does not empty itself between two attempts.
            (501 | 505 | 507, _) => RetryClass::Never,
            (500..=599, _) => RetryClass::Transient,
            _ => RetryClass::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(status: u16, code: &str) -> RetryClass {
        ClientError::Service(Box::new(ServiceError {
            status: ::http::StatusCode::from_u16(status).expect("a status"),
            code: code.to_owned(),
            message: String::new(),
            request_id: None,
        }))
        .class()
    }

    #[test]
    fn client_errors_are_final_and_server_errors_are_not() {
        for (status, code, class) in [
            (404, "NoSuchKey", RetryClass::Never),
            (403, "AccessDenied", RetryClass::Never),
            (412, "PreconditionFailed", RetryClass::Never),
            (400, "RequestTimeout", RetryClass::Transient),
            (429, "", RetryClass::Throttling),
            (503, "SlowDown", RetryClass::Throttling),
            (503, "ServiceUnavailable", RetryClass::Transient),
            (500, "InternalError", RetryClass::Transient),
            (507, "InsufficientStorage", RetryClass::Never),
        ] {
            assert_eq!(service(status, code), class, "{status} {code}");
        }
    }
}
