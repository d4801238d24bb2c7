//! Clients with dynamically connected targets, on a real mlx5 port: this test is the stock client,
//! with one long-lived registration, and a node on the same port serves it. Everywhere else its
//! tests are skipped; soft-RoCE has no such transport.
//!
//! `cargo test --workspace --test rdma_dynamic -- --nocapture` on a machine with a ConnectX
//! adapter; KEYWAY_DC_DEVICE (`mlx5_0/1`) picks a port.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

#[allow(dead_code, reason = "the other suite uses the rest")]
#[path = "rdma_node/rig.rs"]
mod rig;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use keyway_dataplane::{DirectError, LocalNode, RdmaConfig, StorageNode, Transferred};
use keyway_fabric::memory::HostBuffer;
use keyway_fabric::verbs::{
    Access, DcDevice, Domain, ListeningTarget, Port, Registration, dynamic_test, open_ports,
};
use keyway_proto::key::{Direction, Relinquished};
use keyway_proto::plan::chunk_lengths;
use keyway_proto::{
    ChunkId, ChunkSpec, DcKey, DigestSet, DirectPlan, DirectTarget, DirectWork, Durability,
    GetPlan, KeyStrength, PutPlan, RdmaToken, RemoteKey, TransferId, Verification, Weight,
};
use rig::{MIB, NODE, crc, owner, pattern, seal_with, whole};

const KEY: DcKey = DcKey(0x0123_4567_89ab_cdef);

/// A node, and a client whose memory is registered for good.
struct Stock {
    node: Arc<LocalNode>,
    target: ListeningTarget,
    buffer: HostBuffer,
    readable: Arc<Registration>,
    writable: Arc<Registration>,
    address: u64,
    // Last: a target's events are taken by its port's thread.
    _port: Port,
    _dir: tempfile::TempDir,
}

fn skipped<T>(why: &str) -> Option<T> {
    let thread = std::thread::current();
    let said = format!("\nskipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    // Past the runner's capture, so that it is seen and counted on a passing run.
    let _ = std::io::stderr().write_all(said.as_bytes());
    None
}

async fn stock(rdma: RdmaConfig, bytes: usize) -> Option<Stock> {
    let wanted: Vec<String> = std::env::var("KEYWAY_DC_DEVICE").into_iter().collect();
    let opened = match open_ports(&wanted) {
        Ok(opened) => opened,
        Err(error) => return skipped(&error.to_string()),
    };
    let mut why = "no active RDMA port".to_owned();
    let mut found = None;
    for port in opened.ports {
        match dynamic_test(&port).await {
            Ok(dc) => {
                found = Some((port, dc));
                break;
            }
            Err(error) => why = format!("{}: no DC: {error}", port.info().device),
        }
    }
    let Some((port, dc)) = found else { return skipped(&why) };
    let name = format!("{}/{}", port.info().device, port.info().number);
    let dir = tempfile::tempdir().unwrap();
    let node = rig::node_on(&name, RdmaConfig { dc_key: Some(KEY), ..rdma }, &dir).await;
    assert!(node.sealing_key().await.unwrap().dynamic);
    Some(client(node, port, &dc, bytes, dir))
}

fn client(
    node: Arc<LocalNode>,
    port: Port,
    dc: &DcDevice,
    bytes: usize,
    dir: tempfile::TempDir,
) -> Stock {
    let domain = Domain::new(port.device()).unwrap();
    let target = ListeningTarget::new(&port, dc, &domain, KEY).unwrap();
    let mut buffer = HostBuffer::zeroed(bytes).unwrap();
    let slice = buffer.slice_mut(..).unwrap();
    let (anchor, address) = (|| slice.exact_anchor(), slice.address());
    let readable = domain.register(anchor(), Access::Remote(Direction::Read)).unwrap();
    let writable = domain.register(anchor(), Access::Remote(Direction::Write)).unwrap();
    drop(slice);
    Stock { node, target, buffer, readable, writable, address, _port: port, _dir: dir }
}

impl Stock {
    fn token(&self, offset: u64, length: usize, key: RemoteKey) -> DirectTarget {
        let at = self.target.address();
        let gid = at.gid.map(|gid| gid.0);
        let address = self.address + offset;
        // By way of its text, as it comes.
        let token = RdmaToken::new(address, length as u32, key.0, at.lid, at.number, gid).unwrap();
        DirectTarget::Dynamic(NODE, token.encode().parse().unwrap())
    }

    async fn execute(&self, target: DirectTarget, work: DirectWork) -> Transferred {
        let plan = DirectPlan { owner: owner(0), target, work };
        let key = self.node.sealing_key().await.unwrap();
        let sealer = keyway_auth::grant::Sealer::new(&key.key);
        self.node.transfer(seal_with(&sealer, NODE, &plan, 30_000).into()).await
    }

    async fn put(&self, length: usize) -> Vec<ChunkSpec> {
        let chunks: Vec<_> = chunk_lengths(length as u64)
            .map(|length| ChunkSpec { id: ChunkId::generate(), length })
            .collect();
        let work = DirectWork::Put(PutPlan {
            transfer: TransferId::generate(),
            tenant: owner(0).tenant,
            weight: Weight::default(),
            chunks: chunks.clone(),
            digests: crc(),
            durability: Durability::Disk,
            key: None,
        });
        let target = self.token(0, length, self.readable.remote_key());
        let Transferred { moved, key } = self.execute(target, work).await;
        let receipt = moved.unwrap();
        assert_eq!((receipt.bytes, receipt.strength), (length as u64, KeyStrength::Standing));
        assert_eq!(key, Relinquished::Quiet);
        chunks
    }

    async fn get(&self, chunks: &[ChunkSpec], target: DirectTarget) -> Transferred {
        self.execute(target, get(chunks, crc())).await
    }

    async fn is_clean(&self) {
        let stats = self.node.stats();
        assert_eq!((stats.transfers, stats.waiting, stats.direct.sessions), (0, 0, 0));
        assert_eq!(stats.pool.leased_bytes, 0, "a lease leaked");
    }
}

fn get(chunks: &[ChunkSpec], digests: DigestSet) -> DirectWork {
    let plan = GetPlan {
        transfer: TransferId::generate(),
        tenant: owner(0).tenant,
        weight: Weight::default(),
        pieces: whole(chunks),
        verification: Verification::default(),
        key: None,
    };
    DirectWork::Get(plan, digests)
}

/// Goal: bytes go and come whole, several transfers at once, and initiators are used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_come_and_go() {
    let length = 17 * MIB + 5;
    let Some(mut stock) = stock(RdmaConfig::default(), 2 * length).await else { return };
    let bytes = pattern(length);
    stock.buffer.bytes_mut().unwrap()[..length].copy_from_slice(&bytes);
    let chunks = stock.put(length).await;
    for _ in 0..3 {
        stock.buffer.bytes_mut().unwrap()[length..].fill(0);
        let target = stock.token(length as u64, length, stock.writable.remote_key());
        let (one, other) =
            tokio::join!(stock.get(&chunks, target.clone()), stock.get(&chunks, target));
        for Transferred { moved, key } in [one, other] {
            let receipt = moved.unwrap();
            assert_eq!((receipt.bytes, receipt.strength), (length as u64, KeyStrength::Standing));
            assert_eq!(key, Relinquished::Quiet);
        }
        assert!(stock.buffer.bytes().unwrap()[length..] == bytes[..]);
    }
    stock.is_clean().await;
}

/// Goal: a key that does not open the memory ends one transfer, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_fails_alone() {
    let Some(mut stock) = stock(RdmaConfig::default(), MIB).await else { return };
    stock.buffer.bytes_mut().unwrap().copy_from_slice(&pattern(MIB));
    let chunks = stock.put(MIB).await;
    stock.buffer.bytes_mut().unwrap().fill(0);
    // For reading alone.
    let target = stock.token(0, MIB, stock.readable.remote_key());
    let Transferred { moved, key } = stock.get(&chunks, target).await;
    assert!(matches!(moved, Err(DirectError::Link(_))), "{moved:?}");
    assert_eq!(key, Relinquished::Fenced);
    assert!(stock.buffer.bytes().unwrap().iter().all(|byte| *byte == 0));
    let target = stock.token(0, MIB, stock.writable.remote_key());
    let Transferred { moved, key } = stock.get(&chunks, target).await;
    assert_eq!((moved.unwrap().bytes, key), (MIB as u64, Relinquished::Quiet));
    assert!(stock.buffer.bytes().unwrap() == pattern(MIB));
    stock.is_clean().await;
}

/// Goal: a transfer that is given up has an end, by which its initiator is gone or never posted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_too_long_is_given_up() {
    let length = 64 * MIB;
    let Some(stock) = stock(RdmaConfig::default(), length).await else { return };
    let chunks = stock.put(length).await;
    let target = stock.token(0, length, stock.writable.remote_key());
    let dropped = tokio::time::timeout(Duration::from_millis(1), stock.get(&chunks, target));
    let was_dropped = dropped.await.is_err();
    while stock.node.stats().transfers > 0 || stock.node.stats().direct.sessions > 0 {
        tokio::task::yield_now().await;
    }
    let direct = stock.node.stats().direct;
    assert_eq!(direct.invalidated, 0);
    assert!(direct.fenced + direct.quiet > u64::from(!was_dropped));
    stock.is_clean().await;
}
