//! Memory that is lent to a node under a key, over either kind of link.

use std::sync::Arc;

use keyway_fabric::LinkError;
use keyway_fabric::ipc::{self, SharedRegion};
use keyway_fabric::verbs;
use keyway_proto::RemoteWindow;

use super::registrations;

/// What a key is made over. Opens nothing to anybody by itself.
pub(super) enum Held {
    /// The key is a registration of exactly its memory.
    Nothing,
    /// Windows are bound to this.
    Registration(registrations::Held),
    /// The node has this mapped.
    Region(Arc<SharedRegion>),
}

/// Memory lent, until its key is dead.
pub(super) enum Armed<M: Send + 'static> {
    Verbs(verbs::Armed<M>),
    Ipc(ipc::Armed<M>),
}

impl<M: Send + 'static> Armed<M> {
    /// What the node is told.
    pub(super) fn remote(&self) -> RemoteWindow {
        match self {
            Self::Verbs(armed) => armed.remote(),
            Self::Ipc(armed) => armed.remote(),
        }
    }

    /// Waits until the node has ended the key.
    pub(super) async fn invalidated(&mut self) -> Result<(), LinkError> {
        match self {
            Self::Verbs(armed) => armed.invalidated().await,
            Self::Ipc(armed) => armed.invalidated().await,
        }
    }

    /// Ends the key from this end.
    pub(super) async fn revoke(&mut self) -> Result<(), LinkError> {
        match self {
            Self::Verbs(armed) => armed.revoke().await,
            Self::Ipc(armed) => armed.revoke().await,
        }
    }

    /// Ends the key by ending the link.
    pub(super) async fn fence(&mut self) {
        match self {
            Self::Verbs(armed) => armed.fence().await,
            Self::Ipc(armed) => armed.fence().await,
        }
    }

    /// Gives the memory back once its key is dead.
    pub(super) fn release(self) -> Result<M, Self> {
        match self {
            Self::Verbs(armed) => armed.release().map_err(Self::Verbs),
            Self::Ipc(armed) => armed.release().map_err(Self::Ipc),
        }
    }
}
