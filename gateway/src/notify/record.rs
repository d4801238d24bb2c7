//! What a target is told: S3's event message, version 2.1.

use jiff::Timestamp;
use keyway_meta::UnixMs;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::{Deserialize, Serialize};

const VERSION: &str = "2.1";
const SCHEMA: &str = "1.0";
const SOURCE: &str = "keyway:s3";

/// What S3 leaves of keys as it is; a space becomes `+`.
const KEY: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'*').remove(b'/').remove(b' ');

/// A message: one record.
#[derive(Serialize)]
pub(super) struct Message<'a> {
    #[serde(rename = "Records")]
    pub(super) records: [&'a Record; 1],
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    event_version: String,
    event_source: String,
    aws_region: String,
    event_time: String,
    event_name: String,
    user_identity: Identity,
    request_parameters: Parameters,
    response_elements: Elements,
    s3: S3,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    principal_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Parameters {
    #[serde(rename = "sourceIPAddress")]
    source_ip_address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Elements {
    #[serde(rename = "x-amz-request-id")]
    request_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct S3 {
    #[serde(rename = "s3SchemaVersion")]
    schema_version: String,
    #[serde(rename = "configurationId")]
    configuration_id: String,
    bucket: Bucket,
    object: Object,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bucket {
    name: String,
    owner_identity: Identity,
    arn: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e_tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequencer: Option<String>,
}

/// What a record is made of.
pub(super) struct Facts<'a> {
    /// Without `s3:`.
    pub(super) event: &'a str,
    pub(super) at: UnixMs,
    pub(super) region: &'a str,
    pub(super) principal: &'a str,
    pub(super) source_ip: &'a str,
    pub(super) request_id: &'a str,
    /// The rule's id.
    pub(super) rule: &'a str,
    pub(super) bucket: &'a str,
    /// The account number of the bucket's owner.
    pub(super) owner: String,
    pub(super) key: &'a str,
    /// Size and ETag, where there is an object.
    pub(super) object: Option<(u64, &'a str)>,
    pub(super) version: Option<String>,
}

impl Record {
    pub(super) fn of(facts: Facts<'_>) -> Self {
        let Facts { object, version, .. } = facts;
        Self {
            event_version: VERSION.into(),
            event_source: SOURCE.into(),
            aws_region: facts.region.into(),
            event_time: time(facts.at),
            event_name: facts.event.into(),
            user_identity: Identity { principal_id: facts.principal.into() },
            request_parameters: Parameters { source_ip_address: facts.source_ip.into() },
            response_elements: Elements { request_id: facts.request_id.into() },
            s3: S3 {
                schema_version: SCHEMA.into(),
                configuration_id: facts.rule.into(),
                bucket: Bucket {
                    name: facts.bucket.into(),
                    owner_identity: Identity { principal_id: facts.owner },
                    arn: format!("arn:aws:s3:::{}", facts.bucket),
                },
                object: Object {
                    key: encoded(facts.key),
                    size: object.map(|(size, _)| size),
                    e_tag: object.map(|(_, tag)| tag.to_owned()),
                    version_id: version,
                    sequencer: None,
                },
            },
        }
    }

    /// The same, in its place among all events.
    pub(super) fn numbered(mut self, number: u64) -> Self {
        self.s3.object.sequencer = Some(sequencer(number));
        self
    }
}

/// The place of an event among all: of one key's events, the later one is the greater text.
pub(super) fn sequencer(number: u64) -> String {
    format!("{number:016X}")
}

/// What is sent when a bucket's rules are set, as S3 does.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct TestEvent<'a> {
    service: &'static str,
    event: &'static str,
    time: String,
    bucket: &'a str,
    request_id: &'a str,
}

impl<'a> TestEvent<'a> {
    pub(super) fn of(bucket: &'a str, request_id: &'a str, at: UnixMs) -> Self {
        Self { service: "Keyway", event: "s3:TestEvent", time: time(at), bucket, request_id }
    }
}

fn time(at: UnixMs) -> String {
    let at = i64::try_from(at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    format!("{:.3}", at.unwrap_or(Timestamp::UNIX_EPOCH))
}

fn encoded(key: &str) -> String {
    percent_encode(key.as_bytes(), KEY).to_string().replace(' ', "+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_as_s3_does() {
        assert_eq!(encoded("a/red flower.jpg"), "a/red+flower.jpg");
        assert_eq!(encoded("a+b%20ü"), "a%2Bb%2520%C3%BC");
    }

    #[test]
    fn records_are_s3s() {
        let facts = Facts {
            event: "ObjectCreated:Put",
            at: UnixMs(1_700_000_000_005),
            region: "eu",
            principal: "arn:aws:iam::000000000001:root",
            source_ip: "192.0.2.1",
            request_id: "R",
            rule: "rule",
            bucket: "data",
            owner: "000000000001".into(),
            key: "a b",
            object: Some((3, "tag")),
            version: None,
        };
        let record = Record::of(facts);
        let kept: Record = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(kept, record);
        let told = kept.numbered(255);
        let told = serde_json::to_value(Message { records: [&told] }).unwrap();
        let expected = serde_json::json!({ "Records": [{
            "eventVersion": "2.1",
            "eventSource": "keyway:s3",
            "awsRegion": "eu",
            "eventTime": "2023-11-14T22:13:20.005Z",
            "eventName": "ObjectCreated:Put",
            "userIdentity": { "principalId": "arn:aws:iam::000000000001:root" },
            "requestParameters": { "sourceIPAddress": "192.0.2.1" },
            "responseElements": { "x-amz-request-id": "R" },
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": "rule",
                "bucket": {
                    "name": "data",
                    "ownerIdentity": { "principalId": "000000000001" },
                    "arn": "arn:aws:s3:::data",
                },
                "object": {
                    "key": "a+b", "size": 3, "eTag": "tag", "sequencer": "00000000000000FF",
                },
            },
        }] });
        assert_eq!(told, expected);
    }
}
