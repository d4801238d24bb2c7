//! Encrypted chunks on a device.
//!
//! Goal: what is on the device is not the object's bytes; whatever bit of it is turned, the block
//! is not delivered, in every way of comparing blocks, and the blocks before it are good; and any
//! range of any length comes back. Method: a node over files; the stored bytes are read as what
//! they are, by a plan without a key, found in the files, and bent.

#![allow(clippy::unwrap_used, reason = "a test may give up")]

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use keyway_dataplane::{LocalNode, NodeConfig, StorageNode, StoreConfig, TransferError};
use keyway_proto::seal::{SEALED_BYTES, sealed_chunk_lengths, stored_length};
use keyway_proto::unit::BLOCK_BYTES;
use keyway_proto::{
    ByteRange, ChunkId, ChunkSpec, DataKey, DigestSet, Durability, GetPlan, NodeId, Piece, PutPlan,
    TenantId, TransferId, Verification, Weight,
};
use proptest::prelude::*;

async fn node(dir: &Path) -> Arc<LocalNode> {
    let store = StoreConfig {
        dir: dir.to_owned(),
        capacity_bytes: Some(128 << 20),
        volume_bytes: 64 << 20,
        pool_bytes: 16 << 20,
        ..StoreConfig::default()
    };
    LocalNode::open(NodeConfig { id: NodeId(1), store, ..NodeConfig::default() }).await.unwrap()
}

fn key() -> Option<DataKey> {
    DataKey::from_slice(&[0x17; DataKey::BYTES])
}

fn content(length: u64, seed: u64) -> Bytes {
    let mut bytes = vec![0; length as usize];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

async fn put(node: &LocalNode, bytes: &Bytes, frame: usize) -> Vec<ChunkSpec> {
    let chunk = |length| ChunkSpec { id: ChunkId::generate(), length };
    let plan = PutPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        chunks: sealed_chunk_lengths(bytes.len() as u64).map(chunk).collect(),
        digests: DigestSet::NONE,
        durability: Durability::Disk,
        key: key(),
    };
    let frames: Vec<_> = bytes.chunks(frame).map(|frame| Ok(bytes.slice_ref(frame))).collect();
    node.put(plan.clone(), Box::pin(stream::iter(frames))).await.unwrap();
    plan.chunks
}

/// What was delivered, and how that ended.
async fn get(
    node: &LocalNode,
    piece: Piece,
    key: Option<DataKey>,
    verification: Verification,
) -> (Vec<u8>, Result<(), TransferError>) {
    let plan = GetPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        pieces: vec![piece],
        verification,
        key,
    };
    let mut bytes = Vec::new();
    let mut delivery = match node.get(plan).await {
        Ok(delivery) => delivery,
        Err(error) => return (bytes, Err(error)),
    };
    while let Some(frame) = delivery.body.next().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(&frame),
            Err(error) => return (bytes, Err(error)),
        }
    }
    (bytes, Ok(()))
}

/// Turns a bit of the stored byte that `run` begins with, wherever it is.
fn bend(dir: &Path, run: &[u8]) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stored = std::fs::read(&path).unwrap();
        if let Some(at) = stored.windows(run.len()).position(|window| window == run) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[stored[at] ^ 1], at as u64).unwrap();
            return file.sync_all().unwrap();
        }
    }
    panic!("the bytes are nowhere");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_bent_is_not_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path()).await;
    let length = 40 * SEALED_BYTES + 99;
    let bytes = content(length, 1);
    let (block, tag) = (BLOCK_BYTES as usize, 16);
    // A byte, a tag's byte, and one of the last block, which is short.
    for (bent, at) in [(3, 3 * block), (20, 21 * block - tag), (40, 40 * block + 7)] {
        let chunk = put(&node, &bytes, 100_000).await[0];
        let whole = Piece { chunk: chunk.id, range: ByteRange::whole(length) };
        let stored = Piece { range: ByteRange::whole(stored_length(length)), ..whole };
        let (stored, read) = get(&node, stored, None, Verification::Inline).await;
        read.unwrap();
        assert!(!stored.windows(32).any(|run| run == &bytes[..32]), "it is as it was");
        assert_eq!(get(&node, whole, key(), Verification::Client).await.0, bytes);
        bend(dir.path(), &stored[at..at + 16]);
        for verification in Verification::ALL {
            let (delivered, ended) = get(&node, whole, key(), verification).await;
            let offset = bent as u64 * BLOCK_BYTES;
            assert!(
                matches!(ended, Err(TransferError::Damaged { chunk: of, offset: found })
                    if of == chunk.id && found == offset),
                "{verification}, {bent}: {ended:?}"
            );
            assert!(delivered.len() as u64 <= bent as u64 * SEALED_BYTES, "{verification}, {bent}");
            assert!(delivered == bytes[..delivered.len()], "{verification}, {bent}");
            // Blocks beside it are as good as they were.
            let after = ByteRange::new(9 * SEALED_BYTES, 2 * SEALED_BYTES).unwrap();
            let piece = Piece { range: after, ..whole };
            let (beside, ended) = get(&node, piece, key(), verification).await;
            ended.unwrap();
            assert!(beside == bytes[after.offset() as usize..after.end() as usize]);
        }
        node.release(&[chunk.id]).await.unwrap();
    }
    assert_eq!(node.stats().pool.leased_bytes, 0);
    node.close().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_range_of_any_length_comes_back(
        length in 1u64..3_000_000,
        frame in 1000usize..700_000,
        ranges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 4),
        verification in prop::sample::select(Verification::ALL.to_vec()),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let node = node(dir.path()).await;
            let bytes = content(length, length);
            let chunk = put(&node, &bytes, frame).await[0].id;
            for (from, taken) in ranges {
                let offset = from.index(length as usize) as u64;
                let taken = taken.index((length - offset) as usize) as u64 + 1;
                let range = ByteRange::new(offset, taken).unwrap();
                let (found, ended) = get(&node, Piece { chunk, range }, key(), verification).await;
                ended.unwrap();
                assert!(found == bytes[offset as usize..range.end() as usize], "{range}");
            }
            node.close().await;
        });
    }
}
