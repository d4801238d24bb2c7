//! What tenants and their users store: counted in the commit that changes it, and bounded there.
//!
//! Each object, each of its other versions and each part of an upload in progress has one row, and
//! every commit that writes or removes such a row requires it as it was. So what a commit adds and
//! what it takes away is in the commit; the tenant's row is moved by that much when it is
//! applied, by the one writer that there is, and so is the row of the user whose name the other
//! bears. Copies count for themselves, though they share chunks. Delete markers count as objects of
//! no bytes, and for no user.
//!
//! A commit that makes somebody's bytes or objects more is refused where they would pass the quota;
//! one that makes them fewer, or deletes, never is. What completes an upload is counted for the
//! tenant by its parts and is never refused for it; of a user it is asked whether there is room for
//! parts that another one stored. Whoever has more than a quota that came later keeps it.
//!
//! Cost: of a commit, the sizes in its rows, one tree operation more, two for a user; as many more
//! rows in reach of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::unit::PART_NUMBER_MAX;
use keyway_proto::{BucketId, ObjectKey, TenantId, UploadId};
use parking_lot::RwLock;

use super::{Catalog, CatalogError, Holder, PAGE_MAX, Pending, PendingOf, Quota, Usage};
use crate::key::{self, Range, Space};
use crate::record::{Bucket, StoredBy, Versioning};
use crate::row;
use crate::store::{Batch, MetaError, Tally};

/// Who tells quotas, of a tenant and of its users.
type Tell = Arc<dyn Fn(TenantId, Option<&str>) -> Quota + Send + Sync>;

/// What tenants may store, and whose buckets are.
#[derive(Default)]
pub(super) struct Quotas {
    tell: Option<Tell>,
    /// Owners of buckets: they never change, and ids are never used again.
    owners: RwLock<HashMap<BucketId, TenantId>>,
}

impl Quotas {
    fn of(&self, tenant: TenantId, user: Option<&str>) -> Quota {
        self.tell.as_ref().map_or_else(Quota::default, |tell| tell(tenant, user))
    }
}

/// Whose a bucket is that is written to, and who is held to quotas.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payer {
    /// The tenant and the user.
    Within(TenantId),
    /// The user alone.
    UserWithin(TenantId),
    /// Nobody.
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
    /// The same, with tenants, and users of theirs, held to the quotas that `tell` tells. It is asked
    /// with every write, and must not wait.
    #[must_use]
    pub fn bounded_by(
        self,
        tell: impl Fn(TenantId, Option<&str>) -> Quota + Send + Sync + 'static,
    ) -> Self {
        let quotas = Quotas { tell: Some(Arc::new(tell)), ..self.quotas };
        Self { quotas, ..self }
    }

    /// What the tenant stores, or what one of its users does.
    pub async fn usage(&self, tenant: TenantId, user: Option<&str>) -> Result<Usage, CatalogError> {
        let row = self.store.get(&tally_key(tenant, user)).await?;
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
        stored_by: Option<&StoredBy>,
    ) -> Result<(), CatalogError> {
        let replaced = match bucket.settings.versioning {
            Versioning::Enabled => None,
            // The null version, wherever it stands: the commit knows.
            Versioning::Suspended => return Ok(()),
            Versioning::Unversioned => Some(key::object(bucket.id, key)),
        };
        self.room(bucket.tenant, stored_by, bytes, replaced).await
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
        stored_by: Option<&StoredBy>,
    ) -> Result<(), CatalogError> {
        self.room(bucket.tenant, stored_by, bytes, Some(key::part(upload, number))).await
    }

    async fn room(
        &self,
        tenant: TenantId,
        stored_by: Option<&StoredBy>,
        bytes: u64,
        replaced: Option<Bytes>,
    ) -> Result<(), CatalogError> {
        self.room_of(tenant, None, bytes, replaced.as_ref()).await?;
        match stored_by {
            Some(user) => self.room_of(tenant, Some(user), bytes, replaced.as_ref()).await,
            None => Ok(()),
        }
    }

    async fn room_of(
        &self,
        tenant: TenantId,
        user: Option<&str>,
        bytes: u64,
        replaced: Option<&Bytes>,
    ) -> Result<(), CatalogError> {
        let quota = self.quotas.of(tenant, user);
        if quota == Quota::default() {
            return Ok(());
        }
        let more = Usage { bytes, objects: 1 };
        let usage = self.usage(tenant, user).await?;
        if quota.allows(usage.plus(more), more) {
            return Ok(());
        }
        // What is replaced gives back what it has.
        let Some(row_key) = replaced else { return Err(CatalogError::QuotaExceeded) };
        let Some(row) = self.store.get(row_key).await? else {
            return Err(CatalogError::QuotaExceeded);
        };
        let gone = Count::of(row_key, Some(&row))?;
        let is_its_own = user.is_none_or(|user| gone.stored_by == user);
        let gone = if is_its_own { gone.usage } else { Usage::default() };
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
        let (tenant, is_held, user_is_held) = match payer {
            Payer::Within(tenant) => (tenant, true, true),
            Payer::UserWithin(tenant) => (tenant, false, true),
            Payer::Anyway(tenant) => (tenant, false, false),
        };
        let Change { all, of_users } = Change::of(&batch)?;
        let mut count = |user: Option<&str>, add: [i64; 2], is_held: bool| {
            if add == [0, 0] {
                return;
            }
            let quota = if is_held { self.quotas.of(tenant, user) } else { Quota::default() };
            let at_most = [quota.bytes, quota.objects].map(|most| most.unwrap_or(u64::MAX));
            batch.tallies.push(Tally { key: tally_key(tenant, user), add, at_most });
        };
        count(None, all, is_held);
        for (user, add) in of_users {
            count(Some(&user), add, user_is_held);
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
        let tenants = counted.keys().filter(|holder| holder.user.is_none()).count();
        for (Holder { tenant, user }, usage) in counted {
            let tally = Tally::encode([usage.bytes, usage.objects]);
            batch.put(tally_key(tenant, user.as_deref()), tally);
        }
        batch.put(key::usage_counted(), row::mark());
        self.store.commit(batch).await?;
        Ok(Some(tenants))
    }

    /// What tenants and their users store, as the rows have it: all of them are read.
    pub async fn scanned_usage(&self) -> Result<BTreeMap<Holder, Usage>, CatalogError> {
        let mut all = BTreeMap::new();
        let mut last: Option<Bucket> = None;
        loop {
            let page = self.every_bucket(last.as_ref(), PAGE_MAX).await?;
            for bucket in &page {
                self.scan_bucket(bucket, &mut all).await?;
            }
            last = page.last().cloned();
            if last.is_none() {
                return Ok(all);
            }
        }
    }

    async fn scan_bucket(
        &self,
        bucket: &Bucket,
        all: &mut BTreeMap<Holder, Usage>,
    ) -> Result<(), CatalogError> {
        let tenant = bucket.tenant;
        self.scan(tenant, Space::objects(bucket.id).all(), all).await?;
        self.scan(tenant, Space::versions(bucket.id).all(), all).await?;
        let (mut start, end) = Space::uploads(bucket.id).all();
        loop {
            let page = self.store.scan(&start, &end, PAGE_MAX).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            start = key::next(last);
            for (row_key, _) in &page {
                let (_, id) = key::parse_upload(row_key).ok_or(MetaError::Damaged("upload key"))?;
                self.scan(tenant, key::parts(id, 0, PART_NUMBER_MAX), all).await?;
            }
        }
    }

    async fn scan(
        &self,
        tenant: TenantId,
        (mut start, end): Range,
        all: &mut BTreeMap<Holder, Usage>,
    ) -> Result<(), CatalogError> {
        loop {
            let page = self.store.scan(&start, &end, PAGE_MAX).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            start = key::next(last);
            for (row_key, row) in &page {
                let Count { usage, stored_by } = Count::of(row_key, Some(row))?;
                let mut add = |user: Option<StoredBy>| {
                    let of_holder = all.entry(Holder { tenant, user }).or_default();
                    *of_holder = of_holder.plus(usage);
                };
                add(None);
                if !stored_by.is_empty() {
                    add(Some(stored_by.into()));
                }
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

/// Where a tally stands.
fn tally_key(tenant: TenantId, user: Option<&str>) -> Bytes {
    user.map_or_else(|| key::usage(tenant), |user| key::usage_of(tenant, user))
}

/// What a row counts as, and for which user; nobody's name is empty.
#[derive(Default)]
struct Count {
    usage: Usage,
    stored_by: String,
}

impl Count {
    /// Nothing where there is no row, or one that does not count.
    fn of(row_key: &[u8], row: Option<&Bytes>) -> Result<Self, MetaError> {
        let (Some(kind), Some(row)) = (key::counted(row_key), row) else {
            return Ok(Self::default());
        };
        let (bytes, stored_by) = row::size_of(row, kind)?;
        Ok(Self { usage: Usage { bytes, objects: 1 }, stored_by })
    }
}

/// What a batch stores more or less: bytes and objects.
#[derive(Default)]
struct Change {
    all: [i64; 2],
    /// By name; most batches name one.
    of_users: Vec<(String, [i64; 2])>,
}

impl Change {
    fn of(batch: &Batch) -> Result<Self, MetaError> {
        let mut standing: HashMap<&Bytes, Count> = HashMap::new();
        for (row_key, row) in &batch.expect {
            if key::counted(row_key).is_some() {
                standing.insert(row_key, Count::of(row_key, row.as_ref())?);
            }
        }
        let mut change = Self::default();
        for (row_key, row) in &batch.writes {
            if key::counted(row_key).is_none() {
                continue;
            }
            let after = Count::of(row_key, row.as_ref())?;
            change.count(&after, 1);
            // What is not required is new: ids of versions are never used twice.
            if let Some(before) = standing.insert(row_key, after) {
                change.count(&before, -1);
            }
        }
        Ok(change)
    }

    fn count(&mut self, Count { usage, stored_by }: &Count, sign: i64) {
        let by = [usage.bytes, usage.objects].map(|number| signed(number).saturating_mul(sign));
        let add = |to: &mut [i64; 2]| {
            to.iter_mut().zip(by).for_each(|(to, by)| *to = to.saturating_add(by));
        };
        add(&mut self.all);
        if stored_by.is_empty() {
            return;
        }
        match self.of_users.iter_mut().find(|(user, _)| user == stored_by) {
            Some((_, of_user)) => add(of_user),
            None => self.of_users.push((stored_by.clone(), by)),
        }
    }
}

/// Whether a batch leaves what is stored, and by whom, as it is.
pub(super) fn leaves_it(batch: &Batch) -> bool {
    Change::of(batch).is_ok_and(|Change { all, of_users }| {
        all == [0, 0] && of_users.iter().all(|(_, of_user)| *of_user == [0, 0])
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
