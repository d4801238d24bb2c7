//! Objects: put, get, head, delete.

use keyway_auth::sigv4::Payload;
use keyway_gateway::s3::S3Config;
use keyway_proto::unit::MIB;
use keyway_proto::{Checksum, ChecksumKind};

use crate::fixture::Server;

const ABC_MD5: &str = "\"900150983cd24fb0d6963f7d28e17f72\"";

#[tokio::test]
async fn what_is_put_is_got() {
    let server = Server::with_bucket().await;
    let put = server
        .put("/bucket/key")
        .header("content-type", "text/plain")
        .header("cache-control", "no-store")
        .header("content-encoding", "gzip")
        .header("x-amz-meta-colour", "blue")
        .body("abc")
        .send()
        .await
        .expect(200);
    assert_eq!(put.header("etag"), Some(ABC_MD5));
    assert_eq!(put.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
    let crc = put.header("x-amz-checksum-crc64nvme").unwrap().to_owned();

    let got = server.get("/bucket/key").send().await.expect(200);
    assert_eq!(&got.body[..], b"abc");
    for (name, value) in [
        ("etag", ABC_MD5),
        ("content-length", "3"),
        ("content-type", "text/plain"),
        ("cache-control", "no-store"),
        ("content-encoding", "gzip"),
        ("x-amz-meta-colour", "blue"),
        ("accept-ranges", "bytes"),
        ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    assert_eq!(got.header("x-amz-checksum-crc64nvme"), None, "not asked for");

    let head = server
        .head("/bucket/key")
        .header("x-amz-checksum-mode", "ENABLED")
        .send()
        .await
        .expect(200);
    assert_eq!(head.header("content-length"), Some("3"));
    assert_eq!(head.header("x-amz-checksum-crc64nvme"), Some(crc.as_str()));
    assert!(head.body.is_empty());

    server.delete("/bucket/key").send().await.expect(204);
    server.get("/bucket/key").send().await.refused(404, "NoSuchKey");
    server.head("/bucket/key").send().await.expect(404);
    server.delete("/bucket/key").send().await.expect(204);
}

#[tokio::test]
async fn large_and_empty_objects() {
    let server = Server::with_bucket().await;
    let bytes: Vec<u8> = (0..33 * MIB as u32 + 7).map(|n| (n % 251) as u8).collect();
    server.put("/bucket/large").body(bytes.clone()).send().await.expect(200);
    assert_eq!(server.chunks().await, 3);
    let got = server.get("/bucket/large").send().await.expect(200);
    assert!(got.body == bytes, "the bytes differ");

    server.put("/bucket/empty").send().await.expect(200);
    let got = server.get("/bucket/empty").send().await.expect(200);
    assert_eq!(got.header("content-length"), Some("0"));
    assert_eq!(got.header("etag"), Some("\"d41d8cd98f00b204e9800998ecf8427e\""));
    assert!(got.body.is_empty());
}

/// Goal: keys are byte strings, not paths.
#[tokio::test]
async fn odd_keys_stay_apart() {
    let server = Server::with_bucket().await;
    let longest = "k".repeat(1024);
    let keys = [
        "a",
        "/a",
        "//a",
        "a/",
        "a//b",
        "a/../b",
        "..",
        ".",
        "%20",
        "a%252Fb",
        "%C3%A9",
        "a%20b",
        "a+b",
        "a%2Bb",
        "%3F",
        "%23",
        "%26%3C%3E",
        "~-_.!*'()",
        &longest,
    ];
    for (n, key) in keys.iter().enumerate() {
        server.put(&format!("/bucket/{key}")).body(n.to_string()).send().await.expect(200);
    }
    for (n, key) in keys.iter().enumerate() {
        let got = server.get(&format!("/bucket/{key}")).send().await.expect(200);
        // `+` and `%2B` are one key, written twice.
        let expected = if *key == "a+b" { n + 1 } else { n };
        assert_eq!(got.text(), expected.to_string(), "{key}");
    }
    server.put(&format!("/bucket/{longest}k")).send().await.refused(400, "KeyTooLongError");
    server.get("/bucket/%FF").send().await.refused(400, "InvalidURI");
    server.put("/bucket/a%01b").send().await.refused(400, "InvalidArgument");
    server.get("/BUCKET_/a").send().await.refused(400, "InvalidBucketName");
}

#[tokio::test]
async fn bodies_that_are_not_as_announced_leave_nothing() {
    let server = Server::with_bucket().await;
    let before = server.chunks().await;
    server
        .put("/bucket/key")
        .payload(Payload::Sha256([7; 32]))
        .body("abc")
        .send()
        .await
        .refused(400, "XAmzContentSHA256Mismatch");
    server
        .put("/bucket/key")
        .body("")
        .payload(Payload::Sha256([7; 32]))
        .send()
        .await
        .refused(400, "XAmzContentSHA256Mismatch");
    for declared in [2, 4] {
        server
            .put("/bucket/key")
            .header("x-amz-trailer", "x-amz-checksum-crc32")
            .body("abc")
            .chunked(declared, &[("x-amz-checksum-crc32", "NSRBwg==")])
            .send()
            .await
            .refused(400, "IncompleteBody");
    }
    server.get("/bucket/key").send().await.refused(404, "NoSuchKey");
    assert_eq!(server.chunks().await, before);
}

#[tokio::test]
async fn limits_are_kept() {
    let config = S3Config { put_max_bytes: 10, ..S3Config::default() };
    let server = Server::with(config, MIB).await;
    server.put("/bucket").send().await.expect(200);
    server.put("/bucket/k").body("x".repeat(10)).send().await.expect(200);
    server.put("/bucket/l").body("x".repeat(11)).send().await.refused(400, "EntityTooLarge");
    let big = "v".repeat(2048);
    server
        .put("/bucket/m")
        .header("x-amz-meta-a", &big)
        .send()
        .await
        .refused(400, "MetadataTooLarge");
    server
        .put("/bucket/n")
        .header("x-amz-storage-class", "NOPE")
        .send()
        .await
        .refused(400, "InvalidStorageClass");
    server
        .put("/bucket/n")
        .header("x-amz-server-side-encryption", "aws:kms")
        .send()
        .await
        .refused(501, "NotImplemented");
    server
        .put("/bucket/n")
        .header("x-amz-acl", "public-read")
        .send()
        .await
        .refused(400, "AccessControlListNotSupported");
}

#[tokio::test]
async fn a_full_store_says_so_and_recovers() {
    let server = Server::with(S3Config::default(), 4 * MIB).await;
    server.put("/bucket").send().await.expect(200);
    let three = vec![1u8; 3 * MIB as usize];
    server.put("/bucket/a").body(three.clone()).send().await.expect(200);
    server.put("/bucket/b").body(three.clone()).send().await.refused(507, "InsufficientStorage");
    server.get("/bucket/b").send().await.refused(404, "NoSuchKey");
    assert_eq!(server.get("/bucket/a").send().await.expect(200).body.len(), three.len());
}

#[tokio::test]
async fn metadata_and_overrides() {
    let server = Server::with_bucket().await;
    server
        .put("/bucket/k")
        .header("x-amz-meta-name", "=?UTF-8?B?w6k=?=")
        .header("content-encoding", "aws-chunked,gzip")
        .body("abc")
        .send()
        .await
        .expect(200);
    let path = "/bucket/k?response-content-type=a%2Fb&response-content-disposition=c%20d";
    for reply in [server.get(path).send().await, server.head(path).send().await] {
        let reply = reply.expect(200);
        assert_eq!(reply.header("content-type"), Some("a/b"));
        assert_eq!(reply.header("content-disposition"), Some("c d"));
        assert_eq!(reply.header("content-encoding"), Some("gzip"));
        assert_eq!(reply.header("x-amz-meta-name"), Some("=?UTF-8?B?w6k=?="));
    }
}

#[tokio::test]
async fn deleting_many() {
    let server = Server::with_bucket().await;
    for key in ["a", "b", "c"] {
        server.put(&format!("/bucket/{key}")).body(key).send().await.expect(200);
    }
    let listed = |keys: &[&str], quiet: bool| {
        let objects: String =
            keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
        format!("<Delete>{objects}<Quiet>{quiet}</Quiet></Delete>")
    };
    let delete = |body: String| {
        let digest = Checksum::of(ChecksumKind::Md5, body.as_bytes()).to_base64();
        server.post("/bucket?delete").header("content-md5", &digest).body(body)
    };
    let reply = delete(listed(&["a", "nope"], false)).send().await.expect(200);
    assert_eq!(reply.tags("Key"), ["a", "nope"]);
    let reply = delete(listed(&["b"], true)).send().await.expect(200);
    assert!(reply.tags("Key").is_empty());
    server.get("/bucket/b").send().await.refused(404, "NoSuchKey");

    let many: Vec<String> = (0..1001).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for body in [listed(&many, false), listed(&[], false), "<Delete>".to_owned(), "x".to_owned()] {
        delete(body).send().await.refused(400, "MalformedXML");
    }
    let body = listed(&["c"], false);
    let bare = server.post("/bucket?delete").body(body.clone()).send().await;
    assert!(bare.refused(400, "InvalidRequest").tag("Message").contains("Content-MD5"));
    server
        .post("/bucket?delete")
        .header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")
        .body(body.clone())
        .send()
        .await
        .refused(400, "BadDigest");
    server
        .post("/bucket?delete")
        .header("x-amz-checksum-crc32", "AAAAAA==")
        .body(body.clone())
        .send()
        .await
        .refused(400, "BadDigest");
    server
        .post("/bucket?delete")
        .payload(Payload::Sha256([1; 32]))
        .body(body)
        .send()
        .await
        .refused(400, "XAmzContentSHA256Mismatch");
    server.get("/bucket/c").send().await.expect(200);
}
