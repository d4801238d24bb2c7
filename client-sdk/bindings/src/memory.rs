//! Memory of the caller: of the host, or of a GPU.

use std::ops::Range;

use keyway_client::{HostBuffer, HostSlice, HostSliceMut, MemoryError};

use crate::failure::Failure;

/// Memory that transfers fill or send.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// Of the host.
    Host(HostBuffer),
}

/// Memory lent to one read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Target {
    /// Of the host.
    Host(HostSliceMut),
}

/// Memory lent to a write.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// Of the host.
    Host(HostSlice),
}

impl Memory {
    /// Host memory of the client's own.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn host(bytes: usize) -> Result<Self, MemoryError> {
        HostBuffer::zeroed(bytes).map(Self::Host)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.len(),
        }
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nothing of it is lent.
    pub fn is_idle(&mut self) -> bool {
        match self {
            Self::Host(buffer) => buffer.bytes_mut().is_ok(),
        }
    }

    /// The first byte's address.
    ///
    /// # Errors
    /// When something of it is lent.
    pub fn address(&mut self) -> Result<u64, Failure> {
        match self {
            Self::Host(buffer) => Ok(buffer.bytes_mut()?.as_ptr() as u64),
        }
    }

    /// The ordinal of the GPU that it belongs to.
    pub fn gpu(&self) -> Option<u32> {
        match self {
            Self::Host(_) => None,
        }
    }

    /// Lends a range to be filled.
    ///
    /// # Errors
    /// When it leaves the memory, or some of it is lent already.
    pub fn target(&mut self, range: Range<usize>) -> Result<Target, Failure> {
        Ok(match self {
            Self::Host(buffer) => Target::Host(buffer.slice_mut(range)?),
        })
    }

    /// Lends a range to be sent.
    ///
    /// # Errors
    /// As [`target`](Self::target).
    pub fn source(&mut self, range: Range<usize>) -> Result<Source, Failure> {
        Ok(match self {
            Self::Host(buffer) => Source::Host(buffer.slice(range)?),
        })
    }
}

impl Target {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
        }
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts off and gives the first `bytes` bytes.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn split_to(&mut self, bytes: usize) -> Self {
        match self {
            Self::Host(slice) => Self::Host(slice.split_to(bytes)),
        }
    }
}
