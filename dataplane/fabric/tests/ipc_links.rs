//! Two ends of a link between processes of one host.
//!
//! Goal: bytes land where a key opens and nowhere else; a key works once; memory comes back when
//! its key is dead, on every way out. Method: both ends in this process over a real socket, with
//! real shared mappings; what concerns another process' death stands in `integration-tests`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keyway_fabric::LinkError;
use keyway_fabric::ipc::{
    Armed, Batch, ClientLink, DoorListener, Export, IpcError, NodeGpus, NodeLink, Refusal,
    SharedRegion,
};
use keyway_fabric::memory::{LeaseClass, LeasePool, SharedMemory};
use keyway_proto::key::Direction;
use keyway_proto::{DoorTicket, RemoteKey, RemoteWindow};

const TICKET: DoorTicket = DoorTicket([7; 16]);
const REGION_BYTES: usize = 1 << 20;

struct Rig {
    client: ClientLink,
    node: NodeLink,
    memory: Arc<SharedMemory>,
    region: Arc<SharedRegion>,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new(slots: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let door = DoorListener::bind(&folder.path().join("door")).expect("a door");
        let comes = ClientLink::open(door.path(), TICKET);
        let admits = async {
            let visitor = door.accept().await.expect("a visitor");
            assert_eq!(visitor.process, std::process::id() as i32);
            assert_eq!(visitor.ticket().await.expect("a ticket"), TICKET);
            visitor.admit(slots, Arc::new(NodeGpus::new(Vec::new()))).await.expect("memory")
        };
        let (client, node) = tokio::join!(comes, admits);
        let client = client.expect("a link");
        let memory = Arc::new(SharedMemory::create(REGION_BYTES).expect("memory"));
        let export = Export::Host {
            file: Arc::clone(memory.file()),
            base: base(&memory),
            bytes: REGION_BYTES as u64,
        };
        let region = Arc::new(client.share(export).await.expect("mapped"));
        Self { client, node, memory, region, _folder: folder }
    }

    async fn arm(&self, offset: usize, length: u32, direction: Direction) -> Armed<()> {
        let address = base(&self.memory) + offset as u64;
        let armed = self.client.arm((), &self.region, address, length, direction).await;
        armed.expect("the link lives")
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; REGION_BYTES];
        let from = self.memory.base().as_ptr();
        // SAFETY: the region is mapped, and no copy is under way when a test looks.
        #[expect(unsafe_code, reason = "looks at memory that another mapping wrote")]
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        bytes
    }
}

fn base(memory: &SharedMemory) -> u64 {
    memory.base().as_ptr() as u64
}

fn write(window: RemoteWindow, bytes: &'static [u8]) -> Batch {
    let mut batch = Batch::default();
    batch.write(Bytes::from_static(bytes), window.address, window.key);
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_moves_its_bytes_once_and_is_dead() {
    let rig = Rig::new(2).await;
    let mut armed = rig.arm(100, 5, Direction::Write).await;
    let window = armed.remote();
    assert!(!armed.is_dead());
    rig.node.claim(&[window], Direction::Write).expect("open");
    let mut batch = write(window, b"hello");
    batch.end(window.key);
    rig.node.post(batch).await.expect("copied");
    armed.invalidated().await.expect("ended by the node");
    armed.release().expect("dead");
    let mut expected = vec![0; REGION_BYTES];
    expected[100..105].copy_from_slice(b"hello");
    assert_eq!(rig.bytes(), expected);
    // A replay: the key is dead.
    assert_eq!(rig.node.claim(&[window], Direction::Write), Err(LinkError::Access));
    assert_eq!(rig.node.begin(write(window, b"later")).err(), Some(LinkError::Access));
    assert_eq!(rig.bytes(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_bring_the_bytes_of_their_windows() {
    let rig = Rig::new(4).await;
    let pool = LeasePool::new(4 << 20).expect("memory");
    let mut armed = rig.arm(0, 11, Direction::Write).await;
    rig.node.claim(&[armed.remote()], Direction::Write).expect("open");
    let mut batch = write(armed.remote(), b"abc\0\0\0\0\0\0de");
    batch.end(armed.remote().key);
    rig.node.post(batch).await.expect("copied");
    armed.invalidated().await.expect("ended");
    let (mut first, mut second) =
        (rig.arm(0, 3, Direction::Read).await, rig.arm(9, 2, Direction::Read).await);
    let windows = [first.remote(), second.remote()];
    rig.node.claim(&windows, Direction::Read).expect("open");
    let mut batch = Batch::default();
    batch.read(pool.try_lease(LeaseClass::Page).expect("free"), &windows);
    windows.iter().for_each(|window| batch.end(window.key));
    let landed = rig.node.post(batch).await.expect("copied");
    assert_eq!(&landed.destinations[0][..5], b"abcde");
    first.invalidated().await.expect("ended");
    second.invalidated().await.expect("ended");
}

/// The attacks that a table has to stand.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_opens_its_bytes_and_its_direction_alone() {
    let rig = Rig::new(4).await;
    let armed = rig.arm(4096, 4096, Direction::Write).await;
    let window = armed.remote();
    let altered = |change: fn(&mut RemoteWindow)| {
        let mut other = window;
        change(&mut other);
        other
    };
    // A token that says more, or else, than its key does.
    for lie in [
        altered(|w| w.length += 1),
        altered(|w| w.address -= 1),
        altered(|w| w.address += 1),
        altered(|w| w.key = RemoteKey(w.key.0 + 1)),
        altered(|w| w.key = RemoteKey(w.key.0 | 0xff00_0000)),
    ] {
        assert_eq!(rig.node.claim(&[lie], Direction::Write), Err(LinkError::Access));
    }
    // The lie about a key's bytes has used it up.
    assert_eq!(rig.node.claim(&[window], Direction::Write), Err(LinkError::Access));
    drop(armed);
    let mut armed = rig.arm(4096, 4096, Direction::Write).await;
    let window = armed.remote();
    assert_eq!(rig.node.claim(&[window], Direction::Read), Err(LinkError::Access));
    armed.invalidated().await.expect("used up");
    let mut armed = rig.arm(4096, 5, Direction::Write).await;
    let window = armed.remote();
    rig.node.claim(&[window], Direction::Write).expect("open");
    // The node itself, beyond its claim: one byte before, one after, and reading.
    for (address, bytes) in [(window.address - 1, &b"hello"[..]), (window.address + 1, b"hello")] {
        let begun = rig.node.begin(write(RemoteWindow { address, ..window }, bytes));
        assert_eq!(begun.err(), Some(LinkError::Access));
    }
    let pool = LeasePool::new(4 << 20).expect("memory");
    let mut batch = Batch::default();
    batch.read(pool.try_lease(LeaseClass::Page).expect("free"), &[window]);
    assert_eq!(rig.node.begin(batch).err(), Some(LinkError::Access));
    let mut batch = Batch::default();
    batch.end(window.key);
    rig.node.post(batch).await.expect("nothing to copy");
    armed.invalidated().await.expect("ended");
    assert!(rig.bytes().iter().all(|byte| *byte == 0), "nothing was written");
    // Another session's key opens nothing here.
    let other = Rig::new(4).await;
    let foreign = other.arm(0, 5, Direction::Write).await;
    assert_eq!(rig.node.claim(&[foreign.remote()], Direction::Write), Err(LinkError::Access));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_takes_back_what_nobody_claimed() {
    let rig = Rig::new(1).await;
    for _ in 0..3 {
        let mut armed = rig.arm(0, 5, Direction::Write).await;
        armed.revoke().await.expect("open until now");
        assert_eq!(rig.node.claim(&[armed.remote()], Direction::Write), Err(LinkError::Access));
        armed.release().expect("dead");
    }
    assert!(rig.client.is_alive());
}

/// A revocation that comes too late waits for the node.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_node_has_claimed_is_waited_for() {
    let rig = Rig::new(1).await;
    let mut armed = rig.arm(0, 5, Direction::Write).await;
    let window = armed.remote();
    rig.node.claim(&[window], Direction::Write).expect("open");
    let too_early = tokio::time::timeout(Duration::from_millis(100), armed.revoke()).await;
    assert!(too_early.is_err() && !armed.is_dead());
    let mut batch = Batch::default();
    batch.end(window.key);
    rig.node.post(batch).await.expect("nothing to copy");
    armed.revoke().await.expect("ended by the node");
    armed.release().expect("dead");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_link_ends_its_keys() {
    for by_node in [true, false] {
        let rig = Rig::new(2).await;
        let mut claimed = rig.arm(0, 5, Direction::Write).await;
        let mut open = rig.arm(8, 5, Direction::Write).await;
        let window = claimed.remote();
        rig.node.claim(&[window], Direction::Write).expect("open");
        if by_node {
            rig.node.fence().await;
            rig.client.destroyed().await;
        } else {
            claimed.fence().await;
            rig.node.destroyed().await;
        }
        let _ = claimed.invalidated().await;
        let _ = open.invalidated().await;
        claimed.release().expect("dead");
        open.release().expect("dead");
        assert_eq!(rig.node.begin(write(window, b"later")).err(), Some(LinkError::Closed));
        assert!(
            rig.client.arm((), &rig.region, base(&rig.memory), 1, Direction::Read).await.is_err()
        );
    }
}

/// Dropping a lend that the node has claimed ends the link, and keeps the memory until then.
#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_lend_outlives_its_key() {
    let rig = Rig::new(2).await;
    let memory = Arc::new(());
    let address = base(&rig.memory);
    let armed =
        rig.client.arm(Arc::clone(&memory), &rig.region, address, 5, Direction::Write).await;
    let armed = armed.expect("the link lives");
    rig.node.claim(&[armed.remote()], Direction::Write).expect("open");
    drop(armed);
    rig.client.destroyed().await;
    rig.node.destroyed().await;
    for _ in 0..1000 {
        if Arc::strong_count(&memory) == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the memory was never given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_could_fault_is_not_mapped() {
    let rig = Rig::new(1).await;
    let short = SharedMemory::create(4096).expect("memory");
    let export = Export::Host { file: Arc::clone(short.file()), base: base(&short), bytes: 8192 };
    let refused = rig.client.share(export).await;
    assert!(matches!(refused, Err(IpcError::Refused(Refusal::Unsafe))));
    let other = std::fs::File::open("/dev/null").expect("a file");
    let export = Export::Host { file: Arc::new(other.into()), base: 0, bytes: 1 };
    assert!(matches!(rig.client.share(export).await, Err(IpcError::Refused(Refusal::Unsafe))));
    // The link is none the worse.
    let mut armed = rig.arm(0, 5, Direction::Write).await;
    armed.revoke().await.expect("alive");
}

#[tokio::test]
async fn a_door_that_a_dead_process_left_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("door");
    let first = DoorListener::bind(&path).expect("a door");
    assert!(DoorListener::bind(&path).is_err(), "somebody listens");
    // As after a death: the file stays, nobody listens.
    let left = folder.path().join("left");
    std::fs::hard_link(&path, &left).expect("a second name");
    drop(first);
    assert!(!path.exists());
    let second = DoorListener::bind(&left).expect("replaced");
    assert_eq!(second.path(), left);
    std::fs::write(&path, b"a file").expect("written");
    assert!(DoorListener::bind(&path).is_err(), "a file of somebody's is not removed");
}
