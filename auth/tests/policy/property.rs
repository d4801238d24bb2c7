//! Random policies and requests of few words, so that they meet: both evaluators must agree.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value as Json, json};

use crate::naive::Outcome;
use crate::scene::{Documents, Question, Who};

const WHO: [&str; 10] = [
    "nobody",
    "root",
    "anna",
    "ben",
    "user/hr/anna",
    "ops/night",
    "ops/day",
    "root@2",
    "anna@2",
    "ops/night@2",
];

const ASKED: [(&str, &[&str]); 8] = [
    ("s3:GetObject", &["photos/a", "photos/a/b", "photos/anna/x", "photos/*", "videos/a"]),
    ("s3:PutObject", &["photos/a", "photos/ab", "photos/ben/x"]),
    ("s3:DeleteObjectVersion", &["photos/a", "photos/a/b"]),
    ("s3:ListBucket", &["photos", "videos"]),
    ("s3:PutBucketPolicy", &["photos"]),
    ("s3:GetBucketPolicy", &["photos"]),
    ("s3:ListAllMyBuckets", &["*"]),
    ("keyway:RdmaGet", &["photos/a", "photos/anna/x"]),
];

const ACTIONS: [&str; 11] = [
    "s3:GetObject",
    "s3:PutObject",
    "s3:Get*",
    "s3:*Bucket*",
    "s3:?etObject",
    "s3:*",
    "*",
    "S3:DELETEOBJECT*",
    "s3:ListAllMyBuckets",
    "keyway:*",
    "s3:ListBucket",
];

const RESOURCES: [&str; 12] = [
    "*",
    "arn:aws:s3:::*",
    "arn:aws:s3:::photos",
    "arn:aws:s3:::photos/*",
    "arn:aws:s3:::photos/a",
    "arn:aws:s3:::photos/a*",
    "arn:aws:s3:::photos/?",
    "arn:aws:s3:::photos/*/x",
    "arn:aws:s3:::photos/${aws:username}/*",
    "arn:aws:s3:::photos/${aws:PrincipalTag/team, 'a'}",
    "arn:aws:s3:::photos/${*}",
    "arn:*:s3:*::photos*b",
];

const PRINCIPALS: [&str; 10] = [
    "*",
    "000000000001",
    "arn:aws:iam::000000000001:root",
    "arn:aws:iam::000000000001:user/anna",
    "arn:aws:iam::000000000001:user/hr/anna",
    "arn:aws:iam::000000000001:role/ops",
    "arn:aws:sts::000000000001:assumed-role/ops/night",
    "000000000002",
    "arn:aws:iam::000000000002:user/anna",
    "arn:aws:sts::000000000002:assumed-role/ops/night",
];

/// Operators, a key, and values to compare with or to send.
type Topic =
    (&'static [&'static str], &'static str, &'static [&'static str], &'static [&'static str]);

const TOPICS: [Topic; 10] = [
    (
        &[
            "StringEquals",
            "StringNotEquals",
            "StringLike",
            "StringNotLike",
            "StringEqualsIgnoreCase",
        ],
        "s3:x-amz-acl",
        &[
            "a",
            "a*",
            "A",
            "?b",
            "${aws:username}",
            "${s3:x-amz-storage-class}",
            "${aws:PrincipalTag/team, 'AB'}",
        ],
        &["a", "A", "ab", "anna", ""],
    ),
    (
        &["StringLike", "StringNotEqualsIgnoreCase"],
        "s3:x-amz-storage-class",
        &["*", "a*b", "AB"],
        &["a", "ab", "axb"],
    ),
    (
        &["ArnLike", "ArnNotEquals", "StringNotLike"],
        "aws:PrincipalTag/team",
        &["*", "arn:aws:iam::*:*", "arn:aws:?am::${aws:username}:x"],
        &["a", "*", "arn:aws:iam::1:x", "arn:aws:iam::anna:x"],
    ),
    (
        &["StringEquals", "StringNotEquals", "StringLike", "StringNotLike"],
        "s3:RequestObjectTagKeys",
        &["a", "b", "*b", "${aws:username}"],
        &["a", "b", "anna", "cb"],
    ),
    (
        &[
            "NumericEquals",
            "NumericNotEquals",
            "NumericLessThan",
            "NumericLessThanEquals",
            "NumericGreaterThan",
            "NumericGreaterThanEquals",
        ],
        "s3:signatureAge",
        &["1", "2.5", "10"],
        &["1", "2", "2.5", "x"],
    ),
    (
        &["DateEquals", "DateNotEquals", "DateLessThan", "DateGreaterThanEquals"],
        "aws:CurrentTime",
        &["2024-06-01T12:00:00Z", "2024-06-02", "1717243200"],
        &["2024-06-02T00:00:00Z", "1717243201"],
    ),
    (&["Bool"], "aws:SecureTransport", &["true", "false"], &["true", "False", "x"]),
    (
        &["IpAddress", "NotIpAddress"],
        "aws:SourceIp",
        &["10.0.0.0/8", "10.0.0.1", "0.0.0.0/0", "2001:db8::/32"],
        &["10.0.0.1", "10.9.9.9", "11.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"],
    ),
    (
        &["ArnEquals", "ArnLike", "ArnNotLike", "StringLike"],
        "aws:PrincipalArn",
        &[
            "arn:aws:iam::*:user/*",
            "arn:aws:iam::000000000001:user/anna",
            "arn:aws:sts::*:assumed-role/ops/?ight",
            "arn:aws:iam::${aws:PrincipalAccount}:root",
        ],
        &[],
    ),
    (&["Null"], "s3:x-amz-acl", &["true", "false"], &[]),
];

fn one_or_many(values: &[&'static str]) -> Json {
    match values {
        [one] => json!(one),
        _ => json!(values),
    }
}

fn some(values: &'static [&'static str]) -> impl Strategy<Value = Json> {
    subsequence(values.to_vec(), 1..=values.len().min(3)).prop_map(|values| one_or_many(&values))
}

/// An operator's object.
fn condition() -> impl Strategy<Value = (String, Json)> {
    select(&TOPICS[..]).prop_flat_map(|(operators, key, values, _)| {
        let set = select(vec!["", "", "", "ForAnyValue:", "ForAllValues:"]);
        (set, select(operators.to_vec()), any::<bool>(), some(values)).prop_map(
            move |(set, operator, if_exists, values)| {
                let name = match operator {
                    "Null" => "Null".to_owned(),
                    _ if if_exists => format!("{set}{operator}IfExists"),
                    _ => format!("{set}{operator}"),
                };
                (name, json!({ key: values }))
            },
        )
    })
}

fn statement(principals: bool) -> impl Strategy<Value = Json> {
    let element = |name: &'static str, values: &'static [&'static str]| {
        (prop::bool::weighted(0.2), some(values)).prop_map(move |(not, values)| {
            (if not { format!("Not{name}") } else { name.to_owned() }, values)
        })
    };
    let principal = (prop::bool::weighted(0.3), some(&PRINCIPALS));
    (
        prop::bool::weighted(0.7),
        element("Action", &ACTIONS),
        element("Resource", &RESOURCES),
        principal,
        vec(condition(), 0..=2),
    )
        .prop_map(move |(allow, action, resource, (not, principal), conditions)| {
            let mut statement = json!({ "Effect": if allow { "Allow" } else { "Deny" } });
            statement[action.0] = action.1;
            statement[resource.0] = resource.1;
            if principals {
                let name = if not && !allow { "NotPrincipal" } else { "Principal" };
                statement[name] = json!({ "AWS": principal });
            }
            if !conditions.is_empty() {
                statement["Condition"] = Json::Object(conditions.into_iter().collect());
            }
            statement
        })
}

fn policy(principals: bool) -> impl Strategy<Value = String> {
    let version = select(vec!["2012-10-17", "2012-10-17", "2012-10-17", "2008-10-17"]);
    (version, vec(statement(principals), 1..=4)).prop_map(|(version, statements)| {
        json!({ "Version": version, "Statement": statements }).to_string()
    })
}

fn documents() -> impl Strategy<Value = Documents> {
    (
        vec(policy(false), 0..=2),
        option::weighted(0.2, policy(false)),
        option::weighted(0.6, policy(true)),
        any::<bool>(),
    )
        .prop_map(|(identity, session, bucket, restrict)| Documents {
            identity,
            session: session.into_iter().collect(),
            bucket,
            restrict,
        })
}

fn question() -> impl Strategy<Value = Question> {
    let asked =
        select(&ASKED[..]).prop_flat_map(|(action, on)| (Just(action), select(on.to_vec())));
    let told = |topic: Topic| {
        let (_, key, _, sent) = topic;
        let most = match (key, sent.len()) {
            (_, 0) => 0,
            ("s3:RequestObjectTagKeys", most) => most,
            _ => 1,
        };
        subsequence(sent.to_vec(), 0..=most).prop_map(move |values| {
            values.into_iter().map(|value| (key.to_owned(), value.to_owned())).collect::<Vec<_>>()
        })
    };
    let context = TOPICS.map(told).to_vec();
    (select(&WHO[..]), asked, context).prop_map(|(who, (action, resource), context)| Question {
        who: Who::parse(who),
        action: action.to_owned(),
        resource: resource.to_owned(),
        context: context.into_iter().flatten().collect(),
    })
}

/// A bucket policy that S3 would refuse is left out: what is refused is `refused.toml`'s matter.
fn storable(mut documents: Documents) -> Documents {
    let alone = Documents { bucket: documents.bucket.clone(), ..Documents::default() };
    if alone.parse().is_err() {
        documents.bucket = None;
    }
    documents
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn both_evaluators_agree(
        documents in documents().prop_map(storable),
        questions in vec(question(), 8),
    ) {
        let parsed = documents.parse();
        prop_assert!(parsed.is_ok(), "{:?}", parsed.err());
        let parsed = parsed.unwrap();
        for question in questions {
            let answer = parsed.ask(&question);
            let naive = documents.ask_naive(&question);
            prop_assert_eq!(answer.outcome, naive, "{:#?} {:#?}", documents, question);
        }
    }
}

/// Goal: the random questions are worth asking: all three answers occur, and bucket policies
/// that can be stored.
#[test]
fn the_random_questions_meet_the_random_policies() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut count = [0; 4];
    for _ in 0..500 {
        let documents = storable(documents().new_tree(&mut runner).unwrap().current());
        count[3] += usize::from(documents.bucket.is_some());
        let question = question().new_tree(&mut runner).unwrap().current();
        count[match documents.ask_naive(&question) {
            Outcome::Allow => 0,
            Outcome::Explicit => 1,
            Outcome::Implicit => 2,
        }] += 1;
    }
    assert!(count.iter().all(|count| *count > 50), "{count:?}");
}
