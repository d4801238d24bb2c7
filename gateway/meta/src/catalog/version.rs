//! Versions: found by their names, read, and told apart.

use bytes::Bytes;
use keyway_proto::{ObjectKey, VersionId};

use super::current::Place;
use super::outbox::{Change, Site};
use super::{ATTEMPTS_MAX, Catalog, CatalogError, require_bucket};
use crate::record::{Bucket, Object, VersionName, Versioning};
use crate::row::{self, Kind};
use crate::store::{Batch, MetaError};

/// A version's row, as it was read.
pub(super) struct Located {
    pub(super) row_key: Bytes,
    pub(super) row: Bytes,
    pub(super) kind: Kind,
    /// Whether it is the current object.
    pub(super) is_current: bool,
}

impl Located {
    pub(super) fn is_marker(&self) -> bool {
        matches!(self.kind, Kind::Marker(_))
    }
}

impl Catalog {
    /// The version of that name; the current object without one. One look-up for what is current.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchKey`] without a name, [`CatalogError::NoSuchVersion`] with one;
    /// [`CatalogError::Deleted`] and [`CatalogError::IsDeleteMarker`] where a delete marker is
    /// what there is.
    pub async fn read(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        name: Option<VersionName>,
    ) -> Result<Object, CatalogError> {
        let at = Place::new(bucket.id, key);
        let Some(name) = name else {
            return match self.store.get(&at.object()).await? {
                Some(row) => Ok(row::decode_object(&row)?.object),
                None => Err(self.why_not_there(&at, bucket.settings.versioning).await?),
            };
        };
        let found = self.locate(&at, name).await?.ok_or(CatalogError::NoSuchVersion)?;
        match found.kind {
            Kind::Object { .. } => Ok(row::decode_object(&found.row)?.object),
            Kind::Marker(marker) => Err(CatalogError::IsDeleteMarker(marker)),
        }
    }

    /// Changes what may change of a version: its tags and its lock. Answers with what it is now.
    ///
    /// # Errors
    /// As [`read`](Self::read), and those of `change`.
    pub async fn amend<'a>(
        &self,
        site: impl Into<Site<'a>>,
        key: &ObjectKey,
        name: Option<VersionName>,
        change: impl Fn(&mut Object) -> Result<(), CatalogError> + Send + Sync,
    ) -> Result<Object, CatalogError> {
        let site = site.into();
        let bucket = site.bucket;
        let at = Place::new(bucket.id, key);
        let _turn = self.turns.wait(&at.object()).await;
        for _ in 0..ATTEMPTS_MAX {
            let (row_key, row) = match name {
                None => match self.store.get(&at.object()).await? {
                    Some(row) => (at.object(), row),
                    None => {
                        return Err(self.why_not_there(&at, bucket.settings.versioning).await?);
                    }
                },
                Some(name) => {
                    let found = self.locate(&at, name).await?.ok_or(CatalogError::NoSuchVersion)?;
                    if let Kind::Marker(marker) = found.kind {
                        return Err(CatalogError::IsDeleteMarker(marker));
                    }
                    (found.row_key, found.row)
                }
            };
            let mut stored = row::decode_object(&row)?;
            change(&mut stored.object)?;
            let mut batch = Batch::default();
            self.tell(&mut batch, site, key, Change::Amended(&stored.object)).await?;
            batch.expect(row_key.clone(), Some(row));
            batch.put(row_key, row::encode_object(stored.object.clone(), stored.owner));
            if self.committed(batch).await? {
                return Ok(stored.object);
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// Where the version of that name is. One that moves while it is looked for is found.
    pub(super) async fn locate(
        &self,
        at: &Place,
        name: VersionName,
    ) -> Result<Option<Located>, CatalogError> {
        let row_key = at.object();
        let mut current = self.store.get(&row_key).await?;
        for _ in 0..ATTEMPTS_MAX {
            if let Some(row) = &current {
                let kind = row::decode_kind(row)?;
                if kind.name() == name {
                    let row = row.clone();
                    return Ok(Some(Located { row_key, row, kind, is_current: true }));
                }
            }
            if let Some(found) = self.among_versions(at, name).await? {
                return Ok(Some(found));
            }
            let again = self.store.get(&row_key).await?;
            if again == current {
                return Ok(None);
            }
            current = again;
        }
        Err(MetaError::Conflict.into())
    }

    /// The version of that name, if it is not current.
    async fn among_versions(
        &self,
        at: &Place,
        name: VersionName,
    ) -> Result<Option<Located>, CatalogError> {
        let version = match name {
            VersionName::Id(id) => id,
            VersionName::Null => match self.shelved_null(at).await? {
                Some(null) => null.version,
                None => return Ok(None),
            },
        };
        let row_key = at.version(version);
        let Some(row) = self.store.get(&row_key).await? else { return Ok(None) };
        let kind = row::decode_kind(&row)?;
        // The null version has an id too, which is not its name.
        let named_so = kind.name() == name;
        Ok(named_so.then_some(Located { row_key, row, kind, is_current: false }))
    }

    /// The version with that id, whether clients know it by it or not.
    pub(super) async fn by_id(
        &self,
        at: &Place,
        id: VersionId,
    ) -> Result<Option<Object>, CatalogError> {
        for row_key in [at.object(), at.version(id), at.object()] {
            let Some(row) = self.store.get(&row_key).await? else { continue };
            if let Kind::Object { version, .. } = row::decode_kind(&row)?
                && version == id
            {
                return Ok(Some(row::decode_object(&row)?.object));
            }
        }
        Ok(None)
    }

    /// Why there is no current object.
    async fn why_not_there(
        &self,
        at: &Place,
        versioning: Versioning,
    ) -> Result<CatalogError, CatalogError> {
        if versioning == Versioning::Unversioned {
            return Ok(CatalogError::NoSuchKey);
        }
        let Some((_, row)) = self.newest(at, 1).await?.pop() else {
            return Ok(CatalogError::NoSuchKey);
        };
        Ok(match row::decode_kind(&row)? {
            Kind::Marker(marker) => CatalogError::Deleted(marker),
            // It came just now.
            Kind::Object { .. } => CatalogError::NoSuchKey,
        })
    }

    /// Commits a batch that requires the bucket, whether it keeps versions or not; `fill` may be
    /// called again.
    pub(super) async fn commit_into(
        &self,
        bucket: &Bucket,
        fill: impl Fn(&mut Batch) + Send + Sync,
    ) -> Result<(), CatalogError> {
        let mut versioning = bucket.settings.versioning;
        for _ in 0..ATTEMPTS_MAX {
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id, versioning);
            fill(&mut batch);
            if self.committed(batch).await? {
                return Ok(());
            }
            versioning = self.versioning(bucket.id).await?;
        }
        Err(MetaError::Conflict.into())
    }
}
