//! What a node answers: what moved, by which path, and what became of the key.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::checksum::Digests;
use crate::id::TransferId;

/// A finished transfer. A PUT's receipt means that its bytes are durable.
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
}

/// How bytes travel between a node and a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TransferPath {
    /// In the body of the HTTP request or response.
    Http,
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
        })
    }
}

/// How tightly a transfer's key bound the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KeyStrength {
    /// No memory was exposed: the bytes came through the HTTP body.
    Http,
}

impl fmt::Display for KeyStrength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
        })
    }
}

/// The state of a transfer's key when its receipt was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyFate {
    /// The path needs no key.
    NoKey,
}
