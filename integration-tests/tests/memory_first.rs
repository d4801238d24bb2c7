//! Goal: writes that are answered from a node's memory land there by every path of one host, are
//! read from there, become durable, and survive what they must: a stop, and a kill after a flush.
//!
//! Method: a real server with a memory tier, the SDK in this process. Every outcome is held
//! against the path and the durability that were asked for, every byte against what was sent.

use anyhow::{Result, ensure};
use keyway_client::{
    Client, ClientBuilder, Credentials, DeviceBuffer, Durability, Gpu, HostBuffer, PathPolicy,
    PutBody,
};
use keyway_integration_tests::Server;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::skip::skipped;
use keyway_proto::TransferPath;

const MIB: usize = 1 << 20;
/// In one chunk, in several, and in parts.
const SIZES: [usize; 4] = [300_000, 16 * MIB, 33 * MIB + 5, 70 * MIB + 3];
const PART_BYTES: u64 = 40 << 20;

fn server() -> Result<Server> {
    let config = "node.tier.size_bytes = 536870912\n".to_owned();
    Server::with(Options { config, ..Options::default() })
}

fn builder(server: &Server) -> ClientBuilder {
    let credentials = server.credentials();
    let credentials = Credentials::new(&credentials.access_key, credentials.secret_key.as_str());
    Client::builder().endpoint(server.url()).credentials(credentials)
}

/// Writes all sizes from memory that `make` fills, reads them while they are pending, and waits.
async fn around<M>(
    server: &Server,
    client: &Client,
    path: TransferPath,
    make: impl Fn(&[u8]) -> Result<(M, PutBody)>,
) -> Result<()> {
    let bucket = format!("first-{path}");
    client.create_bucket(&bucket).await?;
    // Into host memory, which not every path reaches.
    let reader = builder(server).build()?;
    for bytes in SIZES {
        let content = payload(bytes as u64, bytes);
        let (_memory, body) = make(&content)?;
        let key = bytes.to_string();
        let put = client.put_object(&bucket, &key).part_bytes(PART_BYTES).body(body);
        let put = put.durability(Durability::Memory).send().await?;
        ensure!(put.path == path, "{bytes}: put by {}", put.path);
        // An upload's parts may all be durable before it is completed: the better answer.
        let in_parts = bytes as u64 > PART_BYTES;
        let held = put.durability == Durability::Memory || in_parts;
        ensure!(held, "{bytes}: {}", put.durability);
        ensure!(put.verified.is_whole() && put.retries == 0, "{bytes}: {}", put.verified);
        let got = reader.get_object(&bucket, &key).bytes().await?;
        ensure!(got.target == content && got.verified.is_whole(), "{bytes}: {}", got.verified);
        let range = keyway_proto::ByteRange::new(bytes as u64 / 3, 70_000).expect("inside");
        let got = reader.get_object(&bucket, &key).range(range).bytes().await?;
        ensure!(got.target == content[bytes / 3..bytes / 3 + 70_000], "{bytes}: a range");
    }
    let flushed = client.flush().bucket(&bucket).await?;
    ensure!(flushed.lost == 0 && flushed.pending == 0, "{flushed:?}");
    for bytes in SIZES {
        let got = reader.get_object(&bucket, &bytes.to_string()).bytes().await?;
        ensure!(got.target == payload(bytes as u64, bytes), "{bytes}: other bytes");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_first_over_http() -> Result<()> {
    let server = server()?;
    let client = builder(&server).path(PathPolicy::Require(TransferPath::Http)).build()?;
    around(&server, &client, TransferPath::Http, |content| Ok(((), content.to_vec().into()))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_first_from_shared_memory() -> Result<()> {
    let server = server()?;
    let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcHost)).build()?;
    let make = |content: &[u8]| {
        let mut buffer = HostBuffer::shared(content.len())?;
        buffer.bytes_mut()?.copy_from_slice(content);
        let body = buffer.slice(..)?.into();
        Ok((buffer, body))
    };
    around(&server, &client, TransferPath::IpcHost, make).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_first_from_a_gpu() -> Result<()> {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            skipped("memory_first_from_a_gpu", &error.to_string());
            return Ok(());
        }
    };
    let server = server()?;
    let client = builder(&server).path(PathPolicy::Require(TransferPath::IpcGpu)).build()?;
    let make = |content: &[u8]| {
        let mut buffer = DeviceBuffer::alloc(&gpu, content.len())?;
        buffer.write(0, content)?;
        let body = buffer.slice(..)?.into();
        Ok((buffer, body))
    };
    around(&server, &client, TransferPath::IpcGpu, make).await
}

/// Goal: neither a stop nor, after a flush, a kill loses anything; without the flush a kill leaves
/// the object or what it replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_promised_is_kept() -> Result<()> {
    let mut server = server()?;
    let (old, new) = (payload(1, 2 * MIB), payload(2, 50 * MIB));
    let mut client = builder(&server).build()?;
    client.create_bucket("kept").await?;
    client.put_object("kept", "killed").body(old.clone()).send().await?;
    for key in ["stopped", "flushed", "killed"] {
        let put = client.put_object("kept", key).body(new.clone());
        put.durability(Durability::Memory).send().await?;
        match key {
            "stopped" => {
                ensure!(server.terminate()?.success(), "a stop makes all durable");
                server.restart()?;
            }
            "flushed" => {
                let flushed = client.flush().object("kept", key).await?;
                ensure!(flushed.lost == 0, "{flushed:?}");
                server.kill();
                server.restart()?;
            }
            _ => {
                server.kill();
                server.restart()?;
            }
        }
        // The port is another one.
        client = builder(&server).build()?;
        let got = client.get_object("kept", key).bytes().await?;
        ensure!(got.target == new || key == "killed" && got.target == old, "{key}: other bytes");
        let flushed = client.flush().await?;
        ensure!(flushed == keyway_client::FlushReply::default(), "{key}: {flushed:?}");
    }
    Ok(())
}
