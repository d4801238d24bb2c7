//! A node on another machine, behind the same trait as one in this process.
//!
//! Sketch: per call one HTTP/2 stream on one of a few connections, which are made when first
//! needed and made again after they break; a data frame is copied once when it is sent, and
//! not when it is received. What is under way to a slow consumer is one stream's window.
//!
//! **Ends.** A GET's receipt is read together with the last byte. A PUT says explicitly that
//! its body is complete; a body that fails, or a caller that goes away, says that it is not,
//! and the node keeps nothing. Deadlines: for an answer to begin, for the next frame, and for
//! a PUT whose frames the node does not take or whose receipt it does not send; never for the
//! caller's own pace. A node that cannot be reached is [`TransferError::Unreachable`]; after a
//! PUT its chunks may be there all the same, and are the sweeper's.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use futures::stream::{self, StreamExt as _};
use keyway_dataplane::rpc::failure::{error, unreachable};
use keyway_dataplane::{
    Body, ChunkInfo, Delivery, NodeStatus, Prefetched, SealingKey, SessionError, StorageNode,
    TransferError, Transferred,
};
use keyway_proto::{
    CatalogId, ChunkId, Door, GetPlan, LocalSessionOffer, LocalSessionRequest, NodeId, PutPlan,
    Rail, Receipt, SessionOffer, SessionOwner, SessionRequest, SessionSelector, Standing, TenantId,
    TransferId,
};
use keyway_rpc::schema::get_frame::Frame as GetPart;
use keyway_rpc::schema::node_client::NodeClient;
use keyway_rpc::schema::put_frame::Frame as PutPart;
use keyway_rpc::schema::{GetFrame, PutBroken, PutEnd, PutFrame, ReleaseRequest, StatusRequest};
use keyway_rpc::{
    CATALOG_HEADER, CONNECTION_WINDOW_BYTES, FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, Malformed,
    RELEASE_MAX, STREAM_WINDOW_BYTES, TlsError, TlsPaths, convert,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tonic::Streaming;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::telemetry;

mod chunks;
mod direct;

/// Connections that share the transfers; calls without object bytes have one of their own.
const DATA_CONNECTIONS: usize = 4;
/// How often a connection is asked whether it lives, and how long it may take to say so.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where a node is, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteNodeConfig {
    /// The node's id: one that answers under another id refuses.
    pub id: NodeId,
    /// Its address, `https://host:port`.
    pub endpoint: String,
    /// The name in its certificate.
    pub server_name: String,
    /// This gateway's certificate, and the authority of both.
    pub tls: TlsPaths,
    /// For a connection to be made.
    #[serde(default = "connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// For an answer to begin, and for the next frame; a PUT that the node does not get on
    /// with is given up after one to two times as long.
    #[serde(default = "answer_timeout_ms")]
    pub answer_timeout_ms: u64,
}

fn connect_timeout_ms() -> u64 {
    5_000
}

fn answer_timeout_ms() -> u64 {
    30_000
}

/// A node's configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteNodeError {
    /// The certificates cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The endpoint is no `https` address, or the certificates cannot be used.
    #[error("cannot use the endpoint {endpoint}")]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// The endpoint is not `https`.
    #[error("the endpoint {0} is not https")]
    Plaintext(String),
}

type Client = NodeClient<InterceptedService<Channel, Named>>;

/// A storage node reached over gRPC.
pub struct RemoteNode {
    id: NodeId,
    data: Vec<Client>,
    next: AtomicUsize,
    control: Client,
    answer_timeout: Duration,
    named: Named,
}

impl RemoteNode {
    /// The node; it is first connected to when it is first asked. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`RemoteNodeError`].
    pub fn new(config: &RemoteNodeConfig) -> Result<Self, RemoteNodeError> {
        if !config.endpoint.starts_with("https://") {
            return Err(RemoteNodeError::Plaintext(config.endpoint.clone()));
        }
        let tls = config.tls.client(&config.server_name)?;
        let endpoint = Endpoint::from_shared(config.endpoint.clone())
            .and_then(|endpoint| endpoint.tls_config(tls))
            .map_err(|source| RemoteNodeError::Endpoint {
                endpoint: config.endpoint.clone(),
                source,
            })?
            .connect_timeout(Duration::from_millis(config.connect_timeout_ms))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .tcp_nodelay(true);
        let named = Named::default();
        let client = || {
            NodeClient::with_interceptor(endpoint.connect_lazy(), named.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        Ok(Self {
            id: config.id,
            data: std::iter::repeat_with(client).take(DATA_CONNECTIONS).collect(),
            next: AtomicUsize::new(0),
            control: client(),
            answer_timeout: Duration::from_millis(config.answer_timeout_ms),
            named,
        })
    }

    /// The connections in turn.
    fn data(&self) -> Client {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.data.len();
        self.data[turn].clone()
    }

    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, TransferError> {
        in_time(self.answer_timeout, async { call.await.map_err(|status| error(&status)) }).await
    }
}

#[async_trait]
impl StorageNode for RemoteNode {
    fn id(&self) -> NodeId {
        self.id
    }

    fn claim(&self, catalog: Option<CatalogId>) -> Result<(), TransferError> {
        // The node hears it with every call, and answers then.
        let Some(catalog) = catalog else { return Ok(()) };
        let text = catalog.to_string().try_into().expect("hexadecimal digits");
        if self.named.0.get_or_init(|| text) == catalog.to_string().as_str() {
            Ok(())
        } else {
            Err(TransferError::OtherCatalog)
        }
    }

    async fn get(&self, plan: GetPlan) -> Result<Delivery, TransferError> {
        let request = convert::get_request(self.id, &plan);
        let mut client = self.data();
        let frames = self.answer(client.get(request)).await?.into_inner();
        let (sender, receipt) = oneshot::channel();
        let mut incoming = Incoming {
            frames,
            transfer: plan.transfer,
            length: plan.length(),
            left: plan.length(),
            receipt: Some(sender),
            frame_timeout: self.answer_timeout,
        };
        incoming.open().await?;
        Ok(Delivery { length: plan.length(), body: incoming.into_body(), receipt })
    }

    async fn put(&self, plan: PutPlan, body: Body) -> Result<Receipt, TransferError> {
        let transfer = plan.transfer;
        let failed = Arc::new(Mutex::new(None));
        let progress = Arc::new(Progress::default());
        // Dropped with this future: what still reads the frames then learns that they broke.
        let (_alive, abandoned) = oneshot::channel();
        let outgoing = Outgoing {
            plan: Some(convert::put_request(self.id, &plan)),
            body: Some(body),
            rest: Bytes::new(),
            failed: Arc::clone(&failed),
            progress: Arc::clone(&progress),
            abandoned,
        };
        let mut client = self.data();
        let outcome = tokio::select! {
            outcome = client.put(outgoing.into_frames()) => outcome.map_err(|status| error(&status)),
            () = progress.stalled(self.answer_timeout) => Err(unreachable("the node does not get on")),
        };
        // The body's own failure is what the caller must see, not what the node made of it.
        if let Some(cause) = failed.lock().take() {
            return Err(cause);
        }
        let receipt = convert::receipt(&outcome?.into_inner()).map_err(not_understood)?;
        if receipt.transfer != transfer || receipt.bytes != plan.length() {
            return Err(unreachable("the receipt is not this transfer's"));
        }
        Ok(receipt)
    }

    async fn release(&self, chunks: &[ChunkId]) -> Result<(), TransferError> {
        for chunks in chunks.chunks(RELEASE_MAX) {
            let chunks = convert::pack_chunk_ids(chunks);
            let request = ReleaseRequest { node: self.id.0, chunks };
            self.answer(self.control.clone().release(request)).await?;
        }
        Ok(())
    }

    async fn settle(
        &self,
        chunks: &[ChunkId],
        wait: Duration,
    ) -> Result<Vec<Standing>, TransferError> {
        self.ask_to_settle(chunks, wait).await
    }

    async fn chunks(
        &self,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ChunkInfo>, TransferError> {
        self.ask_chunks(after, limit).await
    }

    async fn prefetch(
        &self,
        tenant: TenantId,
        chunks: &[ChunkId],
    ) -> Result<Prefetched, TransferError> {
        self.ask_to_prefetch(tenant, chunks).await
    }

    async fn status(&self) -> Result<NodeStatus, TransferError> {
        let request = StatusRequest { node: self.id.0 };
        let status = self.answer(self.control.clone().status(request)).await?.into_inner();
        Ok(NodeStatus {
            node: NodeId(status.node),
            store: status.store,
            access: status.access,
            capacity_bytes: status.capacity_bytes,
            free_bytes: status.free_bytes,
            chunks: status.chunks,
            transfers: status.transfers,
        })
    }

    async fn rails(&self) -> Result<Vec<Rail>, TransferError> {
        self.ask_rails().await
    }

    async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
    ) -> Result<SessionOffer, SessionError> {
        self.ask_session(&owner, &request).await
    }

    async fn door(&self) -> Result<Option<Door>, TransferError> {
        self.ask_door().await
    }

    async fn open_local_session(
        &self,
        owner: SessionOwner,
        request: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        self.ask_local_session(&owner, request).await
    }

    async fn close_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        self.ask_to_close(&selector).await
    }

    async fn count_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        self.ask_to_count(&selector).await
    }

    async fn transfer(&self, grant: Bytes) -> Transferred {
        self.ask_transfer(grant).await
    }

    async fn sealing_key(&self) -> Result<SealingKey, TransferError> {
        self.ask_sealing_key().await
    }
}

/// Has each call carry on the trace that it is made in, and name the catalog that it is made for.
#[derive(Clone, Default)]
struct Named(Arc<OnceLock<AsciiMetadataValue>>);

impl Interceptor for Named {
    fn call(&mut self, mut call: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        telemetry::inject(call.metadata_mut().as_mut());
        if let Some(catalog) = self.0.get() {
            call.metadata_mut().insert(CATALOG_HEADER, catalog.clone());
        }
        Ok(call)
    }
}

/// A GET's frames on their way in.
struct Incoming {
    frames: Streaming<GetFrame>,
    transfer: TransferId,
    length: u64,
    left: u64,
    receipt: Option<oneshot::Sender<Receipt>>,
    frame_timeout: Duration,
}

impl Incoming {
    async fn open(&mut self) -> Result<(), TransferError> {
        match self.frame().await? {
            GetPart::Opened(opened) if opened.length == self.length => {}
            _ => return Err(unreachable("the answer does not begin as planned")),
        }
        if self.left == 0 { self.close().await } else { Ok(()) }
    }

    fn into_body(self) -> Body {
        Box::pin(stream::try_unfold(self, async |mut incoming| {
            if incoming.left == 0 {
                return Ok(None);
            }
            let GetPart::Data(bytes) = incoming.frame().await? else {
                return Err(unreachable("the answer is not data"));
            };
            incoming.left = incoming
                .left
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| unreachable("the answer is longer than planned"))?;
            if incoming.left == 0 {
                incoming.close().await?;
            }
            Ok(Some((bytes, incoming)))
        }))
    }

    async fn close(&mut self) -> Result<(), TransferError> {
        let GetPart::Receipt(receipt) = self.frame().await? else {
            return Err(unreachable("the answer does not end with a receipt"));
        };
        let receipt = convert::receipt(&receipt).map_err(not_understood)?;
        if receipt.transfer != self.transfer || receipt.bytes != self.length {
            return Err(unreachable("the receipt is not this transfer's"));
        }
        if let Some(sender) = self.receipt.take() {
            // A caller may not care for it.
            let _ = sender.send(receipt);
        }
        Ok(())
    }

    async fn frame(&mut self) -> Result<GetPart, TransferError> {
        let next = async { self.frames.message().await.map_err(|status| error(&status)) };
        let frame = in_time(self.frame_timeout, next).await?;
        frame
            .and_then(|frame| frame.frame)
            .ok_or_else(|| unreachable("the answer ended before its receipt"))
    }
}

/// A PUT's frames on their way out.
struct Outgoing {
    plan: Option<keyway_rpc::schema::PutPlan>,
    body: Option<Body>,
    rest: Bytes,
    /// Where the body's own error is left for the caller.
    failed: Arc<Mutex<Option<TransferError>>>,
    progress: Arc<Progress>,
    abandoned: oneshot::Receiver<()>,
}

impl Outgoing {
    fn into_frames(self) -> impl Stream<Item = PutFrame> + Send + 'static {
        stream::unfold(self, async |mut outgoing| {
            let frame = outgoing.next().await?;
            Some((PutFrame { frame: Some(frame) }, outgoing))
        })
    }

    async fn next(&mut self) -> Option<PutPart> {
        if let Some(plan) = self.plan.take() {
            return Some(PutPart::Plan(plan));
        }
        self.progress.step(2);
        while self.rest.is_empty() {
            let body = self.body.as_mut()?;
            self.progress.step(1);
            let next = tokio::select! {
                biased;
                _ = &mut self.abandoned => None,
                next = body.next() => Some(next),
            };
            self.progress.step(1);
            match next {
                Some(Some(Ok(bytes))) => self.rest = bytes,
                Some(Some(Err(cause))) => {
                    *self.failed.lock() = Some(cause);
                    return self.end(PutPart::Broken(PutBroken {}));
                }
                Some(None) => return self.end(PutPart::End(PutEnd {})),
                None => return self.end(PutPart::Broken(PutBroken {})),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(FRAME_BYTES_MAX));
        Some(PutPart::Data(piece))
    }

    /// The last frame.
    fn end(&mut self, frame: PutPart) -> Option<PutPart> {
        self.body = None;
        Some(frame)
    }
}

/// How far a PUT got: odd while it waits for the caller's next bytes, even while the node is
/// the one to wait for.
#[derive(Default)]
struct Progress(AtomicU64);

impl Progress {
    fn step(&self, steps: u64) {
        self.0.fetch_add(steps, Ordering::Relaxed);
    }

    /// Resolves when the node did not get on for `limit`, noticed within twice that.
    async fn stalled(&self, limit: Duration) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(limit).await;
            let now = self.0.load(Ordering::Relaxed);
            if now == seen && now.is_multiple_of(2) {
                return;
            }
            seen = now;
        }
    }
}

async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, TransferError>>,
) -> Result<T, TransferError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(unreachable("no answer in time")),
    }
}

fn not_understood(malformed: Malformed) -> TransferError {
    unreachable(&malformed.to_string())
}
