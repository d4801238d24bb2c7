//! Goal: what a tenant notices over verbs of another that floods the node.
//!
//! Method: a server on one port; on the other a client of the quiet tenant, one read at a time,
//! and `keyway bench` with ten workers without a pause for the other tenant, at the lowest
//! priority, as if it ran on a host of its own. A measurement: it asserts little, and is run by
//! hand (`make test-rdma RXE=fixed TESTS=rdma_fairness ARGS='--ignored --nocapture'`).

#![allow(clippy::print_stdout, reason = "what was measured is told")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use keyway_client::{Client, HostBuffer, PathPolicy, RdmaConfig};
use keyway_integration_tests::Server;
use keyway_integration_tests::rdma;
use keyway_integration_tests::server::{Options, binary};
use keyway_integration_tests::sigv4::Credentials;
use keyway_proto::TransferPath;

#[path = "tenants/world.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod world;

use world::World;

/// How long each case is looked at.
const CASE: Duration = Duration::from_secs(20);
/// Workers of the flood: ten times the quiet tenant's one.
const FLOOD: &str = "10";
/// Between two reads of the quiet tenant.
const PAUSE: Duration = Duration::from_millis(5);

fn client(world: &World, key: &Credentials) -> Result<Client> {
    let key = keyway_client::Credentials::new(&key.access_key, key.secret_key.as_str());
    Ok(Client::builder()
        .endpoint(world.server.url())
        .credentials(key)
        .path(PathPolicy::Require(TransferPath::VerbsHost))
        .rdma(RdmaConfig::default().devices(["rxe1"]))
        .build()?)
}

/// What floods; it takes a while to store what it reads, and to get warm.
struct Flood(Child);

impl Flood {
    fn start(world: &World, key: &Credentials, size: &str) -> Result<Self> {
        let seconds = (3 * CASE).as_secs().to_string();
        let child = Command::new("nice")
            .args(["-n", "19"])
            .arg(binary()?)
            .args(["bench", "--path", "verbs-host", "--rdma-devices", "rxe1", "--json"])
            .args(["--operations", "get", "--concurrency", FLOOD, "--sizes", size])
            .args(["--seconds", &seconds, "--endpoint", world.server.url()])
            .env("KEYWAY_ACCESS_KEY", &key.access_key)
            .env("KEYWAY_SECRET_KEY", &key.secret_key)
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    fn goes_on(&mut self) -> Result<()> {
        ensure!(self.0.try_wait()?.is_none(), "the flood ended");
        Ok(())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Latencies of the quiet tenant's reads, sorted.
async fn looked_at(client: &Client, bytes: usize) -> Result<Vec<Duration>> {
    let mut memory = HostBuffer::zeroed(bytes)?;
    let mut took = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < CASE {
        let asked = Instant::now();
        let got = client.get_object("data", "object").into(memory.slice_mut(..)?).await?;
        took.push(asked.elapsed());
        ensure!(got.path == TransferPath::VerbsHost && got.bytes == bytes as u64);
        drop(got);
        tokio::time::sleep(PAUSE).await;
    }
    took.sort_unstable();
    Ok(took)
}

fn at(took: &[Duration], share: usize) -> Duration {
    took[(took.len() * share / 100).min(took.len() - 1)]
}

/// Transfers over verbs since the server's start, of all tenants.
fn transfers(world: &World) -> Result<u64> {
    let metrics = world.server.metrics()?;
    let lines = metrics.lines().filter(|line| line.starts_with("keyway_direct_transfers_total{"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

/// Tells what was seen, and how many transfers the flood had meanwhile.
fn told(name: &str, took: &[Duration], alone: &[Duration], others: u64) {
    let (p50, p99) = (at(took, 50), at(took, 99));
    let times = |share| at(took, share).as_secs_f64() / at(alone, share).as_secs_f64();
    let count = took.len();
    println!(
        "{name}: {count} reads, p50 {p50:?} ({:.2}), p99 {p99:?} ({:.2}), the flood {others}",
        times(50),
        times(99)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement of minutes"]
async fn a_flood_beside_a_quiet_tenant() -> Result<()> {
    if rdma::is_missing() {
        return Ok(());
    }
    let config = "node.rdma.mode = \"require\"\nnode.rdma.devices = [\"rxe0\"]\n".to_owned();
    let world = World { server: Server::with(Options { config, ..Options::default() })? };
    let mut keys = Vec::new();
    for name in ["quiet", "loud"] {
        world.tenant(name)?;
        keys.push(world.key(name, None)?);
    }
    let (quiet, loud) = (&keys[0], &keys[1]);
    let client = client(&world, quiet)?;
    client.create_bucket("data").await?;
    for (bytes, size) in [(64 << 10, "64KiB"), (1 << 20, "1MiB")] {
        let mut object = HostBuffer::zeroed(bytes)?;
        let put = client.put_object("data", "object").body(object.slice(..)?);
        put.send().await.context("stored")?;
        let alone = looked_at(&client, bytes).await?;
        told(&format!("{size} alone"), &alone, &alone, 0);
        let mut flood = Flood::start(&world, loud, size)?;
        tokio::time::sleep(CASE / 2).await;
        let before = transfers(&world)?;
        let beside = looked_at(&client, bytes).await?;
        let others = transfers(&world)? - before - beside.len() as u64;
        flood.goes_on()?;
        ensure!(others > 0, "there was no flood");
        told(&format!("{size} beside a flood"), &beside, &alone, others);
    }
    Ok(())
}
