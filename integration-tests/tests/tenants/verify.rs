//! When stored bytes are compared with their checksums, and what damage comes to.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::S3;
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::wire::{Request, Response};
use serde_json::json;

use crate::world::{World, expect, refused};

/// What a bucket asks for, and an answer tells.
const VERIFY: &str = "x-keyway-verify";
/// One that a node reads at once, one that its memory tier takes in, and one that it does not.
const LENGTHS: [usize; 3] = [300_000, 3 << 20, 9 << 20];
const MODES: [&str; 3] = ["before-delivery", "inline", "client"];

/// Turns one bit of what is stored, two thirds into the content.
fn damage(world: &World, content: &[u8]) -> Result<()> {
    let at = content.len() / 3 * 2 / 4096 * 4096;
    let wanted = &content[at..at + 64];
    for entry in fs::read_dir(world.server.data_dir().join("store"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "kwv") {
            continue;
        }
        let file = File::options().read(true).write(true).open(&path)?;
        let mut window = vec![0; 4 << 20];
        let mut from = 0;
        loop {
            let read = file.read_at(&mut window, from)?;
            if read < wanted.len() {
                break;
            }
            // What is stored begins at pages.
            let pages = (0..read - wanted.len()).step_by(4096);
            if let Some(page) = pages.into_iter().find(|page| window[*page..].starts_with(wanted)) {
                let byte = window[page] ^ 1;
                return Ok(file.write_all_at(&[byte], from + page as u64)?);
            }
            from += read as u64;
        }
    }
    anyhow::bail!("the content is nowhere")
}

/// A GET and its body, which may end early; what came is told then.
fn read(world: &World, who: &Credentials, request: Request) -> Result<Result<Response, usize>> {
    match world.s3(who).send(request) {
        Ok(response) => Ok(Ok(response)),
        Err(broken) => {
            let text = broken.to_string();
            ensure!(broken.kind() == std::io::ErrorKind::UnexpectedEof, "{text}");
            Ok(Err(text.len()))
        }
    }
}

fn bucket(s3: &mut S3, name: &str, mode: Option<&str>) -> Result<Response> {
    let request = Request::new("PUT", format!("/{name}"));
    Ok(s3.send(match mode {
        Some(mode) => request.header(VERIFY, mode),
        None => request,
    })?)
}

/// Goal: damage on the device is an error before the first byte, a broken body, or the reader's to
/// find, as the bucket asks; and never content of something else.
#[test]
fn damage_shows_when_it_was_asked_for() -> Result<()> {
    let mut world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    let mut s3 = world.s3(&owner);
    for mode in MODES {
        expect(&bucket(&mut s3, mode, Some(mode))?, 200)?;
    }
    refused(&bucket(&mut s3, "other", Some("never"))?, 400, "InvalidArgument")?;
    let content = |mode: usize, length: usize| payload((mode * 100 + length) as u64, length);
    for (number, mode) in MODES.into_iter().enumerate() {
        for length in LENGTHS {
            let key = length.to_string();
            let put = s3.put(mode, &key, &content(number, length))?;
            expect(&put, 200)?;
            let whole = s3.get(mode, &key)?;
            ensure!(whole.body == content(number, length), "{mode} {key}");
            let told = whole.header(VERIFY);
            ensure!(told == (mode == "client").then_some("client"), "{mode}: {told:?}");
        }
    }
    ensure!(world.server.terminate()?.success());
    for (number, _) in MODES.into_iter().enumerate() {
        for length in LENGTHS {
            damage(&world, &content(number, length))?;
        }
    }
    world.server.restart()?;
    for (number, mode) in MODES.into_iter().enumerate() {
        for length in LENGTHS {
            let what = format!("{mode} {length}");
            let key = length.to_string();
            let get = Request::object("GET", mode, &key).header("x-amz-checksum-mode", "ENABLED");
            let answer = read(&world, &owner, get.clone())?;
            // What is one read, or one frame, is known before the answer either way.
            let at_once = mode == "before-delivery" || (mode == "inline" && length == LENGTHS[0]);
            match answer {
                Ok(answer) if at_once => refused(&answer, 500, "InternalError").context(what)?,
                Ok(answer) if mode == "client" => {
                    expect(&answer, 200)?;
                    let original = content(number, length);
                    let differ = answer.body.iter().zip(&original).filter(|(a, b)| a != b).count();
                    ensure!(answer.body.len() == length && differ == 1, "{what}: {differ}");
                    // The checksum is that of what was stored: by it a reader knows.
                    ensure!(answer.header("x-amz-checksum-crc64nvme").is_some(), "{what}");
                    ensure!(answer.header(VERIFY) == Some("client"), "{what}");
                }
                Err(_) if mode == "inline" && !at_once => {}
                other => anyhow::bail!("{what}: {:?}", other.map(|answer| answer.status)),
            }
            // What lies before the damage is there in any case.
            let front = get.header("range", "bytes=0-9999");
            let front = world.s3(&owner).send(front)?;
            if length > LENGTHS[0] {
                expect(&front, 206)?;
                ensure!(front.body == content(number, length)[..10_000], "{mode} {length}");
            }
        }
    }
    // A copy has checksums of its own: damage must not become its content.
    let mut s3 = world.s3(&owner);
    let key = LENGTHS[2].to_string();
    let upload = s3.create_upload("client", "copy")?;
    let copy = Request::object("PUT", "client", "copy")
        .query("partNumber", "1")
        .query("uploadId", &upload)
        .header("x-amz-copy-source", format!("client/{key}"));
    let answer = s3.send(copy)?;
    ensure!(answer.status == 500 || answer.text().contains("<Error>"), "{}", answer.text());
    Ok(())
}

/// Goal: what a bucket does not say its owner says, and then the operator; and the next request
/// is answered by what was changed.
#[test]
fn tenants_say_for_their_buckets() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    let mut s3 = world.s3(&owner);
    for (name, mode) in [("silent", None), ("strict", Some("before-delivery"))] {
        expect(&bucket(&mut s3, name, mode)?, 200)?;
        expect(&s3.put(name, "a", b"x")?, 200)?;
    }
    let mut told = |name: &str| -> Result<Option<String>> {
        Ok(s3.get(name, "a")?.header(VERIFY).map(str::to_owned))
    };
    ensure!(told("silent")?.is_none());
    let set = world.admin(&["tenant", "set", "one", "--verify", "client"])?;
    ensure!(set["verify"] == json!("client"), "{set}");
    ensure!(told("silent")?.as_deref() == Some("client"));
    ensure!(told("strict")?.is_none());
    // Other settings leave it as it is.
    let set = world.admin(&["tenant", "set", "one", "--objects", "9"])?;
    ensure!(set["verify"] == json!("client"), "{set}");
    let set = world.admin(&["tenant", "set", "one", "--verify", "none"])?;
    ensure!(set.get("verify").is_none_or(serde_json::Value::is_null), "{set}");
    ensure!(told("silent")?.is_none());
    for bad in [json!({ "verify": "never" }), json!({ "weight": 0 }), json!({ "weight": 10_001 })] {
        let root = world.server.credentials();
        let (status, answer) = world.call(root, "PUT", "tenants/one", Some(&bad))?;
        ensure!(status == 400, "{bad}: {status} {answer}");
    }
    let set = world.admin(&["tenant", "set", "one", "--weight", "300"])?;
    ensure!(set["weight"] == json!(300), "{set}");
    let set = world.admin(&["tenant", "set", "one", "--bytes", "1GiB"])?;
    ensure!(set["weight"] == json!(300), "{set}");
    Ok(())
}
