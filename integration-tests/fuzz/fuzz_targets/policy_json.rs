//! Policies: any text is refused or taken; what is taken keeps its text, says whom it denies
//! first, and answers every question without a panic.
#![no_main]

use std::sync::{Arc, LazyLock};

use keyway_auth::policy::{
    Action, Caller, Context, Decision, DeniedBy, Key, Policies, Policy, PublicAccessBlock, Request,
    Resource, TagKey, evaluate,
};
use keyway_proto::{BucketName, TenantId};
use libfuzzer_sys::fuzz_target;

static BUCKET: LazyLock<BucketName> = LazyLock::new(|| "photos".parse().expect("a name"));
static CALLERS: LazyLock<[Caller; 5]> = LazyLock::new(|| {
    [
        Caller::anonymous(),
        Caller::root(TenantId(1)),
        Caller::user(TenantId(1), "hr/anna", "AIDA1"),
        Caller::user(TenantId(2), "ben", "AIDA2"),
        Caller::session(TenantId(1), "ops", "night", "AROA1"),
    ]
});

fuzz_target!(|text: &str| {
    let identity = Policy::identity(text);
    let bucket = Policy::bucket(text, &BUCKET);
    if let Err(error) = &identity {
        assert!(!error.to_string().is_empty());
    }
    for policy in [&identity, &bucket].into_iter().flatten() {
        assert_eq!(policy.text(), text);
        let _ = policy.principals().count();
    }
    if identity.is_err() && bucket.is_err() {
        return;
    }
    let own: Vec<Arc<Policy>> = identity.iter().cloned().map(Arc::new).collect();
    let mut context = Context::new();
    context
        .set(Key::SourceIp, "10.0.0.1")
        .set(Key::Prefix, "home/")
        .set(Key::MaxKeys, 10_u32)
        .set(Key::SecureTransport, true)
        .set_all(Key::RequestObjectTagKeys, vec!["a".into(), "b".into()])
        .set_tag(TagKey::ExistingObject, "team", "*")
        .set_tag(TagKey::Principal, "team", "re?");
    for caller in &*CALLERS {
        for (action, resource) in [
            (Action::GetObject, Resource::object("photos", "home/anna/x:y")),
            (Action::PutObjectTagging, Resource::object("photos", "*")),
            (Action::ListBucket, Resource::bucket("photos")),
            (Action::RdmaGet, Resource::object("photos", "ä")),
        ] {
            let request = Request {
                caller,
                action,
                resource: &resource,
                owner: Some(TenantId(1)),
                now: jiff::Timestamp::UNIX_EPOCH,
                context: &context,
            };
            let policies = Policies {
                identity: &own,
                session: &[],
                bucket: bucket.as_ref().ok(),
                block: PublicAccessBlock::ALL,
            };
            let decision = evaluate(&request, &policies);
            assert!(!decision.to_string().is_empty());
            // A session with the same policies can do no more, and denies as well.
            let bounded = evaluate(&request, &Policies { session: &own, ..policies });
            assert!(!bounded.is_allow() || decision.is_allow());
            // Neither can somebody whose bucket has no policy that allows.
            let alone = evaluate(&request, &Policies { bucket: None, ..policies });
            if matches!(decision, Decision::Deny(DeniedBy::NoIdentityPolicy)) {
                assert!(!alone.is_allow());
            }
        }
    }
});
