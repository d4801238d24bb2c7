//! Goal: links, windows and their deaths on real verbs. Method: two ports that packets really
//! travel between, one as a client that lends memory, one as a node that reaches it.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

mod two_ports;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use keyway_fabric::memory::{HostBuffer, HostSliceMut, LeaseClass, LeasePool};
use keyway_fabric::verbs::{
    Access, Armed, Batch, Device, Domain, Link, LinkError, LinkShape, Port, Registration,
    VerbsError, self_test,
};
use keyway_proto::key::Direction;
use keyway_proto::{KeyStrength, RemoteKey, RemoteWindow};
use tokio::task::JoinSet;
use two_ports::ports;

/// Longest that tests wait for a request to be caught under way.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the driver keeps to a window's own bounds: soft-RoCE does once it is repaired.
fn is_repaired() -> bool {
    std::env::var("KEYWAY_RXE").is_ok_and(|module| module == "fixed")
}

/// A client's end and a node's, connected.
struct Pair {
    client: Link,
    node: Link,
    pool: LeasePool,
    leases: Arc<Registration>,
}

impl Pair {
    fn new(client_port: &Port, node_port: &Port, windows: u32) -> Self {
        let node_domain = Domain::new(node_port.device()).unwrap();
        Self::in_domain(client_port, node_port, &node_domain, windows)
    }

    fn in_domain(
        client_port: &Port,
        node_port: &Port,
        node_domain: &Arc<Domain>,
        windows: u32,
    ) -> Self {
        let client_domain = Domain::new(client_port.device()).unwrap();
        let client = client_port.link(&client_domain, LinkShape::client(windows)).unwrap();
        let node = node_port.link(node_domain, LinkShape::NODE).unwrap();
        let (to_client, to_node) = (client.address(), node.address());
        let client = client.connect(&to_node).unwrap();
        let node = node.connect(&to_client).unwrap();
        let pool = LeasePool::new(8 << 20).unwrap();
        let leases = node_domain.register_pool(&pool).unwrap();
        Self { client, node, pool, leases }
    }

    /// A client's buffer, registered for windows.
    fn buffer(&self, bytes: usize) -> (HostBuffer, Arc<Registration>) {
        let mut buffer = HostBuffer::zeroed(bytes).unwrap();
        let anchor = buffer.slice_mut(..).unwrap().anchor();
        let registration = self.client.domain().register(anchor, Access::Windows).unwrap();
        (buffer, registration)
    }

    async fn arm(
        &self,
        slice: HostSliceMut,
        registration: &Arc<Registration>,
        direction: Direction,
    ) -> Armed<HostSliceMut> {
        let (address, length) = (slice.address(), slice.len() as u32);
        let armed = self.client.arm(slice, Arc::clone(registration), address, length, direction);
        armed.await.map_err(|(error, _)| error).unwrap()
    }

    async fn write(
        &self,
        window: RemoteWindow,
        offset: u64,
        bytes: &[u8],
        invalidate: Option<RemoteKey>,
    ) -> Result<(), LinkError> {
        let mut lease = self.pool.lease(LeaseClass::fitting(bytes.len()).unwrap()).await;
        lease[..bytes.len()].copy_from_slice(bytes);
        let bytes: Bytes = lease.into_bytes(0..bytes.len());
        let mut batch = Batch::default();
        batch.write(&self.leases, bytes, window.address + offset, window.key);
        if let Some(key) = invalidate {
            batch.invalidate(key);
        }
        self.node.post(batch).await.map(drop)
    }

    async fn read(&self, window: RemoteWindow, length: u32) -> Result<Vec<u8>, LinkError> {
        let lease = self.pool.lease(LeaseClass::fitting(length as usize).unwrap()).await;
        let mut batch = Batch::default();
        batch.read(&self.leases, lease, &[RemoteWindow { length, ..window }]);
        let landed = self.node.post(batch).await?;
        Ok(landed.leases[0][..length as usize].to_vec())
    }

    async fn invalidate(&self, key: RemoteKey) -> Result<(), LinkError> {
        let mut batch = Batch::default();
        batch.invalidate(key);
        self.node.post(batch).await.map(drop)
    }
}

/// Keeps the client's port at work while it lives: its thread then does what tasks would do while it
/// waits, and they see what was posted before it is done.
fn keep_busy(client_port: &Port, node_port: &Port) -> JoinSet<()> {
    let pair = Arc::new(Pair::new(client_port, node_port, 4));
    let beat = |pair: Arc<Pair>| async move { while pair.client.heartbeat().await.is_ok() {} };
    (0..8).map(|_| beat(Arc::clone(&pair))).collect()
}

/// Until the port's thread sleeps, as the kernel tells: nothing is left for it to do.
fn until_it_waits(port: &Port) {
    let name = format!("(kw-{}/{})", port.info().device, port.info().number);
    let begun = Instant::now();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let told = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        let sleeps = told.filter(|stat| stat.contains(&name)).all(|stat| stat.contains(") S "));
        if sleeps {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the port's thread never waits");
        std::thread::yield_now();
    }
}

/// While the port's thread waits, who lends memory binds the window, and need not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_binds_while_the_port_waits() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 1);
    let (mut buffer, registration) = pair.buffer(4096);
    let (mut bound, mut ended) = (0, 0);
    for _ in 0..100 {
        let slice = buffer.slice_mut(..).unwrap();
        let mut arm = Box::pin(pair.arm(slice, &registration, Direction::Write));
        until_it_waits(&first);
        let at_once = (&mut arm).now_or_never();
        bound += u32::from(at_once.is_some());
        let mut armed = match at_once {
            Some(armed) => armed,
            None => arm.await,
        };
        until_it_waits(&first);
        ended += u32::from(armed.revoke().now_or_never().is_some());
        armed.revoke().await.unwrap();
        drop(armed.release().unwrap());
    }
    // Not all: the thread may be on its way back from the last event.
    assert!(bound > 50 && ended > 50, "bound at once: {bound}, ended: {ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_self_test_finds_windows() {
    let Some((first, _)) = ports() else { return };
    let found = self_test(&first).await;
    println!("{found}");
    assert_eq!(found.strength, Some(KeyStrength::Window));
    assert_eq!(found.exact, is_repaired(), "the stock driver forgets a window's bounds");
}

/// A window is written, dies by the node's invalidation, and gives its memory back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_land_and_the_key_dies() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 4);
    let (mut buffer, registration) = pair.buffer(1 << 20);
    // More rounds than a key has tags: windows are replaced on the way.
    for round in 0..1200_usize {
        let at = round % 16 * 4096;
        let slice = buffer.slice_mut(at..at + 4096).unwrap();
        let mut armed = pair.arm(slice, &registration, Direction::Write).await;
        let window = armed.remote();
        let bytes = [round as u8; 4096];
        pair.write(window, 0, &bytes, Some(window.key)).await.unwrap();
        armed.invalidated().await.unwrap();
        let slice = armed.release().unwrap();
        assert_eq!(&slice[..], &bytes);
    }
}

/// Few bytes travel in the request itself, more are fetched by the adapter: both land whole, and
/// nothing beside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_bytes_land_as_many_do() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 1);
    let (mut buffer, registration) = pair.buffer(4096);
    for length in [1, 7, 64, 127, 128, 129, 256, 1024] {
        buffer.bytes_mut().unwrap().fill(0);
        let slice = buffer.slice_mut(..).unwrap();
        let mut armed = pair.arm(slice, &registration, Direction::Write).await;
        let window = armed.remote();
        let bytes: Vec<u8> = (1..=length).map(|at| at as u8 | 1).collect();
        pair.write(window, 3, &bytes, Some(window.key)).await.unwrap();
        armed.invalidated().await.unwrap();
        let slice = armed.release().unwrap();
        assert_eq!(slice[3..3 + length], bytes[..]);
        assert!(slice[..3].iter().chain(&slice[3 + length..]).all(|byte| *byte == 0));
    }
}

/// Whoever stops waiting for a bind frees neither the memory nor the window before the key has
/// ended, and harms no later lend: there is one window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bind_that_nobody_waits_for_is_undone() {
    let Some((first, second)) = ports() else { return };
    let _busy = keep_busy(&first, &second);
    let mut pair = Pair::new(&first, &second, 1);
    let (mut buffer, mut registration) = pair.buffer(4096);
    let (mut undone, begun) = (0, Instant::now());
    for attempt in 0.. {
        if attempt >= 100 && (undone > 0 || begun.elapsed() > PATIENCE) {
            break;
        }
        let slice = buffer.slice_mut(..).unwrap();
        let armed = pair.arm(slice, &registration, Direction::Write).now_or_never();
        let is_kept = armed.is_none() && buffer.bytes().is_err();
        if let Some(mut armed) = armed {
            armed.revoke().await.unwrap();
        }
        while buffer.bytes().is_err() {
            tokio::task::yield_now().await;
        }
        if !pair.client.is_alive() {
            // It was bound in the very moment of the drop, which ended the link.
            pair = Pair::new(&first, &second, 1);
            (buffer, registration) = pair.buffer(4096);
            continue;
        }
        undone += u32::from(is_kept);
        let slice = buffer.slice_mut(..).unwrap();
        let mut armed = pair.arm(slice, &registration, Direction::Write).await;
        let window = armed.remote();
        pair.write(window, 0, &[7; 4096], Some(window.key)).await.unwrap();
        armed.invalidated().await.unwrap();
        assert_eq!(armed.release().unwrap()[..], [7; 4096]);
    }
    assert!(undone > 0, "the port's thread was quicker than the drop each time");
}

/// A revocation that nobody waited for is waited for by the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_waited_for_again() {
    let Some((first, second)) = ports() else { return };
    let _busy = keep_busy(&first, &second);
    let pair = Pair::new(&first, &second, 1);
    let (mut buffer, registration) = pair.buffer(4096);
    let (mut waited, begun) = (0, Instant::now());
    for attempt in 0.. {
        if attempt >= 100 && (waited > 0 || begun.elapsed() > PATIENCE) {
            break;
        }
        let slice = buffer.slice_mut(..).unwrap();
        let mut armed = pair.arm(slice, &registration, Direction::Write).await;
        let at_once = armed.revoke().now_or_never();
        assert!(at_once.is_some() || !armed.is_dead());
        waited += u32::from(at_once.is_none());
        armed.revoke().await.unwrap();
        drop(armed.release().unwrap());
    }
    assert!(waited > 0, "the adapter was quicker than a poll each time");
    let slice = buffer.slice_mut(..).unwrap();
    let mut armed = pair.arm(slice, &registration, Direction::Write).await;
    let window = armed.remote();
    let _ = armed.revoke().now_or_never();
    armed.revoke().await.unwrap();
    drop(armed.release().unwrap());
    assert_eq!(pair.write(window, 0, &[9; 4096], None).await, Err(LinkError::Access));
    assert!(buffer.bytes().unwrap().iter().all(|byte| *byte == 0));
}

/// A port has room for as many links as was asked for, and refuses the next.
#[test]
fn a_port_has_room_for_what_was_asked() {
    let Some((verbs, name, _)) = two_ports::devices() else { return };
    let device = Device::open(&verbs, &name).unwrap();
    let port = Port::open_for(&device, 1, 3, LinkShape::NODE).unwrap();
    assert!(port.links_max(LinkShape::NODE) >= 3);
    let domain = Domain::new(&device).unwrap();
    let link = || port.link(&domain, LinkShape::NODE);
    let mut links: Vec<_> = (0..3).map(|_| link().unwrap()).collect();
    assert!(matches!(link(), Err(VerbsError::TooManyLinks)));
    links.pop();
    link().unwrap();
}

/// A PUT's way: read, then invalidate, then nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_fetched_and_the_key_dies() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 1);
    let (mut buffer, registration) = pair.buffer(1 << 20);
    buffer.bytes_mut().unwrap().fill(0x77);
    let slice = buffer.slice_mut(4096..8192).unwrap();
    let mut armed = pair.arm(slice, &registration, Direction::Read).await;
    let window = armed.remote();
    assert_eq!(pair.read(window, 4096).await.unwrap(), [0x77; 4096]);
    pair.invalidate(window.key).await.unwrap();
    armed.invalidated().await.unwrap();
    drop(armed.release().unwrap());
    assert_eq!(pair.read(window, 4096).await, Err(LinkError::Access));
}

/// Attack: the key is used again after its transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_key_is_refused() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 1);
    let (mut buffer, registration) = pair.buffer(8192);
    let slice = buffer.slice_mut(..4096).unwrap();
    let mut armed = pair.arm(slice, &registration, Direction::Write).await;
    let window = armed.remote();
    pair.write(window, 0, &[1; 4096], Some(window.key)).await.unwrap();
    armed.invalidated().await.unwrap();
    drop(armed.release().unwrap());
    assert_eq!(pair.write(window, 0, &[2; 4096], None).await, Err(LinkError::Access));
    assert!(buffer.bytes().unwrap()[..4096].iter().all(|byte| *byte == 1));
    assert!(buffer.bytes().unwrap()[4096..].iter().all(|byte| *byte == 0));
    pair.node.destroyed().await;
}

/// Bytes of a lease that takes its time to come back.
struct Slow(Bytes);

impl AsRef<[u8]> for Slow {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whoever hears that a link is gone finds what was lent for its requests given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_gives_its_lease_back_first() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 1);
    let lease = pair.pool.lease(LeaseClass::fitting(4096).unwrap()).await;
    let bytes = Bytes::from_owner(Slow(lease.into_bytes(0..4096)));
    let mut batch = Batch::default();
    // A key that opens nothing.
    batch.write(&pair.leases, bytes, 0, RemoteKey(0x1234));
    let posted = pair.node.begin(batch).await.unwrap();
    assert_eq!(pair.node.destroyed().await, LinkError::Access);
    assert_eq!(pair.pool.stats().leased_bytes, 0);
    assert!(matches!(pair.node.landed(posted).await, Err(LinkError::Access)));
}

/// Attack: one byte beside the window. The stock driver lets it pass inside the registration,
/// so there each window gets a registration of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_beside_the_window_is_refused() {
    let Some((first, second)) = ports() else { return };
    for beyond in [1, 4096] {
        let pair = Pair::new(&first, &second, 1);
        let (mut buffer, whole) = pair.buffer(8192);
        let slice = buffer.slice_mut(..4096).unwrap();
        let registration = if is_repaired() {
            whole
        } else {
            pair.client.domain().register(slice.exact_anchor(), Access::Windows).unwrap()
        };
        let mut armed = pair.arm(slice, &registration, Direction::Write).await;
        let refused = pair.write(armed.remote(), beyond, &[9; 4096], None).await;
        assert_eq!(refused, Err(LinkError::Access), "{beyond} bytes beyond");
        armed.fence().await;
        drop(armed.release().unwrap());
        assert!(buffer.bytes().unwrap().iter().all(|byte| *byte == 0));
    }
}

/// Attack: the other direction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_direction_is_refused() {
    let Some((first, second)) = ports() else { return };
    for (lent, reads) in [(Direction::Write, true), (Direction::Read, false)] {
        let pair = Pair::new(&first, &second, 1);
        let (mut buffer, registration) = pair.buffer(4096);
        let slice = buffer.slice_mut(..).unwrap();
        let mut armed = pair.arm(slice, &registration, lent).await;
        let refused = match reads {
            true => pair.read(armed.remote(), 4096).await.map(drop),
            false => pair.write(armed.remote(), 0, &[9; 4096], None).await,
        };
        assert_eq!(refused, Err(LinkError::Access), "{lent:?}");
        armed.fence().await;
        drop(armed.release().unwrap());
        assert!(buffer.bytes().unwrap().iter().all(|byte| *byte == 0));
    }
}

/// Attack: the key on another session's queue pair.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_sessions_key_is_refused() {
    let Some((first, second)) = ports() else { return };
    let owner = Pair::new(&first, &second, 1);
    let thief = Pair::new(&first, &second, 1);
    let (mut buffer, registration) = owner.buffer(4096);
    let slice = buffer.slice_mut(..).unwrap();
    let mut armed = owner.arm(slice, &registration, Direction::Write).await;
    let window = armed.remote();
    assert_eq!(thief.write(window, 0, &[9; 4096], None).await, Err(LinkError::Access));
    // The owner's own session is not harmed by it.
    owner.write(window, 0, &[1; 4096], Some(window.key)).await.unwrap();
    armed.invalidated().await.unwrap();
    assert!(armed.release().unwrap().iter().all(|byte| *byte == 1));
}

/// A lend that is abandoned takes its queue pair with it before the memory is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_lend_is_fenced() {
    let Some((first, second)) = ports() else { return };
    let pair = Pair::new(&first, &second, 2);
    let (mut buffer, registration) = pair.buffer(4096);
    let slice = buffer.slice_mut(..).unwrap();
    let armed = pair.arm(slice, &registration, Direction::Write).await;
    let window = armed.remote();
    drop(armed);
    assert_eq!(pair.client.destroyed().await, LinkError::Closed);
    // Lent until the queue pair is gone; the undertaker gives it back right after.
    while buffer.bytes().is_err() {
        tokio::task::yield_now().await;
    }
    assert!(pair.write(window, 0, &[9; 4096], None).await.is_err());
    assert!(buffer.bytes().unwrap().iter().all(|byte| *byte == 0));
}

/// A node that goes away is noticed, and what waited for it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_peer_is_noticed() {
    let Some((first, second)) = ports() else { return };
    let Pair { client, node, .. } = Pair::new(&first, &second, 1);
    node.heartbeat().await.unwrap();
    client.fence().await;
    assert!(matches!(
        node.heartbeat().await,
        Err(LinkError::Unreachable | LinkError::Access | LinkError::Request { .. })
    ));
    node.destroyed().await;
}
