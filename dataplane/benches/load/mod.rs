//! Input shared by the benches: a node over a file store, plans, bodies.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use keyway_dataplane::{Body, LocalNode, NodeConfig, StorageNode, StoreConfig};
use keyway_proto::plan::chunk_lengths;
use keyway_proto::seal::sealed_chunk_lengths;
use keyway_proto::unit::GIB;
use keyway_proto::{
    ByteRange, ChecksumKind, ChunkId, ChunkSpec, DataKey, DigestSet, GetPlan, NodeId, Piece,
    PutPlan, TenantId, TransferId, Verification, Weight,
};
use tempfile::TempDir;

/// Frames as an HTTP server hands them over.
const FRAME_BYTES: usize = 128 << 10;

/// A node in a directory beside the build, which is on a disk where there is one.
pub(crate) async fn node() -> (Arc<LocalNode>, TempDir) {
    let beside_the_build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let dir = TempDir::with_prefix_in("bench-", beside_the_build).expect("a directory");
    let store = StoreConfig {
        dir: dir.path().to_owned(),
        capacity_bytes: Some(4 * GIB),
        scrub_bytes_per_second: 0,
        ..StoreConfig::default()
    };
    let config = NodeConfig { id: NodeId(1), store, ..NodeConfig::default() };
    (LocalNode::open(config).await.expect("opened"), dir)
}

/// A plan for an object of `length` bytes whose CRC64NVME the receipt carries; encrypted where
/// there is a key.
pub(crate) fn put_plan(key: Option<DataKey>, length: u64) -> PutPlan {
    let spec = |length| ChunkSpec { id: ChunkId::generate(), length };
    PutPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        chunks: match key {
            None => chunk_lengths(length).map(spec).collect(),
            Some(_) => sealed_chunk_lengths(length).map(spec).collect(),
        },
        digests: DigestSet::NONE.with(ChecksumKind::Crc64Nvme),
        durability: keyway_proto::Durability::Disk,
        key,
    }
}

/// A plan that reads all of it.
pub(crate) fn get_plan(put: &PutPlan) -> GetPlan {
    let piece =
        |chunk: &ChunkSpec| Piece { chunk: chunk.id, range: ByteRange::whole(chunk.length) };
    GetPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        pieces: put.chunks.iter().map(piece).collect(),
        verification: Verification::default(),
        key: put.key.clone(),
    }
}

/// `bytes` in frames.
pub(crate) fn body(bytes: &Bytes) -> Body {
    let bytes = bytes.clone();
    let frames = (0..bytes.len())
        .step_by(FRAME_BYTES)
        .map(move |start| Ok(bytes.slice(start..(start + FRAME_BYTES).min(bytes.len()))));
    Box::pin(stream::iter(frames))
}

/// Stores an object and gives its plan.
pub(crate) async fn put(node: &LocalNode, bytes: &Bytes) -> PutPlan {
    put_under(node, None, bytes).await
}

/// The same, encrypted where there is a key.
pub(crate) async fn put_under(node: &LocalNode, key: Option<DataKey>, bytes: &Bytes) -> PutPlan {
    let plan = put_plan(key, bytes.len() as u64);
    node.put(plan.clone(), body(bytes)).await.expect("stored");
    plan
}

/// Reads an object and drops its bytes.
pub(crate) async fn get(node: &LocalNode, put: &PutPlan) -> u64 {
    get_with(node, get_plan(put)).await
}

/// Reads what a plan says and drops its bytes.
pub(crate) async fn get_with(node: &LocalNode, plan: GetPlan) -> u64 {
    let mut delivery = node.get(plan).await.expect("here");
    let mut received = 0;
    while let Some(frame) = delivery.body.next().await {
        received += frame.expect("whole").len() as u64;
    }
    assert_eq!(received, delivery.length);
    received
}

/// Gives an object up.
pub(crate) async fn release(node: &LocalNode, put: &PutPlan) {
    let ids: Vec<ChunkId> = put.chunks.iter().map(|chunk| chunk.id).collect();
    node.release(&ids).await.expect("released");
}
