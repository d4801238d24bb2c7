//! Targets that are down, slow, or refuse: nobody waits for them, and they get all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use keyway_integration_tests::S3;

use crate::receiver::{Got, Mode, Receiver};
use crate::scene::{config, etag, metric, put_rules, rule, wait_metric, world};
use crate::world::expect;

const CREATED: [&str; 1] = ["ObjectCreated:*"];

/// What was put, in order, by keys.
type Put = BTreeMap<String, Vec<String>>;

/// Overwrites some keys in turn.
fn put_some(s3: &mut S3, prefix: &str, rounds: usize, put: &mut Put) -> Result<()> {
    for round in 0..rounds {
        for key in 0..4 {
            let key = format!("{prefix}{key}");
            let before = put.get(&key).map_or(0, Vec::len);
            let body = format!("{key} {before} {round}");
            let etag = etag(&s3.put("data", &key, body.as_bytes())?)?;
            put.entry(key).or_default().push(etag);
        }
    }
    Ok(())
}

fn count(put: &Put) -> usize {
    put.values().map(Vec::len).sum()
}

/// Fails unless these came, each key's in their order; the same may have come again.
fn in_order(got: &[Got], put: &Put) -> Result<()> {
    for (key, etags) in put {
        let mut told: Vec<(&str, &str)> = Vec::new();
        for one in got.iter().filter(|one| one.key == *key) {
            let next = (&*one.sequencer, &*one.etag);
            if !told.contains(&next) {
                ensure!(told.last().is_none_or(|last| last.0 < next.0), "{key}: {told:?} {next:?}");
                told.push(next);
            }
        }
        let told: Vec<&str> = told.into_iter().map(|(_, etag)| etag).collect();
        ensure!(told == *etags, "{key}: {told:?} and not {etags:?}");
    }
    Ok(())
}

/// Goal: a target that is not there delays neither writers nor the other target; it gets all that
/// waits when it is back, whether the server was stopped meanwhile or killed.
#[test]
fn a_target_that_is_down_gets_all_later() -> Result<()> {
    let up = Receiver::start()?;
    let gone = Receiver::nowhere()?;
    let retry = "[notify]\nretry_max_ms = 500";
    let mut world = world(config(retry, &[("down", gone), ("up", up.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    let rules = [rule("up", &CREATED, "up/"), rule("down", &CREATED, "down/")];
    put_rules(&mut s3, "data", &rules)?;
    let (mut to_up, mut to_down) = (Put::new(), Put::new());
    let began = Instant::now();
    for graceful in [true, false] {
        let mut s3 = world.root();
        put_some(&mut s3, "down/", 5, &mut to_down)?;
        put_some(&mut s3, "up/", 5, &mut to_up)?;
        up.wait_for(count(&to_up))?;
        if graceful {
            world.server.terminate()?;
        } else {
            world.server.kill();
        }
        world.server.restart()?;
    }
    ensure!(began.elapsed() < Duration::from_secs(60), "somebody waited: {:?}", began.elapsed());
    in_order(&up.got(), &to_up)?;
    let waiting = count(&to_down) as u64;
    wait_metric(&world.server, "keyway_notify_backlog", "down", |count| count == waiting)?;
    wait_metric(&world.server, "keyway_notify_failed", "down", |count| count > 0)?;
    wait_metric(&world.server, "keyway_notify_oldest", "down", |seconds| seconds > 0)?;
    let back = Receiver::at(gone)?;
    in_order(&back.wait_for(count(&to_down))?, &to_down)?;
    wait_metric(&world.server, "keyway_notify_backlog", "down", |count| count == 0)?;
    ensure!(metric(&world.server, "keyway_notify_dropped", "down")? == 0);
    Ok(())
}

/// Goal: slow, hanging up, answering with errors: each is tried again, in order; writers do not
/// notice.
#[test]
fn a_target_that_is_poorly_delays_nobody() -> Result<()> {
    let receiver = Receiver::start()?;
    let retry = "[notify]\nretry_max_ms = 300";
    let world = world(config(retry, &[("hook", receiver.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    put_rules(&mut s3, "data", &[rule("hook", &CREATED, "")])?;
    let mut put = Put::new();
    for mode in [
        Mode::HangsUp,
        Mode::Answers(503),
        Mode::Answers(401),
        Mode::Answers(302),
        Mode::Slow(Duration::from_millis(200)),
    ] {
        let slow = matches!(mode, Mode::Slow(_));
        receiver.set(mode);
        let (before, began) = (receiver.attempts(), Instant::now());
        put_some(&mut s3, "", 2, &mut put)?;
        ensure!(began.elapsed() < Duration::from_secs(10), "writers waited: {:?}", began.elapsed());
        receiver.wait_for_attempts(before + 2)?;
        ensure!(slow || receiver.got().len() < count(&put));
    }
    receiver.set(Mode::Takes);
    in_order(&receiver.wait_for(count(&put))?, &put)
}

/// Goal: an event that its target refuses holds up its own key, and no other.
#[test]
fn a_refused_event_holds_up_its_key_alone() -> Result<()> {
    let receiver = Receiver::start()?;
    let retry = "[notify]\nretry_max_ms = 300";
    let world = world(config(retry, &[("hook", receiver.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    put_rules(&mut s3, "data", &[rule("hook", &CREATED, "")])?;
    receiver.set(Mode::Refuses("bad/", 400));
    let (mut bad, mut good) = (Put::new(), Put::new());
    for _ in 0..3 {
        put_some(&mut s3, "bad/", 1, &mut bad)?;
        put_some(&mut s3, "good/", 1, &mut good)?;
    }
    in_order(&receiver.wait_for(count(&good))?, &good)?;
    ensure!(receiver.got().len() == count(&good), "something refused was taken");
    receiver.set(Mode::Takes);
    in_order(&receiver.wait_for(count(&good) + count(&bad))?, &bad)
}

/// Goal: beyond the bound events are dropped and counted; no write fails.
#[test]
fn a_full_backlog_drops_and_counts() -> Result<()> {
    let receiver = Receiver::start()?;
    receiver.set(Mode::Answers(500));
    let bound = "[notify]\nbacklog_events_max = 5\nretry_max_ms = 200";
    let world = world(config(bound, &[("hook", receiver.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    put_rules(&mut s3, "data", &[rule("hook", &CREATED, "")])?;
    for n in 0..12 {
        expect(&s3.put("data", &n.to_string(), b"x")?, 200)?;
    }
    ensure!(metric(&world.server, "keyway_notify_dropped", "hook")? == 7);
    receiver.set(Mode::Takes);
    let mut got: Vec<String> = receiver.wait_for(5)?.into_iter().map(|got| got.key).collect();
    got.sort();
    ensure!(got == ["0", "1", "2", "3", "4"], "{got:?}");
    ensure!(world.server.log().contains("they are dropped"), "the log says nothing");
    Ok(())
}
