//! What every outcome says.

use keyway_client::{Fallbacks, GetOutcome, ObjectInfo, PutOutcome, Verified};
use keyway_proto::{Durability, KeyStrength, TransferPath};

/// A finished transfer.
#[derive(Clone, Debug)]
pub struct Report {
    /// Bytes moved.
    pub bytes: u64,
    /// How they travelled.
    pub path: TransferPath,
    /// What protected the caller's memory; the weakest where parts differ.
    pub strength: KeyStrength,
    /// Whether they were checked against a checksum of the whole.
    pub verified: Verified,
    /// Requests that had to be made again.
    pub retries: u32,
    /// Requests that took another path than allowed, and why.
    pub fallbacks: Fallbacks,
    /// The object's ETag.
    pub etag: Option<String>,
    /// Its version, where the bucket keeps versions.
    pub version: Option<String>,
    /// Its size, whatever range was moved.
    pub object_bytes: u64,
    /// What a write survives by now; of a read it says nothing.
    pub durability: Durability,
}

impl Report {
    /// Separates a read's report from its memory.
    pub(crate) fn of_get<T>(outcome: GetOutcome<T>) -> (Self, T) {
        let ObjectInfo { size, etag, version, .. } = outcome.info;
        let report = Self {
            bytes: outcome.bytes,
            path: outcome.path,
            strength: outcome.strength,
            verified: outcome.verified,
            retries: outcome.retries,
            fallbacks: outcome.fallbacks,
            etag,
            version,
            object_bytes: size,
            durability: Durability::default(),
        };
        (report, outcome.target)
    }

    pub(crate) fn of_put(outcome: PutOutcome) -> Self {
        Self {
            bytes: outcome.bytes,
            path: outcome.path,
            strength: outcome.strength,
            verified: outcome.verified,
            retries: outcome.retries,
            fallbacks: outcome.fallbacks,
            etag: outcome.etag,
            version: outcome.version,
            object_bytes: outcome.bytes,
            durability: outcome.durability,
        }
    }

    /// Several reads of one object as one; `None` of none. Path, strength and verification are
    /// those of the weakest.
    pub fn all(reports: impl IntoIterator<Item = Self>) -> Option<Self> {
        reports.into_iter().reduce(|mut all, next| {
            if next.strength < all.strength {
                (all.path, all.strength) = (next.path, next.strength);
            }
            if !next.verified.is_whole() {
                all.verified = next.verified;
            }
            all.bytes += next.bytes;
            all.retries += next.retries;
            all.fallbacks.merge(&next.fallbacks);
            all
        })
    }
}
