//! The administration itself: who may use it, what it answers, what it keeps.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::server::binary;
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::tree::root;
use serde_json::{Value, json};

use crate::world::{World, expect, policy, refused, statement};

fn code(json: &Value) -> &str {
    json["error"]["code"].as_str().unwrap_or_default()
}

#[test]
fn accounts_outlive_the_process_and_secrets_are_sealed() -> Result<()> {
    let mut world = World::start()?;
    world.tenant("acme")?;
    let root = world.key("acme", None)?;
    expect(&world.s3(&root).create_bucket("data")?, 200)?;
    let anna = world.user("acme", "anna", &[statement("Allow", &["s3:PutObject"], &["data/*"])])?;
    expect(&world.s3(&anna).put("data", "a", b"x")?, 200)?;
    for graceful in [true, false] {
        if graceful {
            world.server.terminate()?;
        } else {
            world.server.kill();
        }
        for secret in [&root.secret_key, &anna.secret_key] {
            ensure!(!holds(world.server.data_dir(), secret)?, "a secret lies in the open");
        }
        world.server.restart()?;
        expect(&world.s3(&anna).put("data", "b", b"x")?, 200)?;
        let path = format!("tenants/acme/keys/{}", anna.access_key);
        let (_, key) = world.call(&root, "GET", &path, None)?;
        ensure!(key["last_used"].is_string() && key["secret"].is_null(), "{key}");
    }
    for secret in [&root.secret_key, &anna.secret_key] {
        ensure!(!world.server.log().contains(secret.as_str()), "a secret is in the log");
    }
    Ok(())
}

/// Whether a file of the directory has the text; objects' bytes are not looked at.
fn holds(dir: &Path, text: &str) -> Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let found = if path.ends_with("data/store") {
            false
        } else if path.is_dir() {
            holds(&path, text)?
        } else if path.is_file() {
            std::fs::read(&path)?.windows(text.len()).any(|part| part == text.as_bytes())
        } else {
            false
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn only_who_may_administers_and_only_their_own() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    world.tenant("two")?;
    let one = world.key("one", None)?;
    let user = world.user("one", "user", &[statement("Allow", &["s3:*"], &["*"])])?;
    let reader =
        world.user("one", "reader", &[statement("Allow", &["keyway:AdminRead"], &["*"])])?;
    let call = |who: &Credentials, method: &str, path: &str| -> Result<(u16, String)> {
        let document = json!({});
        let document = (method == "PUT").then_some(&document);
        let (status, json) = world.call(who, method, path, document)?;
        Ok((status, code(&json).to_owned()))
    };
    let denied = (403, "AccessDenied".to_owned());
    // A tenant's own root reaches its own tenant; of others it does not learn that they are.
    ensure!(call(&one, "GET", "tenants/one/users")?.0 == 200);
    ensure!(call(&one, "GET", "tenants/self/users")?.0 == 200);
    ensure!(call(&one, "PUT", "tenants/self/users/new")?.0 == 201);
    for path in ["tenants/two/users", "tenants/three/users", "tenants/root/keys", "tenants/two"] {
        ensure!(call(&one, "GET", path)? == denied, "{path}");
    }
    for path in ["tenants/one", "tenants/four", "tenants/two/users/spy", "tenants/root/users/spy"] {
        ensure!(call(&one, "PUT", path)? == denied, "{path}");
    }
    let (_, tenants) = world.call(&one, "GET", "tenants", None)?;
    ensure!(tenants["tenants"].as_array().is_some_and(|all| all.len() == 1), "{tenants}");
    // S3's actions are not the administration's, and to read is not to write.
    ensure!(call(&user, "GET", "tenants/self/users")? == denied);
    ensure!(call(&reader, "GET", "tenants/self/users")?.0 == 200);
    ensure!(call(&reader, "PUT", "tenants/self/users/spy")? == denied);
    ensure!(call(&reader, "DELETE", "tenants/self/users/new")? == denied);
    // A key's id stands for one holder for ever.
    let stolen = format!("tenants/two/keys/{}", one.access_key);
    let root = world.server.credentials();
    let (status, json) = world.call(root, "PUT", &stolen, Some(&json!({})))?;
    ensure!(status == 409 && code(&json) == "AlreadyExists", "{json}");
    let own = format!("tenants/one/keys/{}", root.access_key);
    ensure!(call(root, "PUT", &own)? == denied, "the configured root's key is not to be taken");
    Ok(())
}

#[test]
fn calls_may_be_repeated_and_refusals_are_typed() -> Result<()> {
    let world = World::start()?;
    let root = world.server.credentials().clone();
    let call = |method: &str, path: &str, document: Option<Value>| -> Result<(u16, String)> {
        let (status, json) = world.call(&root, method, path, document.as_ref())?;
        Ok((status, code(&json).to_owned()))
    };
    let ok = |status: u16| (status, String::new());
    let refused = |status: u16, code: &str| (status, code.to_owned());
    for status in [201, 200, 200] {
        ensure!(call("PUT", "tenants/acme", Some(json!({})))? == ok(status));
    }
    let text = policy(&[statement("Allow", &["s3:*"], &["*"])]);
    for status in [201, 200] {
        let document = json!({ "document": text });
        ensure!(call("PUT", "tenants/acme/policies/p", Some(document))? == ok(status));
        let group = json!({ "policies": ["p"] });
        ensure!(call("PUT", "tenants/acme/groups/g", Some(group))? == ok(status));
        let user = json!({ "groups": ["g"], "tags": { "team": "x" } });
        ensure!(call("PUT", "tenants/acme/users/u", Some(user))? == ok(status));
        let key = json!({ "user": "u", "secret": "0123456789abcdef" });
        ensure!(call("PUT", "tenants/acme/keys/KEYU", Some(key))? == ok(status));
    }
    let (_, user) = world.call(&root, "GET", "tenants/acme/users/u", None)?;
    ensure!(user["arn"].as_str().is_some_and(|arn| arn.ends_with(":user/u")), "{user}");
    for (method, path, document, expected) in [
        (
            "PUT",
            "tenants/acme/keys/KEYU",
            json!({ "user": "u", "secret": "another-secret-0" }),
            refused(409, "SecretChanged"),
        ),
        ("PUT", "tenants/acme/keys/K", json!({ "user": "u" }), refused(400, "InvalidCredentials")),
        (
            "PUT",
            "tenants/acme/keys/KEYV",
            json!({ "user": "u", "secret": "short" }),
            refused(400, "InvalidCredentials"),
        ),
        ("PUT", "tenants/acme/keys/KEYV", json!({ "user": "v" }), refused(404, "NoSuchUser")),
        ("PUT", "tenants/acme/users/v", json!({ "groups": ["h"] }), refused(404, "NoSuchGroup")),
        ("PUT", "tenants/acme/users/v", json!({ "policies": ["q"] }), refused(404, "NoSuchPolicy")),
        ("PUT", "tenants/acme/users/v", json!({ "strange": 1 }), refused(400, "MalformedJSON")),
        ("PUT", "tenants/acme/users/root", json!({}), refused(400, "InvalidName")),
        (
            "PUT",
            "tenants/acme/policies/q",
            json!({ "document": "{}" }),
            refused(400, "MalformedPolicy"),
        ),
        ("PUT", "tenants/root", json!({ "state": "suspended" }), refused(403, "AccessDenied")),
        ("PUT", "tenants/000000000099", json!({}), refused(400, "InvalidName")),
        ("PUT", "tenants/x/users/y", json!({}), refused(404, "NoSuchTenant")),
        ("POST", "tenants/acme", json!({}), refused(405, "MethodNotAllowed")),
        ("GET", "nothing", Value::Null, refused(404, "NoSuchEndpoint")),
        ("GET", "tenants/acme/users/v", Value::Null, refused(404, "NoSuchUser")),
        ("DELETE", "tenants/acme", Value::Null, refused(409, "StillActive")),
        ("DELETE", "tenants/acme/users/u", Value::Null, refused(409, "InUse")),
        ("DELETE", "tenants/acme/groups/g", Value::Null, refused(409, "InUse")),
        ("DELETE", "tenants/acme/policies/p", Value::Null, refused(409, "InUse")),
    ] {
        let document = (!document.is_null()).then_some(document);
        let found = call(method, path, document)?;
        ensure!(found == expected, "{method} {path}: {found:?} and not {expected:?}");
    }
    for path in ["keys/KEYU", "users/u", "groups/g", "policies/p"] {
        for _ in 0..2 {
            ensure!(call("DELETE", &format!("tenants/acme/{path}"), None)? == ok(204), "{path}");
        }
    }
    ensure!(call("PUT", "tenants/acme", Some(json!({ "state": "suspended" })))? == ok(200));
    for _ in 0..2 {
        ensure!(call("DELETE", "tenants/acme", None)? == ok(204));
    }
    Ok(())
}

#[test]
fn the_commands_do_it_all() -> Result<()> {
    let world = World::start()?;
    let run = |arguments: &[&str]| world.admin(arguments);
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("policy.json");
    std::fs::write(&file, policy(&[statement("Allow", &["s3:*"], &["*"])]))?;
    let file = file.to_str().context("a path")?;
    run(&["tenant", "create", "acme"])?;
    run(&["tenant", "create", "acme"])?;
    run(&["policy", "stored", "--tenant", "acme", "put", "all", file])?;
    run(&["group", "--tenant", "acme", "put", "team", "--policy", "all"])?;
    run(&["user", "--tenant", "acme", "put", "anna", "--group", "team", "--tag", "a=b"])?;
    let key = run(&["key", "--tenant", "acme", "create", "--user", "anna"])?;
    let word = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
    let anna = Credentials { access_key: word("id"), secret_key: word("secret") };
    expect(&world.s3(&anna).create_bucket("data")?, 200)?;
    let rotated = run(&["key", "--tenant", "acme", "rotate", &anna.access_key])?;
    let word = |name: &str| rotated[name].as_str().unwrap_or_default().to_owned();
    let new = Credentials { access_key: word("id"), secret_key: word("secret") };
    expect(&world.s3(&new).put("data", "a", b"x")?, 200)?;
    expect(&world.s3(&anna).put("data", "b", b"x")?, 200)?;
    run(&["key", "--tenant", "acme", "disable", &anna.access_key])?;
    refused(&world.s3(&anna).get("data", "b")?, 403, "InvalidAccessKeyId")?;
    run(&["user", "--tenant", "acme", "suspend", "anna"])?;
    refused(&world.s3(&new).get("data", "a")?, 403, "InvalidAccessKeyId")?;
    run(&["user", "--tenant", "acme", "resume", "anna"])?;
    expect(&world.s3(&new).get("data", "a")?, 200)?;
    // A file says the same, as often as it is applied; what it does not name goes with --prune.
    let accounts = dir.path().join("accounts.json");
    let text = json!({ "tenants": { "acme": {
        "policies": { "all": { "Version": "2012-10-17", "Statement": [
            { "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*" },
        ] } },
        "groups": { "team": { "policies": ["all"] } },
        "users": { "anna": { "groups": ["team"] }, "carl": { "policies": ["all"] } },
    } } });
    std::fs::write(&accounts, text.to_string())?;
    let accounts = accounts.to_str().context("a path")?;
    run(&["apply", "--dry-run", "--file", accounts])?;
    expect(&world.s3(&new).put("data", "c", b"x")?, 200)?;
    for _ in 0..2 {
        run(&["apply", "--file", accounts])?;
        expect(&world.s3(&new).get("data", "a")?, 200)?;
        crate::world::denied(&world.s3(&new).put("data", "c", b"x")?)?;
    }
    run(&["apply", "--prune", "--file", accounts])?;
    refused(&world.s3(&new).get("data", "a")?, 403, "InvalidAccessKeyId")?;
    run(&["tenant", "suspend", "acme"])?;
    let told = run(&["tenant", "show", "acme"])?;
    ensure!(told["state"] == "suspended", "{told}");
    Ok(())
}

#[test]
fn the_openapi_document_is_current() -> Result<()> {
    let output = Command::new(binary()?).args(["admin", "openapi"]).output()?;
    ensure!(output.status.success());
    let committed = std::fs::read(root().join("docs/openapi.json"))?;
    ensure!(output.stdout == committed, "run: keyway admin openapi > docs/openapi.json");
    Ok(())
}
