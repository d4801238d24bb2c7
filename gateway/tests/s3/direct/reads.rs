//! GETs into a client's memory.

use std::sync::atomic::Ordering;

use keyway_proto::unit::MIB;

use super::{Direct, moved, nothing_moved, open, pattern};
use crate::direct_node::Fault;

#[tokio::test]
async fn a_get_fills_the_windows_and_has_all_headers() {
    let direct = Direct::start().await;
    let bytes = pattern(300_000);
    let put = direct.server.put("/bucket/key").header("x-amz-meta-a", "b").body(bytes.clone());
    let etag = put.send().await.expect(200).header("etag").unwrap().to_owned();
    // Several windows, the last with room to spare.
    let (token, buffer) = direct.node.arm(direct.session, &[100_000, 1, 250_000]);
    let call = direct.get("/bucket/key", &token).header("x-amz-checksum-mode", "ENABLED");
    let reply = call.send().await.expect(200);
    moved(&reply, "200", &bytes);
    let memory = direct.node.read(&buffer);
    assert!(memory[..300_000] == bytes[..] && memory[300_000..].iter().all(|byte| *byte == 0xee));
    assert_eq!(reply.header("etag"), Some(&etag[..]));
    assert_eq!(reply.header("x-amz-meta-a"), Some("b"));
    assert!(reply.header("x-amz-checksum-crc64nvme").is_some());
    assert!(reply.header("last-modified").is_some());
    assert_eq!(direct.node.live_keys(), 0);
    // A token is used once: the adapter has forgotten its keys.
    let again = direct.get("/bucket/key", &token).send().await;
    nothing_moved(&again.refused(500, "RDMATransferFailed"), "quiet");
    // Without a token it is an ordinary object.
    let plain = direct.server.get("/bucket/key").send().await.expect(200);
    assert!(plain.body == bytes);
    assert_eq!(plain.header("x-keyway-rdma-key"), None);
}

#[tokio::test]
async fn ranges_and_parts_are_206() {
    let direct = Direct::start().await;
    let bytes = pattern(40 * MIB as usize);
    direct.server.put("/bucket/key").body(bytes.clone()).send().await.expect(200);
    // Over the border of two chunks.
    let (from, to) = (15_999_999, 33_000_000);
    let (token, buffer) = direct.node.arm(direct.session, &[(to - from) as u32]);
    let call = direct.get("/bucket/key", &token);
    let reply = call.header("range", &format!("bytes={from}-{}", to - 1)).send().await.expect(206);
    moved(&reply, "206", &bytes[from..to]);
    let told = format!("bytes {from}-{}/{}", to - 1, bytes.len());
    assert_eq!(reply.header("content-range"), Some(&told[..]));
    assert!(direct.node.read(&buffer) == bytes[from..to]);

    let (token, _) = direct.node.arm(direct.session, &[40 << 20]);
    let reply = direct.get("/bucket/key?partNumber=1", &token).send().await.expect(206);
    moved(&reply, "206", &bytes);
    // A range that S3 ignores: the whole object.
    let (token, _) = direct.node.arm(direct.session, &[40 << 20]);
    let odd = direct.get("/bucket/key", &token).header("range", "bytes=0-0,2-2").send().await;
    moved(&odd.expect(200), "200", &bytes);
}

/// Goal: a part is never taken for the whole.
#[tokio::test]
async fn a_range_longer_than_the_windows_is_refused() {
    let direct = Direct::start().await;
    direct.server.put("/bucket/key").body("abcdef").send().await.expect(200);
    let (token, buffer) = direct.node.arm(direct.session, &[2, 3]);
    let reply = direct.get("/bucket/key", &token).send().await;
    let reply = reply.refused(400, "RDMAWindowTooSmall");
    nothing_moved(&reply, "quiet");
    assert!(reply.tag("Message").contains("5 bytes of the 6"));
    assert_eq!(direct.node.read(&buffer), [0xee; 5]);
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    let fits = direct.get("/bucket/key", &token).header("range", "bytes=1-5").send().await;
    moved(&fits.expect(206), "206", b"bcdef");
}

#[tokio::test]
async fn what_is_not_read_moves_nothing() {
    let direct = Direct::start().await;
    let etag = direct.server.put("/bucket/key").body("abc").send().await;
    let etag = etag.header("etag").unwrap().to_owned();
    let (token, buffer) = direct.node.arm(direct.session, &[3]);
    let get = || direct.get("/bucket/key", &token);
    let unchanged = get().header("if-none-match", &etag).send().await.expect(304);
    nothing_moved(&unchanged, "quiet");
    let failed = get().header("if-match", "\"other\"").send().await;
    nothing_moved(&failed.refused(412, "PreconditionFailed"), "quiet");
    let beyond = get().header("range", "bytes=9-").send().await;
    nothing_moved(&beyond.refused(416, "InvalidRange"), "quiet");
    let missing = direct.get("/bucket/none", &token).send().await;
    nothing_moved(&missing.refused(404, "NoSuchKey"), "quiet");
    // HEAD has no bytes to move, and says nothing of a token.
    let head = direct.server.head("/bucket/key").header("x-amz-rdma-token", &token.encode());
    let head = head.send().await.expect(200);
    assert_eq!(head.header("content-length"), Some("3"));
    assert!(head.headers.keys().all(|name| !name.as_str().contains("rdma")), "{head:?}");
    assert_eq!(direct.node.read(&buffer), [0xee; 3]);
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    moved(&get().send().await.expect(200), "200", b"abc");
}

/// Goal: bytes that are elsewhere come over HTTP, with the word where a session would serve.
#[tokio::test]
async fn another_nodes_bytes_come_over_http() {
    let (direct, other) = Direct::start_two().await;
    let session = open(&direct.server, &other).await;
    let (token, buffer) = other.arm(session, &[3]);
    other.fill(&buffer, b"abc");
    let put = direct.put("/bucket/key", &token).send().await.expect(200);
    moved(&put, "200", b"abc");
    let (token, buffer) = direct.node.arm(direct.session, &[3]);
    let reply = direct.get("/bucket/key", &token).send().await.expect(200);
    assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(reply.header("x-keyway-node"), Some("2"));
    assert_eq!(reply.header("x-keyway-rdma-key"), Some("quiet"));
    assert_eq!(reply.text(), "abc");
    assert_eq!(direct.node.read(&buffer), [0xee; 3]);
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    let ranged = direct.get("/bucket/key", &token).header("range", "bytes=1-1").send().await;
    let ranged = ranged.expect(206);
    assert_eq!((ranged.header("x-amz-rdma-reply"), ranged.text()), (Some("501"), "b"));
    let (token, _) = other.arm(session, &[3]);
    moved(&direct.get("/bucket/key", &token).send().await.expect(200), "200", b"abc");
    let declined = direct.server.direct_counts.stats().declined;
    assert!(declined.contains(&("other-node", 2)), "{declined:?}");
}

/// An object of two parts, one on each node: the first part's node is named.
#[tokio::test]
async fn an_object_on_two_nodes_comes_over_http() {
    let (direct, other) = Direct::start_two().await;
    let session = open(&direct.server, &other).await;
    let part = pattern(5 << 20);
    let id = direct.server.post("/bucket/key?uploads").send().await.expect(200).tag("UploadId");
    let mut document = String::from("<CompleteMultipartUpload>");
    for (number, node, session) in [(1, &other, session), (2, &direct.node, direct.session)] {
        let (token, buffer) = node.arm(session, &[5 << 20]);
        node.fill(&buffer, &part);
        let path = format!("/bucket/key?partNumber={number}&uploadId={id}");
        let reply = direct.put(&path, &token).send().await.expect(200);
        moved(&reply, "200", &part);
        let etag = reply.header("etag").unwrap();
        document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    document += "</CompleteMultipartUpload>";
    let complete = direct.server.post(&format!("/bucket/key?uploadId={id}")).body(document);
    complete.send().await.expect(200);
    let (token, _) = direct.node.arm(direct.session, &[10 << 20]);
    let whole = direct.get("/bucket/key", &token).send().await.expect(200);
    assert_eq!(whole.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(whole.header("x-keyway-node"), Some("2"));
    assert!(whole.body[..5 << 20] == part[..] && whole.body[5 << 20..] == part[..]);
    // The second part alone is on the session's node.
    let reply = direct.get("/bucket/key?partNumber=2", &token).send().await.expect(206);
    moved(&reply, "206", &part);
}

#[tokio::test]
async fn an_empty_object_is_declined() {
    let direct = Direct::start().await;
    direct.server.put("/bucket/key").send().await.expect(200);
    let (token, _) = direct.node.arm(direct.session, &[1]);
    let reply = direct.get("/bucket/key", &token).send().await.expect(200);
    assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(reply.header("x-keyway-rdma-key"), Some("quiet"));
    assert!(reply.body.is_empty());
    assert!(direct.server.direct_counts.stats().declined.contains(&("empty", 1)));
}

/// Goal: an object replaced under a GET is read as it is then, under the same key.
#[tokio::test]
async fn a_lost_chunk_is_looked_up_again() {
    let direct = Direct::start().await;
    direct.server.put("/bucket/key").body("abc").send().await.expect(200);
    let (token, buffer) = direct.node.arm(direct.session, &[3]);
    direct.node.fail_next(Fault::LosesChunk);
    moved(&direct.get("/bucket/key", &token).send().await.expect(200), "200", b"abc");
    assert_eq!(direct.node.read(&buffer), b"abc");
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 2);
}
