//! Clients that hang up and nodes that fail: no half-object is visible, no chunk is left, and
//! no part is taken for the whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use keyway_auth::sigv4::Payload;
use keyway_dataplane::{
    Body, ChunkInfo, Delivery, LocalNode, NodeStatus, Prefetched, SealingKey, SessionError,
    StorageNode, TransferError, Transferred,
};
use keyway_gateway::s3::S3Config;
use keyway_proto::unit::MIB;
use keyway_proto::{
    CatalogId, ChunkId, Door, GetPlan, LocalSessionOffer, LocalSessionRequest, NodeId, PutPlan,
    Rail, Receipt, SessionOffer, SessionOwner, SessionRequest, SessionSelector, Standing, TenantId,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::fixture::Server;

/// What a [`FaultyNode`] does to the next transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Bodies fail after their first frame.
    BreakBodies,
    /// Bodies end after their first frame, as if that were all.
    CutBodies,
    /// Every transfer is refused for being one too many.
    Busy,
    /// The next GET finds no chunk.
    LoseOnce,
    /// PUTs wait for company.
    Gather,
}

const FAULTS: [Fault; 6] = [
    Fault::None,
    Fault::BreakBodies,
    Fault::CutBodies,
    Fault::Busy,
    Fault::LoseOnce,
    Fault::Gather,
];

/// How many PUTs a gathering node waits for, and how long.
const COMPANY: usize = 8;
const COMPANY_TIME: Duration = Duration::from_millis(200);

/// A node over a real one, whose transfers can be made to fail.
struct FaultyNode {
    inner: Arc<LocalNode>,
    fault: AtomicU8,
    /// PUTs that gather, and the most that did at once.
    gathered: Semaphore,
    most: AtomicUsize,
    now: AtomicUsize,
}

impl FaultyNode {
    fn set(&self, fault: Fault) {
        let index = FAULTS.iter().position(|known| *known == fault).unwrap();
        self.fault.store(index as u8, Ordering::SeqCst);
    }

    fn fault(&self) -> Fault {
        FAULTS[usize::from(self.fault.load(Ordering::SeqCst))]
    }
}

#[async_trait]
impl StorageNode for FaultyNode {
    fn id(&self) -> NodeId {
        self.inner.id()
    }

    fn claim(&self, catalog: Option<CatalogId>) -> Result<(), TransferError> {
        self.inner.claim(catalog)
    }

    async fn get(&self, plan: GetPlan) -> Result<Delivery, TransferError> {
        match self.fault() {
            Fault::Busy => return Err(TransferError::Busy),
            Fault::LoseOnce => {
                self.set(Fault::None);
                return Err(TransferError::NoSuchChunk(plan.pieces[0].chunk));
            }
            _ => {}
        }
        let chunk = plan.pieces[0].chunk;
        let mut delivery = self.inner.get(plan).await?;
        delivery.body = match self.fault() {
            Fault::BreakBodies => {
                let damage = Err(TransferError::Damaged { chunk, offset: 0 });
                let rest = futures::stream::iter([damage]);
                Box::pin(delivery.body.take(1).chain(rest))
            }
            Fault::CutBodies => Box::pin(delivery.body.take(1)),
            _ => delivery.body,
        };
        Ok(delivery)
    }

    async fn put(&self, plan: PutPlan, body: Body) -> Result<Receipt, TransferError> {
        match self.fault() {
            Fault::Busy => Err(TransferError::Busy),
            Fault::Gather => {
                let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(now, Ordering::SeqCst);
                self.gathered.add_permits(1);
                let company = self.gathered.acquire_many(COMPANY as u32);
                drop(tokio::time::timeout(COMPANY_TIME, company).await);
                let receipt = self.inner.put(plan, body).await;
                self.now.fetch_sub(1, Ordering::SeqCst);
                receipt
            }
            _ => self.inner.put(plan, body).await,
        }
    }

    async fn release(&self, chunks: &[ChunkId]) -> Result<(), TransferError> {
        self.inner.release(chunks).await
    }

    async fn settle(
        &self,
        chunks: &[ChunkId],
        wait: Duration,
    ) -> Result<Vec<Standing>, TransferError> {
        self.inner.settle(chunks, wait).await
    }

    async fn prefetch(
        &self,
        tenant: TenantId,
        chunks: &[ChunkId],
    ) -> Result<Prefetched, TransferError> {
        self.inner.prefetch(tenant, chunks).await
    }

    async fn chunks(
        &self,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ChunkInfo>, TransferError> {
        self.inner.chunks(after, limit).await
    }

    async fn status(&self) -> Result<NodeStatus, TransferError> {
        self.inner.status().await
    }

    async fn rails(&self) -> Result<Vec<Rail>, TransferError> {
        self.inner.rails().await
    }

    async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
    ) -> Result<SessionOffer, SessionError> {
        self.inner.open_session(owner, request).await
    }

    async fn door(&self) -> Result<Option<Door>, TransferError> {
        self.inner.door().await
    }

    async fn open_local_session(
        &self,
        owner: SessionOwner,
        request: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        self.inner.open_local_session(owner, request).await
    }

    async fn close_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        self.inner.close_sessions(selector).await
    }

    async fn count_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError> {
        self.inner.count_sessions(selector).await
    }

    async fn transfer(&self, grant: Bytes) -> Transferred {
        self.inner.transfer(grant).await
    }

    async fn sealing_key(&self) -> Result<SealingKey, TransferError> {
        self.inner.sealing_key().await
    }
}

async fn faulty() -> (Server, Arc<FaultyNode>) {
    let inner = LocalNode::in_memory(NodeId(1), 256 * MIB, 64 << 20).unwrap();
    let node = Arc::new(FaultyNode {
        inner: inner.clone(),
        fault: AtomicU8::new(0),
        gathered: Semaphore::new(0),
        most: AtomicUsize::new(0),
        now: AtomicUsize::new(0),
    });
    let server = Server::over(S3Config::default(), node.clone(), inner).await;
    server.put("/bucket").send().await.expect(200);
    (server, node)
}

/// Goal: an answer that falls short breaks off; it never ends cleanly.
#[tokio::test]
async fn a_body_that_fails_breaks_the_connection() {
    let (server, node) = faulty().await;
    let bytes = vec![5u8; 8 * MIB as usize];
    server.put("/bucket/k").body(bytes.clone()).send().await.expect(200);
    for fault in [Fault::BreakBodies, Fault::CutBodies] {
        node.set(fault);
        let reply = server.try_send(server.get("/bucket/k").request()).await;
        assert!(reply.is_none(), "{fault:?} ended cleanly");
    }
    node.set(Fault::None);
    let whole = server.get("/bucket/k").send().await.expect(200);
    assert!(whole.body == bytes);
}

/// Goal: an object replaced between its metadata and its bytes is read as it is then.
#[tokio::test]
async fn a_lost_chunk_is_looked_up_again() {
    let (server, node) = faulty().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    node.set(Fault::LoseOnce);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "abc");
}

#[tokio::test]
async fn a_busy_node_slows_clients_down() {
    let (server, node) = faulty().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    node.set(Fault::Busy);
    server.get("/bucket/k").send().await.refused(503, "SlowDown");
    server.put("/bucket/l").body("abc").send().await.refused(503, "SlowDown");
    server.head("/bucket/k").send().await.expect(200);
    node.set(Fault::None);
    server.get("/bucket/l").send().await.refused(404, "NoSuchKey");
}

/// Goal: a client that goes away midway leaves neither object nor chunk. Method: a signed head,
/// half of the body, and a closed socket.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_nothing() {
    let server = Server::with_bucket().await;
    let length = 20 * MIB;
    let request = server
        .put("/bucket/k")
        .header("content-length", &length.to_string())
        .payload(Payload::Unsigned)
        .request();
    let mut wire = format!("PUT {} HTTP/1.1\r\n", request.uri().path());
    for (name, value) in request.headers() {
        wire += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    wire += "\r\n";
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(wire.as_bytes()).await.unwrap();
    client.write_all(&vec![0; length as usize / 2]).await.unwrap();
    transfers(&server, 1).await;
    drop(client);
    transfers(&server, 0).await;
    assert_eq!(server.chunks().await, 0);
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
}

/// Waits until so many transfers are under way.
async fn transfers(server: &Server, expected: u64) {
    let reached = async {
        while server.node.status().await.unwrap().transfers != expected {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reached).await.expect("the node's transfers");
}

/// Goal: parts that are copied hold buffers of two transfers each, and so not all do at once.
/// Method: a node whose PUTs wait for as many as there are copies, and count each other.
#[tokio::test]
async fn part_copies_take_turns() {
    let (server, node) = faulty().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let id = server.post("/bucket/m?uploads").send().await.expect(200).tag("UploadId");
    node.set(Fault::Gather);
    let copies = (1..=COMPANY).map(|number| {
        let call = server.put(&format!("/bucket/m?partNumber={number}&uploadId={id}"));
        call.header("x-amz-copy-source", "bucket/k").send()
    });
    for reply in futures::future::join_all(copies).await {
        reply.expect(200);
    }
    assert_eq!(node.most.load(Ordering::SeqCst), 4);
}
