//! The life of a transaction's key, as two small machines without I/O.
//!
//! A client lends a node access to exactly one buffer, in one direction, for one request.
//! [`Holder`] is the client's end: it owns the buffer and decides when the key is armed, when
//! it must be revoked, and when the buffer may go back to its owner. [`Worker`] is the node's
//! end: it moves bytes under the key and gives it up. Drivers feed events in and carry the
//! returned actions out; no clock, socket or adapter is known here.
//!
//! The one rule both serve: **the buffer is released only after the key is dead**, and a key is
//! dead only by evidence that its own adapter gives (a completion that names it, or a queue
//! pair that no longer exists), never by a peer's word or by elapsed time.
//!
//! ```text
//! Holder                                            Worker
//! Idle ─Start→ Binding ─Bound→ Armed ··token··→     Idle ─Start→ Moving
//!                               │                                  │ Moved
//!        ┌───── Invalidated ────┤ ←─ SEND_WITH_INV ─────────  Invalidating
//!        │        Answered ─────┤ ←··answer··receipt··         Finished(Invalidated)
//!        ↓           ↓          │ cancel, deadline
//!     Released ←─ Revoking ←────┤
//!        ↑────── Fencing ←──────┘ failure, doubt
//! ```

mod holder;
mod worker;

pub use holder::{Answer, Ending, Holder, HolderAction, HolderEvent};
pub use worker::{Worker, WorkerAction, WorkerEvent};

/// Who ends a key's life in the ordinary case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revoker {
    /// The node, by SEND_WITH_INV: strength `window`.
    Node,
    /// The client, by LOCAL_INV or deregistration, once the node is quiet: strengths
    /// `window-local` and `registration`.
    Client,
    /// Nobody: the key lives on with the slab that it opens, strength `slab`. What is lent is a
    /// piece of that, and "revoking" is to take the piece back, once the node is quiet. As
    /// nothing but the end of the queue pair keeps a node out that is not, a piece is never taken
    /// back on this end's own account.
    Nobody,
}

/// Whether the client may end a key by itself while the node may still be at work under it.
///
/// Adapters answer the loser of two invalidations that cross with an error completion, and let no
/// byte land behind their own. The stock rxe driver panics the kernel instead, and still writes a
/// packet that was under way, so there the queue pair is destroyed, whoever ends keys in the
/// ordinary case; and where the node does, also when it says that it left the key alone, for its
/// word is of one run of a request that may have run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevokeRace {
    /// The adapter survives it.
    Harmless,
    /// It must never happen.
    Forbidden,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The node writes into the client's buffer: GET.
    Write,
    /// The node reads from the client's buffer: PUT.
    Read,
}

/// What the node knows of the key when it is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relinquished {
    /// Its SEND_WITH_INV completed: the client's adapter has killed the key.
    Invalidated,
    /// No work request of the node's names the key, and none will: it never used it, or all
    /// it posted has completed.
    Quiet,
    /// The node destroyed its queue pair.
    Fenced,
    /// The gateway lost sight of the node.
    Unknown,
}

impl Relinquished {
    /// The name, as it appears in headers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalidated => "invalidated",
            Self::Quiet => "quiet",
            Self::Fenced => "fenced",
            Self::Unknown => "unknown",
        }
    }

    /// The value with this name; anything else is [`Self::Unknown`], which is always safe.
    pub fn from_name(name: &str) -> Self {
        [Self::Invalidated, Self::Quiet, Self::Fenced]
            .into_iter()
            .find(|known| known.as_str() == name)
            .unwrap_or(Self::Unknown)
    }
}
