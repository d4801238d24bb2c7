//! Goal: the SDK's path `verbs-host`, with all that a caller may do on it: sizes, parts, ranges,
//! files, encryption, cancellation, deadlines, sessions that were closed.
//!
//! Method: a server on one port of the soft-RoCE machine, the SDK on the other. Every outcome is
//! held against the path that was required, every byte against what was sent.
//!
//! Runs in the soft-RoCE machine (`make test-rdma`); elsewhere each test says that it is
//! skipped.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use keyway_client::{
    Client, ClientError, Credentials, Fallback, HostBuffer, PathPolicy, RdmaConfig, RetryPolicy,
};
use keyway_integration_tests::process::command;
use keyway_integration_tests::rdma::{self, TosCounter};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::wire::Request;
use keyway_integration_tests::{S3, Server};
use keyway_proto::{ByteRange, KeyStrength, TransferPath};

const MIB: usize = 1 << 20;

fn server(test: &str) -> Result<Option<Server>> {
    server_with(test, "")
}

fn server_with(test: &str, config: &str) -> Result<Option<Server>> {
    if std::env::var_os("KEYWAY_RXE").is_none() {
        skipped(test, "no soft-RoCE here; make test-rdma runs this in its machine");
        return Ok(None);
    }
    let rdma = "node.rdma.mode = \"require\"\nnode.rdma.devices = [\"rxe0\"]\n";
    let config = format!("{rdma}{config}");
    Ok(Some(Server::with(Options { config, ..Options::default() })?))
}

fn builder(server: &Server) -> keyway_client::ClientBuilder {
    let credentials = server.credentials();
    let credentials = Credentials::new(&credentials.access_key, credentials.secret_key.as_str());
    Client::builder()
        .endpoint(server.url())
        .credentials(credentials)
        .rdma(RdmaConfig::default().devices(["rxe1"]))
        .path(PathPolicy::Require(TransferPath::VerbsHost))
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut pattern);
    pattern
}

const DIRECT: (TransferPath, KeyStrength) = (TransferPath::VerbsHost, KeyStrength::Window);

/// Sessions that a client has opened which was refused so often. On other adapters it is one; rxe
/// does not bear a window that is invalidated twice, so here a refusal may cost one: the request may
/// have run twice, and the other run's node be about to invalidate.
fn opened(refusals: u64) -> RangeInclusive<u64> {
    1..=1 + refusals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_goes_around() -> Result<()> {
    let Some(server) = server("every_size_goes_around")? else { return Ok(()) };
    let client = builder(&server).require_strength(KeyStrength::Window).build()?;
    client.create_bucket("around").await?;
    for bytes in [0, 1, 17, 4096, 65_537, MIB + 1, 17 * MIB + 3] {
        let expected = if bytes == 0 { (TransferPath::Http, KeyStrength::Http) } else { DIRECT };
        let mut source = HostBuffer::from(pattern(bytes));
        let key = format!("sizes/{bytes}");
        let put = client.put_object("around", &key).body(source.slice(..)?).send().await?;
        ensure!((put.path, put.strength) == expected, "{bytes}: put by {}", put.path);
        ensure!(put.bytes == bytes as u64 && put.retries == 0 && put.fallbacks.is_empty());
        ensure!(put.verified.is_whole(), "{bytes}: put {}", put.verified);
        ensure!(source.bytes_mut().is_ok(), "the memory came back");

        let mut memory = HostBuffer::zeroed(bytes + 7)?;
        let got = client.get_object("around", &key).into(memory.slice_mut(..)?).await?;
        ensure!((got.path, got.strength) == expected, "{bytes}: got by {}", got.path);
        ensure!(got.bytes == bytes as u64 && got.info.size == bytes as u64);
        ensure!(got.target[..bytes] == *source.bytes()?, "{bytes}: other bytes");
        ensure!(got.target[bytes..] == [0; 7], "{bytes}: bytes beside the object");
        ensure!(got.verified.is_whole() && got.fallbacks.is_empty(), "{bytes}: {}", got.verified);
        ensure!(got.info.etag == put.etag);

        let got = client.get_object("around", &key).part_bytes(5 << 20).bytes().await?;
        ensure!(got.target == *source.bytes()? && got.path == expected.0);
        if bytes > 100 {
            let range = ByteRange::new(50, 17).expect("a range");
            let got = client.get_object("around", &key).range(range).bytes().await?;
            ensure!(got.target == source.bytes()?[50..67]);
            ensure!((got.path, got.strength) == DIRECT);
        }
    }
    let stats = client.rdma_stats();
    ensure!(stats.failures == 0 && stats.fallbacks.is_empty(), "{stats:?}");
    ensure!(opened(2).contains(&stats.sessions), "both reads of the empty object were declined");
    let rails = client.rdma_rails().await?;
    ensure!(rails.len() == 1 && rails[0].port == "rxe1/1" && rails[0].rail == "rxe0/1");
    ensure!(rails[0].strength == Some(KeyStrength::Window));
    Ok(())
}

/// Goal: unless said, a long read is cut as adapters have it, with a request for each 32 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_go_in_long_parts() -> Result<()> {
    let Some(server) = server("long_reads_go_in_long_parts")? else { return Ok(()) };
    let client = builder(&server).require_strength(KeyStrength::Window).build()?;
    client.create_bucket("long").await?;
    let object = pattern(33 * MIB);
    client.put_object("long", "object").body(object.clone()).send().await?;
    let mut memory = HostBuffer::zeroed(object.len())?;
    for (part_bytes, requests) in [(None, 2), (Some(8 * MIB as u64), 5)] {
        let before = client.rdma_stats().transfers;
        let mut get = client.get_object("long", "object");
        if let Some(bytes) = part_bytes {
            get = get.part_bytes(bytes);
        }
        let got = get.into(memory.slice_mut(..)?).await?;
        ensure!(got.target[..] == object[..] && got.path == TransferPath::VerbsHost);
        let made = client.rdma_stats().transfers - before;
        ensure!(made == requests, "{made} requests in parts of {part_bytes:?}");
    }
    Ok(())
}

/// Goal: what the node encrypts comes out of the caller's memory and into it as it is, by each path
/// what the other wrote, whole and in ranges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_objects_go_around() -> Result<()> {
    let test = "encrypted_objects_go_around";
    let Some(server) = server_with(test, "s3.encrypt_by_default = true\n")? else { return Ok(()) };
    let direct = builder(&server).require_strength(KeyStrength::Window).build()?;
    let http = builder(&server).path(PathPolicy::Require(TransferPath::Http)).build()?;
    direct.create_bucket("sealed").await?;
    let mut s3 = S3::of(&server);
    for bytes in [1, 5000, 300_000, 17 * MIB + 3] {
        let content = pattern(bytes);
        for (writer, reader) in [(&direct, &direct), (&direct, &http), (&http, &direct)] {
            let put = writer.put_object("sealed", "key").body(content.clone()).send().await?;
            ensure!(put.verified.is_whole() && put.fallbacks.is_empty(), "{bytes}: {}", put.path);
            let head = s3.send(Request::object("HEAD", "sealed", "key"))?;
            let told = head.header("x-amz-server-side-encryption");
            ensure!(told == Some("AES256"), "{bytes}: encrypted by {told:?}");
            let got = reader.get_object("sealed", "key").bytes().await?;
            ensure!(got.verified.is_whole() && got.fallbacks.is_empty(), "{bytes}: {}", got.path);
            ensure!(got.target == content, "{bytes}: other bytes by {}", got.path);
            let (from, length) = (bytes / 3, bytes - bytes / 2);
            let Some(range) = ByteRange::new(from as u64, length as u64) else { continue };
            let got = reader.get_object("sealed", "key").range(range).bytes().await?;
            ensure!(got.target == content[from..from + length], "{bytes}: another range");
        }
    }
    let stats = direct.rdma_stats();
    ensure!(stats.failures == 0 && stats.fallbacks.is_empty() && stats.bytes > 34 * MIB as u64);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_and_files_are_sent_too() -> Result<()> {
    let Some(server) = server("bytes_and_files_are_sent_too")? else { return Ok(()) };
    let client = builder(&server).build()?;
    client.create_bucket("bodies").await?;
    let object = pattern(6 * MIB);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &object)?;
    let put = client.put_object("bodies", "file").body(file.path().to_owned());
    let put = put.part_bytes(5 << 20).send().await?;
    ensure!((put.path, put.strength) == DIRECT && put.parts == 2);
    let put = client.put_object("bodies", "vec").body(object.clone()).send().await?;
    ensure!((put.path, put.strength) == DIRECT && put.parts == 1);
    for key in ["file", "vec"] {
        ensure!(client.get_object("bodies", key).bytes().await?.target == object, "{key}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_refused_as_over_http() -> Result<()> {
    let Some(server) = server("what_is_refused_is_refused_as_over_http")? else { return Ok(()) };
    let client = builder(&server).build()?;
    client.create_bucket("refused").await?;
    let mut memory = HostBuffer::zeroed(100)?;
    let missing = client.get_object("refused", "none").into(memory.slice_mut(..)?).await;
    let missing = missing.expect_err("there is none");
    ensure!(missing.error.is_not_found(), "{}", missing.error);
    drop(missing);
    client.put_object("refused", "large").body(pattern(101)).send().await?;
    let small = client.get_object("refused", "large").into(memory.slice_mut(..)?).await;
    let small = small.expect_err("it does not fit");
    let fits = matches!(small.error, ClientError::TargetTooSmall { needed: 101, available: 100 });
    ensure!(fits, "{}", small.error);
    ensure!(small.target.iter().all(|byte| *byte == 0));
    drop(small);
    let absent = client.put_object("refused", "large").body("x").if_absent().send().await;
    ensure!(absent.expect_err("it exists").code() == Some("PreconditionFailed"));
    ensure!(opened(3).contains(&client.rdma_stats().sessions), "{:?}", client.rdma_stats());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_given_up_gives_the_memory_back() -> Result<()> {
    let Some(server) = server("a_read_that_is_given_up_gives_the_memory_back")? else {
        return Ok(());
    };
    let client = builder(&server).build()?;
    client.create_bucket("given-up").await?;
    let object = pattern(24 * MIB);
    client.put_object("given-up", "key").body(object.clone()).send().await?;
    let mut memory = HostBuffer::zeroed(object.len())?;
    for after_ms in [1, 20, 60, 120, 240] {
        let late = client
            .get_object("given-up", "key")
            .deadline(Duration::from_millis(after_ms))
            .into(memory.slice_mut(..)?)
            .await;
        if let Err(failed) = late {
            ensure!(matches!(failed.error, ClientError::Deadline), "{}", failed.error);
            ensure!(failed.target.len() == object.len());
        }
        ensure!(memory.bytes_mut().is_ok(), "the memory came back whole");
        let left = client.get_object("given-up", "key").into(memory.slice_mut(..)?);
        let _ = tokio::time::timeout(Duration::from_millis(after_ms), left).await;
        // Its keys die in the background; until then the buffer says so.
        while memory.bytes_mut().is_err() {
            tokio::task::yield_now().await;
        }
        memory.bytes_mut()?.fill(0);
        let got = client.get_object("given-up", "key").into(memory.slice_mut(..)?).await?;
        ensure!(got.path == TransferPath::VerbsHost && got.target[..] == object[..]);
        drop(got);
    }
    Ok(())
}

/// A node closes sessions that are not used; the client learns of it by a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_closed_is_opened_again() -> Result<()> {
    let idle = "node.rdma.idle_timeout_ms = 100\n";
    let Some(server) = server_with("a_session_that_was_closed_is_opened_again", idle)? else {
        return Ok(());
    };
    let client = builder(&server).build()?;
    client.create_bucket("closed").await?;
    let object = pattern(MIB);
    for turn in 0.. {
        let put = client.put_object("closed", "key").body(object.clone()).send().await?;
        let got = client.get_object("closed", "key").bytes().await?;
        ensure!((put.path, got.path) == (TransferPath::VerbsHost, TransferPath::VerbsHost));
        ensure!(got.target == object && put.retries == 0 && got.retries == 0);
        if client.rdma_stats().sessions >= 3 {
            break;
        }
        ensure!(turn < 30, "the node closes no session: {:?}", client.rdma_stats());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    ensure!(client.rdma_stats().failures == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_go_by_rdma_goes_over_http_and_is_said() -> Result<()> {
    let Some(server) = server("what_cannot_go_by_rdma_goes_over_http_and_is_said")? else {
        return Ok(());
    };
    let none = RdmaConfig::default().devices(["rxe7"]);
    let client = builder(&server).path(PathPolicy::Auto).rdma(none.clone()).build()?;
    client.create_bucket("fallback").await?;
    let put = client.put_object("fallback", "key").body(pattern(MIB)).send().await?;
    ensure!(put.path == TransferPath::Http && put.fallbacks.count(Fallback::NoPort) == 1);
    let mut memory = HostBuffer::zeroed(MIB)?;
    let got = client.get_object("fallback", "key").into(memory.slice_mut(..)?).await?;
    ensure!(got.path == TransferPath::Http && got.fallbacks.count(Fallback::NoPort) == 1);
    let required = builder(&server).rdma(none).retry(RetryPolicy::NONE).build()?;
    let refused = required.get_object("fallback", "key").range(ByteRange::whole(9)).bytes().await;
    let reason = match refused.expect_err("no port") {
        ClientError::PathUnavailable { reason, .. } => reason,
        error => return Err(error.into()),
    };
    ensure!(reason == Fallback::NoPort);
    // Small bodies are quicker over HTTP, and that is no fallback.
    let auto = builder(&server).path(PathPolicy::Auto).build()?;
    let put = auto.put_object("fallback", "small").body("few").send().await?;
    ensure!(put.path == TransferPath::Http && put.fallbacks.is_empty());
    let put = auto.put_object("fallback", "large").body(pattern(MIB)).send().await?;
    ensure!((put.path, put.strength) == DIRECT);
    Ok(())
}

/// Goal: what operator and caller say of packets reaches the wire, each end's in its direction.
/// Method: counters where packets arrive; the node is on kwa's end, the caller on kwb's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_marks_its_packets() -> Result<()> {
    let test = "each_end_marks_its_packets";
    let config = "node.rdma.traffic_class = 0x48\n";
    let Some(server) = server_with(test, config)? else { return Ok(()) };
    let (from_node, from_caller) = (TosCounter::new("kwb", 0x48)?, TosCounter::new("kwa", 0x68)?);
    let rdma = RdmaConfig::default().devices(["rxe1"]).traffic_class(0x68);
    let client = builder(&server).rdma(rdma).build()?;
    client.create_bucket("marked").await?;
    let content = pattern(MIB);
    client.put_object("marked", "key").body(content.clone()).send().await?;
    let got = client.get_object("marked", "key").bytes().await?;
    ensure!(got.target == content && (got.path, got.strength) == DIRECT);
    // A MiB each way, in packets of 4 KiB at most.
    let (node, caller) = (from_node.packets()?, from_caller.packets()?);
    ensure!(node >= 256 && caller >= 256, "{node} packets of the node's, {caller} of the caller's");
    Ok(())
}

/// Goal: an operator sees how paths are found.
#[test]
fn the_doctor_tells_of_paths() -> Result<()> {
    if rdma::is_missing() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let said = command(dir.path())?.args(["doctor", "--json", "--data-dir", "data"]).output()?;
    let report: serde_json::Value = serde_json::from_slice(&said.stdout)?;
    let findings = report["findings"].as_array().context("findings")?;
    let ports: Vec<_> = findings.iter().filter(|found| found["subject"] == "RDMA port").collect();
    ensure!(!ports.is_empty(), "no port in {report}");
    for port in ports {
        let found = port["found"].as_str().unwrap_or_default();
        ensure!(found.contains("; paths: resolved by RDMA-CM (service level 0"), "{found}");
    }
    Ok(())
}
