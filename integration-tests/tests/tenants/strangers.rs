//! Somebody who guesses at keys and secrets, beside others who do not.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::Server;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::wire::{Request, Response};
use serde_json::Value;

use crate::temporary::{Temporary, sts};
use crate::world::{World, expect, refused};

/// So long that no pause of the machine ends it before the test looks.
const PENALTY: Duration = Duration::from_secs(20);
const BURST: usize = 5;

fn world(penalty: Duration) -> Result<World> {
    let config = format!(
        "[auth]\nfailures_burst = {BURST}\nfailures_per_second = 1\npenalty_ms = {}\n",
        penalty.as_millis()
    );
    Ok(World { server: Server::with(Options { config, ..Options::default() })? })
}

fn is_slowed(answer: &Response) -> bool {
    answer.status == 503
}

/// Fails with all guesses until one is not even looked at; tells how many were.
fn guess_until_slowed(mut guess: impl FnMut() -> Result<Response>) -> Result<usize> {
    for number in 0..200 {
        if is_slowed(&guess()?) {
            return Ok(number);
        }
    }
    anyhow::bail!("nobody slows the guesses down")
}

fn wrong(who: &Credentials) -> Credentials {
    Credentials {
        secret_key: "a guess of forty characters, or nearly so".to_owned(),
        ..who.clone()
    }
}

/// Goal: guesses at keys are soon refused unverified, told once, and nobody else behind the same
/// address notices. Method: an attacker with a new key for every guess, then one who knows the
/// id of a key; a neighbour with a key of its own in between.
#[test]
fn guesses_are_slowed_down_and_neighbours_are_not() -> Result<()> {
    let mut world = world(PENALTY)?;
    world.tenant("one")?;
    let (victim, neighbour) = (world.key("one", None)?, world.key("one", None)?);
    expect(&world.s3(&victim).create_bucket("data")?, 200)?;
    expect(&world.s3(&victim).put("data", "a", b"x")?, 200)?;
    let token = sts(&world, &neighbour, None, &[("Action", "GetSessionToken")])?;
    let program = Temporary::of(&token)?;
    let begun = Instant::now();
    let guess = |who: &Credentials| Ok(world.s3(who).get("data", "a")?);
    let verified = guess_until_slowed(|| guess(&Credentials::random()))?;
    // One a second more than the burst: the machine may be slow.
    let most = BURST + 2 + usize::try_from(begun.elapsed().as_secs())?;
    ensure!((BURST..=most).contains(&verified), "{verified} guesses were verified");
    let slowed = guess(&Credentials::random())?;
    refused(&slowed, 503, "SlowDown")?;
    let after = slowed.header("retry-after").context("it says when")?.parse::<u64>()?;
    ensure!((1..=PENALTY.as_secs() + 1).contains(&after), "after {after} s");
    for _ in 0..50 {
        expect(&world.s3(&neighbour).get("data", "a")?, 200)?;
        expect(&program.get(&world, "a")?, 200)?;
        ensure!(is_slowed(&guess(&Credentials::random())?));
    }
    // The form of a temporary key alone does not make it one of ours.
    ensure!(is_slowed(&guess(&program.keys)?));
    // A key that is one of ours has one try from here.
    refused(&guess(&wrong(&victim))?, 403, "SignatureDoesNotMatch")?;
    for _ in 0..20 {
        refused(&guess(&wrong(&victim))?, 503, "SlowDown")?;
    }
    expect(&world.s3(&neighbour).get("data", "a")?, 200)?;
    ensure!(begun.elapsed() < PENALTY, "the machine is too slow to tell");
    world.server.terminate()?;

    let events = std::fs::read_to_string(world.server.data_dir().join("audit.jsonl"))?;
    let events: Vec<Value> = events.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let of = |event: &str| events.iter().filter(|line| line["event"] == event).collect::<Vec<_>>();
    let penalties = of("penalised");
    ensure!(penalties.len() == 1 && penalties[0]["address"] == "127.0.0.1", "{penalties:?}");
    ensure!(of("not-authenticated").len() == verified + 1, "one line for each that was verified");
    Ok(())
}

/// Goal: no form of a request guesses more quietly than another: HEAD, whose refusals have no
/// words, presigned URLs, and headers that are none.
#[test]
fn every_form_of_a_guess_counts() -> Result<()> {
    type Guess = fn(&World, &Credentials) -> Result<Response>;
    let forms: [(&str, Guess); 4] = [
        ("head", |world, who| {
            Ok(world.s3(&wrong(who)).send(Request::object("HEAD", "data", "a"))?)
        }),
        ("presigned", |world, who| {
            let mut request = Request::object("GET", "data", "a");
            request.set("host", world.server.authority());
            keyway_integration_tests::sigv4::Signer::new(&wrong(who)).presign(&mut request, 60);
            world.anonymous_as_is(&request)
        }),
        ("malformed", |world, _| {
            let request = Request::object("GET", "data", "a");
            world.anonymous(request.header("authorization", "AWS4-HMAC-SHA256 ,,,"))
        }),
        ("control", |world, who| {
            Ok(world.s3(&wrong(who)).send(Request::new("GET", "/_keyway/v1/rails"))?)
        }),
    ];
    for (name, guess) in forms {
        let world = world(PENALTY)?;
        let root = world.server.credentials().clone();
        let verified = guess_until_slowed(|| guess(&world, &root));
        let verified = verified.map_err(|error| error.context(name))?;
        ensure!(verified >= BURST, "{name}: {verified} were verified");
        // Nobody who makes no claim is held to it.
        let anonymous = world.anonymous(Request::object("GET", "data", "a"))?;
        refused(&anonymous, 403, "AccessDenied").map_err(|error| error.context(name))?;
    }
    Ok(())
}

/// Goal: a penalty ends.
#[test]
fn whoever_erred_may_try_again() -> Result<()> {
    let world = world(Duration::from_secs(1))?;
    let root = world.server.credentials().clone();
    let get = |who: &Credentials| world.s3(who).send(Request::new("GET", "/"));
    guess_until_slowed(|| Ok(get(&wrong(&root))?))?;
    let begun = Instant::now();
    while is_slowed(&get(&root)?) {
        ensure!(begun.elapsed() < Duration::from_secs(30), "the penalty does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    expect(&get(&root)?, 200)
}
