//! What is written: memory, or a file, cut into runs.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use keyway_fabric::memory::{HostBuffer, HostSlice};

use super::PutBody;
use crate::error::ClientError;

/// Where parts come from.
#[derive(Clone)]
pub(super) enum Source {
    Memory(Bytes),
    Host(HostSlice),
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

impl Run<'_> {
    /// The bytes, for a body: a view of memory, or a read of the file.
    ///
    /// # Errors
    /// When the file cannot be read, or has become shorter.
    pub(super) async fn bytes(&self) -> Result<Bytes, ClientError> {
        let range = self.offset as usize..(self.offset + self.length) as usize;
        match self.source {
            Source::Memory(bytes) => Ok(bytes.slice(range)),
            Source::Host(slice) => Ok(slice.part(range).into_bytes()),
            Source::File { .. } => Ok(self.read().await?.into()),
        }
    }

    /// The bytes in memory that can be lent to a node: the caller's own, or else a copy.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), and where there is no memory.
    pub(super) async fn lendable(&self) -> Result<HostSlice, ClientError> {
        let range = self.offset as usize..(self.offset + self.length) as usize;
        let mut buffer = match self.source {
            Source::Host(slice) => return Ok(slice.part(range)),
            Source::File { .. } => HostBuffer::from(self.read().await?),
            Source::Memory(bytes) => {
                let mut buffer = HostBuffer::zeroed(range.len())?;
                let copy = buffer.bytes_mut().expect("a new buffer is not lent");
                copy.copy_from_slice(&bytes[range]);
                buffer
            }
        };
        Ok(buffer.slice(..).expect("a new buffer is not lent"))
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
