//! Goal: the SDK moves objects between a real server and GPU memory over HTTP, whole and
//! verified; and the command line tools do.
//!
//! Method: a server process of the harness and the first GPU; what landed is copied out and
//! compared. Without a GPU every test says so.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use keyway_client::{Client, Credentials, DeviceBuffer, Gpu, PathPolicy, Tls};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::{Server, Transport};
use keyway_proto::{ByteRange, Checksum, ChecksumKind, TransferPath};

const MIB: usize = 1 << 20;

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    Gpu::open(0).map_err(|error| skipped(test, &error.to_string())).ok()
}

fn client(server: &Server) -> Client {
    let credentials = server.credentials();
    let mut builder = Client::builder()
        .endpoint(server.url())
        .path(PathPolicy::Require(TransferPath::Http))
        .credentials(Credentials::new(&credentials.access_key, credentials.secret_key.as_str()));
    if server.url().starts_with("https") {
        builder = builder.tls(Tls::CaFile(server.certificate_file()));
    }
    builder.build().expect("a client")
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    let mut pattern = vec![0; bytes];
    random.fill(&mut pattern);
    pattern
}

async fn around(client: &Client, gpu: &Arc<Gpu>) -> Result<()> {
    client.create_bucket("gpu").await?;
    for bytes in [0, 1, 4095, 65_537, MIB, 5 * MIB + 3, 40 * MIB + 1] {
        let object = pattern(bytes);
        let whole = Checksum::of(ChecksumKind::Crc64Nvme, &object);
        // At an odd address, so that nothing is aligned.
        let mut source = DeviceBuffer::alloc(gpu, bytes + 3)?;
        source.write(3, &object)?;
        let key = format!("objects/{bytes}");
        let put = client.put_object("gpu", &key).body(source.slice(3..)?).send().await?;
        ensure!(put.bytes == bytes as u64 && put.retries == 0, "{put:?}");
        ensure!(put.verified.is_whole() && put.path == TransferPath::Http, "{put:?}");
        ensure!(put.parts == bytes.div_ceil(16 * MIB).max(1), "{} parts", put.parts);

        let mut memory = DeviceBuffer::alloc(gpu, bytes + 7)?;
        let got = client.get_object("gpu", &key).into(memory.slice_mut(5..)?).await?;
        ensure!(got.verified == keyway_client::Verified::Whole(whole), "{}", got.verified);
        ensure!(got.path == TransferPath::Http && got.fallbacks.is_empty());
        drop(got);
        let mut landed = vec![0; bytes];
        memory.read(5, &mut landed)?;
        ensure!(landed == object, "{bytes}: other bytes");
        if bytes > 2 * MIB {
            let mut target = memory.slice_mut(..)?;
            let mut get = client.get_ranges("gpu", &key);
            for offset in [1, MIB as u64, bytes as u64 - 777] {
                let range = ByteRange::new(offset, 777).context("a range")?;
                get = get.range(range, target.split_to(777));
            }
            let got = get.send().await?;
            ensure!(got.iter().all(|got| got.bytes == 777));
            drop((got, target));
            let mut landed = vec![0; 3 * 777];
            memory.read(0, &mut landed)?;
            let wanted = [1, MIB, bytes - 777].map(|at| &object[at..at + 777]).concat();
            ensure!(landed == wanted, "other ranges");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn around_over_http() {
    let Some(gpu) = gpu("around_over_http") else { return };
    let server = Server::start().expect("the server starts");
    around(&client(&server), &gpu).await.expect("goes around");
}

#[tokio::test(flavor = "multi_thread")]
async fn around_over_https() {
    let Some(gpu) = gpu("around_over_https") else { return };
    let options = Options { transport: Transport::Tls, ..Options::default() };
    let server = Server::with(options).expect("the server starts");
    around(&client(&server), &gpu).await.expect("goes around");
}

/// `put --memory gpu:0` and `get --memory gpu:0`.
#[tokio::test(flavor = "multi_thread")]
async fn commands_go_through_the_gpu() {
    let Some(_) = gpu("commands_go_through_the_gpu") else { return };
    let server = Server::start().expect("the server starts");
    client(&server).create_bucket("gpu").await.expect("made");
    let directory = tempfile::tempdir().expect("a directory");
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    let object = pattern(20 * MIB + 5);
    std::fs::write(&source, &object).expect("written");
    let run = |command: &str, from: &std::ffi::OsStr, to: &std::ffi::OsStr| {
        let credentials = server.credentials();
        let status = Command::new(keyway_integration_tests::server::binary().expect("built"))
            .args([command, "--path", "http", "--memory", "gpu:0", "--endpoint", server.url()])
            .args([from, to])
            .env("KEYWAY_ACCESS_KEY", &credentials.access_key)
            .env("KEYWAY_SECRET_KEY", credentials.secret_key.as_str())
            .status();
        assert!(status.expect("it runs").success(), "{command}");
    };
    run("put", source.as_os_str(), "s3://gpu/object".as_ref());
    run("get", "s3://gpu/object".as_ref(), copy.as_os_str());
    assert!(std::fs::read(&copy).expect("there") == object);
}
