//! Deleting: what is current, or one version.

use bytes::Bytes;
use keyway_proto::ObjectKey;

use super::current::{New, Place, disown_version, expect_newest, take_index};
use super::object::Stamp;
use super::outbox::{Change, Site};
use super::usage::Payer;
use super::{ATTEMPTS_MAX, Catalog, CatalogError, WriteCondition, require_bucket};
use crate::record::{DeleteMarker, ObjectLock, RetentionMode, UnixMs, VersionName, Versioning};
use crate::row::{self, Kind};
use crate::store::{Batch, MetaError};

/// What a deletion did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Whether there was something to delete.
    pub existed: bool,
    /// The version that it made or removed, in buckets that keep versions.
    pub version: Option<VersionName>,
    /// Whether that is a delete marker.
    pub marker: bool,
}

/// Who deletes a version, as far as locks ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clearance {
    /// The time.
    pub now: UnixMs,
    /// Whether governance does not hold this caller.
    pub bypass_governance: bool,
}

impl ObjectLock {
    /// Whether the version must stay.
    pub fn holds(&self, clearance: Clearance) -> bool {
        let retained = self.retention.is_some_and(|retention| {
            let bypassed =
                retention.mode == RetentionMode::Governance && clearance.bypass_governance;
            retention.until > clearance.now && !bypassed
        });
        retained || self.legal_hold
    }
}

impl Catalog {
    /// Deletes the object under `key`; in a bucket that keeps versions, by a delete marker under
    /// `stamp`. Deleting what is not there is no error, unless the condition asks for it.
    pub async fn delete<'a>(
        &self,
        site: impl Into<Site<'a>>,
        key: &ObjectKey,
        condition: WriteCondition,
        stamp: Stamp,
    ) -> Result<Deleted, CatalogError> {
        let site = site.into();
        let bucket = site.bucket;
        let at = Place::new(bucket.id, key);
        let mut versioning = bucket.settings.versioning;
        let _turn = self.turns.wait(&at.object()).await;
        for _ in 0..ATTEMPTS_MAX {
            let current = self.current(&at, versioning, &condition).await?;
            let existed = current.object().is_some();
            if !existed && versioning == Versioning::Unversioned {
                // Nothing is committed that would tell whether the bucket keeps versions by now.
                versioning = self.versioning(bucket.id).await?;
                if versioning == Versioning::Unversioned {
                    return Ok(Deleted::default());
                }
                continue;
            }
            // A marker takes space, though little; what it hides keeps its own.
            let frees_space = versioning == Versioning::Unversioned;
            let mut batch = Batch { frees_space, ..Batch::default() };
            require_bucket(&mut batch, bucket.id, versioning);
            let marker = DeleteMarker {
                version: current.place(stamp.version)?,
                named: current.names_versions(),
                modified: stamp.at,
            };
            let (new, deleted, change) = match versioning {
                Versioning::Unversioned => {
                    let deleted = Deleted { existed, ..Deleted::default() };
                    (New::Nothing, deleted, Change::Removed(None))
                }
                _ => {
                    let version = Some(marker.name());
                    let deleted = Deleted { existed, version, marker: true };
                    (New::Marker(marker), deleted, Change::Hidden(marker))
                }
            };
            self.tell(&mut batch, site, key, change).await?;
            current.replace(&mut batch, new, &[])?;
            if self.committed_for(Payer::Anyway(bucket.tenant), batch).await? {
                return Ok(deleted);
            }
            versioning = self.versioning(bucket.id).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// Removes one version for good. The one before it is current then, if it is an object.
    /// Removing what is not there is no error, unless the condition asks for it.
    ///
    /// # Errors
    /// [`CatalogError::Locked`].
    pub async fn delete_version<'a>(
        &self,
        site: impl Into<Site<'a>>,
        key: &ObjectKey,
        name: VersionName,
        condition: WriteCondition,
        clearance: Clearance,
    ) -> Result<Deleted, CatalogError> {
        let site = site.into();
        let bucket = site.bucket;
        let at = Place::new(bucket.id, key);
        let mut versioning = bucket.settings.versioning;
        let _turn = self.turns.wait(&at.object()).await;
        for _ in 0..ATTEMPTS_MAX {
            let mut batch = Batch { frees_space: true, ..Batch::default() };
            require_bucket(&mut batch, bucket.id, versioning);
            let deleted = match (versioning, name) {
                (Versioning::Unversioned, VersionName::Id(_)) => Deleted::default(),
                (Versioning::Unversioned, VersionName::Null) => {
                    let current = self.current(&at, versioning, &condition).await?;
                    let existed = current.object().is_some();
                    current.replace(&mut batch, New::Nothing, &[])?;
                    Deleted { existed, ..Deleted::default() }
                }
                _ => self.take_version(&mut batch, &at, name, &condition, clearance).await?,
            };
            let done = Deleted { version: Some(name), ..deleted };
            if deleted.existed {
                self.tell(&mut batch, site, key, Change::Removed(Some(name))).await?;
            }
            if deleted.existed && self.committed_for(Payer::Anyway(bucket.tenant), batch).await? {
                return Ok(done);
            }
            // As above: where nothing is committed, nothing tells.
            let believed = std::mem::replace(&mut versioning, self.versioning(bucket.id).await?);
            if !deleted.existed && believed == versioning {
                return Ok(done);
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// Has the batch remove the version.
    async fn take_version(
        &self,
        batch: &mut Batch,
        at: &Place,
        name: VersionName,
        condition: &WriteCondition,
        clearance: Clearance,
    ) -> Result<Deleted, CatalogError> {
        let located = self.locate(at, name).await?;
        let object = match &located {
            Some(found) if !found.is_marker() => Some(row::decode_object(&found.row)?.object),
            _ => None,
        };
        match (condition, &located) {
            (WriteCondition::VersionIs(version), Some(found)) => {
                if found.kind.version() != *version {
                    return Err(CatalogError::PreconditionFailed);
                }
            }
            _ => condition.check(object.as_ref())?,
        }
        let Some(found) = located else { return Ok(Deleted::default()) };
        if object.is_some_and(|object| object.headers.lock.holds(clearance)) {
            return Err(CatalogError::Locked);
        }
        batch.expect(found.row_key.clone(), Some(found.row.clone()));
        batch.delete(found.row_key.clone());
        disown_version(batch, &found.row, &[])?;
        if found.is_current {
            let newest = self.newest(at, 1).await?;
            expect_newest(batch, at, &newest, 1);
            promote(batch, at, newest.first())?;
        } else {
            if !found.kind.named() {
                take_index(batch, at, found.kind.version());
            }
            if self.store.get(&at.object()).await?.is_none() {
                self.uncover(batch, at, &found.row_key).await?;
            }
        }
        let marker = found.is_marker();
        Ok(Deleted { existed: true, marker, ..Deleted::default() })
    }

    /// Where there is no current object, and the delete marker that says so goes, what it hid is
    /// current.
    async fn uncover(
        &self,
        batch: &mut Batch,
        at: &Place,
        gone: &Bytes,
    ) -> Result<(), CatalogError> {
        let newest = self.newest(at, 2).await?;
        if newest.first().is_some_and(|(row_key, _)| row_key == gone) {
            batch.expect(at.object(), None);
            expect_newest(batch, at, &newest, 2);
            promote(batch, at, newest.get(1))?;
        }
        Ok(())
    }
}

/// Makes the version current, if it is an object.
fn promote(
    batch: &mut Batch,
    at: &Place,
    version: Option<&(Bytes, Bytes)>,
) -> Result<(), MetaError> {
    let Some((row_key, row)) = version else { return Ok(()) };
    if let Kind::Object { version, named } = row::decode_kind(row)? {
        batch.put(at.object(), row.clone());
        batch.delete(row_key.clone());
        if !named {
            take_index(batch, at, version);
        }
    }
    Ok(())
}
