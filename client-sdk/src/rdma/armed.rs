//! Memory that is lent to a node under a key, over either kind of link.

use std::sync::Arc;

use keyway_fabric::LinkError;
use keyway_fabric::ipc::{self, SharedRegion};
use keyway_fabric::verbs;
use keyway_proto::RemoteWindow;

use super::registrations;
use super::slab::{HeldPieces, Lent};
use super::target::Target;

/// What a key is made over. Opens nothing to anybody by itself.
pub(super) enum Held {
    /// The key is a registration of exactly its memory.
    Nothing,
    /// Windows are bound to this.
    Registration(registrations::Held),
    /// The node has this mapped.
    Region(Arc<SharedRegion>),
    /// These stand in for the memory. They go with the lend.
    Pieces(HeldPieces),
}

/// Memory lent, until its key is dead.
pub(super) enum Armed<M: Target> {
    Verbs(verbs::Armed<M>),
    /// Pieces of a slab are, in the memory's stead.
    Slab(verbs::Armed<Lent<M>>, Vec<RemoteWindow>),
    Ipc(ipc::Armed<M>),
}

/// Memory whose key is dead, and the pieces that stood in for it: nobody else's until they are
/// dropped.
pub(super) enum Released<M> {
    Memory(M),
    Lent(Lent<M>),
}

impl<M: Target> Armed<M> {
    /// What the node is told.
    pub(super) fn remote(&self) -> Vec<RemoteWindow> {
        match self {
            Self::Verbs(armed) => vec![armed.remote()],
            Self::Slab(_, windows) => windows.clone(),
            Self::Ipc(armed) => vec![armed.remote()],
        }
    }

    /// Waits until the node has ended the key.
    pub(super) async fn invalidated(&mut self) -> Result<(), LinkError> {
        match self {
            Self::Verbs(armed) => armed.invalidated().await,
            Self::Slab(armed, _) => armed.invalidated().await,
            Self::Ipc(armed) => armed.invalidated().await,
        }
    }

    /// Ends the key from this end.
    pub(super) async fn revoke(&mut self) -> Result<(), LinkError> {
        match self {
            Self::Verbs(armed) => armed.revoke().await,
            Self::Slab(armed, _) => armed.revoke().await,
            Self::Ipc(armed) => armed.revoke().await,
        }
    }

    /// Ends the key by ending the link.
    pub(super) async fn fence(&mut self) {
        match self {
            Self::Verbs(armed) => armed.fence().await,
            Self::Slab(armed, _) => armed.fence().await,
            Self::Ipc(armed) => armed.fence().await,
        }
    }

    /// Gives the memory back once its key is dead.
    pub(super) fn release(self) -> Result<Released<M>, Self> {
        match self {
            Self::Verbs(armed) => armed.release().map(Released::Memory).map_err(Self::Verbs),
            Self::Slab(armed, windows) => {
                let released = armed.release().map(Released::Lent);
                released.map_err(|armed| Self::Slab(armed, windows))
            }
            Self::Ipc(armed) => armed.release().map(Released::Memory).map_err(Self::Ipc),
        }
    }
}

impl<M: Target> Released<M> {
    /// The memory, with the `arrived` bytes in it that the node wrote. Of more than there was room
    /// for, nothing is taken: whoever compares the lengths refuses it.
    pub(super) async fn memory(self, arrived: usize) -> M {
        match self {
            Self::Memory(memory) => memory,
            Self::Lent(mut lent) => {
                if (1..=lent.memory.length()).contains(&arrived) {
                    lent.copy_out(arrived).await;
                }
                lent.memory
            }
        }
    }
}
