//! Copies of objects and into parts.

use keyway_proto::unit::MIB;

use crate::fixture::Server;

#[tokio::test]
async fn a_copy_shares_its_sources_bytes() {
    let server = Server::with_bucket().await;
    server.put("/other").send().await.expect(200);
    server
        .put("/bucket/a%20b")
        .header("content-type", "text/plain")
        .header("x-amz-meta-colour", "blue")
        .body("abc")
        .send()
        .await
        .expect(200);
    server.clock.advance_s(60);
    let chunks = server.chunks().await;
    let copy = |target: &str| server.put(target).header("x-amz-copy-source", "bucket/a%20b");
    let reply = copy("/other/k").send().await.expect(200);
    assert_eq!(reply.tag("ETag"), "\"900150983cd24fb0d6963f7d28e17f72\"");
    assert_eq!(reply.tag("LastModified"), "2026-01-01T00:01:00.000Z");
    assert_eq!(server.chunks().await, chunks, "bytes were copied");

    let replaced = copy("/bucket/r")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-meta-size", "big")
        .send()
        .await;
    replaced.expect(200);
    server.delete("/bucket/a%20b").send().await.expect(204);
    let kept = server.get("/other/k").send().await.expect(200);
    assert_eq!(kept.text(), "abc");
    assert_eq!(kept.header("x-amz-meta-colour"), Some("blue"));
    assert_eq!(kept.header("content-type"), Some("text/plain"));
    let replaced = server.get("/bucket/r").send().await.expect(200);
    assert_eq!(replaced.header("x-amz-meta-colour"), None);
    assert_eq!(replaced.header("x-amz-meta-size"), Some("big"));
    assert_eq!(replaced.header("content-type"), Some("binary/octet-stream"));
}

#[tokio::test]
async fn onto_itself_only_with_a_change() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").header("x-amz-meta-a", "1").body("abc").send().await.expect(200);
    let copy = || server.put("/bucket/k").header("x-amz-copy-source", "/bucket/k");
    copy().send().await.refused(400, "InvalidRequest");
    copy().header("x-amz-metadata-directive", "OTHER").send().await.refused(400, "InvalidArgument");
    copy()
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-meta-a", "2")
        .send()
        .await
        .expect(200);
    let got = server.get("/bucket/k").send().await.expect(200);
    assert_eq!((got.text(), got.header("x-amz-meta-a")), ("abc", Some("2")));
}

#[tokio::test]
async fn conditions_and_checksums() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let copy = |source: &str| server.put("/bucket/l").header("x-amz-copy-source", source);
    for (name, value, status) in [
        ("x-amz-copy-source-if-match", "\"x\"", 412),
        ("x-amz-copy-source-if-none-match", "\"900150983cd24fb0d6963f7d28e17f72\"", 412),
        ("x-amz-copy-source-if-unmodified-since", "Wed, 31 Dec 2025 23:59:59 GMT", 412),
        ("x-amz-copy-source-if-modified-since", "Thu, 01 Jan 2026 00:00:00 GMT", 412),
        ("x-amz-copy-source-if-match", "\"900150983cd24fb0d6963f7d28e17f72\"", 200),
    ] {
        copy("bucket/k").header(name, value).send().await.expect(status);
    }
    let sha =
        copy("bucket/k").header("x-amz-checksum-algorithm", "SHA256").send().await.expect(200);
    assert_eq!(sha.tag("ChecksumSHA256"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    copy("bucket/nope").send().await.refused(404, "NoSuchKey");
    copy("nope/k").send().await.refused(404, "NoSuchBucket");
    copy("bucket").send().await.refused(400, "InvalidArgument");
    copy("bucket/k?versionId=7").send().await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn into_parts() {
    let server = Server::with_bucket().await;
    let bytes: Vec<u8> = (0..6 * MIB).map(|n| (n % 241) as u8).collect();
    server.put("/bucket/k").body(bytes.clone()).send().await.expect(200);
    let id = server.post("/bucket/m?uploads").send().await.expect(200).tag("UploadId");
    let part = |number: u32, range: &str| {
        server
            .put(&format!("/bucket/m?partNumber={number}&uploadId={id}"))
            .header("x-amz-copy-source", "bucket/k")
            .header("x-amz-copy-source-range", range)
    };
    for range in ["bytes=0-", "bytes=-5", "0-5", "bytes=5-2"] {
        part(1, range).send().await.refused(400, "InvalidArgument");
    }
    part(1, &format!("bytes=0-{}", 6 * MIB)).send().await.refused(416, "InvalidRange");
    let first = part(1, &format!("bytes=1-{}", 5 * MIB)).send().await.expect(200).tag("ETag");
    let second = part(2, "bytes=7-9").send().await.expect(200).tag("ETag");
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{first}</ETag></Part>\
         <Part><PartNumber>2</PartNumber><ETag>{second}</ETag></Part></CompleteMultipartUpload>"
    );
    server.post(&format!("/bucket/m?uploadId={id}")).body(body).send().await.expect(200);
    let got = server.get("/bucket/m").send().await.expect(200);
    let expected = [&bytes[1..=5 * MIB as usize], &bytes[7..=9]].concat();
    assert!(got.body == expected);
}
