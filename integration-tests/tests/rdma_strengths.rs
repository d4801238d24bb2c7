//! Goal: the keys of adapters that give no better ones (`window-local`, which the client
//! invalidates, `registration`, which it deregisters, and `slab`, which lives on) carry everything
//! that `window` carries, are said and can be demanded, and but for the last are as dead when the
//! memory is its owner's again. What a slab's keys open is tested in `rdma_slab.rs`.
//!
//! Method: a server on one port, the SDK on the other, with the strength of its keys bounded, and a
//! proxy that notes the tokens. Each outcome tells its strength. Tokens whose transfers have ended
//! are sent once more, rightly signed: the node then writes into memory, and reads out of it, under
//! keys that must open nothing. Reads are given up amid their bytes, and the memory is watched.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use keyway_client::{
    Client, ClientBuilder, ClientError, Credentials, Fallback, HostBuffer, PathPolicy, RdmaConfig,
    RetryPolicy,
};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::sigv4::{self, Signer, UNSIGNED};
use keyway_integration_tests::wire::{Connection, Request, Response};
use keyway_integration_tests::{S3, Server, rdma};
use keyway_proto::{ByteRange, KeyStrength, TransferPath};
use serde_json::json;

#[path = "rdma_crash/wiretap.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod wiretap;
#[path = "tenants/world.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod world;

use wiretap::Wiretap;
use world::{World, refused, statement};

const MIB: usize = 1 << 20;
const BUCKET: &str = "strengths";
/// What adapters may give over host memory, the weakest first.
const STRENGTHS: [KeyStrength; 4] =
    [KeyStrength::Slab, KeyStrength::Registration, KeyStrength::WindowLocal, KeyStrength::Window];
/// Those whose keys end with their transfers.
const MORTAL: &[KeyStrength] = STRENGTHS.split_at(1).1;
/// How long memory is watched for bytes that come too late: longer than a packet is sent again.
const WATCH: Duration = Duration::from_secs(2);

fn server() -> Result<Option<Server>> {
    if rdma::is_missing() {
        return Ok(None);
    }
    let config = "node.rdma.mode = \"require\"\nnode.rdma.devices = [\"rxe0\"]\n".to_owned();
    Server::with(Options { config, ..Options::default() }).map(Some)
}

/// A client whose adapter gives these keys and no better ones, and that takes no weaker ones.
fn builder(url: &str, key: &sigv4::Credentials, strength: KeyStrength) -> ClientBuilder {
    Client::builder()
        .endpoint(url)
        .credentials(Credentials::new(&key.access_key, key.secret_key.as_str()))
        .rdma(RdmaConfig::default().devices(["rxe1"]).strength_max(strength))
        .path(PathPolicy::Require(TransferPath::VerbsHost))
        .require_strength(strength)
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut pattern);
    pattern
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strength_carries_every_size() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    for strength in STRENGTHS {
        let client = builder(server.url(), server.credentials(), strength).build()?;
        let bucket = format!("sizes-{strength}");
        client.create_bucket(&bucket).await?;
        let expected = (TransferPath::VerbsHost, strength);
        for bytes in [1, 4096, 65_537, MIB + 1, 9 * MIB + 3] {
            let key = bytes.to_string();
            let mut source = HostBuffer::from(pattern(bytes));
            let put = client.put_object(&bucket, &key).body(source.slice(..)?).send().await?;
            ensure!((put.path, put.strength) == expected, "{strength}: put under {}", put.strength);
            ensure!(put.verified.is_whole() && put.fallbacks.is_empty() && put.retries == 0);
            let mut memory = HostBuffer::zeroed(bytes + 7)?;
            let got = client.get_object(&bucket, &key).into(memory.slice_mut(..)?).await?;
            ensure!((got.path, got.strength) == expected, "{strength}: got under {}", got.strength);
            ensure!(got.target[..bytes] == *source.bytes()?, "{strength}, {bytes}: other bytes");
            ensure!(got.target[bytes..] == [0; 7], "{strength}, {bytes}: bytes beside the object");
            ensure!(got.verified.is_whole() && got.fallbacks.is_empty() && got.retries == 0);
            drop(got);
            // In parts, each under a key of its own.
            let got = client.get_object(&bucket, &key).part_bytes(2 << 20).bytes().await?;
            ensure!(got.target == *source.bytes()? && got.strength == strength);
        }
        let stats = client.rdma_stats();
        ensure!(stats.failures == 0 && stats.fallbacks.is_empty() && stats.sessions == 1);
        let rails = client.rdma_rails().await?;
        ensure!(rails.len() == 1 && rails[0].strength == Some(strength), "{rails:?}");
    }
    // The node tells how each key ended: windows by itself, the others were left to the client.
    let metrics = server.metrics()?;
    let ended = |how: &str| {
        metrics.lines().any(|line| {
            line.starts_with("keyway_direct_transfers_total{")
                && line.contains(&format!("\"{how}\""))
                && !line.ends_with(" 0")
        })
    };
    ensure!(ended("invalidated") && ended("quiet") && !ended("fenced"), "{metrics}");
    Ok(())
}

/// Attack: the token of a transfer that has ended, in another request of the same principal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_dead_when_its_memory_is_back() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let mut s3 = S3::of(&server);
    for strength in MORTAL.iter().copied() {
        for bytes in [4096, 3 * MIB] {
            let mut tap = Wiretap::of(server.url())?;
            let client = builder(&tap.url, server.credentials(), strength).build()?;
            let bucket = format!("dead-{strength}-{bytes}");
            client.create_bucket(&bucket).await?;
            let object = pattern(bytes);
            let mut memory = HostBuffer::from(object.clone());
            client.put_object(&bucket, "key").body(memory.slice(..)?).send().await?;
            let put_token = tap.passes().await.context("the PUT's token")?;

            // Nothing of the memory is read under the key of a PUT.
            let response = put_by(&server, &bucket, &put_token)?;
            let what = format!("{strength}, {bytes} bytes");
            fenced(&response).with_context(|| format!("{what}: a PUT under a dead key"))?;
            let head = s3.send(Request::object("HEAD", &bucket, "stolen"))?;
            ensure!(head.status == 404, "{what}: bytes were stolen");

            // That cost the node's end of the session, so the client opens another.
            let got = client.get_object(&bucket, "key").into(memory.slice_mut(..)?).await?;
            ensure!(got.strength == strength && got.target[..] == object[..], "{what}");
            drop(got);
            let mut get_token = put_token.clone();
            while let Ok(Some(token)) = tokio::time::timeout(WATCH / 10, tap.passes()).await {
                get_token = token;
            }
            ensure!(get_token != put_token, "{what}: the GET had a token");
            memory.bytes_mut()?.fill(0);
            let get = Request::object("GET", &bucket, "key").header("x-amz-rdma-token", &get_token);
            let response = s3.send(get)?;
            fenced(&response).with_context(|| format!("{what}: a GET under a dead key"))?;
            ensure!(memory.bytes()?.iter().all(|byte| *byte == 0), "{what}: a dead key wrote");

            let got = client.get_object(&bucket, "key").into(memory.slice_mut(..)?).await?;
            ensure!(got.strength == strength && got.target[..] == object[..], "{what}: afterwards");
        }
    }
    Ok(())
}

/// A PUT of what a token lends. Its body, which it has none of, is not signed.
fn put_by(server: &Server, bucket: &str, token: &str) -> Result<Response> {
    let mut request = Request::object("PUT", bucket, "stolen")
        .header("host", server.authority())
        .header("x-amz-rdma-token", token);
    Signer::new(server.credentials()).sign_payload(&mut request, UNSIGNED);
    Ok(Connection::open(server.address())?.exchange(&request)?)
}

/// Fails unless the node tried, and its adapter was refused: that costs it the queue pair.
fn fenced(response: &Response) -> Result<()> {
    refused(response, 500, "RDMATransferFailed")?;
    let fate = response.header("x-keyway-rdma-key");
    ensure!(fate == Some("fenced"), "the key is {fate:?}");
    Ok(())
}

/// Reads that are given up amid their bytes: what is back is not written any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_late_byte_under_weaker_keys() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    for strength in [KeyStrength::Slab, KeyStrength::Registration, KeyStrength::WindowLocal] {
        let client = builder(server.url(), server.credentials(), strength).build()?;
        let bucket = format!("late-{strength}");
        client.create_bucket(&bucket).await?;
        let object = pattern(24 * MIB);
        client.put_object(&bucket, "key").body(object.clone()).send().await?;
        let (mut memory, mut given_up) = (HostBuffer::zeroed(object.len())?, 0);
        for after_ms in [10, 60, 150, 300, 600] {
            memory.bytes_mut()?.fill(0);
            let late = client
                .get_object(&bucket, "key")
                .deadline(Duration::from_millis(after_ms))
                .into(memory.slice_mut(..)?)
                .await;
            if let Err(failed) = late {
                ensure!(matches!(failed.error, ClientError::Deadline), "{}", failed.error);
                drop(failed);
                given_up += 1;
                memory.bytes_mut()?.fill(0xee);
                // What is shown is that nothing happens: there is no event to wait for.
                tokio::time::sleep(WATCH / 4).await;
                let late = memory.bytes()?.iter().filter(|byte| **byte != 0xee).count();
                ensure!(late == 0, "{strength}: {late} late bytes after {after_ms} ms");
            }
        }
        ensure!(given_up >= 2, "{strength}: reads ended before they were given up");
        let got = client.get_object(&bucket, "key").into(memory.slice_mut(..)?).await?;
        ensure!(got.strength == strength && got.target[..] == object[..]);
    }
    Ok(())
}

/// A caller who demands more than the adapter gives gets an error, or HTTP, and the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_weak_is_not_used() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let weak = || {
        builder(server.url(), server.credentials(), KeyStrength::Registration)
            .require_strength(KeyStrength::WindowLocal)
            .retry(RetryPolicy::NONE)
    };
    let auto = weak().path(PathPolicy::Auto).build()?;
    auto.create_bucket(BUCKET).await?;
    let put = auto.put_object(BUCKET, "key").body(pattern(MIB)).send().await?;
    ensure!((put.path, put.strength) == (TransferPath::Http, KeyStrength::Http));
    ensure!(put.fallbacks.count(Fallback::TooWeak) == 1, "{}", put.fallbacks);
    let range = ByteRange::whole(100);
    let outcome = weak().build()?.get_object(BUCKET, "key").range(range).bytes().await;
    match outcome.err().context("keys that are too weak")? {
        ClientError::PathUnavailable { reason: Fallback::TooWeak, .. } => Ok(()),
        error => Err(error.into()),
    }
}

/// A policy that demands windows: weaker sessions move nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_demands_a_strength() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let world = World { server };
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    let url = world.server.url();
    builder(url, &owner, KeyStrength::Window).build()?.create_bucket(BUCKET).await?;
    let mut demand = statement("Deny", &["keyway:Rdma*"], &["strengths/*"]);
    demand["Condition"] = json!({ "StringNotEquals": { "keyway:KeyStrength": "window" } });
    let allow = statement("Allow", &["s3:*", "keyway:*"], &["*"]);
    let user = world.user("one", "anna", &[allow, demand])?;
    let object = pattern(MIB);
    let client = |strength| builder(url, &user, strength).retry(RetryPolicy::NONE).build();
    let strong = client(KeyStrength::Window)?;
    let put = strong.put_object(BUCKET, "key").body(object.clone()).send().await?;
    ensure!(put.strength == KeyStrength::Window);
    for strength in [KeyStrength::Slab, KeyStrength::Registration, KeyStrength::WindowLocal] {
        let weak = client(strength)?;
        let mut memory = HostBuffer::zeroed(MIB)?;
        let got = weak.get_object(BUCKET, "key").into(memory.slice_mut(..)?).await;
        ensure!(got.is_err(), "{strength}: read though windows are demanded");
        drop(got);
        ensure!(memory.bytes()?.iter().all(|byte| *byte == 0), "{strength}: bytes moved");
        let put = weak.put_object(BUCKET, "key").body(pattern(100)).send().await;
        ensure!(put.is_err(), "{strength}: written though windows are demanded");
        let strong = strong.get_object(BUCKET, "key").bytes().await?;
        ensure!(strong.target == object && strong.strength == KeyStrength::Window);
    }
    Ok(())
}
