//! Reading an encrypted chunk: stored blocks into a lease, opened where they lie.
//!
//! Sketch of a read of 1 MiB: the device's read into a lease, the pass of CRC32C where it is not
//! waived, one of AES-GCM, and the same lease leaves with the object's bytes. What the memory tier
//! holds is stored blocks too: they are copied into the lease first. Every block's tag is compared
//! before any byte of the read is handed out, whatever is waived.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use keyway_fabric::memory::{Lease, LeaseClass, LeasePool};
use keyway_proto::seal::{opened_length, stored_span};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{ByteRange, ChunkId, DataKey, Verification};

use super::{ChunkCipher, INLINE_BYTES_MAX, PLAIN};
use crate::store::{Fetched, Frame, PinnedChunk, StoreError, read_class};

/// A pinned chunk and its cipher: a chunk of the object's bytes.
pub(crate) struct Sealed {
    pin: Arc<dyn PinnedChunk>,
    opener: Arc<Opener>,
    pool: LeasePool,
    length: u64,
}

struct Opener {
    cipher: ChunkCipher,
    chunk: ChunkId,
    verification: Verification,
}

impl Sealed {
    /// The chunk, to be read under its object's key; `None` when no encrypted chunk is as long.
    pub(crate) fn new(
        pin: Box<dyn PinnedChunk>,
        chunk: ChunkId,
        key: &DataKey,
        verification: Verification,
        pool: &LeasePool,
    ) -> Option<Self> {
        let length = opened_length(pin.length())?;
        let opener = Opener { cipher: ChunkCipher::new(key, chunk), chunk, verification };
        let pin = Arc::from(pin);
        Some(Self { pin, opener: Arc::new(opener), pool: pool.clone(), length })
    }

    /// Bytes of the object in the chunk.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The class of lease that reading a range of the object's bytes takes.
    pub(crate) fn read_class(&self, range: ByteRange) -> LeaseClass {
        let stored = self.pin.length();
        read_class(stored_span(range, stored), stored)
    }

    /// As [`PinnedChunk::read`], of a range of the object's bytes in one window of the stored ones.
    /// What comes is verified, whatever the plan waives.
    pub(crate) fn read(
        &self,
        range: ByteRange,
        lease: Option<Lease>,
    ) -> BoxFuture<'static, Result<Fetched, StoreError>> {
        let span = stored_span(range, self.pin.length());
        // The buffer first: a read into it begins when it is there.
        let reading = match lease {
            Some(lease) => self.pin.read_into(span, lease),
            None => {
                let (pool, class) = (self.pool.clone(), self.read_class(range));
                let pin = Arc::clone(&self.pin);
                async move { pin.read_into(span, pool.lease(class).await).await }.boxed()
            }
        };
        let opener = Arc::clone(&self.opener);
        async move {
            let fetched = reading.await?;
            let frame = if span.length() as usize <= INLINE_BYTES_MAX {
                opener.open(fetched, span, range)?
            } else {
                let opening =
                    tokio::task::spawn_blocking(move || opener.open(fetched, span, range));
                // The runtime stops, and the store with it.
                opening.await.map_err(|_| StoreError::Closed)??
            };
            Ok(Fetched::held(frame))
        }
        .boxed()
    }
}

impl Opener {
    fn open(
        &self,
        fetched: Fetched,
        span: ByteRange,
        range: ByteRange,
    ) -> Result<Frame, StoreError> {
        let fetched = match self.verification {
            Verification::Client => fetched,
            Verification::BeforeDelivery | Verification::Inline => fetched.verified()?,
        };
        let mut lease = fetched.into_lease().expect("it was read into a lease");
        let first = span.offset() / BLOCK_BYTES;
        let opened = self.cipher.open(first, &mut lease, span.length() as usize);
        opened.map_err(|refused| {
            let error =
                StoreError::Damaged { chunk: self.chunk, offset: refused.block * BLOCK_BYTES };
            tracing::error!(%error, "a stored block does not open under its key");
            error
        })?;
        let start = (range.offset() - first * PLAIN as u64) as usize;
        Ok(Frame::new(lease.into_bytes(start..start + range.length() as usize)))
    }
}
