//! Memory that a node of the host can map, the host's or a GPU's, and transfers of it under
//! which somebody dies.

use std::borrow::Cow;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail, ensure};
use keyway_client::{
    Client, ClientError, DeviceBuffer, GetObject, GetOutcome, Gpu, HostBuffer, PutBody,
};
use keyway_integration_tests::skip::skipped;
use keyway_proto::TransferPath;

use super::survivor::{Caller, Lent};
use super::{BUCKET, PATIENCE};

/// Where objects are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Gpu,
}

impl Place {
    pub(crate) fn path(self) -> TransferPath {
        match self {
            Self::Host => TransferPath::IpcHost,
            Self::Gpu => TransferPath::IpcGpu,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Gpu => "gpu",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self> {
        match name {
            "host" => Ok(Self::Host),
            "gpu" => Ok(Self::Gpu),
            _ => bail!("{name} is no place"),
        }
    }

    /// Whether there is none here, which is said.
    pub(crate) fn is_missing(self, test: &str) -> bool {
        let found = match self {
            Self::Host => return false,
            Self::Gpu => gpu(),
        };
        found.map_err(|error| skipped(test, &error.to_string())).is_err()
    }

    /// Memory of the GPU that is taken, in MiB, by whomever; of the host, none.
    pub(crate) fn taken_mib(self) -> Result<u64> {
        if self == Self::Host {
            return Ok(0);
        }
        let asked = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"];
        let output = Command::new("nvidia-smi").args(asked).output().context("nvidia-smi")?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    }
}

/// The first GPU. Opening one costs more than a transfer does: it stays open.
fn gpu() -> Result<Arc<Gpu>, keyway_client::GpuError> {
    static OPEN: OnceLock<Arc<Gpu>> = OnceLock::new();
    if let Some(gpu) = OPEN.get() {
        return Ok(Arc::clone(gpu));
    }
    let gpu = Gpu::open(0)?;
    Ok(Arc::clone(OPEN.get_or_init(|| gpu)))
}

/// Memory there.
pub(crate) enum Buffer {
    Host(HostBuffer),
    Gpu(DeviceBuffer),
}

impl Buffer {
    pub(crate) fn new(place: Place, bytes: usize) -> Result<Self> {
        Ok(match place {
            Place::Host => Self::Host(HostBuffer::shared(bytes)?),
            Place::Gpu => Self::Gpu(DeviceBuffer::alloc(&gpu()?, bytes)?),
        })
    }

    pub(crate) fn holding(place: Place, content: &[u8]) -> Result<Self> {
        let mut buffer = Self::new(place, content.len())?;
        buffer.write(content)?;
        Ok(buffer)
    }

    /// Overwrites all of it; fails while a transfer has it.
    pub(crate) fn write(&mut self, content: &[u8]) -> Result<()> {
        match self {
            Self::Host(buffer) => buffer.bytes_mut()?.copy_from_slice(content),
            Self::Gpu(buffer) => buffer.write(0, content)?,
        }
        Ok(())
    }

    pub(crate) fn body(&mut self) -> Result<PutBody> {
        Ok(match self {
            Self::Host(buffer) => buffer.slice(..)?.into(),
            Self::Gpu(buffer) => buffer.slice(..)?.into(),
        })
    }

    /// Fills it with an object.
    pub(crate) async fn fetch(&mut self, get: GetObject) -> Result<GetOutcome<()>, ClientError> {
        match self {
            Self::Host(buffer) => {
                let target = buffer.slice_mut(..).expect("nobody has it");
                get.into(target).await.map(|got| got.map(drop)).map_err(|failed| failed.error)
            }
            Self::Gpu(buffer) => {
                let target = buffer.slice_mut(..).expect("nobody has it");
                get.into(target).await.map(|got| got.map(drop)).map_err(|failed| failed.error)
            }
        }
    }
}

impl Lent for Buffer {
    fn fill(&mut self, byte: u8) -> Result<()> {
        match self {
            Self::Host(buffer) => buffer.bytes_mut()?.fill(byte),
            Self::Gpu(buffer) => buffer.write(0, &vec![byte; buffer.len()])?,
        }
        Ok(())
    }

    fn content(&self) -> Result<Cow<'_, [u8]>> {
        Ok(match self {
            Self::Host(buffer) => buffer.bytes()?.into(),
            Self::Gpu(buffer) => {
                let mut content = vec![0; buffer.len()];
                buffer.read(0, &mut content)?;
                content.into()
            }
        })
    }
}

/// One PUT of the object under a key of its own, or a GET of the large one; and the buffer, which
/// was given back.
pub(crate) async fn transfer(
    client: Client,
    place: Place,
    caller: Caller,
    put: Option<String>,
    object: Arc<Vec<u8>>,
) -> Result<(Buffer, Result<(), ClientError>)> {
    let deadline = caller.deadline(PATIENCE);
    match put {
        Some(key) => {
            let mut buffer = Buffer::holding(place, &object)?;
            let put = client.put_object(BUCKET, &key).body(buffer.body()?);
            let ended = put.deadline(deadline).send().await.map(drop);
            Ok((buffer, ended))
        }
        None => {
            let mut buffer = Buffer::new(place, object.len())?;
            let got = buffer.fetch(client.get_object(BUCKET, "large").deadline(deadline)).await;
            if got.is_ok() {
                ensure!(*buffer.content()? == **object, "wrong bytes, said to be right");
            }
            Ok((buffer, got.map(drop)))
        }
    }
}
