//! Identity policies decide about every operation, and about every object that a request names.

use anyhow::{Result, ensure};
use keyway_integration_tests::s3::copy_source;
use keyway_integration_tests::wire::{Request, element, elements};
use serde_json::json;

use crate::world::{World, denied, expect, policy, refused, statement};

#[test]
fn a_user_does_what_its_policies_allow() -> Result<()> {
    let world = World::start()?;
    world.tenant("acme")?;
    let root = world.key("acme", None)?;
    expect(&world.s3(&root).create_bucket("data")?, 200)?;
    let anna = world.user(
        "acme",
        "anna",
        &[
            statement("Allow", &["s3:GetObject", "s3:PutObject"], &["data/home/${aws:username}/*"]),
            statement("Deny", &["s3:PutObject"], &["data/home/anna/sealed/*"]),
        ],
    )?;
    let mut anna = world.s3(&anna);
    expect(&anna.put("data", "home/anna/a", b"abc")?, 200)?;
    ensure!(anna.get("data", "home/anna/a")?.body == b"abc");
    denied(&anna.put("data", "home/ben/a", b"abc")?)?;
    denied(&anna.put("data", "home/anna/sealed/a", b"abc")?)?;
    denied(&anna.delete("data", "home/anna/a")?)?;
    denied(&anna.send(Request::new("GET", "/data").query("list-type", "2"))?)?;
    denied(&anna.send(Request::new("GET", "/"))?)?;
    denied(&anna.create_bucket("more")?)?;
    // What is not there is not told to who may not list.
    denied(&anna.get("data", "home/anna/none")?)?;
    refused(&world.s3(&root).get("data", "home/anna/none")?, 404, "NoSuchKey")?;

    let nobody = world.user("acme", "nobody", &[statement("Deny", &["s3:PutObject"], &["*"])])?;
    let mut nobody = world.s3(&nobody);
    denied(&nobody.get("data", "home/anna/a")?)?;
    denied(&nobody.send(Request::new("HEAD", "/data"))?)
        .or_else(|_| expect(&nobody.send(Request::new("HEAD", "/data"))?, 403))?;
    Ok(())
}

#[test]
fn changes_hold_for_the_next_request() -> Result<()> {
    let world = World::start()?;
    world.tenant("acme")?;
    let root = world.key("acme", None)?;
    expect(&world.s3(&root).create_bucket("data")?, 200)?;
    world.put(
        "tenants/acme/policies/write",
        &json!({
            "document": policy(&[statement("Allow", &["s3:PutObject"], &["data/*"])])
        }),
    )?;
    world.put("tenants/acme/groups/writers", &json!({ "policies": ["write"] }))?;
    world.put("tenants/acme/users/ben", &json!({}))?;
    let ben = world.key("acme", Some("ben"))?;
    let mut ben = world.s3(&ben);
    denied(&ben.put("data", "a", b"x")?)?;
    world.put("tenants/acme/users/ben", &json!({ "groups": ["writers"] }))?;
    expect(&ben.put("data", "a", b"x")?, 200)?;
    world.put(
        "tenants/acme/policies/write",
        &json!({
            "document": policy(&[statement("Allow", &["s3:PutObject"], &["other/*"])])
        }),
    )?;
    denied(&ben.put("data", "a", b"x")?)?;
    world.put("tenants/acme/groups/writers", &json!({}))?;
    denied(&ben.put("other", "a", b"x")?)?;
    Ok(())
}

#[test]
fn a_key_may_be_narrower_than_its_user() -> Result<()> {
    let world = World::start()?;
    world.tenant("acme")?;
    let root = world.key("acme", None)?;
    expect(&world.s3(&root).create_bucket("data")?, 200)?;
    world.user("acme", "anna", &[statement("Allow", &["s3:*"], &["*"])])?;
    let only_get = policy(&[statement("Allow", &["s3:GetObject"], &["data/*"])]);
    let made = world.put(
        "tenants/acme/keys/NARROW",
        &json!({ "user": "anna", "policy": only_get, "secret": "0123456789abcdef" }),
    )?;
    ensure!(made.get("secret").is_none(), "a secret that was given is not repeated");
    let narrow = keyway_integration_tests::sigv4::Credentials {
        access_key: "NARROW".to_owned(),
        secret_key: "0123456789abcdef".to_owned(),
    };
    expect(&world.s3(&root).put("data", "a", b"x")?, 200)?;
    let mut narrow = world.s3(&narrow);
    expect(&narrow.get("data", "a")?, 200)?;
    denied(&narrow.put("data", "a", b"y")?)
}

/// Goal: a request that names several objects is allowed for each of them, or not.
#[test]
fn every_object_that_is_named_is_asked_for() -> Result<()> {
    let world = World::start()?;
    world.tenant("acme")?;
    let root = world.key("acme", None)?;
    let mut owner = world.s3(&root);
    expect(&owner.create_bucket("data")?, 200)?;
    for key in ["open/a", "open/b", "secret/a"] {
        expect(&owner.put("data", key, b"0123456789")?, 200)?;
    }
    let anna = world.user("acme", "anna", &[statement("Allow", &["s3:*"], &["data/open/*"])])?;
    let mut anna = world.s3(&anna);

    // Copies: of what one may not read, and to where one may not write.
    let copy = |from: &str, to: &str| {
        Request::object("PUT", "data", to).header("x-amz-copy-source", copy_source("data", from))
    };
    denied(&anna.send(copy("secret/a", "open/c"))?)?;
    denied(&anna.send(copy("open/a", "secret/c"))?)?;
    expect(&anna.send(copy("open/a", "open/c"))?, 200)?;
    let upload = anna.create_upload("data", "open/parts")?;
    let part =
        |from: &str| copy(from, "open/parts").query("partNumber", "1").query("uploadId", &*upload);
    denied(&anna.send(part("secret/a"))?)?;
    expect(&anna.send(part("open/a"))?, 200)?;

    // Deletions: each key for itself.
    let keys = ["open/b", "secret/a"].map(|key| format!("<Object><Key>{key}</Key></Object>"));
    let body = format!("<Delete>{}</Delete>", keys.concat());
    let sum = {
        use base64::Engine as _;
        use sha2::Digest as _;
        base64::prelude::BASE64_STANDARD.encode(sha2::Sha256::digest(&body))
    };
    let delete = Request::new("POST", "/data")
        .query("delete", "")
        .header("x-amz-checksum-sha256", sum)
        .body(body);
    let answer = anna.send(delete)?;
    expect(&answer, 200)?;
    let text = answer.text();
    ensure!(element(&text, "Code") == Some("AccessDenied"), "{text}");
    ensure!(elements(&text, "Deleted").len() == 1, "{text}");
    expect(&owner.get("data", "secret/a")?, 200)?;
    refused(&owner.get("data", "open/b")?, 404, "NoSuchKey")?;

    // Control endpoints ask the same.
    let control = |path: &str, document: serde_json::Value| {
        Request::new("POST", format!("/_keyway/v1/{path}")).body(document.to_string())
    };
    let keys = |key: &str| json!({ "bucket": "data", "keys": [key] });
    expect(&anna.send(control("prefetch", keys("open/a")))?, 200)?;
    denied(&anna.send(control("prefetch", keys("secret/a")))?)?;
    denied(&anna.send(control("prefetch", json!({ "bucket": "data", "prefix": "" })))?)?;
    denied(&anna.send(control("prefetch", json!({ "bucket": "nosuch", "prefix": "" })))?)?;
    let flush = |key: &str| control("flush", json!({ "bucket": "data", "key": key }));
    expect(&anna.send(flush("open/a"))?, 200)?;
    denied(&anna.send(flush("secret/a"))?)?;
    denied(&anna.send(control("flush", json!({})))?)
}

#[test]
fn listings_are_bounded_by_their_conditions() -> Result<()> {
    let world = World::start()?;
    world.tenant("acme")?;
    let root = world.key("acme", None)?;
    expect(&world.s3(&root).create_bucket("data")?, 200)?;
    let mut lists = statement("Allow", &["s3:ListBucket"], &["data"]);
    lists["Condition"] = json!({
        "StringLike": { "s3:prefix": ["home/${aws:username}/*"] },
        "NumericLessThanEquals": { "s3:max-keys": "100" },
    });
    let anna = world.user("acme", "anna", &[lists])?;
    let mut anna = world.s3(&anna);
    let list = |query: &[(&str, &str)]| {
        query.iter().fold(Request::new("GET", "/data"), |request, (name, value)| {
            request.query(name, *value)
        })
    };
    let good = [("list-type", "2"), ("max-keys", "10"), ("prefix", "home/anna/x")];
    expect(&anna.send(list(&good))?, 200)?;
    denied(&anna.send(list(&[("list-type", "2"), ("max-keys", "10")]))?)?;
    denied(&anna.send(list(&[("max-keys", "10"), ("prefix", "home/ben/")]))?)?;
    denied(&anna.send(list(&[("max-keys", "1000"), ("prefix", "home/anna/")]))?)?;
    // Two values of a parameter are two readers' chance to differ.
    let twice = [("max-keys", "10"), ("prefix", "home/anna/x"), ("prefix", "")];
    let answer = anna.send(list(&twice))?;
    ensure!(answer.status >= 400, "{}", answer.text());
    Ok(())
}
