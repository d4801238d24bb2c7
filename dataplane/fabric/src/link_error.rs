//! Why a link, of whichever kind, does no more work.

use std::sync::Arc;

/// Why a link does no more work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A request failed, and with it the queue pair. The status is the first that was no
    /// consequence of another.
    #[error("a request failed: {status}")]
    Request {
        /// The completion's status, in libibverbs' words.
        status: Arc<str>,
    },
    /// The peer reached for memory that it must not, or that its key no longer opens.
    #[error("access refused by the adapter")]
    Access,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    Unreachable,
    /// The peer invalidated a key that was not lent to it, or sent what nobody expects.
    #[error("the peer broke the rules")]
    Misbehaved,
    /// The adapter or its port failed.
    #[error("the adapter failed: {0}")]
    Adapter(Arc<str>),
    /// This end closed it.
    #[error("the link was closed")]
    Closed,
}
