//! Goal: a storage node moves bytes between its store and a client's memory under keys that
//! die, and refuses what it must. Method: a node with its own port, a client with the other,
//! and a gateway's part (sealing grants) played by the test; all packets cross the wire.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_auth::grant::{GrantError, GrantKey, GrantKeyId, Sealer};
use keyway_dataplane::{
    DirectError, RdmaConfig, SessionError, StorageNode, TransferError, Transferred,
};
use keyway_fabric::memory::HostBuffer;
use keyway_fabric::verbs::{Domain, LinkShape, RESOLVE_MAX};
use keyway_proto::key::Relinquished;
use keyway_proto::plan::chunk_lengths;
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, ChunkId, ChunkSpec, DirectPlan, DirectWork, GetPlan,
    KeyStrength, NodeId, Piece, RemoteWindow, SessionId, SessionOwner, SessionRequest,
    SessionSelector, SessionToken, TenantId,
};

#[path = "rdma_node/rig.rs"]
mod rig;

use rig::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_there_and_back() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    for length in [1, 511, 4096, 65_537, MIB, 3 * MIB + 1, 20 * MIB] {
        let bytes = pattern(length);
        let chunks = rig.put(&client, &bytes).await;
        let mut buffer = HostBuffer::zeroed(length + 4096).unwrap();
        let mut armed = client.borrow(buffer.slice_mut(..length).unwrap()).await;
        let plan = client.get_plan(&[armed.remote()], whole(&chunks));
        let Transferred { moved, key } = rig.execute(&plan).await;
        let receipt = moved.unwrap();
        assert_eq!((receipt.bytes, key), (length as u64, Relinquished::Invalidated));
        let sum = Checksum::of(ChecksumKind::Crc64Nvme, &bytes);
        assert_eq!(receipt.digests.value(ChecksumKind::Crc64Nvme), Some(&sum));
        armed.invalidated().await.unwrap();
        assert!(armed.release().unwrap()[..] == bytes[..], "{length} bytes");
        assert!(buffer.bytes().unwrap()[length..].iter().all(|byte| *byte == 0));
    }
    rig.is_clean().await;
    assert_eq!(rig.node.stats().direct.invalidated, 14);
}

/// Several ranges into several windows, in one transfer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_scatter_over_windows() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    let bytes = pattern(2 * MIB);
    let chunks = rig.put(&client, &bytes).await;
    let ranges = [(0, 10), (100_000, 65_536), (MIB as u64, 300_001)];
    let mut buffer = HostBuffer::zeroed(4 * MIB).unwrap();
    let mut first = client.borrow(buffer.slice_mut(..50_000).unwrap()).await;
    let mut second = client.borrow(buffer.slice_mut(MIB..MIB + 400_000).unwrap()).await;
    let pieces = ranges.map(|(offset, length)| Piece {
        chunk: chunks[0].id,
        range: ByteRange::new(offset, length).unwrap(),
    });
    let plan = client.get_plan(&[first.remote(), second.remote()], pieces.to_vec());
    let Transferred { moved, .. } = rig.execute(&plan).await;
    let moved = moved.unwrap().bytes as usize;
    first.invalidated().await.unwrap();
    second.invalidated().await.unwrap();
    let (first, second) = (first.release().unwrap(), second.release().unwrap());
    let landed = [&first[..], &second[..moved - 50_000]].concat();
    let expected: Vec<u8> = ranges
        .iter()
        .flat_map(|(offset, length)| &bytes[*offset as usize..(*offset + *length) as usize])
        .copied()
        .collect();
    assert!(landed == expected);
}

/// Attacks on grants: each is refused before a byte moves, and the key is still the client's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_grants_move_nothing() {
    let Some(rig) = rig().await else { return };
    let (client, other) = (rig.client(7).await, rig.client(8).await);
    let chunks = rig.put(&client, &pattern(4096)).await;
    let (sealer, stranger) = (rig.sealer().await, Sealer::new(&GrantKey::generate(GrantKeyId(1))));
    let good = |plan: &DirectPlan| seal_with(&sealer, NODE, plan, 30_000);
    let altered = |plan: &DirectPlan, from_end: usize| {
        let mut sealed = good(plan);
        let at = sealed.len() - from_end;
        sealed[at] ^= 1;
        sealed
    };
    // The session of another tenant, and one of another life.
    let stolen = |plan: &DirectPlan, session, owner: &SessionOwner| {
        let target = SessionToken::new(session, plan.target.windows().to_vec()).unwrap().into();
        let DirectWork::Get(get, digests) = plan.work.clone() else { unreachable!() };
        let get = GetPlan { tenant: owner.tenant, ..get };
        let work = DirectWork::Get(get, digests);
        good(&DirectPlan { owner: owner.clone(), target, work })
    };
    type Attack<'a> = (&'a str, Option<GrantError>, &'a dyn Fn(&DirectPlan) -> Vec<u8>);
    let attacks: [Attack<'_>; 10] = [
        ("the seal", Some(GrantError::Forged), &|plan| altered(plan, 1)),
        ("the plan", Some(GrantError::Forged), &|plan| altered(plan, good(plan).len() / 2)),
        ("nothing", Some(GrantError::Malformed), &|_| Vec::new()),
        ("another node", Some(GrantError::OtherNode), &|plan| {
            seal_with(&sealer, NodeId(2), plan, 30_000)
        }),
        ("no life", Some(GrantError::Expired), &|plan| seal_with(&sealer, NODE, plan, 0)),
        ("a long life", Some(GrantError::TooLong), &|plan| {
            seal_with(&sealer, NODE, plan, 10_000_000)
        }),
        ("a stranger's key", Some(GrantError::UnknownKey), &|plan| {
            seal_with(&stranger, NODE, plan, 30_000)
        }),
        ("another's name", None, &|plan| stolen(plan, client.session, &other.owner)),
        ("another's session", None, &|plan| stolen(plan, other.session, &client.owner)),
        ("a former session", None, &|plan| {
            stolen(plan, SessionId::new(NODE, 12345), &client.owner)
        }),
    ];
    let before = pattern(4097).split_off(1);
    let mut buffer = HostBuffer::from(before.clone());
    for (attack, why, seal) in attacks {
        let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
        let sealed = seal(&client.get_plan(&[armed.remote()], whole(&chunks)));
        let Transferred { moved, key } = rig.node.transfer(sealed.into()).await;
        match (why, moved) {
            (Some(why), Err(DirectError::Grant(found))) if found == why => {}
            (None, Err(DirectError::NoSuchSession)) => {}
            (_, moved) => panic!("{attack}: {moved:?}"),
        }
        assert_eq!(key, Relinquished::Quiet, "{attack}");
        armed.revoke().await.unwrap();
        assert!(armed.release().unwrap()[..] == before[..], "{attack} changed the memory");
    }
    // A good one, and then again.
    let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
    let sealed = good(&client.get_plan(&[armed.remote()], whole(&chunks)));
    assert!(rig.node.transfer(sealed.clone().into()).await.moved.is_ok());
    armed.invalidated().await.unwrap();
    let mut slice = armed.release().unwrap();
    assert!(slice[..] == pattern(4096)[..]);
    slice.copy_from_slice(&before);
    let again = rig.node.transfer(sealed.into()).await;
    assert!(matches!(again.moved, Err(DirectError::Grant(GrantError::Replayed))));
    assert!(slice[..] == before[..], "a replay changed the memory");
    assert_eq!(rig.node.stats().direct.refused, 11);
    rig.is_clean().await;
}

/// A request that ran twice on its way: two grants for one key. The second neither meets the first
/// nor invalidates what is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doubled_request_does_no_harm() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    let bytes = pattern(16 * MIB);
    let chunks = rig.put(&client, &bytes).await;
    let mut buffer = HostBuffer::zeroed(16 * MIB).unwrap();
    let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
    let plan = client.get_plan(&[armed.remote()], whole(&chunks));
    let (node, grant) = (Arc::clone(&rig.node), rig.seal(&plan).await);
    let first = tokio::spawn(async move { node.transfer(grant.into()).await });
    rig.is_moving().await;
    let Transferred { moved, key } = rig.execute(&plan).await;
    assert!(matches!(moved, Err(DirectError::InvalidPlan(_))), "{moved:?}");
    assert_eq!(key, Relinquished::Unknown);
    let Transferred { moved, key } = first.await.unwrap();
    assert!(moved.is_ok(), "{moved:?}");
    assert_eq!(key, Relinquished::Invalidated);
    armed.invalidated().await.unwrap();
    assert!(armed.release().unwrap()[..] == bytes[..]);
    // Late, and it fails before anything moves: the key is dead, and is left alone.
    let gone = ChunkSpec { id: ChunkId::generate(), length: 4096 };
    let late = client.get_plan(plan.target.windows(), whole(&[gone]));
    let Transferred { moved, key } = rig.execute(&late).await;
    assert!(
        matches!(moved, Err(DirectError::Transfer(TransferError::NoSuchChunk(_)))),
        "{moved:?}"
    );
    assert_eq!(key, Relinquished::Quiet);
    // A key that is named twice would be ended twice.
    let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
    let twice = client.get_plan(&[armed.remote(), armed.remote()], whole(&chunks));
    let Transferred { moved, .. } = rig.execute(&twice).await;
    assert!(matches!(moved, Err(DirectError::InvalidPlan(_))), "{moved:?}");
    let plan = client.get_plan(&[armed.remote()], whole(&chunks));
    assert!(rig.execute(&plan).await.moved.is_ok());
    armed.invalidated().await.unwrap();
    assert!(client.link.is_alive());
    rig.is_clean().await;
}

/// Attack: another tenant's key in one's own session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_key_opens_nothing() {
    let Some(rig) = rig().await else { return };
    let (victim, thief) = (rig.client(7).await, rig.client(8).await);
    let chunks = rig.put(&thief, &pattern(4096)).await;
    let mut buffer = HostBuffer::zeroed(4096).unwrap();
    let mut armed = victim.borrow(buffer.slice_mut(..).unwrap()).await;
    let plan = thief.get_plan(&[armed.remote()], whole(&chunks));
    let Transferred { moved, key } = rig.execute(&plan).await;
    assert!(matches!(moved, Err(DirectError::Link(_))), "{moved:?}");
    assert_eq!(key, Relinquished::Fenced);
    armed.revoke().await.unwrap();
    assert!(armed.release().unwrap().iter().all(|byte| *byte == 0));
    assert!(victim.link.is_alive());
    rig.is_clean().await;
}

/// A client that lies about sizes: the window is shorter than its token says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lie_about_sizes_harms_the_liar() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    let chunks = rig.put(&client, &pattern(MIB)).await;
    let mut buffer = HostBuffer::zeroed(MIB).unwrap();
    let mut armed = client.borrow(buffer.slice_mut(..4096).unwrap()).await;
    let lie = RemoteWindow { length: MIB as u32, ..armed.remote() };
    let Transferred { moved, key } = rig.execute(&client.get_plan(&[lie], whole(&chunks))).await;
    assert!(matches!(moved, Err(DirectError::Link(_))), "{moved:?}");
    assert_eq!(key, Relinquished::Fenced);
    armed.fence().await;
    drop(armed.release().unwrap());
    assert!(buffer.bytes().unwrap()[4096..].iter().all(|byte| *byte == 0));
    // An honest token that is too short is refused, never clamped.
    let client = rig.client(7).await;
    let armed = client.borrow(buffer.slice_mut(..4096).unwrap()).await;
    let Transferred { moved, key } =
        rig.execute(&client.get_plan(&[armed.remote()], whole(&chunks))).await;
    assert!(matches!(moved, Err(DirectError::InvalidPlan(_))));
    assert_eq!(key, Relinquished::Quiet);
    rig.is_clean().await;
}

/// A node that is still writing when its client gives up: the key dies first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gives_up_sees_no_late_byte() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    let chunks = rig.put(&client, &pattern(16 * MIB)).await;
    let mut buffer = HostBuffer::zeroed(16 * MIB).unwrap();
    let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
    let plan = client.get_plan(&[armed.remote()], whole(&chunks));
    let (node, grant) = (Arc::clone(&rig.node), rig.seal(&plan).await);
    let transfer = tokio::spawn(async move { node.transfer(grant.into()).await });
    rig.is_moving().await;
    // As on a driver that must not invalidate twice: the queue pair goes.
    armed.fence().await;
    let mut slice = armed.release().unwrap();
    slice.fill(0xee);
    let Transferred { moved, key } = transfer.await.unwrap();
    assert!(moved.is_err());
    assert_eq!(key, Relinquished::Fenced);
    assert!(slice.iter().all(|byte| *byte == 0xee), "a late byte landed in reused memory");
    rig.is_clean().await;
}

/// A gateway that gives up mid-GET and mid-PUT: the node ends the key by itself where it has used it,
/// and nothing of the PUT remains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_transfer_ends_its_key() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    let chunks = rig.put(&client, &pattern(16 * MIB)).await;
    let mut buffer = HostBuffer::zeroed(16 * MIB).unwrap();
    for _ in 0..5 {
        let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
        let plan = client.get_plan(&[armed.remote()], whole(&chunks));
        let before = rig.node.stats().direct;
        let transfer = rig.execute(&plan);
        let _ = tokio::time::timeout(Duration::from_millis(40), transfer).await;
        settle(&mut armed, rig.fate_after(before).await).await;
        drop(armed.release().unwrap());
    }
    let mut stored = rig.node.chunks(None, 1000).await.unwrap();
    for after_ms in [0, 5, 10, 20, 40] {
        let mut armed = client.lend(buffer.slice(..).unwrap()).await;
        let chunk = ChunkSpec { id: ChunkId::generate(), length: 16 * MIB as u64 };
        let plan = client.put_plan(&[armed.remote()], &[chunk]);
        let transfer = rig.execute(&plan);
        let (patience, before) = (Duration::from_millis(after_ms), rig.node.stats().direct);
        // One that was faster than that was not abandoned.
        if let Ok(ended) = tokio::time::timeout(patience, transfer).await {
            ended.moved.unwrap();
            stored.push(chunk);
        }
        settle(&mut armed, rig.fate_after(before).await).await;
        drop(armed.release().unwrap());
    }
    assert_eq!(rig.node.chunks(None, 1000).await.unwrap(), stored);
    assert!(client.link.is_alive());
    rig.drive_is_done().await;
    rig.is_clean().await;
}

/// A deadline ends a transfer, key first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_key() {
    let Some(rig) = rig().await else { return };
    let (client, object) = (rig.client(7).await, pattern(64 * MIB));
    let began = Instant::now();
    rig.put(&client, &object).await;
    // Time for some of it to move, and not for all.
    let transfer_timeout_ms = began.elapsed().as_millis() as u64 / 4;
    drop((client, rig));
    let config = RdmaConfig { transfer_timeout_ms, ..RdmaConfig::default() };
    let rig = rig_with(config).await.unwrap();
    let client = rig.client(7).await;
    let mut buffer = HostBuffer::from(object);
    let mut armed = client.lend(buffer.slice(..).unwrap()).await;
    let chunks: Vec<_> = chunk_lengths(64 * MIB as u64)
        .map(|length| ChunkSpec { id: ChunkId::generate(), length })
        .collect();
    let Transferred { moved, key } =
        rig.execute(&client.put_plan(&[armed.remote()], &chunks)).await;
    assert!(matches!(moved, Err(DirectError::TimedOut)), "{moved:?}");
    assert_eq!(key, Relinquished::Invalidated);
    armed.invalidated().await.unwrap();
    assert_eq!(rig.node.chunks(None, 10).await.unwrap(), []);
    rig.drive_is_done().await;
    rig.is_clean().await;
}

/// A client that is slow without being dead: soon after its deadline the transfer is at its end,
/// and its buffers others'. Of a link that loses 5 % what is posted takes longer than that, mostly:
/// then the queue pair goes. One that loses more fails by itself before, at times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_does_not_hold_buffers() {
    let config = RdmaConfig { transfer_timeout_ms: 500, ..RdmaConfig::default() };
    let Some(rig) = rig_with(config).await else { return };
    for percent in [4, 5, 6] {
        let client = rig.client(7).await;
        let chunks = rig.put(&client, &pattern(MIB)).await.repeat(8);
        let mut buffer = HostBuffer::zeroed(8 * MIB).unwrap();
        let mut armed = client.borrow(buffer.slice_mut(..).unwrap()).await;
        let plan = client.get_plan(&[armed.remote()], whole(&chunks));
        let (Transferred { moved, key }, took) = {
            let _loss = Loss::begin(percent);
            let began = Instant::now();
            (rig.execute(&plan).await, began.elapsed())
        };
        println!("{percent} %: {key:?} after {took:?}");
        assert!(matches!(moved, Err(DirectError::TimedOut)), "{moved:?}");
        // The deadline, 5 s for the end, and some for the queue pair's.
        assert!(took < Duration::from_millis(500 + 5000 + 2500), "{took:?}");
        if key == Relinquished::Fenced {
            armed.fence().await;
        } else {
            settle(&mut armed, key).await;
        }
        drop(armed.release().unwrap());
    }
    rig.is_clean().await;
}

/// A full store refuses a PUT, ends its key if it was used, and still serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_ends_the_key() {
    let Some(rig) = rig().await else { return };
    let client = rig.client(7).await;
    let chunks = rig.put(&client, &pattern(4096)).await;
    let mut buffer = HostBuffer::zeroed(16 * MIB).unwrap();
    let slice = buffer.slice(..).unwrap();
    let mut stored = 0;
    loop {
        let mut armed = client.lend(slice.clone()).await;
        let chunk = ChunkSpec { id: ChunkId::generate(), length: 16 * MIB as u64 };
        let Transferred { moved, key } =
            rig.execute(&client.put_plan(&[armed.remote()], &[chunk])).await;
        settle(&mut armed, key).await;
        match moved {
            Ok(_) => stored += 1,
            Err(DirectError::Transfer(TransferError::Full)) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(stored < 30, "the store has room for 25");
    }
    drop(slice);
    let mut armed = client.borrow(buffer.slice_mut(..4096).unwrap()).await;
    let plan = client.get_plan(&[armed.remote()], whole(&chunks));
    assert!(rig.execute(&plan).await.moved.is_ok());
    armed.invalidated().await.unwrap();
    rig.drive_is_done().await;
    rig.is_clean().await;
}

/// Cutting an owner off ends its sessions and every key in flight, and nobody else's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_fences_every_key() {
    let Some(rig) = rig().await else { return };
    let (cut, other) = (rig.client(7).await, rig.client(8).await);
    let chunks = rig.put(&cut, &pattern(16 * MIB)).await;
    let mut buffer = HostBuffer::zeroed(16 * MIB).unwrap();
    let mut armed = cut.borrow(buffer.slice_mut(..).unwrap()).await;
    let plan = cut.get_plan(&[armed.remote()], whole(&chunks));
    let (node, grant) = (Arc::clone(&rig.node), rig.seal(&plan).await);
    let transfer = tokio::spawn(async move { node.transfer(grant.into()).await });
    rig.is_moving().await;
    let ended = rig.node.close_sessions(SessionSelector::Tenant(TenantId(7))).await.unwrap();
    assert_eq!(ended, 1);
    let Transferred { moved, key } = transfer.await.unwrap();
    assert!(moved.is_err());
    assert_eq!(key, Relinquished::Fenced);
    let late = rig.execute(&plan).await;
    assert!(matches!(late.moved, Err(DirectError::NoSuchSession)));
    armed.fence().await;
    drop(armed.release().unwrap());
    rig.put(&other, &pattern(MIB)).await;
    assert_eq!(rig.node.stats().direct.sessions, 1);
    rig.is_clean().await;
}

/// What cannot be connected is refused, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_sessions_are_refused() {
    let config = RdmaConfig { sessions_per_key_max: 2, ..RdmaConfig::default() };
    let Some(rig) = rig_with(config).await else { return };
    let domain = Domain::new(rig.port.device()).unwrap();
    let pending = rig.port.link(&domain, LinkShape::client(1)).unwrap();
    let good = SessionRequest {
        node: NODE,
        rail: 0,
        client: pending.address(),
        windows: 1,
        strengths: vec![KeyStrength::Window],
    };
    let open = |request| rig.node.open_session(owner(7), request);
    let refused = open(SessionRequest { rail: 9, ..good.clone() }).await;
    assert!(matches!(refused, Err(SessionError::NoSuchRail)));
    let refused = open(SessionRequest { node: NodeId(2), ..good.clone() }).await;
    assert!(matches!(refused, Err(SessionError::NoSuchRail)));
    let refused = open(SessionRequest { strengths: vec![KeyStrength::Http], ..good.clone() }).await;
    assert!(matches!(refused, Err(SessionError::Incompatible(_))));
    let mut client = pending.address();
    client.link = keyway_proto::LinkLayer::Infiniband;
    let refused = open(SessionRequest { client, ..good.clone() }).await;
    assert!(matches!(refused, Err(SessionError::Incompatible(_))));
    // An address that nobody has is no path; known before anything is made, and soon.
    let mut client = pending.address();
    client.gid.0[15] = 99;
    let began = Instant::now();
    let refused = open(SessionRequest { client, ..good.clone() }).await;
    let why = "no path from the rail to the client's port";
    assert!(matches!(refused, Err(SessionError::Incompatible(said)) if said == why));
    assert!(began.elapsed() < RESOLVE_MAX + Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(open(good.clone()).await.is_ok() && open(good.clone()).await.is_ok());
    assert!(matches!(open(good).await, Err(SessionError::TooMany)));
    assert_eq!(rig.node.stats().direct.sessions, 2);
}
