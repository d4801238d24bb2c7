//! Forms of browsers: what a signed policy lets in, and what becomes of it.

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::S3;
use keyway_integration_tests::form::{Form, part};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::Signer;
use keyway_integration_tests::wire::{Request, Response, element, elements};
use serde_json::json;

use crate::temporary;
use crate::world::{World, denied, expect, refused, statement};

const MIB: usize = 1 << 20;

/// A world with a bucket of the root's.
pub(crate) fn scene() -> Result<(World, S3)> {
    let world = World::start()?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    Ok((world, s3))
}

pub(crate) fn post(world: &World, form: &Form) -> Result<Response> {
    world.anonymous(form.request())
}

fn body(s3: &mut S3, key: &str) -> Result<Vec<u8>> {
    let response = s3.get("data", key)?;
    expect(&response, 200)?;
    Ok(response.body)
}

/// Goal: files of all sizes arrive whole, those that end a transfer's piece among them, and are
/// objects as a PUT makes them.
#[test]
fn files_arrive_whole() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    for size in [0, 1, 65_535, 65_536, 65_537, MIB, 17 * MIB + 3] {
        let file = payload(size as u64, size);
        let answer = post(&world, &Form::new("data", "a", &file[..]).signed(root))?;
        expect(&answer, 204)?;
        ensure!(body(&mut s3, "a")? == file, "{size}");
        expect(&s3.put("data", "b", &file)?, 200)?;
        let head = |s3: &mut S3, key| s3.send(Request::object("HEAD", "data", key));
        let (posted, put) = (head(&mut s3, "a")?, head(&mut s3, "b")?);
        ensure!(posted.header("etag") == put.header("etag"), "{size}");
        ensure!(answer.header("etag") == put.header("etag"), "{size}");
    }
    Ok(())
}

/// Goal: a file that is larger than what may be held for it is not held.
#[test]
fn memory_stays_flat() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let small = Form::new("data", "a", payload(1, MIB)).signed(root);
    expect(&post(&world, &small)?, 204)?;
    let before = world.server.resident_bytes()?;
    let file = payload(2, 256 * MIB);
    let large = Form::new("data", "a", &file[..]).signed(root);
    expect(&post(&world, &large)?, 204)?;
    let grown = world.server.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 128 << 20, "{grown} bytes more for a file of 256 MiB");
    ensure!(body(&mut s3, "a")? == file);
    Ok(())
}

#[test]
fn fields_say_what_headers_do() -> Result<()> {
    let (world, mut s3) = scene()?;
    let tags = "<Tagging><TagSet><Tag><Key>team</Key><Value>a b</Value></Tag></TagSet></Tagging>";
    let form = Form::new("data", "in/${filename}", "text")
        .field("Content-Type", "text/plain")
        .field("Cache-Control", "no-store")
        .field("x-amz-meta-who", "müller")
        .field("x-amz-storage-class", "STANDARD_IA")
        .field("tagging", tags)
        .field("acl", "private")
        .uncovered("x-ignore-me", "anything");
    // What is signed of the key is how it begins.
    let mut form = form.condition(r#"["starts-with", "$key", "in/"]"#);
    form.conditions.retain(|condition| !condition.contains("filename"));
    form.file.0 = "C:\\photos\\one.txt".to_owned();
    form.behind = part("submit", "Upload").into_bytes();
    expect(&post(&world, &form.signed(world.server.credentials()))?, 204)?;
    let read = s3.get("data", "in/one.txt")?;
    expect(&read, 200)?;
    ensure!(read.body == b"text");
    for (name, value) in [
        ("content-type", "text/plain"),
        ("cache-control", "no-store"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-tagging-count", "1"),
    ] {
        ensure!(read.header(name) == Some(value), "{name}: {:?}", read.headers);
    }
    ensure!(read.header("x-amz-meta-who") == Some("=?UTF-8?B?bcO8bGxlcg==?="));
    let tags = s3.send(Request::object("GET", "data", "in/one.txt").query("tagging", ""))?;
    ensure!(element(&tags.text(), "Value") == Some("a b"), "{}", tags.text());
    Ok(())
}

#[test]
fn answers_are_those_that_were_asked_for() -> Result<()> {
    let (world, _) = scene()?;
    let root = world.server.credentials();
    let form = |name: &str, value: &str| {
        post(&world, &Form::new("data", "a/ü & b", "text").field(name, value).signed(root))
    };
    expect(&form("success_action_status", "200")?, 200)?;
    let made = form("success_action_status", "201")?;
    expect(&made, 201)?;
    let xml = made.text();
    let location = format!("{}/data/a/%C3%BC%20%26%20b", world.server.url());
    ensure!(elements(&xml, "Location") == [location.clone()], "{xml}");
    ensure!(elements(&xml, "Key") == ["a/ü & b"] && element(&xml, "Bucket") == Some("data"));
    ensure!(elements(&xml, "ETag") == [made.header("etag").context("an ETag")?], "{xml}");
    ensure!(made.header("location") == Some(&location), "{:?}", made.headers);
    expect(&form("success_action_status", "500")?, 204)?;
    let sent_on = form("success_action_redirect", "https://app.example/done?x=1")?;
    expect(&sent_on, 303)?;
    let location = sent_on.header("location").context("a redirect says where")?;
    let start = "https://app.example/done?x=1&bucket=data&key=a%2F%C3%BC%20%26%20b&etag=%22";
    ensure!(location.starts_with(start), "{location}");
    // What is no page is no redirect.
    expect(&form("success_action_redirect", "javascript:alert(1)")?, 204)?;
    Ok(())
}

#[test]
fn checksums_are_compared() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let form = |crc: &str| {
        let form = Form::new("data", "a", "123456789").field("x-amz-checksum-crc32c", crc);
        post(&world, &form.signed(root))
    };
    let answer = form("4waSgw==")?;
    expect(&answer, 204)?;
    ensure!(answer.header("x-amz-checksum-crc32c") == Some("4waSgw=="), "{:?}", answer.headers);
    expect(&s3.delete("data", "a")?, 204)?;
    refused(&form("AAAAAA==")?, 400, "BadDigest")?;
    refused(&form("nonsense")?, 400, "InvalidRequest")?;
    expect(&s3.get("data", "a")?, 404)
}

/// Goal: a form may no more than whoever signed it: policies, limits of what is stored, and
/// temporary credentials are those of a PUT.
#[test]
fn forms_are_their_signers() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    let puts = [statement("Allow", &["s3:PutObject"], &["data/in/*"])];
    let anna = world.user("one", "anna", &puts)?;
    let as_anna = |form: Form| post(&world, &form.signed(&anna));
    expect(&as_anna(Form::new("data", "in/a", "x"))?, 204)?;
    denied(&as_anna(Form::new("data", "out/a", "x"))?)?;
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    denied(&as_anna(Form::new("data", "in/a", "x").field("tagging", tags))?)?;
    // Nobody signs nothing, unless the bucket's policy lets everybody in.
    let nobody = Form { covered: false, ..Form::new("data", "in/a", "x") };
    denied(&post(&world, &nobody)?)?;

    world.put("tenants/one", &json!({ "quota": { "bytes": 1 << 20 } }))?;
    let over = Form::new("data", "in/b", payload(1, 2 * MIB));
    refused(&as_anna(over)?, 403, "QuotaExceeded")?;
    let over = Form::new("data", "in/b", payload(1, MIB));
    refused(&as_anna(over)?, 403, "QuotaExceeded")?;
    world.put("tenants/one", &json!({}))?;

    let session = temporary::sts(&world, &anna, None, &[("Action", "GetSessionToken")])?;
    let session = temporary::Temporary::of(&session)?;
    let signer = Signer::new(&session.keys);
    let form = |token| Form::new("data", "in/c", "x").signed_by(&signer, token);
    expect(&post(&world, &form(Some(&session.token)))?, 204)?;
    refused(&post(&world, &form(None))?, 400, "InvalidToken")?;
    refused(&post(&world, &form(Some("kw1:other")))?, 400, "InvalidToken")?;
    Ok(())
}
