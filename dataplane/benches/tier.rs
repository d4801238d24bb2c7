//! What a GET costs in processor time with its bytes in the memory tier, beside the same GET
//! without one: frames as a direct transfer takes them, with their CRC64NVME; and whole GETs
//! through the node. Prints one line each.

#![allow(missing_docs, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt as _;
use keyway_dataplane::store::memory::MemoryStore;
use keyway_dataplane::store::tier::MemoryTier;
use keyway_dataplane::store::{BlobStore, PinnedChunk};
use keyway_dataplane::{EngineConfig, LocalNode, StorageNode, TierConfig};
use keyway_fabric::memory::LeasePool;
use keyway_proto::checksum::MultiHasher;
use keyway_proto::unit::{KIB, MIB};
use keyway_proto::{ByteRange, ChecksumKind, ChunkId, DigestSet, NodeId, PutPlan};

mod load;

const SIZES: [(&str, u64); 4] =
    [("4 KiB", 4 * KIB), ("64 KiB", 64 * KIB), ("1 MiB", MIB), ("16 MiB", 16 * MIB)];

/// How long each line is measured.
const MEASURED_MS: u128 = 1000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for tiered in [false, true] {
        let pool = LeasePool::new(48 << 20).expect("memory");
        let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new(256 * MIB));
        let name = if tiered { "tier" } else { "memory store" };
        let (store, node) = if tiered {
            let config = TierConfig { size_bytes: 128 * MIB, ..TierConfig::default() };
            let tier = MemoryTier::over(store, pool.clone(), config).expect("memory");
            let tier = Arc::new(tier);
            let node = LocalNode::over_tier(
                NodeId(1),
                Arc::clone(&tier),
                pool.clone(),
                &EngineConfig::default(),
            );
            (tier as Arc<dyn BlobStore>, node)
        } else {
            let node =
                LocalNode::over(NodeId(1), Arc::clone(&store), pool, &EngineConfig::default());
            (store, node)
        };
        measure(&*store, &node, name).await;
    }
    file_store().await;
}

/// The same through a node over files, without a tier: what a hit saves.
async fn file_store() {
    let (node, _dir) = load::node().await;
    for (size, length) in SIZES {
        let put = load::put(&node, &content(length)).await;
        get(&node, &put, size, "file store").await;
        load::release(&node, &put).await;
    }
    node.close().await;
}

async fn measure(store: &dyn BlobStore, node: &Arc<LocalNode>, name: &str) {
    for (size, length) in SIZES {
        let put = load::put(node, &content(length)).await;
        let chunk = put.chunks[0].id;
        let whole = ByteRange::whole(length);
        line(name, size, "frames with checksum", length, async || {
            frames(store, chunk, whole).await;
        })
        .await;
        if length > 4 * KIB {
            // An edge at each end must be hashed.
            let ragged = ByteRange::new(1, length - 2).expect("inside");
            line(name, size, "the same, ragged", ragged.length(), async || {
                frames(store, chunk, ragged).await;
            })
            .await;
        }
        get(node, &put, size, name).await;
        load::release(node, &put).await;
    }
}

async fn get(node: &Arc<LocalNode>, put: &PutPlan, size: &str, name: &str) {
    line(name, size, "GET through the node", put.length(), async || {
        load::get(node, put).await;
    })
    .await;
    let mut delivery = node.get(load::get_plan(put)).await.expect("here");
    while delivery.body.next().await.is_some() {}
}

/// A chunk as a direct transfer reads it.
async fn frames(store: &dyn BlobStore, chunk: ChunkId, range: ByteRange) {
    let pin: Box<dyn PinnedChunk> = store.pin(chunk).expect("stored");
    let mut hasher = MultiHasher::new(DigestSet::NONE.with(ChecksumKind::Crc64Nvme));
    let mut at = range.offset();
    while at < range.end() {
        let rest = ByteRange::new(at, range.end() - at).expect("inside");
        if let Some(frame) = pin.held(rest) {
            at += frame.len() as u64;
            match frame.crc64nvme() {
                Some(known) => hasher.update_known(&frame, &known),
                None => hasher.update(&frame),
            }
            continue;
        }
        let end = (at / MIB + 1).saturating_mul(MIB).min(range.end());
        let piece = ByteRange::new(at, end - at).expect("inside");
        let mut fetched = pin.read(piece, None).await.expect("readable");
        while let Some(frame) = fetched.next_frame() {
            hasher.update(&frame.expect("whole"));
        }
        at = end;
    }
    std::hint::black_box(hasher.finish());
}

async fn line(name: &str, size: &str, what: &str, bytes: u64, work: impl AsyncFn()) {
    for _ in 0..3 {
        work().await;
    }
    let (started, mut count) = (Instant::now(), 0u64);
    while started.elapsed().as_millis() < MEASURED_MS {
        work().await;
        count += 1;
    }
    let each = started.elapsed().as_secs_f64() / count as f64;
    println!(
        "{name:<12} {size:>7} {what:<22} {:>12.0} ns each {:>10.1} GB/s per core",
        each * 1e9,
        bytes as f64 / each / 1e9
    );
}

fn content(length: u64) -> Bytes {
    (0..length).map(|at| ((at * 7) ^ (at >> 9)) as u8).collect::<Vec<_>>().into()
}
