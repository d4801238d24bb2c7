//! Goal: the catalog's promises about buckets, objects, copies and garbage, one by one, over
//! the embedded engine.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use common::*;
use keyway_meta::catalog::{CatalogError, ListQuery, WriteCondition};

#[tokio::test]
async fn an_object_is_read_as_it_was_published() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let object = object(3);
    setup.publish(&bucket, "a/b", &object).await.unwrap();
    assert_eq!(setup.catalog.object(&bucket, &key("a/b")).await.unwrap(), object);
    let missing = setup.catalog.object(&bucket, &key("a")).await;
    assert!(matches!(missing, Err(CatalogError::NoSuchKey)), "{missing:?}");
}

#[tokio::test]
async fn what_is_overwritten_or_deleted_becomes_garbage() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let (first, second) = (object(2), object(1));
    setup.publish(&bucket, "k", &first).await.unwrap();
    assert_eq!(setup.garbage().await, []);
    setup.publish(&bucket, "k", &second).await.unwrap();
    assert_eq!(setup.garbage().await, first.extents);
    assert_eq!(setup.owned(&second).await, [true]);
    assert_eq!(setup.owned(&first).await, [false, false]);
    setup.catalog.forget_garbage(&first.extents).await.unwrap();
    assert!(
        setup
            .catalog
            .delete(&bucket, &key("k"), WriteCondition::None, stamp())
            .await
            .unwrap()
            .existed
    );
    assert_eq!(setup.garbage().await, second.extents);
    assert!(
        !setup
            .catalog
            .delete(&bucket, &key("k"), WriteCondition::None, stamp())
            .await
            .unwrap()
            .existed
    );
}

#[tokio::test]
async fn shared_chunks_live_until_their_last_owner() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let source = object(2);
    setup.publish(&bucket, "source", &source).await.unwrap();
    let copy = copy_of(&source);
    let (from, to) = (key("source"), key("copy"));
    let publish = setup.catalog.publish_copy(
        source_of(&bucket, &from),
        (&bucket, &to),
        copy.clone(),
        WriteCondition::None,
    );
    publish.await.unwrap();
    setup.catalog.delete(&bucket, &from, WriteCondition::None, stamp()).await.unwrap();
    assert_eq!(setup.garbage().await, [], "the copy still owns them");
    assert_eq!(setup.owned(&copy).await, [true, true]);
    setup.catalog.delete(&bucket, &to, WriteCondition::None, stamp()).await.unwrap();
    assert_eq!(setup.garbage().await, source.extents);
    let late = setup.catalog.publish_copy(
        source_of(&bucket, &from),
        (&bucket, &to),
        copy_of(&source),
        WriteCondition::None,
    );
    assert!(matches!(late.await, Err(CatalogError::NoSuchKey)), "no copy without its source");
}

#[tokio::test]
async fn an_object_copied_onto_itself_keeps_its_chunks() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let source = object(2);
    setup.publish(&bucket, "k", &source).await.unwrap();
    let copy = copy_of(&source);
    let name = key("k");
    let publish = setup.catalog.publish_copy(
        source_of(&bucket, &name),
        (&bucket, &name),
        copy.clone(),
        WriteCondition::None,
    );
    publish.await.unwrap();
    assert_eq!(setup.catalog.object(&bucket, &name).await.unwrap(), copy);
    assert_eq!(setup.garbage().await, []);
    assert_eq!(setup.owned(&copy).await, [true, true]);
}

#[tokio::test]
async fn conditions_are_held_against_the_current_object() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let name = key("k");
    let etag_is = |etag: &str| WriteCondition::EtagIs(etag.into());
    let write = |condition| setup.catalog.publish(&bucket, &name, object(1), condition);
    assert!(matches!(write(etag_is("*")).await, Err(CatalogError::NoSuchKey)));
    write(WriteCondition::Absent).await.unwrap();
    assert!(matches!(write(WriteCondition::Absent).await, Err(CatalogError::PreconditionFailed)));
    assert!(matches!(write(etag_is("other")).await, Err(CatalogError::PreconditionFailed)));
    write(etag_is("*")).await.unwrap();
    let current = setup.catalog.object(&bucket, &name).await.unwrap();
    write(etag_is(&current.etag)).await.unwrap();
    let delete = setup.catalog.delete(&bucket, &name, etag_is(&current.etag), stamp());
    assert!(matches!(delete.await, Err(CatalogError::PreconditionFailed)));
    assert_eq!(setup.garbage().await.len(), 2, "refused writes leave no trace");
}

#[tokio::test]
async fn a_bucket_goes_when_it_is_empty_and_its_id_never_returns() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    setup.publish(&bucket, "k", &object(1)).await.unwrap();
    let delete = || setup.catalog.delete_bucket(bucket.tenant, &bucket.name);
    assert!(matches!(delete().await, Err(CatalogError::BucketNotEmpty)));
    setup.catalog.delete(&bucket, &key("k"), WriteCondition::None, stamp()).await.unwrap();
    delete().await.unwrap();
    assert!(matches!(delete().await, Err(CatalogError::NoSuchBucket)));
    let late = setup.publish(&bucket, "k", &object(1)).await;
    assert!(matches!(late, Err(CatalogError::NoSuchBucket)), "{late:?}");
    let again = setup.bucket("bucket").await;
    assert!(again.id > bucket.id);
    let page = setup.catalog.list(&again, &ListQuery { limit: 9, ..Default::default() }).await;
    assert_eq!(page.unwrap().objects, []);
}

#[tokio::test]
async fn what_the_sweeper_took_cannot_be_published() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let (owned, orphan) = (object(1), object(1));
    setup.publish(&bucket, "k", &owned).await.unwrap();
    let chunks = [owned.extents[0], orphan.extents[0]];
    assert_eq!(setup.catalog.condemn(&chunks).await.unwrap(), [false, true]);
    let late = setup.publish(&bucket, "l", &orphan).await;
    assert!(matches!(late, Err(CatalogError::Swept)), "{late:?}");
    assert_eq!(setup.garbage().await, orphan.extents);
}

/// As a caller does that lost the answer.
#[tokio::test]
async fn publishing_the_same_object_again_changes_nothing() {
    let setup = Setup::new();
    let bucket = setup.bucket("bucket").await;
    let object = object(2);
    for _ in 0..3 {
        setup.publish(&bucket, "k", &object).await.unwrap();
        assert_eq!(setup.garbage().await, []);
        assert_eq!(setup.owned(&object).await, [true, true]);
    }
}
