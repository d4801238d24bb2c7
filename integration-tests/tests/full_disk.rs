//! Goal: on a full disk writes fail with 507 `InsufficientStorage`, reads go on, nothing that
//! was acknowledged is lost, and freeing space recovers without a restart.
//!
//! Method: a server on a small disk is filled until it refuses, read, emptied by half, and
//! written again. Once the disk is small by configuration, which works anywhere, and once it is
//! a real file system of that size, which takes root.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may give up, and speak")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use keyway_integration_tests::seed::payload;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::skip::skipped;
use keyway_integration_tests::wire::{Request, Response};
use keyway_integration_tests::{S3, Server};

const BUCKET: &str = "full";
/// An object that is uploaded in parts.
const IN_PARTS: &str = "in-parts";
/// The disk. Large enough that a twentieth of it, which the store leaves free, exceeds what the
/// metadata keeps in reserve.
const DISK_BYTES: usize = 320 << 20;
/// A disk smaller than one volume, and smaller than most reserves.
const TINY_DISK_BYTES: usize = 64 << 20;
/// Each small object on it.
const TINY_OBJECT_BYTES: usize = 64 << 10;
/// Each object.
const OBJECT_BYTES: usize = 1 << 20;
/// More objects than the disk can hold.
const OBJECTS_MAX: usize = 2 * DISK_BYTES / OBJECT_BYTES;
/// How long freed space may take until it is usable.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn a_store_that_reaches_its_configured_capacity() {
    let config = format!("[node.store]\ncapacity_bytes = {DISK_BYTES}\n");
    let options = Options { config, ..Options::default() };
    fill_and_recover(&mut Server::with(options).expect("the server starts"));
}

#[test]
fn a_file_system_without_space() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), DISK_BYTES) else { return };
    let options = Options { data_dir: Some(dir.path().join("data")), ..Options::default() };
    fill_and_recover(&mut Server::with(options).expect("the server starts"));
}

/// Goal: what the store and the metadata keep in reserve does not eat up a small disk.
#[test]
fn a_very_small_file_system_holds_small_objects() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), TINY_DISK_BYTES) else { return };
    let options = Options { data_dir: Some(dir.path().join("data")), ..Options::default() };
    let server = Server::with(options).expect("the server starts");
    let mut s3 = S3::of(&server);
    assert_eq!(s3.create_bucket(BUCKET).unwrap().status, 200);
    // Half of the disk, in objects that are packed and in one that is not.
    let small = payload(1, TINY_OBJECT_BYTES);
    for number in 0..TINY_DISK_BYTES / 4 / TINY_OBJECT_BYTES {
        let response = s3.put(BUCKET, &key(number), &small).unwrap();
        assert_eq!(response.status, 200, "{}: {}", key(number), response.text());
    }
    let large = payload(2, TINY_DISK_BYTES / 4);
    let response = s3.put(BUCKET, "large", &large).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(s3.get(BUCKET, "large").unwrap().body == large);
    assert!(s3.get(BUCKET, &key(0)).unwrap().body == small);
    assert_eq!(s3.delete(BUCKET, "large").unwrap().status, 204);
}

fn fill_and_recover(server: &mut Server) {
    let mut s3 = S3::of(server);
    assert_eq!(s3.create_bucket(BUCKET).unwrap().status, 200);
    let upload = s3.create_upload(BUCKET, IN_PARTS).unwrap();

    let mut stored = Vec::new();
    let refusal = (0..OBJECTS_MAX)
        .find_map(|number| {
            let response = put(&mut s3, number);
            if response.status == 200 {
                stored.push(number);
                return None;
            }
            Some(response)
        })
        .expect("the disk fills up");
    assert_full(&refusal);
    let least = DISK_BYTES / OBJECT_BYTES / 4;
    assert!(stored.len() >= least, "full after {} MiB only", stored.len());

    // Refused again and again, and in parts too; reads go on.
    assert_full(&put(&mut s3, OBJECTS_MAX));
    assert_full(&put_part(&mut s3, &upload));
    for &number in &stored {
        assert_whole(&mut s3, number);
    }
    let missing = s3.get(BUCKET, &key(OBJECTS_MAX)).unwrap();
    assert_eq!(missing.status, 404, "a refused object is visible");

    // Deleting works on a full disk, and makes room without a restart.
    let kept = stored.split_off(stored.len() / 2);
    for &number in &stored {
        assert_eq!(s3.delete(BUCKET, &key(number)).unwrap().status, 204);
    }
    in_time(|| put(&mut s3, OBJECTS_MAX));
    let part = in_time(|| put_part(&mut s3, &upload));
    let parts = [(1, part.header("etag").expect("a part has one").to_owned())];
    let completed = s3.complete_upload(BUCKET, IN_PARTS, &upload, &parts).unwrap();
    assert_eq!(completed.status, 200, "{}", completed.text());
    assert!(s3.get(BUCKET, IN_PARTS).unwrap().body == payload(0, OBJECT_BYTES));

    // What was deleted does not come back with a restart: as much fits in again.
    server.kill();
    server.restart().expect("it starts again");
    let mut s3 = S3::of(server);
    let again: Vec<_> = (OBJECTS_MAX..).take(stored.len() * 3 / 4).collect();
    for &number in &again {
        in_time(|| put(&mut s3, number));
    }
    for number in kept.into_iter().chain(again) {
        assert_whole(&mut s3, number);
    }
    assert!(!server.log().contains("panicked"));
}

/// Stores, as soon as there is space: what was deleted is released in the background.
fn in_time(mut store: impl FnMut() -> Response) -> Response {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    loop {
        let response = store();
        if response.status == 200 {
            return response;
        }
        assert_full(&response);
        assert!(Instant::now() < deadline, "freed space is not usable after {RECOVERY_TIMEOUT:?}");
        // Not a wait for an event: the client's own pause between retries.
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn put(s3: &mut S3, number: usize) -> Response {
    let body = payload(number as u64, OBJECT_BYTES);
    s3.put(BUCKET, &key(number), &body).expect("the server answers")
}

fn put_part(s3: &mut S3, upload: &str) -> Response {
    let request = Request::object("PUT", BUCKET, IN_PARTS)
        .query("partNumber", "1")
        .query("uploadId", upload)
        .body(payload(0, OBJECT_BYTES));
    s3.send(request).expect("the server answers")
}

fn key(number: usize) -> String {
    format!("object-{number:05}")
}

fn assert_full(response: &Response) {
    assert_eq!(response.status, 507, "{}", response.text());
    assert_eq!(response.code().as_deref(), Some("InsufficientStorage"));
}

fn assert_whole(s3: &mut S3, number: usize) {
    let response = s3.get(BUCKET, &key(number)).unwrap();
    assert_eq!(response.status, 200, "{}: {}", key(number), response.text());
    let whole = response.body == payload(number as u64, OBJECT_BYTES);
    assert!(whole, "{} was damaged", key(number));
}

/// A file system in memory, unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path, bytes: usize) -> Option<Self> {
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        match mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output() {
            Ok(output) if output.status.success() => Some(Self(at)),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                skipped("a_file_system_without_space", &format!("no mount: {}", why.trim()));
                None
            }
            Err(error) => {
                skipped("a_file_system_without_space", &format!("no mount: {error}"));
                None
            }
        }
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // The server was dropped before: a lazy unmount covers one that is still dying.
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}
