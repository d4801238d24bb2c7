//! What is posted: requests with the memory they name, and who waits for them.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::key::Direction;
use keyway_proto::{RemoteKey, RemoteWindow};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Registration;
use super::dynamic::DcTarget;
use super::link::Landed;
use crate::LinkError;
use crate::memory::Lease;

/// Anything that must live until a queue pair is gone.
pub(super) type Held = Box<dyn Any + Send>;

/// Requests of one link, posted together.
pub(super) struct Request {
    pub(super) link: u32,
    /// Whom it goes to, where the queue pair is connected to nobody.
    pub(super) to: Option<Arc<DcTarget>>,
    pub(super) verbs: Vec<Verb>,
    pub(super) reply: Reply,
    /// The requests' room in the send queue.
    pub(super) permit: OwnedSemaphorePermit,
}

impl Request {
    /// The id of a link's receives: no sent work has it.
    pub(super) fn receive_id(link: u32) -> u64 {
        u64::from(link) << 32 | u64::from(u32::MAX)
    }

    /// Whether it concerns a window of this end alone, which is done in the time of a poll or two.
    pub(super) fn is_brief(&self) -> bool {
        matches!(self.verbs[..], [Verb::Bind(_) | Verb::Revoke { .. }])
    }
}

/// One request, with the memory it names.
pub(super) enum Verb {
    Write { registration: Arc<Registration>, bytes: Bytes, address: u64, key: RemoteKey },
    Read { registration: Arc<Registration>, lease: Option<Lease>, local: u64, remote: RemoteWindow },
    Invalidate { key: RemoteKey },
    Heartbeat,
    Bind(Bind),
    Binding { slot: usize },
    Revoke { slot: usize, key: RemoteKey },
}

/// What a window is bound to.
pub(super) struct Bind {
    pub(super) registration: Arc<Registration>,
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) direction: Direction,
    /// Stands for a free window.
    pub(super) permit: OwnedSemaphorePermit,
}

/// Who waits for it.
pub(super) enum Reply {
    Batch(oneshot::Sender<Result<Landed, LinkError>>),
    Bind(Box<dyn Lend>),
    Revoke(oneshot::Sender<Result<(), LinkError>>),
    /// Nobody: a lend was given up before its key was told. The memory waits for the key's end.
    Abandoned(Held),
}

/// Memory on its way into a window. Whoever drops it gives the memory back to the task that waits.
pub(super) trait Lend: Send {
    /// The window is bound. Gives the memory where nobody waits any more: the key is to be ended.
    fn bound(self: Box<Self>, bound: Bound) -> Option<Held>;
}

impl Reply {
    /// Tells that the key is dead already.
    pub(super) fn revoked(self) {
        if let Self::Revoke(reply) = self {
            let _ = reply.send(Ok(()));
        }
    }

    /// Tells of the link's end.
    pub(super) fn fail(self, why: &LinkError) {
        let why = why.clone();
        // Nobody may be waiting any more.
        match self {
            Self::Batch(reply) => drop(reply.send(Err(why))),
            Self::Bind(lend) => drop(lend),
            Self::Revoke(reply) => drop(reply.send(Err(why))),
            Self::Abandoned(memory) => drop(memory),
        }
    }
}

/// A window that the adapter has bound.
pub(super) struct Bound {
    pub(super) slot: usize,
    pub(super) key: RemoteKey,
    /// Resolves when a completion names the key.
    pub(super) died: oneshot::Receiver<()>,
}

/// A posted request, and all that the device may touch on its behalf.
pub(super) struct Work {
    pub(super) id: u32,
    /// The device may look at it until then, too.
    pub(super) _to: Option<Arc<DcTarget>>,
    pub(super) verbs: Vec<Verb>,
    pub(super) reply: Reply,
    pub(super) permit: OwnedSemaphorePermit,
}
