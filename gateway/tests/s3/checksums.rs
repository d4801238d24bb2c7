//! Checksums: given in a header or a trailer, right or wrong.

use keyway_proto::{Checksum, ChecksumKind};

use crate::fixture::Server;

const KINDS: [(ChecksumKind, &str); 5] = [
    (ChecksumKind::Crc32, "x-amz-checksum-crc32"),
    (ChecksumKind::Crc32c, "x-amz-checksum-crc32c"),
    (ChecksumKind::Crc64Nvme, "x-amz-checksum-crc64nvme"),
    (ChecksumKind::Sha1, "x-amz-checksum-sha1"),
    (ChecksumKind::Sha256, "x-amz-checksum-sha256"),
];

#[tokio::test]
async fn in_a_header() {
    let server = Server::with_bucket().await;
    for (kind, name) in KINDS {
        let right = Checksum::of(kind, b"abc").to_base64();
        let wrong = Checksum::of(kind, b"abd").to_base64();
        let before = server.chunks().await;
        let put = |value: &str| server.put("/bucket/k").header(name, value).body("abc");
        put(&wrong).send().await.refused(400, "BadDigest");
        put("AAAA").send().await.refused(400, "InvalidRequest");
        put("?").send().await.refused(400, "InvalidRequest");
        assert_eq!(server.chunks().await, before, "a refused body left a chunk");
        server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
        let done = put(&right).send().await.expect(200);
        assert_eq!(done.header(name), Some(right.as_str()));
        let call = server.get("/bucket/k").header("x-amz-checksum-mode", "ENABLED");
        let got = call.send().await.expect(200);
        assert_eq!(got.header(name), Some(right.as_str()));
        assert_eq!(got.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
        let call = server.get("/bucket/k").header("x-amz-checksum-mode", "ENABLED");
        let part = call.header("range", "bytes=0-1").send().await.expect(206);
        assert_eq!(part.header(name), None, "a range has no checksum");
        server.delete("/bucket/k").send().await.expect(204);
    }
}

#[tokio::test]
async fn in_a_trailer() {
    let server = Server::with_bucket().await;
    let body = "0123456789".repeat(20_000);
    for (kind, name) in KINDS {
        let right = Checksum::of(kind, body.as_bytes()).to_base64();
        let wrong = Checksum::of(kind, b"abd").to_base64();
        let put = |trailers: &[(&str, &str)]| {
            server
                .put("/bucket/k")
                .header("x-amz-trailer", name)
                .body(body.clone())
                .chunked(body.len(), trailers)
        };
        put(&[(name, &wrong)]).send().await.refused(400, "BadDigest");
        put(&[(name, "AAAA")]).send().await.refused(400, "InvalidRequest");
        put(&[]).send().await.refused(400, "MalformedTrailerError");
        put(&[("x-amz-checksum-other", "AAAA")]).send().await.refused(400, "MalformedTrailerError");
        server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
        let done = put(&[(name, &right)]).send().await.expect(200);
        assert_eq!(done.header(name), Some(right.as_str()));
        let got = server.get("/bucket/k").send().await.expect(200);
        assert!(got.text() == body);
        assert_eq!(got.header("content-encoding"), None, "aws-chunked is not the object's");
        server.delete("/bucket/k").send().await.expect(204);
    }
    assert_eq!(server.get("/bucket/k").send().await.status, 404);
}

#[tokio::test]
async fn md5_and_contradictions() {
    let server = Server::with_bucket().await;
    let put = || server.put("/bucket/k").body("abc");
    let right = Checksum::of(ChecksumKind::Md5, b"abc").to_base64();
    let wrong = Checksum::of(ChecksumKind::Md5, b"abd").to_base64();
    put().header("content-md5", &wrong).send().await.refused(400, "BadDigest");
    put().header("content-md5", "AAAA").send().await.refused(400, "InvalidDigest");
    put()
        .header("x-amz-checksum-crc32", "NSRBwg==")
        .header("x-amz-checksum-crc32c", "NkxyMA==")
        .send()
        .await
        .refused(400, "InvalidRequest");
    put().header("x-amz-checksum-md5", &right).send().await.refused(400, "InvalidRequest");
    put()
        .header("x-amz-sdk-checksum-algorithm", "CRC32")
        .send()
        .await
        .refused(400, "InvalidRequest");
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
    put().header("content-md5", &right).send().await.expect(200);
    put()
        .header("x-amz-sdk-checksum-algorithm", "CRC32")
        .header("x-amz-checksum-crc32", "NSRBwg==")
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn empty_objects_are_checked_too() {
    let server = Server::with_bucket().await;
    let put = |value: &str| server.put("/bucket/k").header("x-amz-checksum-crc32", value);
    put("NSRBwg==").send().await.refused(400, "BadDigest");
    put("AAAAAA==").send().await.expect(200);
}
