//! What is in the bucket before time is taken: objects for GETs, keys for listings.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use keyway_client::Client;

use super::cell::{Cell, Operation};
use super::pattern;

/// Objects that are stored ahead for GETs, and that PUTs write: this many bytes, within these
/// counts.
const DATASET_BYTES: u64 = 256 << 20;
const OBJECTS: std::ops::RangeInclusive<u64> = 4..=256;
/// Most keys that each PUT worker overwrites in turn.
const PUT_KEYS_MAX: u64 = 8;

/// A service under load.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) client: Client,
    /// Stores what is read.
    pub(super) filler: Client,
    pub(super) server_pid: Option<u32>,
}

/// Objects that GETs choose from.
pub(super) fn objects(cell: &Cell) -> u64 {
    (DATASET_BYTES / cell.size.max(1)).clamp(*OBJECTS.start(), *OBJECTS.end())
}

/// Keys that each PUT worker overwrites in turn: together about the data set, where that is
/// possible, because all of them are read back.
pub(super) fn put_keys(cell: &Cell) -> u64 {
    let all = cell.size.max(1).saturating_mul(cell.workers_total());
    (DATASET_BYTES / all).clamp(1, PUT_KEYS_MAX)
}

/// Bytes of different objects that a cell moves.
pub(super) fn bytes(cell: &Cell) -> u64 {
    match cell.operation {
        Operation::Get => cell.batch.map_or(objects(cell) * cell.size, |batch| batch.object),
        Operation::Put => cell.workers_total() * put_keys(cell) * cell.size,
        Operation::List => 0,
    }
}

/// The key of an object for GETs, which holds the pattern of `at`.
pub(super) fn get_key(size: u64, at: u64) -> String {
    format!("get/{size}/{at}")
}

/// Stores what GETs will read, where it is not there yet.
pub(super) async fn prepare(target: &Target, bucket: &str, cell: &Cell) -> anyhow::Result<()> {
    let mut body = vec![0; cell.size as usize];
    for at in 0..objects(cell) {
        let key = get_key(cell.size, at);
        let stored = target.client.head_object(bucket, &key).await;
        if stored.is_ok_and(|info| info.size == cell.size) {
            continue;
        }
        pattern::fill(&mut body, at);
        let body = Bytes::from(body.clone());
        target.filler.put_object(bucket, &key).body(body).send().await?;
    }
    Ok(())
}

/// The bucket, made where there is none.
pub(super) async fn ensure_bucket(client: &Client, bucket: &str) -> anyhow::Result<()> {
    match client.head_bucket(bucket).await {
        Err(error) if error.is_not_found() => Ok(client.create_bucket(bucket).await?),
        result => Ok(result?),
    }
}

/// Keys of a listing bucket.
pub(super) fn listed_key(at: u64) -> String {
    format!("key-{at:09}")
}

/// Where a listing of so many keys is.
pub(super) fn listing_bucket(bucket: &str, keys: u64) -> String {
    format!("{bucket}-list-{keys}")
}

/// Fills a bucket for listings, once: its last key tells that it is full.
pub(super) async fn load_keys(
    target: &Target,
    bucket: &str,
    keys: u64,
    loaded: impl Fn(u64),
) -> anyhow::Result<()> {
    const WORKERS: u64 = 64;
    let bucket: Arc<str> = listing_bucket(bucket, keys).into();
    ensure_bucket(&target.client, &bucket).await?;
    let marker = "loaded";
    if target.client.head_object(&bucket, marker).await.is_ok() {
        return Ok(());
    }
    let done = std::cell::Cell::new(0);
    let worker = |number: u64| {
        let (client, bucket, done, loaded) = (&target.client, &bucket, &done, &loaded);
        async move {
            for at in (number..keys).step_by(WORKERS as usize) {
                client.put_object(bucket, &listed_key(at)).send().await?;
                done.set(done.get() + 1);
                loaded(done.get());
            }
            anyhow::Ok(())
        }
    };
    try_join_all((0..WORKERS).map(worker)).await?;
    target.client.put_object(&bucket, marker).send().await?;
    Ok(())
}
