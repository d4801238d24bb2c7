//! What stands under a key, as a write finds it, and what becomes of it.
//!
//! **Where versions are.** The current object of a key has the key's one row among the objects, so
//! that reading and listing what is current costs the same whether a bucket keeps versions or not.
//! All that is not current, delete markers among them, stands among the versions, each key's newest
//! first. Where a key has no current object, the newest of its versions, if it has any, is a delete
//! marker.
//!
//! **Ids order versions.** An id begins with its time; one that would not sort behind all others of
//! its key is moved there, so that the order of a key's versions is that of their commits, whatever
//! clocks say.
//!
//! **The null version** is the one that clients know by no id. It may be current or not; where it
//! is not, a row of its own says which of the versions it is.

use bytes::Bytes;
use keyway_proto::{BucketId, Durability, ObjectKey, VersionId};

use super::{Catalog, CatalogError, WriteCondition};
use crate::key::{self, Owner, Space};
use crate::record::{DeleteMarker, Extent, Object, Versioning};
use crate::row::{self, Kind, StoredObject};
use crate::store::{Batch, MetaError};

/// What a write puts in the place of what is current.
pub(super) enum New {
    /// Nothing, in a bucket that keeps no versions.
    Nothing,
    /// An object, under the owner of its chunks.
    Object(Box<Object>, Owner),
    /// That there is none, in a bucket that keeps versions.
    Marker(DeleteMarker),
}

/// What stands under a key, as it was read.
pub(super) struct Current {
    at: Place,
    versioning: Versioning,
    /// The current object's row, and what it says.
    row: Option<(Bytes, StoredObject)>,
    /// The mark beside an object that is in memory alone.
    mark: Option<Bytes>,
    /// The newest of the other versions; read where there is no current object.
    newest: Option<(Bytes, Bytes)>,
    /// The null version, where it is not current; read where a write is to replace it.
    null: Option<Shelved>,
}

/// A bucket's key.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
}

impl Place {
    pub(super) fn new(bucket: BucketId, key: &ObjectKey) -> Self {
        Self { bucket, key: key.clone() }
    }

    /// The current object's row.
    pub(super) fn object(&self) -> Bytes {
        key::object(self.bucket, &self.key)
    }

    /// The row of a version that is not current.
    pub(super) fn version(&self, version: VersionId) -> Bytes {
        Space::versions(self.bucket).version(&self.key, version)
    }

    /// The row that says which version is the null version.
    pub(super) fn null(&self) -> Bytes {
        Space::null_versions(self.bucket).entry(&self.key, &[])
    }
}

/// The null version among those that are not current.
pub(super) struct Shelved {
    /// Which one it is.
    pub(super) version: VersionId,
    /// Its row.
    pub(super) row: Bytes,
}

impl Catalog {
    /// What stands under the key, if the condition allows to replace it.
    pub(super) async fn current(
        &self,
        at: &Place,
        versioning: Versioning,
        condition: &WriteCondition,
    ) -> Result<Current, CatalogError> {
        let row_key = at.object();
        let (row, mark, newest, null) = (None, None, None, None);
        let mut current = Current { at: at.clone(), versioning, row, mark, newest, null };
        if let Some(row) = self.store.get(&row_key).await? {
            let stored = row::decode_object(&row)?;
            if stored.object.durability == Durability::Memory {
                current.mark = self.store.get(&key::pending_object(&row_key)).await?;
            }
            current.row = Some((row, stored));
        }
        condition.check(current.object())?;
        if versioning != Versioning::Unversioned && current.row.is_none() {
            current.newest = self.newest(at, 1).await?.pop();
        }
        let null_is_current = current.object().is_some_and(|object| !object.named);
        if versioning == Versioning::Suspended && !null_is_current {
            current.null = self.shelved_null(at).await?;
        }
        Ok(current)
    }

    /// The newest versions that are not current, and their rows.
    pub(super) async fn newest(
        &self,
        at: &Place,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        let (start, end) = Space::versions(at.bucket).of(&at.key);
        self.store.scan(&start, &end, limit).await
    }

    /// The null version, where it is not current.
    pub(super) async fn shelved_null(&self, at: &Place) -> Result<Option<Shelved>, MetaError> {
        let Some(index) = self.store.get(&at.null()).await? else { return Ok(None) };
        let version = row::decode_version_id(&index)?;
        let row = self.store.get(&at.version(version)).await?;
        // Gone since: the commit that depends on it will not hold, and it is read again.
        Ok(row.map(|row| Shelved { version, row }))
    }

    /// Whether the bucket keeps versions, as it stands now: asked when a write that believed
    /// otherwise was refused.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchBucket`].
    pub(super) async fn versioning(&self, bucket: BucketId) -> Result<Versioning, CatalogError> {
        match self.store.get(&key::bucket_alive(bucket)).await? {
            Some(row) => Ok(row::decode_alive(&row)?),
            None => Err(CatalogError::NoSuchBucket),
        }
    }
}

impl WriteCondition {
    /// Whether `object` may be replaced.
    pub(super) fn check(&self, object: Option<&Object>) -> Result<(), CatalogError> {
        match (self, object) {
            (Self::None, _) | (Self::Absent, None) => Ok(()),
            (Self::Absent, Some(_)) => Err(CatalogError::PreconditionFailed),
            (Self::VersionIs(version), object)
                if object.is_some_and(|object| object.version == *version) =>
            {
                Ok(())
            }
            (Self::VersionIs(_), _) => Err(CatalogError::PreconditionFailed),
            (Self::EtagIs(_), None) => Err(CatalogError::NoSuchKey),
            (Self::EtagIs(etag), Some(object)) if etag == "*" || *etag == object.etag => Ok(()),
            (Self::EtagIs(_), Some(_)) => Err(CatalogError::PreconditionFailed),
        }
    }
}

impl Current {
    pub(super) fn object(&self) -> Option<&Object> {
        self.row.as_ref().map(|(_, stored)| &stored.object)
    }

    /// Whether it is what was put as `version`: [`place`](Self::place) may have moved the id.
    pub(super) fn is(&self, version: VersionId) -> bool {
        self.object().is_some_and(|object| moved(version, ms(object.version)) == object.version)
    }

    /// Whether what replaces it is known by its id.
    pub(super) fn names_versions(&self) -> bool {
        self.versioning == Versioning::Enabled
    }

    /// The id of what replaces it: as proposed, or as much later as puts it behind the others.
    pub(super) fn place(&self, proposed: VersionId) -> Result<VersionId, MetaError> {
        let last = match (&self.row, &self.newest) {
            _ if self.versioning == Versioning::Unversioned => None,
            (Some((_, stored)), _) => Some(stored.object.version),
            (None, Some((_, row))) => Some(row::decode_kind(row)?.version()),
            (None, None) => None,
        };
        Ok(match last {
            Some(last) if ms(proposed) <= ms(last) => moved(proposed, ms(last) + 1),
            _ => proposed,
        })
    }

    /// Replaces what was seen, and gives up the chunks that `kept` does not name. A bucket that
    /// keeps versions keeps it as one of them.
    pub(super) fn replace(
        self,
        batch: &mut Batch,
        new: New,
        kept: &[Extent],
    ) -> Result<(), MetaError> {
        if self.versioning == Versioning::Unversioned {
            return self.overwrite(batch, new, kept);
        }
        let row_key = self.at.object();
        batch.expect(row_key.clone(), self.row.as_ref().map(|(seen, _)| seen.clone()));
        match &self.row {
            Some((_, stored)) if !stored.object.named && !self.names_versions() => {
                disown(batch, &stored.object.extents, stored.owner, kept);
            }
            Some((seen, stored)) => {
                let (version, named) = (stored.object.version, stored.object.named);
                shelve(batch, &self.at, seen.clone(), version, named);
            }
            None => expect_newest(batch, &self.at, self.newest.as_slice(), 1),
        }
        if !self.names_versions() && self.object().is_none_or(|object| object.named) {
            match &self.null {
                Some(null) => {
                    let row_key = self.at.version(null.version);
                    batch.expect(row_key.clone(), Some(null.row.clone()));
                    batch.delete(row_key);
                    take_index(batch, &self.at, null.version);
                    disown_version(batch, &null.row, kept)?;
                }
                None => batch.expect(self.at.null(), None),
            }
        }
        match new {
            New::Object(object, owner) => batch.put(row_key, row::encode_object(*object, owner)),
            New::Nothing => batch.delete(row_key),
            New::Marker(marker) => {
                batch.delete(row_key);
                let row = row::encode_marker(&marker);
                shelve(batch, &self.at, row, marker.version, marker.named);
            }
        }
        Ok(())
    }

    /// The same where nothing is kept. Where what was seen is in memory alone, the last durable
    /// object is held back. What puts an object in memory alone there gives up nothing durable, so
    /// the commit need not be more durable than the object.
    fn overwrite(self, batch: &mut Batch, new: New, kept: &[Extent]) -> Result<(), MetaError> {
        let row_key = self.at.object();
        let (new, durability) = match new {
            New::Object(object, owner) => {
                let durability = object.durability;
                (Some(row::encode_object(*object, owner)), durability)
            }
            New::Nothing | New::Marker(_) => (None, Durability::Disk),
        };
        let mark_key = key::pending_object(&row_key);
        batch.expect(row_key.clone(), self.row.as_ref().map(|(seen, _)| seen.clone()));
        batch.writes.push((row_key, new));
        let mut durable = None;
        if let Some((seen, stored)) = self.row {
            if stored.object.durability == Durability::Disk {
                durable = Some((seen, stored));
            } else {
                batch.expect(mark_key.clone(), self.mark.clone());
                disown(batch, &stored.object.extents, stored.owner, kept);
                if let Some(mark) = self.mark {
                    batch.delete(mark_key.clone());
                    durable = row::decode_pending(&mark)?;
                }
            }
        }
        match durable {
            _ if durability == Durability::Memory => {
                batch.durability = Durability::Memory;
                batch.put(mark_key, row::encode_pending(durable.map(|(seen, _)| seen)));
            }
            Some((_, stored)) => disown(batch, &stored.object.extents, stored.owner, kept),
            None => {}
        }
        Ok(())
    }
}

/// Puts a row among the versions that are not current.
pub(super) fn shelve(batch: &mut Batch, at: &Place, row: Bytes, version: VersionId, named: bool) {
    batch.put(at.version(version), row);
    if !named {
        batch.put(at.null(), row::encode_version_id(version));
    }
}

/// Requires that this version is the null version among those that are not current, and forgets
/// that it is.
pub(super) fn take_index(batch: &mut Batch, at: &Place, version: VersionId) {
    batch.expect(at.null(), Some(row::encode_version_id(version)));
    batch.delete(at.null());
}

/// Requires that these are the key's newest versions that are not current, of which `limit` were
/// asked for.
pub(super) fn expect_newest(batch: &mut Batch, at: &Place, seen: &[(Bytes, Bytes)], limit: usize) {
    let (mut gap, end) = Space::versions(at.bucket).of(&at.key);
    for (row_key, row) in seen {
        if gap < *row_key {
            batch.expect_empty(gap, row_key.clone());
        }
        batch.expect(row_key.clone(), Some(row.clone()));
        gap = key::next(row_key);
    }
    if seen.len() < limit {
        batch.expect_empty(gap, end);
    }
}

/// Gives up the chunks of a version whose row goes.
pub(super) fn disown_version(
    batch: &mut Batch,
    row: &Bytes,
    kept: &[Extent],
) -> Result<(), MetaError> {
    if let Kind::Object { .. } = row::decode_kind(row)? {
        let stored = row::decode_object(row)?;
        disown(batch, &stored.object.extents, stored.owner, kept);
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

/// Milliseconds since 1970, as the id has them.
fn ms(version: VersionId) -> u64 {
    let id = version.to_bytes();
    id[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte))
}

/// The same id at another time.
fn moved(version: VersionId, ms: u64) -> VersionId {
    let mut random = [0; 10];
    random.copy_from_slice(&version.to_bytes()[6..]);
    VersionId::new(ms, random)
}
