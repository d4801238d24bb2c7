//! Event notifications: who is told of changes in buckets, and how.
//!
//! | step | where |
//! |---|---|
//! | a bucket's rules, taken from clients and kept | [`rules`], `s3/notification` |
//! | what is to be told of a change | [`reporter`], [`record`] |
//! | written in the change's own commit | the catalog's outbox (`gateway/meta`) |
//! | brought to its target, again and again until that takes it | [`deliver`] |
//! | targets: the operator's webhooks and NATS streams | [`target`], [`webhook`], [`nats`] |
//!
//! A bucket without rules costs nothing: its row, which every request reads, says that it has none.
//! docs/decisions/0013-notifications.md has the reasons.

mod deliver;
mod nats;
mod record;
mod reporter;
mod rules;
mod stats;
mod target;
mod webhook;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use keyway_meta::catalog::Backlog;
use keyway_meta::{Bucket, Catalog, CatalogError, ConfigurationKind, MetaError, UnixMs};
use keyway_proto::{BucketId, TenantId};
use quick_cache::sync::Cache;

use crate::config::Notify;
use record::TestEvent;
use target::Target;

pub(crate) use reporter::{Act, Author, Reporter};
pub(crate) use rules::{Arn, Rule, Rules, is_known};
pub use stats::{NotifyStats, TargetStats};
pub(crate) use target::DeliveryError;
pub use target::InvalidTarget;

/// Buckets whose rules are kept as they were read.
const RULES_KEPT: usize = 1024;

/// Targets, and what is on its way to them.
pub struct Notifier {
    targets: BTreeMap<String, Arc<Target>>,
    /// The server's region.
    region: String,
    at_most: Backlog,
    concurrency: NonZeroUsize,
    retry_max: Duration,
    kept: Cache<BucketId, (Bytes, Arc<Rules>)>,
    strays: AtomicU64,
}

impl Default for Notifier {
    /// Without targets.
    fn default() -> Self {
        Self::over(&Notify::default(), "", BTreeMap::new())
    }
}

impl Notifier {
    /// Reads the targets' files.
    ///
    /// # Errors
    /// [`InvalidTarget`], with the target's name.
    pub fn new(config: &Notify, region: &str) -> Result<Self, (String, InvalidTarget)> {
        let targets = config.targets.iter().map(|(name, target)| {
            let target = Target::new(name, target).map_err(|error| (name.clone(), error))?;
            Ok((name.clone(), Arc::new(target)))
        });
        Ok(Self::over(config, region, targets.collect::<Result<_, (String, InvalidTarget)>>()?))
    }

    fn over(config: &Notify, region: &str, targets: BTreeMap<String, Arc<Target>>) -> Self {
        Self {
            targets,
            region: region.to_owned(),
            at_most: Backlog { events: config.backlog_events_max, bytes: config.backlog_bytes_max },
            concurrency: config.concurrency,
            retry_max: Duration::from_millis(config.retry_max_ms),
            kept: Cache::new(RULES_KEPT),
            strays: AtomicU64::new(0),
        }
    }

    /// The rules of a bucket; none where nobody is told.
    ///
    /// # Errors
    /// The catalog's.
    pub(crate) async fn rules(
        &self,
        catalog: &Catalog,
        bucket: &Bucket,
    ) -> Result<Option<Arc<Rules>>, CatalogError> {
        if !bucket.settings.tells {
            return Ok(None);
        }
        let document = catalog.configuration(bucket, ConfigurationKind::Notification).await?;
        let Some(document) = document else { return Ok(None) };
        if let Some((known, rules)) = self.kept.get(&bucket.id)
            && known == document
        {
            return Ok(Some(rules));
        }
        let read: Rules = serde_json::from_slice(&document)
            .map_err(|_| MetaError::Damaged("bucket's configuration"))?;
        let rules = Arc::new(read);
        self.kept.insert(bucket.id, (document, Arc::clone(&rules)));
        Ok(Some(rules))
    }

    /// Whether a bucket of this tenant can have its events sent there.
    pub(crate) fn knows(&self, arn: &Arn, tenant: TenantId) -> bool {
        self.named(arn, tenant).is_some()
    }

    fn named(&self, arn: &Arn, tenant: TenantId) -> Option<&Arc<Target>> {
        if !arn.region.is_empty() && arn.region != self.region {
            return None;
        }
        let target = self.targets.get(&arn.target)?;
        (target.kind == arn.kind && target.is_open_to(tenant)).then_some(target)
    }

    /// Sends a test event, once; nothing happens where there is no such target.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub(crate) async fn test(
        &self,
        arn: &Arn,
        bucket: &Bucket,
        request_id: &str,
        at: UnixMs,
    ) -> Result<(), DeliveryError> {
        let Some(target) = self.named(arn, bucket.tenant) else { return Ok(()) };
        let event = TestEvent::of(&bucket.name, request_id, at);
        let message = serde_json::to_vec(&event).expect("types of ours have a JSON form");
        target.send(message.into(), request_id).await
    }

    /// What became of events since the start, and what waits.
    pub fn stats(&self) -> NotifyStats {
        let told = |target: &Arc<Target>| target.counters.snapshot(Arc::clone(&target.name));
        let strays = self.strays.load(Ordering::Relaxed);
        NotifyStats { targets: self.targets.values().map(told).collect(), strays }
    }
}
