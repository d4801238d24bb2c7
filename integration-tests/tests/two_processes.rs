//! Goal: a gateway and a node are two programs that only the network joins.
//!
//! Method: the real binary as `keyway node` and `keyway gateway`, with certificates from
//! `keyway admin certs`; objects go around; the node is killed and comes back; a gateway with
//! another authority's certificate gets nothing, nor does one with another catalog. And a client's
//! trace goes through both, to a collector over TLS.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use keyway_client::{Client, Credentials};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::binary;
use keyway_integration_tests::sigv4::{self, Signer};
use keyway_integration_tests::wire::{Connection, Request};

#[path = "two_processes/collector.rs"]
mod collector;

use collector::{Collector, Received};

const ACCESS_KEY: &str = "two-processes";
const SECRET_KEY: &str = "a-secret-of-two-processes";
/// How long a gateway may take to find its node again.
const RECOVERY: Duration = Duration::from_secs(30);

/// A `keyway` process, killed when dropped.
struct Process {
    child: Child,
    url: String,
}

impl Process {
    /// Starts it in `dir` and waits for its ready line.
    fn start(dir: &Path, arguments: &[String]) -> Result<Self> {
        let log = File::options().create(true).append(true).open(dir.join("log"))?;
        let mut child = command(dir)?
            .args(arguments)
            .env("KEYWAY_ROOT_ACCESS_KEY", ACCESS_KEY)
            .env("KEYWAY_ROOT_SECRET_KEY", SECRET_KEY)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("standard output is piped")?;
        let read = BufReader::new(stdout).read_line(&mut line);
        let url = line.split_whitespace().nth(2).unwrap_or_default().to_owned();
        let process = Self { child, url };
        let ready = read? > 0 && line.starts_with("keyway ready: ");
        let said = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        ensure!(ready, "{arguments:?} said {line:?}; log:\n{}", said());
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary in `dir`, without what the machine's environment would tell it.
fn command(dir: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KEYWAY_") {
            command.env_remove(name);
        }
    }
    command.current_dir(dir);
    Ok(command)
}

fn node(dir: &Path, port: u16, further: &[String]) -> Result<Process> {
    let listen = format!("--listen=127.0.0.1:{port}");
    let mut arguments: Vec<String> =
        ["node", "--data-dir=node", &listen, "--admin-listen=127.0.0.1:0", "--set=node.id=7"]
            .map(String::from)
            .into();
    // A small store: the test writes some 20 MB.
    arguments.push("--set=node.store.volume_bytes=67108864".into());
    arguments.extend(identity("pki", "node"));
    arguments.extend_from_slice(further);
    Process::start(dir, &arguments)
}

fn gateway(
    dir: &Path,
    data: &str,
    pki: &str,
    node_port: u16,
    further: &[String],
) -> Result<Process> {
    let data = format!("--data-dir={data}");
    let nodes = format!("--set=cluster.nodes=[\"7=https://127.0.0.1:{node_port}\"]");
    let mut arguments: Vec<String> =
        ["gateway", &data, "--listen=127.0.0.1:0", &nodes].map(String::from).into();
    arguments.extend(identity(pki, "gateway"));
    arguments.extend_from_slice(further);
    Process::start(dir, &arguments)
}

fn identity(pki: &str, name: &str) -> [String; 3] {
    [
        format!("--set=cluster.authority_file={pki}/authority.pem"),
        format!("--set=cluster.cert_file={pki}/{name}.pem"),
        format!("--set=cluster.key_file={pki}/{name}.key"),
    ]
}

fn certificates(dir: &Path, pki: &str) -> Result<()> {
    let made = command(dir)?.args(["admin", "certs", "--dir", pki]).output()?;
    ensure!(made.status.success(), "admin certs: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

fn client(gateway: &Process) -> Result<Client> {
    Ok(Client::builder()
        .endpoint(&gateway.url)
        .credentials(Credentials::new(ACCESS_KEY, SECRET_KEY))
        .build()?)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_and_a_node_are_two_processes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    certificates(dir, "pki")?;
    certificates(dir, "stranger")?;
    let port = free_port()?;
    let first = node(dir, port, &[])?;
    let gateway_process = gateway(dir, "gateway", "pki", port, &[])?;
    let client = client(&gateway_process)?;

    client.create_bucket("shared").await?;
    let objects: Vec<(String, Vec<u8>)> = [0, 1, 4096, 700_000, 17 << 20]
        .into_iter()
        .map(|length| (format!("of/{length}"), payload(length as u64, length)))
        .collect();
    for (key, bytes) in &objects {
        client.put_object("shared", key).body(bytes.clone()).send().await?;
    }
    for (key, bytes) in &objects {
        let got = client.get_object("shared", key).bytes().await?;
        ensure!(got.target == *bytes, "{key} differs");
    }

    // Without its node the gateway still answers: from its metadata, and else with an error.
    drop(first);
    ensure!(client.head_object("shared", "of/4096").await?.size == 4096);
    ensure!(client.get_object("shared", "of/4096").bytes().await.is_err(), "no node, no bytes");

    let second = node(dir, port, &[])?;
    let deadline = Instant::now() + RECOVERY;
    for (key, bytes) in &objects {
        let got = loop {
            match client.get_object("shared", key).bytes().await {
                Ok(got) => break got,
                Err(error) => ensure!(Instant::now() < deadline, "{key}: {error}"),
            }
        };
        ensure!(got.target == *bytes, "{key} differs after the restart");
    }

    // A gateway under another authority is not let in.
    let stranger = gateway(dir, "other", "stranger", port, &[])?;
    let outsider = self::client(&stranger)?;
    outsider.create_bucket("outside").await?;
    let refused = outsider.put_object("outside", "x").body(vec![1; 5000]).send().await;
    ensure!(refused.is_err(), "the node took bytes from a stranger");

    // Nor is one that is trusted and has a catalog of its own: it would delete what it does not know.
    let another = gateway(dir, "another", "pki", port, &[]).err().context("it started")?;
    ensure!(format!("{another:#}").contains("another catalog's chunks"), "{another:#}");
    ensure!(client.get_object("shared", "of/4096").bytes().await.is_ok(), "the first is served");
    drop(second);
    Ok(())
}

/// The span that the test's client pretends to be in.
const CLIENT_SPAN: [u8; 8] = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];

/// Sends a signed request in the trace of that number, sampled or not.
fn traced(url: &str, request: Request, trace: u128, sampled: bool) -> Result<Vec<u8>> {
    let authority = url.strip_prefix("http://").context("a plaintext URL")?;
    let span: String = CLIENT_SPAN.iter().map(|byte| format!("{byte:02x}")).collect();
    let parent = format!("00-{trace:032x}-{span}-{:02x}", u8::from(sampled));
    let mut request = request.header("host", authority).header("traceparent", parent);
    let credentials =
        sigv4::Credentials { access_key: ACCESS_KEY.to_owned(), secret_key: SECRET_KEY.to_owned() };
    Signer::new(&credentials).sign(&mut request);
    let answer = Connection::open(authority.parse()?)?.exchange(&request)?;
    ensure!(answer.status == 200, "{} {}: {}", request.method, answer.status, answer.text());
    Ok(answer.body)
}

/// The trace's spans are two: the gateway's under the client's, the node's call under that.
fn is_whole(received: &Received, trace: u128, method: &str) -> bool {
    let spans = received.spans.iter().filter(|span| span.trace_id == trace.to_be_bytes());
    let (gateway, node): (Vec<_>, Vec<_>) = spans.partition(|span| span.name == "request");
    let called = |span: &opentelemetry_proto::tonic::trace::v1::Span| {
        let method_attribute = span.attributes.iter().find(|pair| pair.key == "rpc.method");
        format!("{method_attribute:?}").contains(&format!("{method:?}"))
    };
    matches!((&gateway[..], &node[..]), ([gateway], [node])
        if gateway.parent_span_id == CLIENT_SPAN
            && node.parent_span_id == gateway.span_id
            && called(node))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_through_both_processes_to_a_collector_over_tls() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    certificates(dir, "pki")?;
    let collector = Collector::start(&dir.join("pki"), "node").await?;
    let telemetry = [
        format!("--set=telemetry.otlp_endpoint={}", collector.endpoint),
        "--set=telemetry.otlp_authority_file=pki/authority.pem".to_owned(),
        "--set=telemetry.metrics_interval_ms=100".to_owned(),
        "--set=telemetry.access_log=all".to_owned(),
    ];
    let port = free_port()?;
    let _node = node(dir, port, &telemetry)?;
    let gateway = gateway(dir, "gateway", "pki", port, &telemetry)?;
    let url = gateway.url.clone();

    let bytes = payload(1, 3 << 20);
    let sent = bytes.clone();
    let got = tokio::task::spawn_blocking(move || -> Result<Vec<u8>> {
        traced(&url, Request::new("PUT", "/traced"), 1, false)?;
        let object = |method| Request::object(method, "traced", "object");
        traced(&url, object("PUT").body(sent), 2, true)?;
        traced(&url, object("GET"), 3, true)
    });
    ensure!(got.await?? == bytes, "the object differs");

    let received = collector
        .until(|received| {
            is_whole(received, 2, "Put")
                && is_whole(received, 3, "Get")
                && received.signals.len() == 3
        })
        .await?;
    let unsampled = received.spans.iter().any(|span| span.trace_id == 1_u128.to_be_bytes());
    ensure!(!unsampled, "the client asked for that request not to be traced");
    Ok(())
}
