//! Memory that a transfer fills or drains.

use keyway_fabric::memory::{BufferLife, HostSlice, HostSliceMut};
use keyway_fabric::verbs::Anchor;
use keyway_proto::checksum::MultiHasher;
use keyway_proto::{DigestSet, Digests, TransferPath};

use crate::error::ClientError;

/// Bytes hashed before other tasks have their turn.
const HASHED_AT_ONCE_BYTES: usize = 1 << 20;

/// Memory that is lent to a node for one transfer: all of it, and nothing beside it.
///
/// It moves into the transfer and comes back when the key is dead. Memory of another kind, such
/// as a GPU's, is another implementation.
pub trait Target: Send + Sync + 'static {
    /// How bytes travel that a node moves into it or out of it.
    const PATH: TransferPath;

    /// The first byte's address, as the adapter knows it.
    fn address(&self) -> u64;

    /// Bytes.
    fn length(&self) -> usize;

    /// All of the buffer that it is a part of.
    fn anchor(&self) -> Anchor;

    /// It alone.
    fn exact_anchor(&self) -> Anchor;

    /// Whether the buffer that it is a part of is still in use.
    fn life(&self) -> BufferLife;

    /// Checksums of the first `bytes` bytes, as they lie in the memory.
    fn digests(
        &self,
        bytes: usize,
        set: DigestSet,
    ) -> impl Future<Output = Result<Digests, ClientError>> + Send;
}

macro_rules! host_target {
    ($slice:ty) => {
        impl Target for $slice {
            const PATH: TransferPath = TransferPath::VerbsHost;

            fn address(&self) -> u64 {
                <$slice>::address(self)
            }

            fn length(&self) -> usize {
                self.len()
            }

            fn anchor(&self) -> Anchor {
                <$slice>::anchor(self)
            }

            fn exact_anchor(&self) -> Anchor {
                <$slice>::exact_anchor(self)
            }

            fn life(&self) -> BufferLife {
                <$slice>::life(self)
            }

            async fn digests(&self, bytes: usize, set: DigestSet) -> Result<Digests, ClientError> {
                Ok(digests(&self[..bytes], set).await)
            }
        }
    };
}

host_target!(HostSliceMut);
host_target!(HostSlice);

async fn digests(bytes: &[u8], set: DigestSet) -> Digests {
    let mut hasher = MultiHasher::new(set);
    for (turn, piece) in bytes.chunks(HASHED_AT_ONCE_BYTES).enumerate() {
        if turn > 0 {
            tokio::task::yield_now().await;
        }
        hasher.update(piece);
    }
    hasher.finish()
}
