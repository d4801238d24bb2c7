//! Web identities: roles for whom an issuer vouches, and for nobody else.

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::wire::{Request, element};
use serde_json::{Value, json};

use crate::idp::{Idp, Key};
use crate::temporary::{Temporary, arn, sts, sts_refused};
use crate::web::{CALL, Scene, unsigned};
use crate::world::{denied, expect, policy, refused, statement, to};

#[test]
fn a_web_identity_takes_a_role_and_does_what_its_policies_allow() -> Result<()> {
    let mut keys = vec![Key::p256("ec")?, Key::ed25519("ed")?];
    match Key::rsa("rsa")? {
        Some(key) => keys.push(key),
        None => skipped("web_identity: RSA", "there is no openssl"),
    }
    let idp = Idp::start(&keys.iter().collect::<Vec<_>>())?;
    let scene = Scene::patient(&idp)?;
    let world = &scene.world;
    for key in &keys {
        let token = key.token(&idp.claims("project:train"))?;
        let response = scene.ask(&token, &[])?;
        expect(&response, 200)?;
        let text = response.text();
        let session = "arn:aws:sts::000000000001:assumed-role/reader/job-1";
        ensure!(text.starts_with("<AssumeRoleWithWebIdentityResponse "), "{text}");
        for (name, expected) in [
            ("SubjectFromWebIdentityToken", "project:train"),
            ("Audience", "keyway"),
            ("Provider", &idp.issuer()),
            ("Arn", session),
        ] {
            ensure!(element(&text, name) == Some(expected), "{name}: {text}");
        }
        let reader = Temporary::of(&response)?;
        expect(&reader.get(world, "open/a")?, 200)?;
        denied(&reader.send(world, Request::object("PUT", "data", "b").body("x"))?)?;
        let who =
            sts(world, &reader.keys, Some(&reader.token), &[("Action", "GetCallerIdentity")])?;
        ensure!(element(&who.text(), "Arn") == Some(session), "{}", who.text());
    }
    // It is asked for its keys once, for all of them.
    ensure!(idp.asked() == 1, "asked {} times", idp.asked());
    let token = keys[0].token(&idp.claims("project:train"))?;
    let narrow = policy(&[statement("Allow", &["s3:*"], &["data/open/*"])]);
    let narrowed = scene.taken(&token, &[("Policy", &narrow), ("DurationSeconds", "900")])?;
    expect(&narrowed.get(world, "open/a")?, 200)?;
    denied(&narrowed.get(world, "shut/a")?)?;
    for (more, code) in [
        (("DurationSeconds", "3601"), "ValidationError"),
        (("DurationSeconds", "899"), "ValidationError"),
        (("Policy", "{}"), "MalformedPolicyDocument"),
        (("RoleArn", "reader"), "ValidationError"),
        (("ProviderId", "www.amazon.com"), "ValidationError"),
    ] {
        sts_refused(&scene.ask(&token, &[more])?, 400, code).with_context(|| code.to_owned())?;
    }
    // The trust policy decides, by who it is; and nobody takes a role that does not name the provider.
    scene.no(&keys[0].token(&idp.claims("other:train"))?, "AccessDenied")?;
    scene.role("foreign", "idp.example.com")?;
    let open = policy(&[json!({ "Effect": "Allow", "Action": CALL, "Principal": "*" })]);
    world.put("tenants/one/roles/open", &json!({ "trust": open, "policies": ["read"] }))?;
    for role in ["foreign", "open", "none"] {
        let answer = scene.ask(&token, &[("RoleArn", &arn(role))])?;
        sts_refused(&answer, 403, "AccessDenied").with_context(|| role.to_owned())?;
    }
    // Another tenant does not know the issuer.
    world.tenant("two")?;
    let elsewhere = arn("reader").replace("000000000001", "000000000002");
    sts_refused(&scene.ask(&token, &[("RoleArn", &elsewhere)])?, 400, "InvalidIdentityToken")?;
    // In the session policies know who it is, and what vouched.
    let mut own = statement("Deny", &["s3:GetObject"], &["data/*"]);
    own["Condition"] =
        json!({ "StringEquals": { format!("{}:sub", idp.name()): "project:stopped" } });
    let read = [statement("Allow", &["s3:GetObject"], &["data*"]), own];
    world.put("tenants/one/policies/read", &json!({ "document": policy(&read) }))?;
    expect(&scene.taken(&token, &[])?.get(world, "open/a")?, 200)?;
    let stopped = scene.taken(&keys[0].token(&idp.claims("project:stopped"))?, &[])?;
    denied(&stopped.get(world, "open/a")?)?;
    // The other calls need a signature.
    for action in ["GetCallerIdentity", "GetSessionToken"] {
        let answer = unsigned(world, &[("Action", action)])?;
        sts_refused(&answer, 403, "MissingAuthenticationToken")?;
    }
    // The audit log tells who was to be what, and has no token.
    let mut world = scene.world;
    world.server.terminate()?;
    let text = std::fs::read_to_string(world.server.data_dir().join("audit.jsonl"))?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let who = format!("{}:keyway:project:train", idp.name());
    let told = |event: &str| {
        lines.iter().any(|line| line["event"] == event && line["caller"] == who.as_str())
    };
    ensure!(told("sts") && told("denied"), "{text}");
    let part = token.rsplit('.').next().context("it is signed")?;
    ensure!(!text.contains(part) && !world.server.log().contains(part), "a token was written down");
    Ok(())
}

#[test]
fn who_is_cut_off_stays_out() -> Result<()> {
    let key = Key::p256("a")?;
    let idp = Idp::start(&[&key])?;
    let scene = Scene::patient(&idp)?;
    let world = &scene.world;
    let token = key.token(&idp.claims("project:a"))?;
    let root = world.server.credentials();
    let out =
        |session: &Temporary| refused(&session.get(world, "open/a")?, 403, "InvalidAccessKeyId");
    let begin = || -> Result<Temporary> {
        let session = scene.taken(&token, &[])?;
        expect(&session.get(world, "open/a")?, 200)?;
        Ok(session)
    };
    // The provider is gone: nobody is vouched for, and nobody was.
    let session = begin()?;
    let provider = "tenants/one/providers/hub";
    ensure!(world.call(root, "DELETE", provider, None)?.0 == 204);
    ensure!(world.call(root, "DELETE", provider, None)?.0 == 204, "it may be repeated");
    scene.no(&token, "InvalidIdentityToken")?;
    out(&session)?;
    // One of the same name is another one.
    scene.provider(&idp, &["keyway"])?;
    out(&session)?;
    // An audience that it is not heard for any more.
    let session = begin()?;
    scene.provider(&idp, &["keyway", "more"])?;
    expect(&session.get(world, "open/a")?, 200)?;
    scene.provider(&idp, &["more"])?;
    scene.no(&token, "InvalidIdentityToken")?;
    out(&session)?;
    scene.provider(&idp, &["keyway"])?;
    // The role's sessions until now, the role, and the tenant.
    let session = begin()?;
    let (_, mut role) = world.call(root, "GET", "tenants/one/roles/reader", None)?;
    for told in ["name", "id", "arn", "created"] {
        role.as_object_mut().context("a document")?.remove(told);
    }
    role["sessions_valid_from"] = json!("9999-01-01T00:00:00Z");
    world.put("tenants/one/roles/reader", &role)?;
    out(&session)?;
    let session = begin()?;
    world.put("tenants/one", &json!({ "state": "suspended" }))?;
    scene.no(&token, "InvalidIdentityToken")?;
    out(&session)?;
    world.put("tenants/one", &json!({}))?;
    let session = begin()?;
    ensure!(world.call(root, "DELETE", "tenants/one/roles/reader", None)?.0 == 204);
    out(&session)?;
    scene.no(&token, "AccessDenied")?;
    // A role that was taken in the session ends with it.
    scene.role("reader", &idp.name())?;
    let chain = to(
        json!({ "AWS": arn("reader") }),
        json!({ "Effect": "Allow", "Action": "sts:AssumeRole" }),
    );
    world.put(
        "tenants/one/roles/second",
        &json!({ "trust": policy(&[chain]), "policies": ["read"] }),
    )?;
    let session = begin()?;
    let (second, seconds) = (arn("second"), "900");
    let form = [
        ("Action", "AssumeRole"),
        ("RoleArn", &*second),
        ("RoleSessionName", "job"),
        ("DurationSeconds", seconds),
    ];
    let second = Temporary::of(&sts(world, &session.keys, Some(&session.token), &form)?)?;
    expect(&second.get(world, "open/a")?, 200)?;
    ensure!(world.call(root, "DELETE", provider, None)?.0 == 204);
    out(&second)
}

#[test]
fn the_commands_make_providers_behind_tls() -> Result<()> {
    let key = Key::p256("a")?;
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let private =
        rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], private.into())?;
    let idp = Idp::with_tls(&[&key], tls)?;
    // Its certificate is of no authority that the system knows.
    let scene = Scene::patient(&idp)?;
    let world = &scene.world;
    let token = key.token(&idp.claims("project:a"))?;
    scene.no(&token, "IDPCommunicationError")?;
    let root = world.server.credentials();
    let run = |arguments: &[&str]| world.admin(arguments);
    let provider = |more: &[&str]| run(&[&["provider", "--tenant", "one"], more].concat());
    let dir = tempfile::tempdir()?;
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, certified.cert.pem())?;
    let ca = ca.to_str().context("a path")?;
    let issuer = idp.issuer();
    let put = ["put", "hub", "--issuer", &issuer, "--audience", "keyway", "--ca-file", ca];
    let made = provider(&put)?;
    let named = format!("arn:aws:iam::000000000001:oidc-provider/{}", idp.name());
    ensure!(made["arn"] == named.as_str() && made["audiences"] == json!(["keyway"]), "{made}");
    ensure!(provider(&put)? == made, "to say it again changes nothing");
    let session = scene.taken(&token, &[])?;
    expect(&session.get(world, "open/a")?, 200)?;
    // A file says the same, and what it does not name goes with --prune.
    let file = dir.path().join("accounts.json");
    let text = json!({ "tenants": { "one": {
        "policies": { "read": policy(&[statement("Allow", &["s3:GetObject"], &["*"])]) },
        "providers": { "hub": { "issuer": issuer, "audiences": ["keyway"], "ca_file": ca } },
        "roles": { "reader": { "policies": ["read"], "trust": { "Statement": {
            "Effect": "Allow", "Action": CALL, "Principal": { "Federated": named },
        } } } },
    } } });
    std::fs::write(&file, text.to_string())?;
    let file = file.to_str().context("a path")?;
    for _ in 0..2 {
        run(&["apply", "--file", file])?;
    }
    ensure!(provider(&["get", "hub"])? == made);
    expect(&session.get(world, "open/a")?, 200)?;
    let more = ["put", "other", "--issuer", "https://idp.example.com", "--audience", "keyway"];
    provider(&more)?;
    let count = || -> Result<usize> {
        let told = provider(&["list"])?;
        Ok(told["providers"].as_array().context("a list")?.len())
    };
    ensure!(count()? == 2);
    run(&["apply", "--prune", "--file", file])?;
    ensure!(count()? == 1);
    provider(&["delete", "hub"])?;
    ensure!(count()? == 0);
    refused(&session.get(world, "open/a")?, 403, "InvalidAccessKeyId")?;
    // What is no provider is refused, and nothing is changed.
    for (document, code) in [
        (json!({ "issuer": "http://idp.example.com" }), "InvalidIssuer"),
        (json!({ "issuer": "https://idp.example.com?x" }), "InvalidIssuer"),
        (json!({ "issuer": "https://idp.example.com", "audiences": [""] }), "InvalidArgument"),
        (json!({ "issuer": "https://idp.example.com", "ca_pem": "no" }), "InvalidCertificate"),
        (json!({ "audiences": ["keyway"] }), "MalformedJSON"),
    ] {
        let (status, told) =
            world.call(root, "PUT", "tenants/one/providers/odd", Some(&document))?;
        ensure!(status == 400 && told["error"]["code"] == code, "{document}: {status} {told}");
    }
    ensure!(count()? == 0);
    world.put("tenants/one/providers/a", &json!({ "issuer": "https://idp.example.com" }))?;
    let again = json!({ "issuer": "https://idp.example.com" });
    let (status, told) = world.call(root, "PUT", "tenants/one/providers/b", Some(&again))?;
    ensure!(status == 409 && told["error"]["code"] == "AlreadyExists", "{told}");
    // Whoever may not administer does not reach it.
    let anna = world.user("one", "anna", &[statement("Allow", &["s3:*"], &["*"])])?;
    let (status, _) = world.call(&anna, "PUT", "tenants/one/providers/c", Some(&again))?;
    ensure!(status == 403, "{status}");
    Ok(())
}
