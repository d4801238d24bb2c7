//! What a node answers: what moved, by which path, and what became of the key.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checksum::Digests;
use crate::durability::Durability;
use crate::id::TransferId;
use crate::key::{Relinquished, Revoker};

/// A finished transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The plan's transfer.
    pub transfer: TransferId,
    /// Bytes moved.
    pub bytes: u64,
    /// The digests that the plan asked for.
    pub digests: Digests,
    /// How the bytes travelled.
    pub path: TransferPath,
    /// What protected the client's memory.
    pub strength: KeyStrength,
    /// What became of the transfer's key.
    pub key: KeyFate,
    /// What a PUT's bytes survive; of a GET it says nothing.
    pub durability: Durability,
}

/// How bytes travel between a node and a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TransferPath {
    /// In the body of the HTTP request or response.
    Http,
    /// By RDMA between the node's memory and the client's host memory.
    VerbsHost,
    /// By RDMA between the node's memory and the client's GPU memory.
    VerbsGpu,
    /// Between the node's memory and host memory that a client of the same host shares.
    IpcHost,
    /// By the copy engine, between the node's memory and GPU memory that a client of the same
    /// host exports.
    IpcGpu,
}

impl TransferPath {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Http, Self::VerbsHost, Self::VerbsGpu, Self::IpcHost, Self::IpcGpu];

    /// The name, as it appears in headers and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::VerbsHost => "verbs-host",
            Self::VerbsGpu => "verbs-gpu",
            Self::IpcHost => "ipc-host",
            Self::IpcGpu => "ipc-gpu",
        }
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How tightly a transfer's key bound the client's memory; the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KeyStrength {
    /// No memory was exposed: the bytes came through the HTTP body.
    Http,
    /// The client's own memory, registered for long: whoever holds the key reaches all that was
    /// registered with it, until the client ends it by itself.
    Standing,
    /// A long-lived registration of memory that transfers are copied out of and into.
    Slab,
    /// Memory that a node of the same host has mapped; the key is an entry in a table that the
    /// node obeys.
    Ipc,
    /// Memory registered for this transfer, deregistered after it.
    Registration,
    /// A memory window, invalidated by the client.
    WindowLocal,
    /// A memory window, invalidated by the node with the transfer's last message.
    Window,
}

impl KeyStrength {
    /// All of them, the weakest first.
    pub const ALL: [Self; 7] = [
        Self::Http,
        Self::Standing,
        Self::Slab,
        Self::Ipc,
        Self::Registration,
        Self::WindowLocal,
        Self::Window,
    ];

    /// The name, as it appears in headers and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Standing => "standing",
            Self::Slab => "slab",
            Self::Ipc => "ipc",
            Self::Registration => "registration",
            Self::WindowLocal => "window-local",
            Self::Window => "window",
        }
    }

    /// Who ends a key of this strength in the ordinary case.
    pub const fn revoker(self) -> Revoker {
        match self {
            Self::Window | Self::Ipc => Revoker::Node,
            Self::Slab => Revoker::Nobody,
            _ => Revoker::Client,
        }
    }
}

impl fmt::Display for KeyStrength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a transfer's key when its receipt was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyFate {
    /// The path needs no key.
    NoKey,
    /// The node gave it up.
    Relinquished(Relinquished),
}
