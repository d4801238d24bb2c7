//! Writes whose clients do not wait for the device, and the wait for them afterwards.
//!
//! | step | where |
//! |---|---|
//! | what a client asks for, and is told | [`asked`], [`tell`] |
//! | copies and completions need durable bytes first | [`settled`], [`Awaited`] |
//! | the control endpoint | [`flush`] |

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use keyway_auth::policy::Action;
use keyway_meta::catalog::{Pending, PendingIn};
use keyway_meta::{Bucket, EtagPolicy, Versioning};
use keyway_proto::unit::KIB;
use keyway_proto::{Durability, FlushReply, FlushRequest, ObjectKey, UploadId};
use s3s::S3ErrorCode;

use super::access::{self, Caller};
use super::errors::Failure;
use super::{Core, resolve};
use crate::control::ControlError;
use crate::settle::{Settled, settle, settle_all};

/// What a write asks for, and what an answer tells.
const DURABILITY: HeaderName = HeaderName::from_static("x-keyway-durability");

/// Shorter bodies are always durable first: what their commit takes is not worth two of them.
const MEMORY_BYTES_MIN: u64 = 256 * KIB;

/// After this long a flush tells how far it came.
const CALL: Duration = Duration::from_secs(5);
/// How long a node may keep a question about what is on its way.
const WAIT: Duration = Duration::from_secs(1);
/// How often a copy or a completion waits: in between, others may write to memory again.
pub(super) const SETTLES_MAX: usize = 16;
/// How long a copy or a completion waits for the bytes that it needs to be durable.
const SETTLED_TIMEOUT: Duration = Duration::from_secs(300);
/// Parts or objects waited for together.
const PARTS_PAGE: usize = 256;
/// Buckets listed at once.
const PAGE: usize = 256;

/// What a request asks for; `None` without the header.
///
/// # Errors
/// `InvalidArgument` for anything but `disk` and `memory`, once.
pub(super) fn asked(headers: &HeaderMap) -> Result<Option<Durability>, Failure> {
    let mut values = headers.get_all(&DURABILITY).into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    let durability = value.to_str().ok().and_then(Durability::named);
    if values.next().is_some() || durability.is_none() {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "x-keyway-durability must be disk or memory",
        ));
    }
    Ok(durability)
}

/// What a body of this length is stored with. A bucket that keeps versions keeps durable ones, and
/// one whose changes are told has nothing told that could be undone.
pub(super) fn of_body(bucket: &Bucket, asked: Option<Durability>, length: u64) -> Durability {
    if length < MEMORY_BYTES_MIN { Durability::Disk } else { of_object(bucket, asked) }
}

/// What an object of this bucket may be.
pub(super) fn of_object(bucket: &Bucket, asked: Option<Durability>) -> Durability {
    match bucket.settings.versioning {
        Versioning::Unversioned if !bucket.settings.tells => asked.unwrap_or_default(),
        _ => Durability::Disk,
    }
}

/// How the ETag is made of a write that asks for this: an MD5 would take the time that the
/// client wants to save, whether memory has room or not.
pub(super) fn etag_policy(asked: Option<Durability>, of_bucket: EtagPolicy) -> EtagPolicy {
    match asked {
        Some(Durability::Memory) => EtagPolicy::Crc64Nvme,
        Some(Durability::Disk) | None => of_bucket,
    }
}

/// Tells a writer who asked what was done.
pub(super) fn tell(asked: Option<Durability>, done: Durability, headers: &mut HeaderMap) {
    if asked.is_some() {
        headers.insert(DURABILITY, HeaderValue::from_static(done.as_str()));
    }
}

/// Tells a reader of an object that is in memory alone.
pub(super) fn tell_reader(durability: Durability, headers: &mut HeaderMap) {
    if durability == Durability::Memory {
        headers.insert(DURABILITY, HeaderValue::from_static(durability.as_str()));
    }
}

/// Looks once at what is pending among these, without waiting: what has lost its bytes is gone
/// afterwards.
///
/// # Errors
/// The catalog's.
pub(super) async fn looked_at(core: &Core, among: PendingIn) -> Result<(), Failure> {
    settle_all(&core.catalog, &core.nodes, among, Duration::ZERO).await?;
    Ok(())
}

/// The same of one object.
///
/// # Errors
/// The catalog's.
pub(super) async fn looked_at_one(core: &Core, pending: Pending) -> Result<(), Failure> {
    settle(&core.catalog, &core.nodes, &[pending], Duration::ZERO).await?;
    Ok(())
}

/// What is waited for.
#[derive(Clone, Copy)]
pub(super) enum Awaited<'a> {
    /// The parts of an upload.
    Parts(UploadId),
    /// One object.
    Object(&'a Bucket, &'a ObjectKey),
    /// The objects of a bucket.
    Bucket(&'a Bucket),
}

impl Awaited<'_> {
    async fn pending(self, core: &Core) -> Result<Vec<Pending>, Failure> {
        match self {
            Self::Parts(id) => {
                Ok(core.catalog.pending(PendingIn::Upload(id), None, PARTS_PAGE).await?)
            }
            Self::Bucket(bucket) => {
                Ok(core.catalog.pending(PendingIn::Bucket(bucket.id), None, PARTS_PAGE).await?)
            }
            Self::Object(bucket, key) => {
                Ok(core.catalog.pending_object(bucket, key).await?.into_iter().collect())
            }
        }
    }
}

/// Waits until nothing of it is pending any more.
///
/// # Errors
/// The catalog's, and `SlowDown` when that takes too long.
pub(super) async fn settled(core: &Core, what: Awaited<'_>) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let pending = what.pending(core).await?;
        if pending.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= SETTLED_TIMEOUT {
            return Err(Failure::code(S3ErrorCode::SlowDown));
        }
        let Settled { durable, lost, .. } =
            settle(&core.catalog, &core.nodes, &pending, WAIT).await?;
        if durable + lost == 0 {
            // A node that does not answer keeps nobody waiting.
            tokio::time::sleep(WAIT / 10).await;
        }
    }
}

/// Waits, as far as one call goes, until what the request names is durable.
///
/// # Errors
/// `NoSuchBucket`, `NoSuchKey`, `InvalidArgument` for a key without a bucket.
pub(super) async fn flush(
    core: &Core,
    caller: &Caller,
    request: FlushRequest,
) -> Result<FlushReply, Failure> {
    let begun = Instant::now();
    let mut reply = FlushReply::default();
    loop {
        let Settled { durable, lost, pending } = look(core, caller, &request).await?;
        reply.settled += durable;
        reply.lost += lost;
        reply.pending = pending;
        if pending == 0 || begun.elapsed() >= CALL {
            return Ok(reply);
        }
        tokio::time::sleep(WAIT / 100).await;
    }
}

async fn look(core: &Core, caller: &Caller, request: &FlushRequest) -> Result<Settled, Failure> {
    let (catalog, nodes) = (&core.catalog, &core.nodes);
    let named = match &request.bucket {
        Some(name) => {
            let rules = caller.enter(core, name).await?;
            match &request.key {
                // Who may write it may wait for it.
                Some(key) => {
                    caller.may_in(&rules, Action::PutObject, &access::object(name, key))?;
                }
                None => caller.may_list_in(&rules, "")?,
            }
            Some(rules.bucket)
        }
        None => {
            caller.may_in_tenant(Action::ListAllMyBuckets)?;
            None
        }
    };
    match (named, &request.key) {
        (None, Some(_)) => Err(ControlError::OutOfBounds("key").into()),
        (Some(bucket), Some(key)) => {
            let key = resolve::key(key)?;
            match catalog.pending_object(&bucket, &key).await? {
                Some(pending) => Ok(settle(catalog, nodes, &[pending], WAIT).await?),
                None => {
                    // Asked for what is not there, nobody must believe that it is durable.
                    catalog.object(&bucket, &key).await?;
                    Ok(Settled::default())
                }
            }
        }
        (Some(bucket), None) => {
            Ok(settle_all(catalog, nodes, PendingIn::Bucket(bucket.id), WAIT).await?)
        }
        (None, None) => {
            let mut sum = Settled::default();
            let mut after = String::new();
            loop {
                let buckets = catalog.buckets(caller.tenant, "", &after, PAGE).await?;
                let Some(last) = buckets.last() else { return Ok(sum) };
                after = last.name.to_string();
                for bucket in &buckets {
                    let among = PendingIn::Bucket(bucket.id);
                    let Settled { durable, lost, pending } =
                        settle_all(catalog, nodes, among, WAIT).await?;
                    sum.durable += durable;
                    sum.lost += lost;
                    sum.pending += pending;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&'static str]) -> HeaderMap {
        values.iter().map(|value| (DURABILITY, HeaderValue::from_static(value))).collect()
    }

    fn bucket() -> Bucket {
        Bucket {
            id: keyway_proto::BucketId(1),
            tenant: keyway_proto::TenantId::ROOT,
            name: "bucket".parse().expect("a name"),
            created: keyway_meta::UnixMs(0),
            settings: keyway_meta::BucketSettings::default(),
        }
    }

    #[test]
    fn only_two_words_are_understood() {
        assert_eq!(asked(&headers(&[])).expect("none"), None);
        assert_eq!(asked(&headers(&["memory"])).expect("one"), Some(Durability::Memory));
        assert_eq!(asked(&headers(&["disk"])).expect("one"), Some(Durability::Disk));
        for bad in [&["Memory"][..], &[""], &["memory", "memory"], &["memory,disk"]] {
            assert!(asked(&headers(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn short_bodies_are_durable() {
        let memory = Some(Durability::Memory);
        let mut bucket = bucket();
        assert_eq!(of_body(&bucket, memory, MEMORY_BYTES_MIN - 1), Durability::Disk);
        assert_eq!(of_body(&bucket, memory, MEMORY_BYTES_MIN), Durability::Memory);
        assert_eq!(of_body(&bucket, None, u64::MAX), Durability::Disk);
        bucket.settings.versioning = Versioning::Suspended;
        assert_eq!(of_body(&bucket, memory, MEMORY_BYTES_MIN), Durability::Disk);
    }
}
