//! What a client has a node map, and how it is told from what lies at its address later.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::memory::{DeviceAllocation, DeviceExport};

/// Memory that another process can map.
#[derive(Clone, Debug)]
pub enum Export {
    /// A memory file, mapped here at `base`.
    Host {
        /// The file.
        file: Arc<OwnedFd>,
        /// Where it is mapped in this process.
        base: u64,
        /// Bytes.
        bytes: u64,
    },
    /// An allocation of a GPU's memory.
    Gpu(Arc<DeviceExport>),
}

/// Which memory an [`Export`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportId {
    /// The memory file, by where it is kept: comparable while it is.
    Host(usize),
    /// A GPU's.
    Gpu(DeviceAllocation),
}

impl Export {
    pub(super) fn range(&self) -> (u64, u64) {
        match self {
            Self::Host { base, bytes, .. } => (*base, *bytes),
            Self::Gpu(export) => (export.allocation.base, export.allocation.bytes),
        }
    }

    /// Which memory it is of.
    pub fn id(&self) -> ExportId {
        match self {
            Self::Host { file, .. } => ExportId::Host(Arc::as_ptr(file) as usize),
            Self::Gpu(export) => ExportId::Gpu(export.allocation),
        }
    }
}
