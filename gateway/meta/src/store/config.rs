//! What an operator may choose of the embedded engine.

use serde::{Deserialize, Serialize};

/// The embedded engine's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetaConfig {
    /// Memory for cached pages, read and written.
    pub cache_bytes: u64,
    /// Space left free on the device, or a sixteenth of it if that is less: below it, commits
    /// that need space are refused and those that give space up still go through. What the journal
    /// alone has fits into it: at 8 KiB a row, it bounds how rarely the tree is written.
    pub reserve_bytes: u64,
}

impl Default for MetaConfig {
    fn default() -> Self {
        Self { cache_bytes: 16 << 20, reserve_bytes: 8 << 20 }
    }
}
