//! A chunk that a transfer reads: as it is stored, or opened under its object's key. Its bytes are
//! the object's, either way.

use futures::future::BoxFuture;
use keyway_fabric::memory::{Lease, LeaseClass, LeasePool};
use keyway_proto::{ByteRange, ChunkId, DataKey, Verification, seal};

use crate::cipher::Sealed;
use crate::node::TransferError;
use crate::store::{
    BlobStore, Fetched, Frame, PIECE_BYTES_MAX, PinnedChunk, Resident, StoreError, read_class,
};

/// A pinned chunk.
pub(super) enum Chunk {
    /// As it is stored.
    Plain(Box<dyn PinnedChunk>),
    /// Encrypted.
    Sealed(Sealed),
}

/// What a plan says of its chunks besides their ids.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) key: Option<&'a DataKey>,
    pub(super) verification: Verification,
    pub(super) pool: &'a LeasePool,
}

impl Chunk {
    /// Pins a chunk of the store.
    ///
    /// # Errors
    /// [`TransferError::NoSuchChunk`], and [`TransferError::InvalidPlan`] where there is a key and
    /// the chunk is as long as no encrypted one.
    pub(super) fn pin(
        store: &dyn BlobStore,
        chunk: ChunkId,
        reading: Reading<'_>,
    ) -> Result<Self, TransferError> {
        let pin = store.pin(chunk).ok_or(TransferError::NoSuchChunk(chunk))?;
        let Reading { key, verification, pool } = reading;
        let Some(key) = key else { return Ok(Self::Plain(pin)) };
        let sealed = Sealed::new(pin, chunk, key, verification, pool);
        sealed.map(Self::Sealed).ok_or(TransferError::InvalidPlan("a chunk is not encrypted"))
    }

    /// Bytes of the object.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Plain(pin) => pin.length(),
            Self::Sealed(sealed) => sealed.length(),
        }
    }

    /// As [`PinnedChunk::held`]. What is in memory of an encrypted chunk is encrypted.
    pub(super) fn held(&self, range: ByteRange) -> Option<Frame> {
        match self {
            Self::Plain(pin) => pin.held(range),
            Self::Sealed(_) => None,
        }
    }

    /// As [`PinnedChunk::resident`].
    pub(super) fn resident(&self) -> Option<Box<dyn Resident>> {
        match self {
            Self::Plain(pin) => pin.resident(),
            Self::Sealed(_) => None,
        }
    }

    /// As [`PinnedChunk::read`], of a range in one window ([`front`]).
    pub(super) fn read(
        &self,
        range: ByteRange,
        lease: Option<Lease>,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        match self {
            Self::Plain(pin) => pin.read(range, lease),
            Self::Sealed(sealed) => sealed.read(range, lease),
        }
    }

    /// The class of lease that a read takes.
    pub(super) fn read_class(&self, range: ByteRange) -> LeaseClass {
        match self {
            Self::Plain(pin) => read_class(range, pin.length()),
            Self::Sealed(sealed) => sealed.read_class(range),
        }
    }

    /// As much of a range, from its first byte on, as one read can be about.
    pub(super) fn front(&self, range: ByteRange) -> ByteRange {
        front(range, PIECE_BYTES_MAX as u64, matches!(self, Self::Sealed(_)))
    }

    /// The same for shorter reads.
    pub(super) fn front_within(&self, range: ByteRange, window: u64) -> ByteRange {
        front(range, window, matches!(self, Self::Sealed(_)))
    }
}

/// As much of a range, from its first byte on, as lies in one window of `window` stored bytes.
pub(super) fn front(range: ByteRange, window: u64, is_sealed: bool) -> ByteRange {
    let end = if is_sealed {
        seal::window_end(range.offset(), window)
    } else {
        (range.offset() / window + 1).saturating_mul(window)
    };
    let end = end.min(range.end());
    ByteRange::new(range.offset(), end - range.offset()).expect("the range's front")
}
