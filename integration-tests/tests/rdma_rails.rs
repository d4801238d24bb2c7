//! Goal: a client with two adapters uses both for one object, and when one of two links dies in the
//! middle of it, the other carries the rest: every byte right, the failure said and counted.
//!
//! Method: a server on two ports, the SDK on the two that they lead to, over links of their own. The
//! client's counters are held against each other and the kernel's count of packets. Then one link
//! loses every packet, amid the bytes of a read, and later none any more.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use keyway_client::{Client, Credentials, HostBuffer, PathPolicy, RailReport, RdmaConfig};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::{Server, rdma};
use keyway_proto::{KeyStrength, TransferPath};

const MIB: usize = 1 << 20;
const BUCKET: &str = "rails";
/// What is read, and in parts of what.
const OBJECT_BYTES: usize = 32 * MIB;
const PART_BYTES: u64 = 2 << 20;
const SIDE_BY_SIDE: usize = 4;
/// The interfaces of the link that dies, and the client's port on it.
const DYING: [&str; 2] = ["kwc", "kwd"];
const DYING_PORT: &str = "rxe3/1";
/// How long a rail rests after it failed.
const PAUSE: Duration = Duration::from_secs(8);
/// How long anything may take, here.
const PATIENCE: Duration = Duration::from_secs(60);

fn server() -> Result<Option<Server>> {
    if rdma::is_missing() {
        return Ok(None);
    }
    let config = "node.rdma.mode = \"require\"\nnode.rdma.devices = [\"rxe0\", \"rxe2\"]\n";
    Server::with(Options { config: config.to_owned(), ..Options::default() }).map(Some)
}

fn client(server: &Server) -> Result<Client> {
    let credentials = server.credentials();
    let mut rdma = RdmaConfig::default().devices(["rxe1", "rxe3"]);
    rdma.pause = PAUSE;
    Ok(Client::builder()
        .endpoint(server.url())
        .credentials(Credentials::new(&credentials.access_key, credentials.secret_key.as_str()))
        .rdma(rdma)
        .path(PathPolicy::Require(TransferPath::VerbsHost))
        .require_strength(KeyStrength::Window)
        .build()?)
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    fastrand::Rng::with_seed(3).fill(&mut pattern);
    pattern
}

/// A link that loses all packets while this lives.
struct Cut;

impl Cut {
    fn begin() -> Result<Self> {
        let status = Command::new("loss").args(["on", "100"]).args(DYING).status()?;
        ensure!(status.success(), "loss on: {status}");
        Ok(Self)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let status = Command::new("loss").arg("off").status();
        assert!(status.is_ok_and(|status| status.success()), "the link stays cut");
    }
}

/// Packets that a device has sent, as its driver counts.
fn packets(device: &str) -> Result<u64> {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    Ok(std::fs::read_to_string(path)?.trim().parse()?)
}

/// What is known of both rails, the dying one last.
async fn rails(client: &Client) -> Result<[RailReport; 2]> {
    let mut rails = client.rdma_rails().await?;
    rails.sort_by_key(|rail| rail.port == DYING_PORT);
    let found = rails.len();
    rails.try_into().ok().with_context(|| format!("{found} rails"))
}

async fn get(client: &Client, memory: &mut HostBuffer, expected: &[u8]) -> Result<u32> {
    memory.bytes_mut()?.fill(0);
    let got = client.get_object(BUCKET, "object").part_bytes(PART_BYTES).concurrency(SIDE_BY_SIDE);
    let got = got.into(memory.slice_mut(..)?).await?;
    ensure!((got.path, got.strength) == (TransferPath::VerbsHost, KeyStrength::Window));
    ensure!(got.verified.is_whole() && got.fallbacks.is_empty(), "{}", got.verified);
    ensure!(got.target[..] == *expected, "other bytes");
    Ok(got.retries)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_object_uses_both_rails() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let client = client(&server)?;
    client.create_bucket(BUCKET).await?;
    let object = pattern(OBJECT_BYTES);
    let put = client.put_object(BUCKET, "object").body(object.clone()).part_bytes(8 << 20);
    let put = put.send().await?;
    ensure!(put.path == TransferPath::VerbsHost && put.retries == 0 && put.parts == 4);
    let before = rails(&client).await?;
    ensure!(before.iter().all(|rail| rail.bytes >= 8 << 20 && rail.failures == 0), "{before:?}");

    let sent = [packets("rxe0")?, packets("rxe2")?];
    let mut memory = HostBuffer::zeroed(OBJECT_BYTES)?;
    ensure!(get(&client, &mut memory, &object).await? == 0);
    let sent = [packets("rxe0")? - sent[0], packets("rxe2")? - sent[1]];
    let after = rails(&client).await?;
    let bytes = [0, 1].map(|at: usize| after[at].bytes - before[at].bytes);
    println!("of {OBJECT_BYTES} bytes the rails carried {bytes:?}, in {sent:?} packets");
    ensure!(bytes[0] + bytes[1] == OBJECT_BYTES as u64, "{bytes:?}");
    ensure!(bytes.iter().all(|bytes| *bytes >= OBJECT_BYTES as u64 / 4), "{bytes:?}");
    for (bytes, sent) in bytes.into_iter().zip(sent) {
        ensure!(sent >= bytes / 4096, "{sent} packets carry no {bytes} bytes");
    }
    ensure!(client.rdma_stats().sessions == 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rail_that_dies_is_taken_over() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let client = client(&server)?;
    client.create_bucket(BUCKET).await?;
    let object = pattern(OBJECT_BYTES);
    client.put_object(BUCKET, "object").body(object.clone()).send().await?;
    let mut memory = HostBuffer::zeroed(OBJECT_BYTES)?;
    ensure!(get(&client, &mut memory, &object).await? == 0);
    let whole = rails(&client).await?;
    ensure!(whole.iter().all(|rail| rail.bytes > 0 && !rail.rests), "{whole:?}");

    // It takes a moment to cut the link; whatever is read meanwhile, one read after the other, the
    // cut is amid the bytes of one of them.
    let begun = Instant::now();
    let cutting = tokio::task::spawn_blocking(Cut::begin);
    let mut again = 0;
    while again == 0 {
        again = get(&client, &mut memory, &object).await.context("the read that lost a rail")?;
        ensure!(begun.elapsed() < PATIENCE, "nothing failed");
    }
    let cut = cutting.await??;
    println!("a read lost a rail, made {again} requests again and was whole");
    let dead = rails(&client).await?;
    println!("{dead:?}");
    ensure!(dead[1].failures > 0 && dead[0].failures == 0, "the failure is counted: {dead:?}");
    ensure!(client.rdma_stats().failures == dead[1].failures);

    // Without the other: nothing is tried there, nothing fails.
    while !rails(&client).await?[1].rests {
        get(&client, &mut memory, &object).await?;
        ensure!(begun.elapsed() < PATIENCE, "a dead rail does not rest");
    }
    let resting = rails(&client).await?;
    ensure!(get(&client, &mut memory, &object).await? == 0);
    let alone = rails(&client).await?;
    if alone[1].rests {
        ensure!(alone[0].bytes - resting[0].bytes == OBJECT_BYTES as u64, "{alone:?}");
        ensure!(alone[1].failures == resting[1].failures);
    }

    // It is used again after its rest.
    drop(cut);
    let begun = Instant::now();
    while rails(&client).await?[1].bytes == alone[1].bytes {
        get(&client, &mut memory, &object).await?;
        ensure!(begun.elapsed() < PATIENCE, "the rail does not come back");
    }
    Ok(())
}
