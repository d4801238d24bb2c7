//! Goal: the clients that people use work with their defaults, over HTTP and HTTPS.
//!
//! Method: each client, as its registry ships it, does put, get, list, a multipart upload of
//! 200 MiB, presigned URLs and delete against a real server, and compares the bytes. The
//! scripts lie in `clients/`; `make test` installs the programs. A client that is not
//! installed is skipped, and says so.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::{Server, Transport, aws, tree};

/// Length of the object that goes up in parts.
const LARGE_BYTES: usize = 200 << 20;
/// Length of the one that goes up whole; not a multiple of anything.
const SMALL_BYTES: usize = 100_003;

#[path = "foreign_clients/guarded.rs"]
mod guarded;

macro_rules! clients {
    ($($name:ident: $script:literal, $program:expr;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn over_http() {
                run_client(stringify!($name), $script, &$program, Transport::Plain);
            }

            #[test]
            fn over_https() {
                run_client(stringify!($name), $script, &$program, Transport::Tls);
            }
        }
    )+};
}

clients! {
    boto3: "boto3_client.py", built("venv/bin/python");
    boto3_breadth: "breadth_client.py", built("venv/bin/python");
    boto3_sts: "sts_client.py", built("venv/bin/python");
    boto3_declared: "declared_client.py", built("venv/bin/python");
    boto3_encryption: "encryption_client.py", built("venv/bin/python");
    awscli: "awscli_client.sh", built("venv/bin/aws");
    pyarrow: "pyarrow_client.py", built("venv/bin/python");
    s3fs: "s3fs_client.py", built("venv-s3fs/bin/python");
    s5cmd: "s5cmd_client.sh", built("tools/bin/s5cmd");
    rclone: "rclone_client.sh", packaged("rclone");
    s3cmd: "s3cmd_client.sh", packaged("s3cmd");
}

/// A program under `target/`, where `make test` installs it.
fn built(path: &str) -> PathBuf {
    tree::root().join("target").join(path)
}

/// A program of the distribution.
fn packaged(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(name));
    candidates.find(|program| program.exists()).unwrap_or_else(|| name.into())
}

/// One client at a time: each wants both cores and 600 MiB of disk.
static TURN: Mutex<()> = Mutex::new(());

fn run_client(name: &str, script: &str, program: &Path, transport: Transport) {
    if !program.exists() {
        skipped(&format!("{name}, {transport:?}"), &format!("{} is not there", program.display()));
        return;
    }
    let server = start(transport);
    let run = Run { name, script, program, transport, guarded: false };
    run.against(&server, server.credentials());
}

/// A client's script.
struct Run<'a> {
    name: &'a str,
    script: &'a str,
    program: &'a Path,
    transport: Transport,
    /// Whether its bucket is there, and stays.
    guarded: bool,
}

impl Run<'_> {
    fn against(&self, server: &Server, who: &Credentials) {
        let Self { name, program, transport, .. } = *self;
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let work = tempfile::tempdir().unwrap();
        let script = tree::root().join("integration-tests/clients").join(self.script);
        let is_python = script.extension().is_some_and(|extension| extension == "py");
        let mut command = Command::new(if is_python { program } else { Path::new("bash") });
        for (name, _) in std::env::vars_os() {
            // What the machine tells S3 clients and TLS libraries must not reach these.
            let text = name.to_string_lossy();
            let bundle = text.starts_with("SSL_CERT") || text.ends_with("CA_BUNDLE");
            if bundle || text.starts_with("AWS_") {
                command.env_remove(&name);
            }
        }
        let trusted = match transport {
            Transport::Plain => PathBuf::new(),
            Transport::Tls => server.certificate_file(),
        };
        let output = command
            .arg(&script)
            .env("ENDPOINT", server.url())
            .env("AWS_ACCESS_KEY_ID", &who.access_key)
            .env("AWS_SECRET_ACCESS_KEY", &who.secret_key)
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("CA_FILE", trusted)
            .env("GUARDED", if self.guarded { "yes" } else { "" })
            .env("HOME", work.path())
            .env("WORK", work.path())
            .env("SMALL", small())
            .env("LARGE", large())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("AWS", program)
            .env("S5CMD", program)
            .env("RCLONE", program)
            .env("S3CMD", program)
            .output()
            .expect("the client starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{name}, {transport:?}: {}\n{said}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
        );
        println!("{name}, {transport:?}:\n{said}");
    }
}

/// Lifecycle rules whose days a test can wait for.
const SHORT_DAYS: &str =
    "maintenance.lifecycle_day_ms = 1000\nmaintenance.lifecycle_period_ms = 200\n";

fn start(transport: Transport) -> Server {
    let config = SHORT_DAYS.to_owned();
    Server::with(Options { transport, config, ..Options::default() }).expect("the server starts")
}

fn small() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| file("small", SMALL_BYTES))
}

fn large() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| file("large", LARGE_BYTES))
}

/// A file of that many bytes under `target/`, made once.
fn file(name: &str, length: usize) -> PathBuf {
    let dir = tree::root().join("target/test-data");
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(format!("{name}-{length}"));
    if !path.exists() {
        let mut file = tempfile::NamedTempFile::new_in(&dir).unwrap();
        file.write_all(&payload(length as u64, length)).unwrap();
        file.persist(&path).unwrap();
    }
    path
}

mod aws_sdk_for_rust {
    use std::time::Duration;

    use aws_sdk_s3::Client;
    use aws_sdk_s3::presigning::PresigningConfig;
    use aws_sdk_s3::primitives::ByteStream;
    use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};

    use super::*;

    const BUCKET: &str = "aws-sdk-for-rust";
    const PART_BYTES: usize = 25 << 20;

    #[tokio::test]
    async fn over_http() {
        run(Transport::Plain).await;
    }

    #[tokio::test]
    async fn over_https() {
        run(Transport::Tls).await;
    }

    async fn run(transport: Transport) {
        let server = start(transport);
        let s3 = aws::client(&server, transport).expect("the client is made");
        s3.create_bucket().bucket(BUCKET).send().await.expect("create bucket");
        put_and_get(&s3).await;
        multipart(&s3).await;
        list_and_delete(&s3).await;
        if transport == Transport::Plain {
            presigned(&s3, &server).await;
        }
    }

    async fn put_and_get(s3: &Client) {
        let body = payload(1, SMALL_BYTES);
        let algorithms = [
            ChecksumAlgorithm::Crc32,
            ChecksumAlgorithm::Crc32C,
            ChecksumAlgorithm::Crc64Nvme,
            ChecksumAlgorithm::Sha1,
            ChecksumAlgorithm::Sha256,
        ];
        for algorithm in algorithms {
            let key = format!("dir/{}", algorithm.as_str());
            // A body from a file is streamed: signed in chunks, or trailing its checksum.
            let stream = ByteStream::from_path(small()).await.expect("the file opens");
            let put = s3.put_object().bucket(BUCKET).key(&key).checksum_algorithm(algorithm);
            put.body(stream).send().await.unwrap_or_else(|error| panic!("put {key}: {error:?}"));
            let answer = s3.get_object().bucket(BUCKET).key(&key).send().await.expect("get");
            let found = answer.body.collect().await.expect("the body verifies").into_bytes();
            assert!(found == std::fs::read(small()).unwrap(), "{key} differs");
        }
        let put = s3.put_object().bucket(BUCKET).key("default").body(body.clone().into());
        put.send().await.expect("put with the default checksum");
        let get = s3.get_object().bucket(BUCKET).key("default").range("bytes=10-99");
        let range = get.send().await.expect("get a range").body.collect().await.expect("bytes");
        assert_eq!(range.into_bytes(), body[10..100]);
    }

    async fn multipart(s3: &Client) {
        let body = std::fs::read(large()).unwrap();
        let upload = s3.create_multipart_upload().bucket(BUCKET).key("large");
        let upload = upload.send().await.expect("create upload");
        let id = upload.upload_id().expect("an upload has an id");
        let mut parts = CompletedMultipartUpload::builder();
        for (number, piece) in (1..).zip(body.chunks(PART_BYTES)) {
            let part = s3.upload_part().bucket(BUCKET).key("large").upload_id(id);
            let part = part.part_number(number).body(piece.to_vec().into());
            let stored = part.send().await.unwrap_or_else(|e| panic!("part {number}: {e:?}"));
            let part = CompletedPart::builder()
                .part_number(number)
                .set_e_tag(stored.e_tag)
                .set_checksum_crc32(stored.checksum_crc32)
                .build();
            parts = parts.parts(part);
        }
        let complete = s3.complete_multipart_upload().bucket(BUCKET).key("large").upload_id(id);
        complete.multipart_upload(parts.build()).send().await.expect("complete");
        let answer = s3.get_object().bucket(BUCKET).key("large").send().await.expect("get");
        let found = answer.body.collect().await.expect("the body arrives").into_bytes();
        assert!(found == body, "the large object differs");
    }

    async fn list_and_delete(s3: &Client) {
        let listing = s3.list_objects_v2().bucket(BUCKET).delimiter("/");
        let listing = listing.send().await.expect("list");
        let keys: Vec<_> = listing.contents().iter().filter_map(|object| object.key()).collect();
        assert_eq!(keys, ["default", "large"]);
        assert_eq!(listing.common_prefixes()[0].prefix(), Some("dir/"));
        s3.delete_object().bucket(BUCKET).key("large").send().await.expect("delete");
        let gone = s3.get_object().bucket(BUCKET).key("large").send().await;
        assert!(gone.unwrap_err().into_service_error().is_no_such_key());
    }

    /// The URL goes through a client that knows nothing of S3.
    async fn presigned(s3: &Client, server: &Server) {
        use keyway_integration_tests::wire::{Connection, Request};
        let validity = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
        let url = s3.get_object().bucket(BUCKET).key("default").presigned(validity).await;
        let url = url.expect("presigning needs no server");
        let target = url.uri().strip_prefix(server.url()).expect("the URL leads to the server");
        let request = Request::new("GET", target).header("host", server.authority());
        let response = Connection::open(server.address()).unwrap().exchange(&request).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.body == payload(1, SMALL_BYTES), "the presigned GET differs");
    }
}
