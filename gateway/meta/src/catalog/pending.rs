//! What is visible before its bytes are durable.
//!
//! Beside the row of such an object stands a mark, written and removed with it in one commit:
//! the row of the durable object that it replaced, whose chunks stay owned. When the bytes are
//! durable, the mark goes, and what was replaced becomes garbage ([`Catalog::settle`]). When they
//! are lost, what was replaced comes back ([`Catalog::withdraw`]). Whatever is written over such
//! an object, or deletes it, takes its mark over or away in the same commit. A part of an upload
//! has a mark that says nothing more: it replaced nothing that anybody saw.
//!
//! An object that replaces one in memory alone holds back what that one did: the last durable
//! one is what a loss falls back to.

use bytes::Bytes;
use keyway_proto::unit::PART_NUMBER_MAX;
use keyway_proto::{BucketId, Durability, ObjectKey, UploadId};

use super::current::disown;
use super::usage::Payer;
use super::{Catalog, CatalogError, PAGE_MAX};
use crate::key::{self, Owner, Range, Space};
use crate::record::{Bucket, Extent};
use crate::row;
use crate::store::{Batch, MetaError};

/// An object or a part whose bytes are not known to be durable, as it was read.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it is.
    pub of: PendingOf,
    /// Where its bytes are.
    pub extents: Vec<Extent>,
    row: (Bytes, Bytes),
    mark: (Bytes, Bytes),
}

/// What is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingOf {
    /// The current object under a key.
    Object {
        /// Its bucket.
        bucket: BucketId,
        /// Its key.
        key: ObjectKey,
    },
    /// A part of an upload in progress.
    Part {
        /// The upload.
        upload: UploadId,
        /// Its number.
        number: u16,
    },
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingIn {
    /// The objects of all buckets.
    Objects,
    /// The objects of one bucket.
    Bucket(BucketId),
    /// The parts of all uploads.
    Parts,
    /// The parts of one upload.
    Upload(UploadId),
}

impl PendingIn {
    fn range(self) -> Range {
        match self {
            Self::Objects => key::pending_objects(),
            Self::Bucket(bucket) => Space::pending(bucket).all(),
            Self::Parts => key::pending_parts(),
            Self::Upload(id) => key::pending_parts_of(id, PART_NUMBER_MAX),
        }
    }
}

impl Catalog {
    /// Resolves when something was written that is not durable since it last resolved. For one
    /// waiter, which then looks at [`pending`](Self::pending); cancelling it loses nothing.
    pub async fn pending_marked(&self) {
        self.pending_marked.notified().await;
    }

    /// What is not durable, behind `after`, at most `limit` and [`PAGE_MAX`]. What changes
    /// meanwhile may be left out; fewer than `limit` are no end, none are.
    pub async fn pending(
        &self,
        among: PendingIn,
        after: Option<&Pending>,
        limit: usize,
    ) -> Result<Vec<Pending>, CatalogError> {
        let (first, end) = among.range();
        let mut start = after.map_or(first, |pending| key::next(&pending.mark.0));
        loop {
            let marks = self.store.scan(&start, &end, limit.min(PAGE_MAX)).await?;
            let Some((last, _)) = marks.last() else { return Ok(Vec::new()) };
            start = key::next(last);
            let mut found = Vec::with_capacity(marks.len());
            for mark in marks {
                found.extend(self.marked(mark).await?);
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
    }

    /// The object under `key`, if it is not durable.
    pub async fn pending_object(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
    ) -> Result<Option<Pending>, CatalogError> {
        let mark_key = Space::pending(bucket.id).entry(key, &[]);
        match self.store.get(&mark_key).await? {
            Some(mark) => self.marked((mark_key, mark)).await,
            None => Ok(None),
        }
    }

    /// What a mark stands beside; `None` when that has changed since the mark was read.
    async fn marked(&self, mark: (Bytes, Bytes)) -> Result<Option<Pending>, CatalogError> {
        const DAMAGED: MetaError = MetaError::Damaged("mark's key");
        if let Some((upload, number)) = key::parse_pending_part(&mark.0) {
            let row_key = key::part(upload, number);
            let Some(row) = self.store.get(&row_key).await? else { return Ok(None) };
            let part = row::decode_part(&row_key, &row)?;
            let of = PendingOf::Part { upload, number };
            let is_pending = part.durability == Durability::Memory;
            let pending = Pending { of, extents: part.extents, row: (row_key, row), mark };
            return Ok(is_pending.then_some(pending));
        }
        let (bucket, key) = key::parse_pending_object(&mark.0).ok_or(DAMAGED)?;
        let row_key = key::object(bucket, &key);
        let Some(row) = self.store.get(&row_key).await? else { return Ok(None) };
        let object = row::decode_object(&row)?.object;
        let of = PendingOf::Object { bucket, key: key.parse().map_err(|_| DAMAGED)? };
        let is_pending = object.durability == Durability::Memory;
        let pending = Pending { of, extents: object.extents, row: (row_key, row), mark };
        Ok(is_pending.then_some(pending))
    }

    /// Notes that the bytes are durable, and gives up what they replaced. `false` when it is not
    /// what it was when it was read: then there is nothing to note.
    pub async fn settle(&self, pending: &Pending) -> Result<bool, CatalogError> {
        let (row_key, row) = &pending.row;
        let _turn = self.turns.wait(row_key).await;
        let mut batch = pending.batch();
        let settled = match pending.of {
            PendingOf::Part { .. } => {
                let mut part = row::decode_part(row_key, row)?;
                part.durability = Durability::Disk;
                row::encode_part(part)
            }
            PendingOf::Object { .. } => {
                let mut stored = row::decode_object(row)?;
                stored.object.durability = Durability::Disk;
                if let Some((_, replaced)) = row::decode_pending(&pending.mark.1)? {
                    disown(&mut batch, &replaced.object.extents, replaced.owner, &[]);
                }
                row::encode_object(stored.object, stored.owner)
            }
        };
        batch.put(row_key.clone(), settled);
        self.committed(batch).await
    }

    /// Takes back what has lost its bytes: the durable object that it replaced is current
    /// again, or there is none; a part is gone. `false` as for [`settle`](Self::settle).
    pub async fn withdraw(&self, pending: &Pending) -> Result<bool, CatalogError> {
        let (row_key, row) = &pending.row;
        let _turn = self.turns.wait(row_key).await;
        let mut batch = pending.batch();
        let (owner, replaced) = match pending.of {
            PendingOf::Part { upload, .. } => (Owner::Upload(upload), None),
            PendingOf::Object { .. } => {
                let replaced = row::decode_pending(&pending.mark.1)?;
                (row::decode_object(row)?.owner, replaced.map(|(row, _)| row))
            }
        };
        batch.writes.push((row_key.clone(), replaced));
        disown(&mut batch, &pending.extents, owner, &[]);
        let Some(tenant) = self.owner_of(pending).await? else { return Ok(false) };
        self.committed_for(Payer::Anyway(tenant), batch).await
    }
}

impl Pending {
    /// Requires that all is as it was read, and removes the mark.
    fn batch(&self) -> Batch {
        let mut batch = Batch { frees_space: true, ..Batch::default() };
        for (key, value) in [&self.row, &self.mark] {
            batch.expect(key.clone(), Some(value.clone()));
        }
        batch.delete(self.mark.0.clone());
        batch
    }
}
