//! Limits of tenants and users: requests, bytes, sessions and keys in flight.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use keyway_client::{Client, HostBuffer, PathPolicy, RetryPolicy};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::Credentials;
use keyway_proto::TransferPath;
use serde_json::{Value, json};

use crate::world::{World, expect, policy, refused, statement};

const MIB: usize = 1 << 20;

fn set(world: &World, limits: &Value) -> Result<()> {
    world.put("tenants/one", &json!({ "limits": limits }))?;
    Ok(())
}

/// A tenant with a bucket, a root key, and a user who may do all.
fn tenant(world: &World, name: &str) -> Result<(Credentials, Credentials)> {
    world.tenant(name)?;
    let owner = world.key(name, None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    let all = world.user(name, "anna", &[statement("Allow", &["s3:*", "keyway:*"], &["*"])])?;
    Ok((owner, all))
}

/// What of so many GETs went well.
fn gets(world: &World, who: &Credentials, count: usize) -> Result<usize> {
    let mut s3 = world.s3(who);
    let mut well = 0;
    for _ in 0..count {
        let answer = s3.get("data", "a")?;
        match answer.status {
            200 => well += 1,
            _ => {
                refused(&answer, 503, "SlowDown")?;
                let after = answer.header("retry-after").context("it says when")?;
                ensure!(after.parse::<u64>().is_ok_and(|seconds| seconds >= 1), "{after}");
            }
        }
    }
    Ok(well)
}

/// Goal: nobody has more requests in a second than its user and its tenant may, and no limit is
/// another's.
#[test]
fn requests_beyond_the_rate_are_told_to_slow_down() -> Result<()> {
    let world = World::start()?;
    let (owner, anna) = tenant(&world, "one")?;
    let (other, _) = tenant(&world, "two")?;
    for who in [&owner, &other] {
        expect(&world.s3(who).put("data", "a", b"x")?, 200)?;
    }
    ensure!(gets(&world, &anna, 50)? == 50, "without a limit nothing is refused");
    let rate = 5;
    set(&world, &json!({ "requests_per_second": rate }))?;
    for who in [&owner, &anna] {
        // What the one before took is earned back.
        std::thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        let well = gets(&world, who, 60)?;
        let most = rate * (2 + usize::try_from(begun.elapsed().as_secs())?);
        ensure!((1..=most).contains(&well), "{well} of at most {most}");
        ensure!(well < 60, "nothing was refused");
    }
    ensure!(gets(&world, &other, 50)? == 50, "another tenant is slowed down");
    // A user's own limit, under a tenant without one.
    set(&world, &json!({}))?;
    let user = |limits: Value| {
        world.put("tenants/one/users/anna", &json!({ "policies": ["anna-own"], "limits": limits }))
    };
    user(json!({ "requests_per_second": 2 }))?;
    ensure!(gets(&world, &owner, 50)? == 50);
    ensure!(gets(&world, &anna, 50)? < 50);
    user(json!({}))?;
    ensure!(gets(&world, &anna, 50)? == 50);
    // Whoever asks for what makes no sense is told so.
    let root = world.server.credentials();
    for (bad, code) in [
        (json!({ "limits": { "requests_per_second": 0 } }), "InvalidArgument"),
        (json!({ "limits": { "bytes_per_second": 0 } }), "InvalidArgument"),
        (json!({ "limits": { "bytes_per_second": -1 } }), "MalformedJSON"),
        (json!({ "limits": { "dreams_per_second": 1 } }), "MalformedJSON"),
    ] {
        let (status, told) = world.call(root, "PUT", "tenants/one", Some(&bad))?;
        ensure!(status == 400 && told["error"]["code"] == code, "{bad}: {status} {told}");
    }
    Ok(())
}

/// Goal: bodies take their time, in both directions, and arrive whole.
#[test]
fn bodies_are_paced() -> Result<()> {
    let world = World::start()?;
    let (owner, anna) = tenant(&world, "one")?;
    set(&world, &json!({ "bytes_per_second": MIB }))?;
    let body = payload(1, 3 * MIB);
    // A second's worth goes at once.
    let at_least = Duration::from_millis(1800);
    let begun = Instant::now();
    expect(&world.s3(&owner).put("data", "a", &body)?, 200)?;
    let (put, begun) = (begun.elapsed(), Instant::now());
    ensure!(put >= at_least, "put in {put:?}");
    let got = world.s3(&anna).get("data", "a")?;
    let took = begun.elapsed();
    ensure!(got.status == 200 && got.body == body, "{}", got.status);
    ensure!(took >= at_least, "got in {took:?}");
    // Several at once share the rate, whoever of the tenant's asks.
    expect(&world.s3(&owner).put("data", "b", &body[..MIB])?, 200)?;
    std::thread::sleep(Duration::from_secs(1));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let get = |who| -> Result<()> {
            ensure!(world.s3(who).get("data", "b")?.body == body[..MIB]);
            Ok(())
        };
        let readers = [&owner, &anna, &owner].map(|who| scope.spawn(move || get(who)));
        readers.into_iter().try_for_each(|reader| match reader.join() {
            Ok(read) => read,
            Err(_) => bail!("a reader panicked"),
        })
    })?;
    let took = begun.elapsed();
    ensure!(took >= at_least, "three at once got theirs in {took:?}");
    set(&world, &json!({}))?;
    ensure!(world.s3(&anna).get("data", "a")?.body == body);
    Ok(())
}

/// No second attempt: what was refused is to be seen.
fn client(world: &World, who: &Credentials, path: PathPolicy) -> Result<Client> {
    let credentials = keyway_client::Credentials::new(&who.access_key, who.secret_key.as_str());
    Ok(Client::builder()
        .endpoint(world.server.url())
        .credentials(credentials)
        .path(path)
        .retry(RetryPolicy { attempts_max: 1, ..RetryPolicy::default() })
        .build()?)
}

const DIRECT: PathPolicy = PathPolicy::Require(TransferPath::IpcHost);

/// Goal: who has as many sessions as it may goes over HTTP, and a session that ends makes room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_counted() -> Result<()> {
    let world = World::start()?;
    let (owner, anna) = tenant(&world, "one")?;
    expect(&world.s3(&owner).put("data", "a", &payload(1, MIB))?, 200)?;
    let all = policy(&[statement("Allow", &["*"], &["*"])]);
    world.put("tenants/one/policies/all", &json!({ "document": all }))?;
    let user = json!({ "policies": ["all"], "limits": { "sessions": 1 } });
    world.put("tenants/one/users/anna", &user)?;
    // Another key of hers is hers.
    let again = world.key("one", Some("anna"))?;
    let first = client(&world, &anna, DIRECT)?;
    ensure!(path_of(&first).await? == Some(TransferPath::IpcHost));
    for who in [&anna, &again] {
        let direct = path_of(&client(&world, who, DIRECT)?).await?;
        ensure!(direct.is_none(), "a second session was opened");
        let any = path_of(&client(&world, who, PathPolicy::Auto)?).await?;
        ensure!(any == Some(TransferPath::Http), "by {any:?}");
    }
    // Her tenant has no limit.
    let other = client(&world, &owner, DIRECT)?;
    ensure!(path_of(&other).await?.is_some());
    drop(first);
    let begun = Instant::now();
    while path_of(&client(&world, &again, DIRECT)?).await?.is_none() {
        ensure!(begun.elapsed() < Duration::from_secs(30), "no room is made");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The path of a GET; none where it is refused.
async fn path_of(client: &Client) -> Result<Option<TransferPath>> {
    let mut memory = HostBuffer::shared(MIB)?;
    let got = client.get_object("data", "a").into(memory.slice_mut(..)?).await;
    Ok(got.ok().map(|got| got.path))
}

/// Goal: keys in flight and bytes past HTTP are bounded before a key is lent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_transfers_are_bounded() -> Result<()> {
    let world = World::start()?;
    let (owner, _) = tenant(&world, "one")?;
    expect(&world.s3(&owner).put("data", "a", &payload(1, 4 * MIB))?, 200)?;
    let client = client(&world, &owner, DIRECT)?;
    let mut memory = HostBuffer::shared(4 * MIB)?;
    let mut get = async || -> Result<bool> {
        match client.get_object("data", "a").into(memory.slice_mut(..)?).await {
            Ok(got) => Ok(got.path == TransferPath::IpcHost),
            Err(error) if error.to_string().contains("SlowDown") => Ok(false),
            Err(error) if format!("{error:?}").contains("SlowDown") => Ok(false),
            Err(error) => bail!("{error:?}"),
        }
    };
    ensure!(get().await?);
    set(&world, &json!({ "keys_in_flight": 0 }))?;
    ensure!(!get().await?, "a key was lent");
    set(&world, &json!({ "keys_in_flight": 1 }))?;
    for _ in 0..5 {
        ensure!(get().await?, "keys are not given back");
    }
    set(&world, &json!({ "bytes_per_second": MIB / 2 }))?;
    ensure!(get().await?, "one that is larger than a second's worth is let through");
    ensure!(!get().await?, "and paid for by what follows");
    set(&world, &json!({}))?;
    ensure!(get().await?);
    Ok(())
}
