//! Completing an upload: one commit, however many parts.

use bytes::Bytes;
use keyway_proto::checksum::Hasher;
use keyway_proto::{BucketId, Checksum, ChecksumKind, Durability, ObjectKey, UploadId, VersionId};

use super::assemble::assemble;
use super::object::{disown, replace};
use super::{
    ATTEMPTS_MAX, Catalog, CatalogError, NamedPart, PAGE_MAX, WriteCondition, require_bucket,
};
use crate::key::{self, Owner};
use crate::record::{Bucket, Object, UnixMs};
use crate::row::{self, Completion};
use crate::store::{Batch, MetaError};

impl Catalog {
    /// Publishes the object made of these parts, and ends the upload. Completing again with
    /// the same parts answers with the object made the first time, as long as it is current.
    /// `checksum` is the one that the client gave for the whole, checked where it can be. An
    /// object of parts in memory alone is that itself, where `durability` lets it.
    ///
    /// # Errors
    /// [`CatalogError::InvalidPart`] with number 0 when no part is named,
    /// [`CatalogError::NotDurable`].
    #[allow(clippy::too_many_arguments)]
    pub async fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        parts: &[NamedPart],
        checksum: Option<Checksum>,
        condition: WriteCondition,
        durability: Durability,
        now: UnixMs,
    ) -> Result<Object, CatalogError> {
        let row_key = key::object(bucket.id, key);
        let upload_key = key::upload(bucket.id, key, id);
        let parts_digest = digest(bucket.id, key, parts);
        let version = version(id, now);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let Some(upload_row) = self.store.get(&upload_key).await? else {
                return self.completed_earlier(bucket, key, id, &parts_digest).await;
            };
            let upload = row::decode_upload(id, key.clone(), &upload_row)?;
            let mut batch = Batch::default();
            require_bucket(&mut batch, bucket.id);
            batch.expect(upload_key.clone(), Some(upload_row));
            batch.delete(upload_key.clone());
            let stored = self.take_parts(&mut batch, id).await?;
            let object = assemble(upload, &stored, parts, checksum, version, now)?;
            if object.durability < durability {
                return Err(CatalogError::NotDurable);
            }
            for part in &stored {
                if parts.binary_search_by_key(&part.number, |named| named.number).is_err() {
                    disown(&mut batch, &part.extents, Owner::Upload(id), &[]);
                }
            }
            let current = self.current(&row_key, &condition).await?;
            let row = row::encode_object(object.clone(), Owner::Upload(id));
            replace(&mut batch, &row_key, current, Some((row, object.durability)), &[])?;
            let completion = Completion { version, parts_digest: parts_digest.clone() };
            batch.put(key::completed(id), row::encode_completion(&completion));
            batch.put(key::completed_at(now.0, id), Bytes::new());
            if self.committed(batch).await? {
                return Ok(object);
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// The object that the same completion made before.
    async fn completed_earlier(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        parts_digest: &Bytes,
    ) -> Result<Object, CatalogError> {
        let row = self.store.get(&key::completed(id)).await?.ok_or(CatalogError::NoSuchUpload)?;
        let completion = row::decode_completion(&row)?;
        if completion.parts_digest != parts_digest {
            return Err(CatalogError::NoSuchUpload);
        }
        match self.object(bucket, key).await {
            Ok(object) if object.version == completion.version => Ok(object),
            Ok(_) | Err(CatalogError::NoSuchKey) => Err(CatalogError::NoSuchUpload),
            Err(error) => Err(error),
        }
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
