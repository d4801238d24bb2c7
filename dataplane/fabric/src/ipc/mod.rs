//! Links between two processes of one host: no adapter, shared mappings instead.
//!
//! | what | where |
//! |---|---|
//! | a node's door, and who comes to it | [`door`] |
//! | the keys, in memory that both have mapped | `table` |
//! | what is said over the socket | `message`, `channel` |
//! | the node's end: claims, copies, the link's end | [`node`] |
//! | what is copied together, and how | `batch`, `copy` |
//! | the GPUs whose memory clients share | [`gpus`] |
//! | what a client has mapped | `export` |
//! | the client's end: regions, and memory lent under a key | [`client`] |
//!
//! The node maps a client's memory once, and keeps it mapped while the client wants. What makes
//! a transfer may reach is its key: an entry in the session's table for exactly its bytes, in
//! one direction, once, which the node claims before and ends after. The node is trusted to
//! obey the table, which is why such keys have a strength of their own, `ipc`.
//!
//! **Who waits for whom.** A client's memory returns to its owner when its key is dead: the
//! node has said so in the table, or the client took the key back before the node claimed it,
//! or the node has unmapped everything and said so, or the node's process no longer exists.
//! A node that is alive and stopped is waited for: nothing else would be safe.

mod batch;
mod channel;
pub mod client;
mod copy;
pub mod door;
mod export;
mod gate;
pub mod gpus;
mod message;
pub mod node;
mod table;

use std::io;

use keyway_proto::HostId;

pub use batch::{Batch, Landed, Posted};
pub use client::{Armed, ClientLink, SharedRegion};
pub use door::{DoorListener, Visitor};
pub use export::{Export, ExportId};
pub use gpus::{Buffers, NodeGpus};
pub use message::Refusal;
pub use node::{MemoryKind, NodeLink};
pub use table::SLOTS_MAX;

use crate::memory::{MemoryError, ShareError};

/// Why no link was made, or memory was not shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// The socket failed.
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    /// The other end broke the protocol, or speaks another one.
    #[error("the other end broke the protocol: {0}")]
    Protocol(&'static str),
    /// The other end closed the connection.
    #[error("the other end closed the connection")]
    Closed,
    /// The other end refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No memory for the table.
    #[error("no memory for the keys")]
    Memory(#[from] MemoryError),
    /// The other end's memory cannot be mapped.
    #[error(transparent)]
    Share(#[from] ShareError),
}

/// Where the kernel tells of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// This host, from its boot on.
///
/// # Errors
/// When the kernel does not tell.
pub fn host_id() -> io::Result<HostId> {
    let text = std::fs::read_to_string(BOOT_ID)?.trim().replace('-', "");
    text.parse().map_err(|_| io::Error::other("a strange boot id"))
}
