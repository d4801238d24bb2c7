//! Multipart uploads.

use keyway_proto::unit::MIB;
use keyway_proto::{Checksum, ChecksumKind};

use crate::fixture::{Reply, Server};

/// An upload of `/bucket/big` under way.
struct Upload<'a> {
    server: &'a Server,
    id: String,
}

impl<'a> Upload<'a> {
    async fn begin(server: &'a Server, headers: &[(&str, &str)]) -> Self {
        let mut call = server.post("/bucket/big?uploads");
        for (name, value) in headers {
            call = call.header(name, value);
        }
        let reply = call.send().await.expect(200);
        assert_eq!((reply.tag("Bucket"), reply.tag("Key")), ("bucket".into(), "big".into()));
        Self { server, id: reply.tag("UploadId") }
    }

    fn path(&self, number: u32) -> String {
        format!("/bucket/big?partNumber={number}&uploadId={}", self.id)
    }

    async fn part(&self, number: u32, bytes: &[u8]) -> String {
        let reply = self.server.put(&self.path(number)).body(bytes.to_vec()).send().await;
        reply.expect(200).header("etag").unwrap().to_owned()
    }

    async fn complete(&self, parts: &[(u32, &str)]) -> Reply {
        let parts: String = parts
            .iter()
            .map(|(number, etag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        self.server.post(&format!("/bucket/big?uploadId={}", self.id)).body(body).send().await
    }
}

fn bytes(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|n| ((n * 7 + seed) % 251) as u8).collect()
}

#[tokio::test]
async fn parts_become_one_object() {
    let server = Server::with_bucket().await;
    let upload = Upload::begin(&server, &[("x-amz-meta-a", "b"), ("content-type", "c/d")]).await;
    let (first, last) = (bytes(1, 5 * MIB), bytes(2, 1000));
    upload.part(1, b"to be replaced").await;
    let etags = (upload.part(1, &first).await, upload.part(9, &last).await);
    server.get("/bucket/big").send().await.refused(404, "NoSuchKey");

    let listed =
        server.get(&format!("/bucket/big?uploadId={}", upload.id)).send().await.expect(200);
    assert_eq!(listed.tags("PartNumber"), ["1", "9"]);
    assert_eq!(listed.tags("Size"), [(5 * MIB).to_string(), "1000".to_owned()]);
    let page = format!("/bucket/big?uploadId={}&max-parts=1", upload.id);
    let page = server.get(&page).send().await.expect(200);
    assert_eq!(
        (page.tag("NextPartNumberMarker"), page.tag("IsTruncated")),
        ("1".into(), "true".into())
    );

    let done = upload.complete(&[(1, &etags.0), (9, &etags.1)]).await.expect(200);
    assert!(done.tag("ETag").ends_with("-2\""), "{done:?}");
    assert_eq!(done.tag("ChecksumType"), "FULL_OBJECT");
    let whole = [first, last].concat();
    let crc = Checksum::of(ChecksumKind::Crc64Nvme, &whole).to_base64();
    assert_eq!(done.tag("ChecksumCRC64NVME"), crc);
    let again = upload.complete(&[(1, &etags.0), (9, &etags.1)]).await.expect(200);
    assert_eq!(again.tag("ETag"), done.tag("ETag"), "completing twice is completing once");

    let got = server.get("/bucket/big").send().await.expect(200);
    assert!(got.body == whole);
    assert_eq!(got.header("x-amz-meta-a"), Some("b"));
    assert_eq!(got.header("content-type"), Some("c/d"));
    let part = server.get("/bucket/big?partNumber=9").send().await.expect(206);
    assert_eq!(part.header("x-amz-mp-parts-count"), Some("2"));
    assert!(part.body == whole[5 * MIB as usize..]);
    server.head("/bucket/big?partNumber=2").send().await.expect(416);
}

#[tokio::test]
async fn refusals() {
    let server = Server::with_bucket().await;
    let upload = Upload::begin(&server, &[]).await;
    let small = upload.part(1, b"small").await;
    let other = upload.part(2, b"other").await;
    upload.complete(&[(1, &small), (2, &other)]).await.refused(400, "EntityTooSmall");
    upload.complete(&[(2, &other), (1, &small)]).await.refused(400, "InvalidPartOrder");
    upload.complete(&[(1, &other)]).await.refused(400, "InvalidPart");
    upload.complete(&[(3, &other)]).await.refused(400, "InvalidPart");
    upload.complete(&[]).await.refused(400, "MalformedXML");
    let path = format!("/bucket/big?uploadId={}", upload.id);
    server.post(&path).body("<x>").send().await.refused(400, "MalformedXML");
    for number in [0, 10_001] {
        let reply = server.put(&upload.path(number)).body("x").send().await;
        reply.refused(400, "InvalidArgument");
    }
    for id in ["nope", "0190f5fe7c0a7d4c8a5b7b1f0e5d4c3b"] {
        let path = format!("/bucket/big?partNumber=1&uploadId={id}");
        server.put(&path).body("x").send().await.refused(404, "NoSuchUpload");
        let path = format!("/bucket/big?uploadId={id}");
        server.delete(&path).send().await.refused(404, "NoSuchUpload");
        server.get(&path).send().await.refused(404, "NoSuchUpload");
    }
    let wrong = server.put(&upload.path(4)).header("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==");
    wrong.body("x").send().await.refused(400, "BadDigest");
    server.delete(&path).send().await.expect(204);
    server.put(&upload.path(1)).body("x").send().await.refused(404, "NoSuchUpload");
    upload.complete(&[(1, &small)]).await.refused(404, "NoSuchUpload");
}

#[tokio::test]
async fn composite_and_full_checksums() {
    let server = Server::with_bucket().await;
    let (first, last) = (bytes(3, 5 * MIB), bytes(4, 10));
    let whole = [first.as_slice(), &last].concat();
    for (algorithm, of, kind) in [
        ("CRC32", "COMPOSITE", ChecksumKind::Crc32),
        ("CRC32C", "FULL_OBJECT", ChecksumKind::Crc32c),
        ("SHA256", "COMPOSITE", ChecksumKind::Sha256),
        ("CRC64NVME", "FULL_OBJECT", ChecksumKind::Crc64Nvme),
    ] {
        let headers = [("x-amz-checksum-algorithm", algorithm), ("x-amz-checksum-type", of)];
        let upload = Upload::begin(&server, &headers).await;
        let etags = (upload.part(1, &first).await, upload.part(2, &last).await);
        let done = upload.complete(&[(1, &etags.0), (2, &etags.1)]).await.expect(200);
        let expected = if of == "FULL_OBJECT" {
            Checksum::of(kind, &whole).to_base64()
        } else {
            let parts = [Checksum::of(kind, &first), Checksum::of(kind, &last)];
            let values = [parts[0].value(), parts[1].value()].concat();
            format!("{}-2", Checksum::of(kind, &values).to_base64())
        };
        assert_eq!(done.tag(&format!("Checksum{algorithm}")), expected, "{algorithm}");
        assert_eq!(done.tag("ChecksumType"), of);
        let call = server.get("/bucket/big").header("x-amz-checksum-mode", "ENABLED");
        let got = call.send().await.expect(200);
        let name = format!("x-amz-checksum-{}", algorithm.to_lowercase());
        assert_eq!(got.header(&name), Some(expected.as_str()));
    }
    for (algorithm, of) in
        [("SHA1", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), ("NOPE", "COMPOSITE")]
    {
        server
            .post("/bucket/big?uploads")
            .header("x-amz-checksum-algorithm", algorithm)
            .header("x-amz-checksum-type", of)
            .send()
            .await
            .refused(400, "InvalidRequest");
    }
    let upload = Upload::begin(&server, &[("x-amz-checksum-algorithm", "CRC32")]).await;
    let part = server.put(&upload.path(1)).header("x-amz-checksum-crc32c", "NkxyMA==");
    part.body("abc").send().await.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn conditional_completion_and_size() {
    let server = Server::with_bucket().await;
    server.put("/bucket/big").body("there").send().await.expect(200);
    let upload = Upload::begin(&server, &[]).await;
    let etag = upload.part(1, b"abc").await;
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    let complete = |name: &str, value: &str| {
        let path = format!("/bucket/big?uploadId={}", upload.id);
        server.post(&path).header(name, value).body(body.clone())
    };
    complete("if-none-match", "*").send().await.refused(412, "PreconditionFailed");
    complete("x-amz-mp-object-size", "4").send().await.refused(400, "InvalidRequest");
    complete("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=").send().await.refused(400, "BadDigest");
    assert_eq!(server.get("/bucket/big").send().await.text(), "there");
    let done = complete("x-amz-mp-object-size", "3").send().await.expect(200);
    assert_eq!(server.get("/bucket/big").send().await.text(), "abc");
    let again = complete("x-amz-mp-object-size", "3").send().await.expect(200);
    assert_eq!(again.tag("ETag"), done.tag("ETag"), "completing twice is completing once");
}

#[tokio::test]
async fn a_checksum_of_the_whole_is_compared_or_refused() {
    let server = Server::with_bucket().await;
    let right = |kind| Checksum::of(kind, b"abc").to_base64();
    let crc32 = right(ChecksumKind::Crc32);
    let complete = async |upload: &Upload<'_>, etag: &str, name: &str, value: &str| {
        let body = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
             </CompleteMultipartUpload>"
        );
        let path = format!("/bucket/big?uploadId={}", upload.id);
        server.post(&path).header(name, value).body(body).send().await
    };
    // Some clients send a composite checksum as it is told, others its value alone.
    let of_part = Checksum::of(ChecksumKind::Crc32, b"abc");
    let composite = Checksum::of(ChecksumKind::Crc32, of_part.value()).to_base64();
    for told in [format!("{composite}-1"), composite.clone()] {
        let upload = Upload::begin(&server, &[("x-amz-checksum-algorithm", "CRC32")]).await;
        let etag = upload.part(1, b"abc").await;
        for (name, value, code) in [
            ("x-amz-checksum-crc32c", right(ChecksumKind::Crc32c), "InvalidRequest"),
            ("x-amz-checksum-crc64nvme", right(ChecksumKind::Crc64Nvme), "InvalidRequest"),
            ("x-amz-checksum-sha256", right(ChecksumKind::Sha256), "InvalidRequest"),
            ("x-amz-checksum-crc32", format!("{composite}-x"), "InvalidRequest"),
            ("x-amz-checksum-crc32", format!("{composite}-2"), "BadDigest"),
            ("x-amz-checksum-crc32", crc32.clone(), "BadDigest"),
        ] {
            complete(&upload, &etag, name, &value).await.refused(400, code);
        }
        for _ in 0..2 {
            complete(&upload, &etag, "x-amz-checksum-crc32", &told).await.expect(200);
        }
    }
    // Without an algorithm it is compared where it follows from what is known of the parts.
    let upload = Upload::begin(&server, &[]).await;
    let etag = upload.part(1, b"abc").await;
    for (name, kind) in [
        ("x-amz-checksum-crc32", ChecksumKind::Crc32),
        ("x-amz-checksum-sha256", ChecksumKind::Sha256),
    ] {
        complete(&upload, &etag, name, &right(kind)).await.refused(400, "InvalidRequest");
    }
    let part = server.put(&upload.path(1)).header("x-amz-checksum-crc32", &crc32);
    part.body("abc").send().await.expect(200);
    complete(&upload, &etag, "x-amz-checksum-crc32", "AAAAAA==").await.refused(400, "BadDigest");
    complete(&upload, &etag, "x-amz-checksum-crc32", &crc32).await.expect(200);
    let upload = Upload::begin(&server, &[]).await;
    let etag = upload.part(1, b"abc").await;
    let crc64 = right(ChecksumKind::Crc64Nvme);
    complete(&upload, &etag, "x-amz-checksum-crc64nvme", &crc64).await.expect(200);
}

#[tokio::test]
async fn uploads_are_listed() {
    let server = Server::with_bucket().await;
    for key in ["a", "b/1", "b/2", "c"] {
        server.post(&format!("/bucket/{key}?uploads")).send().await.expect(200);
    }
    let all = server.get("/bucket?uploads").send().await.expect(200);
    assert_eq!(all.tags("Key"), ["a", "b/1", "b/2", "c"]);
    let groups = server.get("/bucket?uploads&delimiter=/").send().await.expect(200);
    assert_eq!(groups.tags("Key"), ["a", "c"]);
    let page = server.get("/bucket?uploads&max-uploads=2").send().await.expect(200);
    assert_eq!(page.tags("Key"), ["a", "b/1"]);
    assert_eq!(page.tag("IsTruncated"), "true");
    let (key, id) = (page.tag("NextKeyMarker"), page.tag("NextUploadIdMarker"));
    let path = format!("/bucket?uploads&key-marker={key}&upload-id-marker={id}");
    let rest = server.get(&path).send().await.expect(200);
    assert_eq!(rest.tags("Key"), ["b/2", "c"]);
}
