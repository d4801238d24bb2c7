//! Goal: many ranges of one object in one request, over `ipc-host` and `ipc-gpu`, and the same
//! bytes where there is no such request.
//!
//! Method: a real server, the SDK in this process, random ranges held against what was stored;
//! the client's own counters tell how many requests it took. The test of GPU memory says that it
//! is skipped where there is no GPU.

use std::time::Duration;

use anyhow::{Result, ensure};
use keyway_client::{
    Client, ClientBuilder, ClientError, Credentials, DeviceBuffer, Gpu, HostBuffer, PathPolicy,
};
use keyway_integration_tests::Server;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::skip::skipped;
use keyway_proto::{ByteRange, KeyStrength, TransferPath};

const MIB: usize = 1 << 20;
const OBJECT_BYTES: usize = 40 * MIB + 3;
const PAGE: u64 = 4096;

/// A server whose memory tier holds all of the object, or none of it.
fn server(tier_mib: usize) -> Result<Server> {
    let config = format!("node.tier.size_bytes = {}\n", tier_mib << 20);
    Server::with(Options { config, ..Options::default() })
}

fn builder(server: &Server) -> ClientBuilder {
    let credentials = server.credentials();
    let credentials = Credentials::new(&credentials.access_key, credentials.secret_key.as_str());
    Client::builder().endpoint(server.url()).credentials(credentials)
}

async fn stored(client: &Client) -> Result<Vec<u8>> {
    client.create_bucket("ranges").await?;
    let content = payload(9, OBJECT_BYTES);
    let mut filler = HostBuffer::from(content.clone());
    client.put_object("ranges", "object").body(filler.slice(..)?).send().await?;
    Ok(content)
}

/// Ranges at random places, most of a page, some short and some over several blocks.
fn random(count: usize, seed: u64) -> Vec<ByteRange> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut range = |at: usize| {
        let length = match at % 16 {
            3 => random.u64(1..100),
            7 => random.u64(1..200_000),
            11 if at % 32 == 11 => 0,
            _ => PAGE,
        };
        let offset = random.u64(..OBJECT_BYTES as u64 - length);
        ByteRange::new(offset, length).expect("inside")
    };
    (0..count).map(&mut range).collect()
}

fn wanted(content: &[u8], ranges: &[ByteRange]) -> Vec<u8> {
    let part = |range: &ByteRange| &content[range.offset() as usize..range.end() as usize];
    ranges.iter().flat_map(part).copied().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_land_in_shared_memory() -> Result<()> {
    for tier_mib in [64, 0] {
        let server = server(tier_mib)?;
        let content = stored(&builder(&server).build()?).await?;
        let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcHost)).build()?;
        let mut requests = 0;
        for (count, per_request) in [(2, 1024), (1024, 1024), (4096, 4096), (3000, 1024)] {
            let ranges = random(count, count as u64);
            let expected = wanted(&content, &ranges);
            let mut memory = HostBuffer::shared(expected.len() + 7)?;
            let gather = client.gather("ranges", "object").ranges_per_request(per_request);
            let got = gather.into(memory.slice_mut(..)?, ranges.clone()).await?;
            ensure!(got.bytes == expected.len() as u64, "{count}: {} bytes", got.bytes);
            ensure!((got.path, got.strength) == (TransferPath::IpcHost, KeyStrength::Ipc));
            ensure!(got.fallbacks.is_empty() && got.retries == 0, "{}", got.fallbacks);
            ensure!(got.info.size == OBJECT_BYTES as u64 && got.info.etag.is_some());
            ensure!(got.target[..expected.len()] == expected, "{count}: other bytes");
            ensure!(got.target[expected.len()..] == [0; 7], "{count}: bytes beside them");
            drop(got);
            ensure!(memory.bytes_mut().is_ok(), "the memory came back");
            requests += count.div_ceil(per_request) as u64;
        }
        let stats = client.rdma_stats();
        ensure!(stats.transfers == requests && stats.failures == 0, "{stats:?}, not {requests}");
    }
    Ok(())
}

/// `get_ranges` does the same by itself where the memory is one run, and gives each range its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_of_one_buffer_are_one_request() -> Result<()> {
    let server = server(64)?;
    let client = builder(&server).build()?;
    let content = stored(&client).await?;
    let ranges = random(500, 1);
    let expected = wanted(&content, &ranges);
    let etag = client.head_object("ranges", "object").await?.etag;
    for pinned in [false, true] {
        let before = client.rdma_stats();
        let mut memory = HostBuffer::shared(expected.len())?;
        let mut rest = memory.slice_mut(..)?;
        let mut get = client.get_ranges("ranges", "object");
        if let Some(etag) = etag.as_ref().filter(|_| pinned) {
            get = get.if_match(etag);
        }
        for range in &ranges {
            get = get.range(*range, rest.split_to(range.length() as usize));
        }
        let got = get.send().await?;
        ensure!(got.len() == ranges.len());
        for (range, got) in ranges.iter().zip(&got) {
            let part = &content[range.offset() as usize..range.end() as usize];
            ensure!(got.bytes == range.length() && got.target[..] == *part, "{range}");
            ensure!(range.is_empty() || got.info.size == OBJECT_BYTES as u64);
            ensure!(range.is_empty() || got.path == TransferPath::IpcHost, "by {}", got.path);
        }
        drop((got, rest));
        ensure!(*memory.bytes()? == expected);
        // What is empty parts the memory of two runs.
        let runs = ranges.split(|range| range.is_empty()).filter(|run| !run.is_empty()).count();
        let transfers = client.rdma_stats().transfers - before.transfers;
        ensure!(transfers == runs as u64, "{transfers} transfers for {runs} runs");
    }
    // Apart in memory, or longer than their range: a request each, and the same bytes.
    let mut memory = HostBuffer::shared(3 * 8192)?;
    let mut rest = memory.slice_mut(..)?;
    let mut get = client.get_ranges("ranges", "object");
    for at in [5, 77, 12_345] {
        let range = ByteRange::new(at, PAGE).expect("a range");
        get = get.range(range, rest.split_to(8192));
    }
    for (got, at) in get.send().await?.iter().zip([5, 77, 12_345]) {
        ensure!(got.target[..PAGE as usize] == content[at..at + PAGE as usize]);
        ensure!(got.path == TransferPath::IpcHost && got.target.len() == 8192);
    }
    Ok(())
}

/// Over HTTP, and in memory that nobody can map, each range is a GET, and the outcome says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elsewhere_each_range_is_a_get() -> Result<()> {
    let server = server(64)?;
    let client = builder(&server).build()?;
    let content = stored(&client).await?;
    let http = builder(&server).path(PathPolicy::Require(TransferPath::Http)).build()?;
    let ranges = random(40, 2);
    let expected = wanted(&content, &ranges);
    let plain = || HostBuffer::zeroed(expected.len());
    for (client, mut memory) in
        [(&client, plain()?), (&http, plain()?), (&http, HostBuffer::shared(expected.len())?)]
    {
        let gather = client.gather("ranges", "object").ranges_per_request(16);
        let got = gather.into(memory.slice_mut(..)?, ranges.clone()).await?;
        ensure!(got.target[..] == expected && got.path == TransferPath::Http);
    }
    ensure!(http.rdma_stats().transfers == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_or_given_up_gives_the_memory_back() -> Result<()> {
    let server = server(64)?;
    let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcHost)).build()?;
    let content = stored(&builder(&server).build()?).await?;
    let mut memory = HostBuffer::shared(16 * MIB)?;
    let range = |offset: u64| ByteRange::new(offset, PAGE).expect("a range");
    let inside: Vec<_> = (0..2048).map(|at| range(at * PAGE)).collect();
    let mut beyond = inside.clone();
    beyond[2000] = range(OBJECT_BYTES as u64 - PAGE + 1);
    let gather = || client.gather("ranges", "object");
    let failed = gather().into(memory.slice_mut(..)?, beyond).await.expect_err("beyond");
    ensure!(failed.error.status().is_some_and(|status| status == 416), "{}", failed.error);
    ensure!(failed.target.len() == 16 * MIB, "the memory comes back whole");
    drop(failed);
    let other = gather().if_match("\"other\"").into(memory.slice_mut(..)?, inside.clone()).await;
    ensure!(other.expect_err("another").error.status().is_some_and(|status| status == 412));
    let missing = client.gather("ranges", "none").into(memory.slice_mut(..)?, inside.clone()).await;
    ensure!(missing.expect_err("missing").error.is_not_found());
    let small = gather().into(memory.slice_mut(..PAGE as usize)?, inside.clone()).await;
    let small = small.expect_err("too small").error;
    ensure!(matches!(small, ClientError::TargetTooSmall { .. }), "{small}");
    let late = gather().deadline(Duration::ZERO).into(memory.slice_mut(..)?, inside.clone()).await;
    ensure!(matches!(late.expect_err("late").error, ClientError::Deadline));
    // Whoever gives up gets the memory back, and finds nothing written to it later.
    for micros in [0, 100, 300, 1000, 3000, 10_000] {
        let gathering = gather().into(memory.slice_mut(..)?, inside.clone());
        let _ = tokio::time::timeout(Duration::from_micros(micros), gathering).await;
        let begun = tokio::time::Instant::now();
        while memory.bytes_mut().is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "the memory did not come back");
            tokio::task::yield_now().await;
        }
        memory.bytes_mut()?.fill(0);
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure!(memory.bytes()?.iter().all(|byte| *byte == 0), "a late byte");
    }
    let got = gather().into(memory.slice_mut(..)?, inside.clone()).await?;
    ensure!(got.target[..2048 * PAGE as usize] == content[..2048 * PAGE as usize]);
    Ok(())
}

/// A server that dies amid requests costs no byte: the next one serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_found_again() -> Result<()> {
    let mut server = server(64)?;
    let content = stored(&builder(&server).build()?).await?;
    let ranges = random(4000, 3);
    let expected = wanted(&content, &ranges);
    for round in 0..4 {
        let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcHost)).build()?;
        let mut memory = HostBuffer::shared(expected.len())?;
        let gathering =
            client.gather("ranges", "object").into(memory.slice_mut(..)?, ranges.clone());
        let gathering = tokio::spawn(gathering);
        tokio::time::sleep(Duration::from_millis(round * 2)).await;
        server.kill();
        match gathering.await? {
            Ok(got) => ensure!(got.target[..] == expected, "{round}: other bytes"),
            Err(failed) => drop(failed.target),
        }
        ensure!(memory.bytes_mut().is_ok(), "{round}: the memory came back");
        server.restart()?;
    }
    let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcHost)).build()?;
    let mut memory = HostBuffer::shared(expected.len())?;
    let got = client.gather("ranges", "object").into(memory.slice_mut(..)?, ranges).await?;
    ensure!(got.target[..] == expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_land_in_gpu_memory() -> Result<()> {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            skipped("ranges_land_in_gpu_memory", &error.to_string());
            return Ok(());
        }
    };
    for tier_mib in [64, 0] {
        let server = server(tier_mib)?;
        let content = stored(&builder(&server).build()?).await?;
        let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcGpu)).build()?;
        let mut requests = 0;
        for (count, per_request) in [(2, 1024), (1024, 1024), (4096, 4096), (3000, 1024)] {
            let ranges = random(count, count as u64);
            let expected = wanted(&content, &ranges);
            let mut memory = DeviceBuffer::alloc(&gpu, expected.len() + 7)?;
            memory.write(0, &vec![0; expected.len() + 7])?;
            let gather = client.gather("ranges", "object").ranges_per_request(per_request);
            let got = gather.into(memory.slice_mut(..)?, ranges).await?;
            ensure!((got.path, got.strength) == (TransferPath::IpcGpu, KeyStrength::Ipc));
            ensure!(got.bytes == expected.len() as u64 && got.retries == 0);
            drop(got);
            let mut found = vec![1; expected.len() + 7];
            memory.read(0, &mut found)?;
            ensure!(found[..expected.len()] == expected, "{count}: other bytes");
            ensure!(found[expected.len()..] == [0; 7], "{count}: bytes beside them");
            requests += count.div_ceil(per_request) as u64;
        }
        let stats = client.rdma_stats();
        ensure!(stats.transfers == requests && stats.failures == 0, "{stats:?}, not {requests}");
    }
    Ok(())
}
