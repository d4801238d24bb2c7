//! Multipart uploads in progress, and their parts.

use bytes::Bytes;
use keyway_proto::unit::PART_NUMBER_MAX;
use keyway_proto::{Durability, ObjectKey, TenantId, UploadId};

use super::current::{disown, own_new};
use super::usage::Payer;
use super::walk::{Found, start, walk};
use super::{ATTEMPTS_MAX, Catalog, CatalogError, ListQuery, PAGE_MAX, PartPage, UploadPage};
use crate::key::{self, Owner, Space};
use crate::record::{Bucket, Part, Upload};
use crate::row;
use crate::store::{Batch, MetaError};

impl Catalog {
    /// Begins a multipart upload.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchBucket`] when the bucket is gone.
    pub async fn create_upload(&self, bucket: &Bucket, upload: Upload) -> Result<(), CatalogError> {
        let row_key = key::upload(bucket.id, &upload.key, upload.id);
        let row = row::encode_upload(upload);
        self.commit_into(bucket, |batch| batch.put(row_key.clone(), row.clone())).await
    }

    /// The upload in progress.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchUpload`].
    pub async fn upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
    ) -> Result<Upload, CatalogError> {
        let row = self.store.get(&key::upload(bucket.id, key, id)).await?;
        Ok(row::decode_upload(id, key.clone(), &row.ok_or(CatalogError::NoSuchUpload)?)?)
    }

    /// Stores a part, in place of an earlier one with its number. Its chunks must be as durable
    /// as it says, and must never have been published before.
    ///
    /// # Errors
    /// As [`Catalog::publish`]; [`CatalogError::NoSuchUpload`] when the upload has ended.
    pub async fn publish_part(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        part: Part,
    ) -> Result<(), CatalogError> {
        let upload_key = key::upload(bucket.id, key, id);
        let row_key = key::part(id, part.number);
        let owner = Owner::Upload(id);
        let mark_key = key::pending_part(id, part.number);
        let (extents, durability) = (part.extents.clone(), part.durability);
        let row = row::encode_part(part);
        let _turn = self.turns.wait(&row_key).await;
        for _ in 0..ATTEMPTS_MAX {
            let upload = self.store.get(&upload_key).await?.ok_or(CatalogError::NoSuchUpload)?;
            let earlier = self.store.get(&row_key).await?;
            let mut batch = Batch::default();
            batch.expect(upload_key.clone(), Some(upload));
            batch.expect(row_key.clone(), earlier.clone());
            batch.durability = durability;
            if let Some(earlier) = earlier {
                let lost = row::decode_part(&row_key, &earlier)?;
                disown(&mut batch, &lost.extents, owner, &extents);
                // A durable part must not come back without its chunks.
                batch.durability = batch.durability.max(lost.durability);
            }
            own_new(&mut batch, &extents, owner);
            let mark = (durability == Durability::Memory).then(row::mark);
            batch.writes.push((mark_key.clone(), mark));
            batch.put(row_key.clone(), row.clone());
            if self.committed_for(Payer::Within(bucket.tenant), batch).await? {
                return Ok(());
            }
            self.not_swept(&extents).await?;
        }
        Err(MetaError::Conflict.into())
    }

    /// Parts with numbers after `after`, at most `limit` and [`PAGE_MAX`].
    ///
    /// # Errors
    /// [`CatalogError::NoSuchUpload`].
    pub async fn parts(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        after: u16,
        limit: usize,
    ) -> Result<PartPage, CatalogError> {
        let upload = self.store.get(&key::upload(bucket.id, key, id)).await?;
        upload.ok_or(CatalogError::NoSuchUpload)?;
        let limit = limit.min(PAGE_MAX);
        if limit == 0 || after >= PART_NUMBER_MAX {
            return Ok(PartPage::default());
        }
        let (start, end) = key::parts(id, after + 1, PART_NUMBER_MAX);
        let mut rows = self.store.scan(&start, &end, limit + 1).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let parts = rows
            .iter()
            .map(|(key, row)| row::decode_part(key, row))
            .collect::<Result<Vec<_>, _>>()?;
        let next = parts.last().filter(|_| more).map(|part| part.number);
        Ok(PartPage { parts, next })
    }

    /// Uploads in progress; `query.after` is the key marker, `after_id` the upload id marker:
    /// with it, later uploads of the marker's key are listed too.
    pub async fn uploads(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        after_id: Option<UploadId>,
    ) -> Result<UploadPage, CatalogError> {
        let limit = query.limit.min(PAGE_MAX);
        let mut page = UploadPage::default();
        if limit == 0 {
            return Ok(page);
        }
        let space = Space::uploads(bucket.id);
        let behind = after_id.map(|id| space.entry(&query.after, &id.to_bytes()));
        let start = start(space, query, behind);
        let mut found = walk(&*self.store, space, query, start, limit + 1).await?;
        let more = found.len() > limit;
        found.truncate(limit);
        for found in found {
            match found {
                Found::Row { key, row_key, row } => {
                    let id = row_key.last_chunk().ok_or(MetaError::Damaged("upload key"))?;
                    let id = UploadId::from_bytes(*id);
                    page.next = more.then(|| (key.clone(), Some(id)));
                    let key = key.parse().map_err(|_| MetaError::Damaged("upload key"))?;
                    page.uploads.push(row::decode_upload(id, key, &row)?);
                }
                Found::Group(group) => {
                    page.next = more.then(|| (group.clone(), None));
                    page.common_prefixes.push(group);
                }
            }
        }
        Ok(page)
    }

    /// Ends the upload and gives up its parts.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchUpload`].
    pub async fn abort_upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
    ) -> Result<(), CatalogError> {
        self.end_upload(bucket.tenant, key::upload(bucket.id, key, id), id).await
    }

    pub(super) async fn end_upload(
        &self,
        tenant: TenantId,
        upload_key: Bytes,
        id: UploadId,
    ) -> Result<(), CatalogError> {
        for _ in 0..ATTEMPTS_MAX {
            let upload = self.store.get(&upload_key).await?.ok_or(CatalogError::NoSuchUpload)?;
            let mut batch = Batch { frees_space: true, ..Batch::default() };
            batch.expect(upload_key.clone(), Some(upload));
            batch.delete(upload_key.clone());
            for part in self.take_parts(&mut batch, id).await? {
                disown(&mut batch, &part.extents, Owner::Upload(id), &[]);
            }
            if self.committed_for(Payer::Anyway(tenant), batch).await? {
                return Ok(());
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// All parts of the upload. The batch removes their rows, and requires that they are all
    /// there are: none was stored anew, and none came in between.
    pub(super) async fn take_parts(
        &self,
        batch: &mut Batch,
        id: UploadId,
    ) -> Result<Vec<Part>, CatalogError> {
        let (mut gap, end) = key::parts(id, 0, PART_NUMBER_MAX);
        let rows = self.store.scan(&gap, &end, usize::from(PART_NUMBER_MAX)).await?;
        let mut parts = Vec::with_capacity(rows.len());
        for (row_key, row) in rows {
            let part = row::decode_part(&row_key, &row)?;
            if part.durability == Durability::Memory {
                batch.delete(key::pending_part(id, part.number));
            }
            parts.push(part);
            if gap < row_key {
                batch.expect_empty(gap, row_key.clone());
            }
            // The least part key after this one, so that neighbours leave no gap to check.
            gap = key::part(id, parts.last().map_or(0, |part| part.number) + 1);
            batch.expect(row_key.clone(), Some(row));
            batch.delete(row_key);
        }
        if gap < end {
            batch.expect_empty(gap, end);
        }
        Ok(parts)
    }
}
