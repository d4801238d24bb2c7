//! Quotas: what a tenant and its users may store.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use keyway_integration_tests::s3::copy_source;
use keyway_integration_tests::server::binary;
use keyway_integration_tests::sigv4::{Signer, UNSIGNED};
use keyway_integration_tests::wire::{Connection, Request};
use serde_json::json;

use crate::world::{World, expect, refused};

const KIB: usize = 1024;

/// Fails unless the tenant is told to store this much.
fn stores(world: &World, bytes: usize, objects: usize) -> Result<()> {
    let told = world.admin(&["tenant", "show", "one"])?;
    ensure!(told["usage"] == json!({ "bytes": bytes, "objects": objects }), "{}", told["usage"]);
    Ok(())
}

/// Goal: no kind of write gets a tenant past its quota, what goes makes room, and what is told of
/// its usage is so, after a crash too.
#[test]
fn a_tenant_stores_no_more_than_it_may() -> Result<()> {
    let mut world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    let mut s3 = world.s3(&owner);
    expect(&s3.create_bucket("data")?, 200)?;
    stores(&world, 0, 0)?;
    let set = world.admin(&["tenant", "set", "one", "--bytes", "1MiB", "--objects", "4"])?;
    ensure!(set["quota"] == json!({ "bytes": 1 << 20, "objects": 4 }), "{set}");
    let body = |kib: usize| vec![7; kib * KIB];
    let over =
        |answer: &keyway_integration_tests::wire::Response| refused(answer, 403, "QuotaExceeded");
    expect(&s3.put("data", "a", &body(600))?, 200)?;
    over(&s3.put("data", "b", &body(600))?)?;
    expect(&s3.put("data", "a", &body(1024))?, 200)?;
    over(&s3.put("data", "a", &body(1025))?)?;
    over(&s3.put("data", "b", b"x")?)?;
    stores(&world, 1024 * KIB, 1)?;
    expect(&s3.put("data", "a", &body(400))?, 200)?;
    // A copy counts, though its bytes are shared.
    let copy = |to: &str| {
        Request::object("PUT", "data", to).header("x-amz-copy-source", copy_source("data", "a"))
    };
    expect(&s3.send(copy("b"))?, 200)?;
    over(&s3.send(copy("c"))?)?;
    expect(&s3.delete("data", "b")?, 204)?;
    // Parts count from their upload on; what is made of them is no more.
    let upload = s3.create_upload("data", "m")?;
    let etag = s3.put_part("data", "m", &upload, 1, &body(500))?;
    let part = Request::object("PUT", "data", "m")
        .query("partNumber", "2")
        .query("uploadId", &upload)
        .body(body(500));
    over(&s3.send(part)?)?;
    stores(&world, 900 * KIB, 2)?;
    expect(&s3.complete_upload("data", "m", &upload, &[(1, etag)])?, 200)?;
    stores(&world, 900 * KIB, 2)?;
    let upload = s3.create_upload("data", "n")?;
    s3.put_part("data", "n", &upload, 1, &body(100))?;
    stores(&world, 1000 * KIB, 3)?;
    let abort = Request::object("DELETE", "data", "n").query("uploadId", &upload);
    expect(&s3.send(abort)?, 204)?;
    stores(&world, 900 * KIB, 2)?;
    // Objects are counted, too.
    for (key, fits) in [("x", true), ("y", true), ("z", false)] {
        let put = s3.put("data", key, b"")?;
        if fits { expect(&put, 200)? } else { over(&put)? }
    }
    stores(&world, 900 * KIB, 4)?;
    drop(s3);
    world.server.kill();
    world.server.restart()?;
    stores(&world, 900 * KIB, 4)?;
    // Without a quota there is room; what the command does not name stays as it is.
    let set = world.admin(&["tenant", "set", "one", "--bytes", "none", "--sessions", "3"])?;
    ensure!(set["quota"] == json!({ "bytes": null, "objects": 4 }), "{set}");
    ensure!(set["limits"]["sessions"] == 3, "{set}");
    let mut s3 = world.s3(&owner);
    expect(&s3.put("data", "a", &body(2000))?, 200)?;
    stores(&world, 2500 * KIB, 4)
}

/// Goal: a user stores no more than it may, by no kind of write, with its keys or its sessions, while
/// its tenant and others in it go on; and what is told of its usage is so.
#[test]
fn a_user_stores_no_more_than_it_may() -> Result<()> {
    let mut world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    let everything = r#"{"Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}"#;
    world.put("tenants/one/policies/all", &json!({ "document": everything }))?;
    for user in ["anna", "bert"] {
        world.put(&format!("tenants/one/users/{user}"), &json!({ "policies": ["all"] }))?;
    }
    let admin = |world: &World, arguments: &[&str]| {
        let user = ["user", "--tenant", "one"];
        world.admin(&[user.as_slice(), arguments].concat())
    };
    let set = admin(&world, &["set", "anna", "--bytes", "1MiB", "--objects", "3"])?;
    ensure!(set["quota"] == json!({ "bytes": 1 << 20, "objects": 3 }), "{set}");
    let stores = |world: &World, user: &str, bytes: usize, objects: usize| {
        let told = admin(world, &["show", user])?;
        let expected = json!({ "bytes": bytes, "objects": objects });
        ensure!(told["usage"] == expected, "{user}: {}", told["usage"]);
        Ok(())
    };
    let (anna, bert) = (world.key("one", Some("anna"))?, world.key("one", Some("bert"))?);
    let (mut tenants, mut annas) = (world.s3(&owner), world.s3(&anna));
    let mut berts = world.s3(&bert);
    expect(&tenants.create_bucket("data")?, 200)?;
    let body = |kib: usize| vec![7; kib * KIB];
    let over =
        |answer: &keyway_integration_tests::wire::Response| refused(answer, 403, "QuotaExceeded");
    expect(&annas.put("data", "a", &body(600))?, 200)?;
    over(&annas.put("data", "b", &body(600))?)?;
    expect(&berts.put("data", "b", &body(600))?, 200)?;
    expect(&tenants.put("data", "c", &body(600))?, 200)?;
    stores(&world, "anna", 600 * KIB, 1)?;
    stores(&world, "bert", 600 * KIB, 1)?;
    // What another one stored gives no room when it is replaced, and leaves that one's usage.
    over(&annas.put("data", "b", &body(500))?)?;
    expect(&annas.put("data", "b", &body(400))?, 200)?;
    stores(&world, "anna", 1000 * KIB, 2)?;
    stores(&world, "bert", 0, 0)?;
    // A copy is its maker's, parts are those of who sent them, and an upload is who completes it.
    let copy =
        Request::object("PUT", "data", "d").header("x-amz-copy-source", copy_source("data", "a"));
    over(&annas.send(copy.clone())?)?;
    expect(&berts.send(copy)?, 200)?;
    stores(&world, "bert", 600 * KIB, 1)?;
    let upload = annas.create_upload("data", "m")?;
    let part = |number: &str, kib| {
        Request::object("PUT", "data", "m")
            .query("partNumber", number)
            .query("uploadId", &upload)
            .body(body(kib))
    };
    over(&annas.send(part("1", 100))?)?;
    let etag = berts.put_part("data", "m", &upload, 1, &body(100))?;
    over(&annas.complete_upload("data", "m", &upload, &[(1, etag.clone())])?)?;
    expect(&berts.complete_upload("data", "m", &upload, &[(1, etag)])?, 200)?;
    stores(&world, "bert", 700 * KIB, 2)?;
    // Whoever deletes it.
    expect(&tenants.delete("data", "a")?, 204)?;
    stores(&world, "anna", 400 * KIB, 1)?;
    expect(&annas.put("data", "e", b"")?, 200)?;
    expect(&annas.put("data", "f", b"")?, 200)?;
    over(&annas.put("data", "g", b"")?)?;
    drop((tenants, annas, berts));
    world.server.kill();
    world.server.restart()?;
    stores(&world, "anna", 400 * KIB, 3)?;
    stores(&world, "bert", 700 * KIB, 2)?;
    // What a command does not name stays.
    let set = admin(&world, &["set", "anna", "--objects", "none", "--sessions", "3"])?;
    ensure!(set["quota"] == json!({ "bytes": 1 << 20, "objects": null }), "{set}");
    expect(&world.s3(&anna).put("data", "g", b"")?, 200)
}

/// Goal: limits stand in files like all else, and what is changed by one command is kept by others.
#[test]
fn limits_stand_in_files() -> Result<()> {
    let world = World::start()?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("accounts.toml");
    let text = "[tenants.one]\n\
                limits = { requests_per_second = 70, keys_in_flight = 2 }\n\
                quota = { bytes = 5000 }\n\
                [tenants.one.users.anna]\n\
                limits = { sessions = 1 }\n\
                quota = { objects = 9 }\n";
    std::fs::write(&file, text)?;
    let root = world.server.credentials();
    for _ in 0..2 {
        let applied = Command::new(binary()?)
            .args(["admin", "apply", "--file"])
            .arg(&file)
            .env("KEYWAY_ENDPOINT", world.server.url())
            .env("KEYWAY_ACCESS_KEY", &root.access_key)
            .env("KEYWAY_SECRET_KEY", &root.secret_key)
            .output()?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    }
    world.admin(&["tenant", "suspend", "one"])?;
    world.admin(&["tenant", "set", "one", "--requests-per-second", "80"])?;
    let told = world.admin(&["tenant", "show", "one"])?;
    let limits = json!({
        "requests_per_second": 80,
        "bytes_per_second": null,
        "sessions": null,
        "keys_in_flight": 2,
    });
    ensure!(told["limits"] == limits && told["state"] == "suspended", "{told}");
    ensure!(told["quota"] == json!({ "bytes": 5000, "objects": null }), "{told}");
    world.admin(&["user", "--tenant", "one", "set", "anna", "--bytes-per-second", "2MiB"])?;
    world.admin(&["user", "--tenant", "one", "put", "anna", "--service"])?;
    let told = world.admin(&["user", "--tenant", "one", "show", "anna"])?;
    ensure!(told["limits"]["sessions"] == 1 && told["kind"] == "service", "{told}");
    ensure!(told["limits"]["bytes_per_second"] == 2 << 20, "{told}");
    ensure!(told["quota"] == json!({ "bytes": null, "objects": 9 }), "{told}");
    Ok(())
}

/// Goal: versions count until they are gone for good.
#[test]
fn versions_count() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    let mut s3 = world.s3(&owner);
    expect(&s3.create_bucket("data")?, 200)?;
    let keep = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let keep = Request::new("PUT", "/data").query("versioning", "").body(keep);
    expect(&s3.send(keep)?, 200)?;
    world.put("tenants/one", &json!({ "quota": { "bytes": 250 } }))?;
    let mut versions = Vec::new();
    for _ in 0..2 {
        let put = s3.put("data", "a", &[1; 100])?;
        expect(&put, 200)?;
        versions.extend(put.header("x-amz-version-id").map(str::to_owned));
    }
    refused(&s3.put("data", "a", &[1; 100])?, 403, "QuotaExceeded")?;
    // To delete is no way to be refused: a marker hides, and what it hides stays.
    expect(&s3.delete("data", "a")?, 204)?;
    stores(&world, 200, 3)?;
    for version in &versions {
        let gone = Request::object("DELETE", "data", "a").query("versionId", version);
        expect(&s3.send(gone)?, 204)?;
    }
    stores(&world, 0, 1)?;
    expect(&s3.put("data", "a", &[1; 100])?, 200)
}

/// Goal: what does not fit is refused before it is sent. Method: the header of a large PUT, and
/// no byte of its body.
#[test]
fn a_large_body_is_not_waited_for() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    world.put("tenants/one", &json!({ "quota": { "bytes": 1000 } }))?;
    let mut request = Request::object("PUT", "data", "large")
        .header("host", world.server.authority())
        .header("content-length", "1000000000")
        .header("expect", "100-continue");
    Signer::new(&owner).sign_payload(&mut request, UNSIGNED);
    let mut connection = Connection::open(world.server.address())?;
    let begun = Instant::now();
    connection.write(&request.head())?;
    let answer = connection.read_response(false)?;
    refused(&answer, 403, "QuotaExceeded")?;
    ensure!(begun.elapsed() < Duration::from_secs(10), "it was waited for");
    Ok(())
}
