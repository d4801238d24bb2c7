//! Goal: keys of strength `slab`, which outlive their transfers, open the client's slab and nothing of
//! its callers' memory; and a piece of the slab is another transfer's only when the node is done
//! with it.
//!
//! Method: a server on one port, the SDK on the other, bounded to `slab`, and a proxy that notes the
//! tokens. Tokens are sent once more, rightly signed, when their transfers have ended: the node then
//! moves bytes under keys that live, and the callers' memory is looked at. A read is given up amid its
//! bytes while another waits for the piece that it has.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use keyway_client::{
    Client, ClientBuilder, ClientError, Credentials, Fallback, HostBuffer, PathPolicy, RdmaConfig,
};
use keyway_integration_tests::holdings::Holdings;
use keyway_integration_tests::process::eventually;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::sigv4::{Signer, UNSIGNED};
use keyway_integration_tests::wire::{Connection, Request, Response};
use keyway_integration_tests::{S3, Server, rdma};
use keyway_proto::{KeyStrength, SessionToken, TransferPath};

#[path = "rdma_crash/wiretap.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod wiretap;

use wiretap::Wiretap;

const MIB: usize = 1 << 20;
const BUCKET: &str = "slab";
/// The smallest slab: one piece.
const PIECE_BYTES: usize = 16 * MIB;

fn server() -> Result<Option<Server>> {
    if rdma::is_missing() {
        return Ok(None);
    }
    let config = "node.rdma.mode = \"require\"\nnode.rdma.devices = [\"rxe0\"]\n".to_owned();
    Server::with(Options { config, ..Options::default() }).map(Some)
}

/// A client whose adapter gives no better keys.
fn builder(url: &str, server: &Server, slab_bytes: usize) -> ClientBuilder {
    let key = server.credentials();
    let rdma = RdmaConfig::default().devices(["rxe1"]).strength_max(KeyStrength::Slab);
    Client::builder()
        .endpoint(url)
        .credentials(Credentials::new(&key.access_key, key.secret_key.as_str()))
        .rdma(rdma.slab_bytes(slab_bytes))
        .path(PathPolicy::Require(TransferPath::VerbsHost))
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut pattern);
    pattern
}

/// A PUT of what a token lends. Its body, which it has none of, is not signed.
fn put_by(server: &Server, key: &str, token: &str) -> Result<Response> {
    let mut request = Request::object("PUT", BUCKET, key)
        .header("host", server.authority())
        .header("x-amz-rdma-token", token);
    Signer::new(server.credentials()).sign_payload(&mut request, UNSIGNED);
    Ok(Connection::open(server.address())?.exchange(&request)?)
}

fn get_by(s3: &mut S3, key: &str, token: &str) -> Result<Response> {
    Ok(s3.send(Request::object("GET", BUCKET, key).header("x-amz-rdma-token", token))?)
}

/// Fails unless no window of the token touches the memory.
fn lies_apart(token: &str, memory: &HostBuffer) -> Result<()> {
    let token: SessionToken = token.parse()?;
    let bytes = memory.bytes()?.as_ptr_range();
    let (start, end) = (bytes.start as u64, bytes.end as u64);
    for window in token.windows() {
        let is_apart = window.address + u64::from(window.length) <= start || window.address >= end;
        ensure!(is_apart, "the token opens the caller's memory");
    }
    Ok(())
}

/// Attack: the tokens of transfers that have ended, in other requests of the same principal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_key_opens_the_slab_alone() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let mut s3 = S3::of(&server);
    for bytes in [4096, 3 * MIB] {
        let mut tap = Wiretap::of(server.url())?;
        let client = builder(&tap.url, &server, PIECE_BYTES).build()?;
        if bytes == 4096 {
            client.create_bucket(BUCKET).await?;
        }
        let object = pattern(bytes);
        let mut memory = HostBuffer::from(object.clone());
        client.put_object(BUCKET, "key").body(memory.slice(..)?).send().await?;
        let put_token = tap.passes().await.context("the PUT's token")?;
        lies_apart(&put_token, &memory)?;
        let got = client.get_object(BUCKET, "key").into(memory.slice_mut(..)?).await?;
        ensure!(got.strength == KeyStrength::Slab && got.target[..] == object[..]);
        drop(got);
        let get_token = tap.passes().await.context("the GET's token")?;
        lies_apart(&get_token, &memory)?;
        ensure!(put_token != get_token, "there is a slab for each direction");

        // The node writes once more where it wrote before: into the slab.
        memory.bytes_mut()?.fill(0x77);
        let response = get_by(&mut s3, "key", &get_token)?;
        ensure!(response.status == 200, "the key lives: {}", response.status);
        ensure!(response.header("x-keyway-rdma-key") == Some("quiet"));
        ensure!(response.header("x-keyway-rdma-strength") == Some("slab"));
        ensure!(memory.bytes()?.iter().all(|byte| *byte == 0x77), "{bytes}: a living key wrote");
        // It reads what the slab had, and not what the caller has by now.
        let response = put_by(&server, "copied", &put_token)?;
        ensure!(response.status == 200, "the key lives: {}", response.status);
        let copied = s3.send(Request::object("GET", BUCKET, "copied"))?;
        ensure!(copied.body == object, "{bytes}: other bytes than the slab's were read");
        // Neither costs the session anything, nor the transfers that follow.
        let got = client.get_object(BUCKET, "key").into(memory.slice_mut(..)?).await?;
        ensure!(got.target[..] == object[..] && got.retries == 0);
        drop(got);
        ensure!(client.rdma_stats().sessions == 1 && client.rdma_stats().failures == 0);

        // What is lent to be read is not written: directions have keys of their own.
        memory.bytes_mut()?.fill(0x77);
        let response = get_by(&mut s3, "key", &put_token)?;
        ensure!(response.status == 500, "written under a key to read: {}", response.status);
        ensure!(response.header("x-keyway-rdma-key") == Some("fenced"));
        ensure!(memory.bytes()?.iter().all(|byte| *byte == 0x77));
        // That cost the node's end of the session; the next one's slab has other keys.
        let got = client.get_object(BUCKET, "key").into(memory.slice_mut(..)?).await?;
        ensure!(got.target[..] == object[..]);
        ensure!(client.rdma_stats().sessions == 2);
    }
    Ok(())
}

/// A read is given up amid its bytes while another waits for its piece: that one gets no piece of the
/// same slab, for nobody knows what the node still writes there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_piece_is_used_again_while_the_node_may_write() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let pinned = || Holdings::of(std::process::id()).map(|held| held.pinned_kib);
    let at_first = pinned()?;
    let mut tap = Wiretap::of(server.url())?;
    let client = builder(&tap.url, &server, PIECE_BYTES).build()?;
    client.create_bucket(BUCKET).await?;
    // Two of these do not fit one piece.
    let object = pattern(12 * MIB);
    client.put_object(BUCKET, "key").body(object.clone()).send().await?;
    let read = client.get_object(BUCKET, "key").part_bytes(PIECE_BYTES as u64);
    let mut memory = HostBuffer::zeroed(object.len())?;
    let mut length = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        drop(read.clone().into(memory.slice_mut(..)?).await?);
        length = length.min(begun.elapsed());
    }
    let (mut given_up, mut fenced) = (0, 0);
    // Amid the bytes: before them is the request, after them the sum.
    for share in [0.3, 0.4, 0.5] {
        // Whatever passed before; parts may have been sent again.
        while tokio::time::timeout(Duration::from_millis(200), tap.passes()).await.is_ok() {}
        let sessions = client.rdma_stats().sessions;
        let (mut first, mut second) =
            (HostBuffer::zeroed(object.len())?, HostBuffer::zeroed(object.len())?);
        let deadline = length.mul_f64(share);
        let impatient = read.clone().deadline(deadline).into(first.slice_mut(..)?);
        let patient = async {
            // It asks when the other has its piece, if that came so far.
            let token = tokio::time::timeout(2 * deadline, tap.passes()).await;
            let Ok(Some(token)) = token else { return Ok(None) };
            let got = read.clone().into(second.slice_mut(..)?).await;
            let got = got.map_err(|failed| failed.error)?;
            ensure!(got.target[..] == object[..], "other bytes");
            anyhow::Ok(Some(token))
        };
        let (late, token) = tokio::join!(impatient, patient);
        let Some(token) = token? else { continue };
        let of_first = token.parse::<SessionToken>()?.session();
        if let Err(failed) = late {
            ensure!(matches!(failed.error, ClientError::Deadline), "{}", failed.error);
            drop(failed);
            given_up += 1;
            // All that the other one sent went to another session, and so to another slab.
            let anew = client.rdma_stats().sessions - sessions;
            fenced += u64::from(anew > 0);
            let mut sent = 0;
            while let Ok(Some(token)) =
                tokio::time::timeout(Duration::from_millis(100), tap.passes()).await
            {
                let of_second = token.parse::<SessionToken>()?.session();
                ensure!(of_second != of_first, "a piece was used again, unfenced");
                sent += 1;
            }
            ensure!(sent > 0, "the second read had a token");
            ensure!(first.bytes_mut()?.iter().all(|byte| *byte == 0), "bytes were let through");
        }
    }
    ensure!(given_up >= 1 && fenced == given_up, "{given_up} given up, {fenced} fenced");

    // Nothing is left of it: at the node no buffer, here no slab.
    eventually(|| match server.metrics() {
        Ok(metrics) => match leased(&metrics) {
            Some(0.0) => Ok(()),
            found => Err(format!("{found:?} bytes are leased")),
        },
        Err(error) => Err(error.to_string()),
    })
    .await?;
    // The request, too, has a share in the client.
    drop((client, read));
    eventually(|| match pinned() {
        Ok(now) if now <= at_first => Ok(()),
        now => Err(format!("{now:?} KiB are pinned, at first {at_first}")),
    })
    .await
}

fn leased(metrics: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with("keyway_pool_leased_bytes"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Transfers side by side share the slab; longer ones than a piece have several, and such that a whole
/// slab does not hold are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_of_any_length_fit_the_slab() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let object = pattern(PIECE_BYTES + MIB + 7);
    let whole = |slab_bytes| {
        let client = builder(server.url(), &server, slab_bytes);
        client.get_part_bytes(64 << 20).put_part_bytes(64 << 20).build()
    };
    for (slab_bytes, transfers) in [(PIECE_BYTES, 4), (2 * PIECE_BYTES, 2)] {
        let client = whole(slab_bytes)?;
        if transfers == 4 {
            client.create_bucket(BUCKET).await?;
        }
        let mut source = HostBuffer::from(object.clone());
        let put = client.put_object(BUCKET, "key").body(source.slice(..)?).send().await?;
        ensure!(put.strength == KeyStrength::Slab && put.fallbacks.is_empty());
        let mut memory = HostBuffer::zeroed(object.len())?;
        let got = client.get_object(BUCKET, "key").into(memory.slice_mut(..)?).await?;
        ensure!(got.strength == KeyStrength::Slab && got.fallbacks.is_empty());
        ensure!(got.target[..] == object[..] && got.verified.is_whole());
        let stats = client.rdma_stats();
        ensure!((stats.transfers, stats.failures) == (transfers, 0), "{stats:?}");
        ensure!(stats.sessions == 1);
    }
    // Sixteen at once, of which four have room.
    let client = builder(server.url(), &server, PIECE_BYTES).build()?;
    let parts = client.get_object(BUCKET, "key").part_bytes(3 << 20).concurrency(16);
    let got = parts.bytes().await?;
    ensure!(got.target == object && got.strength == KeyStrength::Slab && got.retries == 0);

    // Who demands what is stronger is told, and gets it over HTTP where that is allowed.
    let strict = builder(server.url(), &server, PIECE_BYTES).require_strength(KeyStrength::Ipc);
    let got = strict.path(PathPolicy::Auto).build()?.get_object(BUCKET, "key").bytes().await?;
    ensure!(got.strength == KeyStrength::Http && got.fallbacks.count(Fallback::TooWeak) > 0);
    ensure!(got.target == object);
    Ok(())
}
