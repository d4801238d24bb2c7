//! Direct transfers as a client sees them: what moves, what every answer says of the key, and
//! what is refused. Method: a gateway over nodes whose clients' memory is in this process.

mod control;
mod dynamic;
mod encrypted;
mod quiet;
mod ranges;
mod reads;
mod refusals;
mod writes;

use std::sync::Arc;

use keyway_auth::sigv4::Payload;
use keyway_dataplane::StorageNode;
use keyway_gateway::node::Nodes;
use keyway_gateway::s3::S3Config;
use keyway_proto::{Checksum, ChecksumKind, NodeId, SessionId, SessionOffer, SessionToken};

use crate::direct_node::{DirectNode, session_request};
use crate::fixture::{Call, Reply, Server};

/// A server over one such node, with a bucket and a session.
struct Direct {
    server: Server,
    node: Arc<DirectNode>,
    session: SessionId,
}

impl Direct {
    async fn start() -> Self {
        let node = DirectNode::new(NodeId(1));
        let server = Server::over(S3Config::default(), node.clone(), node.local()).await;
        Self::over(server, node).await
    }

    /// Two nodes; the session is with the first.
    async fn start_two() -> (Self, Arc<DirectNode>) {
        let (node, other) = (DirectNode::new(NodeId(1)), DirectNode::new(NodeId(2)));
        let nodes: Vec<Arc<dyn StorageNode>> = vec![node.clone(), other.clone()];
        let nodes = Nodes::new(nodes).unwrap();
        let server = Server::over_nodes(S3Config::default(), nodes, node.local()).await;
        (Self::over(server, node).await, other)
    }

    async fn over(server: Server, node: Arc<DirectNode>) -> Self {
        server.put("/bucket").send().await.expect(200);
        let session = open(&server, &node).await;
        Self { server, node, session }
    }

    fn get(&self, path: &str, token: &SessionToken) -> Call<'_> {
        self.server.get(path).header("x-amz-rdma-token", &token.encode())
    }

    fn put(&self, path: &str, token: &SessionToken) -> Call<'_> {
        let call = self.server.put(path).header("x-amz-rdma-token", &token.encode());
        call.payload(Payload::Unsigned)
    }
}

/// Opens a session with `node`, as clients do.
async fn open(server: &Server, node: &DirectNode) -> SessionId {
    let request = serde_json::to_vec(&session_request(node.id())).unwrap();
    let reply = server.post("/_keyway/v1/sessions").body(request).send().await.expect(200);
    let offer: SessionOffer = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(offer.node, node.id());
    offer.session
}

/// Bytes that are nowhere the same.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

fn crc64(bytes: &[u8]) -> String {
    format!("crc64nvme={}", Checksum::of(ChecksumKind::Crc64Nvme, bytes).to_base64())
}

/// The answer says that `bytes` were moved, and that the key is dead.
#[track_caller]
fn moved(reply: &Reply, status: &str, bytes: &[u8]) {
    moved_under(reply, status, bytes, "window", "invalidated");
}

/// The answer says that `bytes` were moved under a key of this strength, and what became of it.
#[track_caller]
fn moved_under(reply: &Reply, status: &str, bytes: &[u8], strength: &str, key: &str) {
    let told = |name: &str| reply.header(name).unwrap_or_else(|| panic!("no {name}: {reply:?}"));
    assert_eq!(told("x-amz-rdma-reply"), status);
    assert_eq!(told("x-amz-rdma-bytes-transferred"), bytes.len().to_string());
    assert_eq!(told("x-keyway-rdma-path"), "verbs-host");
    assert_eq!(told("x-keyway-rdma-strength"), strength);
    assert_eq!(told("x-keyway-rdma-key"), key);
    assert_eq!(told("x-keyway-rdma-checksum"), crc64(bytes));
    assert_eq!(told("content-length"), "0");
    assert!(reply.body.is_empty());
}

/// The answer says so of the key, and of no transfer.
#[track_caller]
fn nothing_moved(reply: &Reply, key: &str) {
    assert_eq!(reply.header("x-keyway-rdma-key"), Some(key), "{reply:?}");
    for name in ["x-amz-rdma-reply", "x-amz-rdma-bytes-transferred", "x-keyway-rdma-checksum"] {
        assert_eq!(reply.header(name), None, "{name} in {reply:?}");
    }
}
