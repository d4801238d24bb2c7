//! What tenants store: counted in the commit that changes it, and bounded there.
//!
//! Each object, each of its other versions and each part of an upload in progress has one row, and
//! every commit that writes or removes such a row requires it as it was. So what a commit adds and
//! what it takes away is in the commit; the tenant's row is moved by that much when it is
//! applied, by the one writer that there is. Copies count for themselves, though they share chunks.
//! Delete markers count as objects of no bytes.
//!
//! A commit that makes a tenant's bytes or objects more is refused where they would pass its quota;
//! one that makes them fewer, or deletes, or completes what is counted by its parts, never is. A
//! tenant that has more than a quota that came later keeps it.
//!
//! Cost: of a commit, the sizes in its rows, one tree operation more; one more row in reach of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::unit::PART_NUMBER_MAX;
use keyway_proto::{BucketId, ObjectKey, TenantId, UploadId};
use parking_lot::RwLock;

use super::{Catalog, CatalogError, PAGE_MAX, Pending, PendingOf, Quota, Usage};
use crate::key::{self, Range, Space};
use crate::record::{Bucket, Versioning};
use crate::row;
use crate::store::{Batch, MetaError, Tally};

/// Who tells quotas.
type Tell = Arc<dyn Fn(TenantId) -> Quota + Send + Sync>;

/// What tenants may store, and whose buckets are.
#[derive(Default)]
pub(super) struct Quotas {
    tell: Option<Tell>,
    /// Owners of buckets: they never change, and ids are never used again.
    owners: RwLock<HashMap<BucketId, TenantId>>,
}

impl Quotas {
    fn of(&self, tenant: TenantId) -> Quota {
        self.tell.as_ref().map_or_else(Quota::default, |tell| tell(tenant))
    }
}

/// Who is counted, and whether within its quota.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payer {
    /// Refused beyond its quota.
    Within(TenantId),
    /// Never refused.
    Anyway(TenantId),
}

impl Quota {
    /// Whether this much may be stored; `of` says which of it is asked for.
    fn allows(self, usage: Usage, of: Usage) -> bool {
        let within = |most: Option<u64>, all: u64, more: u64| {
            more == 0 || most.is_none_or(|most| all <= most)
        };
        within(self.bytes, usage.bytes, of.bytes) && within(self.objects, usage.objects, of.objects)
    }
}

impl Usage {
    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, objects: self.objects.saturating_add(other.objects) }
    }

    fn minus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_sub(other.bytes);
        Self { bytes, objects: self.objects.saturating_sub(other.objects) }
    }
}

impl Catalog {
    /// The same, with tenants held to the quotas that `tell` tells. It is asked with every write, and
    /// must not wait.
    #[must_use]
    pub fn bounded_by(self, tell: impl Fn(TenantId) -> Quota + Send + Sync + 'static) -> Self {
        let quotas = Quotas { tell: Some(Arc::new(tell)), ..self.quotas };
        Self { quotas, ..self }
    }

    /// What the tenant stores.
    pub async fn usage(&self, tenant: TenantId) -> Result<Usage, CatalogError> {
        let row = self.store.get(&key::usage(tenant)).await?;
        let [bytes, objects] = row.as_deref().map_or(Ok([0, 0]), Tally::decode)?;
        Ok(Usage { bytes, objects })
    }

    /// Whether an object of so many bytes has room under the key, as things stand: asked before
    /// its bytes are read. The commit decides.
    ///
    /// # Errors
    /// [`CatalogError::QuotaExceeded`].
    pub async fn has_room(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        bytes: u64,
    ) -> Result<(), CatalogError> {
        let replaced = match bucket.settings.versioning {
            Versioning::Enabled => None,
            // The null version, wherever it stands: the commit knows.
            Versioning::Suspended => return Ok(()),
            Versioning::Unversioned => Some(key::object(bucket.id, key)),
        };
        self.room(bucket.tenant, bytes, replaced).await
    }

    /// The same for a part.
    ///
    /// # Errors
    /// [`CatalogError::QuotaExceeded`].
    pub async fn part_has_room(
        &self,
        bucket: &Bucket,
        upload: UploadId,
        number: u16,
        bytes: u64,
    ) -> Result<(), CatalogError> {
        self.room(bucket.tenant, bytes, Some(key::part(upload, number))).await
    }

    async fn room(
        &self,
        tenant: TenantId,
        bytes: u64,
        replaced: Option<Bytes>,
    ) -> Result<(), CatalogError> {
        let quota = self.quotas.of(tenant);
        if quota == Quota::default() {
            return Ok(());
        }
        let more = Usage { bytes, objects: 1 };
        let usage = self.usage(tenant).await?;
        if quota.allows(usage.plus(more), more) {
            return Ok(());
        }
        // What is replaced gives back what it has.
        let Some(row_key) = replaced else { return Err(CatalogError::QuotaExceeded) };
        let Some(row) = self.store.get(&row_key).await? else {
            return Err(CatalogError::QuotaExceeded);
        };
        let gone = counted(&row_key, &row)?.unwrap_or_default();
        let left = usage.minus(gone).plus(more);
        let grown = more.minus(gone);
        if quota.allows(left, grown) { Ok(()) } else { Err(CatalogError::QuotaExceeded) }
    }

    /// Commits, and counts for somebody what is stored more or less with it.
    ///
    /// # Errors
    /// [`CatalogError::QuotaExceeded`].
    pub(super) async fn committed_for(
        &self,
        payer: Payer,
        mut batch: Batch,
    ) -> Result<bool, CatalogError> {
        let (tenant, quota) = match payer {
            Payer::Within(tenant) => (tenant, self.quotas.of(tenant)),
            Payer::Anyway(tenant) => (tenant, Quota::default()),
        };
        let add = change(&batch)?;
        if add != [0, 0] {
            let at_most = [quota.bytes, quota.objects].map(|most| most.unwrap_or(u64::MAX));
            batch.tallies.push(Tally { key: key::usage(tenant), add, at_most });
        }
        self.committed(batch).await
    }

    /// Counts what all tenants store, unless that was done before: for a store that is older
    /// than its counting. Nobody may write meanwhile. Tells how many tenants store something,
    /// where it has counted.
    pub async fn count_usage(&self) -> Result<Option<usize>, CatalogError> {
        if self.store.get(&key::usage_counted()).await?.is_some() {
            return Ok(None);
        }
        let mut batch = Batch { frees_space: true, ..Batch::default() };
        let counted = self.scanned_usage().await?;
        let tenants = counted.len();
        for (tenant, usage) in counted {
            batch.put(key::usage(tenant), Tally::encode([usage.bytes, usage.objects]));
        }
        batch.put(key::usage_counted(), row::mark());
        self.store.commit(batch).await?;
        Ok(Some(tenants))
    }

    /// What tenants store, as their rows have it: all of them are read.
    pub async fn scanned_usage(&self) -> Result<BTreeMap<TenantId, Usage>, CatalogError> {
        let mut all = BTreeMap::new();
        let mut last: Option<Bucket> = None;
        loop {
            let page = self.every_bucket(last.as_ref(), PAGE_MAX).await?;
            for bucket in &page {
                let usage = self.scanned_bucket(bucket.id).await?;
                let of_tenant: &mut Usage = all.entry(bucket.tenant).or_default();
                *of_tenant = of_tenant.plus(usage);
            }
            last = page.last().cloned();
            if last.is_none() {
                all.retain(|_, usage| *usage != Usage::default());
                return Ok(all);
            }
        }
    }

    async fn scanned_bucket(&self, bucket: BucketId) -> Result<Usage, CatalogError> {
        let mut usage = self.scanned(Space::objects(bucket).all()).await?;
        usage = usage.plus(self.scanned(Space::versions(bucket).all()).await?);
        let (mut start, end) = Space::uploads(bucket).all();
        loop {
            let page = self.store.scan(&start, &end, PAGE_MAX).await?;
            let Some((last, _)) = page.last() else { return Ok(usage) };
            start = key::next(last);
            for (row_key, _) in &page {
                let (_, id) = key::parse_upload(row_key).ok_or(MetaError::Damaged("upload key"))?;
                usage = usage.plus(self.scanned(key::parts(id, 0, PART_NUMBER_MAX)).await?);
            }
        }
    }

    async fn scanned(&self, (mut start, end): Range) -> Result<Usage, CatalogError> {
        let mut usage = Usage::default();
        loop {
            let page = self.store.scan(&start, &end, PAGE_MAX).await?;
            let Some((last, _)) = page.last() else { return Ok(usage) };
            start = key::next(last);
            for (row_key, row) in &page {
                usage = usage.plus(counted(row_key, row)?.unwrap_or_default());
            }
        }
    }

    /// Whose something is that is not durable; nobody's if it is gone.
    pub(super) async fn owner_of(
        &self,
        pending: &Pending,
    ) -> Result<Option<TenantId>, CatalogError> {
        let bucket = match pending.of {
            PendingOf::Object { bucket, .. } => Some(bucket),
            PendingOf::Part { upload, .. } => self.bucket_of(upload).await?,
        };
        match bucket {
            Some(bucket) => self.owner(bucket).await,
            None => Ok(None),
        }
    }

    /// The bucket of an upload in progress: all uploads are looked through, which a loss is rare
    /// enough for.
    async fn bucket_of(&self, upload: UploadId) -> Result<Option<BucketId>, CatalogError> {
        let (mut start, end) = key::every_upload();
        loop {
            let page = self.store.scan(&start, &end, PAGE_MAX).await?;
            let Some((last, _)) = page.last() else { return Ok(None) };
            start = key::next(last);
            let ids = page.iter().filter_map(|(row_key, _)| key::parse_upload(row_key));
            if let Some((bucket, _)) = ids.into_iter().find(|(_, id)| *id == upload) {
                return Ok(Some(bucket));
            }
        }
    }

    /// Whose a bucket is.
    async fn owner(&self, bucket: BucketId) -> Result<Option<TenantId>, CatalogError> {
        if let Some(owner) = self.quotas.owners.read().get(&bucket) {
            return Ok(Some(*owner));
        }
        let mut last: Option<Bucket> = None;
        loop {
            let page = self.every_bucket(last.as_ref(), PAGE_MAX).await?;
            if page.is_empty() {
                return Ok(self.quotas.owners.read().get(&bucket).copied());
            }
            self.quotas.owners.write().extend(page.iter().map(|found| (found.id, found.tenant)));
            last = page.last().cloned();
        }
    }
}

/// What a row counts as; none for one that does not.
fn counted(row_key: &[u8], row: &Bytes) -> Result<Option<Usage>, MetaError> {
    let Some(kind) = key::counted(row_key) else { return Ok(None) };
    Ok(Some(Usage { bytes: row::bytes_of(row, kind)?, objects: 1 }))
}

/// What a batch stores more or less: bytes and objects.
fn change(batch: &Batch) -> Result<[i64; 2], MetaError> {
    let usage = |row_key: &Bytes, row: Option<&Bytes>| {
        let counted = row.map(|row| counted(row_key, row)).transpose()?.flatten();
        let Usage { bytes, objects } = counted.unwrap_or_default();
        Ok::<_, MetaError>([signed(bytes), signed(objects)])
    };
    let mut standing: HashMap<&Bytes, [i64; 2]> = HashMap::new();
    for (row_key, row) in &batch.expect {
        if key::counted(row_key).is_some() {
            standing.insert(row_key, usage(row_key, row.as_ref())?);
        }
    }
    let mut add = [0_i64; 2];
    for (row_key, row) in &batch.writes {
        if key::counted(row_key).is_none() {
            continue;
        }
        let after = usage(row_key, row.as_ref())?;
        // What is not required is new: ids of versions are never used twice.
        let before = standing.insert(row_key, after).unwrap_or_default();
        for ((add, after), before) in add.iter_mut().zip(after).zip(before) {
            *add = add.saturating_add(after.saturating_sub(before));
        }
    }
    Ok(add)
}

/// Whether a batch leaves what is stored as much as it is.
pub(super) fn leaves_it(batch: &Batch) -> bool {
    change(batch).is_ok_and(|add| add == [0, 0])
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
