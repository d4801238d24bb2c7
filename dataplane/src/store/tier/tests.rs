//! The tier over both stores: conformance, what becomes hot, shared reads, damage.

use std::path::Path;

use futures::future::join_all;
use keyway_proto::unit::{BLOCK_BYTES, KIB, MIB};
use keyway_proto::{ByteRange, Checksum, ChecksumKind, NodeId};

use super::index::Reason;
use super::*;
use crate::store::file::FileStore;
use crate::store::memory::MemoryStore;
use crate::store::{StoreConfig, block_sum, conformance};

pub(super) fn pool() -> LeasePool {
    LeasePool::new(8 << 20).expect("memory")
}

pub(super) fn config(size_bytes: u64) -> TierConfig {
    TierConfig { size_bytes, scrub_bytes_per_second: 0, ..TierConfig::default() }
}

pub(super) fn over_memory(
    pool: &LeasePool,
    config: TierConfig,
) -> (Arc<MemoryTier>, Arc<dyn BlobStore>) {
    let store = Arc::new(MemoryStore::new(72 * MIB));
    let tier = Arc::new(MemoryTier::over(store, pool.clone(), config).expect("memory"));
    (Arc::clone(&tier), tier)
}

/// The suite over a tier that holds everything, one that holds little, and one that verifies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_over_memory() {
    let every_read = TierConfig { verify: TierVerify::EveryRead, ..config(20 * MIB) };
    let on_read = TierConfig { admit: TierAdmit::OnRead, ..config(40 * MIB) };
    for config in [config(96 * MIB), config(MIB), config(4096), every_read, on_read] {
        let pool = pool();
        let (tier, store) = over_memory(&pool, config.clone());
        conformance::all(&store, &pool).await;
        store.close().await;
        assert_eq!(pool.stats().leased_bytes, 0);
        let stats = tier.stats();
        assert_eq!((stats.used_bytes, stats.chunks, stats.damaged), (0, 0, 0), "{config:?}");
        assert_eq!(stats.hits > 0, config.size_bytes > 0, "{config:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_over_files() {
    for size_bytes in [96 * MIB, 9 * MIB] {
        let pool = pool();
        let (_dir, file) = file_store(&pool);
        let tier = MemoryTier::over(file, pool.clone(), config(size_bytes)).expect("memory");
        let tier = Arc::new(tier);
        let store: Arc<dyn BlobStore> = Arc::clone(&tier) as _;
        conformance::all(&store, &pool).await;
        store.close().await;
        assert_eq!(pool.stats().leased_bytes, 0);
        assert_eq!((tier.stats().used_bytes, tier.stats().chunks), (0, 0));
    }
}

pub(super) fn file_store(pool: &LeasePool) -> (tempfile::TempDir, Arc<FileStore>) {
    let beside_the_build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let dir = tempfile::TempDir::with_prefix_in("tier-", beside_the_build).expect("a directory");
    let store = open_file_store(dir.path(), pool);
    (dir, store)
}

pub(super) fn open_file_store(dir: &Path, pool: &LeasePool) -> Arc<FileStore> {
    let config = StoreConfig {
        dir: dir.to_owned(),
        capacity_bytes: Some(72 * MIB),
        volume_bytes: 24 * MIB,
        scrub_bytes_per_second: 0,
        ..StoreConfig::default()
    };
    Arc::new(FileStore::open(NodeId(7), &config, pool.clone()).expect("opened"))
}

pub(super) async fn read(store: &Arc<dyn BlobStore>, chunk: ChunkSpec, range: ByteRange) {
    let pin = store.pin(chunk.id).expect("stored");
    let bytes = conformance::read(&*pin, range).await.expect("readable");
    let whole = conformance::content(chunk.id, chunk.length);
    assert!(bytes == whole[range.offset() as usize..range.end() as usize]);
}

/// What was written is one run in memory, with its checksum; a release takes it out at once,
/// and a reader that has it keeps it.
#[tokio::test]
async fn a_written_chunk_is_one_frame() {
    let pool = pool();
    let (tier, store) = over_memory(&pool, config(64 * MIB));
    for length in [1, 4 * KIB, BLOCK_BYTES + 1, 9 * MIB + 5, 16 * MIB] {
        let chunk = conformance::put(&store, &pool, length).await.expect("room");
        let pin = store.pin(chunk.id).expect("stored");
        let frame = pin.held(ByteRange::whole(length)).expect("in memory");
        let content = conformance::content(chunk.id, length);
        assert!(frame[..] == content[..], "{length}");
        assert_eq!(frame.crc64nvme(), Some(Checksum::of(ChecksumKind::Crc64Nvme, &content)));
        assert!(tier.arena().region().bytes() as u64 >= length);
        assert_eq!(tier.stats().used_bytes, length.next_multiple_of(4096), "no page is wasted");
        store.release(&[chunk.id]);
        assert_eq!(tier.stats().chunks, 0);
        assert!(pin.held(ByteRange::whole(length)).is_none());
        assert_eq!(tier.stats().used_bytes, length.next_multiple_of(4096), "still read");
        drop(frame);
        assert_eq!(tier.stats().used_bytes, 0);
    }
    assert_eq!(tier.stats().misses, 0);
}

/// A range brings in the blocks that it touches, and the second read has no need of the store.
#[tokio::test]
async fn a_range_brings_in_its_blocks() {
    let pool = pool();
    let (tier, store) =
        over_memory(&pool, TierConfig { admit: TierAdmit::OnRead, ..config(64 * MIB) });
    let chunk = conformance::put(&store, &pool, 5 * MIB).await.expect("room");
    assert_eq!(tier.stats().used_bytes, 0);
    let range = ByteRange::new(BLOCK_BYTES + 10, 2 * BLOCK_BYTES).expect("inside");
    read(&store, chunk, range).await;
    assert_eq!((tier.stats().hits, tier.stats().misses), (0, 1));
    assert_eq!(tier.stats().filled_bytes, 3 * BLOCK_BYTES);
    read(&store, chunk, range).await;
    assert_eq!((tier.stats().hits, tier.stats().misses), (1, 1));
    // The rest is read around what is here.
    read(&store, chunk, ByteRange::whole(5 * MIB)).await;
    read(&store, chunk, ByteRange::whole(5 * MIB)).await;
    assert_eq!(tier.stats().filled_bytes, 5 * MIB);
    let pin = store.pin(chunk.id).expect("stored");
    let frame = pin.held(ByteRange::whole(5 * MIB)).expect("in memory");
    assert_eq!(frame.len() as u64, 5 * MIB);
}

/// Many readers of a cold chunk at once: the device reads it once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_what_is_under_way() {
    const LENGTH: u64 = 12 * MIB;
    let pool = LeasePool::new(128 << 20).expect("memory");
    let (_dir, file) = file_store(&pool);
    let on_read = TierConfig { admit: TierAdmit::OnRead, ..config(64 * MIB) };
    let tier = MemoryTier::over(file, pool.clone(), on_read).expect("memory");
    let store: Arc<dyn BlobStore> = Arc::new(tier);
    let chunk = conformance::put(&store, &pool, LENGTH).await.expect("room");
    let before = store.usage().read_bytes;
    let readers = (0..8).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { read(&store, chunk, ByteRange::whole(LENGTH)).await })
    });
    for reader in join_all(readers).await {
        reader.expect("no panic");
    }
    let bytes = store.usage().read_bytes - before;
    assert!((LENGTH..LENGTH + MIB).contains(&bytes), "{bytes} bytes were read");
    store.close().await;
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// A reader that goes away does not take the others' read with it.
#[tokio::test]
async fn a_dropped_reader_leaves_its_flight() {
    let pool = pool();
    let (tier, store) =
        over_memory(&pool, TierConfig { admit: TierAdmit::OnRead, ..config(64 * MIB) });
    let chunk = conformance::put(&store, &pool, MIB).await.expect("room");
    let pin = store.pin(chunk.id).expect("stored");
    let mut first = pin.read(ByteRange::whole(MIB), None);
    assert!(futures::poll!(&mut first).is_pending());
    let second = pin.read(ByteRange::whole(MIB), None);
    drop(first);
    let mut fetched = second.await.expect("readable");
    let frame = fetched.next_frame().expect("one").expect("whole");
    assert!(frame[..] == conformance::content(chunk.id, MIB)[..]);
    assert!(frame.crc64nvme().is_some(), "it came out of memory");
    assert_eq!(tier.stats().filled_bytes, MIB);
}

/// A hot chunk stays while more than the memory holds is read once.
#[tokio::test]
async fn scans_leave_hot_chunks_alone() {
    let pool = pool();
    let (tier, store) = over_memory(&pool, config(8 * MIB));
    let hot = conformance::put(&store, &pool, 2 * MIB).await.expect("room");
    for _ in 0..2 {
        read(&store, hot, ByteRange::whole(2 * MIB)).await;
    }
    for _ in 0..40 {
        let cold = conformance::put(&store, &pool, MIB).await.expect("room");
        read(&store, hot, ByteRange::whole(MIB)).await;
        store.pin(cold.id).expect("stored");
        store.release(&[ChunkId::generate()]);
    }
    let pin = store.pin(hot.id).expect("stored");
    assert!(pin.held(ByteRange::whole(2 * MIB)).is_some());
    assert!(tier.stats().evictions > 30);
}

/// Memory that is all being read makes no room: reads and writes go by it.
#[tokio::test]
async fn pinned_memory_is_gone_around() {
    let pool = pool();
    let (tier, store) = over_memory(&pool, config(2 * MIB));
    let half = MIB / 2;
    let mut frames = Vec::new();
    for _ in 0..4 {
        let chunk = conformance::put(&store, &pool, half).await.expect("room");
        let pin = store.pin(chunk.id).expect("stored");
        frames.push((chunk, pin.held(ByteRange::whole(half)).expect("in memory")));
    }
    let next = conformance::put(&store, &pool, half).await.expect("room");
    read(&store, next, ByteRange::whole(half)).await;
    assert_eq!((tier.stats().chunks, tier.stats().refused), (4, 2));
    for (chunk, frame) in frames {
        assert!(frame[..] == conformance::content(chunk.id, half)[..]);
    }
    read(&store, next, ByteRange::whole(half)).await;
    assert_eq!((tier.stats().chunks, tier.stats().evictions), (4, 1));
}

/// What is large beside the memory comes in when somebody asks for it, and not before.
#[tokio::test]
async fn large_chunks_are_not_brought_in_unasked() {
    let pool = pool();
    let (tier, store) = over_memory(&pool, config(8 * MIB));
    let chunk = conformance::put(&store, &pool, 3 * MIB).await.expect("room");
    for _ in 0..3 {
        read(&store, chunk, ByteRange::whole(3 * MIB)).await;
    }
    assert_eq!((tier.stats().chunks, tier.stats().filled_bytes), (0, 0));
    tier.load(&[chunk.id]).await;
    let pin = store.pin(chunk.id).expect("stored");
    assert!(pin.held(ByteRange::whole(3 * MIB)).is_some());
}

#[tokio::test]
async fn what_is_loaded_is_here() {
    let pool = pool();
    let (tier, store) =
        over_memory(&pool, TierConfig { admit: TierAdmit::OnPrefetch, ..config(20 * MIB) });
    let mut chunks = Vec::new();
    for length in [100, 5 * MIB + 1, 9 * MIB] {
        chunks.push(conformance::put(&store, &pool, length).await.expect("room"));
    }
    assert_eq!(tier.stats().used_bytes, 0);
    let mut ids: Vec<_> = chunks.iter().map(|chunk| chunk.id).collect();
    ids.push(ChunkId::generate());
    let loaded = tier.load(&ids).await;
    assert_eq!((loaded.chunks, loaded.missed), (3, 1));
    assert_eq!(loaded.bytes, chunks.iter().map(|chunk| chunk.length).sum::<u64>());
    let misses = tier.stats().misses;
    for chunk in &chunks {
        read(&store, *chunk, ByteRange::whole(chunk.length)).await;
    }
    assert_eq!(tier.stats().misses, misses);
    assert_eq!(tier.load(&ids).await, loaded);
}

/// Bytes that differ from their sum are thrown out by the scrubber, and by readers where they
/// look; the store's are delivered.
#[tokio::test]
async fn changed_bytes_are_thrown_out() {
    let pool = pool();
    let scrubbed = config(64 * MIB);
    let every_read = TierConfig { verify: TierVerify::EveryRead, ..scrubbed.clone() };
    for config in [scrubbed, every_read] {
        let on_read = TierConfig { admit: TierAdmit::OnRead, ..config };
        let (tier, store) = over_memory(&pool, on_read.clone());
        let chunk = conformance::put(&store, &pool, 3 * MIB).await.expect("room");
        let entry = tier.shared.index.reserve(chunk).expect("room");
        let content = conformance::content(chunk.id, chunk.length);
        for (block, bytes) in content.chunks(BLOCK_BYTES as usize).enumerate() {
            let sum = block_sum(bytes) ^ u32::from(block == 20);
            entry.fill(block as u64 * BLOCK_BYTES, bytes, sum);
        }
        tier.shared.index.insert(entry, Reason::Read);
        match on_read.verify {
            TierVerify::AtFill => {
                assert_eq!(tier.shared.scrub(chunk.id, 0), Some(MIB));
                assert_eq!(tier.shared.scrub(chunk.id, MIB), None);
            }
            TierVerify::EveryRead => read(&store, chunk, ByteRange::whole(3 * MIB)).await,
        }
        assert_eq!(tier.stats().damaged, 1);
        read(&store, chunk, ByteRange::whole(3 * MIB)).await;
        assert_eq!(tier.stats().damaged, 1);
        assert_eq!(store.usage().damaged_blocks, 0);
    }
}
