//! Tokens that were stolen, swapped, forged or ended.

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::sigv4::{Credentials, Signer};
use keyway_integration_tests::wire::{Connection, Request, Response};
use serde_json::{Value, json};

use crate::temporary::{Scene, TOKEN, Temporary, sts, sts_refused, taken, trust, user};
use crate::world::{denied, expect, refused};

const TOKEN_PARAMETER: &str = "X-Amz-Security-Token";

/// Goal: a token is worth nothing without its key, with another key, altered, or alone.
#[test]
fn tokens_are_of_their_key() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let one = taken(world, &scene.anna, "reader", &[])?;
    let two = taken(world, &scene.anna, "reader", &[])?;
    let get = || Request::object("GET", "data", "open/a");
    let mut altered = one.token.clone();
    let last = if altered.pop() == Some('A') { 'B' } else { 'A' };
    altered.push(last);
    let swapped = Temporary { token: two.token.clone(), ..one.clone() };
    let forged = Temporary { token: "QUFBQUFBQUFBQUFBQUFB".to_owned(), ..one.clone() };
    let altered = Temporary { token: altered, ..one.clone() };
    let long_term = Temporary { keys: scene.owner.clone(), token: one.token.clone() };
    let mixed_keys = Credentials { secret_key: two.keys.secret_key, ..one.keys.clone() };
    let mixed = Temporary { keys: mixed_keys, ..one.clone() };
    for (name, thief, status, code) in [
        ("swapped", &swapped, 400, "InvalidToken"),
        ("forged", &forged, 400, "InvalidToken"),
        ("altered", &altered, 400, "InvalidToken"),
        ("with a key that has none", &long_term, 400, "InvalidToken"),
        ("with another's secret", &mixed, 403, "SignatureDoesNotMatch"),
    ] {
        let answer = thief.send(world, get())?;
        refused(&answer, status, code).map_err(|error| error.context(name))?;
        // The control endpoints and the administration ask the same.
        for path in ["/_keyway/v1/rails", "/_keyway/v1/admin/tenants/self/users"] {
            let answer = thief.send(world, Request::new("GET", path))?;
            refused(&answer, status, code).map_err(|error| error.context(name))?;
        }
        let form = [("Action", "GetCallerIdentity")];
        let code = if code == "InvalidToken" { "InvalidClientTokenId" } else { code };
        sts_refused(&sts(world, &thief.keys, Some(&thief.token), &form)?, 403, code)?;
    }
    refused(&world.s3(&one.keys).send(get())?, 400, "InvalidToken")?;
    refused(&world.anonymous(get().header(TOKEN, &one.token))?, 400, "InvalidToken")?;
    let twice = get().header(TOKEN, &one.token).header(TOKEN, &one.token);
    ensure!(world.s3(&one.keys).send(twice)?.status >= 400);
    // Added to a signature that does not cover it.
    let mut request = get().header("host", world.server.authority());
    Signer::new(&one.keys).sign(&mut request);
    let answer =
        Connection::open(world.server.address())?.exchange(&request.header(TOKEN, &one.token))?;
    denied(&answer)?;
    expect(&one.get(world, "open/a")?, 200)?;
    // Nobody takes an id of that form for a key that stays.
    let at = format!("tenants/one/keys/{}", one.keys.access_key);
    let root = world.server.credentials();
    let (status, json) = world.call(root, "PUT", &at, Some(&json!({ "user": "ben" })))?;
    ensure!(status == 400 && json["error"]["code"] == "InvalidCredentials", "{json}");
    let log = std::fs::read_to_string(world.server.data_dir().join("audit.jsonl"))?;
    ensure!(!log.contains(&one.token) && !world.server.log().contains(&one.token));
    Ok(())
}

#[test]
fn presigned_urls_carry_their_token() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let reader = taken(world, &scene.anna, "reader", &[])?;
    let other = taken(world, &scene.anna, "reader", &[])?;
    let url = |token: Option<&str>| {
        let mut request = Request::object("GET", "data", "open/a");
        request.set("host", world.server.authority());
        if let Some(token) = token {
            request = request.query(TOKEN_PARAMETER, token);
        }
        Signer::new(&reader.keys).presign(&mut request, 3600);
        request
    };
    let open = |request: &Request| -> Result<Response> {
        Ok(Connection::open(world.server.address())?.exchange(request)?)
    };
    let good = url(Some(&reader.token));
    expect(&open(&good)?, 200)?;
    refused(&open(&url(None))?, 400, "InvalidToken")?;
    refused(&open(&url(Some(&other.token)))?, 400, "InvalidToken")?;
    // The signature covers the parameter.
    let added = url(None).query(TOKEN_PARAMETER, &reader.token);
    refused(&open(&added)?, 403, "SignatureDoesNotMatch")?;
    denied(&open(&url(None).header(TOKEN, &reader.token))?)?;
    refused(&open(&good.clone().header(TOKEN, &reader.token))?, 403, "AccessDenied")?;
    world.put("tenants/one/users/anna", &json!({ "state": "suspended" }))?;
    refused(&open(&good)?, 403, "InvalidAccessKeyId")
}

/// Goal: whoever is cut off is out at once, with all that was made for them.
#[test]
fn sessions_end_with_whom_they_go_back_to() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let call = |method: &str, path: &str| -> Result<()> {
        let (status, json) = world.call(world.server.credentials(), method, path, None)?;
        ensure!(status == 204, "{method} {path}: {json}");
        Ok(())
    };
    let ahead = "9999-01-01T00:00:00Z";
    let trusted = trust(&user("anna"), None);
    let role = |more: Value| -> Result<()> {
        let mut document = json!({ "trust": trusted, "policies": ["read"] });
        for (name, value) in more.as_object().context("fields")? {
            document[name] = value.clone();
        }
        world.put("tenants/one/roles/reader", &document).map(drop)
    };
    let anna = |more: Value| world.put("tenants/one/users/anna", &more).map(drop);
    type Cut<'a> = &'a dyn Fn(&Credentials) -> Result<()>;
    let cases: [(&str, bool, Cut<'_>, Cut<'_>); 6] = [
        ("role suspended", false, &|_| role(json!({ "state": "suspended" })), &|_| role(json!({}))),
        ("role revoked", true, &|_| role(json!({ "sessions_valid_from": ahead })), &|_| Ok(())),
        ("user revoked", true, &|_| anna(json!({ "sessions_valid_from": ahead })), &|_| Ok(())),
        ("user suspended", false, &|_| anna(json!({ "state": "suspended" })), &|_| anna(json!({}))),
        (
            "key deleted",
            true,
            &|key| call("DELETE", &format!("tenants/one/keys/{}", key.access_key)),
            &|_| Ok(()),
        ),
        ("role deleted", true, &|_| call("DELETE", "tenants/one/roles/reader"), &|_| {
            role(json!({}))
        }),
    ];
    for (how, for_good, cut, back) in cases {
        let key = world.key("one", Some("anna"))?;
        let reader = taken(world, &key, "reader", &[])?;
        expect(&reader.get(world, "open/a")?, 200).map_err(|error| error.context(how))?;
        cut(&key)?;
        let answer = reader.get(world, "open/a")?;
        refused(&answer, 403, "InvalidAccessKeyId").map_err(|error| error.context(how))?;
        back(&key)?;
        let status = if for_good { 403 } else { 200 };
        let answer = reader.get(world, "open/a")?;
        expect(&answer, status).map_err(|error| error.context(how))?;
        // A document that does not know of it brings nothing back.
        role(json!({}))?;
        expect(&reader.get(world, "open/a")?, status).map_err(|error| error.context(how))?;
        // And what begins now is good.
        let fresh = world.key("one", Some("anna"))?;
        let again = taken(world, &fresh, "reader", &[])?;
        expect(&again.get(world, "open/a")?, 200).map_err(|error| error.context(how))?;
    }
    Ok(())
}
