//! Goal: what happens is told once, in the order in which it happened, and what does not is not.
//!
//! Method: a teller that tells all of what it is asked, over the real engine; and one whose target
//! has had enough.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Setup, copy_of, key, object, source_of, stamp};
use keyway_meta::catalog::{
    Backlog, CatalogError, Change, Clearance, Notice, Site, Teller, Waiting, WriteCondition,
};
use keyway_meta::{BucketSettings, EmbeddedStore, MetaConfig, UnixMs, VersionName, Versioning};
use keyway_proto::{Durability, ObjectKey, TenantId};

const CLEARANCE: Clearance = Clearance { now: UnixMs(1), bypass_governance: false };

struct All {
    at_most: u64,
    dropped: AtomicUsize,
}

impl All {
    fn new(at_most: u64) -> Self {
        Self { at_most, dropped: AtomicUsize::new(0) }
    }
}

impl Teller for All {
    fn tell(&self, key: &ObjectKey, change: &Change<'_>) -> Option<Notice> {
        let what = match change {
            Change::Published(object) => format!("+{key} {}", object.etag),
            Change::Removed(Some(name)) => format!("-{key} {name}"),
            Change::Removed(None) => format!("-{key}"),
            Change::Hidden(marker) => format!("-{key} by {}", marker.name()),
            Change::Amended(_) => format!("~{key}"),
        };
        let at_most = Backlog { events: self.at_most, bytes: u64::MAX };
        Some(Notice { target: "t".into(), at: UnixMs(7), document: what.into(), at_most })
    }

    fn drop_notice(&self, _: &Notice) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn words(events: &[Waiting]) -> Vec<String> {
    let word = |event: &Waiting| String::from_utf8(event.document.to_vec()).unwrap();
    events.iter().map(word).collect()
}

async fn told(setup: &Setup) -> Vec<String> {
    words(&setup.catalog.events("t", 0, usize::MAX).await.unwrap())
}

#[tokio::test]
async fn what_happens_is_told_in_order() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let (all, catalog) = (All::new(u64::MAX), &setup.catalog);
    let site = Site::told_by(&bucket, Some(&all));
    let none = || WriteCondition::None;
    let (first, second) = (object(1), object(1));
    let mut written = catalog.events_written();
    catalog.publish(site, &key("k"), first.clone(), none()).await.unwrap();
    assert!(written.has_changed().unwrap());
    written.mark_unchanged();
    // The same again, what is refused, what is not there: nothing happens.
    catalog.publish(site, &key("k"), first.clone(), none()).await.unwrap();
    let refused = catalog.publish(site, &key("k"), object(1), WriteCondition::Absent).await;
    assert!(matches!(refused, Err(CatalogError::PreconditionFailed)));
    let absent = catalog.delete(site, &key("absent"), none(), stamp()).await.unwrap();
    assert!(!absent.existed && !written.has_changed().unwrap());
    // Nobody tells.
    catalog.publish(&bucket, &key("quiet"), object(1), none()).await.unwrap();
    assert!(!written.has_changed().unwrap());
    let copy = copy_of(&first);
    let (from, to) = (key("k"), key("copy"));
    let source = source_of(&bucket, &from);
    catalog.publish_copy(source, (site, &to), copy, none()).await.unwrap();
    catalog.publish(site, &key("k"), second.clone(), none()).await.unwrap();
    catalog.amend(site, &key("k"), None, |_| Ok(())).await.unwrap();
    catalog.delete(site, &key("k"), none(), stamp()).await.unwrap();
    let expected = [
        format!("+k {}", first.etag),
        format!("+copy {}", first.etag),
        format!("+k {}", second.etag),
        "~k".to_owned(),
        "-k".to_owned(),
    ];
    assert_eq!(told(&setup).await, expected);

    // What was delivered goes; what waits is counted.
    let events = catalog.events("t", 0, 2).await.unwrap();
    assert!(events[0].number < events[1].number);
    catalog.forget_events("t", &events).await.unwrap();
    assert_eq!(told(&setup).await, expected[2..]);
    let rest = catalog.events("t", events[1].number, 2).await.unwrap();
    assert_eq!(words(&rest), expected[2..4]);
    assert_eq!(catalog.backlog("t").await.unwrap().events, 3);
    let rest = catalog.events("t", 0, usize::MAX).await.unwrap();
    catalog.forget_events("t", &rest).await.unwrap();
    assert_eq!(catalog.backlog("t").await.unwrap(), Backlog::default());
    assert!(catalog.backlogs().await.unwrap().is_empty());
}

#[tokio::test]
async fn versions_are_told_by_their_names() {
    let setup = Setup::new();
    let settings = BucketSettings { versioning: Versioning::Enabled, ..BucketSettings::default() };
    let name = "bucket".parse().unwrap();
    let made = setup.catalog.create_bucket(TenantId::ROOT, &name, settings, UnixMs(1)).await;
    let bucket = made.unwrap();
    let (all, catalog) = (All::new(u64::MAX), &setup.catalog);
    let site = Site::told_by(&bucket, Some(&all));
    let none = || WriteCondition::None;
    let put = object(1);
    let version = catalog.publish(site, &key("k"), put.clone(), none()).await.unwrap();
    let marker = catalog.delete(site, &key("k"), none(), stamp()).await.unwrap().version.unwrap();
    for gone in [marker, version, VersionName::Null] {
        catalog.delete_version(site, &key("k"), gone, none(), CLEARANCE).await.unwrap();
    }
    let expected = [
        format!("+k {}", put.etag),
        format!("-k by {marker}"),
        format!("-k {marker}"),
        format!("-k {version}"),
    ];
    assert_eq!(told(&setup).await, expected);
}

#[tokio::test]
async fn what_could_be_undone_is_not_told() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let all = All::new(u64::MAX);
    let in_memory = keyway_meta::Object { durability: Durability::Memory, ..object(1) };
    let site = Site::told_by(&bucket, Some(&all));
    let refused = setup.catalog.publish(site, &key("k"), in_memory, WriteCondition::None).await;
    assert!(matches!(refused, Err(CatalogError::NotDurable)));
    assert!(told(&setup).await.is_empty());
}

#[tokio::test]
async fn what_is_too_much_is_dropped_and_the_change_stands() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let all = All::new(2);
    let site = Site::told_by(&bucket, Some(&all));
    for name in ["a", "b", "c", "d"] {
        setup.catalog.publish(site, &key(name), object(1), WriteCondition::None).await.unwrap();
    }
    assert_eq!(told(&setup).await.len(), 2);
    assert_eq!(all.dropped.load(Ordering::Relaxed), 2);
    assert!(setup.catalog.object(&bucket, &key("d")).await.is_ok());
}

#[tokio::test]
async fn events_outlive_the_process_and_numbers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for life in 0..3 {
        let store = EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap();
        let setup = Setup::over(Arc::new(store));
        let bucket = match life {
            0 => setup.bucket("bucket").await,
            _ => {
                let name = "bucket".parse().unwrap();
                setup.catalog.bucket(TenantId::ROOT, &name).await.unwrap()
            }
        };
        let all = All::new(u64::MAX);
        let site = Site::told_by(&bucket, Some(&all));
        setup.catalog.publish(site, &key("k"), object(1), WriteCondition::None).await.unwrap();
        let events = setup.catalog.events("t", 0, usize::MAX).await.unwrap();
        let number = events.last().unwrap().number;
        assert!(number > last, "{number} after {last}");
        last = number;
        // All of them are delivered but in the first life.
        if life > 0 {
            assert_eq!(events.len(), if life == 1 { 2 } else { 1 });
            setup.catalog.forget_events("t", &events).await.unwrap();
        }
    }
}

#[tokio::test]
async fn rules_and_their_flag_change_together() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let kind = keyway_meta::ConfigurationKind::Notification;
    for document in [Some(&b"rules"[..]), None] {
        let set = setup.catalog.set_notification(bucket.tenant, &bucket.name, document);
        set.await.unwrap();
        let now = setup.catalog.bucket(bucket.tenant, &bucket.name).await.unwrap();
        assert_eq!(now.settings.tells, document.is_some());
        let kept = setup.catalog.configuration(&now, kind).await.unwrap();
        assert_eq!(kept.as_deref(), document);
    }
}
