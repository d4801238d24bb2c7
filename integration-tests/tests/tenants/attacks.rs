//! Somebody who has a key of another tenant, or had one of this, or none.

use anyhow::{Result, ensure};
use keyway_integration_tests::s3::copy_source;
use keyway_integration_tests::sigv4::{Credentials, Signer};
use keyway_integration_tests::wire::{Connection, Request, Response, encode};
use serde_json::json;

use crate::world::{World, denied, expect, refused, statement, to};

const OWNER: &str = "x-amz-expected-bucket-owner";
const SOURCE_OWNER: &str = "x-amz-source-expected-bucket-owner";

fn all() -> Vec<serde_json::Value> {
    vec![statement("Allow", &["*"], &["*"])]
}

/// Goal: what a tenant has does not show in any answer to another.
#[test]
fn buckets_of_others_cannot_be_told_from_none() -> Result<()> {
    let world = World::start()?;
    let one = world.tenant("one")?;
    world.tenant("two")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("taken")?, 200)?;
    expect(&world.s3(&owner).put("taken", "a", b"x")?, 200)?;
    let thieves = [world.key("two", None)?, world.user("two", "thief", &all())?];
    type Make = fn(&str) -> Request;
    let makes: [(&str, Make); 12] = [
        ("head", |b| Request::new("HEAD", format!("/{b}"))),
        ("list", |b| Request::new("GET", format!("/{b}")).query("list-type", "2")),
        ("uploads", |b| Request::new("GET", format!("/{b}")).query("uploads", "")),
        ("location", |b| Request::new("GET", format!("/{b}")).query("location", "")),
        ("policy", |b| Request::new("GET", format!("/{b}")).query("policy", "")),
        ("acl", |b| Request::new("GET", format!("/{b}")).query("acl", "")),
        ("get", |b| Request::object("GET", b, "a")),
        ("range", |b| Request::object("GET", b, "a").header("range", "nonsense")),
        ("put", |b| Request::object("PUT", b, "a").body("mine")),
        ("delete", |b| Request::object("DELETE", b, "a")),
        ("remove", |b| Request::new("DELETE", format!("/{b}"))),
        ("make", |b| Request::new("PUT", format!("/{b}"))),
    ];
    for thief in &thieves {
        for (name, make) in makes {
            let answer = |bucket: &str| -> Result<Response> {
                Ok(world.s3(thief).send(make(bucket).header(OWNER, &one))?)
            };
            let (there, none) = (answer("taken")?, answer("notaken")?);
            ensure!(there.status == 403, "{name}: {} {}", there.status, there.text());
            ensure!(there.status == none.status && there.code() == none.code(), "{name}");
            // And the same where no tenant has that number.
            let nobody = make("taken").header(OWNER, "000000000999");
            ensure!(world.s3(thief).send(nobody)?.status == 403, "{name}");
        }
        // Without the name of an owner the names are one's own, and free.
        let own = world.s3(thief).get("taken", "a")?;
        ensure!(own.status == 404, "{}", own.text());
        let copy = Request::object("PUT", "mine", "a")
            .header("x-amz-copy-source", copy_source("taken", "a"))
            .header(SOURCE_OWNER, &one);
        world.s3(thief).create_bucket("mine")?;
        denied(&world.s3(thief).send(copy)?)?;
        let buckets = world.s3(thief).send(Request::new("GET", "/"))?;
        ensure!(!buckets.text().contains("taken"), "{}", buckets.text());
    }
    expect(&world.s3(&thieves[0]).create_bucket("taken")?, 200)?;
    ensure!(world.s3(&owner).get("taken", "a")?.body == b"x", "it is another bucket");
    Ok(())
}

/// Goal: nobody gets done for them, by naming an owner, what they may not do themselves.
#[test]
fn a_deputy_is_not_confused() -> Result<()> {
    let world = World::start()?;
    let one = world.tenant("one")?;
    world.tenant("two")?;
    let (owner, thief_root) = (world.key("one", None)?, world.key("two", None)?);
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    expect(&world.s3(&owner).put("data", "a", b"theirs")?, 200)?;
    expect(&world.s3(&thief_root).create_bucket("data")?, 200)?;
    expect(&world.s3(&thief_root).put("data", "a", b"ours")?, 200)?;
    // A user who may do nothing at home, and for whom the other's bucket is open.
    let mule = world.user("two", "mule", &[statement("Allow", &["s3:GetObject"], &["data/*"])])?;
    let open = to(json!("*"), statement("Allow", &["s3:*"], &["data", "data/*"]));
    world.unblock(&owner, "data")?;
    expect(&world.bucket_policy(&owner, "data", &[open])?, 204)?;
    let get = Request::object("GET", "data", "a").header(OWNER, &one);
    ensure!(world.s3(&mule).send(get)?.body == b"theirs");
    // Both must allow: the bucket's policy is not enough, and its root none of ours.
    denied(&world.s3(&mule).send(Request::object("DELETE", "data", "a").header(OWNER, &one))?)?;
    // An owner who is named twice, or oddly, is nobody.
    for odd in ["0", "+00000000001", "", "one", &"f".repeat(64)] {
        let get = Request::object("GET", "data", "a").header(OWNER, odd);
        denied(&world.s3(&mule).send(get)?)?;
    }
    let twice = Request::object("GET", "data", "a").header(OWNER, &one).header(OWNER, &one);
    ensure!(world.s3(&mule).send(twice)?.status >= 400);
    // Buckets are made and listed at home alone.
    let make = Request::new("PUT", "/fresh").header(OWNER, &one);
    denied(&world.s3(&thief_root).send(make)?)?;
    // A bucket of one's own that a policy closes is not opened by naming another's.
    let closed = to(json!("*"), statement("Deny", &["s3:GetObject"], &["data/*"]));
    expect(&world.bucket_policy(&thief_root, "data", &[closed])?, 204)?;
    denied(&world.s3(&mule).get("data", "a")?)?;
    let copy = Request::object("PUT", "data", "b")
        .header("x-amz-copy-source", copy_source("data", "a"))
        .header(OWNER, &one);
    denied(&world.s3(&mule).send(copy)?)
}

/// Goal: no way to write a key gets around a policy that names it.
#[test]
fn a_key_has_one_name() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    expect(&world.s3(&owner).put("data", "secret/plan", b"the plan")?, 200)?;
    expect(&world.s3(&owner).put("data", "open/a", b"x")?, 200)?;
    let statements = [
        statement("Allow", &["s3:GetObject", "s3:ListBucket"], &["data", "data/*"]),
        statement("Deny", &["s3:GetObject"], &["data/secret/*"]),
    ];
    let spy = world.user("one", "spy", &statements)?;
    for path in [
        "/data/secret/plan",
        "/data/secret%2Fplan",
        "/data/%73ecret/plan",
        "/data/secret%2fplan",
        "/data/%73%65%63%72%65%74%2f%70%6c%61%6e",
        "/data//secret/plan",
        "/data/./secret/plan",
        "/data/open/../secret/plan",
        "/data/open/%2e%2e/secret/plan",
        "/data/secret/./plan",
        "/data/secret//plan",
        "/data/secret/plan/",
        "/data/secret/plan%00",
        "/data/Secret/plan",
        "/data/secret%252Fplan",
        "//data/secret/plan",
        "/DATA/secret/plan",
        "/data;x/secret/plan",
        "/data/secret/plan?versionId=null",
        "/data/secret/plan?partNumber=1",
        "/data/secret/plan?x-id=GetObject",
    ] {
        for range in [None, Some("bytes=0-3"), Some("nonsense")] {
            let mut request = raw(path);
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let answer = sent(&world, &spy, request)?;
            ensure!(answer.status >= 400, "{path}: {}", answer.status);
            let text = answer.text();
            ensure!(!text.contains("the plan") && !text.contains("the "), "{path}: {text}");
        }
    }
    expect(&world.s3(&spy).get("data", "open/a")?, 200)
}

/// A request of this path and query, byte for byte.
fn raw(path: &str) -> Request {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let request = Request::new("GET", path);
    query.split('&').filter(|pair| !pair.is_empty()).fold(request, |request, pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        request.query(name, value)
    })
}

fn percent_decoded(path: &str) -> Vec<u8> {
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = path.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}

/// Signed as the server will read it, sent as it was written.
fn sent(world: &World, who: &Credentials, mut request: Request) -> Result<Response> {
    request.set("host", world.server.authority());
    let written = request.path.clone();
    let read = percent_decoded(&written);
    request.path = encode(&read, true);
    Signer::new(who).sign(&mut request);
    request.path = written;
    Ok(Connection::open(world.server.address())?.exchange(&request)?)
}

/// Goal: what a key made while it was good opens nothing once it is not.
#[test]
fn a_url_of_a_key_that_is_gone_is_worth_nothing() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    expect(&world.s3(&owner).put("data", "a", b"x")?, 200)?;
    world.user("one", "anna", &[statement("Allow", &["s3:GetObject"], &["data/*"])])?;
    let presigned = |who: &Credentials| {
        let mut request = Request::object("GET", "data", "a");
        request.set("host", world.server.authority());
        Signer::new(who).presign(&mut request, 3600);
        request
    };
    let open = |request: &Request| -> Result<Response> {
        Ok(Connection::open(world.server.address())?.exchange(request)?)
    };
    let key = || world.key("one", Some("anna"));
    let at = |who: &Credentials| format!("tenants/one/keys/{}", who.access_key);
    let anna = |state: &str| json!({ "state": state, "policies": ["anna-own"] });
    let past = json!({ "user": "anna", "expires": "2020-01-01T00:00:00Z" });
    let disabled = json!({ "user": "anna", "state": "disabled" });
    for (how, path, bad) in [
        ("disabled", None, disabled),
        ("expired", None, past),
        ("user suspended", Some("tenants/one/users/anna"), anna("suspended")),
        ("tenant suspended", Some("tenants/one"), json!({ "state": "suspended" })),
    ] {
        let who = key()?;
        let url = presigned(&who);
        expect(&open(&url)?, 200)?;
        world.put(&path.map_or_else(|| at(&who), str::to_owned), &bad)?;
        refused(&open(&url)?, 403, "InvalidAccessKeyId").map_err(|error| error.context(how))?;
        refused(&world.s3(&who).get("data", "a")?, 403, "InvalidAccessKeyId")?;
        match how {
            "user suspended" => world.put("tenants/one/users/anna", &anna("active"))?,
            "tenant suspended" => world.put("tenants/one", &json!({}))?,
            _ => world.put(&at(&who), &json!({ "user": "anna" }))?,
        };
        expect(&open(&url)?, 200).map_err(|error| error.context(how))?;
        let (status, _) = world.call(world.server.credentials(), "DELETE", &at(&who), None)?;
        ensure!(status == 204);
        refused(&open(&url)?, 403, "InvalidAccessKeyId")?;
    }
    // The secret of one key does not sign for another.
    let (good, other) = (key()?, key()?);
    let mixed = Credentials { access_key: good.access_key, secret_key: other.secret_key };
    refused(&world.s3(&mixed).get("data", "a")?, 403, "SignatureDoesNotMatch")
}

/// Goal: the buckets of a tenant that is suspended are closed to its guests, too.
#[test]
fn a_suspended_tenant_lets_nobody_in() -> Result<()> {
    let world = World::start()?;
    let one = world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("web")?, 200)?;
    expect(&world.s3(&owner).put("web", "a", b"x")?, 200)?;
    world.unblock(&owner, "web")?;
    let public = to(json!("*"), statement("Allow", &["s3:GetObject"], &["web/*"]));
    expect(&world.bucket_policy(&owner, "web", &[public])?, 204)?;
    let get = || Request::object("GET", "web", "a").header(OWNER, &one);
    expect(&world.anonymous(get())?, 200)?;
    expect(&world.root().send(get())?, 200)?;
    world.put("tenants/one", &json!({ "state": "suspended" }))?;
    denied(&world.anonymous(get())?)?;
    denied(&world.root().send(get())?)
}
