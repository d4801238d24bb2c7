//! What an operator says about a node's store.

use std::path::PathBuf;

use keyway_proto::unit::{GIB, MIB};
use serde::{Deserialize, Serialize};

/// Whether a feature of the machine is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessMode {
    /// Used where it works; the node's status says why where it does not.
    #[default]
    Auto,
    /// The node does not start without it.
    Require,
    /// Never used.
    Off,
}

/// The file store's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Where the volumes lie. Made when missing.
    pub dir: PathBuf,
    /// Bytes that the volumes may take up in all; unset means what the file system has,
    /// but for a reserve of a twentieth, at least 16 MiB and at most 1 GiB.
    pub capacity_bytes: Option<u64>,
    /// Size of a new volume file. Smaller ones are made when less than twice as much is left.
    pub volume_bytes: u64,
    /// Memory for the buffers of all transfers together; with io_uring it is taken, and
    /// locked, at start.
    pub pool_bytes: usize,
    /// Whether I/O goes through an io_uring; left to the store, not on a file system in memory.
    pub io_uring: AccessMode,
    /// Whether I/O passes the page cache by (`O_DIRECT`).
    pub direct_io: AccessMode,
    /// Bytes per second that the scrubber verifies; 0 turns it off.
    pub scrub_bytes_per_second: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("store"),
            capacity_bytes: None,
            volume_bytes: GIB,
            pool_bytes: 48 * MIB as usize,
            io_uring: AccessMode::Auto,
            direct_io: AccessMode::Auto,
            scrub_bytes_per_second: 4 * MIB,
        }
    }
}
