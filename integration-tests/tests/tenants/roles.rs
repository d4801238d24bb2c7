//! Temporary credentials: what they open, and what stolen or forged ones do not.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::server::binary;
use keyway_integration_tests::sigv4::{Credentials, Signer};
use keyway_integration_tests::wire::{Connection, Request, Response, element, encode};
use serde_json::{Value, json};

use crate::world::{World, denied, expect, policy, refused, statement};

const TOKEN: &str = "x-amz-security-token";
const TOKEN_PARAMETER: &str = "X-Amz-Security-Token";

/// Credentials with their token.
#[derive(Clone)]
pub(crate) struct Temporary {
    pub(crate) keys: Credentials,
    pub(crate) token: String,
}

impl Temporary {
    fn of(response: &Response) -> Result<Self> {
        let xml = response.text();
        let text = |name| element(&xml, name).map(str::to_owned).with_context(|| xml.clone());
        let keys =
            Credentials { access_key: text("AccessKeyId")?, secret_key: text("SecretAccessKey")? };
        Ok(Self { keys, token: text("SessionToken")? })
    }

    fn send(&self, world: &World, request: Request) -> Result<Response> {
        Ok(world.s3(&self.keys).send(request.header(TOKEN, &self.token))?)
    }

    fn get(&self, world: &World, key: &str) -> Result<Response> {
        self.send(world, Request::object("GET", "data", key))
    }
}

/// A call for credentials.
fn sts(
    world: &World,
    by: &Credentials,
    token: Option<&str>,
    form: &[(&str, &str)],
) -> Result<Response> {
    let mut pairs = vec!["Version=2011-06-15".to_owned()];
    for (name, value) in form {
        pairs.push(format!("{name}={}", encode(value.as_bytes(), false)));
    }
    let mut request = Request::new("POST", "/")
        .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
        .header("host", world.server.authority())
        .body(pairs.join("&"));
    if let Some(token) = token {
        request = request.header(TOKEN, token);
    }
    let signer = Signer { service: "sts".to_owned(), ..Signer::new(by) };
    signer.sign(&mut request);
    Ok(Connection::open(world.server.address())?.exchange(&request)?)
}

fn arn(role: &str) -> String {
    format!("arn:aws:iam::000000000001:role/{role}")
}

fn assume(world: &World, by: &Credentials, role: &str, more: &[(&str, &str)]) -> Result<Response> {
    let role = arn(role);
    let mut form = vec![("Action", "AssumeRole"), ("RoleArn", &role), ("RoleSessionName", "job-1")];
    form.extend(more);
    sts(world, by, None, &form)
}

pub(crate) fn taken(
    world: &World,
    by: &Credentials,
    role: &str,
    more: &[(&str, &str)],
) -> Result<Temporary> {
    let response = assume(world, by, role, more)?;
    expect(&response, 200)?;
    Temporary::of(&response)
}

/// Fails unless the answer is this refusal of STS's.
fn sts_refused(response: &Response, status: u16, code: &str) -> Result<()> {
    let text = response.text();
    ensure!(response.status == status, "{} and not {status}: {text}", response.status);
    ensure!(text.starts_with("<ErrorResponse ") && text.contains("<Type>Sender</Type>"), "{text}");
    ensure!(element(&text, "Code") == Some(code), "not {code}: {text}");
    Ok(())
}

pub(crate) fn trust(principal: &Value, condition: Option<Value>) -> String {
    let mut statement =
        json!({ "Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole" });
    if let Some(condition) = condition {
        statement["Condition"] = condition;
    }
    policy(&[statement])
}

/// A statement that allows nothing.
fn idle() -> Value {
    statement("Deny", &["s3:DeleteBucket"], &["*"])
}

pub(crate) fn user(name: &str) -> Value {
    json!({ "AWS": format!("arn:aws:iam::000000000001:user/{name}") })
}

/// A tenant (number 1) with objects in a bucket; anna, who may take the role that reads them, and
/// ben, who may not.
struct Scene {
    world: World,
    owner: Credentials,
    anna: Credentials,
    ben: Credentials,
}

impl Scene {
    fn start() -> Result<Self> {
        let world = World::start()?;
        ensure!(world.tenant("one")? == "000000000001");
        let owner = world.key("one", None)?;
        expect(&world.s3(&owner).create_bucket("data")?, 200)?;
        for key in ["open/a", "shut/a"] {
            expect(&world.s3(&owner).put("data", key, b"x")?, 200)?;
        }
        let read = policy(&[statement("Allow", &["s3:GetObject", "s3:ListBucket"], &["data*"])]);
        world.put("tenants/one/policies/read", &json!({ "document": read }))?;
        let ask = [statement("Allow", &["sts:AssumeRole"], &["*"])];
        let (anna, ben) = (world.user("one", "anna", &[idle()])?, world.user("one", "ben", &ask)?);
        let scene = Self { world, owner, anna, ben };
        scene.role("reader", &trust(&user("anna"), None))?;
        Ok(scene)
    }

    fn role(&self, name: &str, trust: &str) -> Result<Value> {
        let document = json!({ "trust": trust, "policies": ["read"] });
        self.world.put(&format!("tenants/one/roles/{name}"), &document)
    }
}

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
    let own = crate::world::to(
        json!({ "AWS": session }),
        statement("Allow", &["s3:PutObject"], &["data/*"]),
    );
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
    let mixed_keys = Credentials { secret_key: two.keys.secret_key.clone(), ..one.keys.clone() };
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
    // All of it goes back to anna.
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
    let root = world.server.credentials();
    let run = |arguments: &[&str]| -> Result<Value> {
        let output = Command::new(binary()?)
            .arg("admin")
            .args(arguments)
            .env("KEYWAY_ENDPOINT", world.server.url())
            .env("KEYWAY_ACCESS_KEY", &root.access_key)
            .env("KEYWAY_SECRET_KEY", &root.secret_key)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {said}");
        Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    };
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
