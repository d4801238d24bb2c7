//! What a store does where there is no space.

use std::os::unix::fs::FileExt as _;
use std::sync::atomic::AtomicBool;

use keyway_fabric::memory::LeaseClass;
use keyway_proto::unit::{KIB, MIB};
use rustix::fs::FallocateFlags;
use tempfile::TempDir;

use super::disk::threads::Threads;
use super::disk::{Disk, DiskCounters, Op, Write};
use super::space::volume_path;
use super::tests::{NODE, config, dir, open, pool};
use super::*;
use crate::store::{AccessMode, PIECE_BYTES_MAX, Piece, conformance};

/// Keeps a small file system full of the store's own volumes, then frees space in two ways.
#[tokio::test]
async fn a_full_disk_refuses_and_recovers() {
    let Some(disk) = SmallDisk::mount() else { return };
    let pool = pool();
    let config = StoreConfig {
        dir: disk.path().join("store"),
        capacity_bytes: None,
        volume_bytes: 8 * MIB,
        scrub_bytes_per_second: 0,
        io_uring: ring(),
        ..StoreConfig::default()
    };
    let other = disk.path().join("other");
    std::fs::write(&other, vec![1; 10 << 20]).expect("written");
    let store = open(&config, &pool);
    let mut chunks = Vec::new();
    let full = loop {
        match conformance::put(&store, &pool, 2 * MIB).await {
            Ok(chunk) => chunks.push(chunk),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StoreError::Full), "{full}");
    assert!(!chunks.is_empty());
    let small = conformance::put(&store, &pool, 300 * KIB).await;
    assert!(matches!(small, Ok(_) | Err(StoreError::Full)));
    for chunk in &chunks {
        conformance::verify(&store, *chunk).await;
    }
    // Chunks are given up: their units are used again.
    store.release(&[chunks.pop().expect("stored").id]);
    chunks.push(conformance::put(&store, &pool, 2 * MIB).await.expect("space was freed"));
    // The disk gets space from elsewhere: the store grows without a restart.
    std::fs::remove_file(&other).expect("removed");
    for _ in 0..3 {
        chunks.push(conformance::put(&store, &pool, 2 * MIB).await.expect("the disk has room"));
    }
    for chunk in &chunks {
        conformance::verify(&store, *chunk).await;
    }
    store.close().await;
}

/// The same where volumes have no blocks of their own and take them as they are written to: a
/// write stops in the middle. Holes stand for a file system that cannot allocate ahead.
#[tokio::test]
async fn a_write_that_stops_in_the_middle_finds_the_disk_full() {
    for io_uring in [ring(), AccessMode::Off] {
        let Some(disk) = SmallDisk::mount() else { return };
        let pool = pool();
        let config = StoreConfig {
            dir: disk.path().join("store"),
            capacity_bytes: Some(24 * MIB),
            volume_bytes: 24 * MIB,
            scrub_bytes_per_second: 0,
            io_uring,
            ..StoreConfig::default()
        };
        let store = open(&config, &pool);
        let mut chunks = vec![conformance::put(&store, &pool, MIB).await.expect("room")];
        let volume = volume_path(&config.dir, 0);
        let file = File::options().write(true).open(&volume).expect("a volume");
        let (bytes, holes) = (file.metadata().expect("its size").len(), 16 * MIB);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, bytes - holes, holes).expect("holes");
        let other = disk.path().join("other");
        fill(&other, 100 * KIB);
        for length in [3 * MIB, 300 * KIB, 3 * MIB] {
            let full = loop {
                match conformance::put(&store, &pool, length).await {
                    Ok(chunk) => chunks.push(chunk),
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, StoreError::Full), "{full}");
        }
        for chunk in &chunks {
            conformance::verify(&store, *chunk).await;
        }
        std::fs::remove_file(&other).expect("removed");
        for length in [3 * MIB, 300 * KIB] {
            chunks.push(conformance::put(&store, &pool, length).await.expect("the disk has room"));
        }
        for chunk in &chunks {
            conformance::verify(&store, *chunk).await;
        }
        store.close().await;
    }
}

/// An io_uring, which a store on a file system in memory would not choose by itself.
fn ring() -> AccessMode {
    match io_uring::IoUring::new(1) {
        Ok(_) => AccessMode::Require,
        Err(error) => {
            println!("skipped: the half with an io_uring, which is refused: {error}");
            AccessMode::Auto
        }
    }
}

/// Takes up a file system but for some bytes.
fn fill(path: &Path, left: u64) {
    let file = File::create(path).expect("made");
    let block = vec![1; 64 << 10];
    let mut at = 0;
    while let Ok(written) = file.write_at(&block, at) {
        at += written as u64;
    }
    file.set_len(at - left).expect("shorter");
}

/// Threads whose flushes find no space when told so, as on file systems that find places late.
struct LateDisk {
    threads: Threads,
    full: AtomicBool,
}

impl Disk for LateDisk {
    fn submit(&self, op: Op) {
        match op {
            Op::Sync { done, .. } | Op::Write(Write { sync: true, done, .. })
                if self.full.load(Ordering::Relaxed) =>
            {
                let outcome = Err(io::Error::from_raw_os_error(libc::ENOSPC));
                self.counters().synced(&outcome);
                let _ = done.send(outcome);
            }
            op => self.threads.submit(op),
        }
    }

    fn counters(&self) -> &DiskCounters {
        self.threads.counters()
    }
}

/// A flush without space fails whatever was written before it, also what a later flush that
/// succeeds would have answered for; and nothing else.
#[tokio::test]
async fn a_flush_without_space_fails_what_it_may_have_lost() {
    let (dir, pool) = (dir(), pool());
    let disk = Arc::new(LateDisk {
        threads: Threads::start().expect("threads"),
        full: AtomicBool::new(false),
    });
    let access =
        Access { disk: Arc::clone(&disk) as _, direct: false, described: "late".to_owned() };
    let store = FileStore::open_with(NODE, &config(&dir), pool.clone(), access).expect("opened");
    let store: Arc<dyn BlobStore> = Arc::new(store);
    let mut kept = Vec::new();
    for length in [100, 2 * MIB] {
        kept.push(conformance::put(&store, &pool, length).await.expect("room"));
        let early = written(&store, &pool, 2 * MIB).await;
        disk.full.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let full = conformance::put(&store, &pool, length).await;
            assert!(matches!(full, Err(StoreError::Full)));
        }
        disk.full.store(false, Ordering::Relaxed);
        assert!(matches!(early.seal().await, Err(StoreError::Full)));
        kept.push(conformance::put(&store, &pool, length).await.expect("room"));
    }
    store.close().await;
    drop(store);
    let store = open(&config(&dir), &pool);
    for chunk in kept {
        conformance::verify(&store, chunk).await;
    }
}

/// A chunk's writer that has all of the bytes.
async fn written(
    store: &Arc<dyn BlobStore>,
    pool: &LeasePool,
    length: u64,
) -> Box<dyn ChunkWriter> {
    let chunk = ChunkSpec { id: ChunkId::generate(), length };
    let mut writer = store.writer(chunk).await.expect("room");
    for part in conformance::content(chunk.id, length).chunks(PIECE_BYTES_MAX) {
        let class = LeaseClass::fitting(part.len()).expect("a piece fits a lease");
        let mut piece = Piece::new(pool.lease(class).await, part.len());
        piece.append(part);
        writer.write(piece).await.expect("room");
    }
    writer
}

/// A tmpfs of 48 MiB, unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = dir();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(dir)),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                println!("skipped: cannot mount a tmpfs: {}", why.trim());
                None
            }
            Err(error) => {
                println!("skipped: cannot run mount: {error}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
