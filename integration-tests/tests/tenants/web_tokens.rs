//! Web identities: tokens that are none, issuers that fail, and strangers who try.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use keyway_integration_tests::wire::element;
use serde_json::{Value, json};

use crate::idp::{Idp, Key, Manner, message, now_s};
use crate::web::Scene;
use crate::world::expect;

#[test]
fn tokens_that_are_none_open_nothing() -> Result<()> {
    let (key, stranger) = (Key::p256("a")?, Key::p256("a")?);
    let idp = Idp::start(&[&key])?;
    let scene = Scene::patient(&idp)?;
    let good = || idp.claims("project:train");
    let with = |name: &str, value: Value| {
        let mut claims = good();
        claims[name] = value;
        key.token(&claims)
    };
    scene.taken(&key.token(&good())?, &[])?;
    scene.no(&stranger.token(&good())?, "InvalidIdentityToken")?;
    let header = json!({ "alg": "ES256", "kid": "b" });
    scene.no(&key.token_with(&header, &good())?, "InvalidIdentityToken")?;
    scene.no(&with("exp", json!(now_s() - 120))?, "ExpiredTokenException")?;
    for (name, value) in [
        ("aud", json!("other")),
        ("azp", json!("other")),
        ("iss", json!("https://idp.example.com")),
        ("sub", Value::Null),
        ("nbf", json!(now_s() + 600)),
        ("iat", json!(now_s() + 600)),
    ] {
        scene.no(&with(name, value)?, "InvalidIdentityToken").with_context(|| name.to_owned())?;
    }
    // No signature at all, and one with what everybody knows as a secret.
    let bare = message(&json!({ "alg": "none" }), &good());
    scene.no(&format!("{bare}."), "InvalidIdentityToken")?;
    let public = key.public();
    for secret in [public.to_string(), public["x"].as_str().unwrap_or_default().to_owned()] {
        let text = message(&json!({ "alg": "HS256", "kid": "a" }), &good());
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes())?;
        mac.update(text.as_bytes());
        let token = format!("{text}.{}", BASE64.encode(mac.finalize().into_bytes()));
        scene.no(&token, "InvalidIdentityToken")?;
    }
    if let Some(rsa) = Key::rsa("r")? {
        idp.change(|manner| manner.keys.push(rsa.public()));
        scene.taken(&rsa.token(&good())?, &[])?;
        // Another algorithm than the key is for.
        let header = json!({ "alg": "PS256", "kid": "r" });
        scene.no(&rsa.token_with(&header, &good())?, "InvalidIdentityToken")?;
    }
    // A key that the token itself brings.
    let header = json!({ "alg": "ES256", "kid": "a", "jwk": stranger.public() });
    scene.no(&stranger.token_with(&header, &good())?, "InvalidIdentityToken")?;
    for text in ["nonsense", "a.b.c", "....", &"x".repeat(19_000)] {
        scene.no(text, "InvalidIdentityToken").with_context(|| format!("{text:.20}"))?;
    }
    scene.no(&"x".repeat(20_001), "ValidationError")?;
    scene.taken(&key.token(&good())?, &[])?;
    Ok(())
}

#[test]
fn keys_change_and_issuers_are_not_asked_for_every_token() -> Result<()> {
    let (old, new) = (Key::p256("old")?, Key::p256("new")?);
    let idp = Idp::start(&[&old])?;
    let scene = Scene::patient(&idp)?;
    scene.taken(&old.token(&idp.claims("project:a"))?, &[])?;
    idp.change(|manner| manner.keys = vec![new.public()]);
    scene.taken(&new.token(&idp.claims("project:a"))?, &[])?;
    scene.no(&old.token(&idp.claims("project:a"))?, "InvalidIdentityToken")?;

    // Whatever keys strangers name, and however many come at once: the issuer is asked once.
    let idp = Idp::start(&[&old])?;
    let slow = "[auth]\nfailures_burst = 0\n[oidc]\nrefetch_interval_ms = 600000\n";
    let scene = Scene::start(&idp, slow)?;
    idp.change(|manner| manner.pause = Duration::from_millis(300));
    let token = old.token(&idp.claims("project:a"))?;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| scene.taken(&token, &[]))).collect();
        all.into_iter().try_for_each(|one| match one.join() {
            Ok(taken) => taken.map(drop),
            Err(_) => anyhow::bail!("a thread panicked"),
        })
    })?;
    ensure!(idp.asked() == 1, "asked {} times", idp.asked());
    for number in 0..20 {
        let header = json!({ "alg": "ES256", "kid": format!("guess-{number}") });
        let guess = old.token_with(&header, &idp.claims("project:a"))?;
        scene.no(&guess, "InvalidIdentityToken")?;
    }
    ensure!(idp.asked() == 1, "asked {} times", idp.asked());
    scene.taken(&token, &[])?;
    Ok(())
}

#[test]
fn issuers_that_fail_are_not_waited_for() -> Result<()> {
    let key = Key::p256("a")?;
    let idp = Idp::start(&[&key])?;
    let scene = Scene::patient(&idp)?;
    let token = key.token(&idp.claims("project:a"))?;
    let elsewhere = TcpListener::bind("127.0.0.1:0")?;
    let other = format!("http://{}/keys", elsewhere.local_addr()?);
    type Fault = Box<dyn Fn(&mut Manner)>;
    let answer = |text: &str| -> Fault {
        let text = text.as_bytes().to_vec();
        Box::new(move |manner| manner.instead = Some(text.clone()))
    };
    let moved = format!("HTTP/1.1 302 Found\r\nlocation: {other}\r\ncontent-length: 0\r\n\r\n");
    let faults: Vec<(&str, Fault)> = vec![
        ("slow", Box::new(|manner| manner.pause = Duration::from_secs(20))),
        ("large", Box::new(|manner| manner.padding = 1 << 20)),
        ("many", Box::new(|manner| manner.keys = vec![json!({}); 65])),
        (
            "of another",
            Box::new(|manner| manner.describes = Some("https://idp.example.com".to_owned())),
        ),
        (
            "keys in the clear",
            Box::new(|manner| manner.keys_at = Some("http://192.0.2.1/keys".to_owned())),
        ),
        (
            "no keys' address",
            Box::new(|manner| manner.keys_at = Some("file:///etc/passwd".to_owned())),
        ),
        ("moved", answer(&moved)),
        ("broken", answer("HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n")),
        ("no HTTP", answer("SSH-2.0-x\r\n")),
        ("endless", answer(&format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(1 << 20)))),
        ("no JSON", answer("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]")),
    ];
    for (name, fault) in &faults {
        idp.change(|manner| fault(manner));
        let begun = Instant::now();
        scene.no(&token, "IDPCommunicationError").with_context(|| (*name).to_owned())?;
        ensure!(begun.elapsed() < Duration::from_secs(10), "{name} was waited for");
        idp.change(|manner| {
            *manner = Manner { keys: vec![key.public()], ..Default::default() };
        });
    }
    elsewhere.set_nonblocking(true)?;
    ensure!(elsewhere.accept().is_err(), "a redirect was followed");
    scene.taken(&token, &[])?;
    // With its keys known it may be down.
    drop(idp);
    scene.taken(&token, &[])?;
    let gone = Idp::start(&[&key])?;
    scene.provider(&gone, &["keyway"])?;
    let token = key.token(&gone.claims("project:a"))?;
    drop(gone);
    scene.no(&token, "IDPCommunicationError")
}

#[test]
fn strangers_with_tokens_are_slowed_down() -> Result<()> {
    let key = Key::p256("a")?;
    let idp = Idp::start(&[&key])?;
    let config = "[auth]\nfailures_burst = 5\nfailures_per_second = 1\npenalty_ms = 20000\n";
    let scene = Scene::start(&idp, config)?;
    let world = &scene.world;
    let neighbour = world.key("one", None)?;
    scene.taken(&key.token(&idp.claims("project:a"))?, &[])?;
    let guess = Key::p256("a")?.token(&idp.claims("project:a"))?;
    let slowed = (0..100).find_map(|number| match scene.ask(&guess, &[]) {
        Ok(answer) if answer.status == 503 => Some(Ok((number, answer))),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    let (number, answer) = slowed.context("nobody slows the guesses down")??;
    ensure!(number >= 5 && answer.header("retry-after").is_some(), "{number}: {}", answer.text());
    ensure!(element(&answer.text(), "Code") == Some("SlowDown"), "{}", answer.text());
    expect(&world.s3(&neighbour).get("data", "open/a")?, 200)?;
    let mut world = scene.world;
    world.server.terminate()?;
    let text = std::fs::read_to_string(world.server.data_dir().join("audit.jsonl"))?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    ensure!(of("penalised") == 1 && of("not-authenticated") == number, "{text}");
    Ok(())
}

/// Goal: who is vouched for makes requests of the role's tenant; whoever is not makes none of it.
#[test]
fn requests_with_tokens_count_for_the_tenant() -> Result<()> {
    let key = Key::p256("a")?;
    let idp = Idp::start(&[&key])?;
    let scene = Scene::patient(&idp)?;
    let (good, bad) = (idp.claims("project:a"), Key::p256("a")?);
    scene.world.put("tenants/one", &json!({ "limits": { "requests_per_second": 1 } }))?;
    for _ in 0..20 {
        scene.no(&bad.token(&idp.claims("project:a"))?, "InvalidIdentityToken")?;
    }
    let token = key.token(&good)?;
    let slowed = (0..50).find_map(|_| match scene.ask(&token, &[]) {
        Ok(answer) if answer.status == 503 => Some(Ok(answer)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    let answer = slowed.context("there is no limit")??;
    ensure!(element(&answer.text(), "Code") == Some("SlowDown"), "{}", answer.text());
    Ok(())
}
