//! Objects: read, publish, copy, delete.

use bytes::Bytes;
use keyway_proto::ObjectKey;

use super::{ATTEMPTS_MAX, Catalog, CatalogError, Seen, WriteCondition, require_bucket};
use crate::key::{self, Owner};
use crate::record::{Bucket, Extent, Object};
use crate::row::{self, StoredObject};
use crate::store::{Batch, MetaError};

impl Catalog {
    /// The current object under `key`.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchKey`].
    pub async fn object(&self, bucket: &Bucket, key: &ObjectKey) -> Result<Object, CatalogError> {
        let row = self.store.get(&key::object(bucket.id, key)).await?;
        Ok(row::decode_object(&row.ok_or(CatalogError::NoSuchKey)?)?.object)
    }

    /// Makes `object` the current one under `key`: the one commit point of a PUT. Its chunks
    /// must be durable, and never published under another key or version. Publishing the very
    /// same object again changes nothing.
    ///
    /// Dropping the future leaves open whether the object is published.
    ///
    /// # Errors
    /// After [`MetaError::Engine`] it is unknown whether the object was published: its chunks
    /// must be left to the sweeper. After any other error it was not, and they may be released.
    pub async fn publish(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        object: Object,
        condition: WriteCondition,
    ) -> Result<(), CatalogError> {
        let row_key = key::object(bucket.id, key);
        let owner = Owner::Version(object.version);
        let extents = object.extents.clone();
        let row = row::encode_object(object, owner);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id);
            let current = self.current(&row_key, &condition).await?;
            // When a caller that never learnt the outcome publishes again, it meets its own
            // object here, and these are the same chunks.
            replace(&mut batch, &row_key, current, Some(row.clone()), &extents);
            own_new(&mut batch, &extents, owner);
            if self.committed(batch).await? {
                return Ok(());
            }
            self.bucket_stands(bucket.id).await?;
            self.not_swept(&extents).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// Publishes an object that shares `source`'s chunks under `key`; `object` carries the
    /// same extents and a version of its own. Source and target may be the same.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchKey`] when the source is gone or is no longer the object with
    /// these extents.
    pub async fn publish_copy(
        &self,
        source: (&Bucket, &ObjectKey),
        target: (&Bucket, &ObjectKey),
        object: Object,
        condition: WriteCondition,
    ) -> Result<(), CatalogError> {
        let source_key = key::object(source.0.id, source.1);
        let row_key = key::object(target.0.id, target.1);
        let owner = Owner::Version(object.version);
        let extents = object.extents.clone();
        let row = row::encode_object(object, owner);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let found = self.store.get(&source_key).await?.ok_or(CatalogError::NoSuchKey)?;
            if row::decode_object(&found)?.object.extents != extents {
                return Err(CatalogError::NoSuchKey);
            }
            let mut batch = Batch::default();
            require_bucket(&mut batch, target.0.id);
            batch.expect(source_key.clone(), Some(found));
            let current = self.current(&row_key, &condition).await?;
            replace(&mut batch, &row_key, current, Some(row.clone()), &extents);
            for extent in &extents {
                let owned = key::chunk_owner(extent.chunk.id, owner);
                batch.put(owned, row::encode_extent(extent));
            }
            if self.committed(batch).await? {
                return Ok(());
            }
            self.bucket_stands(target.0.id).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// Deletes the object under `key`. Deleting what is not there is no error (`false`),
    /// unless the condition asks for it.
    pub async fn delete(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        condition: WriteCondition,
    ) -> Result<bool, CatalogError> {
        let row_key = key::object(bucket.id, key);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let current = self.current(&row_key, &condition).await?;
            if current.is_none() {
                return Ok(false);
            }
            let mut batch = Batch { frees_space: true, ..Batch::default() };
            replace(&mut batch, &row_key, current, None, &[]);
            if self.committed(batch).await? {
                return Ok(true);
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// The current row and what it says, if the condition allows to replace it.
    pub(super) async fn current(
        &self,
        row_key: &Bytes,
        condition: &WriteCondition,
    ) -> Result<Option<(Bytes, StoredObject)>, CatalogError> {
        let row = self.store.get(row_key).await?;
        let current = match row {
            Some(row) => {
                let stored = row::decode_object(&row)?;
                Some((row, stored))
            }
            None => None,
        };
        match (condition, &current) {
            (WriteCondition::None, _) | (WriteCondition::Absent, None) => Ok(current),
            (WriteCondition::Absent, Some(_)) => Err(CatalogError::PreconditionFailed),
            (WriteCondition::EtagIs(_), None) => Err(CatalogError::NoSuchKey),
            (WriteCondition::EtagIs(etag), Some((_, stored))) => {
                if etag == "*" || *etag == stored.object.etag {
                    Ok(current)
                } else {
                    Err(CatalogError::PreconditionFailed)
                }
            }
        }
    }

    /// After a conflict: whether the sweeper has taken one of these chunks.
    pub(super) async fn not_swept(&self, extents: &[Extent]) -> Result<(), CatalogError> {
        for extent in extents {
            let queued = key::garbage(extent.chunk.id, extent.node);
            if self.store.get(&queued).await?.is_some() {
                return Err(CatalogError::Swept);
            }
        }
        Ok(())
    }
}

/// Replaces the object row that was seen, and gives up the chunks that `kept` does not name.
pub(super) fn replace(
    batch: &mut Batch,
    row_key: &Bytes,
    current: Option<(Bytes, StoredObject)>,
    row: Option<Bytes>,
    kept: &[Extent],
) {
    let (seen, stored) = current.unzip();
    let seen: Seen = (row_key.clone(), seen);
    batch.expect.push(seen);
    batch.writes.push((row_key.clone(), row));
    if let Some(StoredObject { object, owner }) = stored {
        disown(batch, &object.extents, owner, kept);
    }
}

/// Removes the owner's rows, and queues the chunks that `kept` does not name.
pub(super) fn disown(batch: &mut Batch, extents: &[Extent], owner: Owner, kept: &[Extent]) {
    let kept: std::collections::HashSet<_> = kept.iter().map(|extent| extent.chunk.id).collect();
    for extent in extents {
        batch.delete(key::chunk_owner(extent.chunk.id, owner));
        if !kept.contains(&extent.chunk.id) {
            let queued = key::garbage(extent.chunk.id, extent.node);
            batch.put(queued, row::encode_extent(extent));
        }
    }
}

/// Makes `owner` the owner of chunks that nothing named before, unless the sweeper has them.
pub(super) fn own_new(batch: &mut Batch, extents: &[Extent], owner: Owner) {
    for extent in extents {
        batch.expect(key::garbage(extent.chunk.id, extent.node), None);
        batch.put(key::chunk_owner(extent.chunk.id, owner), row::encode_extent(extent));
    }
}
