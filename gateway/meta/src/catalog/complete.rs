//! Completing an upload: one commit, however many parts.

use std::convert::Infallible;

use bytes::Bytes;
use keyway_proto::checksum::Hasher;
use keyway_proto::{BucketId, Checksum, ChecksumKind, Durability, ObjectKey, UploadId, VersionId};

use super::assemble::{assemble, choose};
use super::current::{New, Place, disown};
use super::object::durable_enough;
use super::outbox::{Change, Site};
use super::usage::Payer;
use super::{
    ATTEMPTS_MAX, Catalog, CatalogError, NamedPart, PAGE_MAX, WriteCondition, require_bucket,
};
use crate::key::{self, Owner};
use crate::record::{Object, Part, Retention, StoredBy, UnixMs, Upload};
use crate::row::{self, Completion};
use crate::store::{Batch, MetaError};

/// What completes an upload.
#[derive(Clone, Debug)]
pub struct Completing<'a> {
    /// The parts, in order.
    pub parts: &'a [NamedPart],
    /// What the client gave for the whole. It must follow from the parts, and be of the upload's
    /// algorithm where that has one.
    pub checksum: Option<Checksum>,
    /// What must hold of the object that is replaced.
    pub condition: WriteCondition,
    /// What the object must survive at least: of parts in memory alone it is no more than that.
    pub durability: Durability,
    /// What keeps the version, unless its upload was begun with something else.
    pub retention: Option<Retention>,
    /// The time.
    pub now: UnixMs,
    /// Whose the object is from then on, as [`Object::stored_by`], whoever stored the parts.
    pub stored_by: Option<StoredBy>,
}

impl Catalog {
    /// Publishes the object made of these parts, and ends the upload. Completing again with
    /// the same parts answers with the object made the first time, as long as it is there.
    ///
    /// # Errors
    /// [`CatalogError::InvalidPart`] with number 0 when no part is named,
    /// [`CatalogError::NotDurable`]; [`CatalogError::QuotaExceeded`] of a user who has no room for
    /// parts that another one stored.
    pub async fn complete_upload<'a>(
        &self,
        site: impl Into<Site<'a>>,
        key: &ObjectKey,
        id: UploadId,
        completing: Completing<'_>,
    ) -> Result<Object, CatalogError> {
        let accept = |_: &Upload, _: &[&Part]| Ok(());
        let made = self.complete_upload_if(site, key, id, completing, accept).await?;
        Ok(made.unwrap_or_else(|never: Infallible| match never {}))
    }

    /// As [`complete_upload`](Self::complete_upload), if the caller accepts the upload and the parts
    /// chosen: they are those of the commit. What was completed before was accepted before. The
    /// inner error is the caller's.
    ///
    /// # Errors
    /// As [`complete_upload`](Self::complete_upload).
    pub async fn complete_upload_if<'a, E>(
        &self,
        site: impl Into<Site<'a>>,
        key: &ObjectKey,
        id: UploadId,
        completing: Completing<'_>,
        accept: impl Fn(&Upload, &[&Part]) -> Result<(), E>,
    ) -> Result<Result<Object, E>, CatalogError> {
        let site = site.into();
        let bucket = site.bucket;
        let Completing { parts, checksum, condition, durability, retention, now, stored_by } =
            completing;
        let at = Place::new(bucket.id, key);
        let mut versioning = bucket.settings.versioning;
        let upload_key = key::upload(bucket.id, key, id);
        let parts_digest = digest(bucket.id, key, parts);
        let proposed = version(id, now);
        let _turn = self.turns.wait(&at.object()).await;
        for _ in 0..ATTEMPTS_MAX {
            let Some(upload_row) = self.store.get(&upload_key).await? else {
                return self.completed_earlier(&at, id, &parts_digest).await.map(Ok);
            };
            let upload = row::decode_upload(id, key.clone(), &upload_row)?;
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id, versioning);
            batch.expect(upload_key.clone(), Some(upload_row));
            batch.delete(upload_key.clone());
            let stored = self.take_parts(&mut batch, id).await?;
            let chosen = choose(&stored, parts)?;
            if let Err(refused) = accept(&upload, &chosen) {
                return Ok(Err(refused));
            }
            let mut object = assemble(upload, &chosen, checksum, proposed, now)?;
            object.stored_by.clone_from(&stored_by);
            let lock = &mut object.headers.lock;
            lock.retention = lock.retention.or(retention);
            if object.durability < durability {
                return Err(CatalogError::NotDurable);
            }
            durable_enough(&object, versioning, site)?;
            let current = self.current(&at, versioning, &condition).await?;
            (object.named, object.version) = (current.names_versions(), current.place(proposed)?);
            self.tell(&mut batch, site, key, Change::Published(&object)).await?;
            let new = New::Object(Box::new(object.clone()), Owner::Upload(id));
            current.replace(&mut batch, new, &[])?;
            for part in &stored {
                if parts.binary_search_by_key(&part.number, |named| named.number).is_err() {
                    disown(&mut batch, &part.extents, Owner::Upload(id), &[]);
                    // A durable part must not come back without its chunks.
                    batch.durability = batch.durability.max(part.durability);
                }
            }
            let parts_digest = parts_digest.clone();
            let completion = Completion { version: object.version, parts_digest };
            batch.put(key::completed(id), row::encode_completion(&completion));
            batch.put(key::completed_at(now.0, id), Bytes::new());
            // Its parts are counted: it takes no more than they do, but for somebody else's.
            if self.committed_for(Payer::UserWithin(bucket.tenant), batch).await? {
                return Ok(Ok(object));
            }
            versioning = self.versioning(bucket.id).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// The object that the same completion made before.
    async fn completed_earlier(
        &self,
        at: &Place,
        id: UploadId,
        parts_digest: &Bytes,
    ) -> Result<Object, CatalogError> {
        let row = self.store.get(&key::completed(id)).await?.ok_or(CatalogError::NoSuchUpload)?;
        let completion = row::decode_completion(&row)?;
        if completion.parts_digest != parts_digest {
            return Err(CatalogError::NoSuchUpload);
        }
        self.by_id(at, completion.version).await?.ok_or(CatalogError::NoSuchUpload)
    }

    /// Forgets what became of uploads completed before `before`, at most `limit` of them and
    /// [`PAGE_MAX`]; answers how many.
    pub async fn forget_completions(
        &self,
        before: UnixMs,
        limit: usize,
    ) -> Result<usize, CatalogError> {
        let (start, end) = key::completed_before(before.0);
        let rows = self.store.scan(&start, &end, limit.min(PAGE_MAX)).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let mut batch = Batch { frees_space: true, ..Batch::default() };
        let count = rows.len();
        for (row_key, _) in rows {
            let id = key::completed_upload(&row_key).ok_or(MetaError::Damaged("completion key"))?;
            batch.delete(key::completed(id));
            batch.delete(row_key);
        }
        self.store.commit(batch).await?;
        Ok(count)
    }
}

/// The version that completing makes: `now`, and the random part of the upload's id. An
/// upload completes once, so no other version is like it.
fn version(id: UploadId, now: UnixMs) -> VersionId {
    let mut random = [0; 10];
    random.copy_from_slice(&id.to_bytes()[6..]);
    VersionId::new(now.0, random)
}

/// Of bucket, key and named parts.
fn digest(bucket: BucketId, key: &str, parts: &[NamedPart]) -> Bytes {
    let mut hasher = Hasher::new(ChecksumKind::Sha256);
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    field(&bucket.0.to_be_bytes());
    field(key.as_bytes());
    for part in parts {
        field(&part.number.to_be_bytes());
        field(part.etag.as_bytes());
    }
    Bytes::copy_from_slice(hasher.finish().value())
}

#[cfg(test)]
mod tests {
    //! Goal: who completes an upload may refuse it by all of its parts, and a repeat is answered as
    //! the first time. Method: more parts than a page has.
    #![allow(clippy::unwrap_used, reason = "test code")]

    use std::sync::Arc;

    use keyway_proto::TenantId;
    use keyway_proto::unit::PART_BYTES_MIN;

    use super::*;
    use crate::record::{BucketSettings, ObjectHeaders};
    use crate::store::MemoryStore;

    const PARTS: u16 = 1001;

    #[tokio::test]
    async fn an_upload_is_accepted_by_all_of_its_parts_and_once() {
        let catalog = Catalog::new(Arc::new(MemoryStore::new()));
        let (tenant, settings) = (TenantId::ROOT, BucketSettings::default());
        let name = "bucket".parse().unwrap();
        let bucket = catalog.create_bucket(tenant, &name, settings, UnixMs(1)).await.unwrap();
        let (id, key): (_, ObjectKey) = (UploadId::new(5, [7; 10]), "k".parse().unwrap());
        let headers = ObjectHeaders::default();
        let upload = Upload { id, key: key.clone(), initiated: UnixMs(5), headers, checksum: None };
        catalog.create_upload(&bucket, upload).await.unwrap();
        for number in 1..=PARTS {
            let part = Part {
                number,
                size: PART_BYTES_MIN,
                etag: format!("{number:032x}"),
                modified: UnixMs(6),
                checksums: Vec::new(),
                extents: Vec::new(),
                durability: Durability::Disk,
                stored_by: None,
            };
            catalog.publish_part(&bucket, &key, id, part).await.unwrap();
        }
        let named = |number| NamedPart { number, etag: format!("{number:032x}"), checksum: None };
        let named: Vec<_> = (1..=PARTS).map(named).collect();
        let complete = async |expected: u64| {
            let completing = Completing {
                parts: &named,
                checksum: None,
                condition: WriteCondition::None,
                durability: Durability::Disk,
                retention: None,
                now: UnixMs(7),
                stored_by: None,
            };
            let accept = |_: &Upload, parts: &[&Part]| {
                let size: u64 = parts.iter().map(|part| part.size).sum();
                if size == expected { Ok(()) } else { Err(size) }
            };
            catalog.complete_upload_if(&bucket, &key, id, completing, accept).await.unwrap()
        };
        let size = u64::from(PARTS) * PART_BYTES_MIN;
        assert_eq!(complete(1).await, Err(size));
        assert!(catalog.upload(&bucket, &key, id).await.is_ok(), "a refusal changes nothing");
        let object = complete(size).await.unwrap();
        assert_eq!((object.size, object.parts.len()), (size, usize::from(PARTS)));
        assert_eq!(complete(size).await, Ok(object));
    }
}
