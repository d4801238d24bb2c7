//! What the catalog's tests share.
#![allow(dead_code, clippy::unwrap_used, reason = "test code; each binary uses its own part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyway_meta::catalog::{CatalogError, CopyFrom, Stamp, WriteCondition};
use keyway_meta::{
    Bucket, BucketSettings, Catalog, EmbeddedStore, Extent, MetaConfig, MetaStore, Object,
    ObjectHeaders, UnixMs,
};
use keyway_proto::{ChunkId, ChunkSpec, Durability, NodeId, ObjectKey, TenantId, VersionId};

/// A catalog in a directory of its own.
pub(crate) struct Setup {
    pub(crate) catalog: Arc<Catalog>,
    _dir: Option<tempfile::TempDir>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap();
        Self { _dir: Some(dir), ..Self::over(Arc::new(store)) }
    }

    pub(crate) fn over(store: Arc<dyn MetaStore>) -> Self {
        Self { catalog: Arc::new(Catalog::new(store)), _dir: None }
    }

    pub(crate) async fn bucket(&self, name: &str) -> Bucket {
        let settings = BucketSettings::default();
        let name = name.parse().unwrap();
        self.catalog.create_bucket(TenantId::ROOT, &name, settings, UnixMs(1)).await.unwrap()
    }

    pub(crate) async fn publish(
        &self,
        bucket: &Bucket,
        name: &str,
        object: &Object,
    ) -> Result<(), CatalogError> {
        let name = key(name);
        let put = self.catalog.publish(bucket, &name, object.clone(), WriteCondition::None);
        put.await.map(drop)
    }

    pub(crate) async fn garbage(&self) -> Vec<Extent> {
        self.catalog.garbage(usize::MAX).await.unwrap()
    }

    pub(crate) async fn owned(&self, object: &Object) -> Vec<bool> {
        let ids: Vec<_> = object.extents.iter().map(|extent| extent.chunk.id).collect();
        self.catalog.owned(&ids).await.unwrap()
    }
}

/// Where a copy comes from: what is current under the key.
pub(crate) fn source_of<'a>(bucket: &'a Bucket, key: &'a ObjectKey) -> CopyFrom<'a> {
    CopyFrom { bucket, key, version: None }
}

/// A new version's id, and its time.
pub(crate) fn stamp() -> Stamp {
    let (random, serial) = serial();
    Stamp { version: VersionId::new(serial, random), at: UnixMs(serial) }
}

pub(crate) fn key(text: &str) -> ObjectKey {
    text.parse().unwrap()
}

/// Ids that sort in the order in which they were made.
fn serial() -> ([u8; 10], u64) {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&serial.to_be_bytes());
    (random, serial)
}

pub(crate) fn extent() -> Extent {
    let (random, serial) = serial();
    Extent { chunk: ChunkSpec { id: ChunkId::new(serial, random), length: 100 }, node: NodeId(1) }
}

/// An object of `chunks` chunks, unlike every other.
pub(crate) fn object(chunks: usize) -> Object {
    let (random, serial) = serial();
    Object {
        version: VersionId::new(serial, random),
        named: false,
        size: chunks as u64 * 100,
        modified: UnixMs(serial),
        etag: format!("{serial:032x}"),
        checksum: None,
        headers: ObjectHeaders::default(),
        parts: Vec::new(),
        extents: (0..chunks).map(|_| extent()).collect(),
        durability: Durability::Disk,
        stored_by: None,
    }
}

/// Another version with the same chunks.
pub(crate) fn copy_of(source: &Object) -> Object {
    let (random, serial) = serial();
    Object { version: VersionId::new(serial, random), ..source.clone() }
}
