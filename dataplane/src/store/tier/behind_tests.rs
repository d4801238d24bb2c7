//! Goal: what was written to memory first is read like everything else, becomes durable, and is
//! never taken for durable before it is; when the device fails, nothing more is taken.
//! Method: over the stores themselves, and over one whose writes fail when it is told so.

use keyway_proto::unit::{BLOCK_BYTES, KIB, MIB};
use keyway_proto::{ByteRange, Checksum, ChecksumKind};

use super::tests::{config, file_store, over_memory, pool, read};
use super::*;
use crate::store::memory::MemoryStore;
use crate::store::{Piece, StagedChunk, conformance};

/// Longer than any flush of a test takes.
const LONG: Duration = Duration::from_secs(60);

async fn stage(
    tier: &MemoryTier,
    pool: &LeasePool,
    length: u64,
) -> Option<(ChunkSpec, Box<dyn StagedChunk>)> {
    let chunk = ChunkSpec { id: ChunkId::generate(), length };
    let writer = tier.write_behind(chunk).await.expect("the store takes it")?;
    Some((chunk, conformance::fill(Box::new(writer), pool, chunk).await.expect("whole")))
}

async fn put(tier: &MemoryTier, pool: &LeasePool, length: u64) -> ChunkSpec {
    let (chunk, staged) = stage(tier, pool, length).await.expect("room");
    staged.publish().expect("a new id");
    chunk
}

async fn standing(tier: &MemoryTier, chunk: ChunkSpec, wait: Duration) -> Standing {
    tier.settle(&[chunk.id], wait).await[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_behind_is_read_and_becomes_durable() {
    let pool = pool();
    let (_dir, file) = file_store(&pool);
    let tier = Arc::new(MemoryTier::over(file, pool.clone(), config(64 * MIB)).expect("memory"));
    let store: Arc<dyn BlobStore> = Arc::clone(&tier) as _;
    let mut chunks = Vec::new();
    for length in [1, 4 * KIB, BLOCK_BYTES + 1, 512 * KIB + 7, 5 * MIB + 12_345, 16 * MIB] {
        let chunk = put(&tier, &pool, length).await;
        // Wherever it is at this moment.
        read(&store, chunk, ByteRange::whole(length)).await;
        read(&store, chunk, ByteRange::new(length / 2, length - length / 2).expect("inside")).await;
        chunks.push(chunk);
    }
    let ids: Vec<_> = chunks.iter().map(|chunk| chunk.id).collect();
    let standings = tier.settle(&ids, LONG).await;
    assert!(standings.iter().all(|standing| *standing == Standing::Durable), "{standings:?}");
    let stats = tier.stats();
    assert_eq!((stats.dirty_bytes, stats.dirty_chunks, stats.lost), (0, 0, 0));
    assert_eq!(stats.flushed_bytes, chunks.iter().map(|chunk| chunk.length).sum::<u64>());
    for chunk in &chunks {
        let pin = tier.shared.store.pin(chunk.id).expect("on the device");
        let bytes = conformance::read(&*pin, ByteRange::whole(chunk.length)).await.expect("whole");
        assert!(bytes == conformance::content(chunk.id, chunk.length));
        let hits = tier.stats().hits;
        read(&store, *chunk, ByteRange::whole(chunk.length)).await;
        assert!(tier.stats().hits > hits, "and still in memory");
    }
    store.close().await;
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// Goal: a stop leaves nothing in memory alone. Method: the store is opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_the_device() {
    let pool = pool();
    let (dir, file) = file_store(&pool);
    let tier = MemoryTier::over(file, pool.clone(), config(96 * MIB)).expect("memory");
    let mut chunks = Vec::new();
    for _ in 0..3 {
        chunks.push(put(&tier, &pool, 9 * MIB + 3).await);
    }
    let (_, late) = stage(&tier, &pool, MIB).await.expect("room");
    tier.close().await;
    assert!(matches!(late.publish(), Err(StoreError::Closed)), "nobody would make it durable");
    assert_eq!(tier.stats().dirty_chunks, 0);
    assert!(stage(&tier, &pool, MIB).await.is_none());
    drop(tier);
    let opened = super::tests::open_file_store(dir.path(), &pool);
    for chunk in chunks {
        let pin = opened.pin(chunk.id).expect("durable");
        let bytes = conformance::read(&*pin, ByteRange::whole(chunk.length)).await.expect("whole");
        assert!(bytes == conformance::content(chunk.id, chunk.length));
    }
}

#[tokio::test]
async fn only_so_much_is_behind() {
    let pool = pool();
    let none = TierConfig { dirty_bytes: Some(0), ..config(64 * MIB) };
    let (tier, _) = over_memory(&pool, none);
    assert!(stage(&tier, &pool, 1).await.is_none());
    let some = TierConfig { dirty_bytes: Some(5 * MIB), ..config(64 * MIB) };
    let (tier, _) = over_memory(&pool, some);
    let first = stage(&tier, &pool, 4 * MIB).await.expect("room");
    assert!(stage(&tier, &pool, 2 * MIB).await.is_none());
    drop(first);
    assert_eq!(tier.stats().dirty_bytes, 0, "what is given up takes no room");
    let chunk = put(&tier, &pool, 4 * MIB).await;
    assert_eq!(standing(&tier, chunk, LONG).await, Standing::Durable);
    assert!(stage(&tier, &pool, 5 * MIB).await.is_some());
    // A chunk that the device has no place for is refused at once, not when it is flushed.
    let tight = TierConfig { dirty_bytes: Some(100 * MIB), ..config(96 * MIB) };
    let (tier, _) = over_memory(&pool, tight);
    let mut staged = Vec::new();
    let full = loop {
        let chunk = ChunkSpec { id: ChunkId::generate(), length: 16 * MIB };
        match tier.write_behind(chunk).await {
            Ok(Some(writer)) => staged.push(writer),
            Ok(None) => panic!("there is memory"),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StoreError::Full) && staged.len() == 4, "{full}");
}

#[tokio::test]
async fn released_chunks_are_gone_at_any_point() {
    let pool = pool();
    let (tier, store) = over_memory(&pool, config(64 * MIB));
    for rounds in 0..40 {
        let chunk = put(&tier, &pool, 3 * MIB + rounds).await;
        let pin = store.pin(chunk.id).expect("published");
        let frame = pin.held(ByteRange::whole(chunk.length));
        for _ in 0..rounds {
            tokio::task::yield_now().await;
        }
        store.release(&[chunk.id]);
        assert_eq!(standing(&tier, chunk, Duration::ZERO).await, Standing::Missing);
        assert!(store.pin(chunk.id).is_none() && store.chunks(None, 10).is_empty());
        if let Some(frame) = frame {
            assert!(frame[..] == conformance::content(chunk.id, chunk.length)[..frame.len()]);
        }
    }
    store.close().await;
    let stats = tier.stats();
    assert_eq!((stats.used_bytes, stats.dirty_bytes, pool.stats().leased_bytes), (0, 0, 0));
    assert_eq!(store.usage().free_bytes, store.usage().capacity_bytes);
}

/// A store whose device takes no writes while it is told so.
struct Failing {
    inner: MemoryStore,
    fails: Arc<std::sync::atomic::AtomicBool>,
}

struct FailingWriter {
    inner: Box<dyn ChunkWriter>,
    fails: Arc<std::sync::atomic::AtomicBool>,
}

fn failure() -> StoreError {
    let source = Arc::new(std::io::Error::from(std::io::ErrorKind::StorageFull));
    StoreError::Device { operation: "writing", sticky: false, source }
}

#[async_trait]
impl ChunkWriter for FailingWriter {
    async fn write(&mut self, piece: Piece) -> Result<(), StoreError> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(failure()),
            false => self.inner.write(piece).await,
        }
    }

    fn seal(
        self: Box<Self>,
    ) -> futures::future::BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>> {
        self.inner.seal()
    }
}

#[async_trait]
impl BlobStore for Failing {
    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    fn access(&self) -> String {
        self.inner.access()
    }

    fn pin(&self, chunk: ChunkId) -> Option<Box<dyn PinnedChunk>> {
        self.inner.pin(chunk)
    }

    async fn writer(&self, chunk: ChunkSpec) -> Result<Box<dyn ChunkWriter>, StoreError> {
        let inner = self.inner.writer(chunk).await?;
        Ok(Box::new(FailingWriter { inner, fails: Arc::clone(&self.fails) }))
    }

    fn release(&self, chunks: &[ChunkId]) {
        self.inner.release(chunks);
    }

    fn chunks(&self, after: Option<ChunkId>, limit: usize) -> Vec<ChunkSpec> {
        self.inner.chunks(after, limit)
    }

    fn usage(&self) -> StoreUsage {
        self.inner.usage()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[tokio::test]
async fn a_device_that_fails_is_tried_again() {
    let pool = pool();
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let inner = MemoryStore::new(256 * MIB);
    let failing = Arc::new(Failing { inner, fails: Arc::clone(&fails) });
    let tier = Arc::new(MemoryTier::over(failing, pool.clone(), config(64 * MIB)).expect("memory"));
    let store: Arc<dyn BlobStore> = Arc::clone(&tier) as _;
    let chunk = put(&tier, &pool, 2 * MIB).await;
    let mut changed = tier.shared.behind.changed.subscribe();
    while tier.stats().flush_failures == 0 {
        changed.changed().await.expect("the tier lives");
    }
    assert_eq!(standing(&tier, chunk, Duration::from_millis(1)).await, Standing::Pending);
    read(&store, chunk, ByteRange::whole(2 * MIB)).await;
    assert!(stage(&tier, &pool, MIB).await.is_none(), "others wait for the device again");
    fails.store(false, Ordering::Relaxed);
    assert_eq!(standing(&tier, chunk, LONG).await, Standing::Durable);
    assert!(stage(&tier, &pool, MIB).await.is_some());
    // Nobody is kept from memory by a chunk that is gone.
    fails.store(true, Ordering::Relaxed);
    let chunk = put(&tier, &pool, 2 * MIB).await;
    let failures = tier.stats().flush_failures;
    while tier.stats().flush_failures == failures {
        changed.changed().await.expect("the tier lives");
    }
    assert!(stage(&tier, &pool, MIB).await.is_none());
    store.release(&[chunk.id]);
    assert!(stage(&tier, &pool, MIB).await.is_some());
    // A stop does not wait for ever for a device that fails.
    put(&tier, &pool, 2 * MIB).await;
    tokio::time::timeout(LONG, store.close()).await.expect("it ends");
    assert_eq!(pool.stats().leased_bytes, 0);
}

/// Fills extents as a device would: without any sums.
fn landed(extents: Vec<Extent>, mut content: &[u8]) -> Vec<Extent> {
    let land = |extent: Extent| {
        let mut open = extent.open().expect("fresh");
        let (now, later) = content.split_at(open.len());
        open.copy_from_slice(now);
        content = later;
        open.filled()
    };
    extents.into_iter().map(land).collect()
}

/// Goal: bytes that a device has put into memory are durable only if they are those whose
/// checksum the source had.
#[tokio::test]
async fn landed_bytes_are_held_against_their_source() {
    let pool = pool();
    let (tier, store) = over_memory(&pool, config(64 * MIB));
    for is_bent in [false, true] {
        let chunk = ChunkSpec { id: ChunkId::generate(), length: 5 * MIB + 9 };
        let content = conformance::content(chunk.id, chunk.length);
        let source = Checksum::of(ChecksumKind::Crc64Nvme, &content);
        let landing = tier.land_behind(chunk).await.expect("stored");
        let (extents, landing) = landing.expect("room");
        let mut arrived = content.clone();
        arrived[4 << 20] ^= u8::from(is_bent);
        let extents = landed(extents, &arrived);
        landing.landed(extents, source).publish().expect("a new id");
        let expected = if is_bent { Standing::Missing } else { Standing::Durable };
        assert_eq!(standing(&tier, chunk, LONG).await, expected);
        assert_eq!(tier.stats().lost, u64::from(is_bent));
        assert_eq!(store.pin(chunk.id).is_none(), is_bent);
        if !is_bent {
            read(&store, chunk, ByteRange::whole(chunk.length)).await;
            let part = ByteRange::new(100, 3 * BLOCK_BYTES).expect("inside");
            read(&store, chunk, part).await;
        }
    }
    assert_eq!(tier.stats().dirty_bytes, 0);
}

/// Goal: flushing gives way to devices that write here while there is room, and never for good.
#[tokio::test]
async fn flushing_gives_way_to_arrivals() {
    let pool = pool();
    let (tier, _) = over_memory(&pool, config(64 * MIB));
    let behind = &tier.shared.behind;
    let land = async |length| {
        let chunk = ChunkSpec { id: ChunkId::generate(), length };
        tier.land_behind(chunk).await.expect("stored").expect("room")
    };
    behind.gives_way(LONG).await;
    let arriving = land(5 * MIB).await;
    {
        let mut waiting = std::pin::pin!(behind.gives_way(LONG));
        assert!(futures::poll!(&mut waiting).is_pending());
        let chunk = put(&tier, &pool, 3 * MIB).await;
        assert_eq!(standing(&tier, chunk, LONG).await, Standing::Durable);
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(arriving);
        waiting.await;
    }
    // Half of the 32 MiB that may be in memory alone.
    let _arriving = (land(16 * MIB).await, land(MIB).await);
    assert!(futures::poll!(std::pin::pin!(behind.gives_way(LONG))).is_ready());
}
