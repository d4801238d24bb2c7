//! Cutting off: sessions end and keys in flight are fenced within a second, over `ipc-host`.

#![allow(clippy::print_stdout, reason = "what was measured is told")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use keyway_client::{Client, HostBuffer, PathPolicy, RetryPolicy};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::wire::Request;
use keyway_proto::TransferPath;
use serde_json::{Value, json};

use crate::temporary;
use crate::world::{World, expect, policy, statement};

const MIB: usize = 1 << 20;
/// What the issue promises.
const WITHIN: Duration = Duration::from_secs(1);

/// No second attempt: what was refused is to be seen.
fn once() -> RetryPolicy {
    RetryPolicy { attempts_max: 1, ..RetryPolicy::default() }
}

fn client(world: &World, who: &Credentials) -> Result<Client> {
    let credentials = keyway_client::Credentials::new(&who.access_key, who.secret_key.as_str());
    Ok(Client::builder()
        .endpoint(world.server.url())
        .credentials(credentials)
        .path(PathPolicy::Require(TransferPath::IpcHost))
        .retry(once())
        .build()?)
}

/// Goal: somebody who is cut off while transfers run moves no byte a second later, whatever was
/// cut off: key, user or tenant. Method: a loop of large GETs into shared memory; the change; the
/// time until the loop fails and the node has no session of theirs. Others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_under_way_end_within_a_second() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    world.tenant("two")?;
    let (owner, other) = (world.key("one", None)?, world.key("two", None)?);
    for who in [&owner, &other] {
        expect(&world.s3(who).create_bucket("data")?, 200)?;
        expect(&world.s3(who).put("data", "large", &payload(1, 32 * MIB))?, 200)?;
    }
    world.put(
        "tenants/one/policies/all",
        &json!({ "document": policy(&[statement("Allow", &["s3:*"], &["*"])]) }),
    )?;
    let user = json!({ "policies": ["all"] });
    world.put("tenants/one/users/anna", &user)?;
    let neighbour = client(&world, &other)?;
    let mut memory = HostBuffer::shared(32 * MIB)?;
    let mut slice = memory.slice_mut(..)?;
    slice = neighbour.get_object("data", "large").into(slice).await?.target;

    for what in ["key", "user", "tenant", "expiry", "deletion"] {
        let anna = world.key("one", Some("anna"))?;
        let at = format!("tenants/one/keys/{}", anna.access_key);
        let moved = Arc::new(AtomicU64::new(0));
        let looped = tokio::spawn(get_until_refused(client(&world, &anna)?, Arc::clone(&moved)));
        let begun = Instant::now();
        while moved.load(Ordering::Relaxed) < 3 {
            ensure!(begun.elapsed() < Duration::from_secs(30), "{what}: no transfer went well");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let cut = Instant::now();
        let mut allowed = WITHIN;
        match what {
            "key" => drop(world.put(&at, &json!({ "user": "anna", "state": "disabled" }))?),
            "user" => {
                let suspended = json!({ "policies": ["all"], "state": "suspended" });
                world.put("tenants/one/users/anna", &suspended)?;
            }
            "tenant" => drop(world.put("tenants/one", &json!({ "state": "suspended" }))?),
            "expiry" => {
                let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(300);
                world.put(&at, &json!({ "user": "anna", "expires": expires }))?;
                allowed += Duration::from_millis(300);
            }
            _ => {
                let call = world.call(world.server.credentials(), "DELETE", &at, None)?;
                ensure!(call == (204, Value::Null), "{call:?}");
            }
        }
        let answered = cut.elapsed();
        let last = tokio::time::timeout(Duration::from_secs(30), looped).await;
        let last = last.context("the transfers went on")??;
        let ended = last.duration_since(cut);
        // The last transfer that went well was over by then.
        ensure!(ended <= allowed, "{what}: bytes moved for {ended:?}");
        println!("{what}: the change took {answered:?}, the last byte moved after {ended:?}");
        slice = neighbour.get_object("data", "large").into(slice).await?.target;
        world.put("tenants/one", &json!({}))?;
        world.put("tenants/one/users/anna", &user)?;
    }
    ensure!(neighbour.rdma_stats().failures == 0, "the neighbour was disturbed");
    Ok(())
}

/// Goal: the same for temporary credentials, whose sessions with nodes go by their own key: they
/// end with the role, with the user who took it, and with the key that it was taken with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_in_a_role_end_within_a_second() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    expect(&world.s3(&owner).put("data", "large", &payload(1, 32 * MIB))?, 200)?;
    let all = policy(&[statement("Allow", &["s3:*"], &["*"])]);
    world.put("tenants/one/policies/all", &json!({ "document": all }))?;
    world.put("tenants/one/users/anna", &json!({}))?;
    let trusted = temporary::trust(&temporary::user("anna"), None);
    let role = |more: &str, value: Value| -> Result<()> {
        let mut document = json!({ "trust": trusted, "policies": ["all"] });
        document[more] = value;
        world.put("tenants/one/roles/mover", &document).map(drop)
    };
    for what in ["suspension", "revocation", "user", "key"] {
        role("state", json!("active"))?;
        world.put("tenants/one/users/anna", &json!({}))?;
        let anna = world.key("one", Some("anna"))?;
        let mover = temporary::taken(&world, &anna, "mover", &[])?;
        let moved = Arc::new(AtomicU64::new(0));
        let credentials =
            keyway_client::Credentials::new(&mover.keys.access_key, &*mover.keys.secret_key);
        let client = Client::builder()
            .endpoint(world.server.url())
            .credentials(credentials.with_session_token(&*mover.token))
            .path(PathPolicy::Require(TransferPath::IpcHost))
            .retry(once())
            .build()?;
        let looped = tokio::spawn(get_until_refused(client, Arc::clone(&moved)));
        let begun = Instant::now();
        while moved.load(Ordering::Relaxed) < 3 {
            ensure!(begun.elapsed() < Duration::from_secs(30), "{what}: no transfer went well");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let cut = Instant::now();
        let (path, change) = match what {
            "suspension" | "revocation" => {
                let (field, value) = match what {
                    "suspension" => ("state", "suspended"),
                    _ => ("sessions_valid_from", "9999-01-01T00:00:00Z"),
                };
                let mut document = json!({ "trust": trusted, "policies": ["all"] });
                document[field] = json!(value);
                ("tenants/one/roles/mover".to_owned(), document)
            }
            "user" => ("tenants/one/users/anna".to_owned(), json!({ "state": "suspended" })),
            _ => (
                format!("tenants/one/keys/{}", anna.access_key),
                json!({ "user": "anna", "state": "disabled" }),
            ),
        };
        let request = Request::new("PUT", format!("/_keyway/v1/admin/{path}"));
        let answer = world.root().send(request.body(change.to_string()))?;
        expect(&answer, 200)?;
        let closed = answer.header("x-keyway-sessions-closed");
        ensure!(closed.is_some_and(|closed| closed != "0"), "{what}: {closed:?} were closed");
        let last = tokio::time::timeout(Duration::from_secs(30), looped).await;
        let ended = last.context("the transfers went on")??.duration_since(cut);
        ensure!(ended <= WITHIN, "{what}: bytes moved for {ended:?}");
        println!("{what}: the last byte moved after {ended:?}");
    }
    Ok(())
}

/// Reads the object again and again; gives when the last read that went well was over.
async fn get_until_refused(client: Client, moved: Arc<AtomicU64>) -> Instant {
    let Ok(mut memory) = HostBuffer::shared(32 * MIB) else { return Instant::now() };
    let mut last = Instant::now();
    loop {
        let Ok(slice) = memory.slice_mut(..) else { return last };
        match client.get_object("data", "large").into(slice).await {
            Ok(got) => drop(got),
            Err(_) => return last,
        }
        last = Instant::now();
        moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// Goal: policies gate direct transfers, and say what strength they ask for; the bytes go over
/// HTTP where that is allowed, and do not where it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gates_are_asked_before_bytes_move() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    expect(&world.s3(&owner).put("data", "a", &payload(1, MIB))?, 200)?;
    let no_rdma = statement("Deny", &["keyway:Rdma*"], &["data/*"]);
    let mut window = no_rdma.clone();
    window["Condition"] = json!({ "StringNotEquals": { "keyway:KeyStrength": "window" } });
    let mut ipc = no_rdma.clone();
    ipc["Condition"] = json!({ "StringNotLike": { "keyway:Path": "ipc-*" } });
    let mut no_http = statement("Deny", &["s3:GetObject"], &["data/*"]);
    no_http["Condition"] = json!({ "StringEquals": { "keyway:Path": "http" } });
    let mut memory = HostBuffer::shared(MIB)?;
    for (name, more, expected) in [
        ("plain", None, Some(TransferPath::IpcHost)),
        ("ipc", Some(vec![ipc]), Some(TransferPath::IpcHost)),
        ("window", Some(vec![window.clone()]), Some(TransferPath::Http)),
        ("none", Some(vec![no_rdma.clone()]), Some(TransferPath::Http)),
        ("direct", Some(vec![no_http.clone()]), Some(TransferPath::IpcHost)),
        ("nothing", Some(vec![no_rdma, no_http]), None),
    ] {
        let mut statements = vec![statement("Allow", &["s3:*"], &["*"])];
        statements.extend(more.unwrap_or_default());
        let who = world.user("one", name, &statements)?;
        let credentials = keyway_client::Credentials::new(&who.access_key, &*who.secret_key);
        let client = Client::builder()
            .endpoint(world.server.url())
            .credentials(credentials)
            .retry(once())
            .build()?;
        let got = client.get_object("data", "a").into(memory.slice_mut(..)?).await;
        match (got, expected) {
            (Ok(got), Some(path)) => ensure!(got.path == path, "{name}: by {}", got.path),
            (Err(_), None) => {}
            (Ok(got), None) => bail!("{name}: got by {}", got.path),
            (Err(error), Some(_)) => bail!("{name}: {error:?}"),
        }
        if expected == Some(TransferPath::Http) {
            let mut source = HostBuffer::shared(MIB)?;
            let put = client.put_object("data", "b").body(source.slice(..)?).send().await?;
            ensure!(put.path == TransferPath::Http, "{name}: put by {}", put.path);
        }
    }
    Ok(())
}
