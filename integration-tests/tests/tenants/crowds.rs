//! Many who want nothing but to be in the way.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::Signer;
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::wire::Request;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::world::{World, expect};

/// More than the server lets in at a time.
const IDLE: usize = 10_000;
/// Who sends a body, a byte at a time.
const SLOW: usize = 50;
/// What others do meanwhile.
const REQUESTS: usize = 200;

/// As many descriptors as the system allows; whether they are enough, there and here.
fn descriptors() -> Result<bool> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.is_none_or(|count| count > IDLE as u64 + 1000))
}

/// A connection that says nothing, or begins to.
fn idle(world: &World, number: usize) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&world.server.address(), Duration::from_secs(30))?;
    if number % 2 == 1 {
        stream.write_all(b"GET /data/small HTTP/1.1\r\nHost: ")?;
    }
    Ok(stream)
}

/// A PUT that is signed well, and the first byte of its body.
fn slow(world: &World, number: usize) -> Result<TcpStream> {
    let mut request = Request::new("PUT", format!("/data/slow-{number}"))
        .header("host", world.server.authority())
        .body(payload(1, 100_000));
    Signer::new(world.server.credentials()).sign(&mut request);
    let head = request.bytes();
    let head = &head[..head.len() - 99_999];
    let mut stream = TcpStream::connect(world.server.address())?;
    stream.write_all(head)?;
    Ok(stream)
}

/// How many the server has sent away, as its metrics tell.
fn sent_away(world: &World) -> Result<u64> {
    let metrics = world.server.metrics()?;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("keyway_server_connections_sent_away"))
        .context("the metric")?;
    Ok(line.rsplit(' ').next().context("a value")?.parse::<f64>()? as u64)
}

/// Ten thousand connections that say nothing or half a header, and fifty that send a body by the
/// byte: others are served, over connections that they have and over new ones.
#[test]
fn a_crowd_that_waits_keeps_nobody_out() -> Result<()> {
    if !descriptors()? {
        skipped("a_crowd_that_waits_keeps_nobody_out", "too few file descriptors are allowed");
        return Ok(());
    }
    let world = World::start()?;
    let mut kept = world.root();
    expect(&kept.create_bucket("data")?, 200)?;
    expect(&kept.put("data", "small", b"served")?, 200)?;
    let mut slow: Vec<_> = (0..SLOW).map(|number| slow(&world, number)).collect::<Result<_>>()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let senders = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for stream in &mut slow {
                    // A byte in time is all that is asked for, for a while.
                    let _ = stream.write_all(b"x");
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let outcome = (|| {
            let crowd: Vec<_> =
                (0..IDLE).map(|number| idle(&world, number)).collect::<Result<_>>()?;
            for _ in 0..REQUESTS {
                expect(&kept.get("data", "small")?, 200)?;
                let answer = world.root().get("data", "small")?;
                ensure!(answer.status == 200 && answer.body == b"served");
            }
            let gone = sent_away(&world)?;
            ensure!(gone > 0, "nobody was sent away");
            // Whoever was sent away was told so, by the end of its connection.
            let mut ended = 0;
            for mut stream in crowd {
                stream.set_nonblocking(true)?;
                ended += u64::from(!matches!(
                    stream.read(&mut [0; 64]),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock
                ));
            }
            ensure!(ended >= gone, "{ended} of {gone} that were sent away have ended");
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        drop(senders.join());
        outcome
    })
}
