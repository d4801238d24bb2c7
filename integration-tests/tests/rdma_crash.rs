//! Goal: whoever dies in the middle of a transfer by RDMA, no other notices, nothing leaks, no
//! byte is wrong or late, and no log tells a key.
//!
//! Method: real processes in the soft-RoCE machine, the node on one adapter, clients on the
//! other. A proxy on the way of the requests says when a token went by; a moment after that,
//! SIGKILL: to clients that read and write, while another is served; to the gateway or the
//! node, under a client whose buffers are overwritten once they are back, and must stay so.
//! Then the node's counters, the kernel's, the objects and all logs are looked at.
//!
//! `KEYWAY_CRASH_CYCLES` sets the kills of each kind (`make crash-rdma`: 100 on either module),
//! `KEYWAY_TEST_SEED` replays their moments. Runs in the soft-RoCE machine (`make test-rdma`);
//! elsewhere each test says that it is skipped.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may give up, and speak"
)]

#[path = "rdma_crash/caller.rs"]
mod caller;
#[path = "rdma_crash/service.rs"]
mod service;
#[path = "common/survivor.rs"]
mod survivor;
#[path = "rdma_crash/wiretap.rs"]
mod wiretap;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use keyway_client::{
    Client, ClientBuilder, Credentials, HostBuffer, PathPolicy, RdmaConfig, RetryPolicy,
};
use keyway_integration_tests::process::{ACCESS_KEY, SECRET_KEY, Split, command, eventually, tail};
use keyway_integration_tests::rdma;
use keyway_integration_tests::seed::{knob, payload, seed};
use keyway_proto::{KeyStrength, TransferPath};

use caller::transfer;
use service::{kernel_holds, kernel_is_idle, node_settings, serve};
use survivor::{Caller, Ends, Pace, Watched};
use wiretap::Wiretap;

const BUCKET: &str = "crash";
/// Kills of each kind on the repaired module, unless said otherwise.
const CYCLES: u64 = 8;
/// The same on the stock module: fifteen on both together.
const CYCLES_STOCK: u64 = 7;
/// What is being moved when somebody dies. Emulated links take 0.1 s or more for it.
const OBJECT_BYTES: usize = 12 << 20;
const SMALL_BYTES: usize = 200_000;
/// Most deaths are amid the bytes. The others are within so many times as long: about when they
/// have all moved.
const LATE: u32 = 4;
/// How long anything may take, here.
const PATIENCE: Duration = Duration::from_secs(90);

/// Our own part of the log, and all of the client's library.
const OURS: &str = "info,keyway=trace";

/// The file in which the client's library in this process logs everything.
fn client_log() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("rdma-crash-{}.log", std::process::id()));
        let file = File::create(&path).expect("a file for the log");
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(Mutex::new(file))
            .init();
        path
    })
}

fn builder(url: &str) -> ClientBuilder {
    client_log();
    let mut rdma = RdmaConfig::default().devices(["rxe1"]);
    rdma.pause = Duration::from_millis(100);
    Client::builder()
        .endpoint(url)
        .credentials(Credentials::new(ACCESS_KEY, SECRET_KEY))
        .rdma(rdma)
        .path(PathPolicy::Require(TransferPath::VerbsHost))
        .require_strength(KeyStrength::Window)
}

/// Somebody who reads while others die, and may not notice.
async fn bystander(client: Client, stop: Arc<AtomicBool>, served: Arc<AtomicU64>) -> Result<()> {
    let mut memory = HostBuffer::zeroed(SMALL_BYTES)?;
    let expected = payload(1, SMALL_BYTES);
    while !stop.load(Ordering::Relaxed) {
        let got = client.get_object(BUCKET, "small").into(memory.slice_mut(..)?).await?;
        ensure!(got.target[..] == expected[..], "other bytes");
        ensure!(got.path == TransferPath::VerbsHost && got.retries == 0, "{}", got.path);
        served.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// A client process that is to die.
fn victim(dir: &Path, url: &str, arguments: &[&str]) -> Result<Child> {
    let log = File::options().create(true).append(true).open(dir.join("victims.log"))?;
    Ok(command(dir)?
        .args(arguments)
        .args(["--endpoint", url, "--path=verbs-host", "--require-strength=window"])
        .args(["--rdma-devices=rxe1", "--access-key", ACCESS_KEY])
        .env("KEYWAY_SECRET_KEY", SECRET_KEY)
        .env("RUST_LOG", "trace")
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?)
}

/// The pace of transfers, of the object that all read.
async fn pace(client: &Client, object: &[u8]) -> Result<Pace> {
    Pace::of(async |is_put| {
        if is_put {
            client.put_object(BUCKET, "large").body(object.to_vec()).send().await?;
        } else {
            client.get_object(BUCKET, "large").bytes().await?;
        }
        Ok(())
    })
    .await
}

/// When somebody dies, after the token of a transfer of that length went by: the bytes move in
/// the second half of it.
fn moment(random: &mut Rng, length: Duration) -> Duration {
    let is_late = random.u8(..4) == 0;
    (length / 2).mul_f64(random.f64()) * if is_late { LATE } else { 1 }
}

/// Kills a client a moment after its first token went by; whether it was at work then.
async fn kill_after(mut child: Child, tap: &mut Wiretap, delay: Duration) -> Result<bool> {
    tokio::time::timeout(PATIENCE, tap.passes()).await.context("no token went by")?;
    // This is the moment that the seed has chosen.
    tokio::time::sleep(delay).await;
    let was_alive = child.try_wait()?.is_none();
    // It may have ended in between, which is as good.
    let _ = child.kill();
    child.wait()?;
    Ok(was_alive)
}

fn cycles() -> u64 {
    knob("KEYWAY_CRASH_CYCLES", if rdma::is_stock() { CYCLES_STOCK } else { CYCLES })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_killed_leave_nothing() -> Result<()> {
    if rdma::is_missing() {
        return Ok(());
    }
    let (cycles, mut random) = (cycles(), Rng::with_seed(seed("clients")));
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let mut server = serve(dir, OURS)?;
    let client = builder(&server.url).retry(RetryPolicy::NONE).build()?;
    client.create_bucket(BUCKET).await?;
    let object = payload(2, OBJECT_BYTES);
    std::fs::write(dir.join("object"), &object)?;
    client.put_object(BUCKET, "small").body(payload(1, SMALL_BYTES)).send().await?;
    let pace = pace(&client, &object).await?;
    server.settles().await?;
    // The client keeps buffers registered for a while, which is not about sessions.
    let held = || -> Result<(String, String)> {
        Ok((kernel_holds("rxe0")?, without_regions(&kernel_holds("rxe1")?)))
    };
    let at_first = held()?;

    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let watching = tokio::spawn(bystander(client.clone(), Arc::clone(&stop), Arc::clone(&served)));
    let (mut get_tap, mut put_tap) = (Wiretap::of(&server.url)?, Wiretap::of(&server.url)?);
    let (started, mut at_work, mut served_at_least) = (Instant::now(), 0, u64::MAX);
    for cycle in 0..cycles {
        let before = served.load(Ordering::Relaxed);
        get_tap.clear();
        put_tap.clear();
        let target = format!("s3://{BUCKET}/put-{cycle}");
        let get = victim(dir, &get_tap.url, &["get", &format!("s3://{BUCKET}/large"), "got"])?;
        let put = victim(dir, &put_tap.url, &["put", "object", &target])?;
        let (get_dies, put_dies) =
            (moment(&mut random, pace.length(false)), moment(&mut random, pace.length(true)));
        let (got, put) = tokio::join!(
            kill_after(get, &mut get_tap, get_dies),
            kill_after(put, &mut put_tap, put_dies)
        );
        at_work += u64::from(got?) + u64::from(put?);
        served_at_least = served_at_least.min(served.load(Ordering::Relaxed) - before);
        ensure!(server.lives(), "cycle {cycle}: the server is gone");
        ensure!(!watching.is_finished(), "cycle {cycle}: the bystander was hurt");
    }
    stop.store(true, Ordering::Relaxed);
    watching.await?.context("the bystander")?;
    println!(
        "{} clients killed, {at_work} of them at work, in {:?}; the bystander was served {} times",
        2 * cycles,
        started.elapsed(),
        served.load(Ordering::Relaxed),
    );
    ensure!(at_work * 2 > cycles, "most clients had ended before they were killed");
    ensure!(served_at_least > 0, "the bystander was not served in every cycle");

    // Transfers, buffers and sessions: nothing is left but what was there at first.
    server.settles().await?;
    eventually(|| match held() {
        Ok(now) if now == at_first => Ok(()),
        now => Err(format!("the kernel holds {now:?}, at first {at_first:?}")),
    })
    .await?;
    let mut whole = 0;
    for cycle in 0..cycles {
        whole += u64::from(is_whole(&client, &format!("put-{cycle}"), &object).await?);
    }
    println!("{whole} of {cycles} objects were there, whole; the others were not");
    ensure!(client.get_object(BUCKET, "large").bytes().await?.target == object);
    drop(client);
    server.terminate()?;
    let secrets = get_tap.secrets().into_iter().chain(put_tap.secrets()).collect();
    tells_nothing(&server.log()?, &secrets).context("the server's log")?;
    tells_nothing(&std::fs::read_to_string(dir.join("victims.log"))?, &secrets)?;
    kernel_is_idle()
}

/// What the kernel holds of an adapter, but for its registrations.
fn without_regions(held: &str) -> String {
    let fields: Vec<&str> = held.split_whitespace().collect();
    let kept = fields.iter().enumerate().filter(|(at, field)| {
        let of_regions = at.checked_sub(1).is_some_and(|before| fields[before] == "mr");
        **field != "mr" && !of_regions
    });
    kept.map(|(_, field)| *field).collect::<Vec<_>>().join(" ")
}

/// Whether the object is there; if so, all of it must be.
async fn is_whole(client: &Client, key: &str, expected: &[u8]) -> Result<bool> {
    match client.get_object(BUCKET, key).bytes().await {
        Ok(got) => {
            ensure!(got.target == expected, "{key} has {} bytes, not those sent", got.bytes);
            Ok(true)
        }
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error).with_context(|| format!("reading {key}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_or_node_costs_no_byte() -> Result<()> {
    if rdma::is_missing() {
        return Ok(());
    }
    // Gateway and node in turns.
    let (cycles, mut random) = (2 * cycles(), Rng::with_seed(seed("service")));
    let dir = tempfile::tempdir()?;
    let mut split = Split::start(dir.path(), &node_settings(), OURS)?;
    let mut tap = Wiretap::of(&split.gateway.url)?;
    let client = builder(&tap.url).build()?;
    client.create_bucket(BUCKET).await?;
    let object = Arc::new(payload(3, OBJECT_BYTES));
    let pace = pace(&client, &object).await?;
    let at_first = kernel_holds("rxe0")?;

    let (mut watched, mut ends) = (Watched::none(), Ends::default());
    let (started, mut amid) = (Instant::now(), 0);
    for cycle in 0..cycles {
        let kills_gateway = cycle % 2 == 0;
        let put = (cycle % 3 == 1).then(|| format!("put-{cycle}"));
        let length = pace.length(put.is_some());
        let dies = moment(&mut random, length);
        let (caller, by) = match cycle % 5 {
            2 => (Caller::Hasty(length.mul_f64(0.2 + random.f64())), client.clone()),
            4 => (Caller::Patient, patient(&tap.url)?),
            _ => (Caller::Strict, client.clone()),
        };
        tap.clear();
        let under_way = tokio::spawn(transfer(by, caller, put.clone(), Arc::clone(&object)));
        tokio::time::timeout(PATIENCE, tap.passes()).await.context("no token went by")?;
        // This is the moment that the seed has chosen.
        tokio::time::sleep(dies).await;
        amid += u64::from(!under_way.is_finished());
        let process = if kills_gateway { &mut split.gateway } else { &mut split.node };
        process.kill();
        tokio::task::block_in_place(|| process.restart())?;
        let ended = tokio::time::timeout(PATIENCE, under_way).await;
        let (buffer, ended) = ended.context("the transfer did not end")???;
        ends.count(&ended)?;
        let gave_up = caller == Caller::Patient && ended.is_err();
        ensure!(!gave_up, "cycle {cycle}: retries did not help: {ended:?}");
        watched.add(buffer).with_context(|| format!("cycle {cycle}"))?;

        recovers(&client, &object).await.with_context(|| format!("cycle {cycle}: {ended:?}"))?;
        if let Some(key) = put {
            let is_there = is_whole(&client, &key, &object).await?;
            ensure!(is_there || ended.is_err(), "{key} was acknowledged and is gone");
        }
        watched.check().with_context(|| format!("cycle {cycle}"))?;
    }
    println!(
        "{cycles} kills of gateway or node, {amid} amid a transfer, in {:?}: {ends:?}",
        started.elapsed()
    );
    ensure!(amid * 3 > cycles, "too many transfers had ended before anybody was killed");
    split.node.settles().await?;
    eventually(|| match kernel_holds("rxe0") {
        Ok(now) if now == at_first => Ok(()),
        now => Err(format!("for the node the kernel holds {now:?}, at first {at_first:?}")),
    })
    .await?;
    watched.check()?;
    drop(client);
    split.gateway.terminate()?;
    split.node.terminate()?;
    let secrets = tap.secrets();
    tells_nothing(&split.gateway.log()?, &secrets).context("the gateway's log")?;
    tells_nothing(&split.node.log()?, &secrets).context("the node's log")?;
    kernel_is_idle()
}

/// A client for whom the transfer matters more than the path.
fn patient(url: &str) -> Result<Client> {
    let (attempts_max, pause) = (12, Duration::from_secs(1));
    let retry = RetryPolicy { attempts_max, backoff_base: pause, backoff_max: 2 * pause };
    // Any strength will do over HTTP.
    let builder = builder(url).require_strength(KeyStrength::Http).path(PathPolicy::Auto);
    Ok(builder.retry(retry).build()?)
}

/// Reads until it succeeds; whatever it succeeds with is right.
async fn recovers(client: &Client, expected: &[u8]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut memory = HostBuffer::zeroed(expected.len())?;
        match client.get_object(BUCKET, "large").into(memory.slice_mut(..)?).await {
            Ok(got) => {
                ensure!(got.target[..] == *expected, "wrong bytes after the restart");
                return Ok(());
            }
            Err(failed) if Instant::now() > deadline => bail!("{}", failed.error),
            Err(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_log_tells_a_key() -> Result<()> {
    if rdma::is_missing() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let mut server = serve(dir.path(), "trace")?;
    let mut secrets = talkative(&server.url).await?;
    server.terminate()?;
    let mut split = Split::start(dir.path(), &node_settings(), "trace")?;
    secrets.extend(talkative(&split.gateway.url).await?);
    split.gateway.terminate()?;
    split.node.terminate()?;

    ensure!(secrets.len() > 40, "only {} secrets went by", secrets.len());
    // That the search finds something, and that there is something to be searched.
    let token = secrets.iter().find(|secret| secret.starts_with("kw1:")).context("a token")?;
    let key = token.rsplit(':').next().context("its key")?;
    for planted in [token, key, &key.to_uppercase(), SECRET_KEY] {
        let found = tells_nothing(&format!("DEBUG said: \"{planted}\""), &secrets);
        ensure!(found.is_err(), "the search is blind");
    }
    for (whose, log) in [
        ("the server", server.log()?),
        ("the gateway", split.gateway.log()?),
        ("the node", split.node.log()?),
        ("the client", std::fs::read_to_string(client_log())?),
    ] {
        let lines = |level: &str| log.lines().filter(|line| line.contains(level)).count();
        let (trace, debug) = (lines(" TRACE "), lines(" DEBUG "));
        println!("{whose}: {trace} lines of trace, {debug} of debug, {} secrets", secrets.len());
        ensure!(debug > 0, "{whose} logged no detail; the last lines:\n{}", tail(&log, 20));
        tells_nothing(&log, &secrets).context(whose)?;
    }
    kernel_is_idle()
}

/// Transfers of all kinds, failures included: those are what logs are for. The secrets of it.
async fn talkative(url: &str) -> Result<BTreeSet<String>> {
    let tap = Wiretap::of(url)?;
    let client = builder(&tap.url).build()?;
    client.create_bucket(BUCKET).await?;
    for bytes in [1, 100_000, 3 << 20] {
        client.put_object(BUCKET, "object").body(payload(4, bytes)).send().await?;
        client.get_object(BUCKET, "object").bytes().await?;
    }
    let missing = client.get_object(BUCKET, "missing").bytes().await;
    ensure!(missing.is_err_and(|error| error.is_not_found()), "there is none");
    let mut memory = HostBuffer::zeroed(OBJECT_BYTES)?;
    client.put_object(BUCKET, "large").body(payload(4, OBJECT_BYTES)).send().await?;
    let late = client.get_object(BUCKET, "large").deadline(Duration::from_millis(200));
    let mut said = format!("{client:?}");
    if let Err(failed) = late.into(memory.slice_mut(..)?).await {
        said.push_str(&format!("\n{failed:?}\n{failed}"));
    }
    tells_nothing(&said, &tap.secrets()).context("what the client shows of itself")?;
    Ok(tap.secrets())
}

/// No word of a text is one of the secrets, and no part of it a token.
fn tells_nothing(text: &str, secrets: &BTreeSet<String>) -> Result<()> {
    for line in text.lines() {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
        let told = line.contains("kw1:")
            || line.contains(SECRET_KEY)
            || words.any(|word| secrets.contains(word));
        ensure!(!told, "a secret is told: {}", tail(line, 1));
    }
    Ok(())
}
