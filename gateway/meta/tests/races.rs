//! Goal: whatever interleaving happens, a conditional write has one winner, no object stands
//! in a deleted bucket, and no chunk is lost or kept twice. Method: many tasks on the
//! embedded engine over several threads.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use common::*;
use keyway_meta::catalog::{CatalogError, ListQuery, WriteCondition};
use keyway_meta::{Batch, EmbeddedStore, MetaConfig, MetaStore};
use keyway_proto::TenantId;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_create_only_write_wins() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    for round in 0..8 {
        let name = key(&format!("round-{round}"));
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                let (catalog, bucket, name) =
                    (Arc::clone(&setup.catalog), bucket.clone(), name.clone());
                tokio::spawn(async move {
                    catalog.publish(&bucket, &name, object(1), WriteCondition::Absent).await
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(_) => winners += 1,
                Err(CatalogError::PreconditionFailed) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(winners, 1);
    }
    assert_eq!(setup.garbage().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_chain_of_compare_and_swap_loses_no_link() {
    const TASKS: u64 = 16;
    const EACH: u64 = 8;
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    setup.publish(&bucket, "k", &sized(0)).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (catalog, bucket) = (Arc::clone(&setup.catalog), bucket.clone());
            tokio::spawn(async move {
                for _ in 0..EACH {
                    loop {
                        let current = catalog.object(&bucket, &key("k")).await.unwrap();
                        let condition = WriteCondition::EtagIs(current.etag);
                        let next = sized(current.size + 1);
                        match catalog.publish(&bucket, &key("k"), next, condition).await {
                            Ok(_) => break,
                            Err(CatalogError::PreconditionFailed) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let last = setup.catalog.object(&bucket, &key("k")).await.unwrap();
    assert_eq!(last.size, TASKS * EACH);
    assert_eq!(setup.garbage().await.len() as u64, TASKS * EACH, "each link but the last");
}

/// Unconditional writes to one key must all succeed, however many meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hot_key_takes_every_write() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let tasks: Vec<_> = (0..128)
        .map(|_| {
            let (catalog, bucket) = (Arc::clone(&setup.catalog), bucket.clone());
            tokio::spawn(async move {
                catalog.publish(&bucket, &key("hot"), object(1), WriteCondition::None).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(setup.garbage().await.len(), 127);
}

/// Puts race with the deletion of their bucket: every put that succeeded is either visible in
/// a bucket that stands, or the deletion was refused because of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_put_lands_in_a_deleted_bucket() {
    let setup = Setup::new();
    for round in 0..24 {
        let bucket = setup.bucket(&format!("bucket-{round}")).await;
        let puts: Vec<_> = (0..4)
            .map(|n| {
                let (catalog, bucket) = (Arc::clone(&setup.catalog), bucket.clone());
                tokio::spawn(async move {
                    let name = key(&format!("k{n}"));
                    catalog.publish(&bucket, &name, object(1), WriteCondition::None).await
                })
            })
            .collect();
        let deletion = setup.catalog.delete_bucket(TenantId::ROOT, &bucket.name).await;
        let mut stored = 0;
        for put in puts {
            match put.await.unwrap() {
                Ok(_) => stored += 1,
                Err(CatalogError::NoSuchBucket) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let query = ListQuery { limit: 10, ..ListQuery::default() };
        let listed = setup.catalog.list(&bucket, &query).await.unwrap().objects.len();
        match deletion {
            Ok(()) => assert_eq!((stored, listed), (0, 0)),
            Err(CatalogError::BucketNotEmpty) => assert_eq!(stored, listed),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Readers copy a large row while the writer replaces it, and then reclaims its pages: each
/// reads one commit's row, whole, and later commits later.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_keep_their_pages_from_the_writer() {
    const ROUNDS: u8 = 40;
    const READERS: usize = 3;
    const ROW_BYTES: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap());
    let row = |round: u8| Bytes::from(vec![round; ROW_BYTES]);
    let write = async |key: &'static str, value| {
        let mut batch = Batch::default();
        batch.put(Bytes::from(key), value);
        store.commit(batch).await.unwrap();
    };
    write("large", row(0)).await;
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (store, done) = (Arc::clone(&store), Arc::clone(&done));
            tokio::spawn(async move {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let row = store.get(b"large").await.unwrap().unwrap();
                    assert!(row.len() == ROW_BYTES && row.iter().all(|byte| *byte == row[0]));
                    assert!(row[0] >= last, "{} after {last}", row[0]);
                    last = row[0];
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for round in 1..=ROUNDS {
        write("large", row(round)).await;
        // The commit after the next is the one that takes the old row's pages.
        write("small", Bytes::from_static(b"1")).await;
        write("small", Bytes::from_static(b"2")).await;
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
}

fn sized(size: u64) -> keyway_meta::Object {
    keyway_meta::Object { size, ..object(1) }
}
