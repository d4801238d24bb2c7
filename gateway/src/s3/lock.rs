//! Object lock: what keeps versions from being deleted, and until when.
//!
//! The catalog keeps a lock with its version, and asks it before a version goes. Here is what
//! clients may ask of it. Governance is bypassed by those who say so
//! (`x-amz-bypass-governance-retention`); compliance and legal holds by nobody.

use keyway_meta::{
    Bucket, Catalog, CatalogError, ConfigurationKind, Object, ObjectLock, Retention, RetentionMode,
    UnixMs, Versioning,
};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};
use serde::{Deserialize, Serialize};

use super::access::caller;
use super::errors::Failure;
use super::{Core, conditions, resolve};
use crate::configuration;

const DAY_MS: u64 = 86_400_000;
/// Longest default retention: S3's own limits.
const DAYS_MAX: u32 = 36_500;
const YEARS_MAX: u32 = 100;

/// How new versions of a bucket are locked, unless their requests say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DefaultLock {
    compliance: bool,
    days: Option<u32>,
    years: Option<u32>,
}

impl DefaultLock {
    /// # Errors
    /// `MalformedXML`, and `InvalidRetentionPeriod` for a period that is none.
    fn of(rule: &DefaultRetention) -> Result<Self, Failure> {
        let malformed = || Failure::code(S3ErrorCode::MalformedXML);
        let mode = mode(rule.mode.as_ref().ok_or_else(malformed)?)?;
        let period = |given: Option<i32>, most: u32| match given {
            None => Ok(None),
            Some(given) => match u32::try_from(given) {
                Ok(period) if (1..=most).contains(&period) => Ok(Some(period)),
                _ => Err(Failure::refuse(
                    S3ErrorCode::Custom("InvalidRetentionPeriod".into()),
                    "Default retention period must be a positive integer value within its bounds.",
                )),
            },
        };
        if rule.days.is_some() == rule.years.is_some() {
            return Err(malformed());
        }
        Ok(Self {
            compliance: mode == RetentionMode::Compliance,
            days: period(rule.days, DAYS_MAX)?,
            years: period(rule.years, YEARS_MAX)?,
        })
    }

    fn told(self) -> ObjectLockRule {
        let mode =
            if self.compliance { RetentionMode::Compliance } else { RetentionMode::Governance };
        let told = |period: Option<u32>| period.and_then(|period| i32::try_from(period).ok());
        ObjectLockRule {
            default_retention: Some(DefaultRetention {
                mode: Some(ObjectLockRetentionMode::from_static(mode_name(mode))),
                days: told(self.days),
                years: told(self.years),
            }),
        }
    }

    fn from(self, now: UnixMs) -> Retention {
        let days = u64::from(self.days.unwrap_or(0)) + 365 * u64::from(self.years.unwrap_or(0));
        let mode =
            if self.compliance { RetentionMode::Compliance } else { RetentionMode::Governance };
        Retention { mode, until: UnixMs(now.0.saturating_add(days * DAY_MS)) }
    }
}

/// The lock that a request gives to what it makes.
///
/// # Errors
/// `InvalidArgument` for half a retention, or one that is over.
pub(super) fn of_headers(
    core: &Core,
    mode_given: Option<&ObjectLockMode>,
    until: Option<&Timestamp>,
    legal_hold: Option<&ObjectLockLegalHoldStatus>,
) -> Result<ObjectLock, Failure> {
    let invalid = |message: &'static str| Failure::refuse(S3ErrorCode::InvalidArgument, message);
    let retention = match (mode_given, until) {
        (None, None) => None,
        (Some(given), Some(until)) => {
            let mode =
                named_mode(given.as_str()).ok_or_else(|| invalid("Unknown wormMode directive."))?;
            Some(Retention { mode, until: future(core, until)? })
        }
        _ => {
            return Err(invalid(
                "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be \
                 supplied",
            ));
        }
    };
    Ok(ObjectLock {
        retention,
        legal_hold: hold(legal_hold.map(ObjectLockLegalHoldStatus::as_str))?,
    })
}

/// The lock of what is made in this bucket: the request's, or the bucket's own.
///
/// # Errors
/// `InvalidRequest` for a lock in a bucket whose versions cannot be locked.
pub(super) async fn applied(
    core: &Core,
    bucket: &Bucket,
    given: ObjectLock,
) -> Result<ObjectLock, Failure> {
    if !bucket.settings.object_lock {
        return if given == ObjectLock::default() { Ok(given) } else { Err(missing()) };
    }
    let retention = match given.retention {
        Some(retention) => Some(retention),
        None => default_of(&core.catalog, bucket, core.clock.now()).await?,
    };
    Ok(ObjectLock { retention, ..given })
}

/// The retention that a version made now has by itself.
///
/// # Errors
/// The catalog's.
pub(super) async fn default_of(
    catalog: &Catalog,
    bucket: &Bucket,
    now: UnixMs,
) -> Result<Option<Retention>, CatalogError> {
    if !bucket.settings.object_lock {
        return Ok(None);
    }
    let lock: Option<DefaultLock> =
        configuration::get(catalog, bucket, ConfigurationKind::ObjectLock).await?;
    Ok(lock.map(|lock| lock.from(now)))
}

fn missing() -> Failure {
    Failure::refuse(S3ErrorCode::InvalidRequest, "Bucket is missing Object Lock Configuration")
}

fn future(core: &Core, until: &Timestamp) -> Result<UnixMs, Failure> {
    conditions::unix_ms(until).filter(|until| *until > core.clock.now()).ok_or_else(|| {
        Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "The retain until date must be in the future!",
        )
    })
}

fn named_mode(name: &str) -> Option<RetentionMode> {
    match name {
        ObjectLockRetentionMode::GOVERNANCE => Some(RetentionMode::Governance),
        ObjectLockRetentionMode::COMPLIANCE => Some(RetentionMode::Compliance),
        _ => None,
    }
}

fn mode(given: &ObjectLockRetentionMode) -> Result<RetentionMode, Failure> {
    named_mode(given.as_str()).ok_or_else(|| Failure::code(S3ErrorCode::MalformedXML))
}

/// A mode as S3 names it.
pub(super) fn mode_name(mode: RetentionMode) -> &'static str {
    match mode {
        RetentionMode::Governance => ObjectLockRetentionMode::GOVERNANCE,
        RetentionMode::Compliance => ObjectLockRetentionMode::COMPLIANCE,
    }
}

fn hold(given: Option<&str>) -> Result<bool, Failure> {
    match given {
        None | Some(ObjectLockLegalHoldStatus::OFF) => Ok(false),
        Some(ObjectLockLegalHoldStatus::ON) => Ok(true),
        Some(_) => Err(Failure::refuse(
            S3ErrorCode::InvalidArgument,
            "Legal Hold must be either ON or OFF",
        )),
    }
}

/// PutObjectLockConfiguration.
pub(super) async fn put_object_lock_configuration(
    core: &Core,
    request: S3Request<PutObjectLockConfigurationInput>,
) -> Result<S3Response<PutObjectLockConfigurationOutput>, Failure> {
    let input = &request.input;
    let malformed = || Failure::code(S3ErrorCode::MalformedXML);
    let given = input.object_lock_configuration.as_ref().ok_or_else(malformed)?;
    let enabled = given.object_lock_enabled.as_ref().map(ObjectLockEnabled::as_str);
    if enabled != Some(ObjectLockEnabled::ENABLED) {
        return Err(malformed());
    }
    let default = match &given.rule {
        None => None,
        Some(rule) => {
            Some(DefaultLock::of(rule.default_retention.as_ref().ok_or_else(malformed)?)?)
        }
    };
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    if bucket.settings.versioning != Versioning::Enabled {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidBucketState,
            "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration",
        ));
    }
    core.catalog.enable_object_lock(bucket.tenant, &bucket.name).await?;
    match default {
        Some(lock) => {
            configuration::set(&core.catalog, &bucket, ConfigurationKind::ObjectLock, &lock)
                .await?;
        }
        None => core.catalog.configure(&bucket, ConfigurationKind::ObjectLock, None).await?,
    }
    Ok(S3Response::new(PutObjectLockConfigurationOutput::default()))
}

/// GetObjectLockConfiguration.
pub(super) async fn get_object_lock_configuration(
    core: &Core,
    request: S3Request<GetObjectLockConfigurationInput>,
) -> Result<S3Response<GetObjectLockConfigurationOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    if !bucket.settings.object_lock {
        return Err(Failure::code(S3ErrorCode::ObjectLockConfigurationNotFoundError));
    }
    let lock: Option<DefaultLock> =
        configuration::get(&core.catalog, &bucket, ConfigurationKind::ObjectLock).await?;
    Ok(S3Response::new(GetObjectLockConfigurationOutput {
        object_lock_configuration: Some(ObjectLockConfiguration {
            object_lock_enabled: Some(ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED)),
            rule: lock.map(DefaultLock::told),
        }),
    }))
}

/// PutObjectRetention: prolonged by anybody, shortened or lifted as far as its mode lets.
pub(super) async fn put_object_retention(
    core: &Core,
    request: S3Request<PutObjectRetentionInput>,
) -> Result<S3Response<PutObjectRetentionOutput>, Failure> {
    let input = &request.input;
    let malformed = || Failure::code(S3ErrorCode::MalformedXML);
    let given = input.retention.as_ref().ok_or_else(malformed)?;
    let wanted = match (&given.mode, &given.retain_until_date) {
        (None, None) => None,
        (Some(given), Some(until)) => {
            Some(Retention { mode: mode(given)?, until: future(core, until)? })
        }
        _ => return Err(malformed()),
    };
    let bypass = input.bypass_governance_retention == Some(true);
    let owner = input.expected_bucket_owner.as_deref();
    let named = (&*input.bucket, &*input.key, input.version_id.as_deref(), owner);
    let now = core.clock.now();
    amend(core, &request, named, |object| {
        let lock = &mut object.headers.lock;
        if !may_replace(lock.retention, wanted, bypass, now) {
            return Err(CatalogError::Locked);
        }
        lock.retention = wanted;
        Ok(())
    })
    .await?;
    Ok(S3Response::new(PutObjectRetentionOutput::default()))
}

/// Whether a retention that holds may become the one wanted.
fn may_replace(
    held: Option<Retention>,
    wanted: Option<Retention>,
    bypass: bool,
    now: UnixMs,
) -> bool {
    let Some(held) = held.filter(|held| held.until > now) else { return true };
    let no_weaker = wanted.is_some_and(|wanted| {
        let weaker_mode =
            held.mode == RetentionMode::Compliance && wanted.mode == RetentionMode::Governance;
        wanted.until >= held.until && !weaker_mode
    });
    no_weaker || (held.mode == RetentionMode::Governance && bypass)
}

/// GetObjectRetention.
pub(super) async fn get_object_retention(
    core: &Core,
    request: S3Request<GetObjectRetentionInput>,
) -> Result<S3Response<GetObjectRetentionOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let named = (&*input.bucket, &*input.key, input.version_id.as_deref(), owner);
    let retention = read(core, &request, named).await?.headers.lock.retention;
    let retention =
        retention.ok_or_else(|| Failure::code(S3ErrorCode::NoSuchObjectLockConfiguration))?;
    Ok(S3Response::new(GetObjectRetentionOutput {
        retention: Some(ObjectLockRetention {
            mode: Some(ObjectLockRetentionMode::from_static(mode_name(retention.mode))),
            retain_until_date: Some(conditions::timestamp(retention.until)),
        }),
    }))
}

/// PutObjectLegalHold.
pub(super) async fn put_object_legal_hold(
    core: &Core,
    request: S3Request<PutObjectLegalHoldInput>,
) -> Result<S3Response<PutObjectLegalHoldOutput>, Failure> {
    let input = &request.input;
    let malformed = || Failure::code(S3ErrorCode::MalformedXML);
    let status = input.legal_hold.as_ref().and_then(|hold| hold.status.as_ref());
    let status = status.ok_or_else(malformed)?.as_str();
    let legal_hold = hold(Some(status)).map_err(|_| malformed())?;
    let owner = input.expected_bucket_owner.as_deref();
    let named = (&*input.bucket, &*input.key, input.version_id.as_deref(), owner);
    amend(core, &request, named, |object| {
        object.headers.lock.legal_hold = legal_hold;
        Ok(())
    })
    .await?;
    Ok(S3Response::new(PutObjectLegalHoldOutput::default()))
}

/// GetObjectLegalHold.
pub(super) async fn get_object_legal_hold(
    core: &Core,
    request: S3Request<GetObjectLegalHoldInput>,
) -> Result<S3Response<GetObjectLegalHoldOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let named = (&*input.bucket, &*input.key, input.version_id.as_deref(), owner);
    let status = match read(core, &request, named).await?.headers.lock.legal_hold {
        true => ObjectLockLegalHoldStatus::ON,
        false => ObjectLockLegalHoldStatus::OFF,
    };
    let status = Some(ObjectLockLegalHoldStatus::from_static(status));
    Ok(S3Response::new(GetObjectLegalHoldOutput {
        legal_hold: Some(ObjectLockLegalHold { status }),
    }))
}

/// Bucket, key, version and expected owner, as a request names them.
type Named<'a> = (&'a str, &'a str, Option<&'a str>, Option<&'a str>);

async fn lockable<T>(
    core: &Core,
    request: &S3Request<T>,
    bucket: &str,
    owner: Option<&str>,
) -> Result<Bucket, Failure> {
    let bucket = resolve::bucket(core, caller(&request.extensions)?, bucket, owner).await?;
    if bucket.settings.object_lock { Ok(bucket) } else { Err(missing()) }
}

async fn read<T>(
    core: &Core,
    request: &S3Request<T>,
    (bucket, key, version, owner): Named<'_>,
) -> Result<Object, Failure> {
    let (key, version) = (resolve::key(key)?, resolve::version(version)?);
    let bucket = lockable(core, request, bucket, owner).await?;
    Ok(core.catalog.read(&bucket, &key, version).await?)
}

async fn amend<T>(
    core: &Core,
    request: &S3Request<T>,
    (bucket, key, version, owner): Named<'_>,
    change: impl Fn(&mut Object) -> Result<(), CatalogError> + Send + Sync,
) -> Result<Object, Failure> {
    let (key, version) = (resolve::key(key)?, resolve::version(version)?);
    let bucket = lockable(core, request, bucket, owner).await?;
    Ok(core.catalog.amend(&bucket, &key, version, change).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: S3's table of what may follow on what.
    #[test]
    fn retention_is_never_weakened_but_by_those_who_may() {
        let of = |mode, until| Some(Retention { mode, until: UnixMs(until) });
        let (governance, compliance) = (RetentionMode::Governance, RetentionMode::Compliance);
        for (held, wanted, bypass, allowed) in [
            (None, of(governance, 20), false, true),
            (of(governance, 20), of(governance, 30), false, true),
            (of(governance, 20), of(governance, 15), false, false),
            (of(governance, 20), of(governance, 15), true, true),
            (of(governance, 20), of(compliance, 20), false, true),
            (of(governance, 20), None, false, false),
            (of(governance, 20), None, true, true),
            (of(compliance, 20), of(compliance, 30), false, true),
            (of(compliance, 20), of(compliance, 15), true, false),
            (of(compliance, 20), of(governance, 30), true, false),
            (of(compliance, 20), None, true, false),
            (of(compliance, 10), None, false, true),
        ] {
            let found = may_replace(held, wanted, bypass, UnixMs(10));
            assert_eq!(found, allowed, "{held:?} {wanted:?} {bypass}");
        }
    }

    #[test]
    fn default_locks_count_days() {
        let of = |days, years| DefaultRetention {
            mode: Some(ObjectLockRetentionMode::from_static(ObjectLockRetentionMode::COMPLIANCE)),
            days,
            years,
        };
        let lock = DefaultLock::of(&of(None, Some(1))).ok().map(|lock| lock.from(UnixMs(1)));
        let expected =
            Retention { mode: RetentionMode::Compliance, until: UnixMs(365 * DAY_MS + 1) };
        assert_eq!(lock, Some(expected));
        for (days, years) in
            [(None, None), (Some(1), Some(1)), (Some(0), None), (Some(-1), None), (None, Some(101))]
        {
            assert!(DefaultLock::of(&of(days, years)).is_err(), "{days:?} {years:?}");
        }
    }
}
