//! A node and its clients on real verbs, and the gateway's part.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keyway_auth::grant::{Grant, Sealer};
use keyway_dataplane::store::StoreConfig;
use keyway_dataplane::{
    AccessMode, DirectStats, LocalNode, NodeConfig, RdmaConfig, StorageNode, Transferred,
};
use keyway_fabric::memory::{HostBuffer, HostSlice, HostSliceMut};
use keyway_fabric::verbs::{Access, Armed, Domain, Link, LinkShape, Port};
use keyway_proto::key::{Direction, Relinquished};
use keyway_proto::plan::chunk_lengths;
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, ChunkId, ChunkSpec, DigestSet, DirectPlan, DirectWork,
    GetPlan, KeyStrength, NodeId, Piece, PutPlan, RemoteWindow, SessionId, SessionOwner,
    SessionRequest, SessionToken, TenantId, TransferId, TransferPath, Verification, Weight,
};
use keyway_rpc::convert;

#[allow(dead_code, reason = "suites of links use the rest")]
#[path = "../../fabric/tests/two_ports/mod.rs"]
mod two_ports;

pub(crate) const NODE: NodeId = NodeId(1);
pub(crate) const MIB: usize = 1 << 20;

/// A node on the machine's first port, and the second port for its clients.
pub(crate) struct Rig {
    pub(crate) node: Arc<LocalNode>,
    pub(crate) port: Port,
    _dir: tempfile::TempDir,
}

pub(crate) async fn rig() -> Option<Rig> {
    rig_with(RdmaConfig::default()).await
}

pub(crate) async fn rig_with(rdma: RdmaConfig) -> Option<Rig> {
    let (verbs, first, second) = two_ports::devices()?;
    let dir = tempfile::tempdir().unwrap();
    let node = node_on(&first, rdma, &dir).await;
    let port = two_ports::open(&verbs, &second);
    Some(Rig { node, port, _dir: dir })
}

/// A node on this port alone, with its store in the directory.
pub(crate) async fn node_on(
    port: &str,
    rdma: RdmaConfig,
    dir: &tempfile::TempDir,
) -> Arc<LocalNode> {
    let store = StoreConfig {
        dir: dir.path().join("store"),
        capacity_bytes: Some(400 << 20),
        volume_bytes: 64 << 20,
        ..StoreConfig::default()
    };
    let rdma = RdmaConfig { mode: AccessMode::Require, devices: vec![port.to_owned()], ..rdma };
    let config = NodeConfig { id: NODE, store, rdma, ..NodeConfig::default() };
    LocalNode::open(config).await.unwrap()
}

pub(crate) fn owner(tenant: u64) -> SessionOwner {
    SessionOwner { tenant: TenantId(tenant), access_key: format!("key-{tenant}").into() }
}

/// A client with a session.
pub(crate) struct Client {
    pub(crate) session: SessionId,
    pub(crate) owner: SessionOwner,
    pub(crate) link: Link,
}

impl Rig {
    pub(crate) async fn client(&self, tenant: u64) -> Client {
        let domain = Domain::new(self.port.device()).unwrap();
        let pending = self.port.link(&domain, LinkShape::client(4)).unwrap();
        let request = SessionRequest {
            node: NODE,
            rail: 0,
            client: pending.address(),
            windows: 4,
            strengths: vec![KeyStrength::Window],
        };
        let owner = owner(tenant);
        let offer = self.node.open_session(owner.clone(), request).await.unwrap();
        assert_eq!(offer.strength, KeyStrength::Window);
        let link = pending.connect(&offer.server).unwrap();
        Client { session: offer.session, owner, link }
    }

    pub(crate) async fn sealer(&self) -> Sealer {
        Sealer::new(&self.node.sealing_key().await.unwrap().key)
    }

    pub(crate) async fn seal(&self, plan: &DirectPlan) -> Vec<u8> {
        seal_with(&self.sealer().await, NODE, plan, 30_000)
    }

    pub(crate) async fn execute(&self, plan: &DirectPlan) -> Transferred {
        self.node.transfer(self.seal(plan).await.into()).await
    }

    /// Stores bytes through a session, window and all.
    pub(crate) async fn put(&self, client: &Client, bytes: &[u8]) -> Vec<ChunkSpec> {
        let (mut buffer, length) = (HostBuffer::from(bytes.to_vec()), bytes.len());
        let slice = buffer.slice(..length).unwrap();
        let mut armed = client.lend(slice).await;
        let chunks: Vec<_> = chunk_lengths(length as u64)
            .map(|length| ChunkSpec { id: ChunkId::generate(), length })
            .collect();
        let plan = client.put_plan(&[armed.remote()], &chunks);
        let Transferred { moved, key } = self.execute(&plan).await;
        let receipt = moved.unwrap();
        assert_eq!(key, Relinquished::Invalidated);
        assert_eq!((receipt.bytes, receipt.path), (length as u64, TransferPath::VerbsHost));
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, bytes);
        assert_eq!(receipt.digests.value(ChecksumKind::Crc64Nvme), Some(&sum));
        armed.invalidated().await.unwrap();
        chunks
    }

    /// Waits until a transfer has buffers in its hands.
    pub(crate) async fn is_moving(&self) {
        while self.node.stats().pool.leased_bytes == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// What became of the key of the one transfer that has begun since.
    pub(crate) async fn fate_after(&self, before: DirectStats) -> Relinquished {
        loop {
            let now = self.node.stats().direct;
            if now.invalidated > before.invalidated {
                return Relinquished::Invalidated;
            }
            if now.quiet > before.quiet {
                return Relinquished::Quiet;
            }
            assert_eq!(now.fenced, before.fenced);
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the drive has written what it was given of PUTs that ended before their time.
    pub(crate) async fn drive_is_done(&self) {
        let none = async {
            while self.node.stats().pool.leased_bytes > 0 {
                tokio::task::yield_now().await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(10), none).await;
        assert!(done.is_ok(), "a lease leaked: {:?}", self.node.stats().pool);
    }

    pub(crate) async fn is_clean(&self) {
        let stats = self.node.stats();
        assert_eq!((stats.transfers, stats.waiting), (0, 0));
        assert_eq!(stats.pool.leased_bytes, 0, "a lease leaked");
    }
}

impl Client {
    pub(crate) async fn lend(&self, slice: HostSlice) -> Armed<HostSlice> {
        let registration = self.link.domain().register(slice.exact_anchor(), Access::Windows);
        let (address, length) = (slice.address(), slice.len() as u32);
        let armed = self.link.arm(slice, registration.unwrap(), address, length, Direction::Read);
        armed.await.map_err(|(error, _)| error).unwrap()
    }

    pub(crate) async fn borrow(&self, slice: HostSliceMut) -> Armed<HostSliceMut> {
        let registration = self.link.domain().register(slice.exact_anchor(), Access::Windows);
        let (address, length) = (slice.address(), slice.len() as u32);
        let armed = self.link.arm(slice, registration.unwrap(), address, length, Direction::Write);
        armed.await.map_err(|(error, _)| error).unwrap()
    }

    pub(crate) fn plan(&self, windows: &[RemoteWindow], work: DirectWork) -> DirectPlan {
        let target = SessionToken::new(self.session, windows.to_vec()).unwrap().into();
        DirectPlan { owner: self.owner.clone(), target, work }
    }

    pub(crate) fn put_plan(&self, windows: &[RemoteWindow], chunks: &[ChunkSpec]) -> DirectPlan {
        let plan = PutPlan {
            transfer: TransferId::generate(),
            tenant: self.owner.tenant,
            weight: Weight::default(),
            chunks: chunks.to_vec(),
            digests: crc(),
            durability: keyway_proto::Durability::Disk,
            key: None,
        };
        self.plan(windows, DirectWork::Put(plan))
    }

    pub(crate) fn get_plan(&self, windows: &[RemoteWindow], pieces: Vec<Piece>) -> DirectPlan {
        let (transfer, tenant) = (TransferId::generate(), self.owner.tenant);
        let (weight, verification) = (Weight::default(), Verification::default());
        let plan = GetPlan { transfer, tenant, weight, pieces, verification, key: None };
        self.plan(windows, DirectWork::Get(plan, crc()))
    }
}

/// Ends the key as the node left it.
pub(crate) async fn settle<M: Send + 'static>(armed: &mut Armed<M>, key: Relinquished) {
    match key {
        Relinquished::Invalidated => armed.invalidated().await.unwrap(),
        Relinquished::Quiet => armed.revoke().await.unwrap(),
        other => panic!("the link lives, and the key is {other:?}"),
    }
}

/// Links that lose packets while this lives.
pub(crate) struct Loss;

impl Loss {
    pub(crate) fn begin(percent: u32) -> Self {
        let status = Command::new("loss").args(["on", &percent.to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "loss on");
        Self
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        let status = Command::new("loss").arg("off").status();
        assert!(status.is_ok_and(|status| status.success()), "the links stay lossy");
    }
}

pub(crate) fn crc() -> DigestSet {
    [ChecksumKind::Crc64Nvme].into_iter().collect()
}

pub(crate) fn whole(chunks: &[ChunkSpec]) -> Vec<Piece> {
    let piece =
        |chunk: &ChunkSpec| Piece { chunk: chunk.id, range: ByteRange::whole(chunk.length) };
    chunks.iter().map(piece).collect()
}

pub(crate) fn seal_with(sealer: &Sealer, node: NodeId, plan: &DirectPlan, life_ms: u64) -> Vec<u8> {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    sealer.seal(&Grant {
        node,
        session: plan.session(),
        tenant: plan.owner.tenant,
        expiry_ms: now_ms + life_ms,
        nonce: TransferId::generate().to_bytes(),
        plan: &convert::direct_plan_bytes(plan),
    })
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[3]).collect()
}
