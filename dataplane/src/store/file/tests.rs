//! The file store: conformance over every way to the disk, reopening, damage.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use keyway_fabric::memory::LeaseClass;
use keyway_proto::ByteRange;
use keyway_proto::unit::{BLOCK_BYTES, KIB, MIB};
use tempfile::TempDir;

use super::space::volume_path;
use super::*;
use crate::store::{AccessMode, conformance};

pub(super) const NODE: NodeId = NodeId(7);

/// A directory on a file system that is a disk's, where there is one.
pub(super) fn dir() -> TempDir {
    let beside_the_build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    TempDir::with_prefix_in("store-", beside_the_build).expect("a directory")
}

pub(super) fn config(dir: &TempDir) -> StoreConfig {
    StoreConfig {
        dir: dir.path().to_owned(),
        capacity_bytes: Some(72 * MIB),
        volume_bytes: 24 * MIB,
        scrub_bytes_per_second: 0,
        ..StoreConfig::default()
    }
}

pub(super) fn pool() -> LeasePool {
    LeasePool::new(8 << 20).expect("memory")
}

pub(super) fn open(config: &StoreConfig, pool: &LeasePool) -> Arc<dyn BlobStore> {
    Arc::new(FileStore::open(NODE, config, pool.clone()).expect("opened"))
}

async fn conforms(change: impl FnOnce(&mut StoreConfig)) -> String {
    let (dir, pool) = (dir(), pool());
    let mut config = config(&dir);
    change(&mut config);
    let store = open(&config, &pool);
    conformance::all(&store, &pool).await;
    store.close().await;
    assert_eq!(pool.stats().leased_bytes, 0);
    store.access()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_as_the_machine_allows() {
    println!("access: {}", conforms(|_| {}).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_with_threads_and_the_page_cache() {
    let access = conforms(|config| {
        config.io_uring = AccessMode::Off;
        config.direct_io = AccessMode::Off;
    });
    assert_eq!(access.await, "threads (io_uring is off), buffered (O_DIRECT is off)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_with_a_buffered_ring() {
    conforms(|config| config.direct_io = AccessMode::Off).await;
}

/// What was published is there after a restart, whole; what was not is not.
#[tokio::test]
async fn a_restart_keeps_what_was_published() {
    let (dir, pool) = (dir(), pool());
    let config = config(&dir);
    let store = open(&config, &pool);
    let mut chunks = Vec::new();
    for length in [1, 5 * KIB, 70 * KIB, 512 * KIB, 600 * KIB, 3 * MIB, 9 * MIB + 1] {
        chunks.push(conformance::put(&store, &pool, length).await.expect("room"));
    }
    chunks.sort_by_key(|chunk| chunk.id);
    store.close().await;
    drop(store);
    for _ in 0..2 {
        let store = open(&config, &pool);
        assert_eq!(store.chunks(None, 100), chunks);
        for chunk in &chunks {
            conformance::verify(&store, *chunk).await;
        }
        // And it can be written to as before.
        let more = conformance::put(&store, &pool, 100).await.expect("room");
        conformance::verify(&store, more).await;
        chunks.push(more);
        store.close().await;
        drop(store);
        chunks.sort_by_key(|chunk| chunk.id);
    }
}

/// Units that are reused do not bring back what lay there before.
#[tokio::test]
async fn reused_units_hide_their_past() {
    let (dir, pool) = (dir(), pool());
    let mut config = config(&dir);
    config.capacity_bytes = Some(24 * MIB);
    let store = open(&config, &pool);
    for _ in 0..30 {
        let old = conformance::put(&store, &pool, 5 * MIB).await.expect("room");
        let small = conformance::put(&store, &pool, MIB + 1).await.expect("room");
        store.release(&[old.id, small.id]);
    }
    let kept = conformance::put(&store, &pool, 16 * MIB).await.expect("room");
    store.close().await;
    drop(store);
    let store = open(&config, &pool);
    conformance::verify(&store, kept).await;
    for chunk in store.chunks(None, 100) {
        let pin = store.pin(chunk.id).expect("listed");
        match conformance::read(&*pin, ByteRange::whole(chunk.length)).await {
            Ok(bytes) => assert!(bytes == conformance::content(chunk.id, chunk.length)),
            Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
        }
    }
}

/// One flipped bit anywhere in a chunk's bytes is never delivered, and only its block is lost.
#[tokio::test]
async fn a_flipped_bit_is_never_delivered() {
    let (dir, pool) = (dir(), pool());
    let mut config = config(&dir);
    config.direct_io = AccessMode::Off;
    let store = open(&config, &pool);
    for length in [100, 300 * KIB, 3 * MIB + 5] {
        let chunk = conformance::put(&store, &pool, length).await.expect("room");
        let at = length * 2 / 3;
        flip(&dir, &conformance::content(chunk.id, length)[at as usize / 4096 * 4096..], 0);
        let pin = store.pin(chunk.id).expect("published");
        let damaged = conformance::read(&*pin, ByteRange::whole(length)).await;
        let block = at / 4096 * 4096 / BLOCK_BYTES * BLOCK_BYTES;
        match damaged {
            Err(StoreError::Damaged { chunk: found, offset }) => {
                assert_eq!((found, offset), (chunk.id, block));
            }
            other => panic!("delivered {:?} bytes", other.map(|bytes| bytes.len())),
        }
        if block > 0 {
            let before = ByteRange::whole(block);
            let bytes = conformance::read(&*pin, before).await.expect("undamaged");
            assert!(bytes == conformance::content(chunk.id, length)[..block as usize]);
        }
    }
    assert_eq!(store.usage().damaged_blocks, 3);
}

/// Flips a bit of the page on disk that begins with these bytes.
fn flip(dir: &TempDir, page: &[u8], byte: u64) {
    let prefix = &page[..page.len().min(64)];
    for entry in std::fs::read_dir(dir.path()).expect("readable") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|extension| extension != "kwv") {
            continue;
        }
        let content = std::fs::read(&path).expect("readable");
        let found = content.chunks(4096).position(|page| page.starts_with(prefix));
        if let Some(index) = found {
            let at = index as u64 * 4096 + byte;
            let file = File::options().write(true).open(&path).expect("writable");
            let flipped = content[at as usize] ^ 0x10;
            file.write_all_at(&[flipped], at).expect("written");
            return;
        }
    }
    panic!("the page is not on the disk");
}

/// Small chunks that are written at the same time share a batch and its flush.
#[tokio::test]
async fn small_chunks_share_flushes() {
    let (dir, pool) = (dir(), pool());
    let store = open(&config(&dir), &pool);
    let puts = (0..64).map(|_| conformance::put(&store, &pool, 4 * KIB));
    // The pool has fewer pages than puts: they come in waves.
    let chunks = futures::future::try_join_all(puts).await.expect("room");
    for chunk in chunks {
        conformance::verify(&store, chunk).await;
    }
    assert!(store.usage().syncs <= 16, "{} flushes for 64 chunks", store.usage().syncs);
}

/// Releasing most of many small chunks lets compaction free whole segments.
#[tokio::test]
async fn compaction_frees_segments() {
    let (dir, pool) = (dir(), pool());
    let store = FileStore::open(NODE, &config(&dir), pool.clone()).expect("opened");
    let (core, appends) = (Arc::clone(&store.core), store.appends.clone());
    let store: Arc<dyn BlobStore> = Arc::new(store);
    let mut chunks = Vec::new();
    for _ in 0..60 {
        chunks.push(conformance::put(&store, &pool, 400 * KIB).await.expect("room"));
    }
    let full = store.usage().free_bytes;
    let (kept, dead): (Vec<_>, Vec<_>) =
        chunks.iter().enumerate().partition(|(index, _)| index % 10 == 0);
    store.release(&dead.iter().map(|(_, chunk)| chunk.id).collect::<Vec<_>>());
    upkeep::compact_all(&core, &appends).await.expect("compacted");
    assert!(store.usage().free_bytes >= full + 16 * MIB, "{:?}", store.usage());
    for (_, chunk) in &kept {
        conformance::verify(&store, **chunk).await;
    }
    store.close().await;
    drop((store, core, appends));
    let store = open(&config(&dir), &pool);
    for (_, chunk) in &kept {
        conformance::verify(&store, **chunk).await;
    }
}

/// The scrubber counts damage that nobody has read yet.
#[tokio::test]
async fn the_scrubber_finds_damage() {
    let (dir, pool) = (dir(), pool());
    let mut config = config(&dir);
    config.direct_io = AccessMode::Off;
    let store = FileStore::open(NODE, &config, pool.clone()).expect("opened");
    let core = Arc::clone(&store.core);
    let store: Arc<dyn BlobStore> = Arc::new(store);
    let chunk = conformance::put(&store, &pool, 2 * MIB).await.expect("room");
    upkeep::scrub_chunk(&core, chunk.id).await;
    assert_eq!((store.usage().damaged_blocks, store.usage().scrubbed_bytes), (0, 2 * MIB));
    flip(&dir, &conformance::content(chunk.id, chunk.length), 4095);
    upkeep::scrub_chunk(&core, chunk.id).await;
    assert_eq!(store.usage().damaged_blocks, 1);
}

#[tokio::test]
async fn a_store_is_opened_once_and_by_its_node() {
    let (dir, pool) = (dir(), pool());
    let config = config(&dir);
    let first = FileStore::open(NODE, &config, pool.clone()).expect("opened");
    let second = FileStore::open(NODE, &config, pool.clone());
    assert!(matches!(second, Err(OpenStoreError::InUse { .. })));
    first.close().await;
    drop(first);
    let other = FileStore::open(NodeId(8), &config, pool.clone());
    assert!(matches!(other, Err(OpenStoreError::OtherNode { found: NODE, .. })));
    std::fs::write(dir.path().join("store.toml"), "format = 9").expect("written");
    let foreign = FileStore::open(NODE, &config, pool);
    assert!(matches!(foreign, Err(OpenStoreError::Foreign { .. })));
}

/// Nobody else on the machine reads what is stored; a directory that was there stays as it was.
#[tokio::test]
async fn what_is_made_is_its_owners_alone() {
    let (dir, pool) = (dir(), pool());
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o7777;
    for there in [None, Some(0o750), Some(0o755)] {
        let mut config = config(&dir);
        config.dir = dir.path().join(format!("{there:?}/store"));
        if let Some(mode) = there {
            std::fs::create_dir_all(&config.dir).expect("made");
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&config.dir, permissions).expect("changed");
        }
        let store = open(&config, &pool);
        conformance::put(&store, &pool, 100).await.expect("room");
        assert_eq!(mode(&config.dir), there.unwrap_or(0o700));
        assert_eq!(mode(&volume_path(&config.dir, 0)), 0o600);
        store.close().await;
    }
}

/// Dropping a PUT at every point gives its space and buffers back.
#[tokio::test]
async fn dropped_writers_give_back() {
    let (dir, pool) = (dir(), pool());
    let store = open(&config(&dir), &pool);
    conformance::put(&store, &pool, MIB).await.expect("room");
    let free = store.usage().free_bytes;
    for polls in 0..40 {
        let mut put = Box::pin(conformance::put(&store, &pool, 4 * MIB));
        for _ in 0..polls {
            if futures::poll!(&mut put).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    store.close().await;
    let published: u64 = store.chunks(None, 100).iter().map(|chunk| chunk.length).sum();
    assert_eq!(store.usage().free_bytes, free - (published - MIB));
    assert_eq!(pool.stats().leased_bytes, 0);
    assert!(pool.try_lease(LeaseClass::Unit).is_some());
}
