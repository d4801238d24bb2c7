//! A run of verified bytes on its way to whoever asked, with what is known of it.

use std::ops::Deref;

use bytes::Bytes;
use keyway_proto::Checksum;

use super::tier::KnownSums;

/// Verified bytes, contiguous in memory. Clones share them.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Bytes,
    sums: Option<KnownSums>,
}

impl Frame {
    /// Bytes whose block sums lie elsewhere, or nowhere.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, sums: None }
    }

    pub(super) fn with_sums(bytes: Bytes, sums: KnownSums) -> Self {
        Self { bytes, sums: Some(sums) }
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes alone.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Their CRC64NVME as it was when they came into memory: combined of stored sums, so that
    /// only the ragged edges of a range are looked at. Bytes that have changed in memory since
    /// then do not have it. `None` when nothing is stored and all would have to be hashed.
    pub fn crc64nvme(&self) -> Option<Checksum> {
        self.sums.as_ref().map(|sums| sums.crc64nvme(&self.bytes))
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
