//! Goal: whoever dies in the middle of a transfer through a node's door, no other notices,
//! nothing leaks on either side, no PUT that was acknowledged is lost, and none is half there.
//!
//! Method: real processes of this host, with shared memory (`ipc-host`) and with a GPU's
//! (`ipc-gpu`; skipped where there is none). Client processes read
//! and write without a pause and meet SIGKILL at moments of the seed's choice, from their start
//! on, while a bystander is served; then gateways and nodes die under a client that lives on,
//! whose buffers are overwritten once they are back, and must stay so. In the end the node's
//! counters, its sessions, its mappings and its descriptors must be what they were at first, and
//! those of the surviving client, too; and what is taken of the GPU's memory.
//!
//! `KEYWAY_CRASH_CYCLES` sets the kills of each kind, `KEYWAY_TEST_SEED` replays their moments.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may give up, and speak"
)]

#[path = "ipc_crash/memory.rs"]
mod memory;
#[path = "common/survivor.rs"]
mod survivor;
#[path = "ipc_crash/victim.rs"]
mod victim;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use keyway_client::{Client, ClientBuilder, Credentials, PathPolicy, RdmaConfig, RetryPolicy};
use keyway_integration_tests::holdings::Holdings;
use keyway_integration_tests::process::{
    ACCESS_KEY, Process, SECRET_KEY, Split, eventually, serve,
};
use keyway_integration_tests::seed::{knob, payload, seed};
use tokio::sync::Mutex;

use memory::{Buffer, Place, transfer};
use survivor::{Caller, Ends, Lent as _, Pace, Watched};
use victim::{Told, Victim};

const BUCKET: &str = "crash";
/// Kills of each kind, unless said otherwise.
const CYCLES: u64 = 20;
/// What is moved when a gateway or a node dies.
const OBJECT_BYTES: usize = 32 << 20;
/// What the bystander reads.
const SMALL_BYTES: usize = 1 << 20;
/// How long anything may take, here.
const PATIENCE: Duration = Duration::from_secs(60);
/// A read that takes this long was held up by somebody's death.
const STALL: Duration = Duration::from_secs(5);
/// How much more of a GPU's memory may be taken in the end: what drivers keep for themselves.
const DRIVER_MIB: u64 = 64;

/// The tests look at what this process holds: one at a time.
static TURN: Mutex<()> = Mutex::const_new(());

fn cycles() -> u64 {
    knob("KEYWAY_CRASH_CYCLES", CYCLES)
}

fn builder(url: &str, place: Place) -> ClientBuilder {
    let mut rdma = RdmaConfig::default();
    rdma.pause = Duration::from_millis(100);
    Client::builder()
        .endpoint(url)
        .credentials(Credentials::new(ACCESS_KEY, SECRET_KEY))
        .rdma(rdma)
        .path(PathPolicy::Require(place.path()))
}

fn settings() -> Vec<String> {
    vec!["--set=node.ipc.mode=require".to_owned()]
}

/// Somebody who reads while others die, and may not notice. Says how often it was served, and how
/// long it waited at most.
async fn bystander(client: Client, place: Place, stop: Arc<AtomicBool>) -> Result<(u64, Duration)> {
    let mut memory = Buffer::new(place, SMALL_BYTES)?;
    let expected = payload(1, SMALL_BYTES);
    let (mut served, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let got = memory.fetch(client.get_object(BUCKET, "small")).await?;
        longest = longest.max(asked.elapsed());
        ensure!(memory.content()? == expected, "other bytes");
        ensure!(got.path == place.path() && got.retries == 0, "{}", got.path);
        served += 1;
        // Two cores are for those who are to die, too.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((served, longest))
}

/// A client that says goodbye, so that the node has made all that it keeps.
async fn first_client(url: &str, place: Place, key: &str, object: &[u8]) -> Result<Pace> {
    let client = builder(url, place).build()?;
    client.create_bucket(BUCKET).await?;
    let mut buffer = Buffer::holding(place, object)?;
    Pace::of(async |is_put| {
        if is_put {
            client.put_object(BUCKET, key).body(buffer.body()?).send().await?;
        } else {
            buffer.fetch(client.get_object(BUCKET, key)).await?;
        }
        Ok(())
    })
    .await
}

/// What a node holds when nobody uses it.
async fn at_rest(process: &Process) -> Result<Holdings> {
    process.settles().await?;
    eventually(|| match process.metric("keyway_session_open") {
        Ok(0.0) => Ok(()),
        found => Err(format!("{found:?} sessions are open")),
    })
    .await?;
    Holdings::of(process.pid()?)
}

/// Waits until a process holds no more than it did.
async fn returns(pid: u32, at_first: &Holdings, whose: &str) -> Result<()> {
    eventually(|| match Holdings::of(pid) {
        Ok(now) if now.fits(at_first) => Ok(()),
        now => Err(format!("{whose} holds {now:?}, at first {at_first:?}")),
    })
    .await
}

/// Waits until no more of the GPU is taken than was.
async fn gpu_returns(place: Place, taken_mib: u64) -> Result<()> {
    eventually(|| match place.taken_mib() {
        Ok(now) if now <= taken_mib + DRIVER_MIB => Ok(()),
        now => Err(format!("{now:?} MiB of the GPU are taken, at first {taken_mib}")),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_killed_leave_nothing() -> Result<()> {
    match Victim::called()? {
        // This process is one of those.
        Some(victim) => victim.live().await,
        None => clients_die(Place::Host).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_gpu_memory_that_are_killed_leave_nothing() -> Result<()> {
    clients_die(Place::Gpu).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_or_node_costs_no_byte() -> Result<()> {
    service_dies(Place::Host).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_or_node_costs_no_byte_of_a_gpu() -> Result<()> {
    service_dies(Place::Gpu).await
}

async fn clients_die(place: Place) -> Result<()> {
    let _turn = TURN.lock().await;
    if place.is_missing("clients_with_gpu_memory_that_are_killed_leave_nothing") {
        return Ok(());
    }
    let (cycles, mut random) = (cycles(), Rng::with_seed(seed("clients")));
    let dir = tempfile::tempdir()?;
    let mut server = serve(dir.path(), &settings())?;
    first_client(&server.url, place, "small", &payload(1, SMALL_BYTES)).await?;
    let (at_first, taken_mib) = (at_rest(&server).await?, place.taken_mib()?);

    let client = builder(&server.url, place).retry(RetryPolicy::NONE).build()?;
    let stop = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(bystander(client.clone(), place, Arc::clone(&stop)));
    let (started, mut told, mut amid) = (Instant::now(), Told::default(), 0);
    for cycle in 0..cycles {
        let victim = Victim::start(dir.path(), &server.url, place, cycle, random.u64(..))?;
        let ended = victim.dies(victim::moment(&mut random)).await;
        let ended = ended.with_context(|| format!("cycle {cycle}"))?;
        amid += u64::from(ended.was_amid());
        told.add(ended);
        ensure!(server.lives(), "cycle {cycle}: the server is gone");
        ensure!(!watching.is_finished(), "cycle {cycle}: the bystander was hurt");
    }
    stop.store(true, Ordering::Relaxed);
    let (served, longest) = watching.await?.context("the bystander")?;
    println!(
        "{cycles} clients killed, {amid} of them amid transfers, in {:?}; {told}; the bystander \
         was served {served} times, and waited {longest:?} at most",
        started.elapsed(),
    );
    ensure!(amid * 2 > cycles, "most clients were idle when they were killed");
    ensure!(served >= cycles && longest < STALL, "the bystander was held up");
    server.settles().await?;
    told.holds(&client, place).await?;
    drop(client);
    at_rest(&server).await?;
    returns(server.pid()?, &at_first, "the node").await?;
    gpu_returns(place, taken_mib).await?;
    server.terminate()
}

async fn service_dies(place: Place) -> Result<()> {
    let _turn = TURN.lock().await;
    if place.is_missing("a_killed_gateway_or_node_costs_no_byte_of_a_gpu") {
        return Ok(());
    }
    let (cycles, mut random) = (cycles(), Rng::with_seed(seed("service")));
    let dir = tempfile::tempdir()?;
    let mut split = Split::start(dir.path(), &settings(), "info")?;
    let object = Arc::new(payload(3, OBJECT_BYTES));
    let pace = first_client(&split.gateway.url, place, "large", &object).await?;
    let (node_at_first, taken_mib) = (at_rest(&split.node).await?, place.taken_mib()?);
    let we = std::process::id();
    // A client that is gone holds nothing that a node could map, and watches nobody.
    let sockets = Holdings::of(we)?.sockets;
    let ours_at_first = Holdings { sockets, ..Holdings::default() };

    let client = builder(&split.gateway.url, place).retry(RetryPolicy::NONE).build()?;
    let (mut watched, mut ends) = (Watched::none(), Ends::default());
    let (started, mut amid) = (Instant::now(), 0);
    for cycle in 0..cycles {
        let kills_gateway = cycle % 4 == 0;
        let put = (cycle % 3 == 1).then(|| format!("put-{cycle}"));
        let (caller, by) = match cycle % 5 {
            2 => (Caller::Hasty(Duration::from_millis(random.u64(10..200))), client.clone()),
            4 => (Caller::Patient, patient(&split.gateway.url, place)?),
            _ => (Caller::Strict, client.clone()),
        };
        let under_way = tokio::spawn(transfer(by, place, caller, put.clone(), Arc::clone(&object)));
        // This is the moment that the seed has chosen.
        tokio::time::sleep(pace.length(put.is_some()).mul_f64(random.f64())).await;
        amid += u64::from(!under_way.is_finished());
        let process = if kills_gateway { &mut split.gateway } else { &mut split.node };
        process.kill();
        tokio::task::block_in_place(|| process.restart())?;
        let ended = tokio::time::timeout(PATIENCE, under_way).await;
        let (buffer, ended) = ended.context("the transfer did not end")???;
        ends.count(&ended).with_context(|| format!("cycle {cycle}"))?;
        let gave_up = caller == Caller::Patient && ended.is_err();
        ensure!(!gave_up, "cycle {cycle}: retries did not help: {ended:?}");
        watched.add(buffer).with_context(|| format!("cycle {cycle}"))?;

        recovers(&client, place, &object)
            .await
            .with_context(|| format!("cycle {cycle}: {ended:?}"))?;
        if let Some(key) = put {
            let is_there = is_whole(&client, place, &key, &object).await?;
            ensure!(is_there || ended.is_err(), "{key} was acknowledged and is gone");
        }
        watched.check().with_context(|| format!("cycle {cycle}"))?;
    }
    println!(
        "{cycles} kills of gateway or node, {amid} amid a transfer, in {:?}: {ends:?}",
        started.elapsed()
    );
    ensure!(amid * 2 > cycles, "most transfers had ended before anybody was killed");
    watched.check()?;
    drop((watched, client));
    at_rest(&split.node).await?;
    returns(split.node.pid()?, &node_at_first, "the node").await?;
    returns(we, &ours_at_first, "the client").await?;
    gpu_returns(place, taken_mib).await?;
    split.gateway.terminate()?;
    split.node.terminate()
}

/// A client for whom the transfer matters more than the path.
fn patient(url: &str, place: Place) -> Result<Client> {
    let (attempts_max, pause) = (12, Duration::from_millis(500));
    let retry = RetryPolicy { attempts_max, backoff_base: pause, backoff_max: 4 * pause };
    Ok(builder(url, place).path(PathPolicy::Auto).retry(retry).build()?)
}

/// Reads through the door until it succeeds; whatever it succeeds with is right.
async fn recovers(client: &Client, place: Place, expected: &[u8]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut memory = Buffer::new(place, expected.len())?;
    loop {
        match memory.fetch(client.get_object(BUCKET, "large")).await {
            Ok(got) => {
                ensure!(memory.content()? == expected, "wrong bytes after the restart");
                ensure!(got.path == place.path(), "{}", got.path);
                return Ok(());
            }
            Err(error) if Instant::now() > deadline => bail!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Whether the object is there; if so, all of it must be.
async fn is_whole(client: &Client, place: Place, key: &str, expected: &[u8]) -> Result<bool> {
    let mut memory = Buffer::new(place, expected.len())?;
    match memory.fetch(client.get_object(BUCKET, key)).await {
        Ok(got) => {
            let is_right = got.bytes == expected.len() as u64 && memory.content()? == expected;
            ensure!(is_right, "{key} has {} bytes, not those sent", got.bytes);
            Ok(true)
        }
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error).with_context(|| format!("reading {key}")),
    }
}
