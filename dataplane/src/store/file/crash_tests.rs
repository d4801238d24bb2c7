//! Power cuts: whatever of the unflushed writes reached the disk, every acknowledged chunk
//! is whole, and nothing half-written is delivered.
//!
//! Method: a disk that performs operations at once and keeps a log of them. After a random
//! workload the log is cut at random places; the disk's image then has all writes that a
//! flush had covered, and of each later one a random part, sector by sector. The store is
//! opened over that image and compared with what had been acknowledged at the cut.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;

use fastrand::Rng;
use keyway_proto::ByteRange;
use keyway_proto::unit::{KIB, MIB};

use super::disk::{Disk, DiskCounters, Op};
use super::tests::{NODE, config, dir, pool};
use super::*;
use crate::store::conformance;

/// What a disk writes at once or not at all.
const SECTOR: usize = 512;

const WORKLOADS: u64 = 4;
const CUTS: usize = 25;

enum Logged {
    Write { volume: u32, offset: u64, bytes: Vec<u8> },
    Sync { volume: u32 },
}

#[derive(Default)]
struct LoggingDisk {
    log: Mutex<Vec<Logged>>,
    fails_flushes: std::sync::atomic::AtomicBool,
    counters: DiskCounters,
}

impl Disk for LoggingDisk {
    fn submit(&self, op: Op) {
        match op {
            Op::Read { target, offset, mut lease, length, done } => {
                let read = target.file.read_exact_at(&mut lease[..length], offset);
                let _ = done.send(read.map(|()| lease));
            }
            Op::Write(write) => {
                let mut bytes = Vec::new();
                for (lease, length) in &write.buffers {
                    bytes.extend_from_slice(&lease[..*length]);
                }
                let (volume, offset) = (write.target.slot, write.offset);
                let written = write.target.file.write_all_at(&bytes, offset);
                let mut log = self.log.lock();
                log.push(Logged::Write { volume, offset, bytes });
                log.extend(write.sync.then_some(Logged::Sync { volume }));
                let _ = write.done.send(if write.sync { self.flushed() } else { written });
            }
            Op::Sync { target, done } => {
                self.log.lock().push(Logged::Sync { volume: target.slot });
                let _ = done.send(self.flushed());
            }
            Op::Close { done } => {
                let _ = done.send(());
            }
        }
    }

    fn counters(&self) -> &DiskCounters {
        &self.counters
    }
}

impl LoggingDisk {
    fn flushed(&self) -> std::io::Result<()> {
        match self.fails_flushes.load(Ordering::Relaxed) {
            true => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

/// A flush that fails refuses all writes from then on, and reads go on.
#[tokio::test]
async fn a_failed_flush_is_sticky() {
    for length in [100, 2 * MIB] {
        let (dir, pool) = (dir(), pool());
        let disk = Arc::new(LoggingDisk::default());
        let store: Arc<dyn BlobStore> = open(&config(&dir), &pool, Arc::clone(&disk) as _);
        let kept = conformance::put(&store, &pool, length).await.expect("room");
        for fails in [true, false] {
            disk.fails_flushes.store(fails, Ordering::Relaxed);
            let refused = conformance::put(&store, &pool, length).await;
            assert!(matches!(refused, Err(StoreError::Device { sticky: true, .. })));
        }
        assert_eq!(store.chunks(None, 10), [kept]);
        conformance::verify(&store, kept).await;
        store.close().await;
    }
}

/// Chunks and the part of the log in which they must be readable.
#[derive(Default)]
struct Acknowledged {
    chunks: BTreeMap<ChunkId, (ChunkSpec, std::ops::Range<usize>)>,
}

fn open(config: &StoreConfig, pool: &LeasePool, disk: Arc<dyn Disk>) -> Arc<FileStore> {
    let access = Access { disk, direct: false, described: "logged".to_owned() };
    Arc::new(FileStore::open_with(NODE, config, pool.clone(), access).expect("opened"))
}

#[tokio::test]
async fn acknowledged_chunks_survive_power_cuts() {
    for workload in 0..WORKLOADS {
        let seed = 0x6b77 + workload;
        println!("workload seed {seed}");
        run(Rng::with_seed(seed)).await;
    }
}

async fn run(mut random: Rng) {
    let (dir, pool) = (dir(), pool());
    let mut config = config(&dir);
    config.volume_bytes = 12 * MIB;
    config.capacity_bytes = Some(36 * MIB);
    let disk = Arc::new(LoggingDisk::default());
    let store = open(&config, &pool, Arc::clone(&disk) as _);
    let acknowledged = work(&store, &pool, &disk, &mut random).await;
    store.close().await;
    drop(store);
    let log = std::mem::take(&mut *disk.log.lock());
    for _ in 0..CUTS {
        let cut = random.usize(0..=log.len());
        check_cut(&config, &pool, &log[..cut], &acknowledged, &mut random).await;
    }
}

/// Random puts, side by side, releases and compactions.
async fn work(
    store: &Arc<FileStore>,
    pool: &LeasePool,
    disk: &LoggingDisk,
    random: &mut Rng,
) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let shared: Arc<dyn BlobStore> = Arc::clone(store) as _;
    for _ in 0..40 {
        let lengths: Vec<u64> = (0..random.usize(1..5))
            .map(|_| match random.u8(0..4) {
                0 => random.u64(1..9 * KIB),
                1 => random.u64(1..200 * KIB),
                2 => random.u64(200 * KIB..512 * KIB),
                _ => random.u64(512 * KIB..3 * MIB),
            })
            .collect();
        let puts = lengths.iter().map(|length| conformance::put(&shared, pool, *length));
        for chunk in futures::future::join_all(puts).await {
            match chunk {
                Ok(chunk) => {
                    let from = disk.log.lock().len();
                    acknowledged.chunks.insert(chunk.id, (chunk, from..usize::MAX));
                }
                Err(error) => assert!(matches!(error, StoreError::Full), "{error}"),
            }
        }
        let released: Vec<ChunkId> = acknowledged
            .chunks
            .iter()
            .filter(|(_, (_, range))| range.end == usize::MAX && random.u8(0..4) == 0)
            .map(|(id, _)| *id)
            .collect();
        let now = disk.log.lock().len();
        shared.release(&released);
        for id in released {
            acknowledged.chunks.get_mut(&id).expect("known").1.end = now;
        }
        if random.u8(0..4) == 0 {
            let compacted = upkeep::compact_all(&store.core, &store.appends).await;
            assert!(matches!(compacted, Ok(()) | Err(StoreError::Full)), "{compacted:?}");
        }
    }
    acknowledged
}

async fn check_cut(
    config: &StoreConfig,
    pool: &LeasePool,
    log: &[Logged],
    acknowledged: &Acknowledged,
    random: &mut Rng,
) {
    let image = dir();
    write_image(&config.dir, image.path(), log, random);
    let config = StoreConfig { dir: image.path().to_owned(), ..config.clone() };
    let disk = Arc::new(LoggingDisk::default());
    let store = open(&config, pool, disk as _);
    let shared: Arc<dyn BlobStore> = Arc::clone(&store) as _;
    for (chunk, range) in acknowledged.chunks.values() {
        if range.contains(&log.len()) {
            conformance::verify(&shared, *chunk).await;
        }
    }
    for chunk in shared.chunks(None, usize::MAX) {
        let pin = shared.pin(chunk.id).expect("listed");
        match conformance::read(&*pin, ByteRange::whole(chunk.length)).await {
            Ok(bytes) => assert!(bytes == conformance::content(chunk.id, chunk.length)),
            Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
        }
    }
    // The store goes on from there.
    let more = conformance::put(&shared, pool, 100).await;
    assert!(matches!(more, Ok(_) | Err(StoreError::Full)));
    store.close().await;
}

/// The disk as it may be found after the cut.
fn write_image(from: &Path, to: &Path, log: &[Logged], random: &mut Rng) {
    std::fs::copy(from.join("store.toml"), to.join("store.toml")).expect("copied");
    for number in 0.. {
        let Ok(original) = File::open(space::volume_path(from, number)) else { break };
        let image = File::create(space::volume_path(to, number)).expect("created");
        // Volumes are made durable, with their superblock, before they are used.
        let mut superblock = [0; layout::PAGE];
        original.read_exact_at(&mut superblock, 0).expect("read");
        image.write_all_at(&superblock, 0).expect("written");
        image.set_len(original.metadata().expect("known").len()).expect("sized");
        let is_sync =
            |logged: &Logged| matches!(logged, Logged::Sync { volume } if *volume == number);
        let flushed = log.iter().rposition(is_sync).unwrap_or(0);
        for (index, logged) in log.iter().enumerate() {
            match logged {
                Logged::Write { volume, offset, bytes } if *volume == number => {
                    if index < flushed {
                        image.write_all_at(bytes, *offset).expect("written");
                    } else {
                        write_torn(&image, *offset, bytes, random);
                    }
                }
                _ => {}
            }
        }
    }
}

/// All, nothing, or a random part of a write.
fn write_torn(image: &File, offset: u64, bytes: &[u8], random: &mut Rng) {
    let kept = random.choice([0, 1, 50, 99, 100]).expect("five choices");
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        if random.u8(0..100) < kept {
            image.write_all_at(sector, offset + (index * SECTOR) as u64).expect("written");
        }
    }
}
