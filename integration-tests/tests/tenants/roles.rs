//! Roles: who may take them, and what is open in them.

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::sigv4::{Credentials, Signer, UNSIGNED};
use keyway_integration_tests::wire::{Connection, Request, Response, element};
use serde_json::{Value, json};

use crate::temporary::{Scene, Temporary, arn, assume, idle, sts, sts_refused, taken, trust, user};
use crate::world::{denied, expect, policy, refused, statement, to};

#[test]
fn a_role_is_taken_and_does_what_its_policies_allow() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    denied(&world.s3(&scene.anna).get("data", "open/a")?)?;
    let response = assume(world, &scene.anna, "reader", &[])?;
    expect(&response, 200)?;
    let text = response.text();
    let session = "arn:aws:sts::000000000001:assumed-role/reader/job-1";
    ensure!(text.starts_with("<AssumeRoleResponse "), "{text}");
    ensure!(element(&text, "Arn") == Some(session), "{text}");
    let reader = Temporary::of(&response)?;
    expect(&reader.get(world, "open/a")?, 200)?;
    denied(&reader.send(world, Request::object("PUT", "data", "b").body("x"))?)?;
    denied(&reader.send(world, Request::new("GET", "/"))?)?;
    let whoami = [("Action", "GetCallerIdentity")];
    let who = sts(world, &reader.keys, Some(&reader.token), &whoami)?;
    ensure!(element(&who.text(), "Arn") == Some(session), "{}", who.text());
    ensure!(element(&who.text(), "Account") == Some("000000000001"), "{}", who.text());
    let who = sts(world, &scene.anna, None, &whoami)?.text();
    ensure!(element(&who, "Arn") == Some("arn:aws:iam::000000000001:user/anna"), "{who}");
    // The administration is not among the role's policies.
    let call = Request::new("GET", "/_keyway/v1/admin/tenants/self/users");
    expect(&reader.send(world, call)?, 403)?;
    // A bucket policy names the role and the session as AWS's do.
    let own = to(json!({ "AWS": session }), statement("Allow", &["s3:PutObject"], &["data/*"]));
    expect(&world.bucket_policy(&scene.owner, "data", &[own])?, 204)?;
    expect(&reader.send(world, Request::object("PUT", "data", "b").body("x"))?, 200)
}

#[test]
fn a_session_policy_narrows_and_never_widens() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let narrow = policy(&[statement("Allow", &["s3:*"], &["data/open/*"])]);
    let narrowed = taken(world, &scene.anna, "reader", &[("Policy", &narrow)])?;
    expect(&narrowed.get(world, "open/a")?, 200)?;
    denied(&narrowed.get(world, "shut/a")?)?;
    denied(&narrowed.send(world, Request::object("PUT", "data", "open/b").body("x"))?)?;
    let bad = assume(world, &scene.anna, "reader", &[("Policy", "{}")])?;
    sts_refused(&bad, 400, "MalformedPolicyDocument")?;
    let long = assume(world, &scene.anna, "reader", &[("Policy", &" ".repeat(2049))])?;
    sts_refused(&long, 400, "ValidationError")
}

#[test]
fn only_whom_the_trust_policy_names_takes_a_role() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let no = |response: Result<Response>| sts_refused(&response?, 403, "AccessDenied");
    // Ben's own policy is not enough, nobody's root takes roles, and none is there that is not.
    no(assume(world, &scene.ben, "reader", &[]))?;
    no(assume(world, &scene.owner, "reader", &[]))?;
    no(assume(world, world.server.credentials(), "reader", &[]))?;
    no(assume(world, &scene.anna, "none", &[]))?;
    // One that names the tenant leaves it to the users' own policies.
    scene.role("reader", &trust(&json!({ "AWS": "000000000001" }), None))?;
    no(assume(world, &scene.anna, "reader", &[]))?;
    taken(world, &scene.ben, "reader", &[])?;
    // Another tenant's user needs both.
    world.tenant("two")?;
    let ask = [statement("Allow", &["sts:AssumeRole"], &["*"])];
    let (guest, idler) =
        (world.user("two", "guest", &ask)?, world.user("two", "idler", &[idle()])?);
    no(assume(world, &guest, "reader", &[]))?;
    let external = json!({ "StringEquals": { "sts:ExternalId": "e-77" } });
    scene.role("reader", &trust(&json!({ "AWS": "000000000002" }), Some(external)))?;
    no(assume(world, &guest, "reader", &[]))?;
    no(assume(world, &guest, "reader", &[("ExternalId", "e-78")]))?;
    no(assume(world, &idler, "reader", &[("ExternalId", "e-77")]))?;
    let reader = taken(world, &guest, "reader", &[("ExternalId", "e-77")])?;
    // In the role it is one of the tenant's: the names of its buckets are that tenant's.
    expect(&reader.get(world, "open/a")?, 200)?;
    world.put("tenants/two", &json!({ "state": "suspended" }))?;
    refused(&reader.get(world, "open/a")?, 403, "InvalidAccessKeyId")?;
    // What cannot be a trust policy is refused.
    let odd = json!({ "trust": policy(&[statement("Allow", &["s3:*"], &["*"])]) });
    let root = world.server.credentials();
    let (status, json) = world.call(root, "PUT", "tenants/one/roles/odd", Some(&odd))?;
    ensure!(status == 400 && json["error"]["code"] == "MalformedPolicy", "{json}");
    Ok(())
}

#[test]
fn session_tokens_and_chains() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let get_token = [("Action", "GetSessionToken")];
    // Somebody's own session opens what they open, and asks for no further one.
    let own = Temporary::of(&sts(world, &scene.owner, None, &get_token)?)?;
    expect(&own.get(world, "open/a")?, 200)?;
    let again = sts(world, &own.keys, Some(&own.token), &get_token)?;
    sts_refused(&again, 403, "AccessDenied")?;
    let anna = Temporary::of(&sts(world, &scene.anna, None, &get_token)?)?;
    denied(&anna.get(world, "open/a")?)?;
    // A key that is narrowed stays so, in its session and towards roles.
    let narrow = policy(&[statement("Allow", &["s3:GetObject"], &["data/open/*"])]);
    let id = Credentials::random().access_key;
    let made = world.put(&format!("tenants/one/keys/{id}"), &json!({ "policy": narrow }))?;
    let secret_key = made["secret"].as_str().context("it shows its secret")?.to_owned();
    let narrowed = Credentials { access_key: id, secret_key };
    let session = Temporary::of(&sts(world, &narrowed, None, &get_token)?)?;
    expect(&session.get(world, "open/a")?, 200)?;
    denied(&session.get(world, "shut/a")?)?;
    // A chain: anna's session takes a role, which takes another one, for an hour at most.
    let first = json!({ "AWS": arn("reader") });
    scene.role("second", &trust(&first, None))?;
    let form = |role: &str, seconds: &'static str| {
        [
            ("Action", "AssumeRole".to_owned()),
            ("RoleArn", arn(role)),
            ("RoleSessionName", "job".to_owned()),
            ("DurationSeconds", seconds.to_owned()),
        ]
    };
    let take = |by: &Temporary, role: &str, seconds: &'static str| -> Result<Response> {
        let form = form(role, seconds);
        let form: Vec<(&str, &str)> = form.iter().map(|(name, text)| (*name, &**text)).collect();
        sts(world, &by.keys, Some(&by.token), &form)
    };
    let reader = Temporary::of(&take(&anna, "reader", "900")?)?;
    sts_refused(&take(&anna, "second", "900")?, 403, "AccessDenied")?;
    let long = json!({ "trust": trust(&first, None), "policies": ["read"], "session_max_s": 7200 });
    world.put("tenants/one/roles/second", &long)?;
    sts_refused(&take(&reader, "second", "3601")?, 400, "ValidationError")?;
    let second = Temporary::of(&take(&reader, "second", "3600")?)?;
    expect(&second.get(world, "open/a")?, 200)?;
    // The chain breaks with a link, and all of it goes back to anna.
    let mut off = json!({ "trust": trust(&user("anna"), None), "policies": ["read"] });
    off["state"] = json!("suspended");
    world.put("tenants/one/roles/reader", &off)?;
    refused(&second.get(world, "open/a")?, 403, "InvalidAccessKeyId")?;
    scene.role("reader", &trust(&user("anna"), None))?;
    expect(&second.get(world, "open/a")?, 200)?;
    world.put("tenants/one/users/anna", &json!({ "state": "suspended" }))?;
    for session in [&anna, &reader, &second] {
        refused(&session.get(world, "open/a")?, 403, "InvalidAccessKeyId")?;
    }
    Ok(())
}

#[test]
fn calls_that_are_none_are_refused_in_words_of_sts() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let call = |form: &[(&str, &str)]| sts(world, &scene.anna, None, form);
    sts_refused(&call(&[("Action", "AssumeRoot")])?, 400, "InvalidAction")?;
    sts_refused(&call(&[])?, 400, "MissingAction")?;
    let nameless = [("Action", "AssumeRole"), ("RoleArn", "reader")];
    sts_refused(&call(&nameless)?, 400, "ValidationError")?;
    let stranger = sts(world, &Credentials::random(), None, &[("Action", "GetCallerIdentity")])?;
    sts_refused(&stranger, 403, "InvalidClientTokenId")?;
    let unsigned = Request::new("POST", "/")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("Action=GetCallerIdentity&Version=2011-06-15");
    sts_refused(&world.anonymous(unsigned)?, 403, "MissingAuthenticationToken")?;
    // Whoever holds a signature that does not cover the form could put another one in its place.
    let mut open = Request::new("POST", "/")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("host", world.server.authority())
        .body("Action=GetCallerIdentity&Version=2011-06-15");
    let signer = Signer { service: "sts".to_owned(), ..Signer::new(&scene.anna) };
    signer.sign_payload(&mut open, UNSIGNED);
    let answer = Connection::open(world.server.address())?.exchange(&open)?;
    sts_refused(&answer, 400, "IncompleteSignature")?;
    // The audit log tells who was to be what, and what became of it.
    taken(world, &scene.anna, "reader", &[])?;
    assume(world, &scene.ben, "reader", &[])?;
    let mut world = scene.world;
    world.server.terminate()?;
    let text = std::fs::read_to_string(world.server.data_dir().join("audit.jsonl"))?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let told = |event: &str, field: &str, value: &str| {
        lines.iter().any(|line| line["event"] == event && line[field] == value)
    };
    ensure!(told("sts", "role", &arn("reader")) && told("sts", "code", "InvalidAction"));
    ensure!(
        lines.iter().any(|line| line["issued"].as_str().is_some_and(|id| id.starts_with("KWT1")))
    );
    ensure!(told("denied", "action", "sts:AssumeRole"), "{text}");
    Ok(())
}

#[test]
fn the_commands_make_roles() -> Result<()> {
    let scene = Scene::start()?;
    let world = &scene.world;
    let run = |arguments: &[&str]| world.admin(arguments);
    let dir = tempfile::tempdir()?;
    let trusted = dir.path().join("trust.json");
    std::fs::write(&trusted, trust(&user("anna"), None))?;
    let trusted = trusted.to_str().context("a path")?;
    let role = |more: &[&str]| run(&[&["role", "--tenant", "one"], more].concat());
    let made = role(&["put", "mover", "--trust", trusted, "--policy", "read", "--tag", "a=b"])?;
    ensure!(made["arn"] == arn("mover") && made["session_max_s"] == 3600, "{made}");
    let mover = taken(world, &scene.anna, "mover", &[])?;
    expect(&mover.get(world, "open/a")?, 200)?;
    let revoked = role(&["revoke-sessions", "mover"])?;
    ensure!(revoked["sessions_valid_from"].is_string() && revoked["tags"]["a"] == "b", "{revoked}");
    refused(&mover.get(world, "open/a")?, 403, "InvalidAccessKeyId")?;
    let mover = taken(world, &scene.anna, "mover", &[])?;
    expect(&mover.get(world, "open/a")?, 200)?;
    run(&["user", "--tenant", "one", "revoke-sessions", "anna"])?;
    refused(&mover.get(world, "open/a")?, 403, "InvalidAccessKeyId")?;
    ensure!(role(&["list"])?["roles"].as_array().is_some_and(|roles| roles.len() == 2));
    // A file says the same; what it does not name goes with --prune.
    let file = dir.path().join("accounts.json");
    let text = json!({ "tenants": { "one": {
        "policies": { "read": policy(&[statement("Allow", &["s3:GetObject"], &["*"])]) },
        "users": { "anna": {} },
        "roles": { "mover": { "trust": { "Statement": {
            "Effect": "Allow", "Principal": user("anna"), "Action": "sts:AssumeRole",
        } }, "policies": ["read"] } },
    } } });
    std::fs::write(&file, text.to_string())?;
    let file = file.to_str().context("a path")?;
    for _ in 0..2 {
        run(&["apply", "--file", file])?;
    }
    let told = role(&["get", "mover"])?;
    ensure!(told["sessions_valid_from"] == revoked["sessions_valid_from"], "{told}");
    expect(&taken(world, &scene.anna, "mover", &[])?.get(world, "open/a")?, 200)?;
    run(&["apply", "--prune", "--file", file])?;
    ensure!(role(&["list"])?["roles"].as_array().is_some_and(|roles| roles.len() == 1));
    role(&["delete", "mover"])?;
    ensure!(role(&["list"])?["roles"].as_array().is_some_and(Vec::is_empty));
    Ok(())
}
