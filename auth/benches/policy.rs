//! What a question to policies costs.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use keyway_auth::policy::{
    Action, Caller, Context, Key, Policies, Policy, PublicAccessBlock, Request, Resource, TagKey,
    evaluate,
};
use keyway_proto::TenantId;

/// Ten statements, as a team's policy has them; the last one allows what is asked.
const TYPICAL: &str = r#"{
  "Version": "2012-10-17",
  "Statement": [
    {"Sid": "Tls", "Effect": "Deny", "Action": "s3:*", "Resource": "*",
     "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
    {"Sid": "Office", "Effect": "Deny", "Action": "s3:*", "Resource": "*",
     "Condition": {"NotIpAddress": {
       "aws:SourceIp": ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"]}}},
    {"Sid": "Buckets", "Effect": "Allow", "Action": ["s3:ListAllMyBuckets", "s3:GetBucketLocation"],
     "Resource": "*"},
    {"Sid": "List", "Effect": "Allow", "Action": "s3:ListBucket",
     "Resource": "arn:aws:s3:::models",
     "Condition": {"StringLike": {"s3:prefix": ["", "home/", "home/${aws:username}/*"]}}},
    {"Sid": "Keep", "Effect": "Deny", "Action": ["s3:DeleteObject*", "s3:PutLifecycleConfiguration"],
     "Resource": ["arn:aws:s3:::models", "arn:aws:s3:::models/release/*"]},
    {"Sid": "Tagged", "Effect": "Deny", "Action": "s3:GetObject", "Resource": "*",
     "Condition": {"StringEquals": {"s3:ExistingObjectTag/class": "secret"}}},
    {"Sid": "Hours", "Effect": "Deny", "Action": "s3:*", "Resource": "*",
     "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}}},
    {"Sid": "Window", "Effect": "Deny", "Action": "keyway:*", "Resource": "*",
     "Condition": {"StringNotEquals": {"keyway:KeyStrength": "window"}}},
    {"Sid": "Checkpoints", "Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"],
     "Resource": "arn:aws:s3:::models/*/checkpoints/*.safetensors"},
    {"Sid": "Home", "Effect": "Allow", "Action": "s3:*Object",
     "Resource": "arn:aws:s3:::models/home/${aws:username}/*"}
  ]
}"#;

fn policy(criterion: &mut Criterion) {
    let text = TYPICAL;
    criterion.bench_function("policy: read ten statements", |bench| {
        bench.iter(|| Policy::identity(black_box(text)).expect("a policy"));
    });
    let identity = [Arc::new(Policy::identity(text).expect("a policy"))];
    let bucket = text
        .replace(r#""Action""#, r#""Principal": "*", "Action""#)
        .replace(r#"["s3:ListAllMyBuckets", "s3:GetBucketLocation"]"#, r#""s3:GetBucketLocation""#);
    let name = "models".parse().expect("a name");
    let bucket = Policy::bucket(&bucket, &name).expect("a policy");
    let caller = Caller::user(TenantId(1), "anna", "AIDA1");
    let resource = Resource::object("models", "home/anna/llama/layer-00017.safetensors");
    let mut context = Context::new();
    context
        .set(Key::SourceIp, "10.1.2.3".parse::<std::net::IpAddr>().expect("an address"))
        .set(Key::SecureTransport, true)
        .set(Key::UserAgent, "aws-sdk-rust/1.3 os/linux lang/rust")
        .set(Key::RequestedRegion, "us-east-1")
        .set(Key::AuthType, "REST-HEADER")
        .set(Key::SignatureVersion, "AWS4-HMAC-SHA256")
        .set(Key::SignatureAge, 120_u32)
        .set(Key::Path, "verbs-gpu")
        .set(Key::KeyStrength, "window")
        .set_tag(TagKey::ExistingObject, "class", "open");
    let request = Request {
        caller: &caller,
        action: Action::GetObject,
        resource: &resource,
        owner: Some(TenantId(1)),
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        context: &context,
    };
    let block = PublicAccessBlock::ALL;
    let one = Policies { identity: &identity, block, ..Policies::default() };
    assert!(evaluate(&request, &one).is_allow());
    criterion.bench_function("policy: ask one of ten statements", |bench| {
        bench.iter(|| evaluate(black_box(&request), black_box(&one)));
    });
    let two = Policies { bucket: Some(&bucket), ..one };
    assert!(evaluate(&request, &two).is_allow());
    criterion.bench_function("policy: ask two of ten statements", |bench| {
        bench.iter(|| evaluate(black_box(&request), black_box(&two)));
    });
    criterion.bench_function("policy: tell the context, ask one of ten statements", |bench| {
        bench.iter(|| {
            let resource = Resource::object("models", "home/anna/llama/layer-00017.safetensors");
            let mut context = Context::new();
            context
                .set(Key::SourceIp, "10.1.2.3".parse::<std::net::IpAddr>().expect("an address"))
                .set(Key::SecureTransport, true)
                .set(Key::UserAgent, "aws-sdk-rust/1.3 os/linux lang/rust")
                .set(Key::Path, "verbs-gpu")
                .set(Key::KeyStrength, "window");
            let request = Request { resource: &resource, context: &context, ..request };
            evaluate(&request, &one).is_allow()
        });
    });
}

criterion_group!(benches, policy);
criterion_main!(benches);
