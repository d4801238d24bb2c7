//! Work that the GPU has, what it owns, and what it leaves behind.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::batch::{CopyDone, Held};
use super::engine::{Digest, DigestReply};
use super::scratch::Table;
use crate::gpu::GpuError;
use crate::gpu::pinned::Pin;

/// Work that the GPU has.
pub(super) struct Flight {
    /// Lanes that are not through with it.
    pub(super) lanes: usize,
    pub(super) outcome: Result<(), GpuError>,
    pub(super) cargo: Cargo,
    pub(super) slot: OwnedSemaphorePermit,
}

/// What a flight owns.
pub(super) enum Cargo {
    Copy(CopyCargo),
    Digest { slot: Option<usize>, digest: Digest, reply: DigestReply },
}

pub(super) struct CopyCargo {
    pub(super) held: Held,
    pub(super) pins: Vec<Arc<Pin>>,
    pub(super) tables: Vec<Table>,
    pub(super) into_bytes: u64,
    pub(super) from_bytes: u64,
    pub(super) unpinned_bytes: u64,
    pub(super) reply: oneshot::Sender<CopyDone>,
}

impl Cargo {
    pub(super) fn copy(held: Held, reply: oneshot::Sender<CopyDone>) -> Self {
        Self::Copy(CopyCargo::new(held, reply))
    }

    /// Bytes that are moved or digested.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Copy(cargo) => cargo.into_bytes + cargo.from_bytes,
            Self::Digest { digest, .. } => digest.bytes,
        }
    }
}

impl CopyCargo {
    pub(super) fn new(held: Held, reply: oneshot::Sender<CopyDone>) -> Self {
        let (pins, tables) = (Vec::new(), Vec::new());
        Self { held, pins, tables, into_bytes: 0, from_bytes: 0, unpinned_bytes: 0, reply }
    }
}
