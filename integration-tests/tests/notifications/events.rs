//! Every kind of event arrives, with what it is to say.

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::form::Form;
use keyway_integration_tests::s3::copy_source;
use keyway_integration_tests::wire::{Request, element};

use crate::receiver::{Got, Receiver};
use crate::scene::{config, document, etag, put_document, put_rules, rule, wait_metric, world};
use crate::world::{World, expect, statement};

const ALL: [&str; 4] =
    ["ObjectCreated:*", "ObjectRemoved:*", "ObjectTagging:*", "LifecycleExpiration:*"];
const TAGS: &str = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";

/// The first event that has come of a key and a kind.
fn of<'a>(got: &'a [Got], key: &str, name: &str) -> Result<&'a Got> {
    let found = got.iter().find(|got| got.key == key && got.name == name);
    found.with_context(|| format!("no {name} of {key} in {got:#?}"))
}

fn start(receiver: &Receiver, more: &str) -> Result<World> {
    world(config(more, &[("hook", receiver.address)]))
}

/// Goal: each operation's event, and none of what is no rule's.
#[test]
fn every_operation_is_told() -> Result<()> {
    let receiver = Receiver::start()?;
    let world = start(&receiver, "")?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    expect(&s3.put("data", "before", b"no rule yet")?, 200)?;
    expect(&put_document(&mut s3, "data", &document(&[rule("hook", &ALL, "")]))?, 200)?;
    let tests = receiver.tests();
    ensure!(tests.len() == 1 && tests[0]["Event"] == "s3:TestEvent", "{tests:?}");
    ensure!(tests[0]["Bucket"] == "data", "{tests:?}");

    let put = s3.put("data", "a b/ü", b"four")?;
    let tag = etag(&put)?;
    let id = put.header("x-amz-request-id").context("it has an id")?.to_owned();
    let form = Form::new("data", "form", *b"file").signed(world.server.credentials());
    expect(&world.anonymous(form.request())?, 204)?;
    let copy = Request::object("PUT", "data", "copy");
    let copy = copy.header("x-amz-copy-source", copy_source("data", "before"));
    expect(&s3.send(copy)?, 200)?;
    let upload = s3.create_upload("data", "parts")?;
    let part = s3.put_part("data", "parts", &upload, 1, b"part")?;
    expect(&s3.complete_upload("data", "parts", &upload, &[(1, part)])?, 200)?;
    let tagging = |method| Request::object(method, "data", "copy").query("tagging", "");
    expect(&s3.send(tagging("PUT").body(TAGS))?, 200)?;
    expect(&s3.send(tagging("DELETE"))?, 204)?;
    expect(&s3.delete("data", "copy")?, 204)?;
    expect(&s3.delete("data", "was never there")?, 204)?;
    let delete =
        "<Delete><Object><Key>form</Key></Object><Object><Key>parts</Key></Object></Delete>";
    let several = Request::new("POST", "/data").query("delete", "");
    let several = several.header("x-amz-checksum-crc32", crc32(delete)).body(delete);
    expect(&s3.send(several)?, 200)?;

    let got = receiver.wait_for(9)?;
    ensure!(got.len() == 9, "{got:#?}");
    for (key, name) in [
        ("form", "ObjectCreated:Post"),
        ("copy", "ObjectCreated:Copy"),
        ("parts", "ObjectCreated:CompleteMultipartUpload"),
        ("copy", "ObjectTagging:Put"),
        ("copy", "ObjectTagging:Delete"),
        ("copy", "ObjectRemoved:Delete"),
        ("form", "ObjectRemoved:Delete"),
        ("parts", "ObjectRemoved:Delete"),
    ] {
        of(&got, key, name)?;
    }
    let told = of(&got, "a+b/%C3%BC", "ObjectCreated:Put")?;
    let record = &told.record;
    ensure!(told.etag == tag, "{record:#}");
    for (pointer, expected) in [
        ("/eventVersion", "2.1"),
        ("/eventSource", "keyway:s3"),
        ("/requestParameters/sourceIPAddress", "127.0.0.1"),
        ("/responseElements/x-amz-request-id", &*id),
        ("/s3/s3SchemaVersion", "1.0"),
        ("/s3/configurationId", "hook-"),
        ("/s3/bucket/name", "data"),
        ("/s3/bucket/arn", "arn:aws:s3:::data"),
    ] {
        let found = record.pointer(pointer).and_then(|value| value.as_str());
        ensure!(found == Some(expected), "{pointer} of {record:#}");
    }
    ensure!(record["s3"]["object"]["size"] == 4, "{record:#}");
    ensure!(record["s3"]["object"].get("versionId").is_none(), "{record:#}");
    let principal = record["userIdentity"]["principalId"].as_str().unwrap_or_default();
    ensure!(principal.starts_with("arn:"), "{record:#}");
    ensure!(!record.to_string().contains(&world.server.credentials().secret_key));
    // What is gone has neither size nor ETag.
    let gone = of(&got, "form", "ObjectRemoved:Delete")?;
    ensure!(gone.record["s3"]["object"].get("size").is_none() && gone.etag.is_empty());
    // One key's events are in order.
    let copy: Vec<&Got> = got.iter().filter(|got| got.key == "copy").collect();
    ensure!(copy.is_sorted_by(|left, right| left.sequencer < right.sequencer), "{copy:#?}");

    // Without rules nothing is told any more; the rules are told as they were given.
    let request = || Request::new("GET", "/data").query("notification", "");
    let given = s3.send(request())?.text();
    ensure!(element(&given, "Queue") == Some("arn:keyway:sqs::hook:webhook"), "{given}");
    ensure!(given.matches("<Event>").count() == ALL.len(), "{given}");
    expect(&put_document(&mut s3, "data", &document(&[]))?, 200)?;
    ensure!(element(&s3.send(request())?.text(), "Queue").is_none());
    expect(&s3.put("data", "after", b"x")?, 200)?;
    expect(&put_document(&mut s3, "data", &document(&[rule("hook", &ALL, "")]))?, 200)?;
    expect(&s3.put("data", "last", b"x")?, 200)?;
    let got = receiver.wait(|got| got.iter().any(|got| got.key == "last"))?;
    ensure!(got.len() == 10, "{got:#?}");
    wait_metric(&world.server, "keyway_notify_delivered", "hook", |count| count == 10)
}

fn crc32(text: &str) -> String {
    use base64::Engine as _;
    let mut crc = u32::MAX;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    base64::prelude::BASE64_STANDARD.encode((!crc).to_be_bytes())
}

fn keep_versions(world: &World, bucket: &str) -> Result<()> {
    let request = Request::new("PUT", format!("/{bucket}")).query("versioning", "");
    let status = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    expect(&world.root().send(request.body(status))?, 200)
}

/// Goal: versions are named, and markers told from what is gone for good.
#[test]
fn versions_and_markers_are_told() -> Result<()> {
    let receiver = Receiver::start()?;
    let world = start(&receiver, "")?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    keep_versions(&world, "data")?;
    put_rules(&mut s3, "data", &[rule("hook", &ALL, "")])?;
    let put = s3.put("data", "k", b"x")?;
    let version = put.header("x-amz-version-id").context("it has a version")?.to_owned();
    let deleted = s3.delete("data", "k")?;
    let marker = deleted.header("x-amz-version-id").context("it has a version")?.to_owned();
    for version in [&marker, &version] {
        let one = Request::object("DELETE", "data", "k").query("versionId", version.as_str());
        expect(&s3.send(one)?, 204)?;
    }
    let got = receiver.wait_for(4)?;
    let told: Vec<(&str, &str)> = got
        .iter()
        .map(|got| (&*got.name, got.record["s3"]["object"]["versionId"].as_str().unwrap_or("")))
        .collect();
    let expected = [
        ("ObjectCreated:Put", &*version),
        ("ObjectRemoved:DeleteMarkerCreated", &*marker),
        ("ObjectRemoved:Delete", &*marker),
        ("ObjectRemoved:Delete", &*version),
    ];
    ensure!(told == expected, "{told:?}");
    Ok(())
}

/// Goal: what lifecycle rules delete is told as such.
#[test]
fn expirations_are_told() -> Result<()> {
    let receiver = Receiver::start()?;
    let fast = "[maintenance]\nlifecycle_period_ms = 250\nlifecycle_day_ms = 500";
    let world = start(&receiver, fast)?;
    let mut s3 = world.root();
    for bucket in ["plain", "kept"] {
        expect(&s3.create_bucket(bucket)?, 200)?;
        if bucket == "kept" {
            keep_versions(&world, bucket)?;
        }
        put_rules(&mut s3, bucket, &[rule("hook", &ALL, "")])?;
        expect(&s3.put(bucket, "old", b"x")?, 200)?;
        let rules = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter/>\
                     <Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>";
        let md5 = Request::new("PUT", format!("/{bucket}")).query("lifecycle", "");
        expect(&s3.send(md5.body(rules))?, 200)?;
    }
    let got = receiver.wait_for(4)?;
    for (bucket, name) in [
        ("plain", "LifecycleExpiration:Delete"),
        ("kept", "LifecycleExpiration:DeleteMarkerCreated"),
    ] {
        let one = |got: &&Got| got.name == name && got.record["s3"]["bucket"]["name"] == bucket;
        let found = got.iter().find(one).with_context(|| format!("no {name} in {got:#?}"))?;
        let by = &found.record["userIdentity"]["principalId"];
        ensure!(by == "keyway:lifecycle", "{:#}", found.record);
    }
    Ok(())
}

/// Goal: of several rules each event goes to the one that fits, and a webhook gets its token.
#[test]
fn rules_choose_their_targets() -> Result<()> {
    let (one, two) = (Receiver::start()?, Receiver::start()?);
    let dir = tempfile::tempdir()?;
    let token = dir.path().join("token");
    std::fs::write(&token, "open-sesame\n")?;
    let mut config = config("", &[("one", one.address), ("two", two.address)]);
    config.push_str(&format!("token_file = {token:?}\n"));
    let world = world(config)?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    let rules =
        [rule("one", &["ObjectCreated:*"], "a/"), rule("two", &["ObjectCreated:Put"], "b/")];
    put_rules(&mut s3, "data", &rules)?;
    for key in ["a/1", "b/1", "c/1", "a/2", "b/2"] {
        expect(&s3.put("data", key, b"x")?, 200)?;
        expect(&s3.delete("data", key)?, 204)?;
    }
    for (receiver, keys) in [(&one, ["a/1", "a/2"]), (&two, ["b/1", "b/2"])] {
        let mut got: Vec<String> = receiver.wait_for(2)?.into_iter().map(|got| got.key).collect();
        got.sort();
        ensure!(got == keys, "{got:?}");
    }
    ensure!(two.tokens().iter().all(|token| token == "Bearer open-sesame"));
    ensure!(two.tokens().len() == 2 && one.tokens().is_empty());
    ensure!(!world.server.log().contains("open-sesame"));
    Ok(())
}

/// Goal: who is told to whom: a user of another account than the bucket's is named as such.
#[test]
fn the_caller_is_named() -> Result<()> {
    let receiver = Receiver::start()?;
    let world = start(&receiver, "")?;
    let number = world.tenant("acme")?;
    let root = world.key("acme", None)?;
    let anna = world.user("acme", "anna", &[statement("Allow", &["s3:PutObject"], &["data/*"])])?;
    let mut s3 = world.s3(&root);
    expect(&s3.create_bucket("data")?, 200)?;
    put_rules(&mut s3, "data", &[rule("hook", &ALL, "")])?;
    expect(&world.s3(&anna).put("data", "k", b"x")?, 200)?;
    let got = receiver.wait_for(1)?;
    let record = &got[0].record;
    let by = record["userIdentity"]["principalId"].as_str().unwrap_or_default();
    ensure!(by.contains(&number) && by.ends_with(":user/anna"), "{record:#}");
    let owner = &record["s3"]["bucket"]["ownerIdentity"]["principalId"];
    ensure!(owner.as_str() == Some(&number), "{record:#}");
    Ok(())
}

/// Goal: what is told is durable, whatever the client asked for: what is in memory alone could be
/// taken back.
#[test]
fn what_is_told_is_durable() -> Result<()> {
    let receiver = Receiver::start()?;
    let world = start(&receiver, "")?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    let in_memory = |request: Request| {
        request.header("x-keyway-durability", "memory").body(vec![b'x'; 512 << 10])
    };
    let mut put = |key: &str| -> Result<String> {
        let answer = s3.send(in_memory(Request::object("PUT", "data", key)))?;
        expect(&answer, 200)?;
        Ok(answer.header("x-keyway-durability").unwrap_or_default().to_owned())
    };
    ensure!(put("before")? == "memory");
    let mut s3 = world.root();
    let upload = s3.create_upload("data", "parts")?;
    let part = Request::object("PUT", "data", "parts").query("partNumber", "1");
    let part = s3.send(in_memory(part.query("uploadId", &*upload)))?;
    let tag = part.header("etag").context("it has an ETag")?.to_owned();
    put_rules(&mut s3, "data", &[rule("hook", &ALL, "")])?;
    ensure!(put("after")? == "disk");
    let xml = keyway_integration_tests::s3::completion(&[(1, tag)]);
    let complete = Request::object("POST", "data", "parts").query("uploadId", &*upload);
    let complete = s3.send(complete.header("x-keyway-durability", "memory").body(xml))?;
    expect(&complete, 200)?;
    ensure!(complete.header("x-keyway-durability") == Some("disk"), "{:?}", complete.headers);
    let mut keys: Vec<String> = receiver.wait_for(2)?.into_iter().map(|got| got.key).collect();
    keys.sort();
    ensure!(keys == ["after", "parts"], "{keys:?}");
    Ok(())
}
