//! Goal: the paths `ipc-host` and `ipc-gpu`: a client and a node of one host, every size, parts,
//! ranges, cancellation, the end of either side, and what cannot go that way.
//!
//! Method: a real server, the SDK in this process, memory that the server maps. Every outcome is
//! held against the path that was required, every byte against what was sent. The tests of GPU
//! memory say that they are skipped where there is no GPU.

use std::time::Duration;

use anyhow::{Result, ensure};
use keyway_client::{
    Client, ClientBuilder, ClientError, Credentials, DeviceBuffer, Fallback, Gpu, HostBuffer,
    PathPolicy, RetryPolicy,
};
use keyway_integration_tests::Server;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::skip::skipped;
use keyway_proto::{ByteRange, KeyStrength, TransferPath};

const MIB: usize = 1 << 20;
const SIZES: [usize; 7] = [0, 1, 17, 4096, 65_537, MIB + 1, 17 * MIB + 3];

fn builder(server: &Server) -> ClientBuilder {
    let credentials = server.credentials();
    let credentials = Credentials::new(&credentials.access_key, credentials.secret_key.as_str());
    Client::builder().endpoint(server.url()).credentials(credentials)
}

fn local(server: &Server, path: TransferPath) -> ClientBuilder {
    builder(server).path(PathPolicy::Require(path))
}

fn shared(content: &[u8]) -> Result<HostBuffer> {
    let mut buffer = HostBuffer::shared(content.len())?;
    buffer.bytes_mut()?.copy_from_slice(content);
    Ok(buffer)
}

/// How bytes must have travelled; nothing moves of an empty object.
fn expected(bytes: usize, path: TransferPath) -> (TransferPath, KeyStrength) {
    match bytes {
        0 => (TransferPath::Http, KeyStrength::Http),
        _ => (path, KeyStrength::Ipc),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_goes_around_in_shared_memory() -> Result<()> {
    let server = Server::start()?;
    let client = local(&server, TransferPath::IpcHost).build()?;
    client.create_bucket("around").await?;
    for bytes in SIZES {
        let expected = expected(bytes, TransferPath::IpcHost);
        let content = payload(bytes as u64, bytes);
        let mut source = shared(&content)?;
        let key = format!("sizes/{bytes}");
        let put = client.put_object("around", &key).body(source.slice(..)?).send().await?;
        ensure!((put.path, put.strength) == expected, "{bytes}: put by {}", put.path);
        ensure!(put.bytes == bytes as u64 && put.retries == 0 && put.fallbacks.is_empty());
        ensure!(put.verified.is_whole(), "{bytes}: put {}", put.verified);
        ensure!(source.bytes_mut().is_ok(), "the memory came back");

        let mut memory = HostBuffer::shared(bytes + 7)?;
        let got = client.get_object("around", &key).into(memory.slice_mut(..)?).await?;
        ensure!((got.path, got.strength) == expected, "{bytes}: got by {}", got.path);
        ensure!(got.target[..bytes] == content, "{bytes}: other bytes");
        ensure!(got.target[bytes..] == [0; 7], "{bytes}: bytes beside the object");
        ensure!(got.verified.is_whole() && got.fallbacks.is_empty(), "{bytes}: {}", got.verified);

        let got = client.get_object("around", &key).part_bytes(5 << 20).bytes().await?;
        ensure!(got.target == content && got.path == expected.0);
        if bytes > 100 {
            let range = ByteRange::new(50, 17).expect("a range");
            let got = client.get_object("around", &key).range(range).bytes().await?;
            ensure!(got.target == content[50..67] && got.path == TransferPath::IpcHost);
        }
    }
    let stats = client.rdma_stats();
    ensure!(stats.failures == 0 && stats.fallbacks.is_empty() && stats.sessions == 1, "{stats:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_goes_around_in_gpu_memory() -> Result<()> {
    let Some(gpu) = gpu("every_size_goes_around_in_gpu_memory") else { return Ok(()) };
    around_gpu(&gpu, TransferPath::IpcGpu).await
}

/// The path that ends in the host's memory is one for a GPU's too: the copy engine goes the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_goes_around_by_way_of_the_hosts_memory() -> Result<()> {
    let test = "every_size_goes_around_by_way_of_the_hosts_memory";
    let Some(gpu) = gpu(test) else { return Ok(()) };
    around_gpu(&gpu, TransferPath::IpcHost).await
}

async fn around_gpu(gpu: &std::sync::Arc<Gpu>, path: TransferPath) -> Result<()> {
    let server = Server::start()?;
    let client = local(&server, path).build()?;
    client.create_bucket("around").await?;
    for bytes in SIZES.into_iter().filter(|bytes| *bytes > 0) {
        let expected = expected(bytes, path);
        let content = payload(bytes as u64, bytes);
        let mut source = DeviceBuffer::alloc(gpu, bytes)?;
        source.write(0, &content)?;
        let key = format!("sizes/{bytes}");
        let put = client.put_object("around", &key).body(source.slice(..)?).send().await?;
        ensure!((put.path, put.strength) == expected, "{bytes}: put by {}", put.path);
        ensure!(put.verified.is_whole(), "{bytes}: put {}", put.verified);

        let mut memory = DeviceBuffer::alloc(gpu, bytes + 7)?;
        memory.write(0, &vec![0; bytes + 7])?;
        let got = client.get_object("around", &key).into(memory.slice_mut(..)?).await?;
        ensure!((got.path, got.strength) == expected, "{bytes}: got by {}", got.path);
        ensure!(got.verified.is_whole() && got.fallbacks.is_empty(), "{bytes}: {}", got.verified);
        drop(got);
        let mut found = vec![1; bytes + 7];
        memory.read(0, &mut found)?;
        ensure!(found[..bytes] == content, "{bytes}: other bytes");
        ensure!(found[bytes..] == [0; 7], "{bytes}: bytes beside the object");
    }
    let stats = client.rdma_stats();
    ensure!(stats.failures == 0 && stats.sessions == 1, "{stats:?}");
    Ok(())
}

fn gpu(test: &str) -> Option<std::sync::Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            skipped(test, &error.to_string());
            None
        }
    }
}

/// Without being told, a client takes the door where its memory can be shared, and says why
/// where it does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_path_is_chosen_and_said() -> Result<()> {
    let server = Server::start()?;
    let client = builder(&server).build()?;
    client.create_bucket("chosen").await?;
    let content = payload(1, 5 * MIB);
    let mut own = shared(&content)?;
    let put = client.put_object("chosen", "object").body(own.slice(..)?).send().await?;
    ensure!(put.path == TransferPath::IpcHost && put.fallbacks.is_empty());
    let mut plain = HostBuffer::zeroed(content.len())?;
    let got = client.get_object("chosen", "object").into(plain.slice_mut(..)?).await?;
    ensure!(got.path == TransferPath::Http && got.target[..] == content);
    drop(got);

    // Ordinary memory, where the path is required.
    let required = local(&server, TransferPath::IpcHost).build()?;
    let refused = required.get_object("chosen", "object").into(plain.slice_mut(..)?).await;
    let error = refused.expect_err("it cannot be mapped").error;
    let not_shared = matches!(
        error,
        ClientError::PathUnavailable { path: TransferPath::IpcHost, reason: Fallback::NotShared }
    );
    ensure!(not_shared, "{error}");

    // Stronger keys than a table of the node's gives.
    let strict = builder(&server).require_strength(KeyStrength::Window).build()?;
    let put = strict.put_object("chosen", "strict").body(own.slice(..)?).send().await?;
    ensure!(put.path == TransferPath::Http && put.strength == KeyStrength::Http);
    ensure!(put.fallbacks.total() == 1, "{}", put.fallbacks);

    // A server without a door.
    let config = "node.ipc.mode = \"off\"\n".to_owned();
    let closed = Server::with(Options { config, ..Options::default() })?;
    let client = builder(&closed).build()?;
    client.create_bucket("closed").await?;
    let put = client.put_object("closed", "object").body(own.slice(..)?).send().await?;
    ensure!(put.path == TransferPath::Http && !put.fallbacks.is_empty());
    let required = local(&closed, TransferPath::IpcHost).build()?;
    let refused = required.put_object("closed", "object").body(own.slice(..)?).send().await;
    let no_door =
        matches!(refused, Err(ClientError::PathUnavailable { reason: Fallback::NoDoor, .. }));
    ensure!(no_door, "{refused:?}");
    Ok(())
}

/// Whoever gives up gets the memory back, and finds nothing written to it later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_comes_back() -> Result<()> {
    let server = Server::start()?;
    let client = local(&server, TransferPath::IpcHost).build()?;
    client.create_bucket("given").await?;
    let content = payload(2, 32 * MIB);
    client.put_object("given", "object").body(shared(&content)?.slice(..)?).send().await?;
    let mut memory = HostBuffer::shared(content.len())?;
    for millis in [0, 1, 2, 5, 10, 20] {
        let reading = client.get_object("given", "object").into(memory.slice_mut(..)?);
        let _ = tokio::time::timeout(Duration::from_millis(millis), reading).await;
        // The last parts come back when their keys are dead.
        let begun = tokio::time::Instant::now();
        while memory.bytes_mut().is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "the memory did not come back");
            tokio::task::yield_now().await;
        }
        memory.bytes_mut()?.fill(0);
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure!(memory.bytes()?.iter().all(|byte| *byte == 0), "a late byte");
    }
    let got = client.get_object("given", "object").into(memory.slice_mut(..)?).await?;
    ensure!(got.target[..] == content && got.path == TransferPath::IpcHost);
    Ok(())
}

/// The same where the host's memory stands in for a GPU's; and no bounce buffer is lost of the
/// 128 MiB, which are enough for eight parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_on_its_way_to_a_gpu_comes_back() -> Result<()> {
    let Some(gpu) = gpu("what_is_given_up_on_its_way_to_a_gpu_comes_back") else { return Ok(()) };
    let server = Server::start()?;
    let client = local(&server, TransferPath::IpcHost).build()?;
    client.create_bucket("given").await?;
    let content = payload(2, 64 * MIB);
    client.put_object("given", "object").body(shared(&content)?.slice(..)?).send().await?;
    let mut memory = DeviceBuffer::alloc(&gpu, content.len())?;
    for millis in [0, 1, 2, 5, 10, 20, 1, 2, 3, 4, 5, 6, 7, 8] {
        let reading = client.get_object("given", "object").into(memory.slice_mut(..)?);
        let _ = tokio::time::timeout(Duration::from_millis(millis), reading).await;
        let begun = tokio::time::Instant::now();
        while memory.slice_mut(..).is_err() {
            ensure!(begun.elapsed() < Duration::from_secs(10), "the memory did not come back");
            tokio::task::yield_now().await;
        }
        memory.write(0, &vec![0; content.len()])?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut found = vec![1; content.len()];
        memory.read(0, &mut found)?;
        ensure!(found.iter().all(|byte| *byte == 0), "a late byte");
    }
    for _ in 0..4 {
        let got = client.get_object("given", "object").into(memory.slice_mut(..)?).await?;
        ensure!(got.path == TransferPath::IpcHost && got.verified.is_whole());
        drop(got);
        let mut found = vec![1; content.len()];
        memory.read(0, &mut found)?;
        ensure!(found == content, "other bytes");
        let put = client.put_object("given", "back").body(memory.slice(..)?).send().await?;
        ensure!(put.path == TransferPath::IpcHost && put.verified.is_whole());
    }
    Ok(())
}

/// A range that is longer than a bounce buffer is read in pieces. What cannot be is refused: no other
/// path is taken for one that is required.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_runs_keep_to_the_hosts_memory() -> Result<()> {
    let Some(gpu) = gpu("long_runs_keep_to_the_hosts_memory") else { return Ok(()) };
    let server = Server::start()?;
    let client = local(&server, TransferPath::IpcHost).put_part_bytes(1 << 30).build()?;
    client.create_bucket("long").await?;
    let content = payload(3, 80 * MIB + 5);
    client.put_object("long", "object").body(shared(&content)?.slice(..)?).send().await?;
    let mut memory = DeviceBuffer::alloc(&gpu, content.len())?;
    let read = || client.get_object("long", "object").part_bytes(1 << 30);
    // One request for an object whose length is not known.
    let unknown = read().into(memory.slice_mut(..)?).await.map_err(|failed| failed.error);
    ensure!(
        matches!(unknown, Err(ClientError::PathUnavailable { reason: Fallback::TooLarge, .. })),
        "{unknown:?}"
    );
    drop(unknown);
    let range = ByteRange::whole(content.len() as u64);
    let got = read().range(range).into(memory.slice_mut(..)?).await?;
    ensure!(got.path == TransferPath::IpcHost && got.fallbacks.is_empty(), "by {}", got.path);
    drop(got);
    let mut found = vec![1; content.len()];
    memory.read(0, &mut found)?;
    ensure!(found == content, "other bytes");
    let put = client.put_object("long", "back").body(memory.slice(..)?).send().await;
    ensure!(
        matches!(put, Err(ClientError::PathUnavailable { reason: Fallback::TooLarge, .. })),
        "{put:?}"
    );
    Ok(())
}

/// A server that dies amid transfers costs no byte: the next one serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_found_again() -> Result<()> {
    let mut server = Server::start()?;
    let content = payload(3, 32 * MIB);
    let client = local(&server, TransferPath::IpcHost).build()?;
    client.create_bucket("killed").await?;
    client.put_object("killed", "object").body(shared(&content)?.slice(..)?).send().await?;
    for round in 0..8 {
        let client = local(&server, TransferPath::IpcHost).retry(RetryPolicy::NONE).build()?;
        let mut memory = HostBuffer::shared(content.len())?;
        let target = memory.slice_mut(..)?;
        let reading = client.get_object("killed", "object").into(target);
        let reading = tokio::spawn(reading);
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        server.kill();
        match reading.await? {
            Ok(got) => ensure!(got.target[..] == content, "{round}: other bytes"),
            Err(failed) => drop(failed.target),
        }
        ensure!(memory.bytes_mut().is_ok(), "{round}: the memory came back");
        server.restart()?;
        let client = local(&server, TransferPath::IpcHost).build()?;
        let got = client.get_object("killed", "object").into(memory.slice_mut(..)?).await?;
        ensure!(got.target[..] == content && got.path == TransferPath::IpcHost);
    }
    Ok(())
}
