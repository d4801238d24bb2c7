//! When a write is answered: when its bytes are on a device, or when they are in a node's memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a write's bytes survive at the time of its answer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Nothing but the node's own life: they are in its memory, and go to its device behind.
    Memory,
    /// A crash and a power cut: they are on the device, and synced.
    #[default]
    Disk,
}

impl Durability {
    /// Both, the weaker first.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Disk];

    /// The name, as it appears in headers and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    /// The durability of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a chunk stands on its way to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// On the device, and synced.
    Durable,
    /// In the node's memory alone.
    Pending,
    /// Not on the node: it was released, or lost before it came to the device.
    Missing,
}

/// Asking for what was written to memory to be on the device: the control endpoint's document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushRequest {
    /// The objects of this bucket alone; unset: of all the tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// This object of the bucket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What one call came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushReply {
    /// Objects that became durable with this call.
    pub settled: u64,
    /// Objects whose bytes were lost before they came to a device. What they had replaced is
    /// back.
    pub lost: u64,
    /// Objects that are not durable yet: a call takes some seconds and no longer. Ask again.
    pub pending: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_and_understood() {
        for durability in Durability::ALL {
            assert_eq!(Durability::named(durability.as_str()), Some(durability));
        }
        for other in ["", "Memory", "disk ", "none"] {
            assert_eq!(Durability::named(other), None);
        }
        assert!(Durability::Memory < Durability::Disk);
    }
}
