//! Goal: the rules of keys hold where everything happens at once, for longer than a checker can
//! follow: many transfers, sessions that break and are opened again, windows whose keys wear out.
//!
//! Method: a simulation without threads, clocks or sockets. Events wait in a heap under virtual
//! time; all chance comes from one seed. Around the real [`Holder`] and [`Worker`] it plays
//! clients with several sessions, a gateway, a node, a network that delays, loses, repeats and
//! reorders, and adapters in some detail: queue pairs that execute in order and fail as a
//! whole, windows with tags of eight bits, bytes that land a while after their key was checked,
//! READs that an invalidation overtakes, processes whose memory the kernel takes back. After
//! each event all rules are looked at. Faults then stop: whatever was begun must end within a
//! bound of events, and every client must succeed again.
//!
//! `KEYWAY_SIM_SEED=n` replays one seed, `KEYWAY_SIM_SEEDS` sets their number. A failure tells
//! the seed and the last events. Drivers with a flaw must be caught.
//!
//! [`Holder`]: keyway_proto::key::Holder
//! [`Worker`]: keyway_proto::key::Worker

#![allow(clippy::print_stdout, reason = "a test may speak")]

#[path = "key_simulation/adapter.rs"]
mod adapter;
#[path = "key_simulation/client.rs"]
mod client;
#[path = "key_simulation/faults.rs"]
mod faults;
#[path = "key_simulation/service.rs"]
mod service;
#[path = "key_simulation/world.rs"]
mod world;

use std::time::Instant;

use faults::{Flaw, Weather};
use world::{Run, World};

/// Seeds where the environment does not say how many.
const SEEDS: u64 = 2_000;
/// Seeds within which a flaw must show.
const FLAW_SEEDS: u64 = 2_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

#[test]
fn every_rule_holds_under_every_seed() {
    let seeds = match number("KEYWAY_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KEYWAY_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let (started, count) = (Instant::now(), seeds.end - seeds.start);
    let mut all = Run::default();
    for seed in seeds {
        match World::new(seed, Weather::of(seed), Flaw::None).run() {
            Ok(run) => all.add(&run),
            Err(failure) => panic!("KEYWAY_SIM_SEED={seed} replays this\n{failure}"),
        }
    }
    println!("{count} seeds: {all} in {:?}", started.elapsed());
    // A world in which little happens would prove little.
    assert!(count < 100 || all.is_eventful(), "too little happened: {all}");
}

#[test]
fn a_seed_replays_event_by_event() {
    for seed in [1, 2, 3] {
        let run = || World::new(seed, Weather::of(seed), Flaw::None).run().expect("rules hold");
        assert_eq!(run(), run());
    }
}

#[test]
fn each_flaw_is_caught() {
    for (flaw, rule) in [
        (Flaw::ReleaseOnAnswer, "no key is usable after its buffer was released"),
        (Flaw::SameKeyAgain, "a key opens its own transfer's buffer only"),
        (Flaw::RevokeWhateverIsThere, "a revocation ends its own key only"),
        (Flaw::ErrorForDestruction, "no byte moves after the buffer was released"),
        (Flaw::GrantsOutliveRestart, "no grant executes twice"),
    ] {
        let caught = (0..FLAW_SEEDS).find_map(|seed| {
            let failure = World::new(seed, Weather::of(seed), flaw).run().err()?;
            (failure.rule == rule).then_some(seed)
        });
        let seed = caught.unwrap_or_else(|| panic!("{flaw:?} went unnoticed"));
        println!("{flaw:?}: caught under seed {seed} by '{rule}'");
    }
}
