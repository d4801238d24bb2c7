//! Goal: what is visible before it is durable becomes durable, or what it replaced comes back,
//! whatever happens in between; and chunks are owned exactly as long as anything may need them.
//! Method: single histories by hand, and random ones on both engines beside a model.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use keyway_meta::catalog::{
    CatalogError, Completing, NamedPart, Pending, PendingIn, PendingOf, WriteCondition,
};
use keyway_meta::{Bucket, MemoryStore, Object, ObjectHeaders, Part, UnixMs, Upload};
use keyway_proto::{ChunkId, Durability, UploadId};
use proptest::prelude::*;

fn in_memory(chunks: usize) -> Object {
    Object { durability: Durability::Memory, ..object(chunks) }
}

fn durable(object: &Object) -> Object {
    Object { durability: Durability::Disk, ..object.clone() }
}

async fn pending(setup: &Setup, bucket: &Bucket, name: &str) -> Option<Pending> {
    setup.catalog.pending_object(bucket, &key(name)).await.unwrap()
}

async fn current(setup: &Setup, bucket: &Bucket, name: &str) -> Option<Object> {
    match setup.catalog.object(bucket, &key(name)).await {
        Ok(object) => Some(object),
        Err(CatalogError::NoSuchKey) => None,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_settled_object_gives_up_what_it_replaced() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let (before, first) = (object(2), in_memory(3));
    setup.publish(&bucket, "k", &before).await.unwrap();
    setup.publish(&bucket, "k", &first).await.unwrap();
    assert_eq!(current(&setup, &bucket, "k").await, Some(first.clone()));
    assert!(setup.garbage().await.is_empty(), "what was replaced may have to come back");
    let found = pending(&setup, &bucket, "k").await.unwrap();
    assert_eq!(found.extents, first.extents);
    assert_eq!(found.of, PendingOf::Object { bucket: bucket.id, key: key("k") });
    assert!(setup.catalog.settle(&found).await.unwrap());
    assert!(!setup.catalog.settle(&found).await.unwrap(), "once");
    assert!(!setup.catalog.withdraw(&found).await.unwrap(), "and never taken back");
    assert_eq!(current(&setup, &bucket, "k").await, Some(durable(&first)));
    assert_eq!(setup.garbage().await, before.extents);
    assert!(pending(&setup, &bucket, "k").await.is_none());
}

#[tokio::test]
async fn a_lost_object_brings_back_the_last_durable_one() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let (before, first, second) = (object(1), in_memory(1), in_memory(2));
    setup.publish(&bucket, "k", &before).await.unwrap();
    setup.publish(&bucket, "k", &first).await.unwrap();
    let stale = pending(&setup, &bucket, "k").await.unwrap();
    setup.publish(&bucket, "k", &second).await.unwrap();
    assert_eq!(setup.garbage().await, first.extents, "nobody can see it again");
    assert!(!setup.catalog.withdraw(&stale).await.unwrap(), "it was replaced meanwhile");
    let found = pending(&setup, &bucket, "k").await.unwrap();
    assert!(setup.catalog.withdraw(&found).await.unwrap());
    assert_eq!(current(&setup, &bucket, "k").await, Some(before.clone()));
    assert_eq!(setup.owned(&before).await, [true]);
    assert_eq!(setup.owned(&second).await, [false, false]);
    // One that replaced nothing leaves nothing.
    setup.publish(&bucket, "new", &in_memory(1)).await.unwrap();
    let found = pending(&setup, &bucket, "new").await.unwrap();
    assert!(setup.catalog.withdraw(&found).await.unwrap());
    assert_eq!(current(&setup, &bucket, "new").await, None);
}

#[tokio::test]
async fn publishing_again_changes_nothing() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let first = in_memory(2);
    setup.publish(&bucket, "k", &first).await.unwrap();
    setup.publish(&bucket, "k", &first).await.unwrap();
    let found = pending(&setup, &bucket, "k").await.unwrap();
    assert!(setup.catalog.settle(&found).await.unwrap());
    // The answer was lost, and the object is durable by now: it must not replace itself.
    setup.publish(&bucket, "k", &first).await.unwrap();
    assert_eq!(current(&setup, &bucket, "k").await, Some(durable(&first)));
    assert_eq!(setup.owned(&first).await, [true, true]);
    assert!(setup.garbage().await.is_empty());
}

#[tokio::test]
async fn copies_wait_for_durable_sources() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let source = in_memory(1);
    setup.publish(&bucket, "k", &source).await.unwrap();
    let copy = async || {
        let (from, to) = (key("k"), key("copy"));
        let copied = copy_of(&source);
        let (from, to) = (source_of(&bucket, &from), (&bucket, &to));
        setup.catalog.publish_copy(from, to, copied, WriteCondition::None).await
    };
    assert!(matches!(copy().await, Err(CatalogError::NotDurable)));
    let found = pending(&setup, &bucket, "k").await.unwrap();
    setup.catalog.settle(&found).await.unwrap();
    copy().await.unwrap();
    let copied = current(&setup, &bucket, "copy").await.unwrap();
    assert_eq!(copied.durability, Durability::Disk);
}

#[tokio::test]
async fn parts_are_settled_or_taken_back() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let id = UploadId::new(9, [9; 10]);
    let headers = ObjectHeaders::default();
    let upload = Upload { id, key: key("k"), initiated: UnixMs(5), headers, checksum: None };
    setup.catalog.create_upload(&bucket, upload).await.unwrap();
    let part = |number: u16, durability| Part {
        number,
        size: 6 << 20,
        etag: format!("{number:032x}"),
        modified: UnixMs(6),
        checksums: Vec::new(),
        extents: vec![extent()],
        durability,
        stored_by: None,
    };
    let store = async |part: &Part| {
        setup.catalog.publish_part(&bucket, &key("k"), id, part.clone()).await.unwrap();
    };
    let parts: Vec<Part> = (1..=4).map(|number| part(number, Durability::Memory)).collect();
    for part in &parts {
        store(part).await;
    }
    // Replaced by a durable one: nothing to wait for.
    store(&part(4, Durability::Disk)).await;
    let found = setup.catalog.pending(PendingIn::Upload(id), None, 100).await.unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(setup.catalog.pending(PendingIn::Parts, None, 100).await.unwrap().len(), 3);
    assert!(setup.catalog.pending(PendingIn::Objects, None, 100).await.unwrap().is_empty());
    let complete = async |numbers: &[u16], durability| {
        let named = |number: &u16| {
            let etag = format!("{number:032x}");
            NamedPart { number: *number, etag, checksum: None }
        };
        let named: Vec<NamedPart> = numbers.iter().map(named).collect();
        let (condition, now) = (WriteCondition::None, UnixMs(7));
        let (key, named) = (key("k"), &named[..]);
        let (checksum, retention) = (None, None);
        let completing = Completing {
            parts: named,
            checksum,
            condition,
            durability,
            retention,
            now,
            stored_by: None,
        };
        setup.catalog.complete_upload(&bucket, &key, id, completing).await
    };
    let refused = complete(&[1, 2], Durability::Disk).await;
    assert!(matches!(refused, Err(CatalogError::NotDurable)), "{refused:?}");
    assert!(setup.catalog.settle(&found[0]).await.unwrap());
    assert!(setup.catalog.withdraw(&found[1]).await.unwrap());
    assert!(setup.garbage().await.contains(&parts[1].extents[0]));
    let refused = complete(&[1, 2], Durability::Memory).await;
    assert!(matches!(refused, Err(CatalogError::InvalidPart(2))), "{refused:?}");
    // The third is in memory alone, and so is what is made of it.
    let made = complete(&[1, 3], Durability::Memory).await.unwrap();
    assert_eq!(made.durability, Durability::Memory);
    assert!(setup.catalog.pending(PendingIn::Parts, None, 100).await.unwrap().is_empty());
    let found = setup.catalog.pending(PendingIn::Bucket(bucket.id), None, 100).await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(setup.catalog.withdraw(&found[0]).await.unwrap());
    assert_eq!(current(&setup, &bucket, "k").await, None);
    let again = complete(&[1, 3], Durability::Memory).await;
    assert!(matches!(again, Err(CatalogError::NoSuchUpload)), "{again:?}");
    let garbage = setup.garbage().await;
    for part in [&parts[0], &parts[1], &parts[2], &parts[3]] {
        assert!(garbage.contains(&part.extents[0]), "{}", part.number);
    }
}

#[tokio::test]
async fn pages_go_on_behind_each_other() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    for name in ["a", "a\0b", "b", "c"] {
        setup.publish(&bucket, name, &in_memory(1)).await.unwrap();
    }
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let page = setup.catalog.pending(PendingIn::Objects, after.as_ref(), 1).await.unwrap();
        let Some(last) = page.last() else { break };
        let PendingOf::Object { key, .. } = &last.of else { panic!("{last:?}") };
        names.push(key.to_string());
        after = Some(last.clone());
    }
    assert_eq!(names, ["a", "a\0b", "b", "c"]);
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, chunks: usize, durability: Durability },
    Copy { from: u8, to: u8 },
    Delete { key: u8 },
    Settle { key: u8 },
    Withdraw { key: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0_u8..3;
    let durability = prop::sample::select(vec![Durability::Memory, Durability::Disk]);
    prop_oneof![
        6 => (name(), 0_usize..3, durability)
            .prop_map(|(key, chunks, durability)| Step::Put { key, chunks, durability }),
        2 => (name(), name()).prop_map(|(from, to)| Step::Copy { from, to }),
        2 => name().prop_map(|key| Step::Delete { key }),
        2 => name().prop_map(|key| Step::Settle { key }),
        2 => name().prop_map(|key| Step::Withdraw { key }),
    ]
}

/// What a key shows, and what it falls back to.
#[derive(Clone, Debug, Default)]
struct Entry {
    shown: Option<Object>,
    durable: Option<Object>,
}

async fn run(setup: Setup, steps: Vec<Step>) {
    let bucket = setup.bucket("bucket").await;
    let mut model: BTreeMap<u8, Entry> = BTreeMap::new();
    let mut ever: BTreeSet<ChunkId> = BTreeSet::new();
    for step in steps {
        match step {
            Step::Put { key, chunks, durability } => {
                let object = Object { durability, ..object(chunks) };
                ever.extend(object.extents.iter().map(|extent| extent.chunk.id));
                setup.publish(&bucket, &key.to_string(), &object).await.unwrap();
                let entry = model.entry(key).or_default();
                entry.shown = Some(object.clone());
                if durability == Durability::Disk {
                    entry.durable = Some(object);
                }
            }
            Step::Copy { from, to } => {
                let found = model.get(&from).and_then(|entry| entry.shown.clone());
                let Some(found) = found else { continue };
                let copy = copy_of(&found);
                let names = (self::key(&from.to_string()), self::key(&to.to_string()));
                let (from, to_key) = (source_of(&bucket, &names.0), (&bucket, &names.1));
                let none = WriteCondition::None;
                let done = setup.catalog.publish_copy(from, to_key, copy.clone(), none).await;
                if found.durability == Durability::Memory {
                    assert!(matches!(done, Err(CatalogError::NotDurable)));
                    continue;
                }
                done.unwrap();
                model.insert(to, Entry { shown: Some(copy.clone()), durable: Some(copy) });
            }
            Step::Delete { key } => {
                let name = self::key(&key.to_string());
                setup.catalog.delete(&bucket, &name, WriteCondition::None, stamp()).await.unwrap();
                model.remove(&key);
            }
            Step::Settle { key } | Step::Withdraw { key } => {
                let found = pending(&setup, &bucket, &key.to_string()).await;
                let entry = model.entry(key).or_default();
                let is_pending =
                    entry.shown.as_ref().is_some_and(|it| it.durability == Durability::Memory);
                assert_eq!(found.is_some(), is_pending);
                let Some(found) = found else { continue };
                if matches!(step, Step::Settle { .. }) {
                    assert!(setup.catalog.settle(&found).await.unwrap());
                    entry.shown = entry.shown.as_ref().map(durable);
                    entry.durable = entry.shown.clone();
                } else {
                    assert!(setup.catalog.withdraw(&found).await.unwrap());
                    entry.shown = entry.durable.clone();
                }
            }
        }
        let mut owned: BTreeSet<ChunkId> = BTreeSet::new();
        let mut marks = 0;
        for (key, entry) in &model {
            assert_eq!(current(&setup, &bucket, &key.to_string()).await, entry.shown);
            let both = entry.shown.iter().chain(&entry.durable);
            owned.extend(both.flat_map(|it| &it.extents).map(|extent| extent.chunk.id));
            marks += entry.shown.iter().filter(|it| it.durability == Durability::Memory).count();
        }
        let among = PendingIn::Bucket(bucket.id);
        assert_eq!(setup.catalog.pending(among, None, 100).await.unwrap().len(), marks);
        let garbage = setup.garbage().await.into_iter().map(|extent| extent.chunk.id);
        let expected: BTreeSet<ChunkId> = ever.difference(&owned).copied().collect();
        assert_eq!(garbage.collect::<BTreeSet<_>>(), expected, "garbage is what nothing needs");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_that_may_come_back(
        steps in prop::collection::vec(step(), 1..30),
        embedded: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let setup =
            if embedded { Setup::new() } else { Setup::over(Arc::new(MemoryStore::new())) };
        runtime.block_on(run(setup, steps));
    }
}
