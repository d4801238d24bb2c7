//! Who is told of changes in a bucket: its rules, as clients give and get them.
//!
//! Destinations are the operator's targets (`[notify.targets]`), named as queues: topics, functions
//! and EventBridge are refused. A target that the bucket's tenant may not name is answered as one
//! that is not there.

use std::collections::HashSet;

use keyway_meta::Bucket;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response};

use super::access::{Caller, caller};
use super::errors::Failure;
use super::service::RequestId;
use super::{Core, resolve};
use crate::notify::{Act, Arn, Author, Reporter, Rule, Rules, is_known};

/// Most rules of a bucket: S3's own limit.
const RULES_MAX: usize = 100;
/// Longest id of a rule, and longest value of a filter.
const TEXT_CHARS_MAX: usize = 255;
const FILTER_BYTES_MAX: usize = 1024;

/// Who tells of what a request does in a bucket, where somebody is to be told.
///
/// # Errors
/// The catalog's.
pub(super) async fn reporter(
    core: &Core,
    caller: &Caller,
    bucket: &Bucket,
    act: Act,
) -> Result<Option<Reporter>, Failure> {
    let author = || {
        let request = caller.request();
        let (remote, id) = (request.remote.as_deref(), request.request_id.clone());
        Author::asking(caller.name(), remote, id, core.clock.now())
    };
    Ok(core.notifier.reporter(&core.catalog, bucket, act, author).await?)
}

/// GetBucketNotificationConfiguration.
pub(super) async fn get_bucket_notification(
    core: &Core,
    request: S3Request<GetBucketNotificationConfigurationInput>,
) -> Result<S3Response<GetBucketNotificationConfigurationOutput>, Failure> {
    let input = &request.input;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    let rules = core.notifier.rules(&core.catalog, &bucket).await?;
    Ok(S3Response::new(GetBucketNotificationConfigurationOutput {
        queue_configurations: rules.map(|rules| rules.iter().map(told).collect()),
        ..GetBucketNotificationConfigurationOutput::default()
    }))
}

/// PutBucketNotificationConfiguration. An empty document ends all telling.
pub(super) async fn put_bucket_notification(
    core: &Core,
    request: S3Request<PutBucketNotificationConfigurationInput>,
) -> Result<S3Response<PutBucketNotificationConfigurationOutput>, Failure> {
    let input = &request.input;
    let rules = rules(&input.notification_configuration)?;
    let owner = input.expected_bucket_owner.as_deref();
    let bucket = resolve::bucket(core, caller(&request.extensions)?, &input.bucket, owner).await?;
    if !rules.iter().all(|rule| core.notifier.knows(&rule.arn, bucket.tenant)) {
        return Err(unable());
    }
    if input.skip_destination_validation != Some(true) {
        let id = request.extensions.get::<RequestId>().map(RequestId::as_str).unwrap_or_default();
        let mut tested = HashSet::new();
        for arn in rules.iter().map(|rule| &rule.arn) {
            if !tested.insert(&arn.target) {
                continue;
            }
            let sent = core.notifier.test(arn, &bucket, id, core.clock.now()).await;
            sent.map_err(|error| {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(target = arn.target, error, "a test event was not taken");
                unable()
            })?;
        }
    }
    let document = serde_json::to_vec(&rules).expect("types of ours have a JSON form");
    let document = (!rules.is_empty()).then_some(&document[..]);
    core.catalog.set_notification(bucket.tenant, &bucket.name, document).await?;
    Ok(S3Response::new(PutBucketNotificationConfigurationOutput::default()))
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::refuse(S3ErrorCode::InvalidArgument, message.into())
}

fn unable() -> Failure {
    invalid("Unable to validate the following destination configurations")
}

fn rules(given: &NotificationConfiguration) -> Result<Rules, Failure> {
    let topics = given.topic_configurations.as_ref().is_some_and(|topics| !topics.is_empty());
    let functions =
        given.lambda_function_configurations.as_ref().is_some_and(|list| !list.is_empty());
    if topics || functions || given.event_bridge_configuration.is_some() {
        return Err(invalid("Only QueueConfiguration is supported: targets are named as queues."));
    }
    let queues = given.queue_configurations.as_deref().unwrap_or_default();
    if queues.len() > RULES_MAX {
        return Err(invalid(format!("A bucket has at most {RULES_MAX} configurations.")));
    }
    let rules = queues.iter().map(rule).collect::<Result<Rules, Failure>>()?;
    let mut ids = HashSet::new();
    if !rules.iter().all(|rule| ids.insert(&rule.id)) {
        return Err(invalid("Same ID used for multiple configurations. IDs must be unique"));
    }
    for (index, rule) in rules.iter().enumerate() {
        if rules[..index].iter().any(|other| rule.overlaps(other)) {
            return Err(invalid(
                "Configurations overlap. Configurations on the same bucket cannot share a common \
                 event type.",
            ));
        }
    }
    Ok(rules)
}

fn rule(given: &QueueConfiguration) -> Result<Rule, Failure> {
    let id = match &given.id {
        Some(id) if id.chars().count() > TEXT_CHARS_MAX => {
            return Err(invalid("The ID of a configuration has at most 255 characters."));
        }
        Some(id) if !id.is_empty() => id.clone(),
        _ => format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)),
    };
    let arn: Arn = given.queue_arn.parse().map_err(|_| invalid("The ARN is not well formed"))?;
    if given.events.is_empty() {
        return Err(Failure::code(S3ErrorCode::MalformedXML));
    }
    let events: Vec<String> = given.events.iter().cloned().map(String::from).collect();
    if let Some(unknown) = events.iter().find(|event| !is_known(event)) {
        return Err(invalid(format!("The event '{unknown}' is not supported for notifications")));
    }
    let (mut prefix, mut suffix) = (None, None);
    let filter = given.filter.as_ref().and_then(|filter| filter.key.as_ref());
    for filter in filter.and_then(|key| key.filter_rules.as_deref()).unwrap_or_default() {
        let name = filter.name.as_ref().map(FilterRuleName::as_str).unwrap_or_default();
        let value = filter.value.clone().unwrap_or_default();
        if value.len() > FILTER_BYTES_MAX {
            return Err(invalid("The value of a filter has at most 1024 bytes."));
        }
        let place = match name.to_ascii_lowercase().as_str() {
            "prefix" => &mut prefix,
            "suffix" => &mut suffix,
            _ => return Err(invalid("filter rule name must be either prefix or suffix")),
        };
        if place.replace(value).is_some() {
            return Err(invalid(format!(
                "Cannot specify more than one {} rule in a filter.",
                name.to_ascii_lowercase()
            )));
        }
    }
    Ok(Rule { id, arn, events, prefix, suffix })
}

fn told(rule: &Rule) -> QueueConfiguration {
    let filter = |name: &'static str, value: &Option<String>| {
        let name = FilterRuleName::from_static(name);
        value.clone().map(|value| FilterRule { name: Some(name), value: Some(value) })
    };
    let filters: Vec<FilterRule> = filter(FilterRuleName::PREFIX, &rule.prefix)
        .into_iter()
        .chain(filter(FilterRuleName::SUFFIX, &rule.suffix))
        .collect();
    let key = S3KeyFilter { filter_rules: Some(filters.clone()) };
    QueueConfiguration {
        id: Some(rule.id.clone()),
        queue_arn: rule.arn.to_string(),
        events: rule.events.iter().cloned().map(Event::from).collect(),
        filter: (!filters.is_empty()).then_some(NotificationConfigurationFilter { key: Some(key) }),
    }
}
