//! CPU per request of authentication and authorisation, in the S3 service without sockets: who
//! signs, and whether policies let them.
//!
//! `HeadObject` does little else: what one costs over the protocol layer alone, which verifies the
//! signature, is above what is asked here. `root` asks policies nothing but the bucket's rows;
//! `user` has ten statements of its own and a bucket policy; `denied` ends at the last statement.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails where it cannot go on")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use keyway_auth::directory::{
    AccessKey, Change, Key, KeyState, Limits, ManagedPolicy, NamedPolicy, Quota, Standing, Tenant,
    User, UserKind,
};
use keyway_auth::policy::PublicAccessBlock;
use keyway_auth::sigv4::{Payload, Signer};
use keyway_auth::{AccessKeyId, KeyFile, RootCredentials, SecretKey};
use keyway_dataplane::LocalNode;
use keyway_gateway::accounts::{Accounts, AccountsError};
use keyway_gateway::node::Nodes;
use keyway_gateway::s3::{S3Config, S3HttpService, S3State, SystemClock, service};
use keyway_meta::{Catalog, EmbeddedStore, MetaConfig, MetaStore};
use keyway_proto::unit::MIB;
use keyway_proto::{NodeId, TenantId};
use tower::Service;

const ROOT_KEY: &str = "AKIDROOT";
const USER_KEY: &str = "AKIDUSER";
const SECRET: &str = "not-a-secret-outside-this-benchmark";
const TENANT: TenantId = TenantId(1);

/// Ten statements; the last one but one allows what is asked.
const POLICY: &str = r#"{"Version": "2012-10-17", "Statement": [
    {"Effect": "Deny", "Action": "s3:*", "Resource": "*",
     "Condition": {"NotIpAddress": {"aws:SourceIp": ["10.0.0.0/8", "127.0.0.0/8"]},
                   "Null": {"aws:SourceIp": "false"}}},
    {"Effect": "Allow", "Action": ["s3:ListAllMyBuckets", "s3:GetBucketLocation"], "Resource": "*"},
    {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::bucket",
     "Condition": {"StringLike": {"s3:prefix": ["", "home/${aws:username}/*"]}}},
    {"Effect": "Deny", "Action": "s3:DeleteObject*", "Resource": "arn:aws:s3:::bucket/release/*"},
    {"Effect": "Deny", "Action": "s3:GetObject", "Resource": "*",
     "Condition": {"StringEquals": {"s3:ExistingObjectTag/class": "secret"}}},
    {"Effect": "Deny", "Action": "s3:*", "Resource": "*",
     "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2090-01-01T00:00:00Z"}}},
    {"Effect": "Deny", "Action": "keyway:*", "Resource": "*",
     "Condition": {"StringNotEquals": {"keyway:KeyStrength": "window"}}},
    {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*.safetensors"},
    {"Effect": "Allow", "Action": "s3:*Object", "Resource": "arn:aws:s3:::bucket/home/${aws:username}/*"},
    {"Effect": "Deny", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/home/*/sealed/*"}
]}"#;

const BUCKET_POLICY: &str = r#"{"Version": "2012-10-17", "Statement": [
    {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::bucket/*",
     "Condition": {"StringNotLike": {"aws:PrincipalArn": "arn:aws:iam::*:user/admin-*"}}},
    {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::bucket/*",
     "Condition": {"Bool": {"aws:ViaAWSService": "true"}}}
]}"#;

fn signed(key: &str, method: Method, path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let secret = SecretKey::new(SECRET.to_owned());
    let signer = Signer::new(AccessKeyId::new(key), secret, "us-east-1", "s3");
    let request = Request::builder()
        .method(method)
        .uri(format!("http://localhost{path}"))
        .header("content-length", body.len())
        .header("user-agent", "aws-sdk-rust/1.3 os/linux lang/rust")
        .body(())
        .unwrap();
    let (mut parts, ()) = request.into_parts();
    signer.sign(&mut parts, Payload::Unsigned, jiff::Timestamp::now()).unwrap();
    Request::from_parts(parts, Full::new(Bytes::from_static(body.as_bytes())))
}

async fn exchange(mut service: S3HttpService, request: Request<Full<Bytes>>) -> u16 {
    let response = service.call(request).await.unwrap();
    let status = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    status
}

async fn accounts(store: Arc<dyn MetaStore>, dir: &std::path::Path, nodes: Nodes) -> Accounts {
    let secret = || SecretKey::new(SECRET.to_owned());
    let root = RootCredentials::given("AKIDOPERATOR", secret()).unwrap();
    let key = KeyFile::open_or_create(&dir.join("key")).unwrap();
    let rows = keyway_meta::Accounts::new(store);
    let clock = Arc::new(SystemClock);
    let accounts = Accounts::open(rows, Arc::new(key), root, clock, nodes).await.unwrap();
    let created = jiff::Timestamp::UNIX_EPOCH;
    let tenant = Tenant {
        number: TENANT,
        name: "bench".parse().unwrap(),
        state: Standing::Active,
        created,
        public_access_block: PublicAccessBlock::default(),
        limits: Limits::default(),
        quota: Quota::default(),
        verification: None,
        weight: keyway_proto::Weight::default(),
    };
    accounts.add_tenant(tenant).await.unwrap();
    let policy = ManagedPolicy {
        tenant: TENANT,
        name: "own".parse().unwrap(),
        created,
        document: POLICY.to_owned(),
    };
    let user = User {
        tenant: TENANT,
        name: "anna".parse().unwrap(),
        id: "KWU1".to_owned(),
        kind: UserKind::Person,
        state: Standing::Active,
        created,
        groups: [].into(),
        policies: ["own".parse().unwrap()].into(),
        tags: [].into(),
        sessions_valid_from: None,
        limits: Limits::default(),
        quota: Quota::default(),
    };
    let key = |id: &str, user: Option<&str>| {
        let record = AccessKey {
            id: AccessKeyId::new(id),
            tenant: TENANT,
            user: user.map(|name| name.parse().unwrap()),
            state: KeyState::Active,
            created,
            expires: None,
            policy: None,
            description: String::new(),
        };
        Change::PutKey(Key::read(record, secret()).unwrap())
    };
    for change in [
        Change::PutPolicy(NamedPolicy::read(policy).unwrap()),
        Change::PutUser(user),
        key(ROOT_KEY, None),
        key(USER_KEY, Some("anna")),
    ] {
        accounts.change(|_| Ok::<_, AccountsError>(Some(change))).await.unwrap();
    }
    accounts
}

fn requests(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The engine that serves: what its reads cost belongs to it.
    let meta = MetaConfig { cache_bytes: 16 << 20, reserve_bytes: 0 };
    let store = Arc::new(EmbeddedStore::open(dir.path(), &meta).unwrap());
    let nodes = Nodes::single(LocalNode::in_memory(NodeId(1), 256 * MIB, 64 << 20).unwrap());
    let accounts = runtime.block_on(accounts(store.clone(), dir.path(), nodes.clone()));
    let state = S3State {
        catalog: Arc::new(Catalog::new(store)),
        nodes,
        credentials: Arc::new(accounts),
        secrets: Arc::new(KeyFile::in_memory()),
        administration: None,
        audit: Default::default(),
        limiter: Default::default(),
        clock: Arc::new(SystemClock),
        issuers: Default::default(),
        notifier: Arc::default(),
        maintenance: None,
    };
    let service = service(state, &S3Config::default()).unwrap();
    let once = |request| runtime.block_on(exchange(service.clone(), request));
    assert_eq!(once(signed(ROOT_KEY, Method::PUT, "/bucket", "")), 200);
    assert_eq!(once(signed(ROOT_KEY, Method::PUT, "/bucket?policy", BUCKET_POLICY)), 204);
    for key in ["home/anna/a", "home/anna/sealed/a"] {
        assert_eq!(once(signed(ROOT_KEY, Method::PUT, &format!("/bucket/{key}"), "x")), 200);
    }
    for (name, key, path, status) in [
        ("access/head/root", ROOT_KEY, "/bucket/home/anna/a", 200),
        ("access/head/user", USER_KEY, "/bucket/home/anna/a", 200),
        ("access/head/denied", USER_KEY, "/bucket/home/anna/sealed/a", 403),
    ] {
        let request = signed(key, Method::HEAD, path, "");
        assert_eq!(once(request.clone()), status, "{name}");
        c.bench_function(name, |b| {
            b.to_async(&runtime).iter(|| exchange(service.clone(), black_box(request.clone())));
        });
    }
}

criterion_group!(benches, requests);
criterion_main!(benches);
