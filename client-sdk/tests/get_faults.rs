//! Reads from a server that misbehaves: what comes back is right, or an error; and the
//! caller's memory comes back either way.

mod common;

use std::time::Duration;

use common::{Reply, Server, pattern};
use keyway_client::{ClientError, HostBuffer, RetryClass, Unverified, Verified};
use keyway_proto::{ByteRange, Checksum, ChecksumKind};

const ETAG: &str = "\"one\"";

fn buffer(bytes: usize) -> HostBuffer {
    HostBuffer::zeroed(bytes).expect("memory")
}

#[tokio::test]
async fn a_body_that_breaks_midway_goes_on_where_it_broke() {
    let object = pattern(300_000);
    let stored = object.clone();
    let server = Server::start(move |before, seen| {
        let reply = Reply::object(seen, &stored, ETAG);
        if before < 2 { reply.cut_after(100_000) } else { reply }
    })
    .await;
    let mut memory = buffer(300_000);
    let target = memory.slice_mut(..).expect("free");
    let got = server.client().get_object("bkt", "k").into(target).await.expect("arrives");
    assert_eq!(got.target[..], object[..]);
    assert_eq!((got.bytes, got.retries), (300_000, 2));
    assert_eq!(got.verified, Verified::Whole(Checksum::of(ChecksumKind::Crc64Nvme, &object)));
    let seen = server.seen();
    assert_eq!(seen[0].range(), None);
    assert_eq!(seen[1].range(), Some((100_000, 300_000)));
    assert_eq!(seen[2].range(), Some((200_000, 300_000)));
    assert!(seen[1..].iter().all(|seen| seen.headers["if-match"] == ETAG));
}

#[tokio::test]
async fn parts_are_pinned_resumed_and_verified_as_a_whole() {
    let object = pattern(1_000_001);
    let stored = object.clone();
    let broken = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let server = Server::start(move |_, seen| {
        let reply = Reply::object(seen, &stored, ETAG);
        // Every part breaks the first time.
        match seen.range() {
            Some((_, end)) if broken.lock().expect("whole").insert(end) => reply.cut_after(7),
            _ => reply,
        }
    })
    .await;
    // More memory than the object: the rest stays as it is.
    let mut memory = HostBuffer::from(vec![0xaa; 1_200_000]);
    let progress = std::sync::Arc::new(std::sync::Mutex::new((0, 0)));
    let reported = std::sync::Arc::clone(&progress);
    let got = server
        .client()
        .get_object("bkt", "k")
        .part_bytes(100_000)
        .concurrency(3)
        .on_progress(move |progress| {
            let mut most = reported.lock().expect("whole");
            *most = (most.0.max(progress.bytes), progress.total);
        })
        .into(memory.slice_mut(..).expect("free"))
        .await
        .expect("arrives");
    assert_eq!(got.target[..1_000_001], object[..]);
    assert!(got.target[1_000_001..].iter().all(|byte| *byte == 0xaa));
    assert_eq!(got.target.len(), 1_200_000);
    assert_eq!((got.bytes, got.retries), (1_000_001, 11));
    assert!(got.verified.is_whole());
    assert_eq!(*progress.lock().expect("whole"), (1_000_001, 1_000_001));
    let gets = server.seen().into_iter().filter(|seen| seen.method == "GET");
    assert!(gets.map(|seen| seen.headers["if-match"].clone()).all(|pin| pin == ETAG));
    drop(got);
    assert!(memory.bytes_mut().is_ok(), "nothing is lent any more");
}

#[tokio::test]
async fn an_object_that_changes_between_parts_is_refused() {
    for status in [206, 412] {
        let object = pattern(500_000);
        let server = Server::start(move |_, seen| match seen.range() {
            Some((200_000, _)) if status == 412 => Reply::error(412, "PreconditionFailed"),
            // This server ignores the pin.
            Some((200_000, _)) => Reply::object(seen, &object, "\"two\""),
            _ => Reply::object(seen, &object, ETAG),
        })
        .await;
        let mut memory = buffer(500_000);
        let target = memory.slice_mut(..).expect("free");
        let get = server.client().get_object("bkt", "k").part_bytes(100_000);
        let failed = get.into(target).await.expect_err("two versions");
        assert!(matches!(failed.error, ClientError::Changed), "{:?}", failed.error);
        assert_eq!(failed.target.len(), 500_000, "the memory comes back whole");
        drop(failed);
        assert!(memory.bytes_mut().is_ok());
    }
}

#[tokio::test]
async fn other_bytes_than_stored_are_refused() {
    for part_bytes in [50_000, 1_000_000] {
        let object = pattern(200_000);
        let server = Server::start(move |_, seen| {
            let mut reply = Reply::object(seen, &object, ETAG);
            if seen.method == "GET" {
                *reply.body.last_mut().expect("bytes") ^= 1;
            }
            reply
        })
        .await;
        let mut memory = buffer(200_000);
        let target = memory.slice_mut(..).expect("free");
        let get = server.client().get_object("bkt", "k").part_bytes(part_bytes);
        let failed = get.into(target).await.expect_err("flipped");
        assert!(matches!(failed.error, ClientError::ChecksumMismatch { .. }));
        assert_eq!(failed.error.class(), RetryClass::Never);
        assert_eq!(failed.target.len(), 200_000);
    }
}

#[tokio::test]
async fn retries_are_bounded_and_client_errors_final() {
    for (status, code, requests) in
        [(503, "SlowDown", 4), (500, "InternalError", 4), (403, "AccessDenied", 1)]
    {
        let server = Server::start(move |_, _| Reply::error(status, code)).await;
        let error = server.client().get_object("bkt", "k").bytes().await.expect_err("refused");
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.service().and_then(|e| e.request_id.as_deref()), Some("r1"));
        assert_eq!(server.seen().len(), requests, "{code}");
    }
}

#[tokio::test]
async fn patience_with_a_throttling_server_pays() {
    let object = pattern(10);
    let server = Server::start(move |before, seen| match before {
        0 | 1 => Reply::error(503, "SlowDown"),
        _ => Reply::object(seen, &object, ETAG),
    })
    .await;
    let got = server.client().get_object("bkt", "k").bytes().await.expect("at last");
    assert_eq!((got.bytes, got.retries), (10, 2));
}

#[tokio::test]
async fn a_deadline_gives_the_memory_back() {
    let object = pattern(500_000);
    let server = Server::start(move |_, seen| match seen.range() {
        Some((300_000, _)) => Reply { hang: true, ..Reply::new(200) },
        _ => Reply::object(seen, &object, ETAG),
    })
    .await;
    let mut memory = buffer(500_000);
    let target = memory.slice_mut(..).expect("free");
    let get = server.client().get_object("bkt", "k").part_bytes(100_000);
    let failed = get.deadline(Duration::from_millis(200)).into(target).await.expect_err("hangs");
    assert!(matches!(failed.error, ClientError::Deadline), "{:?}", failed.error);
    assert_eq!(failed.target.len(), 500_000);
    drop(failed);
    assert!(memory.bytes_mut().is_ok());
}

#[tokio::test]
async fn a_dropped_read_lets_go_of_the_memory() {
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    let object = pattern(500_000);
    let server = Server::start(move |_, seen| {
        if seen.method == "HEAD" {
            return Reply::object(seen, &object, ETAG);
        }
        let _ = arrived.send(());
        Reply { hang: true, ..Reply::new(200) }
    })
    .await;
    let mut memory = buffer(500_000);
    let target = memory.slice_mut(..).expect("free");
    let get = server.client().get_object("bkt", "k").part_bytes(100_000).concurrency(5);
    let read = tokio::spawn(get.into(target));
    for _ in 0..5 {
        arrivals.recv().await.expect("five parts are asked for");
    }
    read.abort();
    assert!(read.await.is_err_and(|e| e.is_cancelled()));
    // The parts end when the runtime gets to them; the lend table tells.
    while memory.bytes_mut().is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_does_not_fit_is_said_before_a_byte_moves() {
    let object = pattern(1000);
    let server = Server::start(move |_, seen| Reply::object(seen, &object, ETAG)).await;
    let client = server.client();
    let mut memory = buffer(999);
    let failed = client
        .get_object("bkt", "k")
        .into(memory.slice_mut(..).expect("free"))
        .await
        .expect_err("too small");
    let small = ClientError::TargetTooSmall { needed: 1000, available: 999 };
    assert_eq!(failed.error.to_string(), small.to_string());
    drop(failed);
    assert!(memory.bytes().expect("free").iter().all(|byte| *byte == 0));

    let range = ByteRange::new(900, 200).expect("a range");
    let error = client.get_object("bkt", "k").range(range).bytes().await.expect_err("outside");
    assert_eq!(error.code(), Some("InvalidRange"));
    let range = ByteRange::new(900, 100).expect("a range");
    let got = client.get_object("bkt", "k").range(range).bytes().await.expect("inside");
    assert_eq!((got.bytes, got.verified), (100, Verified::No(Unverified::Range)));
}

#[tokio::test]
async fn a_larger_object_than_a_part_is_read_in_parts_as_bytes() {
    let object = pattern(450_000);
    let stored = object.clone();
    let server = Server::start(move |_, seen| Reply::object(seen, &stored, ETAG)).await;
    let get = server.client().get_object("bkt", "k").part_bytes(100_000);
    let got = get.bytes().await.expect("arrives");
    assert_eq!(got.target, object);
    assert!(got.verified.is_whole());
}

#[tokio::test]
async fn answers_that_make_no_sense_are_errors() {
    let replies: [fn() -> Reply; 6] = [
        || Reply::new(206).body("abc"),
        || Reply::new(206).with("Content-Range", "bytes 5-7/9").body("abc"),
        || Reply::new(206).with("Content-Range", "bytes 0-99999999999999999999/3").body("abc"),
        || Reply::new(200).with("Transfer-Encoding", "chunked").body("zz\r\n"),
        || Reply::new(299).body(""),
        || Reply::new(600),
    ];
    for reply in replies {
        let server = Server::start(move |_, _| reply()).await;
        let range = ByteRange::new(0, 3).expect("a range");
        let got = server.client().get_object("bkt", "k").range(range).bytes().await;
        assert!(got.is_err(), "{got:?}");
    }
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_no_retry() {
    let server =
        Server::start(|_, seen| Reply { close: true, ..Reply::object(seen, b"abc", ETAG) });
    let server = server.await;
    let client = server.client();
    for _ in 0..20 {
        let got = client.get_object("bkt", "k").bytes().await.expect("arrives");
        assert_eq!(got.target, "abc");
    }
}

#[tokio::test]
async fn ranges_are_of_one_version() {
    let object = pattern(1000);
    let stored = object.clone();
    let server = Server::start(move |_, seen| Reply::object(seen, &stored, ETAG)).await;
    let mut memory = buffer(30);
    let mut pieces = memory.chunks_mut(10).expect("free").into_iter();
    let mut ranges = server.client().get_ranges("bkt", "k").concurrency(2);
    for offset in [990, 0, 500] {
        let range = ByteRange::new(offset, 10).expect("a range");
        ranges = ranges.range(range, pieces.next().expect("three"));
    }
    let got = ranges.send().await.expect("arrive");
    let starts = [990, 0, 500];
    for (outcome, start) in got.iter().zip(starts) {
        assert_eq!(outcome.target[..], object[start..start + 10]);
    }
    let gets: Vec<_> = server.seen().into_iter().filter(|seen| seen.method == "GET").collect();
    assert_eq!(gets.len(), 3);
    assert!(gets.iter().all(|seen| seen.headers["if-match"] == ETAG));
}
