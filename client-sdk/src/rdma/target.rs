//! Memory that a transfer fills or drains.

use std::any::Any;
use std::sync::Arc;

use keyway_fabric::gpu::{CopyQueue, Gpu, GpuError};
use keyway_fabric::ipc::{Export, ExportId};
use keyway_fabric::memory::{BufferLife, DeviceSlice, DeviceSliceMut, HostSlice, HostSliceMut};
use keyway_fabric::verbs::{Anchor, VerbsError};
use keyway_proto::{Checksum, DigestSet, Digests, TransferPath};

use super::fallback::Fallback;
use super::sums;
use crate::error::ClientError;

/// Memory that is lent to a node for one transfer: all of it, and nothing beside it.
///
/// It moves into the transfer and comes back when the key is dead. Memory of another kind, such
/// as a GPU's, is another implementation.
pub trait Target: Send + Sync + 'static {
    /// How bytes travel that a node moves into it or out of it.
    const PATH: TransferPath;

    /// The same, for a node of this host.
    const LOCAL_PATH: TransferPath;

    /// The GPU whose memory it is; none where it is the host's.
    fn gpu(&self) -> Option<&Arc<Gpu>>;

    /// Whether another process can map it, as far as is known without asking a device.
    fn is_shareable(&self) -> bool;

    /// Which memory another process would map.
    ///
    /// # Errors
    /// [`Fallback::NotShared`].
    fn export_id(&self) -> Result<ExportId, Fallback>;

    /// What another process maps it by. Costs more than to ask which memory that is.
    ///
    /// # Errors
    /// [`Fallback::NotShared`].
    fn export(&self) -> Result<Export, Fallback>;

    /// The first byte's address, as the adapter knows it.
    fn address(&self) -> u64;

    /// Bytes.
    fn length(&self) -> usize;

    /// All of the buffer that it is a part of.
    ///
    /// # Errors
    /// Where adapters cannot register it.
    fn anchor(&self) -> Result<Anchor, VerbsError>;

    /// It alone.
    ///
    /// # Errors
    /// Where adapters cannot register it.
    fn exact_anchor(&self) -> Result<Anchor, VerbsError>;

    /// Whether the buffer that it is a part of is still in use.
    fn life(&self) -> BufferLife;

    /// Its bytes, where they are the host's: what goes by way of a slab.
    fn host_bytes(&self) -> Option<&[u8]>;

    /// The same, where they may be written.
    fn host_bytes_mut(&mut self) -> Option<&mut [u8]>;

    /// Checksums of the first `bytes` bytes, as they lie in the memory, which comes back.
    fn digests(
        self,
        bytes: usize,
        set: DigestSet,
    ) -> impl Future<Output = (Self, Result<Digests, ClientError>)> + Send
    where
        Self: Sized;
}

macro_rules! host_target {
    ($slice:ty, $bytes_mut:path) => {
        impl Target for $slice {
            const PATH: TransferPath = TransferPath::VerbsHost;
            const LOCAL_PATH: TransferPath = TransferPath::IpcHost;

            fn gpu(&self) -> Option<&Arc<Gpu>> {
                None
            }

            fn is_shareable(&self) -> bool {
                <$slice>::export(self).is_some()
            }

            fn export_id(&self) -> Result<ExportId, Fallback> {
                Target::export(self).map(|export| export.id())
            }

            fn export(&self) -> Result<Export, Fallback> {
                <$slice>::export(self).ok_or(Fallback::NotShared)
            }

            fn address(&self) -> u64 {
                <$slice>::address(self)
            }

            fn length(&self) -> usize {
                self.len()
            }

            fn anchor(&self) -> Result<Anchor, VerbsError> {
                Ok(<$slice>::anchor(self))
            }

            fn exact_anchor(&self) -> Result<Anchor, VerbsError> {
                Ok(<$slice>::exact_anchor(self))
            }

            fn life(&self) -> BufferLife {
                <$slice>::life(self)
            }

            fn host_bytes(&self) -> Option<&[u8]> {
                Some(self)
            }

            fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
                $bytes_mut(self)
            }

            async fn digests(
                self,
                bytes: usize,
                set: DigestSet,
            ) -> (Self, Result<Digests, ClientError>) {
                let (memory, digests) = sums::of(self, bytes, set).await;
                (memory, Ok(digests))
            }
        }
    };
}

host_target!(HostSliceMut, writable);
host_target!(HostSlice, read_only);

fn writable(slice: &mut HostSliceMut) -> Option<&mut [u8]> {
    Some(slice)
}

fn read_only(_: &mut HostSlice) -> Option<&mut [u8]> {
    None
}

macro_rules! device_target {
    ($slice:ty) => {
        impl Target for $slice {
            const PATH: TransferPath = TransferPath::VerbsGpu;
            const LOCAL_PATH: TransferPath = TransferPath::IpcGpu;

            fn gpu(&self) -> Option<&Arc<Gpu>> {
                Some(<$slice>::gpu(self))
            }

            fn is_shareable(&self) -> bool {
                true
            }

            fn export_id(&self) -> Result<ExportId, Fallback> {
                <$slice>::allocation(self).map(ExportId::Gpu).map_err(|error| not_exported(&error))
            }

            fn export(&self) -> Result<Export, Fallback> {
                let export = <$slice>::export(self).map_err(|error| not_exported(&error))?;
                Ok(Export::Gpu(Arc::new(export)))
            }

            fn address(&self) -> u64 {
                <$slice>::address(self)
            }

            fn length(&self) -> usize {
                self.len()
            }

            fn anchor(&self) -> Result<Anchor, VerbsError> {
                // Whole buffers are registered for windows alone.
                Err(VerbsError::NoWindows)
            }

            fn exact_anchor(&self) -> Result<Anchor, VerbsError> {
                Ok(<$slice>::exact_anchor(self)?)
            }

            fn life(&self) -> BufferLife {
                <$slice>::life(self)
            }

            fn host_bytes(&self) -> Option<&[u8]> {
                None
            }

            fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
                None
            }

            async fn digests(
                self,
                bytes: usize,
                set: DigestSet,
            ) -> (Self, Result<Digests, ClientError>) {
                assert!(bytes <= self.len(), "digests are of bytes of the slice");
                let range = (self.address(), bytes as u64);
                let found = digests_on(<$slice>::gpu(&self), range, self.backing(), set).await;
                (self, found)
            }
        }
    };
}

device_target!(DeviceSliceMut);
device_target!(DeviceSlice);

fn not_exported(error: &GpuError) -> Fallback {
    tracing::debug!(%error, "GPU memory is not exported");
    Fallback::NotShared
}

/// Checksums that the GPU computes.
async fn digests_on(
    gpu: &Arc<Gpu>,
    (address, bytes): (u64, u64),
    keep: Arc<dyn Any + Send + Sync>,
    set: DigestSet,
) -> Result<Digests, ClientError> {
    // What an adapter wrote is there for the GPU's work from here on.
    gpu.flush_remote_writes()?;
    let queue = CopyQueue::open(gpu)?;
    let mut found = Vec::new();
    // A GPU computes CRCs. Other digests of the object are not compared; the CRC64NVME of what
    // the node sent always is.
    for kind in set.iter().filter(|kind| kind.combines()) {
        found.push(match bytes {
            0 => Checksum::of(kind, &[]),
            _ => queue.digest(kind, address, bytes, Arc::clone(&keep)).await?,
        });
    }
    Ok(found.into_iter().collect())
}
