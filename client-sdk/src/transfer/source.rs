//! What is written: memory of the host or of a GPU, or a file, cut into runs.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use keyway_fabric::gpu::GpuError;
use keyway_fabric::memory::{DeviceSlice, HostBuffer, HostSlice};
use keyway_proto::{Checksum, ChecksumKind, DigestSet};

use super::PutBody;
use crate::error::ClientError;
use crate::http::{CallBody, Client, Fetched};
use crate::rdma::{Reach, Target};
use crate::staging::{BOUNCE_BYTES_MAX, Bounce, Ring, Staging};

/// Where parts come from.
#[derive(Clone)]
pub(super) enum Source {
    Memory(Bytes),
    Host(HostSlice),
    Device(DeviceSlice),
    File { file: Arc<std::fs::File>, bytes: u64 },
}

/// A run of a source.
pub(super) struct Run<'a> {
    source: &'a Source,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Source {
    pub(super) async fn open(body: PutBody) -> Result<Self, ClientError> {
        match body {
            PutBody::Bytes(bytes) => Ok(Self::Memory(bytes)),
            PutBody::Host(slice) => Ok(Self::Host(slice)),
            PutBody::Device(slice) => Ok(Self::Device(slice)),
            PutBody::File(path) => {
                let file = tokio::fs::File::open(path).await?;
                let bytes = file.metadata().await?.len();
                Ok(Self::File { file: Arc::new(file.into_std().await), bytes })
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Host(slice) => slice.len() as u64,
            Self::Device(slice) => slice.len() as u64,
            Self::File { bytes, .. } => *bytes,
        }
    }

    pub(super) fn whole(&self) -> Run<'_> {
        self.run(0, self.bytes())
    }

    /// # Panics
    /// When it leaves the source.
    pub(super) fn run(&self, offset: u64, length: u64) -> Run<'_> {
        assert!(offset + length <= self.bytes(), "a run lies in its source");
        Run { source: self, offset, length }
    }
}

/// A run, ready to be sent.
pub(super) enum Body {
    /// In memory that can be lent to a node.
    Lent(HostSlice),
    /// In memory.
    Bytes(Bytes),
    /// In a GPU's memory.
    Device(DeviceSlice),
}

/// Bytes of a GPU's memory, and the way out of it.
pub(super) struct DeviceBody {
    slice: DeviceSlice,
    ring: Arc<Ring>,
}

impl Fetched for DeviceBody {
    fn length(&self) -> u64 {
        self.slice.len() as u64
    }

    fn pieces(&self) -> BoxStream<'static, Result<Bytes, GpuError>> {
        self.ring.read(self.slice.clone())
    }
}

/// The CRC64NVME of memory, as it lies there.
///
/// # Errors
/// When the GPU fails.
pub(super) async fn checksum(memory: impl Target) -> Result<Checksum, ClientError> {
    let (kind, bytes) = (ChecksumKind::Crc64Nvme, memory.length());
    let (_, found) = memory.digests(bytes, DigestSet::NONE.with(kind)).await;
    Ok(*found?.value(kind).expect("what was asked for is there"))
}

impl Body {
    /// The CRC64NVME of the bytes, as they lie there.
    ///
    /// # Errors
    /// When the GPU fails.
    pub(super) async fn checksum(&self) -> Result<Checksum, ClientError> {
        match self {
            Self::Lent(memory) => checksum(memory.clone()).await,
            Self::Bytes(bytes) => Ok(Checksum::of(ChecksumKind::Crc64Nvme, bytes)),
            Self::Device(slice) => checksum(slice.clone()).await,
        }
    }

    /// What a request carries.
    ///
    /// # Errors
    /// When there is no way out of the GPU.
    pub(super) async fn into_call(self, staging: &Staging) -> Result<CallBody, ClientError> {
        Ok(match self {
            Self::Lent(memory) => CallBody::Bytes(memory.into_bytes()),
            Self::Bytes(bytes) => CallBody::Bytes(bytes),
            Self::Device(slice) => {
                let ring = staging.ring(slice.gpu()).await?;
                CallBody::Fetched(Arc::new(DeviceBody { slice, ring }))
            }
        })
    }
}

impl From<HostSlice> for Body {
    fn from(memory: HostSlice) -> Self {
        Self::Lent(memory)
    }
}

impl From<DeviceSlice> for Body {
    fn from(slice: DeviceSlice) -> Self {
        Self::Device(slice)
    }
}

impl Run<'_> {
    /// The bytes, for a request's body: a view of memory, or a read of the file.
    ///
    /// # Errors
    /// When the file cannot be read, or has become shorter.
    pub(super) async fn body(&self) -> Result<Body, ClientError> {
        let range = self.range();
        Ok(match self.source {
            Source::Memory(bytes) => Body::Bytes(bytes.slice(range)),
            Source::Host(slice) => Body::Bytes(slice.part(range).into_bytes()),
            Source::File { .. } => Body::Bytes(self.read().await?.into()),
            Source::Device(slice) => Body::Device(slice.part(range)),
        })
    }

    /// What can be done with the memory that it is lent in. Bytes and files are brought into
    /// memory of our own, of the kind that can be shared where that is wanted.
    pub(super) fn reach(&self, shared: bool) -> Reach {
        match self.source {
            Source::Host(slice) => Reach::of(slice),
            Source::Device(slice) => Reach::of(slice),
            Source::Memory(_) | Source::File { .. } => Reach::of_own(shared),
        }
    }

    /// A copy in the host's memory of what is in a GPU's, and the buffer that it lies in, where
    /// that is the way to a node.
    ///
    /// # Errors
    /// When the GPU fails, or there is no memory.
    pub(super) async fn staged(
        &self,
        client: &Client,
    ) -> Result<Option<(Source, Bounce)>, ClientError> {
        let Source::Device(slice) = self.source else { return Ok(None) };
        let fits = self.length <= BOUNCE_BYTES_MAX as u64;
        if !fits || !Box::pin(client.rdma().stages(self.length, &Reach::of(slice))).await {
            return Ok(None);
        }
        let ring = client.staging().ring(slice.gpu()).await?;
        let mut bounce = ring.bounces.take(self.length as usize).await?;
        let copy = bounce.copy_out(slice.part(self.range())).await?;
        Ok(Some((Source::Host(copy), bounce)))
    }

    /// The bytes in memory that can be lent to a node: the caller's own, or else a copy.
    ///
    /// # Errors
    /// As [`body`](Self::body), and where there is no memory.
    pub(super) async fn lendable(&self, shared: bool) -> Result<Body, ClientError> {
        let range = self.range();
        let bytes = match self.source {
            Source::Host(slice) => return Ok(Body::Lent(slice.part(range))),
            Source::Device(_) => return self.body().await,
            Source::File { .. } => Bytes::from(self.read().await?),
            Source::Memory(bytes) => bytes.slice(range),
        };
        let mut buffer = if shared {
            HostBuffer::shared(bytes.len())?
        } else {
            HostBuffer::zeroed(bytes.len())?
        };
        let copy = buffer.bytes_mut().expect("a new buffer is not lent");
        copy.copy_from_slice(&bytes);
        Ok(Body::Lent(buffer.slice(..).expect("a new buffer is not lent")))
    }

    fn range(&self) -> std::ops::Range<usize> {
        self.offset as usize..(self.offset + self.length) as usize
    }

    async fn read(&self) -> Result<Vec<u8>, ClientError> {
        let Source::File { file, .. } = self.source else { return Ok(Vec::new()) };
        let (file, offset, length) = (Arc::clone(file), self.offset, self.length);
        let read = move || {
            let mut part = vec![0; length as usize];
            file.read_exact_at(&mut part, offset)?;
            Ok::<_, std::io::Error>(part)
        };
        let read = tokio::task::spawn_blocking(read).await;
        Ok(read.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))?)
    }
}
