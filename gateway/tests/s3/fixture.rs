//! A server of its own for each test, and a client that signs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use keyway_auth::sigv4::{Payload, Signer};
use keyway_auth::{
    AccessKeyId, Credential, CredentialStore, KeyFile, KeyProvider, Principal, RootCredentials,
    SecretKey,
};
use keyway_dataplane::{LocalNode, StorageNode};
use keyway_gateway::accounts::Accounts;
use keyway_gateway::control::admin::Administration;
use keyway_gateway::node::Nodes;
use keyway_gateway::s3::{Clock, DirectCounts, S3Config, S3State, service};
use keyway_meta::{Catalog, MemoryStore, UnixMs};
use keyway_proto::unit::MIB;
use keyway_proto::{Checksum, ChecksumKind, NodeId, TenantId};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

pub(crate) const ACCESS_KEY: &str = "AKIDTEST";
pub(crate) const SECRET_KEY: &str = "not-a-secret-outside-this-test";
/// Another access key of the same tenant.
pub(crate) const OTHER_KEY: &str = "AKIDOTHER";

/// Two credentials of one tenant.
struct TwoKeys;

impl CredentialStore for TwoKeys {
    fn find(&self, id: &str) -> Option<Credential> {
        [ACCESS_KEY, OTHER_KEY].contains(&id).then(|| Credential {
            principal: Principal::root(TenantId::ROOT, AccessKeyId::new(id)),
            secret: SecretKey::new(SECRET_KEY.to_owned()),
        })
    }
}

/// A clock that tests set; it starts at 2026-01-01 and stands still.
pub(crate) struct SetClock(AtomicU64);

impl SetClock {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_767_225_600_000)))
    }

    pub(crate) fn advance_s(&self, seconds: u64) {
        self.0.fetch_add(seconds * 1000, Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> UnixMs {
        UnixMs(self.0.load(Ordering::Relaxed))
    }
}

/// A server, and a client of it.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: Arc<SetClock>,
    pub(crate) node: Arc<LocalNode>,
    pub(crate) direct_counts: Arc<DirectCounts>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) nodes: Nodes,
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
}

impl Server {
    /// Starts one with the default configuration.
    pub(crate) async fn start() -> Self {
        Self::with(S3Config::default(), 512 * MIB).await
    }

    /// Starts one over a node of this capacity.
    pub(crate) async fn with(config: S3Config, capacity_bytes: u64) -> Self {
        let node = LocalNode::in_memory(NodeId(1), capacity_bytes, 64 << 20).unwrap();
        Self::over(config, node.clone(), node).await
    }

    /// Starts one over `node`, behind which `local` keeps the chunks.
    pub(crate) async fn over(
        config: S3Config,
        node: Arc<dyn StorageNode>,
        local: Arc<LocalNode>,
    ) -> Self {
        Self::over_nodes(config, Nodes::single(node), local).await
    }

    /// Starts one over these nodes.
    pub(crate) async fn over_nodes(config: S3Config, nodes: Nodes, local: Arc<LocalNode>) -> Self {
        let clock = SetClock::new();
        let state = S3State {
            catalog: Arc::new(Catalog::new(Arc::new(MemoryStore::new()))),
            nodes,
            credentials: Arc::new(TwoKeys),
            secrets: Arc::new(KeyFile::in_memory()),
            clock: clock.clone(),
            administration: None,
            audit: Default::default(),
            limiter: Default::default(),
            issuers: Default::default(),
            notifier: Arc::default(),
            maintenance: None,
        };
        Self::of_state(state, config, clock, local).await
    }

    /// Starts one whose keys are those of accounts; [`ACCESS_KEY`] is the root's. `dir` holds the
    /// key that secrets are sealed with.
    pub(crate) async fn with_accounts(dir: &Path) -> (Self, Arc<Accounts>) {
        let local = LocalNode::in_memory(NodeId(1), 512 * MIB, 64 << 20).unwrap();
        let (clock, nodes) = (SetClock::new(), Nodes::single(local.clone()));
        let store = Arc::new(MemoryStore::new());
        let catalog = Arc::new(Catalog::new(store.clone()));
        let key = KeyFile::open_or_create(&dir.join("secrets.key")).unwrap();
        let key: Arc<dyn KeyProvider> = Arc::new(key);
        let secret = SecretKey::new(SECRET_KEY.to_owned());
        let root = RootCredentials::given(ACCESS_KEY, secret).unwrap();
        let rows = keyway_meta::Accounts::new(store);
        let opened =
            Accounts::open(rows, Arc::clone(&key), root, clock.clone(), nodes.clone()).await;
        let accounts = Arc::new(opened.unwrap());
        let administration = Administration::new(Arc::clone(&accounts), Arc::clone(&catalog));
        let state = S3State {
            catalog,
            nodes,
            credentials: Arc::clone(&accounts) as Arc<dyn CredentialStore>,
            secrets: Arc::clone(&key),
            clock: clock.clone(),
            administration: Some(administration),
            audit: Default::default(),
            limiter: Default::default(),
            issuers: Default::default(),
            notifier: Arc::default(),
            maintenance: None,
        };
        (Self::of_state(state, S3Config::default(), clock, local).await, accounts)
    }

    async fn of_state(
        state: S3State,
        config: S3Config,
        clock: Arc<SetClock>,
        local: Arc<LocalNode>,
    ) -> Self {
        let (catalog, nodes) = (Arc::clone(&state.catalog), state.nodes.clone());
        let service = service(state, &config).unwrap();
        let direct_counts = Arc::clone(service.direct_counts());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let service = TowerToHyperService::new(service.clone());
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, clock, node: local, direct_counts, catalog, nodes, client }
    }

    /// Starts one with a bucket named `bucket`.
    pub(crate) async fn with_bucket() -> Self {
        let server = Self::start().await;
        server.put("/bucket").send().await.expect(200);
        server
    }

    /// Chunks on the node: what a failed PUT must not leave.
    pub(crate) async fn chunks(&self) -> u64 {
        self.node.status().await.unwrap().chunks
    }

    pub(crate) fn put(&self, path: &str) -> Call<'_> {
        self.call(Method::PUT, path)
    }

    pub(crate) fn get(&self, path: &str) -> Call<'_> {
        self.call(Method::GET, path)
    }

    pub(crate) fn head(&self, path: &str) -> Call<'_> {
        self.call(Method::HEAD, path)
    }

    pub(crate) fn delete(&self, path: &str) -> Call<'_> {
        self.call(Method::DELETE, path)
    }

    pub(crate) fn post(&self, path: &str) -> Call<'_> {
        self.call(Method::POST, path)
    }

    /// Sends a list of what is to be deleted.
    pub(crate) async fn delete_objects(&self, document: String) -> Reply {
        let digest = Checksum::of(ChecksumKind::Md5, document.as_bytes()).to_base64();
        self.post("/bucket?delete").header("content-md5", &digest).body(document).send().await
    }

    /// A request to be; the path holds the query.
    pub(crate) fn call(&self, method: Method, path: &str) -> Call<'_> {
        Call {
            server: self,
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            unsigned: HeaderMap::new(),
            body: Bytes::new(),
            payload: None,
            signer: signer(),
            offset_s: 0,
            sign: true,
        }
    }

    /// Sends a request as it is.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        self.try_send(request).await.expect("an answer, to its end")
    }

    /// Sends a request; `None` when the answer breaks off.
    pub(crate) async fn try_send(&self, request: Request<Full<Bytes>>) -> Option<Reply> {
        let response = self.client.request(request).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Reply { status: parts.status, headers: parts.headers, body })
    }
}

pub(crate) fn signer() -> Signer {
    signer_of(ACCESS_KEY)
}

/// The signer of one of the two access keys.
pub(crate) fn signer_of(access_key: &str) -> Signer {
    let secret = SecretKey::new(SECRET_KEY.to_owned());
    Signer::new(AccessKeyId::new(access_key), secret, "us-east-1", "s3")
}

/// A request under construction.
pub(crate) struct Call<'a> {
    server: &'a Server,
    method: Method,
    path: String,
    headers: HeaderMap,
    unsigned: HeaderMap,
    body: Bytes,
    payload: Option<Payload>,
    signer: Signer,
    offset_s: i64,
    sign: bool,
}

impl Call<'_> {
    /// Adds a header, which is signed.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers
            .append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        self
    }

    /// Adds a header after the signature.
    pub(crate) fn unsigned_header(mut self, name: &str, value: &str) -> Self {
        self.unsigned
            .append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Says something else about the body than its hash.
    pub(crate) fn payload(mut self, payload: Payload) -> Self {
        self.payload = Some(payload);
        self
    }

    pub(crate) fn signer(mut self, signer: Signer) -> Self {
        self.signer = signer;
        self
    }

    /// Signs at another time than now.
    pub(crate) fn offset_s(mut self, seconds: i64) -> Self {
        self.offset_s = seconds;
        self
    }

    pub(crate) fn anonymous(mut self) -> Self {
        self.sign = false;
        self
    }

    /// Sends the body as `aws-chunked` with these trailers, unsigned.
    pub(crate) fn chunked(mut self, declared: usize, trailers: &[(&str, &str)]) -> Self {
        let mut wire = Vec::new();
        for chunk in self.body.chunks(64 * 1024) {
            wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            wire.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
        }
        wire.extend_from_slice(b"\r\n");
        self.body = wire.into();
        self.payload(Payload::StreamingUnsignedTrailer)
            .header("content-encoding", "aws-chunked")
            .header("x-amz-decoded-content-length", &declared.to_string())
    }

    pub(crate) async fn send(self) -> Reply {
        let server = self.server;
        server.send(self.request()).await
    }

    /// The signed request.
    pub(crate) fn request(self) -> Request<Full<Bytes>> {
        let uri = format!("http://{}{}", self.server.address, self.path);
        let mut request = Request::builder().method(self.method).uri(uri).body(()).unwrap();
        *request.headers_mut() = self.headers;
        let (mut parts, ()) = request.into_parts();
        if self.sign {
            let hash = Sha256::digest(&self.body).into();
            let payload = self.payload.unwrap_or(Payload::Sha256(hash));
            let now = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(self.offset_s);
            self.signer.sign(&mut parts, payload, now).unwrap();
        }
        parts.headers.extend(self.unsigned);
        Request::from_parts(parts, Full::new(self.body))
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert!(self.headers.contains_key("x-amz-request-id"), "{self:?}");
        self
    }

    /// The error code of a refusal with this status.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Self {
        let this = self.expect(status);
        assert_eq!(this.tag("Code"), code, "{this:?}");
        let id = this.headers["x-amz-request-id"].to_str().unwrap();
        assert_eq!(this.tag("RequestId"), id, "{this:?}");
        this
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Text of the first element of that name; empty when there is none.
    pub(crate) fn tag(&self, name: &str) -> String {
        self.tags(name).into_iter().next().unwrap_or_default()
    }

    /// Texts of all elements of that name.
    pub(crate) fn tags(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        self.text()
            .split(&open)
            .skip(1)
            .filter_map(|rest| rest.split_once(&close))
            .map(|(text, _)| text.replace("&quot;", "\"").replace("&amp;", "&"))
            .collect()
    }
}
