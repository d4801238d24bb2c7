//! Objects: read, publish, copy, delete.

use bytes::Bytes;
use keyway_proto::{Durability, ObjectKey, VersionId};

use super::{ATTEMPTS_MAX, Catalog, CatalogError, WriteCondition, require_bucket};
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
    /// must be as durable as it says, and never published under another key or version. Publishing the very
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
        let (version, extents) = (object.version, object.extents.clone());
        let durability = object.durability;
        let row = row::encode_object(object, owner);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id);
            let current = self.current(&row_key, &condition).await?;
            if current.version() == Some(version) {
                // A caller that never learnt the outcome meets its own object.
                return Ok(());
            }
            replace(&mut batch, &row_key, current, Some((row.clone(), durability)), &[])?;
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
    /// these extents, [`CatalogError::NotDurable`] when it is in memory alone: it could go, and
    /// the copy would stay.
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
        let object = Object { durability: Durability::Disk, ..object };
        let row = row::encode_object(object, owner);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let found = self.store.get(&source_key).await?.ok_or(CatalogError::NoSuchKey)?;
            let standing = row::decode_object(&found)?.object;
            if standing.extents != extents {
                return Err(CatalogError::NoSuchKey);
            }
            if standing.durability == Durability::Memory {
                return Err(CatalogError::NotDurable);
            }
            let mut batch = Batch::default();
            require_bucket(&mut batch, target.0.id);
            batch.expect(source_key.clone(), Some(found));
            let current = self.current(&row_key, &condition).await?;
            let new = (row.clone(), Durability::Disk);
            replace(&mut batch, &row_key, current, Some(new), &extents)?;
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
            if current.row.is_none() {
                return Ok(false);
            }
            let mut batch = Batch { frees_space: true, ..Batch::default() };
            replace(&mut batch, &row_key, current, None, &[])?;
            if self.committed(batch).await? {
                return Ok(true);
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// What stands under the key, if the condition allows to replace it.
    pub(super) async fn current(
        &self,
        row_key: &Bytes,
        condition: &WriteCondition,
    ) -> Result<Current, CatalogError> {
        let mut current = Current { row: None, mark: None };
        if let Some(row) = self.store.get(row_key).await? {
            let stored = row::decode_object(&row)?;
            if stored.object.durability == Durability::Memory {
                current.mark = self.store.get(&key::pending_object(row_key)).await?;
            }
            current.row = Some((row, stored));
        }
        match (condition, &current.row) {
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

/// What stands under a key, as it was read.
pub(super) struct Current {
    /// The object's row, and what it says.
    row: Option<(Bytes, StoredObject)>,
    /// The mark beside an object that is in memory alone.
    mark: Option<Bytes>,
}

impl Current {
    fn version(&self) -> Option<VersionId> {
        self.row.as_ref().map(|(_, stored)| stored.object.version)
    }
}

/// Replaces what was seen by another object or by none, and gives up the chunks that `kept` does
/// not name. Where the other one is in memory alone, the last durable one is held back.
pub(super) fn replace(
    batch: &mut Batch,
    row_key: &Bytes,
    current: Current,
    new: Option<(Bytes, Durability)>,
    kept: &[Extent],
) -> Result<(), MetaError> {
    let Current { row, mark } = current;
    let (new, durability) = new.unzip();
    let is_pending = durability == Some(Durability::Memory);
    let mark_key = key::pending_object(row_key);
    batch.expect(row_key.clone(), row.as_ref().map(|(seen, _)| seen.clone()));
    batch.writes.push((row_key.clone(), new));
    let mut durable = None;
    if let Some((seen, stored)) = row {
        if stored.object.durability == Durability::Disk {
            durable = Some((seen, stored));
        } else {
            batch.expect(mark_key.clone(), mark.clone());
            disown(batch, &stored.object.extents, stored.owner, kept);
            if let Some(mark) = mark {
                batch.delete(mark_key.clone());
                durable = row::decode_pending(&mark)?;
            }
        }
    }
    match durable {
        _ if is_pending => {
            batch.put(mark_key, row::encode_pending(durable.map(|(seen, _)| seen)));
        }
        Some((_, stored)) => disown(batch, &stored.object.extents, stored.owner, kept),
        None => {}
    }
    Ok(())
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
