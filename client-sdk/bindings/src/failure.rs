//! Every error, sorted once.

use std::error::Error;

use keyway_client::{ClientError, ConfigError, GpuError, LendError, MemoryError, ServiceError};

use crate::place::InvalidPlace;
use crate::settings::InvalidSetting;

/// Why something failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A setting does not hold.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// A text is no place.
    #[error(transparent)]
    Place(#[from] InvalidPlace),
    /// The client cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The client says so.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The memory cannot be lent.
    #[error(transparent)]
    Lend(#[from] LendError),
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The GPU, or its memory, cannot be used.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A range whose end nobody can name.
    #[error("{length} bytes from {offset} on pass the end of all objects")]
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The runtime's threads cannot be started.
    #[error("the client's threads cannot be started")]
    Runtime(#[source] std::io::Error),
}

/// What kind of failure it is: what a program asks before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The caller's values do not hold.
    Invalid,
    /// No such object, bucket or upload.
    NotFound,
    /// The service refuses the caller.
    AccessDenied,
    /// A condition of the request does not hold.
    PreconditionFailed,
    /// The service asks for less.
    Throttled,
    /// The service refuses otherwise, or fails.
    Service,
    /// No connection, or one that broke.
    Connection,
    /// The caller's deadline passed.
    Deadline,
    /// The bytes are not those that were stored or sent.
    ChecksumMismatch,
    /// The object was replaced while it was read.
    Changed,
    /// The memory does not hold the object.
    BufferTooSmall,
    /// The range leaves the object or the memory.
    OutOfRange,
    /// The memory is lent to another transfer.
    Busy,
    /// The required path is not to be had.
    PathUnavailable,
    /// There is no such GPU, or none at all.
    NoGpu,
    /// The GPU failed, or refuses the memory.
    Gpu,
    /// A transfer past HTTP failed.
    Transfer,
    /// There is no memory, no thread, no file.
    System,
    /// The answer made no sense.
    Malformed,
}

impl Failure {
    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Setting(_) | Self::Place(_) | Self::Config(_) => Kind::Invalid,
            Self::Client(error) => kind_of(error),
            Self::Lend(LendError::Lent) => Kind::Busy,
            Self::Lend(_) | Self::Range { .. } => Kind::OutOfRange,
            Self::Memory(_) | Self::Runtime(_) => Kind::System,
            Self::Gpu(error) => kind_of_gpu(error),
        }
    }

    /// The service's error, if it was the service that refused.
    pub fn service(&self) -> Option<&ServiceError> {
        match self {
            Self::Client(error) => error.service(),
            _ => None,
        }
    }

    /// The error and all that it stands on, in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let said = error.to_string();
            // Transparent layers say the same twice.
            if !text.ends_with(&said) {
                text.push_str(": ");
                text.push_str(&said);
            }
            cause = error.source();
        }
        text
    }
}

fn kind_of(error: &ClientError) -> Kind {
    match error {
        ClientError::Service(service) => kind_of_service(service),
        ClientError::Config(_)
        | ClientError::Name(_)
        | ClientError::Sign(_)
        | ClientError::Request(_)
        | ClientError::TooLarge(_) => Kind::Invalid,
        ClientError::Gpu(error) => kind_of_gpu(error),
        ClientError::Connect { .. }
        | ClientError::Transport(_)
        | ClientError::Socket(_)
        | ClientError::Stalled(_)
        | ClientError::BrokenBody { .. } => Kind::Connection,
        ClientError::Deadline => Kind::Deadline,
        ClientError::ChecksumMismatch { .. } => Kind::ChecksumMismatch,
        ClientError::Changed => Kind::Changed,
        ClientError::TargetTooSmall { .. } => Kind::BufferTooSmall,
        ClientError::RangeOutside { .. } => Kind::OutOfRange,
        ClientError::PathUnavailable { .. } => Kind::PathUnavailable,
        ClientError::Memory(_) | ClientError::File(_) => Kind::System,
        ClientError::Malformed(_) => Kind::Malformed,
        _ => Kind::Transfer,
    }
}

fn kind_of_gpu(error: &GpuError) -> Kind {
    match error {
        GpuError::NoGpu(_)
        | GpuError::NoSuchGpu(_)
        | GpuError::NoSuchUuid(_)
        | GpuError::Forked => Kind::NoGpu,
        GpuError::OutOfRange { .. } => Kind::OutOfRange,
        _ => Kind::Gpu,
    }
}

fn kind_of_service(error: &ServiceError) -> Kind {
    match (error.status.as_u16(), error.code.as_str()) {
        (404, _) => Kind::NotFound,
        (401 | 403, _) => Kind::AccessDenied,
        (304 | 412, _) => Kind::PreconditionFailed,
        (416, _) => Kind::OutOfRange,
        (429, _) | (_, "SlowDown") => Kind::Throttled,
        _ => Kind::Service,
    }
}
