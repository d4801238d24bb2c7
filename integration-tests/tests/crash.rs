//! Goal: what was acknowledged survives a SIGKILL at any point, and nothing half-written shows.
//!
//! Method: actors write, overwrite, delete and complete multipart uploads concurrently, each
//! on keys of its own and noting every answer. The server is killed at a random moment and
//! started again on the same directory; then every key must hold its last acknowledged state
//! or the one request that was under way, whole. The actors go on from what was found.
//!
//! In one of two directories the actors also ask for answers from memory. Such a state may be lost
//! with the server, and then the last durable one must be back; once a flush was answered, it may
//! not.
//!
//! `KEYWAY_CRASH_CYCLES` sets the number of kills (`make crash CYCLES=n`), `KEYWAY_TEST_SEED`
//! replays the actors' choices and the moments of the kills; what the kernel does in between
//! is not replayed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

#[path = "crash/actor.rs"]
mod actor;
#[path = "crash/verify.rs"]
mod verify;

use std::time::{Duration, Instant};

use fastrand::Rng;
use keyway_integration_tests::seed::{knob, seed};
use keyway_integration_tests::server::Options;
use keyway_integration_tests::{S3, Server};

use actor::Actor;

/// The bucket that everything happens in.
const BUCKET: &str = "crash";
/// Directories that are crashed side by side.
const DIRECTORIES: u64 = 2;
/// Writers of each directory.
const ACTORS: u64 = 5;
/// The longest that a server lives under load.
const LIFE_LIMIT_MS: u64 = 250;
/// One cycle in so many is also killed while it recovers.
const RECOVERY_KILL_EVERY: u64 = 8;

#[test]
fn acknowledged_objects_survive_sigkill() {
    let cycles = knob("KEYWAY_CRASH_CYCLES", 200);
    let seed = seed("crash");
    let started = Instant::now();
    let (acknowledged, from_memory) = std::thread::scope(|scope| {
        let crashers: Vec<_> = (0..DIRECTORIES)
            .map(|n| {
                let random = Rng::with_seed(seed ^ n);
                scope.spawn(move || crash(random, cycles / DIRECTORIES, n % 2 == 1))
            })
            .collect();
        crashers
            .into_iter()
            .map(|crasher| crasher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .fold((0, 0), |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1))
    });
    println!(
        "{cycles} kills, {acknowledged} acknowledged writes, {from_memory} of them from memory, {:?}",
        started.elapsed()
    );
    // A server that refuses everything would survive anything.
    assert!(acknowledged > cycles, "only {acknowledged} writes were acknowledged");
    assert!(from_memory > cycles / 8, "only {from_memory} were acknowledged from memory");
}

/// Crashes one directory so many times and answers how many writes were acknowledged, and how
/// many of them from memory.
fn crash(mut random: Rng, cycles: u64, asks_memory: bool) -> (u64, u64) {
    let tier = if asks_memory { "node.tier.size_bytes = 268435456\n" } else { "" };
    let options = Options { config: tier.to_owned(), ..Options::default() };
    let mut server = Server::with(options).expect("the server starts");
    assert_eq!(S3::of(&server).create_bucket(BUCKET).expect("it answers").status, 200);
    let mut actors: Vec<Actor> =
        (0..ACTORS).map(|n| Actor::new(n, random.fork(), asks_memory)).collect();
    for cycle in 0..cycles {
        let life = Duration::from_micros(random.u64(1_000..LIFE_LIMIT_MS * 1_000));
        std::thread::scope(|scope| {
            for actor in &mut actors {
                let s3 = S3::of(&server);
                scope.spawn(move || actor.work(s3));
            }
            std::thread::sleep(life);
            server.kill();
        });
        if random.u64(..RECOVERY_KILL_EVERY) == 0 {
            let recovery = Duration::from_micros(random.u64(..60_000));
            server.start_and_kill(recovery).expect("the server can be started");
        }
        server.restart().expect("the server recovers");
        if let Err(lost) = verify::verify(&mut S3::of(&server), &mut actors) {
            panic!("cycle {cycle}, killed after {life:?}: {lost:#}");
        }
    }
    let sum = |count: fn(&Actor) -> u64| actors.iter().map(count).sum();
    (sum(|actor| actor.acknowledged), sum(|actor| actor.from_memory))
}
