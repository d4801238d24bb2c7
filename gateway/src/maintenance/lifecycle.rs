//! Acts by the lifecycle rules of buckets.
//!
//! Sketch, for a bucket with rules: one walk over all its versions in pages, one over its uploads,
//! and one commit for each that goes. Buckets without rules cost one look-up. Whatever is judged
//! is required by the commit to be what it was: nothing goes that came meanwhile.

use keyway_meta::catalog::{Clearance, ListQuery, Site, Stamp, VersionEntry, WriteCondition};
use keyway_meta::{Bucket, CatalogError, ConfigurationKind, UnixMs, VersionName};
use keyway_proto::VersionId;

use super::{Maintenance, MaintenanceError};
use crate::configuration;
use crate::lifecycle::{Calendar, Rule, Rules};
use crate::notify::{Act, Author, Reporter};

/// Versions and uploads, and buckets, looked at together.
const PAGE: usize = 1000;

/// What one look at all buckets with rules came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifecycleReport {
    /// Current objects deleted, or hidden by delete markers.
    pub expired: u64,
    /// Other versions and delete markers removed.
    pub versions_removed: u64,
    /// Uploads aborted.
    pub uploads_aborted: u64,
}

impl Maintenance {
    /// Goes through all buckets once, at the time `now`.
    ///
    /// # Errors
    /// [`MaintenanceError::Catalog`]; what was done before stands.
    pub async fn live(&self, now: UnixMs) -> Result<LifecycleReport, MaintenanceError> {
        let calendar = Calendar { now, day_ms: self.config.lifecycle_day_ms };
        let mut report = LifecycleReport::default();
        let mut after: Option<Bucket> = None;
        loop {
            let buckets = self.catalog.every_bucket(after.as_ref(), PAGE).await?;
            let Some(last) = buckets.last() else { break };
            after = Some(last.clone());
            for bucket in &buckets {
                let rules: Option<Rules> =
                    configuration::get(&self.catalog, bucket, ConfigurationKind::Lifecycle).await?;
                let mut rules = rules.unwrap_or_default();
                rules.retain(|rule| rule.enabled);
                if !rules.is_empty() {
                    let author = || Author::lifecycle(now);
                    let (notifier, catalog) = (&self.notifier, &self.catalog);
                    let reporter = notifier.reporter(catalog, bucket, Act::Expire, author).await?;
                    let site = Reporter::site(bucket, reporter.as_ref());
                    let walk = Walk { of: self, bucket, site, rules: &rules, calendar };
                    walk.versions(&mut report).await?;
                    walk.uploads(&mut report).await?;
                }
            }
        }
        self.counters.expired.add(report.expired + report.versions_removed);
        self.counters.uploads_aborted.add(report.uploads_aborted);
        Ok(report)
    }
}

/// One bucket, and its rules.
struct Walk<'a> {
    of: &'a Maintenance,
    bucket: &'a Bucket,
    site: Site<'a>,
    rules: &'a [Rule],
    calendar: Calendar,
}

/// What was met of a key, newest first.
#[derive(Default)]
struct Key {
    name: String,
    /// When the version before became what it is: since then the next one is not current.
    newer_since: UnixMs,
    /// Noncurrent versions met.
    noncurrent: u32,
    /// The newest one, while it is a delete marker that nothing was met behind.
    lone_marker: Option<VersionEntry>,
}

impl Walk<'_> {
    async fn versions(&self, report: &mut LifecycleReport) -> Result<(), MaintenanceError> {
        let mut query = ListQuery { limit: PAGE, ..ListQuery::default() };
        let mut after = None;
        let mut key = Key::default();
        loop {
            let page = self.of.catalog.versions(self.bucket, &query, after).await?;
            for entry in page.versions {
                if *entry.key != *key.name {
                    self.end(std::mem::take(&mut key), report).await?;
                    key.name = entry.key.to_string();
                }
                self.meet(&mut key, entry, report).await?;
            }
            match page.next {
                Some((name, version)) => (query.after, after) = (name, version),
                None => return self.end(key, report).await,
            }
        }
    }

    async fn meet(
        &self,
        key: &mut Key,
        entry: VersionEntry,
        report: &mut LifecycleReport,
    ) -> Result<(), MaintenanceError> {
        key.lone_marker = None;
        let since = std::mem::replace(&mut key.newer_since, entry.modified);
        if entry.is_latest {
            match &entry.object {
                Some(_) => {
                    let due = |rule: &Rule| rule.expires(entry.modified, self.calendar);
                    if self.fits(&entry, due).await? {
                        report.expired += u64::from(self.expire(&entry).await?);
                    }
                }
                None => key.lone_marker = Some(entry),
            }
            return Ok(());
        }
        let newer = key.noncurrent;
        key.noncurrent += 1;
        let due = |rule: &Rule| rule.expires_noncurrent(since, newer, self.calendar);
        if self.fits(&entry, due).await? {
            report.versions_removed += u64::from(self.remove(&entry).await?);
        }
        Ok(())
    }

    /// After all versions of a key.
    async fn end(&self, key: Key, report: &mut LifecycleReport) -> Result<(), MaintenanceError> {
        let Some(marker) = key.lone_marker else { return Ok(()) };
        let due = |rule: &Rule| rule.expires_lone_marker(marker.modified, self.calendar);
        if self.fits(&marker, due).await? {
            report.versions_removed += u64::from(self.remove(&marker).await?);
        }
        Ok(())
    }

    /// Whether a rule is due for the version. Its tags are read only where they decide.
    async fn fits(
        &self,
        entry: &VersionEntry,
        due: impl Fn(&Rule) -> bool,
    ) -> Result<bool, MaintenanceError> {
        let mut tags: Option<Vec<(String, String)>> = None;
        for rule in self.rules {
            let Some(summary) = &entry.object else {
                if rule.filter.fits_marker(&entry.key) && due(rule) {
                    return Ok(true);
                }
                continue;
            };
            if !rule.filter.fits_but_tags(&entry.key, summary.size) || !due(rule) {
                continue;
            }
            if !rule.filter.asks_for_tags() {
                return Ok(true);
            }
            if tags.is_none() {
                let read = self.of.catalog.read(self.bucket, &entry.key, Some(entry.name)).await;
                let Ok(object) = read else { return Ok(false) };
                tags = Some(object.headers.tags);
            }
            if rule.filter.fits_tags(tags.as_deref().unwrap_or_default()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the current object, unless it is another one by now.
    async fn expire(&self, entry: &VersionEntry) -> Result<bool, MaintenanceError> {
        let stamp = Stamp { version: VersionId::generate(), at: self.calendar.now };
        let condition = WriteCondition::VersionIs(entry.version);
        let deleted = self.of.catalog.delete(self.site, &entry.key, condition, stamp).await;
        done(deleted.map(|deleted| deleted.existed))
    }

    /// Removes a version that is not locked. A null version that was replaced meanwhile has
    /// another id, and stays.
    async fn remove(&self, entry: &VersionEntry) -> Result<bool, MaintenanceError> {
        let clearance = Clearance { now: self.calendar.now, bypass_governance: false };
        let condition = match entry.name {
            VersionName::Null => WriteCondition::VersionIs(entry.version),
            VersionName::Id(_) => WriteCondition::None,
        };
        let (site, key) = (self.site, &entry.key);
        let removed =
            self.of.catalog.delete_version(site, key, entry.name, condition, clearance).await;
        done(removed.map(|removed| removed.existed))
    }

    async fn uploads(&self, report: &mut LifecycleReport) -> Result<(), MaintenanceError> {
        for rule in self.rules.iter().filter(|rule| rule.abort_days.is_some()) {
            let prefix = rule.filter.prefix.clone();
            let mut query = ListQuery { prefix, limit: PAGE, ..ListQuery::default() };
            let mut after = None;
            loop {
                let page = self.of.catalog.uploads(self.bucket, &query, after).await?;
                for upload in page.uploads {
                    if !rule.aborts(upload.initiated, self.calendar) {
                        continue;
                    }
                    let aborted =
                        self.of.catalog.abort_upload(self.bucket, &upload.key, upload.id).await;
                    report.uploads_aborted += u64::from(done(aborted.map(|()| true))?);
                }
                match page.next {
                    Some((name, id)) => (query.after, after) = (name, id),
                    None => break,
                }
            }
        }
        Ok(())
    }
}

/// Whether it went: what is locked, gone or another one by now is left alone.
fn done(outcome: Result<bool, CatalogError>) -> Result<bool, MaintenanceError> {
    match outcome {
        Ok(gone) => Ok(gone),
        Err(
            CatalogError::Locked
            | CatalogError::PreconditionFailed
            | CatalogError::NoSuchKey
            | CatalogError::NoSuchUpload
            | CatalogError::NoSuchBucket,
        ) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
