//! Goal: whatever a peer sends, it gets S3's error, and nothing else happens: no 500, no panic,
//! no leak, no half-object.
//!
//! Method: a table of requests, most of them signed correctly and then broken in one place,
//! sent byte by byte to a real server. After every request the connection's fate is compared
//! with the table; at the end the server's log, memory and listing are inspected.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

#[path = "malformed/case.rs"]
mod case;
#[path = "malformed/framing.rs"]
mod framing;
#[path = "malformed/headers.rs"]
mod headers;
#[path = "malformed/multipart.rs"]
mod multipart;
#[path = "malformed/names.rs"]
mod names;
#[path = "malformed/peers.rs"]
mod peers;
#[path = "malformed/presigned.rs"]
mod presigned;
#[path = "malformed/signature.rs"]
mod signature;
#[path = "malformed/xml.rs"]
mod xml;

use case::World;
use keyway_integration_tests::Server;
use keyway_integration_tests::server::Options;

/// The table must not shrink unseen.
const CASES_AT_LEAST: usize = 150;
/// What the server may have grown by after the whole table. The largest body that the table
/// announces is 5 TiB, the largest that it sends 6 MiB.
const GROWTH_LIMIT_BYTES: u64 = 64 << 20;

#[test]
fn malformed_requests_get_s3s_errors_and_change_nothing() {
    // Short timeouts, so that slow peers are dismissed within the test's patience.
    // And nobody is slowed down who fails: the table does little else.
    let config = "[limits]\nheader_timeout_ms = 2000\nbody_stall_timeout_ms = 2000\n\
                  [auth]\nfailures_burst = 0\n";
    let options = Options { config: config.to_owned(), ..Options::default() };
    let mut server = Server::with(options).expect("the server starts");
    let world = World::new(&server);
    let before = world.keys();
    let memory_before = server.resident_bytes().unwrap();

    let table: Vec<case::Case> = [
        signature::cases(),
        presigned::cases(),
        headers::cases(),
        framing::cases(),
        xml::cases(),
        multipart::cases(),
        names::cases(),
        peers::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    assert!(table.len() >= CASES_AT_LEAST, "only {} cases", table.len());

    let mut failures = Vec::new();
    for case in &table {
        if let Err(why) = case.run(&world) {
            failures.push(format!("{}: {why}", case.name));
        }
        assert!(server.is_running(), "the server died of: {}", case.name);
    }
    println!("{} malformed requests", table.len());

    world.assert_canary();
    let (keys, uploads) = (world.keys(), world.uploads());
    if keys != before {
        failures.push(format!("the table changed what is stored: {keys:?}"));
    }
    if uploads != world.uploads_at_start() {
        failures.push(format!("the table left uploads behind: {uploads:?}"));
    }
    let grown = server.resident_bytes().unwrap().saturating_sub(memory_before);
    let log = server.log();
    let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked")).collect();
    assert!(panics.is_empty(), "{panics:#?}");
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), table.len(), failures.join("\n"));
    assert!(grown < GROWTH_LIMIT_BYTES, "the server grew by {grown} bytes");
}
