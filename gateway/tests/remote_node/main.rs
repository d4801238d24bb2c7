//! Goal: a node behind the network behaves as one in this process does, for every call and
//! every way to end; and nobody without the authority's certificate reaches it. Method: a
//! real node served over loopback with mutual TLS, certificates made for each test.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use keyway_dataplane::node::BodyError;
use keyway_dataplane::{
    AccessMode, Body, Delivery, EngineConfig, IpcConfig, LocalNode, NodeStatus, Prefetched,
    RdmaConfig, SealingKey, SessionError, StorageNode, TierAdmit, TierConfig, TransferError,
    Transferred,
};
use keyway_gateway::node::{RemoteNode, RemoteNodeConfig};
use keyway_proto::plan::chunk_lengths;
use keyway_proto::seal::sealed_chunk_lengths;
use keyway_proto::{
    ByteRange, CatalogId, Checksum, ChecksumKind, ChunkId, ChunkSpec, DataKey, DigestSet, Door,
    GetPlan, LocalSessionOffer, LocalSessionRequest, NodeId, Piece, PutPlan, Rail, Receipt,
    SessionOffer, SessionOwner, SessionRequest, SessionSelector, Standing, TenantId, TransferId,
    Verification, Weight,
};
use keyway_rpc::TlsPaths;
use tokio::sync::oneshot;

mod direct;
#[path = "../common/direct_node.rs"]
mod direct_node;
mod served;

use served::{ID, NAME, Pki, Served, config};

fn node() -> Arc<LocalNode> {
    LocalNode::in_memory(ID, 256 << 20, 16 << 20).unwrap()
}

async fn served(pki: &Pki) -> Served {
    Served::start(pki, node(), "127.0.0.1:0").await
}

fn remote(pki: &Pki, address: SocketAddr) -> RemoteNode {
    RemoteNode::new(&config(pki.paths(), address)).unwrap()
}

fn put_plan(length: u64) -> PutPlan {
    PutPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        chunks: chunk_lengths(length)
            .map(|length| ChunkSpec { id: ChunkId::generate(), length })
            .collect(),
        digests: DigestSet::NONE.with(ChecksumKind::Crc64Nvme).with(ChecksumKind::Md5),
        durability: keyway_proto::Durability::Disk,
        key: None,
    }
}

fn get_plan(put: &PutPlan) -> GetPlan {
    let whole =
        |chunk: &ChunkSpec| Piece { chunk: chunk.id, range: ByteRange::whole(chunk.length) };
    GetPlan {
        transfer: TransferId::generate(),
        tenant: TenantId::ROOT,
        weight: Weight::default(),
        pieces: put.chunks.iter().map(whole).collect(),
        verification: Verification::default(),
        key: None,
    }
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|n| (n * 31 + (n >> 8)) as u8).collect()
}

/// The bytes in frames of an awkward size.
fn body(bytes: &Bytes, frame: usize) -> Body {
    let frames: Vec<_> =
        bytes.chunks(frame).map(|frame| Ok(Bytes::copy_from_slice(frame))).collect();
    Box::pin(stream::iter(frames))
}

async fn read(node: &dyn StorageNode, plan: GetPlan) -> Result<Bytes, TransferError> {
    let (transfer, length) = (plan.transfer, plan.length());
    let delivery = node.get(plan).await?;
    assert_eq!(delivery.length, length);
    let mut body = delivery.body;
    let mut all = Vec::new();
    while let Some(frame) = body.next().await {
        all.extend_from_slice(&frame?);
    }
    let receipt = delivery.receipt.await.expect("a whole body has a receipt");
    assert_eq!((receipt.transfer, receipt.bytes), (transfer, length));
    Ok(all.into())
}

/// Waits until the node has no transfer under way, as its own counters say.
async fn until_idle(node: &LocalNode) {
    let idle = async {
        while node.stats().transfers > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), idle).await.expect("the transfer is freed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_there_and_come_back() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    for (length, frame) in [(1, 1), (4096, 1000), (3 << 20, 5 << 20), ((17 << 20) + 3, 700_001)] {
        let plan = put_plan(length as u64);
        let sent = bytes(length);
        let receipt = remote.put(plan.clone(), body(&sent, frame)).await.unwrap();
        assert_eq!(receipt.bytes, length as u64);
        for kind in [ChecksumKind::Crc64Nvme, ChecksumKind::Md5] {
            assert_eq!(receipt.digests.value(kind), Some(&Checksum::of(kind, &sent)));
        }
        assert_eq!(read(&remote, get_plan(&plan)).await.unwrap(), sent);
        let ids: Vec<_> = plan.chunks.iter().map(|chunk| chunk.id).collect();
        assert_eq!(remote.chunks(None, 100).await.unwrap(), plan.chunks);
        assert_eq!(remote.chunks(Some(ids[0]), 100).await.unwrap(), plan.chunks[1..]);
        assert_eq!(remote.chunks(None, 1).await.unwrap(), plan.chunks[..1]);
        let status = remote.status().await.unwrap();
        assert_eq!(status, served.node.status().await.unwrap());
        remote.release(&ids).await.unwrap();
        let gone = read(&remote, get_plan(&plan)).await;
        assert!(matches!(gone, Err(TransferError::NoSuchChunk(id)) if id == ids[0]), "{gone:?}");
    }
}

/// Encrypted there, and opened there: the key goes with the plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_with_plans() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    let key = |byte| DataKey::from_slice(&[byte; DataKey::BYTES]);
    let sent = bytes((17 << 20) + 3);
    let chunk = |length| ChunkSpec { id: ChunkId::generate(), length };
    let chunks = sealed_chunk_lengths(sent.len() as u64).map(chunk).collect();
    let plan = PutPlan { chunks, key: key(1), ..put_plan(0) };
    let receipt = remote.put(plan.clone(), body(&sent, 700_001)).await.unwrap();
    let md5 = Checksum::of(ChecksumKind::Md5, &sent);
    assert_eq!(receipt.digests.value(ChecksumKind::Md5), Some(&md5));
    assert_eq!(read(&remote, GetPlan { key: key(1), ..get_plan(&plan) }).await.unwrap(), sent);
    assert_ne!(read(&remote, get_plan(&plan)).await.unwrap(), sent, "it lies there as it is");
    let other = read(&remote, GetPlan { key: key(2), ..get_plan(&plan) }).await;
    assert!(matches!(other, Err(TransferError::Damaged { offset: 0, .. })), "{other:?}");
}

/// More chunks than one message names come into the node's memory, and what is not there is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefetch_arrives_whole() {
    let pki = Pki::new();
    let tier =
        TierConfig { size_bytes: 16 << 20, admit: TierAdmit::OnPrefetch, ..TierConfig::default() };
    let rdma = RdmaConfig { mode: AccessMode::Off, ..RdmaConfig::default() };
    let ipc = IpcConfig { mode: AccessMode::Off, ..IpcConfig::default() };
    let engine = EngineConfig::default();
    let node = LocalNode::open_in_memory(ID, 256 << 20, 16 << 20, tier, &engine, rdma, &ipc);
    let node = node.await.unwrap();
    let served = Served::start(&pki, node, "127.0.0.1:0").await;
    let remote = remote(&pki, served.address);
    let mut ids = vec![ChunkId::generate()];
    for length in (1..=100).map(|number| number * 1000) {
        let plan = put_plan(length as u64);
        remote.put(plan.clone(), body(&bytes(length), 1 << 20)).await.unwrap();
        ids.extend(plan.chunks.iter().map(|chunk| chunk.id));
    }
    let bytes = 1000 * 100 * 101 / 2;
    let prefetched = remote.prefetch(TenantId::ROOT, &ids).await.unwrap();
    assert_eq!(prefetched, Prefetched { chunks: 100, bytes, missed: 1 });
    assert_eq!(served.node.stats().tier.filled_bytes, bytes);
    // A node without a tier takes the call, and brings in nothing.
    let bare = self::served(&pki).await;
    let none = self::remote(&pki, bare.address).prefetch(TenantId::ROOT, &ids[..1]).await;
    assert_eq!(none.unwrap(), Prefetched { missed: 1, ..Prefetched::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_arrive_as_the_node_gave_them() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    let sent = bytes(5000);
    let short = remote.put(put_plan(6000), body(&sent, 999)).await;
    assert!(
        matches!(short, Err(TransferError::BodyTooShort { received: 5000, expected: 6000 })),
        "{short:?}"
    );
    let long = remote.put(put_plan(4000), body(&sent, 999)).await;
    assert!(matches!(long, Err(TransferError::BodyTooLong { expected: 4000 })), "{long:?}");
    let small = LocalNode::in_memory(ID, 1 << 20, 16 << 20).unwrap();
    let small = Served::start(&pki, small, "127.0.0.1:0").await;
    let too_much = bytes(4 << 20);
    let full =
        self::remote(&pki, small.address).put(put_plan(4 << 20), body(&too_much, 1 << 20)).await;
    assert!(matches!(full, Err(TransferError::Full)), "{full:?}");
    let plan = put_plan(5000);
    remote.put(plan.clone(), body(&sent, 999)).await.unwrap();
    let again = remote.put(plan.clone(), body(&sent, 999)).await;
    assert!(
        matches!(again, Err(TransferError::InvalidPlan("a chunk id is used already"))),
        "{again:?}"
    );
    let mut beyond = get_plan(&plan);
    beyond.pieces[0].range = ByteRange::new(4999, 2).unwrap();
    let beyond = read(&remote, beyond).await;
    assert!(
        matches!(beyond, Err(TransferError::InvalidPlan("a range leaves its chunk"))),
        "{beyond:?}"
    );
    let misrouted = RemoteNodeConfig { id: NodeId(4), ..config(pki.paths(), served.address) };
    let misrouted = RemoteNode::new(&misrouted).unwrap().status().await;
    assert!(
        matches!(misrouted, Err(TransferError::InvalidPlan("the plan is for another node"))),
        "{misrouted:?}"
    );
    assert_eq!(served.node.chunks(None, 9).await.unwrap(), plan.chunks);
}

#[derive(Debug, thiserror::Error)]
#[error("the signature of the last chunk is wrong")]
struct BadSignature;

/// The body's source fails after its last byte: as a wrong trailer does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_body_stores_nothing_and_keeps_its_cause() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    let cause = TransferError::Body(BodyError(Arc::new(BadSignature)));
    let frames = vec![Ok(bytes(5000)), Err(cause)];
    let result = remote.put(put_plan(5000), Box::pin(stream::iter(frames))).await;
    let Err(TransferError::Body(BodyError(cause))) = result else { panic!("{result:?}") };
    assert!(cause.downcast_ref::<BadSignature>().is_some());
    until_idle(&served.node).await;
    assert_eq!(served.node.chunks(None, 9).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_whose_caller_goes_away_stores_nothing() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    let (started_sender, started) = oneshot::channel();
    let mut started_sender = Some(started_sender);
    // One frame, then silence for ever.
    let endless = stream::iter([Ok(bytes(1000))]).chain(stream::poll_fn(move |_| {
        started_sender.take().map(|sender| sender.send(()));
        std::task::Poll::Pending
    }));
    let mut put = remote.put(put_plan(5000), Box::pin(endless));
    tokio::select! {
        result = &mut put => panic!("{result:?}"),
        _ = started => {}
    }
    let busy = async {
        while served.node.stats().transfers == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), busy).await.expect("the put began");
    drop(put);
    until_idle(&served.node).await;
    assert_eq!(served.node.chunks(None, 9).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_whose_caller_goes_away_frees_the_transfer() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    // More than fits the windows: the node cannot have sent it all.
    let plan = put_plan(48 << 20);
    remote.put(plan.clone(), body(&bytes(48 << 20), 1 << 20)).await.unwrap();
    let mut delivery = remote.get(get_plan(&plan)).await.unwrap();
    delivery.body.next().await.unwrap().unwrap();
    assert_eq!(served.node.stats().transfers, 1, "the consumer holds it back");
    drop(delivery.body);
    until_idle(&served.node).await;
    assert!(delivery.receipt.await.is_err(), "no receipt for what was not delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_by_both_ends() {
    let (pki, other) = (Pki::new(), Pki::new());
    let served = served(&pki).await;
    let address = served.address;
    let status = async |tls: TlsPaths, name: &str| {
        let config = RemoteNodeConfig { server_name: name.into(), ..config(tls, address) };
        RemoteNode::new(&config).unwrap().status().await
    };
    assert!(status(pki.paths(), NAME).await.is_ok());
    let foreign_node = status(other.paths(), NAME).await;
    assert!(matches!(foreign_node, Err(TransferError::Unreachable(_))), "{foreign_node:?}");
    // It trusts the node, but shows a certificate of another authority.
    let impostor = TlsPaths { ca_path: pki.path("ca.pem"), ..other.paths() };
    let impostor = status(impostor, NAME).await;
    assert!(matches!(impostor, Err(TransferError::Unreachable(_))), "{impostor:?}");
    let misnamed = status(pki.paths(), "other.keyway.test").await;
    assert!(matches!(misnamed, Err(TransferError::Unreachable(_))), "{misnamed:?}");
    let plaintext =
        RemoteNodeConfig { endpoint: format!("http://{address}"), ..config(pki.paths(), address) };
    assert!(RemoteNode::new(&plaintext).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_is_found_again() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let remote = remote(&pki, served.address);
    let plan = put_plan(5000);
    let sent = bytes(5000);
    remote.put(plan.clone(), body(&sent, 999)).await.unwrap();
    let (node, address) = served.stop().await;
    let away = remote.status().await;
    assert!(matches!(away, Err(TransferError::Unreachable(_))), "{away:?}");
    let served = Served::start(&pki, node, &address.to_string()).await;
    // Each of the connections may have to learn of it once.
    let mut read_again = read(&remote, get_plan(&plan)).await;
    for _ in 0..8 {
        if read_again.is_ok() {
            break;
        }
        read_again = read(&remote, get_plan(&plan)).await;
    }
    assert_eq!(read_again.unwrap(), sent);
    drop(remote);
    served.stop().await;
}

/// A node whose device hangs: it begins every call and ends none.
struct Hanging;

#[async_trait::async_trait]
impl StorageNode for Hanging {
    fn id(&self) -> NodeId {
        ID
    }

    fn claim(&self, _: Option<CatalogId>) -> Result<(), TransferError> {
        Ok(())
    }

    async fn get(&self, plan: GetPlan) -> Result<Delivery, TransferError> {
        let (_, receipt) = oneshot::channel();
        Ok(Delivery { length: plan.length(), body: Box::pin(stream::pending()), receipt })
    }

    async fn put(&self, _: PutPlan, _body: Body) -> Result<Receipt, TransferError> {
        std::future::pending().await
    }

    async fn release(&self, _: &[ChunkId]) -> Result<(), TransferError> {
        std::future::pending().await
    }

    async fn settle(&self, _: &[ChunkId], _: Duration) -> Result<Vec<Standing>, TransferError> {
        std::future::pending().await
    }

    async fn prefetch(&self, _: TenantId, _: &[ChunkId]) -> Result<Prefetched, TransferError> {
        std::future::pending().await
    }

    async fn chunks(&self, _: Option<ChunkId>, _: usize) -> Result<Vec<ChunkSpec>, TransferError> {
        std::future::pending().await
    }

    async fn status(&self) -> Result<NodeStatus, TransferError> {
        std::future::pending().await
    }

    async fn rails(&self) -> Result<Vec<Rail>, TransferError> {
        std::future::pending().await
    }

    async fn open_session(
        &self,
        _: SessionOwner,
        _: SessionRequest,
    ) -> Result<SessionOffer, SessionError> {
        std::future::pending().await
    }

    async fn door(&self) -> Result<Option<Door>, TransferError> {
        std::future::pending().await
    }

    async fn open_local_session(
        &self,
        _: SessionOwner,
        _: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError> {
        std::future::pending().await
    }

    async fn close_sessions(&self, _: SessionSelector) -> Result<u64, TransferError> {
        std::future::pending().await
    }

    async fn count_sessions(&self, _: SessionSelector) -> Result<u64, TransferError> {
        std::future::pending().await
    }

    async fn transfer(&self, _: Bytes) -> Transferred {
        std::future::pending().await
    }

    async fn sealing_key(&self) -> Result<SealingKey, TransferError> {
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_is_given_up() {
    let pki = Pki::new();
    let served = Served::start(&pki, Arc::new(Hanging), "127.0.0.1:0").await;
    let config = RemoteNodeConfig { answer_timeout_ms: 500, ..config(pki.paths(), served.address) };
    let remote = RemoteNode::new(&config).unwrap();
    let given_up = |result: Result<(), TransferError>| {
        assert!(matches!(result, Err(TransferError::Unreachable(_))), "{result:?}");
    };
    given_up(remote.status().await.map(drop));
    given_up(remote.chunks(None, 1).await.map(drop));
    given_up(remote.release(&[ChunkId::generate()]).await);
    given_up(remote.settle(&[ChunkId::generate()], Duration::ZERO).await.map(drop));
    given_up(remote.rails().await.map(drop));
    given_up(remote.sealing_key().await.map(drop));
    given_up(remote.close_sessions(SessionSelector::Tenant(TenantId::ROOT)).await.map(drop));
    given_up(remote.count_sessions(SessionSelector::Tenant(TenantId::ROOT)).await.map(drop));
    let request = direct_node::session_request(ID);
    let opened = remote.open_session(direct::owner(), request).await;
    assert!(matches!(opened, Err(SessionError::Unreachable(_))), "{opened:?}");
    given_up(read(&remote, get_plan(&put_plan(5000))).await.map(drop));
    // One whose frames are all under way, and one that the window holds up.
    for length in [5000, 32 << 20] {
        let put = remote.put(put_plan(length as u64), body(&bytes(length), 1 << 20));
        given_up(put.await.map(drop));
    }
}

/// The deadline is the node's: a caller may take as long as it likes over its body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_caller_is_waited_for() {
    let pki = Pki::new();
    let served = served(&pki).await;
    let config = RemoteNodeConfig { answer_timeout_ms: 300, ..config(pki.paths(), served.address) };
    let remote = RemoteNode::new(&config).unwrap();
    remote.status().await.unwrap();
    let sent = bytes(5000);
    let slow = body(&sent, 2500).then(|frame| async {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        frame
    });
    let plan = put_plan(5000);
    remote.put(plan.clone(), Box::pin(slow)).await.unwrap();
    assert_eq!(read(&remote, get_plan(&plan)).await.unwrap(), sent);
}
