//! Documents that are no policies, and those at the edge that are.

use keyway_auth::policy::{
    BUCKET_POLICY_BYTES_MAX, IDENTITY_POLICY_CHARACTERS_MAX, Policy, PolicyError,
    PublicAccessBlock, SESSION_POLICY_CHARACTERS_MAX, TagKey,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    refused: Vec<Refused>,
    accepted: Vec<Accepted>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    kind: String,
    document: String,
    error: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    kind: String,
    why: String,
    document: String,
    #[serde(default)]
    public: bool,
}

fn read(kind: &str, document: &str) -> Result<Policy, PolicyError> {
    match kind {
        "identity" => Policy::identity(document),
        "session" => Policy::session(document),
        "bucket" => Policy::bucket(document, &crate::scene::BUCKET.parse().unwrap()),
        other => panic!("{other:?} is no kind of policy"),
    }
}

#[test]
fn refusals_name_the_flaw_and_its_place() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policy/refused.toml");
    let file: File = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for Refused { kind, document, error } in &file.refused {
        match read(kind, document) {
            Ok(_) => wrong.push(format!("{document} was accepted, not: {error}")),
            Err(found) if found.to_string() != *error => {
                wrong.push(format!("{document}: {found}, not: {error}"));
            }
            Err(_) => {}
        }
    }
    for Accepted { kind, why, document, public } in &file.accepted {
        match read(kind, document) {
            Err(error) => wrong.push(format!("{why}: {document}: {error}")),
            Ok(policy) => {
                // What is stored is what was given.
                assert_eq!(policy.text(), document);
                if policy.is_public() != *public {
                    wrong.push(format!("{why}: {document}: public is {}", policy.is_public()));
                }
                let block = PublicAccessBlock::ALL;
                assert_eq!(block.accepts(&policy), !*public, "{why}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(file.refused.len() >= 50 && file.accepted.len() >= 20);
}

/// Lengths are counted as AWS counts them: bytes of a bucket's policy, characters but white
/// space of the others.
#[test]
fn policies_have_a_greatest_length() {
    let sized = |length: usize, filler: &str| {
        let frame = r#"{"Version":"2012-10-17","Id":"","Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}"#;
        frame.replace(r#""Id":"""#, &format!(r#""Id":"{}""#, filler.repeat(length - frame.len())))
    };
    for (kind, limit) in
        [("identity", IDENTITY_POLICY_CHARACTERS_MAX), ("session", SESSION_POLICY_CHARACTERS_MAX)]
    {
        assert!(read(kind, &sized(limit, "x")).is_ok());
        assert!(read(kind, &sized(limit + 1, "x")).is_err());
        assert!(read(kind, &sized(limit, "ä")).is_ok(), "characters, not bytes");
        assert!(read(kind, &sized(limit * 4, " ")).is_ok(), "white space is free");
        assert!(read(kind, &sized(limit * 9, " ")).is_err(), "but not without end");
    }
    let bucket = |length| {
        sized(length - r#""Principal":"*","#.len(), "x")
            .replace(r#""Action""#, r#""Principal":"*","Action""#)
    };
    assert!(read("bucket", &bucket(BUCKET_POLICY_BYTES_MAX)).is_ok());
    let error = read("bucket", &bucket(BUCKET_POLICY_BYTES_MAX + 1)).unwrap_err();
    assert_eq!(error.to_string(), "the policy: 20481 characters, where 20480 are the limit");
    assert_eq!(PolicyError::CODE, "MalformedPolicy");
}

/// A nest of brackets is refused before it exhausts the stack.
#[test]
fn nests_are_refused() {
    let deep = format!("{}{}", "[".repeat(3000), "]".repeat(3000));
    assert!(read("identity", &deep).is_err());
    let deep = format!("{}1{}", r#"{"a":"#.repeat(1000), "}".repeat(1000));
    assert!(read("identity", &deep).is_err());
}

/// A gateway looks tags up only for policies that ask for them.
#[test]
fn a_policy_tells_which_tags_it_asks_for() {
    let plain = r#"{"Statement":{"Effect":"Allow","Action":"s3:*","Resource":"*"}}"#;
    let policy = read("identity", plain).unwrap();
    assert!(TagKey::ALL.iter().all(|family| !policy.asks_for(*family)));
    let tagged = r#"{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:GetObject",
        "Resource":"arn:aws:s3:::photos/${aws:PrincipalTag/team}/*",
        "Condition":{"StringEquals":{"s3:ExistingObjectTag/class":"${aws:RequestTag/x, 'y'}"}}}}"#;
    let policy = read("identity", tagged).unwrap();
    let asked: Vec<_> = TagKey::ALL.iter().filter(|family| policy.asks_for(**family)).collect();
    assert_eq!(asked, [&TagKey::Principal, &TagKey::Request, &TagKey::ExistingObject]);
}
