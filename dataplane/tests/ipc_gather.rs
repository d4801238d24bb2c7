//! Many pieces of chunks into one window of a client's shared memory.
//!
//! Goal: every byte lands in its place and no other byte changes, wherever the pieces are (in
//! memory, on the disk, in the tier in part); one key opens the window, and it is dead behind the
//! answer. Method: a node's own door in this process, real shared mappings, sealed grants, and
//! random pieces held against the bytes that were stored.

#![allow(clippy::unwrap_used, reason = "a test may give up")]

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::stream;
use keyway_auth::grant::{Grant, Sealer};
use keyway_dataplane::{
    AccessMode, DirectError, IpcConfig, LocalNode, NodeConfig, StorageNode, StoreConfig, TierAdmit,
    TierConfig, TierVerify, TransferError, Transferred,
};
use keyway_fabric::ipc::{Armed, ClientLink};
use keyway_fabric::memory::{HostBuffer, HostSliceMut};
use keyway_proto::key::{Direction, Relinquished};
use keyway_proto::plan::chunk_lengths;
use keyway_proto::seal::{SEALED_BYTES, SEALED_CHUNK_BYTES_MAX, sealed_chunk_lengths};
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, ChunkId, ChunkSpec, DataKey, DigestSet, DirectPlan,
    DirectWork, GatherPiece, GatherPlan, GetPlan, KeyStrength, LocalSessionRequest, NodeId, Piece,
    PutPlan, RemoteWindow, SessionId, SessionOwner, SessionToken, TenantId, TransferId,
    TransferPath, Verification, Weight,
};
use keyway_rpc::convert;

const NODE: NodeId = NodeId(1);
const MIB: usize = 1 << 20;
const OBJECT_BYTES: usize = 40 * MIB + 777;
const FILL: u8 = 0xee;

struct Rig {
    node: Arc<LocalNode>,
    link: ClientLink,
    session: SessionId,
    owner: SessionOwner,
    chunks: Vec<ChunkSpec>,
    key: Option<DataKey>,
    bytes: Bytes,
    random: fastrand::Rng,
    dir: tempfile::TempDir,
}

/// A node with an object, and a session with it.
async fn rig(tier: TierConfig, pool_bytes: usize) -> Rig {
    rig_under(None, tier, pool_bytes).await
}

/// The same; the object is encrypted where there is a key.
async fn rig_under(key: Option<DataKey>, tier: TierConfig, pool_bytes: usize) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("door");
    let store = StoreConfig {
        dir: dir.path().join("store"),
        capacity_bytes: Some(200 << 20),
        volume_bytes: 64 << 20,
        pool_bytes,
        ..StoreConfig::default()
    };
    let ipc =
        IpcConfig { mode: AccessMode::Require, socket: Some(socket.clone()), users: Vec::new() };
    let config = NodeConfig { id: NODE, store, tier, ipc, ..NodeConfig::default() };
    let node = LocalNode::open(config).await.unwrap();
    over(node, key, &socket, dir).await
}

async fn over(
    node: Arc<LocalNode>,
    key: Option<DataKey>,
    socket: &Path,
    dir: tempfile::TempDir,
) -> Rig {
    let owner = SessionOwner { tenant: TenantId(7), access_key: "key".into() };
    let request = LocalSessionRequest { node: NODE, windows: 4 };
    let offer = node.open_local_session(owner.clone(), request).await.unwrap();
    let link = ClientLink::open(socket, offer.ticket).await.unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    let mut bytes = vec![0; OBJECT_BYTES];
    random.fill(&mut bytes);
    let bytes = Bytes::from(bytes);
    let chunks = chunks_of(OBJECT_BYTES as u64, key.as_ref());
    let plan = PutPlan {
        transfer: TransferId::generate(),
        tenant: owner.tenant,
        weight: Weight::default(),
        chunks: chunks.clone(),
        digests: crc(),
        durability: keyway_proto::Durability::Disk,
        key: key.clone(),
    };
    let frames: Vec<_> = bytes.chunks(MIB).map(|frame| Ok(bytes.slice_ref(frame))).collect();
    node.put(plan, Box::pin(stream::iter(frames))).await.unwrap();
    Rig { node, link, session: offer.session, owner, chunks, key, bytes, random, dir }
}

fn chunks_of(length: u64, key: Option<&DataKey>) -> Vec<ChunkSpec> {
    let chunk = |length| ChunkSpec { id: ChunkId::generate(), length };
    match key {
        None => chunk_lengths(length).map(chunk).collect(),
        Some(_) => sealed_chunk_lengths(length).map(chunk).collect(),
    }
}

fn data_key() -> Option<DataKey> {
    DataKey::from_slice(&[0x42; DataKey::BYTES])
}

fn crc() -> DigestSet {
    DigestSet::NONE.with(ChecksumKind::Crc64Nvme)
}

impl Rig {
    async fn arm(&self, buffer: &mut HostBuffer, direction: Direction) -> Armed<HostSliceMut> {
        self.arm_with(FILL, buffer, direction).await
    }

    async fn arm_with(
        &self,
        fill: u8,
        buffer: &mut HostBuffer,
        direction: Direction,
    ) -> Armed<HostSliceMut> {
        buffer.bytes_mut().unwrap().fill(fill);
        let slice = buffer.slice_mut(..).unwrap();
        let region = Arc::new(self.link.share(slice.export().unwrap()).await.unwrap());
        let (address, length) = (slice.address(), slice.len() as u32);
        let armed = self.link.arm(slice, &region, address, length, direction).await;
        armed.map_err(|(error, _)| error).unwrap()
    }

    fn plan(&self, windows: &[RemoteWindow], pieces: Vec<GatherPiece>) -> DirectPlan {
        let (transfer, tenant) = (TransferId::generate(), self.owner.tenant);
        let chunks = self.chunks.iter().map(|chunk| chunk.id).collect();
        let (weight, verification) = (Weight::default(), Verification::default());
        let key = self.key.clone();
        let plan = GatherPlan { transfer, tenant, weight, chunks, pieces, verification, key };
        let work = DirectWork::Gather(plan, crc());
        let target = SessionToken::new(self.session, windows.to_vec()).unwrap().into();
        DirectPlan { owner: self.owner.clone(), target, work }
    }

    async fn execute(&self, plan: &DirectPlan) -> Transferred {
        let sealer = Sealer::new(&self.node.sealing_key().await.unwrap().key);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let sealed = sealer.seal(&Grant {
            node: NODE,
            session: plan.session(),
            tenant: plan.owner.tenant,
            expiry_ms: now_ms + 30_000,
            nonce: TransferId::generate().to_bytes(),
            plan: &convert::direct_plan_bytes(plan),
        });
        self.node.transfer(sealed.into()).await
    }

    /// Random pieces that take `room` bytes of memory at most.
    fn pieces(&mut self, count: usize, length_max: u32, room: u32) -> Vec<GatherPiece> {
        let (mut pieces, mut end) = (Vec::new(), 0);
        while pieces.len() < count {
            let chunk = self.random.usize(..self.chunks.len());
            let chunk_bytes = self.chunks[chunk].length as u32;
            let offset = self.random.u32(..chunk_bytes);
            let length = self.random.u32(1..=length_max).min(chunk_bytes - offset);
            let at = end + if self.random.u8(..4) == 0 { self.random.u32(..100) } else { 0 };
            if at + length > room {
                break;
            }
            end = at + length;
            pieces.push(GatherPiece { chunk: chunk as u32, offset, length, at });
        }
        // Each chunk is named, so all must be used; a plan has no more chunks than pieces.
        assert!(pieces.len() >= self.chunks.len());
        pieces
    }

    /// Has pieces moved, and holds all of the memory against what must be there.
    async fn gather(&self, pieces: Vec<GatherPiece>, room: usize) {
        let mut buffer = HostBuffer::shared(room).unwrap();
        let mut armed = self.arm(&mut buffer, Direction::Write).await;
        let (mut expected, mut sent) = (vec![FILL; room], Vec::new());
        for piece in &pieces {
            let chunks = &self.chunks[..piece.chunk as usize];
            let start: u64 = chunks.iter().map(|chunk| chunk.length).sum();
            let from = start as usize + piece.offset as usize;
            let part = &self.bytes[from..from + piece.length as usize];
            expected[piece.at as usize..piece.end() as usize].copy_from_slice(part);
            sent.extend_from_slice(part);
        }
        let plan = self.plan(&[armed.remote()], pieces);
        let Transferred { moved, key } = self.execute(&plan).await;
        let receipt = moved.unwrap();
        assert_eq!(key, Relinquished::Invalidated);
        assert_eq!((receipt.path, receipt.strength), (TransferPath::IpcHost, KeyStrength::Ipc));
        assert_eq!(receipt.bytes, sent.len() as u64);
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, &sent);
        assert_eq!(receipt.digests.value(ChecksumKind::Crc64Nvme), Some(&sum));
        armed.invalidated().await.unwrap();
        drop(armed.release().map_err(|_| "not dead").unwrap());
        assert!(*buffer.bytes().unwrap() == *expected, "other bytes in memory");
        // The same plan again: its key is dead.
        let replayed = self.execute(&plan).await;
        assert!(matches!(replayed.moved, Err(DirectError::Link(_))), "{:?}", replayed.moved);
        assert!(*buffer.bytes().unwrap() == *expected, "bytes under a dead key");
    }

    async fn is_clean(&self) {
        let stats = self.node.stats();
        assert_eq!((stats.transfers, stats.waiting), (0, 0));
        assert_eq!(stats.pool.leased_bytes, 0, "a lease leaked");
    }
}

fn tier(size_bytes: usize, admit: TierAdmit, verify: TierVerify) -> TierConfig {
    let size_bytes = size_bytes as u64;
    TierConfig { size_bytes, admit, verify, scrub_bytes_per_second: 0, ..TierConfig::default() }
}

/// Small ones, some that hold whole blocks, and some of several reads.
async fn gathers_of_every_kind(rig: &mut Rig) {
    for (count, length_max, room) in
        [(1024, 4096, 4 << 20), (300, 100_000, 24 << 20), (20, 3 << 20, 48 << 20), (3, 1, 300)]
    {
        let pieces = match count {
            3 => (0..3).map(|n| GatherPiece { chunk: n, offset: 9, length: 1, at: n }).collect(),
            _ => rig.pieces(count, length_max, room),
        };
        rig.gather(pieces, room as usize).await;
    }
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_come_out_of_the_tier() {
    let all = tier(64 * MIB, TierAdmit::OnReadAndWrite, TierVerify::AtFill);
    let mut rig = rig(all, 32 * MIB).await;
    gathers_of_every_kind(&mut rig).await;
    let stats = rig.node.stats();
    assert_eq!(stats.tier.misses, 0, "{:?}", stats.tier);
    assert!(stats.tier.hits >= 1024, "{:?}", stats.tier);
    assert_eq!(stats.store.read_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_are_verified_at_every_read_where_that_is_wanted() {
    let all = tier(64 * MIB, TierAdmit::OnReadAndWrite, TierVerify::EveryRead);
    let mut rig = rig(all, 32 * MIB).await;
    gathers_of_every_kind(&mut rig).await;
    assert_eq!(rig.node.stats().tier.misses, 0);
}

/// Blocks come into the tier one by one, as they are read, so that chunks have holes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_come_out_of_a_tier_with_holes() {
    let read = tier(64 * MIB, TierAdmit::OnRead, TierVerify::AtFill);
    let mut rig = rig(read, 32 * MIB).await;
    for _ in 0..3 {
        let pieces = rig.pieces(100, 4096, 1 << 20);
        rig.gather(pieces, MIB).await;
    }
    gathers_of_every_kind(&mut rig).await;
    let stats = rig.node.stats();
    assert!(stats.tier.hits > 0 && stats.tier.misses > 0, "{:?}", stats.tier);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_come_off_the_disk() {
    let mut rig = rig(TierConfig::default(), 32 * MIB).await;
    gathers_of_every_kind(&mut rig).await;
    assert!(rig.node.stats().store.read_bytes > 0);
}

/// Goal: transfers that together want more buffers than there are all end. Method: a pool of a few
/// buffers, and as many transfers at once as a session has keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_buffers_are_enough() {
    let mut rig = rig(TierConfig::default(), 2 * MIB).await;
    let lists: Vec<_> = (0..4).map(|_| rig.pieces(400, 4096, 4 << 20)).collect();
    let all = lists.into_iter().map(|pieces| rig.gather(pieces, 4 << 20));
    let all = futures::future::join_all(all);
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("no deadlock");
    rig.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_sound_moves_nothing() {
    let all = tier(64 * MIB, TierAdmit::OnReadAndWrite, TierVerify::AtFill);
    let rig = rig(all, 32 * MIB).await;
    let piece = |chunk, offset, length, at| GatherPiece { chunk, offset, length, at };
    let three = |last| vec![piece(0, 0, 4, 0), piece(1, 0, 4, 4), last];
    let tail = rig.chunks[2].length as u32;
    for (pieces, direction, windows) in [
        (three(piece(2, tail - 1, 2, 8)), Direction::Write, 1),
        (three(piece(2, u32::MAX, 2, 8)), Direction::Write, 1),
        (three(piece(3, 0, 1, 8)), Direction::Write, 1),
        (three(piece(2, 0, 1, 7)), Direction::Write, 1),
        (three(piece(2, 0, 0, 8)), Direction::Write, 1),
        (three(piece(2, 0, 2, 63)), Direction::Write, 1),
        (vec![piece(0, 0, 4, 0)], Direction::Write, 1),
        (three(piece(2, 0, 2, 8)), Direction::Read, 1),
        (three(piece(2, 0, 2, 8)), Direction::Write, 2),
    ] {
        let mut buffer = HostBuffer::shared(64).unwrap();
        let mut armed = rig.arm(&mut buffer, direction).await;
        let plan = rig.plan(&vec![armed.remote(); windows], pieces.clone());
        let Transferred { moved, .. } = rig.execute(&plan).await;
        match direction {
            Direction::Write => assert!(
                matches!(moved, Err(DirectError::InvalidPlan(_) | DirectError::Transfer(_))),
                "{pieces:?}: {moved:?}"
            ),
            Direction::Read => assert!(matches!(moved, Err(DirectError::Link(_))), "{moved:?}"),
        }
        armed.revoke().await.unwrap();
        drop(armed.release().map_err(|_| "not dead").unwrap());
        assert_eq!(*buffer.bytes().unwrap(), [FILL; 64], "{pieces:?}");
    }
    // A chunk that is not there.
    let mut buffer = HostBuffer::shared(64).unwrap();
    let mut armed = rig.arm(&mut buffer, Direction::Write).await;
    let mut plan = rig.plan(&[armed.remote()], three(piece(2, 0, 2, 8)));
    if let DirectWork::Gather(gather, _) = &mut plan.work {
        gather.chunks[1] = ChunkId::generate();
    }
    let moved = rig.execute(&plan).await.moved;
    assert!(matches!(moved, Err(DirectError::Transfer(_))), "{moved:?}");
    armed.revoke().await.unwrap();
    drop(armed.release().map_err(|_| "not dead").unwrap());
    assert_eq!(*buffer.bytes().unwrap(), [FILL; 64]);
    rig.is_clean().await;
}

impl Rig {
    /// Turns a bit of what the device has of the object's bytes from `at` on, which a page begins
    /// with.
    fn damage(&self, at: usize) {
        let wanted = &self.bytes[at..at + 64];
        for entry in std::fs::read_dir(self.dir.path().join("store")).unwrap() {
            let path = entry.unwrap().path();
            let stored = std::fs::read(&path).unwrap();
            let mut pages = (0..stored.len().saturating_sub(wanted.len())).step_by(4096);
            if let Some(page) = pages.find(|page| stored[*page..].starts_with(wanted)) {
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.write_all_at(&[stored[page] ^ 1], page as u64).unwrap();
                return file.sync_all().unwrap();
            }
        }
        panic!("the bytes are nowhere");
    }
}

/// Goal: damage leaves the client's memory as it was, or breaks the transfer, or is the client's to
/// find, as the plan says; for ranges, and for a chunk of several reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_shows_when_the_plan_says() {
    const AT: usize = 5 * MIB;
    let rig = rig(TierConfig::default(), 32 * MIB).await;
    let start = (rig.chunks[0].length + rig.chunks[1].length) as usize;
    rig.damage(start + AT);
    let piece = |chunk, offset, at| GatherPiece { chunk, offset, length: 4096, at };
    let pieces = vec![piece(0, 0, 0), piece(1, 4096, 4096), piece(2, AT as u32, 8192)];
    let whole = ByteRange::whole(rig.chunks[2].length);
    let (all, parts) = (&rig.bytes[start..], &rig.bytes[start + AT..start + AT + 4096]);
    for verification in Verification::ALL {
        for gathers in [true, false] {
            let mut buffer = HostBuffer::shared(9 * MIB).unwrap();
            let mut armed = rig.arm(&mut buffer, Direction::Write).await;
            let mut plan = rig.plan(&[armed.remote()], pieces.clone());
            if let DirectWork::Gather(gather, digests) = &mut plan.work {
                gather.verification = verification;
                let &mut GatherPlan { transfer, tenant, weight, .. } = gather;
                let piece = Piece { chunk: rig.chunks[2].id, range: whole };
                let get = GetPlan {
                    transfer,
                    tenant,
                    weight,
                    pieces: vec![piece],
                    verification,
                    key: None,
                };
                if !gathers {
                    plan.work = DirectWork::Get(get, *digests);
                }
            }
            let Transferred { moved, .. } = rig.execute(&plan).await;
            let what = format!("{verification}, {gathers}: {moved:?}");
            match &moved {
                Ok(_) => armed.invalidated().await.unwrap(),
                Err(_) => armed.revoke().await.unwrap(),
            }
            drop(armed.release().map_err(|_| "not dead").unwrap());
            let memory = buffer.bytes().unwrap();
            if verification == Verification::Client {
                assert!(moved.is_ok(), "{what}");
                let (found, sent) = if gathers {
                    (&memory[8192..12288], parts)
                } else {
                    (&memory[..all.len()], all)
                };
                let differ = found.iter().zip(sent).filter(|(a, b)| a != b).count();
                assert_eq!(differ, 1, "{what}");
                continue;
            }
            let damaged = DirectError::Transfer(TransferError::Damaged {
                chunk: rig.chunks[2].id,
                offset: AT as u64,
            });
            assert_eq!(format!("{:?}", moved.unwrap_err()), format!("{damaged:?}"), "{what}");
            let untouched = memory.iter().all(|byte| *byte == FILL);
            assert!(untouched || verification == Verification::Inline, "{what}: bytes have landed");
        }
    }
    rig.is_clean().await;
}

/// Goal: pieces of an encrypted object are its bytes, wherever its blocks are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_of_an_encrypted_object_are_opened() {
    for tier in [
        TierConfig::default(),
        tier(64 * MIB, TierAdmit::OnReadAndWrite, TierVerify::AtFill),
        tier(64 * MIB, TierAdmit::OnRead, TierVerify::EveryRead),
    ] {
        let mut rig = rig_under(data_key(), tier, 32 * MIB).await;
        gathers_of_every_kind(&mut rig).await;
    }
    let mut rig = rig_under(data_key(), TierConfig::default(), 2 * MIB).await;
    let lists: Vec<_> = (0..4).map(|_| rig.pieces(400, 4096, 4 << 20)).collect();
    let all = lists.into_iter().map(|pieces| rig.gather(pieces, 4 << 20));
    let all = futures::future::join_all(all);
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("no deadlock");
    rig.is_clean().await;
}

/// Goal: what comes out of a client's memory is encrypted on the device and comes back into a
/// client's memory as it was, for lengths at the edges of blocks, pieces and chunks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_bytes_go_out_of_memory_and_into_it() {
    let rig = rig_under(data_key(), TierConfig::default(), 32 * MIB).await;
    let (block, chunk) = (SEALED_BYTES as usize, SEALED_CHUNK_BYTES_MAX as usize);
    for length in [1, block - 1, block, block + 1, 16 * block + 1, chunk, chunk + 1, 3 * chunk / 2]
    {
        let mut buffer = HostBuffer::shared(length).unwrap();
        let mut armed = rig.arm(&mut buffer, Direction::Read).await;
        let target = SessionToken::new(rig.session, vec![armed.remote()]).unwrap().into();
        let put = PutPlan {
            transfer: TransferId::generate(),
            tenant: rig.owner.tenant,
            weight: Weight::default(),
            chunks: chunks_of(length as u64, rig.key.as_ref()),
            digests: crc().with(ChecksumKind::Md5),
            durability: keyway_proto::Durability::Disk,
            key: rig.key.clone(),
        };
        let owner = rig.owner.clone();
        let plan = DirectPlan { owner, target, work: DirectWork::Put(put.clone()) };
        let receipt = rig.execute(&plan).await.moved.unwrap();
        let sent = vec![FILL; length];
        for kind in [ChecksumKind::Crc64Nvme, ChecksumKind::Md5] {
            assert_eq!(receipt.digests.value(kind), Some(&Checksum::of(kind, &sent)), "{length}");
        }
        armed.invalidated().await.unwrap();
        drop(armed.release().map_err(|_| "not dead").unwrap());
        for entry in std::fs::read_dir(rig.dir.path().join("store")).unwrap() {
            let stored = std::fs::read(entry.unwrap().path()).unwrap();
            let shows = stored.windows(64).any(|run| run == [FILL; 64]);
            assert!(length < 64 || !shows, "{length} bytes are on the device as they are");
        }
        let mut back = HostBuffer::shared(length).unwrap();
        let mut armed = rig.arm_with(0, &mut back, Direction::Write).await;
        let target = SessionToken::new(rig.session, vec![armed.remote()]).unwrap().into();
        let piece =
            |chunk: &ChunkSpec| Piece { chunk: chunk.id, range: ByteRange::whole(chunk.length) };
        let get = GetPlan {
            transfer: TransferId::generate(),
            tenant: rig.owner.tenant,
            weight: Weight::default(),
            pieces: put.chunks.iter().map(piece).collect(),
            verification: Verification::Client,
            key: rig.key.clone(),
        };
        let owner = rig.owner.clone();
        let plan = DirectPlan { owner, target, work: DirectWork::Get(get, crc()) };
        let receipt = rig.execute(&plan).await.moved.unwrap();
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, &sent);
        assert_eq!(receipt.digests.value(ChecksumKind::Crc64Nvme), Some(&sum), "{length}");
        armed.invalidated().await.unwrap();
        drop(armed.release().map_err(|_| "not dead").unwrap());
        assert!(*back.bytes().unwrap() == *sent, "{length}");
    }
    rig.is_clean().await;
}
