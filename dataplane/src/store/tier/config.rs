//! What an operator says about the memory tier.

use keyway_fabric::memory::{Arena, HugePages, MemoryError};
use keyway_proto::unit::MIB;
use serde::{Deserialize, Serialize};

/// The memory tier's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TierConfig {
    /// Memory for hot extents; 0 turns the tier off. Taken as it is filled, or at once where
    /// an RDMA adapter or a GPU registers it.
    pub size_bytes: u64,
    /// What comes in.
    pub admit: TierAdmit,
    /// The pages that the memory is made of.
    pub huge_pages: TierPages,
    /// When bytes are compared with their checksums.
    pub verify: TierVerify,
    /// Bytes per second that are compared in the background; 0 turns that off.
    pub scrub_bytes_per_second: u64,
    /// Of the memory, what writes may take whose clients do not wait for the device; 0 makes
    /// every write durable before it is answered. Unset: half of it.
    pub dirty_bytes: Option<u64>,
}

impl Default for TierConfig {
    fn default() -> Self {
        Self {
            size_bytes: 0,
            admit: TierAdmit::default(),
            huge_pages: TierPages::default(),
            verify: TierVerify::default(),
            scrub_bytes_per_second: 16 * MIB,
            dirty_bytes: None,
        }
    }
}

impl TierConfig {
    /// Bytes that may be in memory alone.
    pub(super) fn dirty_bytes_max(&self) -> u64 {
        self.dirty_bytes.unwrap_or(self.size_bytes / 2)
    }

    /// Maps the memory.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses it.
    pub fn map(&self) -> Result<Arena, MemoryError> {
        let bytes = usize::try_from(self.size_bytes).unwrap_or(usize::MAX);
        Arena::map(bytes, self.huge_pages.into())
    }
}

/// Which bytes come into the tier by themselves. What is prefetched always does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierAdmit {
    /// What is read from the device.
    OnRead,
    /// What is written.
    OnWrite,
    /// Both.
    #[default]
    OnReadAndWrite,
    /// Neither.
    OnPrefetch,
}

impl TierAdmit {
    pub(super) fn reads(self) -> bool {
        matches!(self, Self::OnRead | Self::OnReadAndWrite)
    }

    pub(super) fn writes(self) -> bool {
        matches!(self, Self::OnWrite | Self::OnReadAndWrite)
    }
}

/// The pages of the tier's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierPages {
    /// Huge ones where the kernel finds them.
    #[default]
    Transparent,
    /// Huge ones that the operator has reserved (`vm.nr_hugepages`); the node does not start
    /// when there are too few.
    Reserved,
    /// Small ones.
    Off,
}

impl From<TierPages> for HugePages {
    fn from(pages: TierPages) -> Self {
        match pages {
            TierPages::Transparent => Self::Transparent,
            TierPages::Reserved => Self::Reserved,
            TierPages::Off => Self::Off,
        }
    }
}

/// When the tier's bytes are compared with their CRC32C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierVerify {
    /// Once, on their way in, and by the scrubber.
    #[default]
    AtFill,
    /// Also whenever they are read, which costs the pass over them that the tier saves.
    EveryRead,
}
