//! Memory of the caller: of the host, or of a GPU.

use std::ops::Range;
use std::sync::Arc;

use keyway_client::{
    DeviceBuffer, DeviceSlice, DeviceSliceMut, Gpu, HostBuffer, HostSlice, HostSliceMut,
};

use crate::failure::Failure;

/// Memory that transfers fill or send.
#[derive(Debug)]
pub enum Memory {
    /// Of the host.
    Host(HostBuffer),
    /// Of a GPU.
    Device(DeviceBuffer),
}

/// Memory lent to one read.
#[derive(Debug)]
pub enum Target {
    /// Of the host.
    Host(HostSliceMut),
    /// Of a GPU.
    Device(DeviceSliceMut),
}

/// Memory lent to a write.
#[derive(Clone, Debug)]
pub enum Source {
    /// Of the host.
    Host(HostSlice),
    /// Of a GPU.
    Device(DeviceSlice),
}

impl Memory {
    /// Memory of the client's own: of the host, or of the GPU of that number, which is opened.
    ///
    /// # Errors
    /// When it is refused, or there is no such GPU.
    pub fn new(gpu: Option<u32>, bytes: usize) -> Result<Self, Failure> {
        Ok(match gpu {
            None => Self::Host(HostBuffer::zeroed(bytes)?),
            Some(ordinal) => Self::Device(DeviceBuffer::alloc(&Gpu::open(ordinal)?, bytes)?),
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.len(),
            Self::Device(buffer) => buffer.len(),
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
            // Only an exclusive lend of all of it tells.
            Self::Device(buffer) => buffer.slice_mut(..).is_ok(),
        }
    }

    /// The first byte's address.
    ///
    /// # Errors
    /// When something of it is lent.
    pub fn address(&mut self) -> Result<u64, Failure> {
        match self {
            Self::Host(buffer) => Ok(buffer.bytes_mut()?.as_ptr() as u64),
            Self::Device(buffer) => Ok(buffer.address()),
        }
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            Self::Host(_) => None,
            Self::Device(buffer) => Some(buffer.gpu()),
        }
    }

    /// Lends a range to be filled.
    ///
    /// # Errors
    /// When it leaves the memory, or some of it is lent already.
    pub fn target(&mut self, range: Range<usize>) -> Result<Target, Failure> {
        Ok(match self {
            Self::Host(buffer) => Target::Host(buffer.slice_mut(range)?),
            Self::Device(buffer) => Target::Device(buffer.slice_mut(range)?),
        })
    }

    /// Lends a range to be sent.
    ///
    /// # Errors
    /// As [`target`](Self::target).
    pub fn source(&mut self, range: Range<usize>) -> Result<Source, Failure> {
        Ok(match self {
            Self::Host(buffer) => Source::Host(buffer.slice(range)?),
            Self::Device(buffer) => Source::Device(buffer.slice(range)?),
        })
    }
}

impl Target {
    /// The GPU that it belongs to.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            Self::Host(_) => None,
            Self::Device(slice) => Some(slice.gpu()),
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            Self::Device(slice) => slice.len(),
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
            Self::Device(slice) => Self::Device(slice.split_to(bytes)),
        }
    }
}

impl Source {
    /// The GPU that it belongs to.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            Self::Host(_) => None,
            Self::Device(slice) => Some(slice.gpu()),
        }
    }
}
