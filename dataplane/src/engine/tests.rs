//! The engine through the node's trait, over the memory store.

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use keyway_proto::plan::chunk_lengths;
use keyway_proto::seal::{SEALED_BYTES, SEALED_CHUNK_BYTES_MAX, sealed_chunk_lengths};
use keyway_proto::unit::{KIB, MIB};
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, ChunkSpec, DataKey, DigestSet, Piece, TenantId, TransferId,
    Verification, Weight,
};

use super::*;

const CAPACITY: u64 = 64 * MIB;

fn node() -> Arc<LocalNode> {
    LocalNode::in_memory(NodeId(1), CAPACITY, 8 << 20).expect("memory")
}

fn put_plan(length: u64) -> PutPlan {
    PutPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        chunks: chunk_lengths(length)
            .map(|length| ChunkSpec { id: ChunkId::generate(), length })
            .collect(),
        digests: DigestSet::NONE.with(ChecksumKind::Crc64Nvme).with(ChecksumKind::Md5),
        durability: keyway_proto::Durability::Disk,
        key: None,
    }
}

fn get_plan(put: &PutPlan) -> GetPlan {
    let piece =
        |chunk: &ChunkSpec| Piece { chunk: chunk.id, range: ByteRange::whole(chunk.length) };
    GetPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        pieces: put.chunks.iter().map(piece).collect(),
        verification: Verification::default(),
        key: None,
    }
}

fn body(bytes: &Bytes, frame_bytes: usize) -> Body {
    let frames: Vec<_> =
        bytes.chunks(frame_bytes).map(|frame| Ok(bytes.slice_ref(frame))).collect();
    Box::pin(stream::iter(frames))
}

fn content(length: u64) -> Bytes {
    (0..length).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect::<Vec<_>>().into()
}

#[tokio::test]
async fn what_is_put_is_got() {
    let node = node();
    for length in [0, 1, 4 * KIB, 65 * KIB, 3 * MIB + 5, 20 * MIB + 1] {
        let bytes = content(length);
        let plan = put_plan(length);
        let receipt = node.put(plan.clone(), body(&bytes, 50_000)).await.expect("stored");
        assert_eq!((receipt.transfer, receipt.bytes), (plan.transfer, length));
        for kind in [ChecksumKind::Crc64Nvme, ChecksumKind::Md5] {
            assert_eq!(receipt.digests.value(kind), Some(&Checksum::of(kind, &bytes)));
        }
        let delivery = node.get(get_plan(&plan)).await.expect("here");
        assert_eq!(delivery.length, length);
        let got: Vec<Bytes> = delivery.body.try_collect().await.expect("whole");
        assert!(got.concat() == bytes, "{length} bytes differ");
        assert_eq!(delivery.receipt.await.expect("given").bytes, length);
        let ids: Vec<_> = plan.chunks.iter().map(|chunk| chunk.id).collect();
        node.release(&ids).await.expect("released");
    }
    assert_eq!(node.stats().store.free_bytes, CAPACITY);
    assert_eq!(node.stats().pool.leased_bytes, 0);
    assert_eq!(node.stats().transfers, 0);
}

/// What is in memory comes as it lies there, between what must be read; an HTTP body is cut.
#[tokio::test]
async fn frames_are_as_long_as_memory_is_contiguous() {
    let pool = LeasePool::new(8 << 20).expect("memory");
    let store = Arc::new(crate::store::memory::MemoryStore::new(CAPACITY));
    let config = crate::store::tier::TierConfig { size_bytes: CAPACITY, ..Default::default() };
    let tier = MemoryTier::over(store, pool.clone(), config).expect("memory");
    let node = LocalNode::over_tier(NodeId(1), Arc::new(tier), pool, &EngineConfig::default());
    let (bytes, plan) = (content(33 * MIB), put_plan(33 * MIB));
    node.put(plan.clone(), body(&bytes, MIB as usize)).await.expect("stored");
    let asking = Asking { tenant: TenantId::ROOT, weight: Weight::default(), bytes: 1 };
    let turn = node.admission.admit(asking).await.expect("free");
    let get = get_plan(&plan);
    let reading = get::start(&get, &*node.store, &node.memory.leases, turn, &node.counters);
    let frames: Vec<_> = reading.await.expect("here").frames.try_collect().await.expect("whole");
    let lengths: Vec<_> = frames.iter().map(|frame| frame.len() as u64).collect();
    assert_eq!(lengths, [16 * MIB, 16 * MIB, MIB]);
    let region = node.memory().tier.as_ref().expect("a tier").anchor();
    let mut at = 0;
    for frame in frames {
        let expected = &bytes[at..at + frame.len()];
        assert!(frame[..] == *expected);
        assert_eq!(frame.crc64nvme(), Some(Checksum::of(ChecksumKind::Crc64Nvme, expected)));
        let address = frame.bytes().as_ptr() as u64;
        assert!(address >= region.address());
        assert!(address + frame.len() as u64 <= region.address() + region.bytes() as u64);
        at += frame.len();
    }
    let delivery = node.get(get).await.expect("here");
    let got: Vec<Bytes> = delivery.body.try_collect().await.expect("whole");
    assert!(got.iter().all(|frame| frame.len() <= 256 << 10) && got.concat() == bytes);
    assert_eq!(delivery.receipt.await.expect("given").bytes, 33 * MIB);
    assert_eq!((node.stats().tier.hits, node.stats().tier.misses), (6, 0));
}

#[tokio::test]
async fn ranges_across_chunks_are_joined() {
    let node = node();
    let bytes = content(33 * MIB);
    let plan = put_plan(33 * MIB);
    node.put(plan.clone(), body(&bytes, MIB as usize)).await.expect("stored");
    let mut get = get_plan(&plan);
    get.pieces[0].range = ByteRange::new(16 * MIB - 3, 3).expect("fits");
    get.pieces[2].range = ByteRange::whole(5);
    let delivery = node.get(get).await.expect("here");
    let got: Vec<Bytes> = delivery.body.try_collect().await.expect("whole");
    assert!(got.concat() == bytes[16 * MIB as usize - 3..32 * MIB as usize + 5]);
}

/// A body of another length than planned, or one that breaks, leaves nothing behind.
#[tokio::test]
async fn bad_bodies_leave_nothing() {
    let node = node();
    let bytes = content(5 * MIB);
    for wrong in [4 * MIB, 5 * MIB - 1] {
        let stored = node.put(put_plan(5 * MIB), body(&bytes.slice(..wrong as usize), 9000)).await;
        assert!(matches!(
            stored,
            Err(TransferError::BodyTooShort { received, expected })
                if received == wrong && expected == 5 * MIB
        ));
    }
    for planned in [1, 5 * MIB - 1] {
        let stored = node.put(put_plan(planned), body(&bytes, 9000)).await;
        assert!(matches!(
            stored,
            Err(TransferError::BodyTooLong { expected }) if expected == planned
        ));
    }
    let cause = crate::node::BodyError(Arc::new(std::io::Error::other("hung up")));
    let broken = body(&bytes.slice(..MIB as usize), 9000)
        .chain(stream::iter([Err(TransferError::Body(cause))]));
    let stored = node.put(put_plan(5 * MIB), Box::pin(broken)).await;
    assert!(matches!(stored, Err(TransferError::Body(cause)) if cause.to_string() == "hung up"));
    assert!(node.chunks(None, 10).await.expect("listed").is_empty());
    assert_eq!(node.stats().store.free_bytes, CAPACITY);
    assert_eq!(node.stats().failed, 5);
}

#[tokio::test]
async fn bad_plans_are_refused() {
    let node = node();
    let bytes = content(10);
    let plan = put_plan(10);
    node.put(plan.clone(), body(&bytes, 10)).await.expect("stored");
    let again = node.put(plan.clone(), body(&bytes, 10)).await;
    assert!(matches!(again, Err(TransferError::InvalidPlan(_))));
    for range in [ByteRange::whole(11), ByteRange::whole(0), ByteRange::new(10, 1).expect("fits")] {
        let mut get = get_plan(&plan);
        get.pieces[0].range = range;
        assert!(matches!(node.get(get).await, Err(TransferError::InvalidPlan(_))), "{range}");
    }
    let mut get = get_plan(&plan);
    get.pieces[0].chunk = ChunkId::generate();
    assert!(matches!(node.get(get).await, Err(TransferError::NoSuchChunk(_))));
    let mut twice = put_plan(20);
    twice.chunks = vec![ChunkSpec { id: ChunkId::generate(), length: 10 }; 2];
    let stored = node.put(twice, body(&content(20), 10)).await;
    assert!(matches!(stored, Err(TransferError::InvalidPlan(_))));
    assert_eq!(node.chunks(None, 10).await.expect("listed"), plan.chunks);
    let mut huge = put_plan(1);
    huge.chunks[0].length = 16 * MIB + 1;
    assert!(matches!(node.put(huge, body(&bytes, 10)).await, Err(TransferError::InvalidPlan(_))));
}

/// A GET that is dropped midway gives everything back and gives no receipt.
#[tokio::test]
async fn a_dropped_get_holds_nothing() {
    let node = node();
    let bytes = content(5 * MIB);
    let plan = put_plan(5 * MIB);
    node.put(plan.clone(), body(&bytes, 100_000)).await.expect("stored");
    let mut delivery = node.get(get_plan(&plan)).await.expect("here");
    assert!(delivery.body.next().await.is_some_and(|frame| frame.is_ok()));
    assert_eq!(node.stats().transfers, 1);
    drop(delivery.body);
    assert!(delivery.receipt.await.is_err());
    assert_eq!((node.stats().transfers, node.stats().pool.leased_bytes), (0, 0));
}

/// With one buffer of each size, many transfers at once still all end, and slow consumers
/// hold up nobody for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_cannot_lock_each_other_out() {
    lock_out(0).await;
}

/// Nor over a memory tier that holds a part of what they move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_cannot_lock_each_other_out_of_memory() {
    lock_out(5 * MIB).await;
}

/// A node on disk, with buffers of `pool_bytes`, as few as there can be with 0.
async fn node_on_disk(pool_bytes: usize, tier_bytes: u64) -> (tempfile::TempDir, Arc<LocalNode>) {
    let beside_the_build = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let dir = tempfile::TempDir::with_prefix_in("node-", beside_the_build).expect("a directory");
    let config = NodeConfig {
        store: crate::store::StoreConfig {
            dir: dir.path().to_owned(),
            capacity_bytes: Some(512 * MIB),
            volume_bytes: 128 * MIB,
            pool_bytes,
            ..Default::default()
        },
        tier: crate::store::tier::TierConfig { size_bytes: tier_bytes, ..Default::default() },
        ..NodeConfig::default()
    };
    let node = LocalNode::open(config).await.expect("opened");
    (dir, node)
}

/// What is delivered is this; a consumer that holds one frame at a time.
async fn compare(mut delivery: Delivery, bytes: &Bytes) {
    let mut at = 0;
    while let Some(frame) = delivery.body.next().await {
        let frame = frame.expect("whole");
        assert!(bytes[at..].starts_with(&frame), "other bytes at {at}");
        at += frame.len();
        drop(frame);
        tokio::task::yield_now().await;
    }
    assert_eq!(at, bytes.len());
}

async fn lock_out(tier_bytes: u64) {
    let (_dir, node) = node_on_disk(0, tier_bytes).await;
    let transfer = |number: u64| {
        let node = Arc::clone(&node);
        async move {
            let length = [3 * MIB + number, 200 * KIB, 700 * KIB, 4 * KIB][number as usize % 4];
            let (bytes, plan) = (content(length), put_plan(length));
            node.put(plan.clone(), body(&bytes, 70_000)).await.expect("stored");
            let delivery = node.get(get_plan(&plan)).await.expect("here");
            compare(delivery, &bytes).await;
        }
    };
    let all = futures::future::join_all((0..64).map(|number| tokio::spawn(transfer(number))));
    let ended = tokio::time::timeout(std::time::Duration::from_secs(120), all).await;
    for outcome in ended.expect("no transfer waits for ever") {
        outcome.expect("no transfer failed");
    }
    assert_eq!(node.stats().transfers, 0);
    assert_eq!(node.status().await.expect("known").chunks, 64);
    assert_eq!(node.stats().tier.hits > 0, tier_bytes > 0);
    node.close().await;
    assert_eq!(node.stats().pool.leased_bytes, 0);
    let refused = node.put(put_plan(1), body(&content(1), 1)).await;
    assert!(matches!(refused, Err(TransferError::Store { .. })));
}

/// PUTs that are dropped at any point leave neither chunks nor buffers behind.
#[tokio::test]
async fn dropped_puts_leave_nothing() {
    let node = node();
    let bytes = content(3 * MIB);
    for frames in 0..8 {
        let sent = bytes.slice(..frames * 400_000);
        let stalled = body(&sent, 100_000).chain(stream::pending());
        let mut put = node.put(put_plan(3 * MIB), Box::pin(stalled));
        assert!(futures::poll!(&mut put).is_pending());
        drop(put);
    }
    assert_eq!((node.stats().transfers, node.stats().pool.leased_bytes), (0, 0));
    assert_eq!((node.stats().store.chunks, node.stats().store.free_bytes), (0, CAPACITY));
}

/// Where free space lies in single units, and buffers are scarce for some pieces of a PUT and not
/// for others, no chunk is written into another's units.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_stay_apart_in_fragments() {
    let (_dir, node) = node_on_disk(8 << 20, 0).await;
    let put = |seed: u8, length: u64| {
        let node = Arc::clone(&node);
        async move {
            let bytes: Bytes = content(length).iter().map(|byte| byte ^ seed).collect();
            let plan = put_plan(length);
            let frames = body(&bytes, 70_000).then(|frame| async {
                tokio::task::yield_now().await;
                frame
            });
            node.put(plan.clone(), Box::pin(frames)).await.expect("stored");
            (plan, bytes)
        }
    };
    let single: Vec<_> =
        stream::iter(0..400).map(|seed| put(seed as u8, MIB)).buffered(8).collect().await;
    let (kept, gone): (Vec<_>, Vec<_>) =
        single.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
    let gone: Vec<_> = gone.iter().map(|(_, (plan, _))| plan.chunks[0].id).collect();
    node.release(&gone).await.expect("released");
    let large = (0..16).map(|seed| tokio::spawn(put(!seed, 11 * MIB + u64::from(seed) * 90_001)));
    let large = futures::future::try_join_all(large).await.expect("no transfer failed");
    for (plan, bytes) in kept.into_iter().map(|(_, chunk)| chunk).chain(large) {
        let delivery = node.get(get_plan(&plan)).await.expect("here");
        compare(delivery, &bytes).await;
    }
    node.close().await;
}

fn sealed_plan(length: u64, key: &DataKey) -> PutPlan {
    let chunk = |length| ChunkSpec { id: ChunkId::generate(), length };
    let chunks = sealed_chunk_lengths(length).map(chunk).collect();
    PutPlan { chunks, key: Some(key.clone()), ..put_plan(0) }
}

fn data_key(byte: u8) -> DataKey {
    DataKey::from_slice(&[byte; DataKey::BYTES]).expect("32 bytes")
}

/// Over the memory store, and behind a tier, which holds what is encrypted.
fn sealing_nodes() -> [Arc<LocalNode>; 2] {
    let pool = LeasePool::new(8 << 20).expect("memory");
    let store = Arc::new(crate::store::memory::MemoryStore::new(CAPACITY));
    let config = crate::store::tier::TierConfig { size_bytes: CAPACITY, ..Default::default() };
    let tier = MemoryTier::over(store, pool.clone(), config).expect("memory");
    let tiered = LocalNode::over_tier(NodeId(1), Arc::new(tier), pool, &EngineConfig::default());
    [node(), tiered]
}

/// Copied as it comes: frames hold buffers, and there are few.
async fn got(node: &LocalNode, plan: GetPlan) -> Result<Vec<u8>, TransferError> {
    let mut delivery = node.get(plan).await?;
    let mut bytes = Vec::new();
    while let Some(frame) = delivery.body.try_next().await? {
        bytes.extend_from_slice(&frame);
    }
    Ok(bytes)
}

/// Goal: an encrypted object comes back as it was, whole and in ranges, however its blocks are
/// compared; its digests are those of its own bytes, and what is stored does not show them.
/// Method: lengths and ranges at the edges of blocks, windows and chunks.
#[tokio::test]
async fn what_is_encrypted_is_got() {
    const BLOCK: u64 = SEALED_BYTES;
    const CHUNK: u64 = SEALED_CHUNK_BYTES_MAX;
    let key = data_key(1);
    for node in sealing_nodes() {
        for length in
            [1, 4 * KIB, BLOCK - 1, BLOCK, BLOCK + 1, 16 * BLOCK + 1, CHUNK, CHUNK + 1, 20 * MIB]
        {
            let (bytes, plan) = (content(length), sealed_plan(length, &key));
            let receipt = node.put(plan.clone(), body(&bytes, 50_000)).await.expect("stored");
            for kind in [ChecksumKind::Crc64Nvme, ChecksumKind::Md5] {
                assert_eq!(receipt.digests.value(kind), Some(&Checksum::of(kind, &bytes)));
            }
            let stored: u64 = node.store.chunks(None, 9).iter().map(|chunk| chunk.length).sum();
            let tags = plan.chunks.iter().map(|chunk| chunk.length.div_ceil(BLOCK) * 16);
            assert_eq!(stored, length + tags.sum::<u64>());
            let whole = GetPlan { key: plan.key.clone(), ..get_plan(&plan) };
            for verification in Verification::ALL {
                let whole = GetPlan { verification, ..whole.clone() };
                assert!(got(&node, whole).await.expect("here") == bytes, "{length} differ");
            }
            let first = plan.chunks[0].length;
            for offset in [0, 1, BLOCK - 1, BLOCK, 16 * BLOCK - 1, first - 1] {
                for taken in [1, 16, BLOCK, BLOCK + 2, MIB + 1] {
                    let Some(taken) = first.checked_sub(offset).map(|rest| rest.min(taken)) else {
                        continue;
                    };
                    let range = ByteRange::new(offset, taken).expect("fits");
                    if taken == 0 {
                        continue;
                    }
                    let pieces = vec![Piece { chunk: plan.chunks[0].id, range }];
                    let found = got(&node, GetPlan { pieces, ..whole.clone() }).await;
                    let (from, to) = (offset as usize, (offset + taken) as usize);
                    assert!(found.expect("here") == bytes[from..to], "{length}: {range:?}");
                }
            }
            // As it is stored, it is something else.
            let stored = PutPlan { key: None, chunks: node.store.chunks(None, 9), ..plan.clone() };
            let found = got(&node, get_plan(&stored)).await.expect("here");
            let run = &bytes[..bytes.len().min(64)];
            assert!(length < 16 || !found.windows(run.len()).any(|window| window == run));
            let ids: Vec<_> = plan.chunks.iter().map(|chunk| chunk.id).collect();
            node.release(&ids).await.expect("released");
        }
        assert_eq!(node.stats().store.free_bytes, CAPACITY);
        assert_eq!(node.stats().pool.leased_bytes, 0);
    }
}

/// Goal: no way of comparing blocks lets bytes out that do not open: under another key, of another
/// chunk, or of a chunk that is not encrypted.
#[tokio::test]
async fn what_does_not_open_is_not_delivered() {
    let (bytes, key) = (content(MIB), data_key(1));
    for node in sealing_nodes() {
        let plan = sealed_plan(MIB, &key);
        node.put(plan.clone(), body(&bytes, 50_000)).await.expect("stored");
        for verification in Verification::ALL {
            let other = Some(data_key(2));
            let get = GetPlan { key: other, verification, ..get_plan(&plan) };
            let refused = got(&node, get).await;
            assert!(
                matches!(refused, Err(TransferError::Damaged { offset: 0, .. })),
                "{refused:?}"
            );
        }
        let plain = put_plan(5);
        node.put(plain.clone(), body(&content(5), 5)).await.expect("stored");
        let get = GetPlan { key: Some(key.clone()), ..get_plan(&plain) };
        assert!(matches!(got(&node, get).await, Err(TransferError::InvalidPlan(_))));
        let longer = PutPlan { key: Some(key.clone()), ..put_plan(17 * MIB) };
        let refused = node.put(longer, body(&content(17 * MIB), MIB as usize)).await;
        assert!(matches!(refused, Err(TransferError::InvalidPlan(_))), "{refused:?}");
    }
}
