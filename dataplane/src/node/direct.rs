//! What the seam says about direct transfers: between a node and a client's own memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use keyway_auth::grant::{GrantError, GrantKey};
use keyway_proto::Receipt;
use keyway_proto::key::Relinquished;

use super::TransferError;

/// The end of a direct transfer, however it ended.
#[derive(Clone, Debug)]
#[must_use = "the key's fate must reach the client"]
pub struct Transferred {
    /// What moved. A PUT's receipt means that its bytes are durable.
    pub moved: Result<Receipt, DirectError>,
    /// What the node knows of the key. No answer may leave before this is known.
    pub key: Relinquished,
}

impl Transferred {
    /// A transfer that was refused before anything was posted.
    pub fn refused(error: impl Into<DirectError>) -> Self {
        Self { moved: Err(error.into()), key: Relinquished::Quiet }
    }
}

/// Why a direct transfer failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// The grant was refused.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The session is not open here, or not this owner's.
    #[error("no such session")]
    NoSuchSession,
    /// The plan does not fit the windows, or contradicts itself.
    #[error("invalid direct plan: {0}")]
    InvalidPlan(&'static str),
    /// The connection to the client failed, and was destroyed.
    #[error("the link to the client failed: {0}")]
    Link(Arc<str>),
    /// No adapter here reaches the client's dynamically connected target.
    #[error("the client's target is not reached from here")]
    NotServed,
    /// The time for the transfer has passed.
    #[error("the transfer took too long")]
    TimedOut,
    /// The gateway gave it up.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The store's side failed, as it would over HTTP.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Why a session was not opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The node has no such rail, or no usable adapter at all.
    #[error("the node has no such rail")]
    NoSuchRail,
    /// The two ends cannot talk to each other, or their key strengths do not meet.
    #[error("the ends do not match: {0}")]
    Incompatible(&'static str),
    /// The node or the owner has as many sessions as it may.
    #[error("too many sessions")]
    TooMany,
    /// The adapter refused.
    #[error("the adapter refused: {0}")]
    Adapter(Arc<str>),
    /// A remote node cannot be reached or does not speak the protocol.
    #[error("the node cannot be reached: {0}")]
    Unreachable(Arc<str>),
}

/// The key under which grants for a node are sealed, and for how long it may be used.
#[derive(Clone)]
pub struct SealingKey {
    /// The key.
    pub key: GrantKey,
    /// How long a gateway may seal under it before it must ask again. The node accepts it for
    /// longer than that, by the life of a grant.
    pub fresh_for: Duration,
    /// Whether the node reaches dynamically connected targets.
    pub dynamic: bool,
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").field("fresh_for", &self.fresh_for).finish_non_exhaustive()
    }
}
