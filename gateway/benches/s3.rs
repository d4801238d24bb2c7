//! CPU per request of the S3 service, without sockets: signed requests into the tower service,
//! answers read to their end, over a catalog and a node in memory.
//!
//! `protocol/get` is the floor: the same request through the protocol layer alone, over a
//! constant. What the operations add is the difference to `get/4KiB`.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails where it cannot go on")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use keyway_auth::sigv4::{Payload, Signer};
use keyway_auth::{AccessKeyId, Credential, CredentialStore, KeyFile, Principal, SecretKey};
use keyway_dataplane::LocalNode;
use keyway_gateway::node::Nodes;
use keyway_gateway::s3::{S3Config, S3State, SystemClock, service};
use keyway_meta::{Catalog, MemoryStore};
use keyway_proto::unit::MIB;
use keyway_proto::{NodeId, TenantId};
use s3s::auth::SimpleAuth;
use s3s::dto::{ETag, GetObjectInput, GetObjectOutput, StreamingBlob};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Request, S3Response, S3Result};
use tower::{Service, ServiceExt};

const ACCESS_KEY: &str = "AKIDBENCH";
const SECRET_KEY: &str = "bench";
const BODY: Bytes = Bytes::from_static(&[7; 4096]);

struct OneKey;

impl CredentialStore for OneKey {
    fn find(&self, id: &str) -> Option<Credential> {
        (id == ACCESS_KEY).then(|| Credential {
            principal: Principal::root(TenantId::ROOT, AccessKeyId::new(ACCESS_KEY)),
            secret: SecretKey::new(SECRET_KEY.to_owned()),
        })
    }
}

/// The protocol layer over a constant.
struct Constant;

#[async_trait::async_trait]
impl S3 for Constant {
    async fn get_object(
        &self,
        _: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::from_bytes(BODY)),
            content_length: Some(BODY.len() as i64),
            e_tag: Some(ETag::Strong("900150983cd24fb0d6963f7d28e17f72".to_owned())),
            ..GetObjectOutput::default()
        }))
    }
}

fn signed(method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    signed_with(method, path, body, HeaderMap::new())
}

fn signed_with(
    method: Method,
    path: &str,
    body: Bytes,
    headers: HeaderMap,
) -> Request<Full<Bytes>> {
    let secret = SecretKey::new(SECRET_KEY.to_owned());
    let signer = Signer::new(AccessKeyId::new(ACCESS_KEY), secret, "us-east-1", "s3");
    let request = Request::builder()
        .method(method)
        .uri(format!("http://localhost{path}"))
        .header("content-length", body.len())
        .body(body)
        .unwrap();
    let (mut parts, body) = request.into_parts();
    parts.headers.extend(headers);
    signer.sign(&mut parts, Payload::Unsigned, jiff::Timestamp::now()).unwrap();
    Request::from_parts(parts, Full::new(body))
}

async fn exchange<S, B>(mut service: S, request: Request<Full<Bytes>>) -> usize
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
    B: http_body::Body,
    B::Error: std::fmt::Debug,
{
    let response = service.ready().await.unwrap().call(request).await.unwrap();
    assert!(response.status().is_success(), "{}", response.status());
    response.into_body().collect().await.unwrap().to_bytes().len()
}

fn requests(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let node = LocalNode::in_memory(NodeId(1), 4096 * MIB, 64 << 20).unwrap();
    let state = S3State {
        catalog: Arc::new(Catalog::new(Arc::new(MemoryStore::new()))),
        nodes: Nodes::single(node),
        credentials: Arc::new(OneKey),
        secrets: Arc::new(KeyFile::in_memory()),
        clock: Arc::new(SystemClock),
        administration: None,
        audit: Default::default(),
        limiter: Default::default(),
        issuers: Default::default(),
        notifier: Arc::default(),
        maintenance: None,
    };
    let ours = service(state, &S3Config::default()).unwrap();
    let mut builder = S3ServiceBuilder::new(Constant);
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
    let floor = builder.build();
    runtime.block_on(exchange(ours.clone(), signed(Method::PUT, "/bucket", Bytes::new())));
    let mut policy = HeaderMap::new();
    policy.insert("x-keyway-etag-policy", "crc64nvme".parse().unwrap());
    let fast = signed_with(Method::PUT, "/fast", Bytes::new(), policy);
    runtime.block_on(exchange(ours.clone(), fast));
    runtime.block_on(exchange(ours.clone(), signed(Method::PUT, "/bucket/key", BODY)));

    let get = signed(Method::GET, "/bucket/key", Bytes::new());
    let head = signed(Method::HEAD, "/bucket/key", Bytes::new());
    let put = signed(Method::PUT, "/bucket/key", BODY);
    let put_fast = signed(Method::PUT, "/fast/key", BODY);
    c.bench_function("protocol/get/4KiB", |b| {
        b.to_async(&runtime).iter(|| exchange(floor.clone(), black_box(get.clone())));
    });
    for (name, request) in
        [("get/4KiB", &get), ("head", &head), ("put/4KiB", &put), ("put/4KiB/crc64nvme", &put_fast)]
    {
        c.bench_function(name, |b| {
            b.to_async(&runtime).iter(|| exchange(ours.clone(), black_box(request.clone())));
        });
    }
}

criterion_group!(benches, requests);
criterion_main!(benches);
