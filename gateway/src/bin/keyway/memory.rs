//! Where a command holds objects: host memory, or a GPU's.

use std::str::FromStr;
use std::sync::Arc;

use keyway_client::{
    ClientError, DeviceBuffer, Failed, Gather, GatherOutcome, GetObject, GetOutcome, Gpu,
    HostBuffer, LendError, PutBody,
};
use keyway_proto::ByteRange;
use serde::{Deserialize, Serialize};

/// The memory that a command was told to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Memory {
    /// This machine's.
    #[default]
    Host,
    /// This machine's, of the kind that a node of this host can map.
    Shared,
    /// That of the GPU of this number.
    Gpu(u32),
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let gpu = |number: &str| number.parse().ok().map(Self::Gpu);
        match text {
            "host" => Some(Self::Host),
            "shared" => Some(Self::Shared),
            "gpu" => Some(Self::Gpu(0)),
            _ => text.strip_prefix("gpu:").and_then(gpu),
        }
        .ok_or_else(|| "it is host, shared, or gpu:0 for the first GPU".to_owned())
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Shared => f.write_str("shared"),
            Self::Gpu(number) => write!(f, "gpu:{number}"),
        }
    }
}

impl Memory {
    /// Memory for so many bytes.
    pub(crate) fn buffer(self, bytes: usize) -> anyhow::Result<Buffer> {
        Ok(match self {
            Self::Host => Buffer::Host(HostBuffer::zeroed(bytes)?),
            Self::Shared => Buffer::Host(HostBuffer::shared(bytes)?),
            Self::Gpu(number) => Buffer::Gpu(DeviceBuffer::alloc(&Gpu::open(number)?, bytes)?),
        })
    }
}

/// Memory that objects are read into and written from.
#[derive(Debug)]
pub(crate) enum Buffer {
    /// In the host.
    Host(HostBuffer),
    /// In a GPU.
    Gpu(DeviceBuffer),
}

impl Buffer {
    /// Reads an object into its first `length` bytes.
    pub(crate) async fn get(
        &mut self,
        get: GetObject,
        length: usize,
    ) -> anyhow::Result<GetOutcome<()>> {
        Ok(match self {
            Self::Host(buffer) => forget(get.into(buffer.slice_mut(..length)?).await)?,
            Self::Gpu(buffer) => forget(get.into(buffer.slice_mut(..length)?).await)?,
        })
    }

    /// Reads ranges of an object into its first `length` bytes.
    pub(crate) async fn gather(
        &mut self,
        gather: Gather,
        length: usize,
        ranges: Arc<[ByteRange]>,
    ) -> anyhow::Result<GatherOutcome<()>> {
        let gathered = match self {
            Self::Host(buffer) => {
                let gathered = gather.into(buffer.slice_mut(..length)?, ranges).await;
                gathered.map(|outcome| outcome.map(drop)).map_err(|failed| failed.error)
            }
            Self::Gpu(buffer) => {
                let gathered = gather.into(buffer.slice_mut(..length)?, ranges).await;
                gathered.map(|outcome| outcome.map(drop)).map_err(|failed| failed.error)
            }
        };
        Ok(gathered?)
    }

    /// All of it, to be written as an object.
    pub(crate) fn body(&mut self) -> Result<PutBody, LendError> {
        Ok(match self {
            Self::Host(buffer) => buffer.slice(..)?.into(),
            Self::Gpu(buffer) => buffer.slice(..)?.into(),
        })
    }

    /// Shows `see` the first `length` bytes, copied out of a GPU.
    pub(crate) fn look<T>(&self, length: usize, see: impl FnOnce(&[u8]) -> T) -> anyhow::Result<T> {
        Ok(match self {
            Self::Host(buffer) => see(&buffer.bytes()?[..length]),
            Self::Gpu(buffer) => {
                let mut copy = vec![0; length];
                buffer.read(0, &mut copy)?;
                see(&copy)
            }
        })
    }

    /// Whether all of its first `length` bytes are as they should be. `check` sees them in
    /// pieces, and where each begins: a multiple of 1 MiB.
    pub(crate) fn all(
        &self,
        length: usize,
        check: impl Fn(&[u8], usize) -> bool,
    ) -> anyhow::Result<bool> {
        const PIECE_BYTES: usize = 16 << 20;
        match self {
            Self::Host(buffer) => Ok(check(&buffer.bytes()?[..length], 0)),
            Self::Gpu(buffer) => {
                let mut copy = vec![0; PIECE_BYTES.min(length)];
                for offset in (0..length).step_by(PIECE_BYTES) {
                    let piece = PIECE_BYTES.min(length - offset);
                    buffer.read(offset, &mut copy[..piece])?;
                    if !check(&copy[..piece], offset) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Has `make` write its content.
    pub(crate) fn fill(&mut self, make: impl FnOnce(&mut [u8])) -> anyhow::Result<()> {
        match self {
            Self::Host(buffer) => make(buffer.bytes_mut()?),
            Self::Gpu(buffer) => {
                let mut copy = vec![0; buffer.len()];
                make(&mut copy);
                buffer.write(0, &copy)?;
            }
        }
        Ok(())
    }
}

/// The outcome without the memory, which goes back to its buffer.
fn forget<M>(result: Result<GetOutcome<M>, Failed<M>>) -> Result<GetOutcome<()>, ClientError> {
    match result {
        Ok(outcome) => Ok(outcome.map(drop)),
        Err(failed) => Err(failed.error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        for (text, memory) in [
            ("host", Memory::Host),
            ("shared", Memory::Shared),
            ("gpu", Memory::Gpu(0)),
            ("gpu:7", Memory::Gpu(7)),
        ] {
            assert_eq!(text.parse(), Ok(memory));
            assert_eq!(memory.to_string().parse(), Ok(memory));
        }
        for bad in ["", "cpu", "gpu:", "gpu:x", "gpu:-1", "gpu0"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }
}
