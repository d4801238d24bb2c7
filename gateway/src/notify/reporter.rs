//! What is told of a change, decided where the change is committed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyway_meta::catalog::{Change, Notice, Site, Teller};
use keyway_meta::{Bucket, Catalog, CatalogError, UnixMs, VersionName, Versioning};
use keyway_proto::ObjectKey;

use super::Notifier;
use super::record::{Facts, Record};
use super::rules::Rules;
use super::stats::Counters;

/// What somebody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Put,
    Post,
    Copy,
    Complete,
    Delete,
    PutTags,
    DeleteTags,
    /// A lifecycle rule acts.
    Expire,
}

impl Act {
    /// The event, without `s3:`.
    fn event(self, change: &Change<'_>) -> Option<&'static str> {
        Some(match (self, change) {
            (Self::Put, Change::Published(_)) => "ObjectCreated:Put",
            (Self::Post, Change::Published(_)) => "ObjectCreated:Post",
            (Self::Copy, Change::Published(_)) => "ObjectCreated:Copy",
            (Self::Complete, Change::Published(_)) => "ObjectCreated:CompleteMultipartUpload",
            (Self::Delete, Change::Removed(_)) => "ObjectRemoved:Delete",
            (Self::Delete, Change::Hidden(_)) => "ObjectRemoved:DeleteMarkerCreated",
            (Self::Expire, Change::Removed(_)) => "LifecycleExpiration:Delete",
            (Self::Expire, Change::Hidden(_)) => "LifecycleExpiration:DeleteMarkerCreated",
            (Self::PutTags, Change::Amended(_)) => "ObjectTagging:Put",
            (Self::DeleteTags, Change::Amended(_)) => "ObjectTagging:Delete",
            _ => return None,
        })
    }
}

/// Who does it, and when.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    pub(crate) principal: String,
    pub(crate) source_ip: String,
    pub(crate) request_id: String,
    pub(crate) at: UnixMs,
}

impl Author {
    /// Somebody who asks from this socket.
    pub(crate) fn asking(
        principal: String,
        remote: Option<&str>,
        request_id: Option<String>,
        at: UnixMs,
    ) -> Self {
        let remote = remote.unwrap_or_default();
        let source_ip = match remote.parse::<SocketAddr>() {
            Ok(socket) => socket.ip().to_string(),
            Err(_) => remote.to_owned(),
        };
        Self { principal, source_ip, request_id: request_id.unwrap_or_default(), at }
    }

    /// The server itself, by a lifecycle rule.
    pub(crate) fn lifecycle(at: UnixMs) -> Self {
        let (principal, source_ip) = ("keyway:lifecycle".to_owned(), "keyway:lifecycle".to_owned());
        Self { principal, source_ip, request_id: String::new(), at }
    }
}

/// Tells of what one author does in one bucket.
pub(crate) struct Reporter {
    notifier: Arc<Notifier>,
    rules: Arc<Rules>,
    bucket: Bucket,
    author: Author,
    act: Act,
}

impl Notifier {
    /// Who tells of an act in a bucket, where somebody is to be told. `author` is asked then alone.
    ///
    /// # Errors
    /// The catalog's.
    pub(crate) async fn reporter(
        self: &Arc<Self>,
        catalog: &Catalog,
        bucket: &Bucket,
        act: Act,
        author: impl FnOnce() -> Author + Send,
    ) -> Result<Option<Reporter>, CatalogError> {
        let Some(rules) = self.rules(catalog, bucket).await? else { return Ok(None) };
        let (notifier, bucket) = (Arc::clone(self), bucket.clone());
        Ok(Some(Reporter { notifier, rules, bucket, author: author(), act }))
    }
}

impl Reporter {
    /// The bucket, with its reporter if it has one.
    pub(crate) fn site<'a>(bucket: &'a Bucket, reporter: Option<&'a Self>) -> Site<'a> {
        Site::told_by(bucket, reporter.map(|reporter| reporter as &dyn Teller))
    }

    /// As clients name versions of the bucket.
    fn named(&self, name: VersionName) -> Option<String> {
        let keeps = self.bucket.settings.versioning != Versioning::Unversioned;
        keeps.then(|| name.to_string())
    }
}

impl Teller for Reporter {
    fn tell(&self, key: &ObjectKey, change: &Change<'_>) -> Option<Notice> {
        let event = self.act.event(change)?;
        // Rules do not overlap: it is one at most.
        let rule = self.rules.iter().find(|rule| rule.fits(event, key))?;
        let Some(target) = self.notifier.named(&rule.arn, self.bucket.tenant) else {
            if self.notifier.strays.fetch_add(1, Ordering::Relaxed) == 0 {
                let (bucket, target) = (&self.bucket.name, &rule.arn.target);
                tracing::warn!(%bucket, target, "a bucket's events have no target any more");
            }
            return None;
        };
        let (at, object, version) = match change {
            Change::Published(object) => {
                let facts = (object.size, object.etag.as_str());
                (object.modified, Some(facts), self.named(object.name()))
            }
            Change::Amended(object) => {
                let facts = (object.size, object.etag.as_str());
                (self.author.at, Some(facts), self.named(object.name()))
            }
            Change::Removed(name) => (self.author.at, None, name.and_then(|name| self.named(name))),
            Change::Hidden(marker) => (marker.modified, None, self.named(marker.name())),
        };
        let region = match &*self.bucket.settings.region {
            "" => &self.notifier.region,
            region => region,
        };
        let record = Record::of(Facts {
            event,
            at,
            region,
            principal: &self.author.principal,
            source_ip: &self.author.source_ip,
            request_id: &self.author.request_id,
            rule: &rule.id,
            bucket: &self.bucket.name,
            owner: format!("{:012}", self.bucket.tenant.0),
            key,
            object,
            version,
        });
        let document = serde_json::to_vec(&record).expect("types of ours have a JSON form");
        Some(Notice {
            target: Arc::clone(&target.name),
            at,
            document: document.into(),
            at_most: self.notifier.at_most,
        })
    }

    fn drop_notice(&self, notice: &Notice) {
        let Some(target) = self.notifier.targets.get(&*notice.target) else { return };
        Counters::add(&target.counters.dropped);
        target.tell_drops();
    }
}
