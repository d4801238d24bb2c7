//! Goal: what a tenant or a user is said to store is what the rows have, whatever happened; and no
//! order of writers gets it past its quota. Method: proptest over random histories of two tenants,
//! on both engines, each step beside a scan of all rows; and many writers at once at a quota.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use keyway_meta::catalog::{
    CatalogError, Clearance, Completing, ListQuery, NamedPart, PendingIn, WriteCondition,
};
use keyway_meta::{
    Bucket, BucketSettings, Catalog, EmbeddedStore, Holder, MemoryStore, MetaConfig, MetaStore,
    Object, ObjectHeaders, Part, Quota, UnixMs, Upload, Usage, VersionName, Versioning,
};
use keyway_proto::{Durability, TenantId, UploadId};
use proptest::prelude::*;

const KEYS: [&str; 3] = ["a", "a/b", "c"];
const TENANTS: [TenantId; 2] = [TenantId(1), TenantId(2)];
const USERS: [Option<&str>; 3] = [None, Some("anna"), Some("bert")];
const CLEARANCE: Clearance = Clearance { now: UnixMs(1_000_000), bypass_governance: false };

#[derive(Clone, Debug)]
enum Step {
    Keep(Versioning),
    Put { key: usize, chunks: usize, in_memory: bool },
    Delete { key: usize },
    DeleteVersion { key: usize, nth: usize },
    Copy { from: usize, to: usize, across: bool },
    Begin { key: usize },
    Part { number: u16, size: u64, in_memory: bool },
    Complete { keep: usize },
    Abort,
    Settle,
    Lose,
}

/// Whether the second tenant is meant, who asks, and for what.
type Asked = (bool, Option<&'static str>, Step);

fn step() -> impl Strategy<Value = Asked> {
    let key = || 0..KEYS.len();
    let states = [Versioning::Enabled, Versioning::Suspended];
    let step = prop_oneof![
        1 => proptest::sample::select(states.to_vec()).prop_map(Step::Keep),
        6 => (key(), 0_usize..4, any::<bool>())
            .prop_map(|(key, chunks, in_memory)| Step::Put { key, chunks, in_memory }),
        2 => key().prop_map(|key| Step::Delete { key }),
        3 => (key(), 0_usize..4).prop_map(|(key, nth)| Step::DeleteVersion { key, nth }),
        2 => (key(), key(), any::<bool>())
            .prop_map(|(from, to, across)| Step::Copy { from, to, across }),
        2 => key().prop_map(|key| Step::Begin { key }),
        4 => (1_u16..4, 5_u64..9, any::<bool>())
            .prop_map(|(number, mib, in_memory)| Step::Part { number, size: mib << 20, in_memory }),
        2 => (1_usize..4).prop_map(|keep| Step::Complete { keep }),
        1 => Just(Step::Abort),
        1 => Just(Step::Settle),
        1 => Just(Step::Lose),
    ];
    (any::<bool>(), proptest::sample::select(USERS.to_vec()), step)
}

/// One tenant's bucket, and its upload in progress.
struct Side {
    bucket: Bucket,
    upload: Option<(usize, UploadId, BTreeMap<u16, Part>)>,
}

struct Run {
    catalog: Arc<Catalog>,
    sides: [Side; 2],
    uploads: u64,
}

impl Run {
    async fn new(catalog: Arc<Catalog>) -> Self {
        let mut sides = Vec::new();
        for tenant in TENANTS {
            let (name, settings) = ("bucket".parse().unwrap(), BucketSettings::default());
            let made = catalog.create_bucket(tenant, &name, settings, UnixMs(1)).await;
            sides.push(Side { bucket: made.unwrap(), upload: None });
        }
        let sides = sides.try_into().unwrap_or_else(|_| unreachable!("two tenants"));
        Self { catalog, sides, uploads: 0 }
    }

    async fn step(&mut self, (second, user, step): Asked) {
        let user = user.map(Arc::from);
        let catalog = Arc::clone(&self.catalog);
        let other = self.sides[usize::from(!second)].bucket.clone();
        let side = &mut self.sides[usize::from(second)];
        let bucket = side.bucket.clone();
        // What fails changes nothing: the scan tells.
        match step {
            Step::Keep(versioning) => {
                let (tenant, name) = (bucket.tenant, &bucket.name);
                let _ = catalog.set_versioning(tenant, name, versioning).await;
                side.bucket = catalog.bucket(tenant, name).await.unwrap();
            }
            Step::Put { key: at, chunks, in_memory } => {
                let durability = if in_memory { Durability::Memory } else { Durability::Disk };
                let made = Object { durability, stored_by: user, ..object(chunks) };
                let none = WriteCondition::None;
                let _ = catalog.publish(&bucket, &key(KEYS[at]), made, none).await;
            }
            Step::Delete { key: at } => {
                let (at, none) = (key(KEYS[at]), WriteCondition::None);
                catalog.delete(&bucket, &at, none, stamp()).await.unwrap();
            }
            Step::DeleteVersion { key: at, nth } => {
                let query = ListQuery { limit: 100, ..ListQuery::default() };
                let listed = catalog.versions(&bucket, &query, None).await.unwrap();
                let mut versions =
                    listed.versions.into_iter().filter(|version| *version.key == *KEYS[at]);
                let name = versions.nth(nth).map_or(VersionName::Null, |version| version.name);
                let (at, none) = (key(KEYS[at]), WriteCondition::None);
                catalog.delete_version(&bucket, &at, name, none, CLEARANCE).await.unwrap();
            }
            Step::Copy { from, to, across } => {
                let Ok(found) = catalog.object(&bucket, &key(KEYS[from])).await else { return };
                let (from, to) = (key(KEYS[from]), key(KEYS[to]));
                let target = if across { &other } else { &bucket };
                let made = Object { stored_by: user, ..copy_of(&found) };
                let source = source_of(&bucket, &from);
                let none = WriteCondition::None;
                let _ = catalog.publish_copy(source, (target, &to), made, none).await;
            }
            Step::Begin { key: at } => {
                self.uploads += 1;
                let id = UploadId::new(self.uploads, [u8::from(second); 10]);
                let (headers, checksum) = (ObjectHeaders::default(), None);
                let upload =
                    Upload { id, key: key(KEYS[at]), initiated: UnixMs(5), headers, checksum };
                catalog.create_upload(&bucket, upload).await.unwrap();
                // One that was under way is left, with its parts.
                side.upload = Some((at, id, BTreeMap::new()));
            }
            Step::Part { number, size, in_memory } => {
                let Some((at, id, parts)) = &mut side.upload else { return };
                let part = Part {
                    number,
                    size,
                    etag: format!("{number:032x}"),
                    modified: UnixMs(6),
                    checksums: Vec::new(),
                    extents: vec![extent()],
                    durability: if in_memory { Durability::Memory } else { Durability::Disk },
                    stored_by: user,
                };
                let put = catalog.publish_part(&bucket, &key(KEYS[*at]), *id, part.clone()).await;
                put.unwrap();
                parts.insert(number, part);
            }
            Step::Complete { keep } => {
                let Some((at, id, parts)) = &side.upload else { return };
                let named: Vec<NamedPart> = parts
                    .values()
                    .take(keep)
                    .map(|part| (part.number, part.etag.clone()))
                    .map(|(number, etag)| NamedPart { number, etag, checksum: None })
                    .collect();
                let completing = Completing {
                    parts: &named,
                    checksum: None,
                    condition: WriteCondition::None,
                    durability: Durability::Memory,
                    retention: None,
                    now: UnixMs(7),
                    stored_by: user,
                };
                let at = key(KEYS[*at]);
                if catalog.complete_upload(&bucket, &at, *id, completing).await.is_ok() {
                    side.upload = None;
                }
            }
            Step::Abort => {
                let Some((at, id, _)) = side.upload.take() else { return };
                catalog.abort_upload(&bucket, &key(KEYS[at]), id).await.unwrap();
            }
            Step::Settle | Step::Lose => {
                for among in [PendingIn::Objects, PendingIn::Parts] {
                    for pending in catalog.pending(among, None, 2).await.unwrap() {
                        let done = match step {
                            Step::Settle => catalog.settle(&pending).await,
                            _ => catalog.withdraw(&pending).await,
                        };
                        assert!(done.unwrap());
                    }
                }
            }
        }
    }

    async fn check(&self) {
        let scanned = self.catalog.scanned_usage().await.unwrap();
        let pairs = TENANTS.iter().flat_map(|tenant| USERS.map(|user| (*tenant, user)));
        for (tenant, user) in pairs {
            let counted = self.catalog.usage(tenant, user).await.unwrap();
            let holder = Holder { tenant, user: user.map(Arc::from) };
            let expected = scanned.get(&holder).copied().unwrap_or_default();
            assert_eq!(counted, expected, "{holder:?}");
        }
    }
}

async fn replay(catalog: Arc<Catalog>, steps: Vec<Asked>) {
    let mut run = Run::new(catalog).await;
    for step in steps {
        run.step(step).await;
        run.check().await;
    }
    // All goes, and nothing is left of it.
    for side in &run.sides {
        let query = ListQuery { limit: 1000, ..ListQuery::default() };
        let bucket = run.catalog.bucket(side.bucket.tenant, &side.bucket.name).await.unwrap();
        let listed = run.catalog.versions(&bucket, &query, None).await.unwrap();
        for version in listed.versions {
            let (name, none) = (version.name, WriteCondition::None);
            let gone = run.catalog.delete_version(&bucket, &version.key, name, none, CLEARANCE);
            gone.await.unwrap();
        }
        run.catalog.delete_bucket(bucket.tenant, &bucket.name).await.unwrap();
        for user in USERS {
            let left = run.catalog.usage(bucket.tenant, user).await.unwrap();
            assert_eq!(left, Usage::default(), "{user:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn usage_is_what_a_scan_finds(
        steps in proptest::collection::vec(step(), 1..60),
        embedded in proptest::bool::weighted(0.1),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let setup =
                if embedded { Setup::new() } else { Setup::over(Arc::new(MemoryStore::new())) };
            replay(Arc::clone(&setup.catalog), steps).await;
        });
    }
}

fn bounded(bytes: Option<u64>, objects: Option<u64>) -> (Arc<Catalog>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap();
    let catalog = Catalog::new(Arc::new(store)).bounded_by(move |_, user| match user {
        None => Quota { bytes, objects },
        Some(_) => Quota::default(),
    });
    (Arc::new(catalog), dir)
}

async fn bucket(catalog: &Catalog) -> Bucket {
    let (name, settings) = ("bucket".parse().unwrap(), BucketSettings::default());
    catalog.create_bucket(TENANTS[0], &name, settings, UnixMs(1)).await.unwrap()
}

/// Goal: writers that come at the same time share what is left, to the last byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_at_once_do_not_pass_a_quota() {
    let (catalog, _dir) = bounded(Some(1050), Some(7));
    let bucket = bucket(&catalog).await;
    let put = |number: usize| {
        let (catalog, bucket) = (Arc::clone(&catalog), bucket.clone());
        async move {
            let name = key(&format!("k{number}"));
            catalog.publish(&bucket, &name, object(2), WriteCondition::None).await
        }
    };
    let tasks: Vec<_> = (0..40).map(|number| tokio::spawn(put(number))).collect();
    let mut stored = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => stored += 1,
            Err(CatalogError::QuotaExceeded) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(stored, 5, "200 bytes each");
    let usage = catalog.usage(TENANTS[0], None).await.unwrap();
    assert_eq!(usage, Usage { bytes: 1000, objects: 5 });
    // Objects of nothing are objects.
    for (name, fits) in [("x", true), ("y", true), ("z", false)] {
        let put = catalog.publish(&bucket, &key(name), object(0), WriteCondition::None).await;
        assert_eq!(put.is_ok(), fits, "{name}");
    }
}

#[tokio::test]
async fn what_is_replaced_makes_room() {
    let (catalog, _dir) = bounded(Some(1000), None);
    let bucket = bucket(&catalog).await;
    let put = async |name: &str, chunks| {
        let put = catalog.publish(&bucket, &key(name), object(chunks), WriteCondition::None).await;
        put.map(drop)
    };
    let room =
        async |name: &str, bytes| catalog.has_room(&bucket, &key(name), bytes, None).await.is_ok();
    put("a", 8).await.unwrap();
    assert!(room("a", 1000).await && !room("a", 1001).await);
    assert!(room("b", 200).await && !room("b", 201).await);
    assert!(matches!(put("b", 3).await, Err(CatalogError::QuotaExceeded)));
    put("a", 10).await.unwrap();
    assert!(matches!(put("a", 11).await, Err(CatalogError::QuotaExceeded)));
    put("a", 1).await.unwrap();
    put("b", 9).await.unwrap();
    let full = catalog.usage(TENANTS[0], None).await.unwrap();
    assert_eq!(full, Usage { bytes: 1000, objects: 2 });
    // What deletes is never refused.
    catalog.delete(&bucket, &key("a"), WriteCondition::None, stamp()).await.unwrap();
    assert!(room("c", 100).await);
}

/// Goal: a store that is older than its counting is counted once.
#[tokio::test]
async fn an_older_store_is_counted() {
    let store: Arc<dyn MetaStore> = Arc::new(MemoryStore::new());
    let setup = Setup::over(Arc::clone(&store));
    let bucket = setup.bucket("bucket").await;
    setup.publish(&bucket, "a", &object(3)).await.unwrap();
    let expected = Usage { bytes: 300, objects: 1 };
    let row = store.scan(b"q", b"r", 10).await.unwrap();
    assert_eq!(row.len(), 1, "one tenant");
    let mut forget = keyway_meta::Batch::default();
    forget.delete(row[0].0.clone());
    store.commit(forget).await.unwrap();
    assert_eq!(setup.catalog.usage(TenantId::ROOT, None).await.unwrap(), Usage::default());
    assert_eq!(setup.catalog.count_usage().await.unwrap(), Some(1));
    assert_eq!(setup.catalog.usage(TenantId::ROOT, None).await.unwrap(), expected);
    setup.publish(&bucket, "b", &object(1)).await.unwrap();
    assert_eq!(setup.catalog.count_usage().await.unwrap(), None);
    let now = setup.catalog.usage(TenantId::ROOT, None).await.unwrap();
    assert_eq!(now, Usage { bytes: 400, objects: 2 }, "and not again");
}

/// Goal: a user is held to its own quota, in a tenant that has room; what another user replaces or
/// assembles moves between them, and is refused where there is no room for it.
#[tokio::test]
async fn users_are_held_to_quotas_of_their_own() {
    let catalog = Catalog::new(Arc::new(MemoryStore::new()));
    let bytes = |user: Option<&str>| user.filter(|user| *user == "anna").map(|_| 1000);
    let catalog = catalog.bounded_by(move |_, user| Quota { bytes: bytes(user), objects: None });
    let bucket = bucket(&catalog).await;
    let put = async |name: &str, chunks, by: Option<&str>| {
        let made = Object { stored_by: by.map(Arc::from), ..object(chunks) };
        catalog.publish(&bucket, &key(name), made, WriteCondition::None).await.map(drop)
    };
    let (anna, bert) = (Some("anna"), Some("bert"));
    let stored = async || {
        let mut all = Vec::new();
        for user in [None, anna, bert] {
            all.push(catalog.usage(TENANTS[0], user).await.unwrap().bytes);
        }
        all
    };
    put("a", 10, anna).await.unwrap();
    assert!(matches!(put("b", 1, anna).await, Err(CatalogError::QuotaExceeded)));
    let by_anna: Arc<str> = "anna".into();
    let room =
        async |name: &str| catalog.has_room(&bucket, &key(name), 1, Some(&by_anna)).await.is_ok();
    assert!(room("a").await && !room("b").await);
    put("b", 20, bert).await.unwrap();
    put("c", 5, None).await.unwrap();
    assert_eq!(stored().await, [3500, 1000, 2000]);
    // What is bert's gives anna no room.
    assert!(!room("b").await);
    assert!(matches!(put("b", 1, anna).await, Err(CatalogError::QuotaExceeded)));
    put("a", 10, bert).await.unwrap();
    assert_eq!(stored().await, [3500, 0, 3000]);
    put("b", 10, anna).await.unwrap();
    assert_eq!(stored().await, [2500, 1000, 1000]);
    // Parts that bert stored are bert's until anna makes an object of them.
    catalog.delete(&bucket, &key("b"), WriteCondition::None, stamp()).await.unwrap();
    for size in [1001, 1000] {
        let id = UploadId::new(size, [1; 10]);
        let (headers, checksum) = (ObjectHeaders::default(), None);
        let upload = Upload { id, key: key("m"), initiated: UnixMs(5), headers, checksum };
        catalog.create_upload(&bucket, upload).await.unwrap();
        let part = Part {
            number: 1,
            size,
            etag: "e".repeat(32),
            modified: UnixMs(6),
            checksums: Vec::new(),
            extents: vec![extent()],
            durability: Durability::Disk,
            stored_by: bert.map(Arc::from),
        };
        let named = NamedPart { number: 1, etag: part.etag.clone(), checksum: None };
        catalog.publish_part(&bucket, &key("m"), id, part).await.unwrap();
        assert_eq!(stored().await[2], 1000 + size);
        let completing = Completing {
            parts: &[named],
            checksum: None,
            condition: WriteCondition::None,
            durability: Durability::Disk,
            retention: None,
            now: UnixMs(7),
            stored_by: Some(by_anna.clone()),
        };
        let completed = catalog.complete_upload(&bucket, &key("m"), id, completing).await;
        assert_eq!(completed.is_ok(), size == 1000, "{completed:?}");
        let _ = catalog.abort_upload(&bucket, &key("m"), id).await;
    }
    assert_eq!(stored().await, [2500, 1000, 1000]);
}
