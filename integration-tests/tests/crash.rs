//! Goal: what was acknowledged survives a SIGKILL at any point, and nothing half-written shows.
//!
//! Method: actors write, overwrite, delete and complete multipart uploads concurrently, each
//! on keys of its own and noting every answer. The server is killed at a random moment and
//! started again on the same directory; then every key must hold its last acknowledged state
//! or the one request that was under way, whole. The actors go on from what was found.
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
    let acknowledged: u64 = std::thread::scope(|scope| {
        let crashers: Vec<_> = (0..DIRECTORIES)
            .map(|n| scope.spawn(move || crash(Rng::with_seed(seed ^ n), cycles / DIRECTORIES)))
            .collect();
        crashers
            .into_iter()
            .map(|crasher| crasher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum()
    });
    println!("{cycles} kills, {acknowledged} acknowledged writes, {:?}", started.elapsed());
    // A server that refuses everything would survive anything.
    assert!(acknowledged > cycles, "only {acknowledged} writes were acknowledged");
}

/// Crashes one directory so many times and answers how many writes were acknowledged.
fn crash(mut random: Rng, cycles: u64) -> u64 {
    let mut server = Server::start().expect("the server starts");
    assert_eq!(S3::of(&server).create_bucket(BUCKET).expect("it answers").status, 200);
    let mut actors: Vec<Actor> = (0..ACTORS).map(|n| Actor::new(n, random.fork())).collect();
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
    actors.iter().map(|actor| actor.acknowledged).sum()
}
