//! What a link moves, and what a key of its own costs each transfer.
//!
//! Two ports of this machine, a client's and a node's, as in a real transfer. Per size, in
//! turns: *bare*, WRITEs under one window that stays; *keyed*, a window bound, written, and
//! invalidated by the node with the last message, for each. The key's cost is the difference
//! between a turn and the one beside it: its median, that median's standard error, its mean.
//! `make bench-rdma` runs it beside perftest's `ib_write_bw` on the same link.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may give up, and speaks")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use keyway_fabric::memory::{HostBuffer, HostSliceMut, LeaseClass, LeasePool};
use keyway_fabric::verbs::{
    Access, Armed, Batch, Device, Domain, Link, LinkShape, Port, Registration,
};
use keyway_proto::RemoteWindow;
use keyway_proto::key::Direction;
use keyway_sys::verbs::Verbs;

const MIB: usize = 1 << 20;
const SIZES: [usize; 5] = [4 << 10, 64 << 10, MIB, 4 * MIB, 16 * MIB];
/// Bytes of one WRITE, as the engine posts them.
const WRITE_BYTES: usize = 256 << 10;
/// Pairs of turns, whose first is bare in every other one.
const PAIRS: usize = 160;
/// Time of one way's turn: short, since a machine drifts between a turn and the one beside it.
const TURN: Duration = Duration::from_millis(50);

struct Rig {
    client: Link,
    node: Link,
    leases: Arc<Registration>,
    source: Bytes,
    buffer: HostBuffer,
}

fn main() {
    let Some((first, second)) = ports() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let mut rig = Rig::new(&first, &second);
        println!(
            "{:>9}  {:>10}  {:>10}  {:>34}",
            "bytes", "bare MB/s", "keyed MB/s", "key's cost: median, error, and mean"
        );
        for bytes in SIZES {
            let registration = rig.register(bytes);
            let (mut bare, mut keyed, mut cost) = (Vec::new(), Vec::new(), Vec::new());
            for pair in 0..PAIRS {
                if pair % 2 == 0 {
                    bare.push(rig.bare(&registration, bytes).await);
                    keyed.push(rig.keyed(&registration, bytes).await);
                } else {
                    keyed.push(rig.keyed(&registration, bytes).await);
                    bare.push(rig.bare(&registration, bytes).await);
                }
                cost.push(keyed[pair] - bare[pair]);
            }
            let mean = cost.iter().sum::<f64>() / PAIRS as f64;
            let [bare, keyed] = [bare, keyed].map(|mut seconds| quartile(&mut seconds, 2));
            let [low, middle, high] = [1, 2, 3].map(|which| quartile(&mut cost, which));
            // Of a normal distribution, whose quartiles are 1.35 deviations apart.
            let error = 1.253 * (high - low) / 1.349 / (PAIRS as f64).sqrt();
            println!(
                "{bytes:>9}  {:>10.1}  {:>10.1}  {:>6.0} +- {:>4.0} us {:>4.1}% {:>6.0} us",
                bytes as f64 / bare / 1e6,
                bytes as f64 / keyed / 1e6,
                middle * 1e6,
                error * 1e6,
                middle / keyed * 100.0,
                mean * 1e6,
            );
        }
    });
}

fn quartile(seconds: &mut [f64], which: usize) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() * which / 4]
}

impl Rig {
    fn new(client_port: &Port, node_port: &Port) -> Self {
        let client_domain = Domain::new(client_port.device()).unwrap();
        let node_domain = Domain::new(node_port.device()).unwrap();
        let client = client_port.link(&client_domain, LinkShape::client(4)).unwrap();
        let node = node_port.link(&node_domain, LinkShape::NODE).unwrap();
        let (to_client, to_node) = (client.address(), node.address());
        let (client, node) = (client.connect(&to_node).unwrap(), node.connect(&to_client).unwrap());
        let pool = LeasePool::new(8 * MIB).unwrap();
        let leases = node_domain.register_pool(&pool).unwrap();
        let mut lease = pool.try_lease(LeaseClass::Unit).unwrap();
        lease.fill(0x5a);
        let source = lease.into_bytes(0..WRITE_BYTES);
        let mut buffer = HostBuffer::zeroed(SIZES[SIZES.len() - 1]).unwrap();
        buffer.bytes_mut().unwrap().fill(1);
        Self { client, node, leases, source, buffer }
    }

    /// A window over the first `bytes`, in a registration of just these.
    async fn arm(&mut self, registration: &Arc<Registration>, bytes: usize) -> Armed<HostSliceMut> {
        let slice = self.buffer.slice_mut(..bytes).unwrap();
        let (address, length) = (slice.address(), bytes as u32);
        let armed =
            self.client.arm(slice, Arc::clone(registration), address, length, Direction::Write);
        armed.await.map_err(|(error, _)| error).unwrap()
    }

    fn register(&mut self, bytes: usize) -> Arc<Registration> {
        let anchor = self.buffer.slice_mut(..bytes).unwrap().exact_anchor();
        self.client.domain().register(anchor, Access::Windows).unwrap()
    }

    fn writes(&self, window: RemoteWindow) -> Batch {
        let mut batch = Batch::default();
        let total = window.length as usize;
        for at in (0..total).step_by(WRITE_BYTES) {
            let bytes = self.source.slice(..WRITE_BYTES.min(total - at));
            batch.write(&self.leases, bytes, window.address + at as u64, window.key);
        }
        batch
    }

    /// Seconds of a transfer under a window that stays.
    async fn bare(&mut self, registration: &Arc<Registration>, bytes: usize) -> f64 {
        let mut armed = self.arm(registration, bytes).await;
        let window = armed.remote();
        let (begun, mut transfers) = (Instant::now(), 0);
        while begun.elapsed() < TURN {
            self.node.post(self.writes(window)).await.unwrap();
            transfers += 1;
        }
        let time = begun.elapsed();
        armed.revoke().await.unwrap();
        time.as_secs_f64() / f64::from(transfers)
    }

    /// Seconds of a transfer under a key of its own.
    async fn keyed(&mut self, registration: &Arc<Registration>, bytes: usize) -> f64 {
        let (begun, mut transfers) = (Instant::now(), 0);
        while begun.elapsed() < TURN {
            let mut armed = self.arm(registration, bytes).await;
            let window = armed.remote();
            let mut batch = self.writes(window);
            batch.invalidate(window.key);
            self.node.post(batch).await.unwrap();
            armed.invalidated().await.unwrap();
            transfers += 1;
        }
        begun.elapsed().as_secs_f64() / f64::from(transfers)
    }
}

fn ports() -> Option<(Port, Port)> {
    let skipped =
        |why: String| println!("skipped: {why}; make bench-rdma runs this in its machine");
    let verbs = match Verbs::load() {
        Ok(verbs) => Arc::new(verbs),
        Err(error) => {
            skipped(error.to_string());
            return None;
        }
    };
    let names = verbs.device_names().unwrap_or_default();
    let [first, second, ..] = &names[..] else {
        skipped("no two RDMA devices here".to_owned());
        return None;
    };
    let open = |name: &str| Port::open(&Device::open(&verbs, name).unwrap(), 1).unwrap();
    Some((open(first), open(second)))
}
