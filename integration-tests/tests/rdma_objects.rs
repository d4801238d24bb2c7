//! Goal: objects go to a server and come back by RDMA under keys of strength `window`, every
//! byte and checksum right, with nothing in the HTTP bodies.
//!
//! Method: a server process on one port, the SDK on the other, with every other path forbidden;
//! sizes from 1 byte up, ranges, parts, and the same over a link that loses packets.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use futures::{TryStreamExt as _, stream};
use keyway_client::{Client, Credentials, HostBuffer, PathPolicy, RdmaConfig};
use keyway_integration_tests::Server;
use keyway_integration_tests::rdma;
use keyway_integration_tests::server::Options;
use keyway_proto::{ByteRange, KeyStrength, TransferPath};

const MIB: usize = 1 << 20;
const BUCKET: &str = "direct";
/// Objects on their way at a time.
const SIDE_BY_SIDE: usize = 8;

fn server() -> Result<Server> {
    Server::with(Options {
        config: "node.rdma.mode = \"require\"\nnode.rdma.devices = [\"rxe0\"]\n".to_owned(),
        ..Options::default()
    })
}

fn client(server: &Server) -> Result<Client> {
    let credentials = server.credentials();
    let secret = credentials.secret_key.as_str();
    Ok(Client::builder()
        .endpoint(server.url())
        .credentials(Credentials::new(&credentials.access_key, secret))
        .path(PathPolicy::Require(TransferPath::VerbsHost))
        .require_strength(KeyStrength::Window)
        .rdma(RdmaConfig::default().devices(["rxe1"]))
        .build()?)
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pattern = vec![0; bytes];
    random.fill(&mut pattern);
    pattern
}

/// There and back: whole, into memory with guards on both sides, and a range of it.
async fn around(client: &Client, seed: u64, bytes: usize) -> Result<()> {
    const GUARD: usize = 64;
    let key = format!("object-{seed}");
    let mut source = HostBuffer::from(pattern(seed, bytes));
    let put = client.put_object(BUCKET, &key).body(source.slice(..)?).send().await?;
    let direct = (TransferPath::VerbsHost, KeyStrength::Window);
    ensure!((put.path, put.strength) == direct, "put by {} under {}", put.path, put.strength);
    ensure!(put.bytes == bytes as u64 && put.verified.is_whole(), "{}", put.verified);

    let mut memory = HostBuffer::zeroed(bytes + 2 * GUARD)?;
    let target = memory.slice_mut(GUARD..GUARD + bytes)?;
    let got = client.get_object(BUCKET, &key).into(target).await?;
    ensure!((got.path, got.strength) == direct, "got by {} under {}", got.path, got.strength);
    ensure!(got.bytes == bytes as u64 && got.verified.is_whole(), "{}", got.verified);
    ensure!(got.target[..] == *source.bytes()?, "{bytes} bytes: others came back");
    drop(got);
    let around = memory.bytes()?;
    let (before, after) = (&around[..GUARD], &around[GUARD + bytes..]);
    ensure!(before.iter().chain(after).all(|byte| *byte == 0), "bytes beside the target");

    let (from, length) = (bytes / 3, (bytes / 2).max(1).min(bytes - bytes / 3));
    let range = ByteRange::new(from as u64, length as u64).context("a range")?;
    let got = client.get_object(BUCKET, &key).range(range).bytes().await?;
    ensure!((got.path, got.strength) == direct);
    ensure!(got.target == source.bytes()?[from..from + length], "another range came back");
    Ok(())
}

/// Sizes from 1 byte on, most small, as in a bucket of samples; the last ones large.
fn sizes(count: usize) -> impl Iterator<Item = usize> {
    let mut random = fastrand::Rng::with_seed(7);
    (0..count).map(move |at| match at % 50 {
        0 => MIB + random.usize(..4 * MIB),
        1 => 1 + at / 50,
        _ => {
            let bits = random.u32(1..17);
            1 + random.usize(..1 << bits)
        }
    })
}

async fn all(client: &Client, sizes: impl Iterator<Item = usize>) -> Result<()> {
    stream::iter(sizes.enumerate().map(Ok::<_, anyhow::Error>))
        .try_for_each_concurrent(SIDE_BY_SIDE, |(seed, bytes)| async move {
            let outcome = around(client, seed as u64, bytes).await;
            outcome.with_context(|| format!("object {seed} of {bytes} bytes"))
        })
        .await
}

/// A thousand; fewer on the repaired module, whose other tests take longer.
fn objects() -> usize {
    if rdma::is_stock() { 1000 } else { 250 }
}

/// Lengths around 256 MiB, where parts end on a block and beside one; three on both modules.
fn large() -> &'static [usize] {
    if rdma::is_stock() { &[256 * MIB, 256 * MIB + 1] } else { &[256 * MIB - 1] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_objects() {
    if rdma::is_missing() {
        return;
    }
    let server = server().expect("the server starts");
    let client = client(&server).expect("a client");
    client.create_bucket(BUCKET).await.expect("a bucket");
    all(&client, sizes(objects())).await.expect("all go around");
    let stats = client.rdma_stats();
    assert!(stats.fallbacks.is_empty(), "{stats:?}");
    println!("{stats:?}");
}

/// Objects in parts, each with a key of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects() {
    if rdma::is_missing() {
        return;
    }
    let server = server().expect("the server starts");
    let client = client(&server).expect("a client");
    client.create_bucket(BUCKET).await.expect("a bucket");
    for (seed, bytes) in large().iter().enumerate() {
        around(&client, seed as u64, *bytes).await.expect("goes around");
    }
    let stats = client.rdma_stats();
    assert!(stats.fallbacks.is_empty(), "{stats:?}");
}

/// One packet in a hundred is lost, in both directions: the same, slower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_loses_packets() {
    if rdma::is_missing() {
        return;
    }
    let server = server().expect("the server starts");
    let client = client(&server).expect("a client");
    client.create_bucket(BUCKET).await.expect("a bucket");
    let lossy = Loss::begin().expect("tc netem");
    all(&client, sizes(100)).await.expect("all go around");
    drop(lossy);
}

/// Packets are lost while this lives.
struct Loss;

impl Loss {
    fn begin() -> Result<Self> {
        let status = Command::new("loss").args(["on", "1"]).status()?;
        ensure!(status.success(), "loss on: {status}");
        Ok(Self)
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        let status = Command::new("loss").arg("off").status();
        assert!(status.is_ok_and(|status| status.success()), "the link stays lossy");
    }
}

/// A client that asks for HTTP gets it, and one that may choose says why it did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_adapters_says_why() {
    if rdma::is_missing() {
        return;
    }
    let server = server().expect("the server starts");
    let credentials = server.credentials();
    let client = Client::builder()
        .endpoint(server.url())
        .credentials(Credentials::new(&credentials.access_key, credentials.secret_key.as_str()))
        .rdma(RdmaConfig::default().devices(["nonexistent"]))
        .build()
        .expect("a client");
    client.create_bucket(BUCKET).await.expect("a bucket");
    let mut source = HostBuffer::from(pattern(1, MIB));
    let body = source.slice(..).expect("free");
    let put = client.put_object(BUCKET, "key").body(body).send().await.expect("over HTTP");
    assert_eq!((put.path, put.strength), (TransferPath::Http, KeyStrength::Http));
    assert!(!client.rdma_stats().fallbacks.is_empty());
}
