//! Writes that are answered from memory: what clients are told, what waits for the device, and
//! what becomes of objects whose bytes are lost. Over a node with a memory tier; nothing settles
//! in the background here, so that every step is a test's own.

use keyway_dataplane::{
    AccessMode, EngineConfig, IpcConfig, LocalNode, RdmaConfig, StorageNode, TierConfig,
};
use keyway_gateway::s3::S3Config;
use keyway_proto::unit::MIB;
use keyway_proto::{Checksum, ChecksumKind, FlushReply, NodeId};

use crate::fixture::{Call, Reply, Server};

const FLUSH: &str = "/_keyway/v1/flush";
const DURABILITY: &str = "x-keyway-durability";

async fn server_with(tier: TierConfig) -> Server {
    let rdma = RdmaConfig { mode: AccessMode::Off, ..RdmaConfig::default() };
    let ipc = IpcConfig { mode: AccessMode::Off, ..IpcConfig::default() };
    let engine = EngineConfig::default();
    let node = LocalNode::open_in_memory(NodeId(1), 256 * MIB, 32 << 20, tier, &engine, rdma, &ipc);
    let node = node.await.unwrap();
    let server = Server::over(S3Config::default(), node.clone(), node).await;
    server.put("/bucket").send().await.expect(200);
    server
}

async fn server() -> Server {
    server_with(TierConfig { size_bytes: 128 * MIB, ..TierConfig::default() }).await
}

fn bytes(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|n| ((n * 7 + (n >> 9) + seed) % 251) as u8).collect()
}

fn in_memory<'a>(server: &'a Server, path: &str, body: &[u8]) -> Call<'a> {
    server.put(path).header(DURABILITY, "memory").body(body.to_vec())
}

async fn flush(server: &Server, document: &str) -> FlushReply {
    let reply = server.post(FLUSH).body(document.to_owned()).send().await.expect(200);
    serde_json::from_slice(&reply.body).unwrap()
}

/// Loses what is on the node and not in `kept`, as a crash loses its memory.
async fn lose(server: &Server, kept: &[keyway_proto::ChunkId]) {
    let chunks = server.node.chunks(None, 1000).await.unwrap();
    let lost: Vec<_> =
        chunks.iter().map(|chunk| chunk.id).filter(|id| !kept.contains(id)).collect();
    server.node.release(&lost).await.unwrap();
}

async fn chunks(server: &Server) -> Vec<keyway_proto::ChunkId> {
    let chunks = server.node.chunks(None, 1000).await.unwrap();
    chunks.iter().map(|chunk| chunk.id).collect()
}

#[tokio::test]
async fn a_write_is_answered_from_memory_and_becomes_durable() {
    let server = server().await;
    let body = bytes(1, 20 * MIB + 5);
    let put = in_memory(&server, "/bucket/a", &body).send().await.expect(200);
    assert_eq!(put.header(DURABILITY), Some("memory"));
    let etag = put.header("etag").unwrap().to_owned();
    assert!(etag.ends_with("-c\""), "an ETag that nobody takes for an MD5: {etag}");
    let got = server.get("/bucket/a").send().await.expect(200);
    assert!(got.body == body);
    assert_eq!((got.header(DURABILITY), got.header("etag")), (Some("memory"), Some(&*etag)));
    let range = server.get("/bucket/a").header("range", "bytes=17000000-17000099").send().await;
    assert_eq!(range.expect(206).body, body[17_000_000..17_000_100]);
    assert_eq!(
        flush(&server, r#"{"bucket":"bucket"}"#).await,
        FlushReply { settled: 1, ..FlushReply::default() }
    );
    assert_eq!(server.node.stats().tier.dirty_bytes, 0);
    let head = server.head("/bucket/a").send().await.expect(200);
    assert_eq!((head.header(DURABILITY), head.header("etag")), (None, Some(&*etag)));
    assert!(server.get("/bucket/a").send().await.expect(200).body == body);
    // A write that asks for nothing is told nothing, and for the disk, that.
    let plain = server.put("/bucket/a").body(body.clone()).send().await.expect(200);
    assert_eq!(plain.header(DURABILITY), None);
    let disk = server.put("/bucket/a").header(DURABILITY, "disk").body(body).send().await;
    assert_eq!(disk.expect(200).header(DURABILITY), Some("disk"));
}

#[tokio::test]
async fn what_memory_does_not_take_is_durable() {
    let server = server_with(TierConfig::default()).await;
    let put = in_memory(&server, "/bucket/no-tier", &bytes(1, MIB)).send().await.expect(200);
    assert_eq!(put.header(DURABILITY), Some("disk"));
    let off = TierConfig { size_bytes: 64 * MIB, dirty_bytes: Some(0), ..TierConfig::default() };
    let server = server_with(off).await;
    let put = in_memory(&server, "/bucket/forbidden", &bytes(1, MIB)).send().await.expect(200);
    assert_eq!(put.header(DURABILITY), Some("disk"));
    let server = self::server().await;
    for body in [&b""[..], b"short"] {
        let put = in_memory(&server, "/bucket/short", body).send().await.expect(200);
        assert_eq!(put.header(DURABILITY), Some("disk"));
    }
    assert_eq!(flush(&server, "{}").await, FlushReply::default());
}

#[tokio::test]
async fn nonsense_is_refused_and_changes_nothing() {
    let server = server().await;
    let body = bytes(1, MIB);
    for bad in ["", "Memory", "ram", "memory, disk"] {
        let put = server.put("/bucket/a").header(DURABILITY, bad).body(body.clone()).send().await;
        put.refused(400, "InvalidArgument");
    }
    let twice = in_memory(&server, "/bucket/a", &body).header(DURABILITY, "memory").send().await;
    twice.refused(400, "InvalidArgument");
    // What a client says of its bytes is checked before the answer, as ever.
    for kind in [ChecksumKind::Sha256, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme] {
        let name = format!("x-amz-checksum-{}", kind.to_string().to_lowercase());
        let wrong = Checksum::of(kind, b"others").to_base64();
        let put = in_memory(&server, "/bucket/a", &body).header(&name, &wrong).send().await;
        put.refused(400, "BadDigest");
        let right = Checksum::of(kind, &body).to_base64();
        let put = in_memory(&server, "/bucket/right", &body).header(&name, &right).send().await;
        assert_eq!(put.expect(200).header(DURABILITY), Some("memory"));
    }
    server.get("/bucket/a").send().await.refused(404, "NoSuchKey");
    server.post(FLUSH).body(r#"{"key":"a"}"#).send().await.refused(400, "InvalidArgument");
    server.post(FLUSH).body("{").send().await.expect(400);
    server.post(FLUSH).body(r#"{"bucket":"none"}"#).send().await.refused(404, "NoSuchBucket");
    let missing = r#"{"bucket":"bucket","key":"none"}"#;
    server.post(FLUSH).body(missing).send().await.refused(404, "NoSuchKey");
    server.post(FLUSH).body("{}").anonymous().send().await.refused(403, "AccessDenied");
    assert_eq!(flush(&server, r#"{"bucket":"bucket","key":"right"}"#).await.settled, 1);
}

/// Goal: a reader meets the new object or the old one, whole, and never an error.
#[tokio::test]
async fn lost_objects_give_way_to_what_they_replaced() {
    let server = server().await;
    let (old, new) = (bytes(1, 300_000), bytes(2, 2 * MIB));
    server.put("/bucket/a").body(old.clone()).send().await.expect(200);
    let durable = chunks(&server).await;
    in_memory(&server, "/bucket/a", &new).send().await.expect(200);
    in_memory(&server, "/bucket/b", &new).send().await.expect(200);
    lose(&server, &durable).await;
    let got = server.get("/bucket/a").send().await.expect(200);
    assert!(got.body == old && got.header(DURABILITY).is_none());
    server.get("/bucket/b").send().await.refused(404, "NoSuchKey");
    // And where nobody has read it first, a flush says so.
    in_memory(&server, "/bucket/a", &new).send().await.expect(200);
    lose(&server, &durable).await;
    let told = flush(&server, "{}").await;
    assert_eq!((told.settled, told.lost, told.pending), (0, 1, 0));
    assert!(server.get("/bucket/a").send().await.expect(200).body == old);
}

#[tokio::test]
async fn writes_over_a_pending_object_leave_nothing_behind() {
    let server = server().await;
    for (path, then) in [("/bucket/a", "put"), ("/bucket/b", "delete")] {
        in_memory(&server, path, &bytes(3, MIB)).send().await.expect(200);
        in_memory(&server, path, &bytes(4, MIB)).send().await.expect(200);
        match then {
            "put" => drop(server.put(path).body(bytes(5, MIB)).send().await.expect(200)),
            _ => drop(server.delete(path).send().await.expect(204)),
        }
    }
    assert_eq!(flush(&server, "{}").await, FlushReply::default());
    assert!(server.get("/bucket/a").send().await.expect(200).body == bytes(5, MIB));
    server.get("/bucket/b").send().await.refused(404, "NoSuchKey");
    server.delete("/bucket/a").send().await.expect(204);
    server.delete("/bucket").send().await.expect(204);
}

#[tokio::test]
async fn copies_are_durable() {
    let server = server().await;
    let body = bytes(6, 3 * MIB);
    in_memory(&server, "/bucket/a", &body).send().await.expect(200);
    let copy = server.put("/bucket/copy").header("x-amz-copy-source", "/bucket/a").send().await;
    copy.expect(200);
    let source = server.head("/bucket/a").send().await.expect(200);
    assert_eq!(source.header(DURABILITY), None, "the copy waited for it");
    let copied = server.get("/bucket/copy").send().await.expect(200);
    assert!(copied.body == body && copied.header(DURABILITY).is_none());
}

/// An upload of two parts in memory, with their ETags.
async fn upload(server: &Server, parts: [&[u8]; 2]) -> (String, String) {
    let begun = server.post("/bucket/big?uploads").send().await.expect(200);
    let id = begun.tag("UploadId");
    let mut list = String::new();
    for (number, part) in (1..).zip(parts) {
        let path = format!("/bucket/big?partNumber={number}&uploadId={id}");
        let put = in_memory(server, &path, part).send().await.expect(200);
        assert_eq!(put.header(DURABILITY), Some("memory"));
        let etag = put.header("etag").unwrap();
        list += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    let document = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    (format!("/bucket/big?uploadId={id}"), document)
}

#[tokio::test]
async fn uploads_complete_in_memory_or_wait() {
    let server = server().await;
    let parts = [&bytes(7, 17 * MIB)[..], &bytes(8, MIB)[..]];
    let whole = parts.concat();
    let told = |reply: &Reply| reply.header(DURABILITY).map(str::to_owned);
    // Parts that the device was faster with make a durable object.
    let mut attempts = 0;
    let done = loop {
        let (path, document) = upload(&server, parts).await;
        let done = server.post(&path).header(DURABILITY, "memory").body(document).send().await;
        attempts += 1;
        match told(&done.expect(200)).as_deref() {
            Some("disk") if attempts < 10 => {}
            done => break done.map(str::to_owned),
        }
    };
    assert_eq!(done.as_deref(), Some("memory"), "after {attempts} attempts");
    let got = server.get("/bucket/big").send().await.expect(200);
    assert!(got.body == whole && told(&got).as_deref() == Some("memory"));
    assert_eq!(flush(&server, r#"{"bucket":"bucket"}"#).await.settled, 1);
    // Without the word, the completion waits for the parts.
    let (path, document) = upload(&server, parts).await;
    let done = server.post(&path).body(document).send().await.expect(200);
    assert_eq!(told(&done), None);
    assert_eq!(server.node.stats().tier.dirty_bytes, 0);
    let got = server.get("/bucket/big").send().await.expect(200);
    assert!(got.body == whole && told(&got).is_none());
    assert_eq!(flush(&server, "{}").await, FlushReply::default());
}

#[tokio::test]
async fn lost_parts_are_missed_before_the_answer() {
    for asked in ["memory", "disk"] {
        let server = server().await;
        let (path, document) = upload(&server, [&bytes(9, 6 * MIB), &bytes(1, MIB)]).await;
        lose(&server, &[]).await;
        let done = server.post(&path).header(DURABILITY, asked).body(document).send().await;
        done.refused(400, "InvalidPart");
        server.get("/bucket/big").send().await.refused(404, "NoSuchKey");
    }
}
