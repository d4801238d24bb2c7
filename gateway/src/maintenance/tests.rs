//! Goal: chunks that a crash left behind vanish, chunks that an object owns never do, and
//! puts that race with a sweep are either whole or refused. Method: a real node and a real
//! catalog in memory; time is passed in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use keyway_dataplane::{LocalNode, StorageNode};
use keyway_meta::catalog::{Stamp, WriteCondition};
use keyway_meta::{
    Bucket, BucketSettings, Catalog, Extent, MemoryStore, Object, ObjectHeaders, UnixMs,
};
use keyway_proto::{
    ChunkId, ChunkSpec, DigestSet, NodeId, ObjectKey, PutPlan, TenantId, TransferId, VersionId,
};

use super::*;

const CAPACITY_BYTES: u64 = 64 << 20;
const POOL_BYTES: usize = 8 << 20;
const CHUNK_BYTES: u64 = 4096;
const LONG_AGO: UnixMs = UnixMs(1_000_000);
const NOW: UnixMs = UnixMs(1_700_000_000_000);

struct Setup {
    catalog: Arc<Catalog>,
    bucket: Bucket,
    node: Arc<LocalNode>,
    maintenance: Maintenance,
}

impl Setup {
    async fn new() -> Self {
        let catalog = Arc::new(Catalog::new(Arc::new(MemoryStore::new())));
        let settings = BucketSettings::default();
        let name = "bucket".parse().unwrap();
        let bucket =
            catalog.create_bucket(TenantId::ROOT, &name, settings, LONG_AGO).await.unwrap();
        let node = LocalNode::in_memory(NodeId(1), CAPACITY_BYTES, POOL_BYTES).unwrap();
        let shared: Arc<dyn StorageNode> = Arc::clone(&node) as _;
        let nodes = Nodes::single(shared);
        let config = MaintenanceConfig::default();
        let maintenance = Maintenance::new(Arc::clone(&catalog), nodes, config);
        let maintenance = Maintenance { began: NOW, ..maintenance };
        Self { catalog, bucket, node, maintenance }
    }

    /// A durable chunk, made at `made`, that nobody has published.
    async fn store(&self, made: UnixMs) -> Extent {
        store(&*self.node, made).await
    }

    async fn publish(&self, name: &str, extent: Extent) -> Result<(), CatalogError> {
        publish(&self.catalog, &self.bucket, name, extent).await
    }

    async fn chunks(&self) -> Vec<ChunkId> {
        let chunks = self.node.chunks(None, usize::MAX).await.unwrap();
        chunks.into_iter().map(|chunk| chunk.id).collect()
    }
}

async fn store(node: &dyn StorageNode, made: UnixMs) -> Extent {
    let chunk = ChunkSpec {
        id: ChunkId::new(made.0, fastrand::u128(..).to_be_bytes()[..10].try_into().unwrap()),
        length: CHUNK_BYTES,
    };
    let plan = PutPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: keyway_proto::Weight::default(),
        chunks: vec![chunk],
        digests: DigestSet::NONE,
        durability: keyway_proto::Durability::Disk,
        key: None,
    };
    let body = stream::iter([Ok(Bytes::from_static(&[7; CHUNK_BYTES as usize]))]);
    node.put(plan, Box::pin(body)).await.unwrap();
    Extent { chunk, node: node.id() }
}

async fn publish(
    catalog: &Catalog,
    bucket: &Bucket,
    name: &str,
    extent: Extent,
) -> Result<(), CatalogError> {
    let key: ObjectKey = name.parse().unwrap();
    let object = Object {
        durability: keyway_proto::Durability::Disk,
        stored_by: None,
        version: VersionId::generate(),
        named: false,
        size: CHUNK_BYTES,
        modified: NOW,
        etag: "etag".into(),
        checksum: None,
        headers: ObjectHeaders::default(),
        parts: Vec::new(),
        extents: vec![extent],
    };
    catalog.publish(bucket, &key, object, WriteCondition::None).await.map(drop)
}

#[tokio::test]
async fn what_was_deleted_is_released() {
    let setup = Setup::new().await;
    let (kept, lost) = (setup.store(NOW).await, setup.store(NOW).await);
    setup.publish("kept", kept).await.unwrap();
    setup.publish("lost", lost).await.unwrap();
    let key = "lost".parse().unwrap();
    let stamp = Stamp { version: VersionId::generate(), at: UnixMs(1) };
    setup.catalog.delete(&setup.bucket, &key, WriteCondition::None, stamp).await.unwrap();
    let report = setup.maintenance.reap().await.unwrap();
    assert_eq!(report, ReapReport { released: 1, released_bytes: CHUNK_BYTES, deferred: 0 });
    assert_eq!(setup.chunks().await, [kept.chunk.id]);
    assert_eq!(setup.maintenance.reap().await.unwrap(), ReapReport::default());
    let stats = setup.maintenance.stats();
    assert_eq!((stats.chunks_released, stats.bytes_released), (1, CHUNK_BYTES));
}

#[tokio::test]
async fn a_start_removes_what_a_crash_left_behind() {
    let setup = Setup::new().await;
    let (owned, orphan) = (setup.store(LONG_AGO).await, setup.store(LONG_AGO).await);
    setup.publish("owned", owned).await.unwrap();
    let fresh = setup.store(UnixMs(NOW.0 + 5)).await;
    let report = setup.maintenance.sweep_at_start().await.unwrap();
    assert_eq!(report, SweepReport { seen: 3, young: 1, suspected: 0, condemned: 1 });
    assert_eq!(setup.maintenance.reap().await.unwrap().released, 1);
    let left = setup.chunks().await;
    assert!(left.contains(&owned.chunk.id) && left.contains(&fresh.chunk.id));
    assert!(!left.contains(&orphan.chunk.id));
    // What comes later is the sweeps' that know of grace.
    setup.store(LONG_AGO).await;
    assert_eq!(setup.maintenance.sweep_at_start().await.unwrap(), SweepReport::default());
}

#[tokio::test]
async fn an_orphan_goes_when_it_was_seen_twice_a_grace_apart() {
    let setup = Setup::new().await;
    let orphan = setup.store(LONG_AGO).await;
    let grace = Duration::from_millis(setup.maintenance.config.orphan_grace_ms);
    let start = Instant::now();
    let sweep = async |at| setup.maintenance.sweep(NOW, at).await.unwrap();
    assert_eq!(sweep(start).await.suspected, 1);
    assert_eq!(sweep(start).await.suspected, 1);
    assert_eq!(sweep(start + grace / 2).await.suspected, 1);
    assert_eq!(sweep(start + grace).await.condemned, 1);
    let late = setup.publish("late", orphan).await;
    assert!(matches!(late, Err(CatalogError::Swept)), "{late:?}");
    setup.maintenance.reap().await.unwrap();
    assert_eq!(setup.chunks().await, []);
}

#[tokio::test]
async fn a_chunk_made_within_the_grace_period_is_left_alone() {
    let setup = Setup::new().await;
    setup.store(UnixMs(NOW.0 - 1000)).await;
    let start = Instant::now();
    for round in 0..3 {
        let at = start + round * Duration::from_secs(1 << 20);
        let report = setup.maintenance.sweep(NOW, at).await.unwrap();
        assert_eq!(report, SweepReport { seen: 1, young: 1, ..SweepReport::default() });
    }
}

/// Each round, slow puts (their chunks' ids are old) store and publish while a sweep and the
/// reaper run; a grace period passes between rounds. None of them may be lost, though every
/// chunk is an unowned one for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn puts_that_race_with_sweeps_are_whole() {
    const ROUNDS: u32 = 24;
    const PUTS: u32 = 16;
    let setup = Setup::new().await;
    let grace = Duration::from_millis(setup.maintenance.config.orphan_grace_ms);
    let start = Instant::now();
    let mut published = Vec::new();
    for round in 0..ROUNDS {
        let puts: Vec<_> = (0..PUTS)
            .map(|put| {
                let (catalog, bucket) = (Arc::clone(&setup.catalog), setup.bucket.clone());
                let node = Arc::clone(&setup.node);
                tokio::spawn(async move {
                    let extent = store(&*node, LONG_AGO).await;
                    let name = format!("{round}/{put}");
                    publish(&catalog, &bucket, &name, extent).await.map(|()| extent)
                })
            })
            .collect();
        setup.maintenance.sweep(NOW, start + round * grace).await.unwrap();
        setup.maintenance.reap().await.unwrap();
        for put in puts {
            published.push(put.await.unwrap().unwrap().chunk.id);
        }
    }
    let mut left = setup.chunks().await;
    left.sort();
    published.sort();
    assert_eq!(left, published);
}

#[tokio::test]
async fn garbage_of_an_unknown_node_holds_up_nobody() {
    let setup = Setup::new().await;
    let elsewhere =
        Extent { chunk: ChunkSpec { id: ChunkId::new(1, [0; 10]), length: 1 }, node: NodeId(9) };
    setup.catalog.condemn(&[elsewhere]).await.unwrap();
    let here = setup.store(LONG_AGO).await;
    setup.maintenance.sweep_at_start().await.unwrap();
    let report = setup.maintenance.reap().await.unwrap();
    assert_eq!((report.released, report.deferred), (1, 1));
    assert!(!setup.chunks().await.contains(&here.chunk.id));
    assert_eq!(setup.catalog.garbage(9).await.unwrap(), [elsewhere]);
}

#[tokio::test]
async fn a_wish_is_answered_long_before_the_period() {
    let setup = Setup::new().await;
    setup.store(LONG_AGO).await;
    setup.maintenance.sweep_at_start().await.unwrap();
    let config = MaintenanceConfig { reap_period_ms: u64::MAX >> 20, ..Default::default() };
    let maintenance = Maintenance { config, ..setup.maintenance };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // The catalog's own word, which would do as well.
    setup.catalog.garbage_queued().await;
    maintenance.wake();
    let node = Arc::clone(&setup.node);
    let watch = async move {
        while node.status().await.unwrap().chunks > 0 {
            tokio::task::yield_now().await;
        }
        stop.send(()).unwrap();
    };
    let run = maintenance.run(async { stopped.await.unwrap() });
    tokio::time::timeout(Duration::from_secs(30), futures::future::join(run, watch)).await.unwrap();
    assert_eq!(maintenance.stats().chunks_released, 1);
}
