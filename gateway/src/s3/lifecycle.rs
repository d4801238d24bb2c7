//! Lifecycle rules, as clients give and get them.

use std::collections::HashSet;

use keyway_meta::ConfigurationKind;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::caller;
use super::errors::Failure;
use super::{Core, conditions, resolve};
use crate::configuration;
use crate::lifecycle::{Expire, Filter, Noncurrent, Rule, Rules};

/// Most rules of a bucket: S3's own limit.
const RULES_MAX: usize = 1000;
/// Longest id of a rule.
const ID_CHARS_MAX: usize = 255;
/// Most noncurrent versions that a rule keeps.
const KEPT_MAX: i32 = 100;
const DAY_MS: u64 = 86_400_000;

/// PutBucketLifecycleConfiguration.
pub(super) async fn put_bucket_lifecycle(
    core: &Core,
    request: S3Request<PutBucketLifecycleConfigurationInput>,
) -> Result<S3Response<PutBucketLifecycleConfigurationOutput>, Failure> {
    let input = &request.input;
    let given = input.lifecycle_configuration.as_ref().ok_or_else(malformed)?;
    if given.rules.is_empty() || given.rules.len() > RULES_MAX {
        return Err(malformed());
    }
    let rules = given.rules.iter().map(rule).collect::<Result<Rules, Failure>>()?;
    let mut ids = HashSet::new();
    if !rules.iter().all(|rule| ids.insert(&rule.id)) {
        return Err(invalid("Rule ID must be unique. Found same ID for more than one rule"));
    }
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    configuration::set(&core.catalog, &bucket, ConfigurationKind::Lifecycle, &rules).await?;
    Ok(S3Response::new(PutBucketLifecycleConfigurationOutput::default()))
}

/// GetBucketLifecycleConfiguration.
pub(super) async fn get_bucket_lifecycle(
    core: &Core,
    request: S3Request<GetBucketLifecycleConfigurationInput>,
) -> Result<S3Response<GetBucketLifecycleConfigurationOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let rules: Option<Rules> =
        configuration::get(&core.catalog, &bucket, ConfigurationKind::Lifecycle).await?;
    let rules = rules.ok_or_else(|| Failure::code(S3ErrorCode::NoSuchLifecycleConfiguration))?;
    Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
        rules: Some(rules.into_iter().map(told).collect()),
        ..GetBucketLifecycleConfigurationOutput::default()
    }))
}

/// DeleteBucketLifecycle.
pub(super) async fn delete_bucket_lifecycle(
    core: &Core,
    request: S3Request<DeleteBucketLifecycleInput>,
) -> Result<S3Response<DeleteBucketLifecycleOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    core.catalog.configure(&bucket, ConfigurationKind::Lifecycle, None).await?;
    Ok(S3Response::new(DeleteBucketLifecycleOutput::default()))
}

fn malformed() -> Failure {
    Failure::code(S3ErrorCode::MalformedXML)
}

fn invalid(message: &'static str) -> Failure {
    Failure::refuse(S3ErrorCode::InvalidArgument, message)
}

fn rule(given: &LifecycleRule) -> Result<Rule, Failure> {
    if given.transitions.is_some() || given.noncurrent_version_transitions.is_some() {
        return Err(Failure::not_implemented(
            "Transitions between storage classes are not implemented by this server.",
        ));
    }
    let enabled = match given.status.as_str() {
        ExpirationStatus::ENABLED => true,
        ExpirationStatus::DISABLED => false,
        _ => return Err(malformed()),
    };
    let id = match given.id.as_deref() {
        None | Some("") => format!("{:016x}", fastrand::u64(..)),
        Some(id) if id.chars().count() > ID_CHARS_MAX => {
            return Err(invalid("ID length should not exceed allowed limit of 255"));
        }
        Some(id) => id.to_owned(),
    };
    let (filter, bare_prefix) = match (&given.filter, &given.prefix) {
        (Some(given), None) => (filter(given)?, false),
        (None, Some(prefix)) => (Filter { prefix: prefix.clone(), ..Filter::default() }, true),
        _ => return Err(malformed()),
    };
    let rule = Rule {
        id,
        enabled,
        expire: given.expiration.as_ref().map(expire).transpose()?,
        noncurrent: given.noncurrent_version_expiration.as_ref().map(noncurrent).transpose()?,
        abort_days: given.abort_incomplete_multipart_upload.as_ref().map(abort_days).transpose()?,
        filter,
        bare_prefix,
    };
    if rule.expire.is_none() && rule.noncurrent.is_none() && rule.abort_days.is_none() {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "At least one action needs to be specified in a rule",
        ));
    }
    let by_content = rule.filter.asks_for_tags()
        || rule.filter.larger_than.is_some()
        || rule.filter.smaller_than.is_some();
    let without_content = rule.abort_days.is_some() || rule.expire == Some(Expire::LoneMarkers);
    if by_content && without_content {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "AbortIncompleteMultipartUpload and ExpiredObjectDeleteMarker cannot be specified with \
             tags or sizes.",
        ));
    }
    Ok(rule)
}

fn filter(given: &LifecycleRuleFilter) -> Result<Filter, Failure> {
    let named = [
        given.prefix.is_some(),
        given.tag.is_some(),
        given.object_size_greater_than.is_some(),
        given.object_size_less_than.is_some(),
        given.and.is_some(),
    ];
    if named.into_iter().filter(|named| *named).count() > 1 {
        return Err(malformed());
    }
    let (prefix, tags, larger, smaller) = match &given.and {
        Some(and) => (
            and.prefix.clone(),
            and.tags.clone().unwrap_or_default(),
            and.object_size_greater_than,
            and.object_size_less_than,
        ),
        None => (
            given.prefix.clone(),
            given.tag.clone().into_iter().collect(),
            given.object_size_greater_than,
            given.object_size_less_than,
        ),
    };
    let size = |given: Option<i64>| {
        given
            .map(|size| u64::try_from(size).map_err(|_| invalid("Sizes cannot be negative")))
            .transpose()
    };
    let tag = |tag: Tag| Ok((tag.key.ok_or_else(malformed)?, tag.value.ok_or_else(malformed)?));
    let tags = tags.into_iter().map(tag).collect::<Result<Vec<(String, String)>, Failure>>()?;
    let mut keys = HashSet::new();
    if !tags.iter().all(|(key, _)| keys.insert(key)) {
        return Err(Failure::refuse(
            S3ErrorCode::InvalidRequest,
            "Duplicate Tag Keys are not allowed.",
        ));
    }
    Ok(Filter {
        prefix: prefix.unwrap_or_default(),
        larger_than: size(larger)?,
        smaller_than: size(smaller)?,
        tags,
    })
}

fn expire(given: &LifecycleExpiration) -> Result<Expire, Failure> {
    let marker = given.expired_object_delete_marker;
    match (given.days, &given.date, marker) {
        (Some(days), None, None) => Ok(Expire::Days(positive(
            days,
            "'Days' for Expiration action must be a positive integer",
        )?)),
        (None, Some(date), None) => {
            let at = conditions::unix_ms(date).filter(|at| at.0 % DAY_MS == 0);
            Ok(Expire::At(at.ok_or_else(|| invalid("'Date' must be at midnight GMT"))?.0))
        }
        (None, None, Some(true)) => Ok(Expire::LoneMarkers),
        _ => Err(malformed()),
    }
}

fn noncurrent(given: &NoncurrentVersionExpiration) -> Result<Noncurrent, Failure> {
    let keep = match given.newer_noncurrent_versions {
        None => 0,
        Some(keep) if keep <= KEPT_MAX => {
            positive(keep, "'NewerNoncurrentVersions' must be a positive integer of at most 100")?
        }
        Some(_) => {
            return Err(invalid(
                "'NewerNoncurrentVersions' must be a positive integer of at most 100",
            ));
        }
    };
    let days = positive(
        given.noncurrent_days.ok_or_else(malformed)?,
        "'NoncurrentDays' for NoncurrentVersionExpiration action must be a positive integer",
    )?;
    Ok(Noncurrent { days, keep })
}

fn abort_days(given: &AbortIncompleteMultipartUpload) -> Result<u32, Failure> {
    positive(
        given.days_after_initiation.ok_or_else(malformed)?,
        "'DaysAfterInitiation' for AbortIncompleteMultipartUpload action must be a positive \
         integer",
    )
}

fn positive(given: i32, message: &'static str) -> Result<u32, Failure> {
    u32::try_from(given).ok().filter(|days| *days > 0).ok_or_else(|| invalid(message))
}

fn told(rule: Rule) -> LifecycleRule {
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let Filter { prefix, .. } = rule.filter.clone();
    LifecycleRule {
        id: Some(rule.id),
        status: ExpirationStatus::from_static(if rule.enabled {
            ExpirationStatus::ENABLED
        } else {
            ExpirationStatus::DISABLED
        }),
        prefix: rule.bare_prefix.then_some(prefix),
        filter: (!rule.bare_prefix).then(|| told_filter(rule.filter)),
        expiration: rule.expire.map(|expire| match expire {
            Expire::Days(days) => {
                LifecycleExpiration { days: Some(number(days)), ..LifecycleExpiration::default() }
            }
            Expire::At(at) => LifecycleExpiration {
                date: Some(conditions::timestamp(keyway_meta::UnixMs(at))),
                ..LifecycleExpiration::default()
            },
            Expire::LoneMarkers => LifecycleExpiration {
                expired_object_delete_marker: Some(true),
                ..LifecycleExpiration::default()
            },
        }),
        noncurrent_version_expiration: rule.noncurrent.map(|rule| NoncurrentVersionExpiration {
            noncurrent_days: Some(number(rule.days)),
            newer_noncurrent_versions: (rule.keep > 0).then(|| number(rule.keep)),
        }),
        abort_incomplete_multipart_upload: rule.abort_days.map(|days| {
            AbortIncompleteMultipartUpload { days_after_initiation: Some(number(days)) }
        }),
        noncurrent_version_transitions: None,
        transitions: None,
    }
}

fn told_filter(filter: Filter) -> LifecycleRuleFilter {
    let size = |size: Option<u64>| size.and_then(|size| i64::try_from(size).ok());
    let (larger, smaller) = (size(filter.larger_than), size(filter.smaller_than));
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    let mut tags: Vec<Tag> = filter.tags.into_iter().map(tag).collect();
    let named = usize::from(!filter.prefix.is_empty())
        + tags.len()
        + usize::from(larger.is_some())
        + usize::from(smaller.is_some());
    let prefix = Some(filter.prefix);
    if named > 1 {
        let and = LifecycleRuleAndOperator {
            prefix: prefix.filter(|prefix| !prefix.is_empty()),
            tags: (!tags.is_empty()).then_some(tags),
            object_size_greater_than: larger,
            object_size_less_than: smaller,
        };
        return LifecycleRuleFilter { and: Some(and), ..LifecycleRuleFilter::default() };
    }
    let tag = tags.pop();
    let bare = tag.is_none() && larger.is_none() && smaller.is_none();
    LifecycleRuleFilter {
        prefix: prefix.filter(|_| bare),
        tag,
        object_size_greater_than: larger,
        object_size_less_than: smaller,
        ..LifecycleRuleFilter::default()
    }
}
