//! Direct transfers: between this node and clients' own memory.
//!
//! | step | where |
//! |---|---|
//! | a grant is verified, once | [`keys`] |

mod keys;

use keyway_proto::NodeId;

use crate::node::SealingKey;
use keys::GrantKeys;

/// The node's direct side.
pub(crate) struct Direct {
    keys: GrantKeys,
}

impl Direct {
    /// Without any adapter.
    pub(crate) fn new(node: NodeId) -> Self {
        Self { keys: GrantKeys::new(node) }
    }

    /// The key to seal grants with.
    pub(crate) fn sealing_key(&self) -> SealingKey {
        self.keys.sealing_key()
    }
}
