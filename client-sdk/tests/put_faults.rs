//! Writes to a server that misbehaves: an object is whole and confirmed, or there is an
//! error and nothing is left behind.

mod common;

use std::sync::{Arc, Mutex};

use common::{Reply, Seen, Server, pattern};
use keyway_client::{ClientError, HostBuffer};
use keyway_proto::{Checksum, ChecksumKind};

const PART: usize = 5 << 20;

fn crc(bytes: &[u8]) -> String {
    Checksum::of(ChecksumKind::Crc64Nvme, bytes).to_base64()
}

/// Answers of an honest service to an upload in parts.
fn upload(seen: &Seen) -> Reply {
    if seen.is("POST", "uploads=") {
        return Reply::new(200).body("<R><UploadId>u/1</UploadId></R>");
    }
    if seen.is("PUT", "partNumber=") {
        let sum = seen.headers["x-amz-checksum-crc64nvme"].clone();
        assert_eq!(sum, crc(&seen.body), "the sum is of the part");
        return Reply::new(200).with("ETag", "\"p\"").with("x-amz-checksum-crc64nvme", sum);
    }
    if seen.is("POST", "uploadId=u%2F1") {
        let sum = &seen.headers["x-amz-checksum-crc64nvme"];
        return Reply::new(200).body(format!(
            "<R><ETag>\"e-3\"</ETag><ChecksumCRC64NVME>{sum}</ChecksumCRC64NVME></R>"
        ));
    }
    Reply::new(204)
}

#[tokio::test]
async fn a_large_object_goes_in_parts_with_the_checksum_of_the_whole() {
    let object = pattern(2 * PART + 11);
    let attempts = Mutex::new(0);
    let server = Server::start(move |_, seen| {
        if seen.is("PUT", "partNumber=2") {
            let mut attempts = attempts.lock().expect("whole");
            *attempts += 1;
            if *attempts < 3 {
                return Reply::error(500, "InternalError");
            }
        }
        upload(seen)
    })
    .await;
    let mut memory = HostBuffer::from(object.clone());
    let put = server
        .client()
        .put_object("bkt", "k")
        .part_bytes(PART as u64)
        .body(memory.slice(..).expect("free"))
        .metadata("name", "value")
        .expect("text")
        .if_absent()
        .send()
        .await
        .expect("arrives");
    assert_eq!((put.parts, put.retries), (3, 2));
    assert_eq!(put.etag.as_deref(), Some("\"e-3\""));
    assert!(put.verified.is_whole());
    let seen = server.seen();
    let begun = seen.iter().find(|seen| seen.is("POST", "uploads=")).expect("begun");
    assert_eq!(begun.headers["x-amz-meta-name"], "value");
    assert_eq!(begun.headers["x-amz-checksum-type"], "FULL_OBJECT");
    let done = seen.iter().find(|seen| seen.is("POST", "uploadId=")).expect("completed");
    assert_eq!(done.headers["x-amz-checksum-crc64nvme"], crc(&object));
    assert_eq!(done.headers["if-none-match"], "*");
    let parts = String::from_utf8(done.body.clone()).expect("a document");
    assert!(parts.contains("<PartNumber>1</PartNumber>"), "{parts}");
    assert!(memory.bytes_mut().is_ok(), "the lend has ended");
}

#[tokio::test]
async fn a_failed_upload_is_aborted() {
    for failing in ["partNumber=2", "uploadId=u%2F1"] {
        let server = Server::start(move |_, seen| {
            if seen.method != "DELETE" && seen.target.contains(failing) {
                let unfit = seen.method == "POST" || failing.starts_with("part");
                if unfit {
                    return Reply::error(403, "AccessDenied");
                }
            }
            upload(seen)
        })
        .await;
        let put = server.client().put_object("bkt", "k").part_bytes(PART as u64);
        let error = put.body(pattern(2 * PART)).send().await.expect_err("refused");
        assert_eq!(error.code(), Some("AccessDenied"));
        let aborts = server.seen().into_iter().filter(|seen| seen.is("DELETE", "uploadId=u%2F1"));
        assert_eq!(aborts.count(), 1, "{failing}");
    }
}

#[tokio::test]
async fn a_dropped_upload_is_aborted() {
    let (event, mut events) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |_, seen| {
        let _ = event.send(seen.method.clone());
        if seen.is("PUT", "partNumber=") {
            return Reply { hang: true, ..Reply::new(200) };
        }
        upload(seen)
    })
    .await;
    let put = server.client().put_object("bkt", "k").part_bytes(PART as u64);
    let write = tokio::spawn(put.body(pattern(2 * PART)).send());
    for expected in ["POST", "PUT", "PUT"] {
        assert_eq!(events.recv().await.as_deref(), Some(expected));
    }
    write.abort();
    assert_eq!(events.recv().await.as_deref(), Some("DELETE"));
}

#[tokio::test]
async fn an_error_in_a_successful_completion_is_an_error() {
    let server = Server::start(move |_, seen| match seen.is("POST", "uploadId=") {
        true => Reply::error(200, "InvalidPart"),
        false => upload(seen),
    })
    .await;
    let put = server.client().put_object("bkt", "k").part_bytes(PART as u64);
    let error = put.body(pattern(2 * PART)).send().await.expect_err("not completed");
    assert_eq!(error.code(), Some("InvalidPart"));
}

#[tokio::test]
async fn a_completion_whose_answer_was_lost_is_found_to_have_happened() {
    let object = pattern(2 * PART);
    for really in [true, false] {
        let stored = if really { object.clone() } else { pattern(2 * PART - 1) };
        let completions = Mutex::new(0);
        let server = Server::start(move |_, seen| {
            if seen.is("POST", "uploadId=") {
                let mut completions = completions.lock().expect("whole");
                *completions += 1;
                return match *completions {
                    1 => Reply::new(200).body("<R/>").cut_after(0),
                    _ => Reply::error(404, "NoSuchUpload"),
                };
            }
            match seen.method.as_str() {
                "HEAD" => Reply::object(seen, &stored, "\"e\""),
                _ => upload(seen),
            }
        })
        .await;
        let put = server.client().put_object("bkt", "k").part_bytes(PART as u64);
        let result = put.body(object.clone()).send().await;
        if really {
            assert!(result.expect("completed").verified.is_whole());
        } else {
            assert_eq!(result.expect_err("another object").code(), Some("NoSuchUpload"));
        }
    }
}

#[tokio::test]
async fn a_service_that_stored_other_bytes_is_found_out() {
    let server = Server::start(|_, _| {
        Reply::new(200).with("ETag", "\"e\"").with("x-amz-checksum-crc64nvme", crc(b"other"))
    })
    .await;
    let put = server.client().put_object("bkt", "k").body("bytes");
    let error = put.send().await.expect_err("other bytes");
    assert!(matches!(error, ClientError::ChecksumMismatch { .. }));
}

#[tokio::test]
async fn progress_counts_bytes_sent_again_once() {
    let server = Server::start(|before, seen| match before {
        0 => Reply::error(503, "SlowDown"),
        _ => Reply::new(200).with("x-amz-checksum-crc64nvme", crc(&seen.body)),
    })
    .await;
    let last = Arc::new(Mutex::new(0));
    let report = Arc::clone(&last);
    let put = server.client().put_object("bkt", "k").body(pattern(1_000_000));
    let put = put.on_progress(move |p| *report.lock().expect("whole") = p.bytes);
    let done = put.send().await.expect("at last");
    assert_eq!(done.retries, 1);
    assert_eq!(*last.lock().expect("whole"), 1_000_000);
}

#[tokio::test]
async fn a_file_goes_in_parts_too() {
    let object = pattern(2 * PART + 3);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &object).expect("written");
    let server = Server::start(|_, seen| upload(seen)).await;
    let put = server.client().put_object("bkt", "k").part_bytes(PART as u64);
    let put = put.body(file.path().to_owned()).send().await.expect("arrives");
    assert_eq!((put.bytes, put.parts), (object.len() as u64, 3));
    let mut parts = server.seen();
    parts.retain(|seen| seen.is("PUT", "partNumber="));
    parts.sort_by(|a, b| a.target.cmp(&b.target));
    let whole: Vec<u8> = parts.into_iter().flat_map(|seen| seen.body).collect();
    assert!(whole == object, "the parts are the file");
}
