//! The S3 service over stores in memory, called without a socket.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use keyway_auth::{AccessKeyId, Credential, CredentialStore, KeyFile, Principal, SecretKey};
use keyway_dataplane::LocalNode;
use keyway_gateway::audit::Audit;
use keyway_gateway::node::Nodes;
use keyway_gateway::s3::{S3Config, S3HttpService, S3State, SystemClock, service};
use keyway_meta::{Catalog, MemoryStore};
use keyway_proto::{NodeId, TenantId};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::sigv4::{Credentials, Signer};
use crate::wire::Request;

/// The bucket that is there from the start, with the object `key`.
pub const BUCKET: &str = "fuzz";
/// Bytes that the node may keep.
const CAPACITY_BYTES: u64 = 64 << 20;
/// Bytes of its buffers.
const BUFFER_BYTES: usize = 16 << 20;
/// Requests after which everything is made anew, so that memory stays flat.
const REQUESTS_MAX: u32 = 5_000;

/// A gateway with one credential.
pub struct Gateway {
    runtime: Runtime,
    service: S3HttpService,
    requests: u32,
    /// What is known of its data.
    pub metadata: Arc<MemoryStore>,
    /// Who may sign.
    pub credentials: Credentials,
    /// An upload of `BUCKET/key` with one part.
    pub upload: String,
}

struct OneKey(Credentials);

impl CredentialStore for OneKey {
    fn find(&self, id: &str) -> Option<Credential> {
        (id == self.0.access_key).then(|| Credential {
            principal: Principal::root(
                TenantId::ROOT,
                AccessKeyId::new(&self.0.access_key),
            ),
            secret: SecretKey::new(self.0.secret_key.clone()),
        })
    }
}

impl Gateway {
    /// A new one with a bucket, an object and an upload.
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime needs nothing that is missing here");
        let credentials = Credentials {
            access_key: "AKIDFUZZ".to_owned(),
            secret_key: "known-to-the-fuzzer".to_owned(),
        };
        let metadata = Arc::new(MemoryStore::new());
        let service = {
            let _context = runtime.enter();
            let node = LocalNode::in_memory(NodeId(1), CAPACITY_BYTES, BUFFER_BYTES);
            let state = S3State {
                catalog: Arc::new(Catalog::new(metadata.clone())),
                nodes: Nodes::single(node.expect("the node's memory is there")),
                credentials: Arc::new(OneKey(credentials.clone())),
                secrets: Arc::new(KeyFile::in_memory()),
                administration: None,
                audit: Audit::default(),
                limiter: Arc::default(),
                clock: Arc::new(SystemClock),
                issuers: Default::default(),
                notifier: Arc::default(),
                maintenance: None,
            };
            service(state, &S3Config::default()).expect("the default configuration is valid")
        };
        let mut gateway =
            Self { runtime, service, requests: 0, metadata, credentials, upload: String::new() };
        gateway.fill();
        gateway
    }

    /// Calls the service and answers status and body; `None` when the request is not one that
    /// an HTTP parser would let through.
    pub fn call(&mut self, request: &Request) -> Option<(u16, Vec<u8>)> {
        let mut call = http::Request::builder().method(request.method.as_bytes());
        call = call.uri(request.target());
        for (name, value) in &request.headers {
            call = call.header(name.as_str(), &value[..]);
        }
        let call = call.body(Full::new(Bytes::from(request.body.clone()))).ok()?;
        let service = self.service.clone();
        let answer = self.runtime.block_on(async move {
            let (head, body) = service.oneshot(call).await.expect("it never fails").into_parts();
            let body = body.collect().await.map(|body| body.to_bytes().to_vec());
            (head.status.as_u16(), body.unwrap_or_default())
        });
        self.requests += 1;
        Some(answer)
    }

    /// Signs, then calls.
    pub fn call_signed(&mut self, mut request: Request) -> Option<(u16, Vec<u8>)> {
        request.set("host", "localhost");
        Signer::new(&self.credentials).sign(&mut request);
        self.call(&request)
    }

    /// Makes everything anew when much has been called.
    pub fn renew(&mut self) {
        if self.requests > REQUESTS_MAX {
            *self = Self::new();
        }
    }

    fn fill(&mut self) {
        let made = self.call_signed(Request::new("PUT", format!("/{BUCKET}")));
        assert_eq!(made.map(|answer| answer.0), Some(200), "the bucket is made");
        let put = Request::object("PUT", BUCKET, "key").header("x-amz-meta-a", "b").body("value");
        assert_eq!(self.call_signed(put).map(|answer| answer.0), Some(200), "the object is put");
        let create = Request::object("POST", BUCKET, "key").query("uploads", "");
        let (_, xml) = self.call_signed(create).expect("a valid request");
        let xml = String::from_utf8_lossy(&xml).into_owned();
        self.upload = crate::wire::element(&xml, "UploadId").expect("an upload").to_owned();
        let part = Request::object("PUT", BUCKET, "key").query("partNumber", "1");
        let part = part.query("uploadId", &self.upload).body("part");
        assert_eq!(self.call_signed(part).map(|answer| answer.0), Some(200), "the part is put");
    }
}

impl Default for Gateway {
    fn default() -> Self {
        Self::new()
    }
}
