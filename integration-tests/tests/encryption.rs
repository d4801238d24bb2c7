//! Goal: encrypted objects come back as they were by every path of one host, after a restart and a
//! kill, while nothing under the data directory shows their bytes, and no log shows a key.
//!
//! Method: a real server that encrypts what does not say otherwise, the SDK in this process, and
//! bodies in which a marker stands in every page; then every file is searched for it. The same
//! server without encryption shows that the search would have found it.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use keyway_client::{Client, ClientBuilder, Credentials, Durability, HostBuffer, PathPolicy};
use keyway_integration_tests::Server;
use keyway_integration_tests::s3::S3;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::wire::Request;
use keyway_proto::{ByteRange, TransferPath};

const MIB: usize = 1 << 20;
/// In a batch, in one chunk, in several, and in parts.
const SIZES: [usize; 5] = [5_000, 300_000, 16 * MIB, 33 * MIB + 5, 70 * MIB + 3];
const PART_BYTES: u64 = 40 << 20;
const CAPACITY_BYTES: usize = 384 * MIB;
const PAGE: usize = 4096;
const MARKER: &[u8] = b"a marker that stands in every page of a body";
const BUCKET: &str = "sealed";
/// What a customer's key is made of; it must not be in any log.
const CUSTOMER_KEY: &str = "a key of a customer: 32 letters!";

/// A server whose files are small enough to be searched.
fn server(config: &str) -> Result<Server> {
    let config = format!("node.store.capacity_bytes = {CAPACITY_BYTES}\n{config}");
    Server::with(Options { config, ..Options::default() })
}

fn builder(server: &Server) -> ClientBuilder {
    let credentials = server.credentials();
    let credentials = Credentials::new(&credentials.access_key, credentials.secret_key.as_str());
    Client::builder().endpoint(server.url()).credentials(credentials)
}

fn content(bytes: usize) -> Vec<u8> {
    let mut content = payload(bytes as u64, bytes);
    for page in content.chunks_mut(PAGE).filter(|page| page.len() >= MARKER.len()) {
        page[..MARKER.len()].copy_from_slice(MARKER);
    }
    content
}

/// Files under a directory that hold the marker.
fn showing(dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.append(&mut showing(&path)?);
        } else if path.is_file() && holds_marker(&std::fs::read(&path)?) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}

fn holds_marker(bytes: &[u8]) -> bool {
    let first = MARKER[0];
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte == first) {
        if rest[at..].starts_with(MARKER) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Writes all sizes by a path, and reads them whole, in ranges, and gathered.
async fn around(server: &Server, path: TransferPath, durability: Durability) -> Result<()> {
    let client = builder(server).path(PathPolicy::Require(path)).build()?;
    for bytes in SIZES {
        let (key, content) = (format!("{path}/{bytes}"), content(bytes));
        let mut memory = HostBuffer::shared(bytes)?;
        memory.bytes_mut()?.copy_from_slice(&content);
        let put = client.put_object(BUCKET, &key).part_bytes(PART_BYTES).body(memory.slice(..)?);
        let put = put.durability(durability).send().await?;
        ensure!(put.path == path && put.verified.is_whole(), "{key}: {}", put.path);
        let mut into = HostBuffer::shared(bytes)?;
        let got = client.get_object(BUCKET, &key).into(into.slice_mut(..)?).await?;
        ensure!(got.path == path && got.verified.is_whole(), "{key}: {}", got.verified);
        ensure!(got.retries == 0, "{key}: {} retries", got.retries);
        ensure!(got.target[..] == content[..], "{key}: other bytes");
        drop(got);
        if path != TransferPath::IpcHost {
            continue;
        }
        let mut random = fastrand::Rng::with_seed(bytes as u64);
        let mut range = |_| {
            let length = random.usize(1..2 * PAGE).min(bytes);
            let offset = random.usize(..=bytes - length);
            ByteRange::new(offset as u64, length as u64).expect("inside")
        };
        let ranges: Vec<_> = (0..300).map(&mut range).collect();
        let part = |range: &ByteRange| &content[range.offset() as usize..range.end() as usize];
        let expected: Vec<u8> = ranges.iter().flat_map(part).copied().collect();
        let mut into = HostBuffer::shared(expected.len())?;
        let got = client.gather(BUCKET, &key).into(into.slice_mut(..)?, ranges).await?;
        ensure!(got.path == path && got.target[..] == expected[..], "{key}: other ranges");
    }
    Ok(())
}

async fn all_is_there(server: &Server) -> Result<()> {
    let client = builder(server).build()?;
    for path in [TransferPath::Http, TransferPath::IpcHost] {
        for bytes in SIZES {
            let got = client.get_object(BUCKET, &format!("{path}/{bytes}")).bytes().await?;
            ensure!(got.target == content(bytes), "{path}/{bytes}: other bytes");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_on_the_device_shows_what_is_encrypted() -> Result<()> {
    for tier in [0, 256 * MIB] {
        let tier = format!("node.tier.size_bytes = {tier}\n");
        let mut server = server(&format!("s3.encrypt_by_default = true\n{tier}"))?;
        builder(&server).build()?.create_bucket(BUCKET).await?;
        Box::pin(around(&server, TransferPath::Http, Durability::Disk)).await?;
        Box::pin(around(&server, TransferPath::IpcHost, Durability::Memory)).await?;
        builder(&server).build()?.flush().bucket(BUCKET).await?;
        all_is_there(&server).await?;
        let data_dir = server.data_dir().to_owned();
        ensure!(showing(&data_dir)?.is_empty(), "{:?}", showing(&data_dir)?);
        server.terminate()?;
        server.restart()?;
        all_is_there(&server).await?;
        server.kill();
        server.restart()?;
        all_is_there(&server).await?;
        ensure!(showing(&data_dir)?.is_empty(), "{:?}", showing(&data_dir)?);
    }
    // Without encryption the search finds it.
    let plain = server("")?;
    let client = builder(&plain).build()?;
    client.create_bucket(BUCKET).await?;
    client.put_object(BUCKET, "k").body(content(300_000)).send().await?;
    ensure!(!showing(plain.data_dir())?.is_empty(), "the marker is nowhere");
    Ok(())
}

/// Goal: a customer's key leaves no trace, at the most talkative level of logs, and no file keeps it.
#[test]
fn a_customers_key_is_in_no_log_and_no_file() -> Result<()> {
    let config = "s3.customer_keys_without_tls = true\ntelemetry.log_filter = \"trace\"\n";
    let mut server = server(config)?;
    let mut s3 = S3::of(&server);
    s3.create_bucket(BUCKET)?;
    let encoded = BASE64.encode(CUSTOMER_KEY);
    let md5 = keyway_proto::Checksum::of(keyway_proto::ChecksumKind::Md5, CUSTOMER_KEY.as_bytes());
    let keyed = |method: &str| {
        let mut request = Request::object(method, BUCKET, "own");
        let prefix = "x-amz-server-side-encryption-customer";
        request.set(&format!("{prefix}-algorithm"), "AES256");
        request.set(&format!("{prefix}-key"), &encoded);
        request.set(&format!("{prefix}-key-md5"), md5.to_base64());
        request
    };
    let body = content(300_000);
    let put = s3.send(keyed("PUT").body(&body[..]))?;
    ensure!(put.status == 200, "{put:?}");
    let got = s3.send(keyed("GET"))?;
    ensure!(got.status == 200 && got.body == body, "{}", got.status);
    let refused = s3.send(Request::object("GET", BUCKET, "own"))?;
    ensure!(refused.status == 400, "{}", refused.status);
    server.terminate().context("it stops")?;
    let log = server.log();
    let shown = format!("{:?}", CUSTOMER_KEY.as_bytes());
    let shown = shown.trim_matches(['[', ']']);
    for secret in [CUSTOMER_KEY, &encoded, shown] {
        ensure!(!log.contains(secret), "a key is in the log");
    }
    ensure!(log.len() > 10_000, "the log is talkative: {} bytes", log.len());
    for entry in std::fs::read_dir(server.data_dir())? {
        let path = entry?.path();
        if path.is_file() {
            let bytes = std::fs::read(&path)?;
            for secret in [CUSTOMER_KEY.as_bytes(), encoded.as_bytes()] {
                let holds = bytes.windows(secret.len()).any(|run| run == secret);
                ensure!(!holds, "{} keeps a customer's key", path.display());
            }
        }
    }
    ensure!(showing(server.data_dir())?.is_empty());
    Ok(())
}
