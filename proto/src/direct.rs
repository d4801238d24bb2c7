//! Direct transfers: what a grant lets a node do with a client's memory.

use crate::gather::GatherPlan;
use crate::id::{NodeId, SessionId, TenantId, TransferId};
use crate::plan::{GetPlan, PutPlan};
use crate::session::SessionOwner;
use crate::{DigestSet, RdmaToken, SessionToken, Weight};

/// The key of a window or a registration, as the client's adapter knows it. Whoever holds it
/// can reach the memory, so it has no `Debug` that shows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

impl std::fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RemoteKey(hidden)")
    }
}

/// A run of a client's memory, and the key to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWindow {
    /// The first byte's address in the client's address space.
    pub address: u64,
    /// Bytes, at least 1.
    pub length: u32,
    /// The key.
    pub key: RemoteKey,
}

/// A transfer between a node and windows of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectPlan {
    /// Whose request it is: the session must be this owner's.
    pub owner: SessionOwner,
    /// The windows, filled or drained in this order, and the session or the queue that they are
    /// reached through.
    pub target: DirectTarget,
    /// What moves.
    pub work: DirectWork,
}

/// The memory of a client's that a transfer is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectTarget {
    /// Windows of a session.
    Session(SessionToken),
    /// One window at a dynamically connected target, and the node that is to reach it.
    Dynamic(NodeId, RdmaToken),
}

impl DirectTarget {
    /// The session. Without one: the number 0 of the node, which no session has.
    pub fn session(&self) -> SessionId {
        match self {
            Self::Session(token) => token.session(),
            Self::Dynamic(node, _) => SessionId::new(*node, 0),
        }
    }

    /// The windows, in the order of the bytes.
    pub fn windows(&self) -> &[RemoteWindow] {
        match self {
            Self::Session(token) => token.windows(),
            Self::Dynamic(_, token) => std::slice::from_ref(token.window()),
        }
    }

    /// Bytes in all windows.
    pub fn length(&self) -> u64 {
        self.windows().iter().map(|window| u64::from(window.length)).sum()
    }
}

impl From<SessionToken> for DirectTarget {
    fn from(token: SessionToken) -> Self {
        Self::Session(token)
    }
}

/// What a direct transfer moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectWork {
    /// The plan's bytes into the windows; the receipt carries these digests of them.
    Get(GetPlan, DigestSet),
    /// The plan's pieces, each to its place in the one window; the receipt carries these digests
    /// of them, one behind the other in the order of their places.
    Gather(GatherPlan, DigestSet),
    /// The windows' first `plan.length()` bytes into chunks.
    Put(PutPlan),
}

impl DirectPlan {
    /// The session.
    pub fn session(&self) -> SessionId {
        self.target.session()
    }

    /// Bytes that move.
    pub fn length(&self) -> u64 {
        match &self.work {
            DirectWork::Get(plan, _) => plan.length(),
            DirectWork::Gather(plan, _) => plan.length(),
            DirectWork::Put(plan) => plan.length(),
        }
    }

    /// Whether the bytes fit the windows.
    pub fn fits(&self) -> bool {
        let room = self.target.length();
        match &self.work {
            // Places are counted from the first byte of one window.
            DirectWork::Gather(plan, _) => {
                self.target.windows().len() == 1 && plan.is_sound() && plan.memory() <= room
            }
            DirectWork::Get(..) | DirectWork::Put(_) => self.length() <= room,
        }
    }
}

impl DirectWork {
    /// The transfer that the receipt will name.
    pub fn transfer(&self) -> TransferId {
        match self {
            Self::Get(plan, _) => plan.transfer,
            Self::Gather(plan, _) => plan.transfer,
            Self::Put(plan) => plan.transfer,
        }
    }

    /// Whose bytes move.
    pub fn tenant(&self) -> TenantId {
        match self {
            Self::Get(plan, _) => plan.tenant,
            Self::Gather(plan, _) => plan.tenant,
            Self::Put(plan) => plan.tenant,
        }
    }

    /// Its share of the node.
    pub fn weight(&self) -> Weight {
        match self {
            Self::Get(plan, _) => plan.weight,
            Self::Gather(plan, _) => plan.weight,
            Self::Put(plan) => plan.weight,
        }
    }
}
