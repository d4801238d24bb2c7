//! Goal: against servers that are not Keyway the SDK keeps its promises: an upload that was given
//! up is aborted, and bytes are checked where CRC64NVME is not known.
//!
//! Method: a server that answers as the test tells it; what arrives there is held against what
//! was sent. Who waits in it is let go by the test, so that nothing hangs on time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyway_client::{ClientError, PutObject, Unverified, Verified};
use keyway_proto::{Checksum, ChecksumKind};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::broken::{Reply, Seen, Server, pattern};

const PART: usize = 5 << 20;
/// How long a request may take that has to come.
const COMES_WITHIN: Duration = Duration::from_secs(20);
const ALGORITHM: &str = "x-amz-checksum-algorithm";
const CRC64NVME: &str = "x-amz-checksum-crc64nvme";

/// Methods of requests as they come, and the way to let those go that wait.
struct Gate {
    came: UnboundedReceiver<String>,
    open: Sender<()>,
}

impl Gate {
    async fn expect(&mut self, method: &str) {
        let came = tokio::time::timeout(COMES_WITHIN, self.came.recv()).await;
        assert_eq!(came.expect("a request comes").as_deref(), Some(method));
    }

    fn let_go(&self) {
        self.open.send(()).expect("the server runs");
    }
}

fn wait(gate: &Mutex<Receiver<()>>) {
    tokio::task::block_in_place(|| {
        gate.lock().expect("whole").recv().expect("the test lets it go");
    });
}

/// A server whose answers wait where `waits` says so.
async fn gated(
    waits: impl Fn(&Seen) -> bool + Send + Sync + 'static,
    answer: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static,
) -> (Server, Gate) {
    let (event, came) = unbounded_channel();
    let (open, gate) = channel();
    let gate = Mutex::new(gate);
    let server = Server::start(move |before, seen| {
        // The test may have ended.
        let _ = event.send(seen.method.clone());
        if waits(seen) {
            wait(&gate);
        }
        answer(before, seen)
    });
    (server.await, Gate { came, open })
}

fn md5(bytes: &[u8]) -> Checksum {
    Checksum::of(ChecksumKind::Md5, bytes)
}

fn etag(bytes: &[u8]) -> String {
    let hex: String = md5(bytes).value().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

/// A service that checks MD5s, and knows no other checksum.
fn old_service(seen: &Seen) -> Reply {
    if let Some(sum) = seen.headers.get("content-md5")
        && *sum != md5(&seen.body).to_base64()
    {
        return Reply::error(400, "BadDigest");
    }
    match seen.method.as_str() {
        "PUT" => Reply::new(200).with("ETag", etag(&seen.body)),
        "POST" if seen.target.contains("uploads=") => {
            Reply::new(200).body("<R><UploadId>u1</UploadId></R>")
        }
        "POST" => Reply::new(200).body("<R><ETag>\"e-3\"</ETag></R>"),
        _ => Reply::new(204),
    }
}

/// Whether a request has anything about CRC64NVME.
fn names_crc64nvme(seen: &Seen) -> bool {
    seen.headers.contains_key(ALGORITHM)
        || seen.headers.contains_key(CRC64NVME)
        || seen.headers.contains_key("x-amz-checksum-type")
        || (seen.method == "POST" && String::from_utf8_lossy(&seen.body).contains("CRC64NVME"))
}

fn in_parts(server: &Server) -> PutObject {
    server.client().put_object("bkt", "k").part_bytes(PART as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_aborted_whose_creator_has_gone() {
    let creation = |seen: &Seen| seen.is("POST", "uploads=");
    for deadline in [None, Some(Duration::from_millis(300))] {
        let (server, mut gate) = gated(creation, |_, seen| old_service(seen)).await;
        let mut put = in_parts(&server).body(pattern(2 * PART));
        if let Some(deadline) = deadline {
            put = put.deadline(deadline);
        }
        let write = tokio::spawn(put.send());
        gate.expect("POST").await;
        match deadline {
            None => {
                write.abort();
                assert!(write.await.is_err_and(|error| error.is_cancelled()));
            }
            Some(_) => {
                let ended = write.await.expect("no panic");
                assert!(matches!(ended, Err(ClientError::Deadline)), "{ended:?}");
            }
        }
        gate.let_go();
        gate.expect("DELETE").await;
        assert!(server.seen().iter().any(|seen| seen.is("DELETE", "uploadId=u1")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_goes_on_when_the_caller_has_gone() {
    let refused = |seen: &Seen| seen.is("PUT", "partNumber=");
    let aborts = Arc::new(Mutex::new(0));
    let (server, mut gate) = gated(
        |seen| seen.method == "DELETE",
        move |_, seen| {
            if refused(seen) {
                return Reply::error(403, "AccessDenied");
            }
            if seen.method != "DELETE" {
                return old_service(seen);
            }
            let mut aborts = aborts.lock().expect("whole");
            *aborts += 1;
            match *aborts {
                1 => Reply::error(503, "SlowDown"),
                _ => old_service(seen),
            }
        },
    )
    .await;
    let put = in_parts(&server).concurrency(1).body(pattern(2 * PART));
    let write = tokio::spawn(put.send());
    for method in ["POST", "PUT", "DELETE"] {
        gate.expect(method).await;
    }
    write.abort();
    assert!(write.await.is_err_and(|error| error.is_cancelled()));
    gate.let_go();
    // The first was not heard: nobody but the abort itself asks again.
    gate.expect("DELETE").await;
    gate.let_go();
}

#[tokio::test]
async fn a_service_that_refuses_crc64nvme_gets_md5() {
    let object = pattern(2 * PART + 11);
    for (status, code) in
        [(501, "NotImplemented"), (400, "InvalidRequest"), (400, "InvalidArgument")]
    {
        let server = Server::start(move |_, seen| match names_crc64nvme(seen) {
            true => Reply::error(status, code),
            false => old_service(seen),
        })
        .await;
        let refusals = || server.seen().iter().filter(|seen| names_crc64nvme(seen)).count();
        let client = server.client();
        let put = || client.put_object("bkt", "k").part_bytes(PART as u64);
        for _ in 0..2 {
            let done = put().body(object.clone()).send().await.expect("arrives");
            assert_eq!((done.parts, done.verified), (3, Verified::No(Unverified::Composite)));
        }
        let done = put().body("bytes").send().await.expect("arrives");
        assert_eq!(done.verified, Verified::Whole(md5(b"bytes")));
        assert_eq!((refusals(), done.retries), (1, 0), "{code}: it is asked once");
        let seen = server.seen();
        let puts: Vec<_> = seen.iter().filter(|seen| seen.method == "PUT").collect();
        assert_eq!(puts.len(), 7);
        assert!(puts.iter().all(|seen| seen.headers["content-md5"] == md5(&seen.body).to_base64()));
        let sent: usize = puts.iter().map(|seen| seen.body.len()).sum();
        assert_eq!(sent, 2 * object.len() + 5);

        // The same, learned from a single request.
        let client = server.client();
        for retries in [1, 0] {
            let done = client.put_object("bkt", "k").body("bytes").send().await.expect("arrives");
            assert_eq!((done.retries, done.verified.is_whole()), (retries, true));
        }
        assert_eq!(refusals(), 2);
    }
}

#[tokio::test]
async fn a_service_that_ignores_crc64nvme_gets_md5_too() {
    let server = Server::start(|_, seen| old_service(seen)).await;
    let client = server.client();
    for _ in 0..2 {
        let done = client.put_object("bkt", "k").body("bytes").send().await.expect("arrives");
        assert_eq!((done.retries, done.verified), (0, Verified::Whole(md5(b"bytes"))));
    }
    let done = in_parts(&server).body(pattern(2 * PART)).send().await.expect("arrives");
    assert_eq!(done.verified, Verified::No(Unverified::Composite));
    let seen = server.seen();
    let puts: Vec<_> = seen.iter().filter(|seen| seen.method == "PUT").collect();
    let has_md5: Vec<_> =
        puts.iter().map(|seen| seen.headers.contains_key("content-md5")).collect();
    assert_eq!(has_md5, [false, true, true, true], "from the first answer on");
    assert!(puts.iter().all(|seen| seen.headers.contains_key(CRC64NVME)));
}

#[tokio::test]
async fn a_refusal_for_another_reason_is_the_answer() {
    let server = Server::start(|_, _| Reply::error(400, "InvalidArgument")).await;
    let client = server.client();
    for bytes in [5, 2 * PART] {
        let put = client.put_object("bkt", "k").part_bytes(PART as u64).body(pattern(bytes));
        let error = put.send().await.expect_err("refused");
        assert_eq!(error.code(), Some("InvalidArgument"));
    }
    let names: Vec<_> = server.seen().iter().map(names_crc64nvme).collect();
    assert_eq!(names, [true, false, true, false], "nothing was learned");
}
