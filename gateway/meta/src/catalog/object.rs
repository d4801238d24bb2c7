//! Objects: read, publish, copy.

use keyway_proto::{Durability, ObjectKey, VersionId};

use super::current::{New, Place, own_new};
use super::outbox::{Change, Site};
use super::usage::Payer;
use super::{ATTEMPTS_MAX, Catalog, CatalogError, WriteCondition, require_bucket};
use crate::key::{self, Owner};
use crate::record::{Bucket, Extent, Object, VersionName, Versioning};
use crate::row;
use crate::store::{Batch, MetaError};

/// An object to copy from.
#[derive(Clone, Copy, Debug)]
pub struct CopyFrom<'a> {
    /// Its bucket.
    pub bucket: &'a Bucket,
    /// Its key.
    pub key: &'a ObjectKey,
    /// The version; the current object without it.
    pub version: Option<VersionName>,
}

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
    /// same object again changes nothing. Whether it gets a name, and which, is the bucket's to
    /// say: the answer is its name.
    ///
    /// Dropping the future leaves open whether the object is published.
    ///
    /// # Errors
    /// After [`MetaError::Engine`] it is unknown whether the object was published: its chunks
    /// must be left to the sweeper. After any other error it was not, and they may be released.
    /// [`CatalogError::NotDurable`] for an object in memory alone, in a bucket that keeps versions
    /// or whose changes are told;
    /// [`CatalogError::QuotaExceeded`].
    pub async fn publish<'a>(
        &self,
        site: impl Into<Site<'a>>,
        key: &ObjectKey,
        object: Object,
        condition: WriteCondition,
    ) -> Result<VersionName, CatalogError> {
        let site = site.into();
        let bucket = site.bucket;
        let at = Place::new(bucket.id, key);
        let mut versioning = bucket.settings.versioning;
        let _turn = self.turns.wait(&at.object()).await;
        for _ in 0..ATTEMPTS_MAX {
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id, versioning);
            let current = self.current(&at, versioning, &condition).await?;
            if current.is(object.version) {
                // A caller that never learnt the outcome meets its own object.
                return Ok(current.object().map_or(VersionName::Null, Object::name));
            }
            durable_enough(&object, versioning, site)?;
            let (named, version) = (current.names_versions(), current.place(object.version)?);
            let owner = Owner::Version(version);
            let placed = Object { named, version, ..object.clone() };
            let name = placed.name();
            self.tell(&mut batch, site, key, Change::Published(&placed)).await?;
            own_new(&mut batch, &object.extents, owner);
            current.replace(&mut batch, New::Object(Box::new(placed), owner), &[])?;
            if self.committed_for(Payer::Within(bucket.tenant), batch).await? {
                return Ok(name);
            }
            versioning = self.versioning(bucket.id).await?;
            self.not_swept(&object.extents).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// Publishes an object that shares `source`'s chunks under `key`; `object` carries the
    /// same extents and a version of its own. Source and target may be the same.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchKey`] when the source is gone or is no longer the object with
    /// these extents, [`CatalogError::NotDurable`] when it is in memory alone: it could go, and
    /// the copy would stay. Those of [`read`](Self::read) for a source that has a version.
    pub async fn publish_copy<'a>(
        &self,
        source: CopyFrom<'_>,
        target: (impl Into<Site<'a>>, &ObjectKey),
        object: Object,
        condition: WriteCondition,
    ) -> Result<VersionName, CatalogError> {
        let (site, key) = (target.0.into(), target.1);
        let bucket = site.bucket;
        let at = Place::new(bucket.id, key);
        let mut versioning = bucket.settings.versioning;
        let object = Object { durability: Durability::Disk, ..object };
        let _turn = self.turns.wait(&at.object()).await;
        for _ in 0..ATTEMPTS_MAX {
            let (found_key, found) = self.source(source).await?;
            let standing = row::decode_object(&found)?.object;
            if standing.extents != object.extents {
                return Err(CatalogError::NoSuchKey);
            }
            if standing.durability == Durability::Memory {
                return Err(CatalogError::NotDurable);
            }
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id, versioning);
            batch.expect(found_key, Some(found));
            let current = self.current(&at, versioning, &condition).await?;
            let (named, version) = (current.names_versions(), current.place(object.version)?);
            let owner = Owner::Version(version);
            let placed = Object { named, version, ..object.clone() };
            let name = placed.name();
            self.tell(&mut batch, site, key, Change::Published(&placed)).await?;
            current.replace(&mut batch, New::Object(Box::new(placed), owner), &object.extents)?;
            for extent in &object.extents {
                let owned = key::chunk_owner(extent.chunk.id, owner);
                batch.put(owned, row::encode_extent(extent));
            }
            if self.committed_for(Payer::Within(bucket.tenant), batch).await? {
                return Ok(name);
            }
            versioning = self.versioning(bucket.id).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// The row that a copy depends on.
    async fn source(
        &self,
        source: CopyFrom<'_>,
    ) -> Result<(bytes::Bytes, bytes::Bytes), CatalogError> {
        let at = Place::new(source.bucket.id, source.key);
        if let Some(name) = source.version {
            let located = self.locate(&at, name).await?.ok_or(CatalogError::NoSuchKey)?;
            return Ok((located.row_key, located.row));
        }
        let row = self.store.get(&at.object()).await?;
        Ok((at.object(), row.ok_or(CatalogError::NoSuchKey)?))
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

/// Refuses an object in memory alone where versions are kept, for a loss would have to take it back
/// from among them, and where somebody is told of it, for it must not be told what may be undone.
pub(super) fn durable_enough(
    object: &Object,
    versioning: Versioning,
    site: Site<'_>,
) -> Result<(), CatalogError> {
    match (object.durability, versioning) {
        (Durability::Disk, _) => Ok(()),
        (Durability::Memory, Versioning::Unversioned) if site.teller.is_none() => Ok(()),
        (Durability::Memory, _) => Err(CatalogError::NotDurable),
    }
}

/// The id of a version, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The id; [`Catalog::publish`] says when it is moved.
    pub version: VersionId,
    /// The time.
    pub at: crate::record::UnixMs,
}
