//! Goal: the SDK does its whole job against a real server, over HTTP and HTTPS: memory to
//! object to memory, verified, in one request and in parts.
//!
//! Method: a server process of the harness; every answer is held against what was sent, and
//! every read against the path, strength and verification it names.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::TryStreamExt as _;
use keyway_client::{Client, Credentials, HostBuffer, Tls};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::{S3, Server, Transport};
use keyway_proto::{ByteRange, Checksum, ChecksumKind, KeyStrength, TransferPath};

#[path = "../../client-sdk/tests/common/mod.rs"]
mod broken;
#[path = "client_sdk/foreign.rs"]
mod foreign;

const MIB: usize = 1 << 20;
/// How long after a cancellation the service may still list the upload.
const ABORTED_WITHIN: Duration = Duration::from_secs(20);

fn client(server: &Server) -> Client {
    let credentials = server.credentials();
    Client::builder()
        .endpoint(server.url())
        .credentials(Credentials::new(&credentials.access_key, credentials.secret_key.as_str()))
        .build()
        .expect("a client")
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    let mut pattern = vec![0; bytes];
    random.fill(&mut pattern);
    pattern
}

async fn around(client: &Client, bucket: &str) -> Result<()> {
    client.create_bucket(bucket).await?;
    for bytes in [0, 1, 4096, MIB + 1, 40 * MIB + 3] {
        let mut source = HostBuffer::from(pattern(bytes));
        let whole = Checksum::of(ChecksumKind::Crc64Nvme, source.bytes()?);
        let key = format!("sizes/{bytes} é+");
        let put = client.put_object(bucket, &key).body(source.slice(..)?).send().await?;
        ensure!(put.bytes == bytes as u64 && put.retries == 0);
        ensure!(put.parts == bytes.div_ceil(16 * MIB).max(1), "{} parts", put.parts);
        ensure!(put.verified.is_whole(), "{bytes}: put {}", put.verified);

        let mut memory = HostBuffer::zeroed(bytes + 7)?;
        let got = client.get_object(bucket, &key).into(memory.slice_mut(..)?).await?;
        ensure!(got.target[..bytes] == *source.bytes()?, "{bytes}: other bytes");
        ensure!(got.verified == keyway_client::Verified::Whole(whole), "{bytes}: {}", got.verified);
        ensure!((got.path, got.strength) == (TransferPath::Http, KeyStrength::Http));
        ensure!(got.info.etag == put.etag, "the ETag of the write is that of the read");

        let got = client.get_object(bucket, &key).part_bytes(5 * MIB as u64).bytes().await?;
        ensure!(got.target == *source.bytes()? && got.verified.is_whole());
        if bytes > 100 {
            let range = ByteRange::new(50, 17).context("a range")?;
            let got = client.get_object(bucket, &key).range(range).bytes().await?;
            ensure!(got.target == source.bytes()?[50..67]);
        }
    }
    let listed: Vec<_> = client.list_objects(bucket).page_keys(2).objects().try_collect().await?;
    ensure!(listed.len() == 5 && listed.iter().all(|o| o.key.ends_with(" é+")));
    let failures = client.delete_objects(bucket, listed.iter().map(|o| &o.key)).await?;
    ensure!(failures.is_empty());
    client.delete_bucket(bucket).await?;
    ensure!(client.head_bucket(bucket).await.is_err_and(|error| error.is_not_found()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn around_over_http() {
    let server = Server::start().expect("the server starts");
    around(&client(&server), "sdk").await.expect("goes around");
}

#[tokio::test(flavor = "multi_thread")]
async fn around_over_https() {
    let options = Options { transport: Transport::Tls, ..Options::default() };
    let server = Server::with(options).expect("the server starts");
    let credentials = server.credentials();
    let builder = || {
        Client::builder()
            .endpoint(server.url())
            .credentials(Credentials::new(&credentials.access_key, credentials.secret_key.as_str()))
    };
    let trusting = builder().tls(Tls::CaFile(server.certificate_file())).build().expect("a client");
    around(&trusting, "sdk").await.expect("goes around");
    let wary = builder().build();
    if let Ok(wary) = wary {
        assert!(wary.list_buckets().await.is_err(), "an unknown authority is not trusted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_copies_and_presigned_urls() {
    let server = Server::start().expect("the server starts");
    let client = client(&server);
    client.create_bucket("sdk").await.expect("created");
    let put = || client.put_object("sdk", "k").metadata("who", "me").expect("text").body("one");
    let first = put().if_absent().send().await.expect("absent");
    let refused = put().if_absent().send().await.expect_err("present");
    assert_eq!(refused.code(), Some("PreconditionFailed"));
    let etag = first.etag.expect("an ETag");
    put().if_match(&etag).expect("text").send().await.expect("unchanged");

    client.copy_object(("sdk", "k"), ("sdk", "copy of k")).await.expect("copied");
    let info = client.head_object("sdk", "copy of k").await.expect("there");
    assert_eq!((info.size, info.metadata["who"].as_str()), (3, "me"));

    let missing = client.get_object("sdk", "missing").bytes().await.expect_err("missing");
    assert_eq!(missing.code(), Some("NoSuchKey"));
    assert!(missing.service().is_some_and(|error| error.request_id.is_some()));

    // A client without credentials holds nothing but the URL.
    let url = client.presign_get("sdk", "k").expires_in(std::time::Duration::from_secs(60));
    let url = url.expect("signed").to_string();
    let target = url.strip_prefix(server.url()).expect("of this server").to_owned();
    let address = server.address();
    let answer = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(address)?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    })
    .await
    .expect("no panic")
    .expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("one"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_upload_leaves_nothing_behind() {
    let server = Server::start().expect("the server starts");
    let client = client(&server);
    client.create_bucket("sdk").await.expect("created");
    let (moved, mut moves) = tokio::sync::mpsc::unbounded_channel();
    let put = client
        .put_object("sdk", "k")
        .part_bytes(5 * MIB as u64)
        .concurrency(2)
        .on_progress(move |_| {
            let _ = moved.send(());
        })
        .body(pattern(64 * MIB));
    let write = tokio::spawn(put.send());
    moves.recv().await.expect("bytes move");
    write.abort();
    assert!(write.await.is_err_and(|error| error.is_cancelled()));
    let missing = client.head_object("sdk", "k").await.expect_err("never completed");
    assert!(missing.is_not_found());
    // The parts went with their upload: it is aborted behind the caller's back.
    let mut listing = S3::of(&server);
    let deadline = Instant::now() + ABORTED_WITHIN;
    while !listing.uploads("sdk").expect("a listing").is_empty() {
        assert!(Instant::now() < deadline, "{:?}", listing.uploads("sdk"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
