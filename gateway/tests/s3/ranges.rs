//! Ranges and part numbers.

use keyway_proto::unit::{CHUNK_BYTES_MAX, MIB};

use crate::fixture::Server;

#[tokio::test]
async fn one_range() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("0123456789").send().await.expect(200);
    for (range, bytes, content_range) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=-99", "0123456789", "bytes 0-9/10"),
        ("bytes=5-99", "56789", "bytes 5-9/10"),
    ] {
        let got = server.get("/bucket/k").header("range", range).send().await.expect(206);
        assert_eq!(got.text(), bytes, "{range}");
        assert_eq!(got.header("content-range"), Some(content_range));
        assert_eq!(got.header("content-length"), Some(bytes.len().to_string().as_str()));
        let head = server.head("/bucket/k").header("range", range).send().await.expect(206);
        assert_eq!(head.header("content-range"), Some(content_range));
    }
    for range in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
        let refused = server.get("/bucket/k").header("range", range).send().await;
        let refused = refused.refused(416, "InvalidRange");
        assert_eq!(refused.header("content-range"), Some("bytes */10"), "{range}");
        server.head("/bucket/k").header("range", range).send().await.expect(416);
    }
}

/// Goal: what S3 does not take for a range reads the whole object.
#[tokio::test]
async fn no_range() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("0123456789").send().await.expect(200);
    for range in [
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-2",
        "bytes=0-0,2-3",
        "bits=0-1",
        "0-1",
        "bytes=99999999999999999999-",
        "bytes 0-1",
    ] {
        let got = server.get("/bucket/k").header("range", range).send().await.expect(200);
        assert_eq!(got.text(), "0123456789", "{range}");
        assert_eq!(got.header("content-range"), None);
        assert_eq!(got.header("etag"), Some("\"781e5e245d69b566979b86e28d23f2c7\""));
    }
    server.put("/bucket/empty").send().await.expect(200);
    server
        .get("/bucket/empty")
        .header("range", "bytes=0-")
        .send()
        .await
        .refused(416, "InvalidRange");
    let odd = server.get("/bucket/nope").header("range", "x").send().await;
    odd.refused(404, "NoSuchKey");
    let odd = server.get("/bucket/k").header("range", "x").anonymous().send().await;
    odd.refused(403, "AccessDenied");
    // A listing does not know ranges.
    server.get("/bucket").header("range", "x").send().await.expect(200);
}

/// Goal: ranges over the seams of chunks are exact.
#[tokio::test]
async fn across_chunks() {
    let server = Server::with_bucket().await;
    let size = CHUNK_BYTES_MAX + MIB;
    let bytes: Vec<u8> = (0..size).map(|n| (n % 253) as u8).collect();
    server.put("/bucket/k").body(bytes.clone()).send().await.expect(200);
    for (first, last) in [
        (CHUNK_BYTES_MAX - 1, CHUNK_BYTES_MAX),
        (CHUNK_BYTES_MAX, CHUNK_BYTES_MAX),
        (CHUNK_BYTES_MAX - 70_000, CHUNK_BYTES_MAX + 70_000),
        (size - 1, size - 1),
    ] {
        let range = format!("bytes={first}-{last}");
        let got = server.get("/bucket/k").header("range", &range).send().await.expect(206);
        assert!(got.body == bytes[first as usize..=last as usize], "{range}");
    }
}

#[tokio::test]
async fn part_numbers_of_a_single_part() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let got = server.get("/bucket/k?partNumber=1").send().await.expect(206);
    assert_eq!(got.header("content-range"), Some("bytes 0-2/3"));
    server.head("/bucket/k?partNumber=1").send().await.expect(206);
    server.get("/bucket/k?partNumber=2").send().await.refused(416, "InvalidPartNumber");
    server
        .get("/bucket/k?partNumber=1")
        .header("range", "bytes=0-1")
        .send()
        .await
        .refused(400, "InvalidRequest");
}
