//! What metadata costs: commits by how many share one, point reads, listings by how much
//! lies in the bucket.
//!
//! The directory is `KEYWAY_BENCH_DIR`, else the system's temporary one. Beside each commit
//! figure stands the CPU time of the whole process per commit, which is what a server pays.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, reason = "a bench")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt as _;
use keyway_meta::catalog::{ListQuery, WriteCondition};
use keyway_meta::{
    Bucket, BucketSettings, Catalog, EmbeddedStore, Extent, MetaConfig, Object, ObjectHeaders,
    UnixMs,
};
use keyway_proto::{ChunkId, ChunkSpec, Durability, NodeId, ObjectKey, TenantId, VersionId};
use tokio::runtime::Runtime;

struct Setup {
    catalog: Arc<Catalog>,
    bucket: Bucket,
    runtime: Runtime,
    _dir: tempfile::TempDir,
}

fn setup() -> Setup {
    let dir = match std::env::var_os("KEYWAY_BENCH_DIR") {
        Some(parent) => tempfile::tempdir_in(parent).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let store = EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap();
    let catalog = Arc::new(Catalog::new(Arc::new(store)));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let settings = BucketSettings::default();
    let name = "bench".parse().unwrap();
    let made = catalog.create_bucket(TenantId::ROOT, &name, settings, UnixMs(1));
    let bucket = runtime.block_on(made).unwrap();
    Setup { catalog, bucket, runtime, _dir: dir }
}

fn object() -> Object {
    let chunk = ChunkSpec { id: ChunkId::generate(), length: 4096 };
    Object {
        version: VersionId::generate(),
        named: false,
        size: 4096,
        modified: UnixMs(1_700_000_000_000),
        etag: "d41d8cd98f00b204e9800998ecf8427e".into(),
        checksum: None,
        headers: ObjectHeaders {
            content_type: Some("application/octet-stream".into()),
            ..Default::default()
        },
        parts: Vec::new(),
        extents: vec![Extent { chunk, node: NodeId(0) }],
        durability: Durability::Disk,
        stored_by: None,
    }
}

fn key(number: u64) -> ObjectKey {
    // Spread over the key space, as real names are.
    format!("dir/{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).parse().unwrap()
}

/// `count` puts by `writers` tasks; answers the time taken.
fn publish(setup: &Setup, from: u64, count: u64, writers: u64) -> Duration {
    let started = Instant::now();
    setup.runtime.block_on(async {
        let tasks: Vec<_> = (0..writers)
            .map(|writer| {
                let (catalog, bucket) = (Arc::clone(&setup.catalog), setup.bucket.clone());
                tokio::spawn(async move {
                    for n in (writer..count).step_by(usize::try_from(writers).unwrap()) {
                        let key = key(from + n);
                        let put = catalog.publish(&bucket, &key, object(), WriteCondition::None);
                        put.await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    started.elapsed()
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(clock.tv_sec.unsigned_abs(), u32::try_from(clock.tv_nsec).unwrap())
}

fn commits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish");
    group.sample_size(10).measurement_time(Duration::from_secs(4));
    for writers in [1, 8, 64] {
        let setup = setup();
        let mut next = 0;
        publish(&setup, next, 2_000, 64);
        next += 2_000;
        let (cpu, first) = (cpu_time(), next);
        group.bench_function(format!("writers={writers}"), |bencher| {
            bencher.iter_custom(|count| {
                next += count;
                publish(&setup, next - count, count, writers)
            });
        });
        let each = (cpu_time() - cpu).as_secs_f64() * 1e6 / (next - first) as f64;
        eprintln!("publish/writers={writers}: {each:.1} µs of CPU per commit");
    }
}

fn reads(criterion: &mut Criterion) {
    for count in [10_000, 1_000_000] {
        let setup = setup();
        publish(&setup, 0, count, 256);
        let mut number = 0_u64;
        criterion.bench_function(&format!("get/objects={count}"), |bencher| {
            bencher.iter(|| {
                number = (number + 7919) % count;
                let key = key(number);
                let get = setup.catalog.object(&setup.bucket, &key);
                get.now_or_never().unwrap().unwrap()
            });
        });
        let query = ListQuery {
            prefix: "dir/".into(),
            delimiter: "/".into(),
            after: "dir/8".into(),
            limit: 1000,
        };
        criterion.bench_function(&format!("list 1000/objects={count}"), |bencher| {
            bencher.iter(|| {
                let list = setup.catalog.list(&setup.bucket, &query);
                let page = list.now_or_never().unwrap().unwrap();
                assert_eq!(page.objects.len(), 1000);
            });
        });
    }
}

criterion_group!(benches, commits, reads);
criterion_main!(benches);
