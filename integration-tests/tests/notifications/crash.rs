//! SIGKILL at any moment: what was acknowledged is told, and nothing that did not happen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;
use keyway_integration_tests::S3;
use keyway_integration_tests::seed::{knob, seed};

use crate::receiver::Receiver;
use crate::scene::{config, put_rules, rule, world};
use crate::world::expect;

/// Writers of each life.
const WRITERS: u64 = 3;

/// Puts objects until the server is gone; tells those that were acknowledged.
fn write(mut s3: S3, name: &str) -> BTreeMap<String, String> {
    let mut acknowledged = BTreeMap::new();
    for n in 0.. {
        let key = format!("{name}-{n}");
        let Ok(put) = s3.put("data", &key, key.as_bytes()) else { return acknowledged };
        if put.status != 200 {
            return acknowledged;
        }
        let etag = put.header("etag").unwrap_or_default().trim_matches('"').to_owned();
        acknowledged.insert(key, etag);
    }
    acknowledged
}

/// Goal: over kills, each acknowledged write is told at least once, and whatever is told is there.
#[test]
fn acknowledged_writes_are_told_after_sigkill() -> Result<()> {
    let kills = knob("KEYWAY_NOTIFY_KILLS", 8);
    let mut random = Rng::with_seed(seed("notifications"));
    let receiver = Receiver::start()?;
    let mut world = world(config("", &[("hook", receiver.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    put_rules(&mut s3, "data", &[rule("hook", &["ObjectCreated:*", "ObjectRemoved:*"], "")])?;
    let mut acknowledged = BTreeMap::new();
    for life in 0..kills {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let s3 = world.root();
                std::thread::spawn(move || write(s3, &format!("{life}-{writer}")))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(random.u64(50..400)));
        world.server.kill();
        for writer in writers {
            acknowledged.extend(writer.join().unwrap_or_default());
        }
        world.server.restart()?;
    }
    ensure!(acknowledged.len() > kills as usize, "too little was written");
    let got = receiver.wait(|got| {
        let told: BTreeSet<&str> = got.iter().map(|got| &*got.key).collect();
        acknowledged.keys().all(|key| told.contains(&**key))
    })?;
    let mut s3 = world.root();
    let mut checked = BTreeSet::new();
    for one in got {
        if let Some(etag) = acknowledged.get(&one.key) {
            ensure!(*etag == one.etag, "{one:?}");
        } else if checked.insert(one.key.clone()) {
            // Its answer was cut off: but then it is there.
            let there = s3.get("data", &one.key)?;
            expect(&there, 200)?;
            let etag = there.header("etag").unwrap_or_default().trim_matches('"');
            ensure!(etag == one.etag, "{one:?}");
        }
    }
    Ok(())
}
