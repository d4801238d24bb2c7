//! Buckets.

use keyway_proto::{BucketId, BucketName, TenantId, UploadId};

use super::{ATTEMPTS_MAX, Catalog, CatalogError, PAGE_MAX};
use crate::key::{self, Space};
use crate::record::{Bucket, BucketSettings, ConfigurationKind, UnixMs, Versioning};
use crate::row;
use crate::store::{Batch, MetaError};

impl Catalog {
    /// Makes a bucket.
    ///
    /// # Errors
    /// [`CatalogError::BucketExists`] when the tenant has one of that name.
    pub async fn create_bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
        settings: BucketSettings,
        now: UnixMs,
    ) -> Result<Bucket, CatalogError> {
        let name_key = key::bucket(tenant, name);
        for _ in 0..ATTEMPTS_MAX {
            if self.store.get(&name_key).await?.is_some() {
                return Err(CatalogError::BucketExists);
            }
            let counter = self.store.get(&key::bucket_counter()).await?;
            let last = counter.as_deref().map_or(Ok(0), row::decode_counter)?;
            let id = BucketId(last + 1);
            let bucket =
                Bucket { id, tenant, name: name.clone(), created: now, settings: settings.clone() };
            let mut batch = Batch::default();
            batch.expect(name_key.clone(), None);
            batch.expect(key::bucket_counter(), counter);
            batch.put(key::bucket_counter(), row::encode_counter(id.0));
            batch.put(name_key.clone(), row::encode_bucket(&bucket));
            batch.put(key::bucket_alive(id), row::alive(settings.versioning));
            if self.committed(batch).await? {
                return Ok(bucket);
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// The bucket of that name.
    ///
    /// # Errors
    /// [`CatalogError::NoSuchBucket`].
    pub async fn bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
    ) -> Result<Bucket, CatalogError> {
        let row = self.store.get(&key::bucket(tenant, name)).await?;
        let row = row.ok_or(CatalogError::NoSuchBucket)?;
        Ok(row::decode_bucket(tenant, name, &row)?)
    }

    /// Has the bucket keep versions from now on, or, suspended, no more of them. What it keeps
    /// stays.
    ///
    /// # Errors
    /// [`CatalogError::InvalidBucketState`] for a bucket whose versions can be locked and that is
    /// to keep none; [`CatalogError::NotDurable`] while it has objects in memory alone: they are to
    /// be settled first.
    pub async fn set_versioning(
        &self,
        tenant: TenantId,
        name: &BucketName,
        versioning: Versioning,
    ) -> Result<(), CatalogError> {
        self.change_bucket(tenant, name, |settings| {
            if settings.object_lock && versioning != Versioning::Enabled {
                return Err(CatalogError::InvalidBucketState);
            }
            settings.versioning = versioning;
            Ok(())
        })
        .await
    }

    /// Has versions of the bucket be lockable, for ever.
    ///
    /// # Errors
    /// [`CatalogError::InvalidBucketState`] unless it keeps versions.
    pub async fn enable_object_lock(
        &self,
        tenant: TenantId,
        name: &BucketName,
    ) -> Result<(), CatalogError> {
        self.change_bucket(tenant, name, |settings| {
            if settings.versioning != Versioning::Enabled {
                return Err(CatalogError::InvalidBucketState);
            }
            settings.object_lock = true;
            Ok(())
        })
        .await
    }

    /// Sets who is told of changes, or that nobody is. Writes that begin afterwards are told of so.
    pub async fn set_notification(
        &self,
        tenant: TenantId,
        name: &BucketName,
        document: Option<&[u8]>,
    ) -> Result<(), CatalogError> {
        let change = |settings: &mut BucketSettings| {
            settings.tells = document.is_some();
            Ok(())
        };
        let kind = ConfigurationKind::Notification;
        self.change_bucket_with(tenant, name, Some((kind, document)), change).await
    }

    /// Sets whether what is written without a word about it is encrypted. Writes that begin
    /// afterwards are.
    pub async fn set_encryption(
        &self,
        tenant: TenantId,
        name: &BucketName,
        encrypts: bool,
    ) -> Result<(), CatalogError> {
        self.change_bucket(tenant, name, |settings| {
            settings.encrypts = encrypts;
            Ok(())
        })
        .await
    }

    async fn change_bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
        change: impl Fn(&mut BucketSettings) -> Result<(), CatalogError> + Send + Sync,
    ) -> Result<(), CatalogError> {
        self.change_bucket_with(tenant, name, None, change).await
    }

    /// The same, with a document of the bucket in the same commit.
    async fn change_bucket_with(
        &self,
        tenant: TenantId,
        name: &BucketName,
        document: Option<(ConfigurationKind, Option<&[u8]>)>,
        change: impl Fn(&mut BucketSettings) -> Result<(), CatalogError> + Send + Sync,
    ) -> Result<(), CatalogError> {
        let name_key = key::bucket(tenant, name);
        for _ in 0..ATTEMPTS_MAX {
            let row = self.store.get(&name_key).await?.ok_or(CatalogError::NoSuchBucket)?;
            let mut bucket = row::decode_bucket(tenant, name, &row)?;
            let before = bucket.settings.versioning;
            change(&mut bucket.settings)?;
            let after = bucket.settings.versioning;
            let mut batch = Batch::default();
            batch.expect(name_key.clone(), Some(row));
            batch.put(name_key.clone(), row::encode_bucket(&bucket));
            if let Some((kind, document)) = document {
                let row_key = key::configuration(bucket.id, kind.number());
                batch.writes.push((row_key, document.map(row::encode_document)));
            }
            if before != after {
                // What is in memory alone could be taken back from where it stands, and from
                // nowhere else.
                let (start, end) = Space::pending(bucket.id).all();
                if !self.store.scan(&start, &end, 1).await?.is_empty() {
                    return Err(CatalogError::NotDurable);
                }
                batch.expect_empty(start, end);
                let alive = key::bucket_alive(bucket.id);
                batch.expect(alive.clone(), Some(row::alive(before)));
                batch.put(alive, row::alive(after));
            }
            if self.committed(batch).await? {
                return Ok(());
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// A tenant's buckets with names that begin with `prefix` and sort after `after`,
    /// ascending, at most `limit` and [`PAGE_MAX`].
    pub async fn buckets(
        &self,
        tenant: TenantId,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Bucket>, CatalogError> {
        let (start, end) = key::buckets(tenant, prefix, after);
        let rows = self.store.scan(&start, &end, limit.min(PAGE_MAX)).await?;
        rows.iter()
            .map(|(key, row)| {
                let name = key::bucket_name(key).ok_or(MetaError::Damaged("bucket key"))?;
                Ok(row::decode_bucket(tenant, name, row)?)
            })
            .collect()
    }

    /// Buckets of all tenants behind `after`, by tenant and name, at most `limit` and
    /// [`PAGE_MAX`].
    pub async fn every_bucket(
        &self,
        after: Option<&Bucket>,
        limit: usize,
    ) -> Result<Vec<Bucket>, CatalogError> {
        let behind = after.map(|bucket| (bucket.tenant, &*bucket.name));
        let (start, end) = key::every_bucket(behind);
        let rows = self.store.scan(&start, &end, limit.min(PAGE_MAX)).await?;
        rows.iter()
            .map(|(key, row)| {
                let damaged = || MetaError::Damaged("bucket key");
                let tenant = key::bucket_tenant(key).ok_or_else(damaged)?;
                let name = key::bucket_name(key).ok_or_else(damaged)?;
                Ok(row::decode_bucket(tenant, name, row)?)
            })
            .collect()
    }

    /// Deletes an empty bucket. Uploads in progress are aborted with it; when an object is
    /// put meanwhile, the bucket stays and they may be aborted all the same.
    ///
    /// # Errors
    /// [`CatalogError::BucketNotEmpty`] when it has an object, or another version.
    pub async fn delete_bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
    ) -> Result<(), CatalogError> {
        let name_key = key::bucket(tenant, name);
        for _ in 0..ATTEMPTS_MAX {
            let row = self.store.get(&name_key).await?.ok_or(CatalogError::NoSuchBucket)?;
            let id = row::decode_bucket(tenant, name, &row)?.id;
            let mut batch = Batch { frees_space: true, ..Batch::default() };
            batch.expect(name_key.clone(), Some(row));
            for (start, end) in [Space::objects(id).all(), Space::versions(id).all()] {
                if !self.store.scan(&start, &end, 1).await?.is_empty() {
                    return Err(CatalogError::BucketNotEmpty);
                }
                batch.expect_empty(start, end);
            }
            self.abort_uploads(tenant, id).await?;
            let uploads = Space::uploads(id).all();
            batch.expect_empty(uploads.0, uploads.1);
            batch.delete(name_key.clone());
            batch.delete(key::bucket_alive(id));
            for kind in ConfigurationKind::ALL {
                batch.delete(key::configuration(id, kind.number()));
            }
            if self.committed(batch).await? {
                return Ok(());
            }
        }
        Err(MetaError::Conflict.into())
    }

    /// Aborts all uploads in progress that are seen on one pass.
    async fn abort_uploads(&self, tenant: TenantId, bucket: BucketId) -> Result<(), CatalogError> {
        let space = Space::uploads(bucket);
        let (mut start, end) = space.all();
        loop {
            let page = self.store.scan(&start, &end, PAGE_MAX).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            start = key::next(last);
            for (row_key, _) in &page {
                let (_, suffix) = space.parse(row_key).ok_or(MetaError::Damaged("upload key"))?;
                let id = suffix.try_into().map_err(|_| MetaError::Damaged("upload key"))?;
                let id = UploadId::from_bytes(id);
                match self.end_upload(tenant, row_key.clone(), id).await {
                    Ok(()) | Err(CatalogError::NoSuchUpload) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
