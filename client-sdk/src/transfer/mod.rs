//! Bytes between objects and the caller's memory.
//!
//! By RDMA no byte passes here; the CPU reads them once for the checksum, and that is what
//! bounds it besides the link. Over HTTP:
//!
//! GET, per byte: the kernel copies from the socket into the caller's memory, and the CPU reads
//! the same cache lines for the checksum; bodies of less than 256 KiB are copied once more, out
//! of the connection's buffer. PUT: read once for the checksum, then handed to the kernel from
//! where it lies. GPU memory: the same with a ring of pinned memory in the caller's place, and
//! the copy engine between the two ([`landing`], [`staging`](crate::staging)); what is sent is
//! hashed by the GPU. Where adapters reach the host's memory alone, a node moves the bytes into pinned
//! memory that stands in for the GPU's, and the copy engine moves them on ([`staged`]). Round trips: an object of up to one part is one request; a larger one is a
//! HEAD and then its parts side by side, each pinned to the HEAD's ETag. What bounds it: the
//! kernel's loopback or network path, with `concurrency` parts in flight.

mod checks;
mod crew;
mod direct;
mod fetch;
mod gather;
mod gathered;
mod get;
mod info;
mod landing;
mod multipart;
mod parts;
mod put;
mod ranges;
mod send;
mod source;
mod staged;
mod stop;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyway_proto::Checksum;

use crate::error::ClientError;

pub(crate) use checks::Checks;
pub use gather::{Gather, GatherOutcome};
pub use get::{GetObject, GetOutcome};
pub use info::ObjectInfo;
pub use landing::GetTarget;
#[cfg(feature = "object_store")]
pub(crate) use multipart::{Part, PutUpload};
pub use put::{PutBody, PutObject, PutOutcome};
pub use ranges::GetRanges;
pub(crate) use stop::Stop;

/// Whether the bytes of a transfer were checked against a checksum of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// Against this checksum, by both ends.
    Whole(Checksum),
    /// Not, for this reason.
    No(Unverified),
}

/// Why bytes were not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unverified {
    /// The checksum covers the object, and a range was read.
    Range,
    /// The service keeps or tells none.
    NoneStored,
    /// The checksum is one of the parts' checksums, not of the bytes; or each part was checked, and
    /// the whole was not.
    Composite,
}

impl Verified {
    /// Whether the bytes were checked.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(checksum) => write!(f, "verified {}", checksum.kind()),
            Self::No(reason) => f.write_str(match reason {
                Unverified::Range => "not verified: a range",
                Unverified::NoneStored => "not verified: no checksum stored",
                Unverified::Composite => "not verified: a composite checksum",
            }),
        }
    }
}

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes moved. Bytes sent again after a failure are counted once.
    pub bytes: u64,
    /// Bytes to move.
    pub total: u64,
}

/// A failed read, and the memory that was lent to it: what it holds is undefined, but it is
/// nobody else's any more.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed<T> {
    /// Why.
    #[source]
    pub error: ClientError,
    /// The memory.
    pub target: T,
}

/// Told how far a transfer has come, from any thread.
pub(crate) type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// Adds up the progress of parts that run side by side.
#[derive(Clone)]
pub(crate) struct Meter(Option<Arc<MeterState>>);

struct MeterState {
    bytes: AtomicU64,
    total: AtomicU64,
    report: ProgressFn,
}

impl Meter {
    /// A meter for `total` bytes, or for as many as an answer will tell.
    pub(crate) fn new(total: Option<u64>, report: Option<ProgressFn>) -> Self {
        Self(report.map(|report| {
            let total = AtomicU64::new(total.unwrap_or_default());
            Arc::new(MeterState { bytes: AtomicU64::new(0), total, report })
        }))
    }

    pub(crate) fn set_total(&self, total: u64) {
        if let Some(state) = &self.0 {
            state.total.store(total, Ordering::Relaxed);
        }
    }

    pub(crate) fn add(&self, bytes: u64) {
        if let Some(state) = &self.0 {
            let bytes = state.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            let total = state.total.load(Ordering::Relaxed);
            (state.report)(Progress { bytes, total });
        }
    }

    /// Takes back what a failed attempt had counted.
    pub(crate) fn take_back(&self, bytes: u64) {
        if let Some(state) = &self.0 {
            state.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.0.is_none()
    }
}
