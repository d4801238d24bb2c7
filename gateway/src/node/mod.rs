//! The storage nodes that this gateway knows.

use std::sync::Arc;

use keyway_dataplane::StorageNode;
use keyway_proto::NodeId;

pub mod grants;
pub mod remote;

pub use grants::Grants;
pub use remote::{RemoteNode, RemoteNodeConfig, RemoteNodeError};

/// The nodes, by id. Cheap to clone.
#[derive(Clone)]
pub struct Nodes {
    /// Sorted by id, never empty.
    nodes: Arc<[Arc<dyn StorageNode>]>,
}

impl Nodes {
    /// These nodes; `None` when there are none, or two share an id.
    pub fn new(mut nodes: Vec<Arc<dyn StorageNode>>) -> Option<Self> {
        nodes.sort_by_key(|node| node.id());
        let distinct = nodes.windows(2).all(|pair| pair[0].id() != pair[1].id());
        (!nodes.is_empty() && distinct).then(|| Self { nodes: nodes.into() })
    }

    /// The one node of a single-node deployment.
    pub fn single(node: Arc<dyn StorageNode>) -> Self {
        Self { nodes: Arc::new([node]) }
    }

    /// The node with this id, if this gateway knows it.
    pub fn by_id(&self, id: NodeId) -> Option<&Arc<dyn StorageNode>> {
        let at = self.nodes.binary_search_by_key(&id, |node| node.id()).ok()?;
        Some(&self.nodes[at])
    }

    /// The node that takes a new object's bytes: the one that `seed` falls on.
    pub fn place(&self, seed: u64) -> &Arc<dyn StorageNode> {
        let at = seed % self.nodes.len() as u64;
        &self.nodes[at as usize]
    }

    /// All nodes, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn StorageNode>> {
        self.nodes.iter()
    }
}
