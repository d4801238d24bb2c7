//! What is to be told of changes: written in the commits that make them, so that nothing is told
//! that did not happen, and nothing that happened is forgotten.
//!
//! Events stand by target, numbered in the order of their commits ([`Append`]): those of a key, in
//! the order in which it changed. Beside them stands how many wait. Whoever delivers them takes
//! them away afterwards; what a crash brings back of that is delivered again.
//!
//! Cost of a change that nobody asked to be told of: none. Of one that is told: one look-up, and
//! four rows in its commit.

use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::{BucketId, Durability, ObjectKey};
use tokio::sync::watch;

use super::{Catalog, CatalogError, PAGE_MAX};
use crate::key;
use crate::record::{Bucket, DeleteMarker, Object, UnixMs, VersionName};
use crate::row;
use crate::store::{Append, Batch, MetaError, Tally};

/// Targets whose backlogs are told.
const TARGETS_MAX: usize = 1000;

/// Decides who is told of a change. It is asked with every attempt to commit one, and must not
/// wait.
pub trait Teller: Send + Sync {
    /// What is to be told of it, if somebody is.
    fn tell(&self, key: &ObjectKey, change: &Change<'_>) -> Option<Notice>;

    /// A notice was given up: too many wait for its target.
    fn drop_notice(&self, notice: &Notice);
}

/// What happens to a key.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// This object is current.
    Published(&'a Object),
    /// A version is gone for good; without a name, what was the current object.
    Removed(Option<VersionName>),
    /// A delete marker hides the object.
    Hidden(DeleteMarker),
    /// A version has other tags, or another lock.
    Amended(&'a Object),
}

/// Something to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// To whom: a name without a zero byte.
    pub target: Arc<str>,
    /// When it happens.
    pub at: UnixMs,
    /// What; the teller's to read.
    pub document: Bytes,
    /// What may wait for the target: where as much does, this does not join it.
    pub at_most: Backlog,
}

/// How much waits for a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Events.
    pub events: u64,
    /// Bytes of their rows.
    pub bytes: u64,
}

/// An event that waits for its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place in the order of all events.
    pub number: u64,
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: String,
    /// When it happened.
    pub at: UnixMs,
    /// What is told.
    pub document: Bytes,
    row_key: Bytes,
    row_bytes: u64,
}

/// A bucket, and who tells of changes there.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) teller: Option<&'a dyn Teller>,
}

impl<'a> Site<'a> {
    /// A bucket whose changes this one tells of, if there is one.
    pub fn told_by(bucket: &'a Bucket, teller: Option<&'a dyn Teller>) -> Self {
        Self { bucket, teller }
    }
}

impl<'a> From<&'a Bucket> for Site<'a> {
    /// Nobody tells.
    fn from(bucket: &'a Bucket) -> Self {
        Self { bucket, teller: None }
    }
}

impl Catalog {
    /// Has the batch tell of a change that it makes, if somebody is to be told.
    pub(super) async fn tell(
        &self,
        batch: &mut Batch,
        site: Site<'_>,
        key: &ObjectKey,
        change: Change<'_>,
    ) -> Result<(), MetaError> {
        let Some(teller) = site.teller else { return Ok(()) };
        let Some(notice) = teller.tell(key, &change) else { return Ok(()) };
        let (target, backlog) = (&*notice.target, key::backlog(&notice.target));
        let now = self.store.get(&backlog).await?;
        let [events, bytes] = now.as_deref().map_or(Ok([0, 0]), Tally::decode)?;
        if events >= notice.at_most.events || bytes >= notice.at_most.bytes {
            teller.drop_notice(&notice);
            return Ok(());
        }
        let value = row::encode_event(site.bucket.id, key, notice.at, &notice.document);
        let add = [1, i64::try_from(value.len()).unwrap_or(i64::MAX)];
        batch.tallies.push(Tally { key: backlog, add, at_most: [u64::MAX; 2] });
        let prefix = key::events(target);
        batch.appends.push(Append { counter: key::event_counter(), prefix, value });
        Ok(())
    }

    /// Changes with every event that is written: who waits for events looks again.
    pub fn events_written(&self) -> watch::Receiver<u64> {
        self.events_written.subscribe()
    }

    /// Events that wait for a target behind the one of this number (0: all), in their order, at
    /// most `limit` and [`PAGE_MAX`].
    pub async fn events(
        &self,
        target: &str,
        behind: u64,
        limit: usize,
    ) -> Result<Vec<Waiting>, CatalogError> {
        let (start, end) = key::events_of(target, behind);
        let rows = self.store.scan(&start, &end, limit.min(PAGE_MAX)).await?;
        let read = rows.into_iter().map(|(row_key, row)| {
            let number = key::event_number(&row_key).ok_or(MetaError::Damaged("event's key"))?;
            let event = row::decode_event(&row)?;
            Ok(Waiting {
                number,
                bucket: BucketId(event.bucket),
                key: event.key,
                at: UnixMs(event.at_ms),
                document: event.document,
                row_key,
                row_bytes: row.len() as u64,
            })
        });
        read.collect::<Result<_, MetaError>>().map_err(CatalogError::from)
    }

    /// Takes away events that were delivered: each of them once, and by whoever delivers for the
    /// target alone. That need not outlive a crash: they are delivered again then.
    pub async fn forget_events(
        &self,
        target: &str,
        events: &[Waiting],
    ) -> Result<(), CatalogError> {
        if events.is_empty() {
            return Ok(());
        }
        let durability = Durability::Memory;
        let mut batch = Batch { frees_space: true, durability, ..Batch::default() };
        let bytes = events.iter().map(|event| event.row_bytes).sum::<u64>();
        for event in events {
            batch.delete(event.row_key.clone());
        }
        let less = |number: u64| i64::try_from(number).map_or(i64::MIN, |number| -number);
        let add = [less(events.len() as u64), less(bytes)];
        batch.tallies.push(Tally { key: key::backlog(target), add, at_most: [u64::MAX; 2] });
        Ok(self.store.commit(batch).await?)
    }

    /// What waits for a target.
    pub async fn backlog(&self, target: &str) -> Result<Backlog, CatalogError> {
        let row = self.store.get(&key::backlog(target)).await?;
        let [events, bytes] = row.as_deref().map_or(Ok([0, 0]), Tally::decode)?;
        Ok(Backlog { events, bytes })
    }

    /// The targets that something waits for, whether somebody knows them still or not.
    pub async fn backlogs(&self) -> Result<Vec<(String, Backlog)>, CatalogError> {
        let (start, end) = key::backlogs();
        let rows = self.store.scan(&start, &end, TARGETS_MAX).await?;
        let read = rows.iter().map(|(row_key, row)| {
            let target = key::backlog_target(row_key).ok_or(MetaError::Damaged("backlog's key"))?;
            let [events, bytes] = Tally::decode(row)?;
            Ok((target.to_owned(), Backlog { events, bytes }))
        });
        read.collect::<Result<_, MetaError>>().map_err(CatalogError::from)
    }
}
