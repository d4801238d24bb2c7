//! What a tenant notices of another that floods the server. A measurement: it asserts little, and
//! is run by hand (`cargo test --test tenants fairness -- --ignored --nocapture`).

#![allow(clippy::print_stdout, reason = "what was measured is told")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::Credentials;
use serde_json::json;

use crate::world::{World, expect};

/// How long each case is looked at.
const CASE: Duration = Duration::from_secs(5);
/// Clients of the flood: ten times the quiet tenant's one, and each without a pause.
const FLOOD: usize = 10;
/// Between two requests of the quiet tenant.
const PAUSE: Duration = Duration::from_millis(5);

/// Latencies of the quiet tenant's reads, sorted.
fn looked_at(world: &World, quiet: &Credentials) -> Result<Vec<Duration>> {
    let mut s3 = world.s3(quiet);
    let mut took = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < CASE {
        let sent = Instant::now();
        let answer = s3.get("data", "small")?;
        took.push(sent.elapsed());
        expect(&answer, 200)?;
        std::thread::sleep(PAUSE);
    }
    took.sort_unstable();
    Ok(took)
}

fn at(took: &[Duration], share: usize) -> Duration {
    took[(took.len() * share / 100).min(took.len() - 1)]
}

fn told(name: &str, took: &[Duration], alone: &[Duration], flood: u64) {
    let (p50, p99) = (at(took, 50), at(took, 99));
    let times = p99.as_secs_f64() / at(alone, 99).as_secs_f64();
    let (count, rate) = (took.len(), flood as f64 / CASE.as_secs_f64());
    println!("{name}: {count} reads, p50 {p50:?}, p99 {p99:?} ({times:.2}), flood {rate:.0}/s");
}

#[test]
#[ignore = "a measurement of fifteen seconds"]
fn a_flood_beside_a_quiet_tenant() -> Result<()> {
    let world = World::start()?;
    let mut keys = Vec::new();
    for name in ["quiet", "loud"] {
        world.tenant(name)?;
        let key = world.key(name, None)?;
        expect(&world.s3(&key).create_bucket("data")?, 200)?;
        expect(&world.s3(&key).put("data", "small", &payload(1, 4 << 10))?, 200)?;
        keys.push(key);
    }
    let (quiet, loud) = (&keys[0], &keys[1]);
    let alone = looked_at(&world, quiet)?;
    told("alone", &alone, &alone, 0);
    for (name, limits) in [
        ("beside a flood", json!({})),
        ("beside a flood with a limit", json!({ "requests_per_second": 100 })),
    ] {
        world.put("tenants/loud", &json!({ "limits": limits }))?;
        let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
        let took = std::thread::scope(|scope| {
            for _ in 0..FLOOD {
                scope.spawn(|| {
                    // On a host of its own it would not take the server's processors.
                    let _ = rustix::process::nice(19);
                    let mut s3 = world.s3(loud);
                    while !stop.load(Ordering::Relaxed) {
                        if s3.get("data", "small").is_ok_and(|answer| answer.status == 200) {
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let took = looked_at(&world, quiet);
            stop.store(true, Ordering::Relaxed);
            took
        })?;
        told(name, &took, &alone, served.load(Ordering::Relaxed));
        ensure!(!took.is_empty());
    }
    Ok(())
}
