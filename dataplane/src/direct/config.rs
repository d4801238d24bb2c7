//! What an operator says about direct transfers.

use std::path::PathBuf;

use keyway_proto::DcKey;
use serde::{Deserialize, Serialize};

use crate::store::AccessMode;

/// How a node serves direct transfers. The limits hold for sessions of every kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RdmaConfig {
    /// Whether RDMA adapters are used.
    pub mode: AccessMode,
    /// The ports that take sessions, as `mlx5_0` (all its ports) or `mlx5_0/1`; none means
    /// all that are active.
    pub devices: Vec<String>,
    /// The traffic class of the node's packets; what the host says where it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class: Option<u8>,
    /// InfiniBand's service level, 0 to 15; the subnet manager's where it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_level: Option<u8>,
    /// Sessions open at once.
    pub sessions_max: usize,
    /// Sessions open at once of one access key.
    pub sessions_per_key_max: usize,
    /// Transfers that one session may have in flight.
    pub windows_per_session_max: u32,
    /// A session that was not used for this long is closed.
    pub idle_timeout_ms: u64,
    /// What dynamically connected targets of clients are made with; none means that they are not
    /// served.
    pub dc_key: Option<DcKey>,
    /// A transfer that takes longer is given up, and its key ended.
    pub transfer_timeout_ms: u64,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            mode: AccessMode::Auto,
            devices: Vec::new(),
            traffic_class: None,
            service_level: None,
            sessions_max: 1024,
            sessions_per_key_max: 256,
            windows_per_session_max: 64,
            idle_timeout_ms: 300_000,
            dc_key: None,
            transfer_timeout_ms: 60_000,
        }
    }
}

/// How a node serves clients of its own host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IpcConfig {
    /// Whether there is a door for them.
    pub mode: AccessMode,
    /// The Unix socket, at most 107 bytes long; `serve` has one in its data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The user ids that may come in; none means all. A ticket is needed besides, which only
    /// signed requests get.
    pub users: Vec<u32>,
}
