//! Goal: a bucket that keeps versions keeps exactly those that S3 would, in their order, under
//! their names, through enabling, suspending, markers, copies and removals; lists them page by
//! page as a sorted vector would; and owns exactly the chunks of those that are left. Method:
//! proptest over random histories of few keys, against a vector of versions per key.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use common::*;
use keyway_meta::catalog::{
    CatalogError, Clearance, CopyFrom, ListQuery, VersionEntry, WriteCondition,
};
use keyway_meta::{
    Batch, Bucket, MemoryStore, MetaError, MetaStore, Object, Retention, RetentionMode, UnixMs,
    VersionName, Versioning,
};
use keyway_proto::{Durability, TenantId};
use proptest::prelude::*;

const CLEARANCE: Clearance = Clearance { now: UnixMs(1_000_000), bypass_governance: false };

#[derive(Clone, Debug)]
enum Step {
    Keep(Versioning),
    Put { key: usize, chunks: usize, absent: bool },
    Delete { key: usize },
    DeleteVersion { key: usize, nth: usize },
    DeleteNull { key: usize },
    Copy { from: usize, nth: usize, to: usize },
    Tag { key: usize, nth: usize },
    List { prefix: &'static str, delimiter: &'static str, page: usize },
    ListCurrent,
}

const KEYS: [&str; 5] = ["a", "a/b", "a/c", "b\0", "b"];

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..KEYS.len();
    const STATES: [Versioning; 3] =
        [Versioning::Enabled, Versioning::Enabled, Versioning::Suspended];
    prop_oneof![
        2 => proptest::sample::select(&STATES[..]).prop_map(Step::Keep),
        6 => (key(), 0_usize..3, proptest::bool::weighted(0.1))
            .prop_map(|(key, chunks, absent)| Step::Put { key, chunks, absent }),
        3 => key().prop_map(|key| Step::Delete { key }),
        3 => (key(), 0_usize..5).prop_map(|(key, nth)| Step::DeleteVersion { key, nth }),
        1 => key().prop_map(|key| Step::DeleteNull { key }),
        2 => (key(), 0_usize..5, key()).prop_map(|(from, nth, to)| Step::Copy { from, nth, to }),
        1 => (key(), 0_usize..5).prop_map(|(key, nth)| Step::Tag { key, nth }),
        3 => (
            proptest::sample::select(&["", "a", "a/", "b", "x"][..]),
            proptest::sample::select(&["", "", "/"][..]),
            1_usize..4,
        )
            .prop_map(|(prefix, delimiter, page)| Step::List { prefix, delimiter, page }),
        1 => Just(Step::ListCurrent),
    ]
}

/// A version: an object, or a delete marker.
#[derive(Clone, Debug)]
struct Version {
    name: VersionName,
    modified: UnixMs,
    object: Option<Object>,
}

/// Each key's versions, newest first.
#[derive(Default)]
struct Model {
    versioning: Versioning,
    keys: BTreeMap<String, Vec<Version>>,
}

impl Model {
    fn current(&self, key: &str) -> Option<&Object> {
        self.keys.get(key)?.first()?.object.as_ref()
    }

    fn add(&mut self, key: &str, version: Version) {
        let versions = self.keys.entry(key.to_owned()).or_default();
        if version.name == VersionName::Null {
            versions.retain(|other| other.name != VersionName::Null);
        }
        versions.insert(0, version);
    }

    fn delete(&mut self, key: &str, name: Option<VersionName>, modified: UnixMs) {
        match name {
            Some(name) => self.add(key, Version { name, modified, object: None }),
            None => {
                self.keys.remove(key);
            }
        }
    }

    /// All versions in listing order.
    fn entries(&self) -> Vec<(String, bool, Version)> {
        let of_key = |(key, versions): (&String, &Vec<Version>)| {
            let entries = versions.iter().enumerate();
            entries.map(|(at, version)| (key.clone(), at == 0, version.clone())).collect::<Vec<_>>()
        };
        self.keys.iter().flat_map(of_key).collect()
    }

    fn nth(&self, key: &str, nth: usize) -> Option<Version> {
        self.keys.get(key)?.get(nth).cloned()
    }
}

struct Run {
    setup: Setup,
    bucket: Bucket,
    /// As it was at first: writers that believe in it are to notice what it became.
    stale: Bucket,
    model: Model,
}

impl Run {
    async fn step(&mut self, step: Step) {
        let catalog = Arc::clone(&self.setup.catalog);
        match step {
            Step::Keep(versioning) => {
                let name = &self.stale.name;
                catalog.set_versioning(TenantId::ROOT, name, versioning).await.unwrap();
                self.bucket = catalog.bucket(TenantId::ROOT, name).await.unwrap();
                self.model.versioning = versioning;
            }
            Step::Put { key: at, chunks, absent } => {
                let made = object(chunks);
                let condition = if absent { WriteCondition::Absent } else { WriteCondition::None };
                let name = key(KEYS[at]);
                match catalog.publish(&self.stale, &name, made.clone(), condition).await {
                    Ok(name) => self.made(KEYS[at], made, name),
                    Err(CatalogError::PreconditionFailed) => {
                        assert!(absent && self.model.current(KEYS[at]).is_some());
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Delete { key: at } => {
                let stamp = stamp();
                let existed = self.model.current(KEYS[at]).is_some();
                let none = WriteCondition::None;
                let deleted = catalog.delete(&self.stale, &key(KEYS[at]), none, stamp).await;
                let deleted = deleted.unwrap();
                assert_eq!(deleted.existed, existed);
                assert_eq!(deleted.marker, self.model.versioning != Versioning::Unversioned);
                self.check_name(deleted.version);
                self.model.delete(KEYS[at], deleted.version, stamp.at);
            }
            Step::DeleteVersion { key: at, nth } => {
                let Some(version) = self.model.nth(KEYS[at], nth) else { return };
                self.remove(KEYS[at], version.name).await;
            }
            Step::DeleteNull { key: at } => self.remove(KEYS[at], VersionName::Null).await,
            Step::Copy { from, nth, to } => self.copy(KEYS[from], nth, KEYS[to]).await,
            Step::Tag { key: at, nth } => self.tag(KEYS[at], nth).await,
            Step::List { prefix, delimiter, page } => self.list(prefix, delimiter, page).await,
            Step::ListCurrent => {
                let query = ListQuery { limit: 100, ..ListQuery::default() };
                let page = catalog.list(&self.bucket, &query).await.unwrap();
                let found: Vec<String> =
                    page.objects.iter().map(|(key, _)| key.to_string()).collect();
                let expected: Vec<String> = KEYS.iter().map(|key| (*key).to_owned()).collect();
                let mut expected: Vec<String> =
                    expected.into_iter().filter(|key| self.model.current(key).is_some()).collect();
                expected.sort();
                assert_eq!(found, expected);
            }
        }
    }

    fn made(&mut self, key: &str, object: Object, name: VersionName) {
        self.check_name(Some(name));
        let modified = object.modified;
        let version = Version { name, modified, object: Some(object) };
        self.model.add(key, version);
    }

    /// Whether a version that was just made is named as the bucket's state has it.
    fn check_name(&self, name: Option<VersionName>) {
        match self.model.versioning {
            Versioning::Enabled => assert!(matches!(name, Some(VersionName::Id(_)))),
            Versioning::Suspended => assert_eq!(name, Some(VersionName::Null)),
            Versioning::Unversioned => assert!(name.is_none_or(|name| name == VersionName::Null)),
        }
    }

    async fn remove(&mut self, key_text: &str, name: VersionName) {
        let (bucket, key) = (&self.bucket, key(key_text));
        let none = WriteCondition::None;
        let removed =
            self.setup.catalog.delete_version(bucket, &key, name, none, CLEARANCE).await.unwrap();
        let versions = self.model.keys.entry(key_text.to_owned()).or_default();
        let at = versions.iter().position(|version| version.name == name);
        assert_eq!(removed.existed, at.is_some());
        if let Some(at) = at {
            assert_eq!(removed.marker, versions.remove(at).object.is_none());
        }
        self.model.keys.retain(|_, versions| !versions.is_empty());
    }

    async fn copy(&mut self, from: &str, nth: usize, to: &str) {
        let Some(source) = self.model.nth(from, nth) else { return };
        let (from, target) = (key(from), key(to));
        let made = source.object.as_ref().map_or_else(|| object(1), copy_of);
        let at = CopyFrom { bucket: &self.bucket, key: &from, version: Some(source.name) };
        let to_key = (&self.stale, &target);
        let none = WriteCondition::None;
        let copied = self.setup.catalog.publish_copy(at, to_key, made.clone(), none).await;
        match source.object {
            Some(_) => {
                let name = copied.unwrap();
                self.made(to, made, name);
            }
            None => assert!(copied.is_err(), "a delete marker has nothing to copy"),
        }
    }

    async fn tag(&mut self, key_text: &str, nth: usize) {
        let Some(version) = self.model.nth(key_text, nth) else { return };
        let tags = vec![("n".to_owned(), nth.to_string())];
        let (bucket, key, name) = (&self.bucket, key(key_text), Some(version.name));
        let amended = self.setup.catalog.amend(bucket, &key, name, |object| {
            object.headers.tags.clone_from(&tags);
            Ok(())
        });
        let amended = amended.await;
        match version.object {
            Some(_) => {
                assert_eq!(amended.unwrap().headers.tags, tags);
                let versions = self.model.keys.get_mut(key_text).unwrap();
                versions[nth].object.as_mut().unwrap().headers.tags = tags;
            }
            None => assert!(matches!(amended, Err(CatalogError::IsDeleteMarker(_)))),
        }
    }

    async fn list(&self, prefix: &str, delimiter: &str, page: usize) {
        let mut query = ListQuery {
            prefix: prefix.to_owned(),
            delimiter: delimiter.to_owned(),
            after: String::new(),
            limit: page,
        };
        let (mut found, mut groups, mut after) = (Vec::new(), Vec::new(), None);
        loop {
            let listed = self.setup.catalog.versions(&self.bucket, &query, after).await.unwrap();
            let count = listed.versions.len() + listed.common_prefixes.len();
            assert!(count <= page && (listed.next.is_none() || count == page), "{listed:?}");
            found.extend(listed.versions);
            groups.extend(listed.common_prefixes);
            match listed.next {
                Some((key, name)) => (query.after, after) = (key, name),
                None => break,
            }
        }
        let (mut expected, mut expected_groups) = (Vec::new(), Vec::new());
        for (key, is_latest, version) in self.model.entries() {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
                Some(at) => {
                    let group = key[..prefix.len() + at + delimiter.len()].to_owned();
                    if expected_groups.last() != Some(&group) {
                        expected_groups.push(group);
                    }
                }
                None => expected.push((key, is_latest, version)),
            }
        }
        assert_eq!(groups, expected_groups);
        assert_eq!(found.len(), expected.len(), "{found:?}\n{expected:?}");
        for (found, (key, is_latest, version)) in found.iter().zip(&expected) {
            check_entry(found, key, *is_latest, version);
        }
    }

    /// Everything is found under its name, and owns its chunks; nothing else does.
    async fn check_all(&self) {
        let catalog = &self.setup.catalog;
        let garbage = self.setup.garbage().await;
        for name in KEYS {
            let key = key(name);
            let current = catalog.read(&self.bucket, &key, None).await;
            match self.model.current(name) {
                Some(object) => assert_eq!(content(&current.unwrap()), content(object)),
                None => assert!(current.is_err()),
            }
            for version in self.model.keys.get(name).into_iter().flatten() {
                let found = catalog.read(&self.bucket, &key, Some(version.name)).await;
                match &version.object {
                    Some(object) => {
                        let found = found.unwrap();
                        assert_eq!(found.name(), version.name);
                        assert_eq!(content(&found), content(object));
                        assert!(self.setup.owned(object).await.into_iter().all(|owned| owned));
                        assert!(object.extents.iter().all(|extent| !garbage.contains(extent)));
                    }
                    None => assert!(matches!(found, Err(CatalogError::IsDeleteMarker(_)))),
                }
            }
        }
        let ids: Vec<_> = garbage.iter().map(|extent| extent.chunk.id).collect();
        assert!(catalog.owned(&ids).await.unwrap().into_iter().all(|owned| !owned));
    }

    /// Removes what is left: no chunk stays owned, and the bucket can go.
    async fn empty(mut self) {
        let left = self.model.entries();
        for (key, _, version) in &left {
            self.remove(key, version.name).await;
        }
        for object in left.iter().filter_map(|(_, _, version)| version.object.as_ref()) {
            assert!(self.setup.owned(object).await.into_iter().all(|owned| !owned));
        }
        let catalog = &self.setup.catalog;
        catalog.delete_bucket(TenantId::ROOT, &self.bucket.name).await.unwrap();
    }
}

/// What a version keeps, whatever its id became.
fn content(object: &Object) -> (&str, &[keyway_meta::Extent], &[(String, String)]) {
    (&object.etag, &object.extents, &object.headers.tags)
}

fn check_entry(found: &VersionEntry, key: &str, is_latest: bool, version: &Version) {
    assert_eq!((&*found.key, found.name, found.is_latest), (key, version.name, is_latest));
    assert_eq!(found.modified, version.modified);
    let etag = version.object.as_ref().map(|object| &object.etag);
    assert_eq!(found.object.as_ref().map(|summary| &summary.etag), etag);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(768))]
    #[test]
    fn versions_are_a_list_for_each_key(steps in proptest::collection::vec(step(), 1..50)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let setup = Setup::over(Arc::new(MemoryStore::new()));
            let bucket = setup.bucket("middle").await;
            let stale = bucket.clone();
            let mut run = Run { setup, bucket, stale, model: Model::default() };
            for step in steps {
                run.step(step).await;
                run.check_all().await;
            }
            run.list("", "", 3).await;
            run.empty().await;
        });
    }
}

#[tokio::test]
async fn locked_versions_stay() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let name = &bucket.name;
    let early = setup.catalog.enable_object_lock(TenantId::ROOT, name).await;
    assert!(matches!(early, Err(CatalogError::InvalidBucketState)));
    setup.catalog.set_versioning(TenantId::ROOT, name, Versioning::Enabled).await.unwrap();
    setup.catalog.enable_object_lock(TenantId::ROOT, name).await.unwrap();
    let suspended = setup.catalog.set_versioning(TenantId::ROOT, name, Versioning::Suspended).await;
    assert!(matches!(suspended, Err(CatalogError::InvalidBucketState)));
    let until = UnixMs(2_000_000);
    for (mode, hold, bypass, now, stays) in [
        (RetentionMode::Governance, false, false, 1, true),
        (RetentionMode::Governance, false, true, 1, false),
        (RetentionMode::Compliance, false, true, 1, true),
        (RetentionMode::Compliance, false, false, until.0, false),
        (RetentionMode::Compliance, true, true, until.0, true),
    ] {
        let mut locked = object(1);
        locked.headers.lock.retention = Some(Retention { mode, until });
        locked.headers.lock.legal_hold = hold;
        let put = setup.catalog.publish(&bucket, &key("k"), locked, WriteCondition::None).await;
        let version = put.unwrap();
        setup.publish(&bucket, "k", &object(1)).await.unwrap();
        setup.catalog.delete(&bucket, &key("k"), WriteCondition::None, stamp()).await.unwrap();
        let clearance = Clearance { now: UnixMs(now), bypass_governance: bypass };
        let none = WriteCondition::None;
        let removed =
            setup.catalog.delete_version(&bucket, &key("k"), version, none, clearance).await;
        assert_eq!(matches!(removed, Err(CatalogError::Locked)), stays, "{mode:?} {hold} {bypass}");
    }
}

#[tokio::test]
async fn what_is_in_memory_alone_is_settled_before_versions_are_kept() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let pending = Object { durability: Durability::Memory, ..object(1) };
    setup.publish(&bucket, "k", &pending).await.unwrap();
    let enable = || setup.catalog.set_versioning(TenantId::ROOT, &bucket.name, Versioning::Enabled);
    assert!(matches!(enable().await, Err(CatalogError::NotDurable)));
    let mark = setup.catalog.pending_object(&bucket, &key("k")).await.unwrap().unwrap();
    assert!(setup.catalog.settle(&mark).await.unwrap());
    enable().await.unwrap();
    // A writer that still takes the bucket for one that keeps none.
    let late = Object { durability: Durability::Memory, ..object(1) };
    let late = setup.publish(&bucket, "k", &late).await;
    assert!(matches!(late, Err(CatalogError::NotDurable)), "{late:?}");
}

#[tokio::test]
async fn versions_are_in_the_order_of_their_commits_whatever_the_clocks_say() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let name = &bucket.name;
    setup.catalog.set_versioning(TenantId::ROOT, name, Versioning::Enabled).await.unwrap();
    let (early, late) = (object(0), object(0));
    let mut etags = Vec::new();
    for made in [late, early] {
        etags.insert(0, made.etag.clone());
        setup.catalog.publish(&bucket, &key("k"), made, WriteCondition::None).await.unwrap();
    }
    let query = ListQuery { limit: 10, ..ListQuery::default() };
    let bucket = setup.catalog.bucket(TenantId::ROOT, name).await.unwrap();
    let page = setup.catalog.versions(&bucket, &query, None).await.unwrap();
    let found: Vec<String> =
        page.versions.into_iter().filter_map(|entry| Some(entry.object?.etag)).collect();
    assert_eq!(found, etags);
}

/// Counts what is read.
struct Counting {
    inner: MemoryStore,
    gets: AtomicU64,
    rows: AtomicU64,
}

#[async_trait::async_trait]
impl MetaStore for Counting {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.inner.get(key).await
    }

    async fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        let rows = self.inner.scan(start, end, limit).await?;
        self.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
        Ok(rows)
    }

    async fn commit(&self, batch: Batch) -> Result<(), MetaError> {
        self.inner.commit(batch).await
    }
}

/// Goal: what lies behind the current objects costs those nothing who ask for these alone.
#[tokio::test]
async fn current_objects_cost_the_same_whatever_lies_behind_them() {
    let (gets, rows) = (AtomicU64::new(0), AtomicU64::new(0));
    let store = Arc::new(Counting { inner: MemoryStore::new(), gets, rows });
    let setup = Setup::over(store.clone());
    let bucket = setup.bucket("bucket").await;
    let name = &bucket.name;
    setup.catalog.set_versioning(TenantId::ROOT, name, Versioning::Enabled).await.unwrap();
    let bucket = setup.catalog.bucket(TenantId::ROOT, name).await.unwrap();
    let mut costs = Vec::new();
    for rounds in [1, 5] {
        for at in 0..100 {
            let key = key(&format!("k{at:03}"));
            for _ in 0..rounds {
                let put = setup.catalog.publish(&bucket, &key, object(0), WriteCondition::None);
                put.await.unwrap();
            }
            // Every second key is deleted, and has a marker of each round.
            if at % 2 == 1 {
                setup.catalog.delete(&bucket, &key, WriteCondition::None, stamp()).await.unwrap();
            }
        }
        store.gets.store(0, Ordering::Relaxed);
        store.rows.store(0, Ordering::Relaxed);
        let query = ListQuery { limit: 40, ..ListQuery::default() };
        assert_eq!(setup.catalog.list(&bucket, &query).await.unwrap().objects.len(), 40);
        setup.catalog.read(&bucket, &key("k000"), None).await.unwrap();
        costs.push((store.gets.load(Ordering::Relaxed), store.rows.load(Ordering::Relaxed)));
    }
    assert_eq!(costs, [(1, 41), (1, 41)]);
}
