//! Tags of objects and buckets, and what is told of objects without their bytes.

use keyway_proto::unit::MIB;

use crate::fixture::Server;

const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

fn document(tags: &[(&str, &str)]) -> String {
    let tags: String = tags
        .iter()
        .map(|(key, value)| format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>"))
        .collect();
    format!("<Tagging><TagSet>{tags}</TagSet></Tagging>")
}

#[tokio::test]
async fn tags_of_objects() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").header("x-amz-tagging", "a=1&b%20c=").send().await.expect(200);
    let tags = || server.get("/bucket/k?tagging");
    let found = tags().send().await.expect(200);
    assert_eq!(found.tags("Key"), ["a", "b c"]);
    assert_eq!(found.tags("Value")[0], "1");
    let head = server.head("/bucket/k").send().await.expect(200);
    assert_eq!(head.header("x-amz-tagging-count"), Some("2"));
    let put = |text: String| server.put("/bucket/k?tagging").body(text);
    put(document(&[("x", "y")])).send().await.expect(200);
    assert_eq!(tags().send().await.expect(200).tags("Key"), ["x"]);

    let copy = |target: &str| server.put(target).header("x-amz-copy-source", "bucket/k");
    copy("/bucket/same").send().await.expect(200);
    let replaced = copy("/bucket/other")
        .header("x-amz-tagging-directive", "REPLACE")
        .header("x-amz-tagging", "z=1");
    replaced.send().await.expect(200);
    let of = |key: &str| server.get(&format!("/bucket/{key}?tagging"));
    assert_eq!(of("same").send().await.expect(200).tags("Key"), ["x"]);
    assert_eq!(of("other").send().await.expect(200).tags("Key"), ["z"]);

    server.delete("/bucket/k?tagging").send().await.expect(204);
    assert!(tags().send().await.expect(200).tags("Key").is_empty());
    server.get("/bucket/nope?tagging").send().await.refused(404, "NoSuchKey");

    let many: Vec<String> = (0..11).map(|n| n.to_string()).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (&**key, "v")).collect();
    for (tags, code) in [
        (vec![("a", "1"), ("a", "2")], "InvalidTag"),
        (vec![("", "1")], "InvalidTag"),
        (vec![("aws:a", "1")], "InvalidTag"),
        (vec![("a", "1!")], "InvalidTag"),
        (many, "BadRequest"),
    ] {
        put(document(&tags)).send().await.refused(400, code);
    }
    put("<Tagging/>".to_owned()).send().await.refused(400, "MalformedXML");
    let bad = server.put("/bucket/k").header("x-amz-tagging", "a=1&a=2").send().await;
    bad.refused(400, "InvalidTag");
}

#[tokio::test]
async fn tags_of_versions_and_uploads() {
    let server = Server::with_bucket().await;
    server.put("/bucket?versioning").body(ENABLED).send().await.expect(200);
    let first = server.put("/bucket/k").send().await.expect(200);
    let first = first.header("x-amz-version-id").expect("a version").to_owned();
    server.put("/bucket/k").send().await.expect(200);
    let of_first = format!("/bucket/k?tagging&versionId={first}");
    let told = server.put(&of_first).body(document(&[("a", "1")])).send().await.expect(200);
    assert_eq!(told.header("x-amz-version-id"), Some(&*first));
    assert_eq!(server.get(&of_first).send().await.expect(200).tags("Key"), ["a"]);
    assert!(server.get("/bucket/k?tagging").send().await.expect(200).tags("Key").is_empty());
    let marker = server.delete("/bucket/k").send().await.expect(204);
    let marker = marker.header("x-amz-version-id").expect("a version").to_owned();
    let of_marker = format!("/bucket/k?tagging&versionId={marker}");
    server.get(&of_marker).send().await.refused(405, "MethodNotAllowed");

    let id = server.post("/bucket/m?uploads").header("x-amz-tagging", "u=1");
    let id = id.send().await.expect(200).tag("UploadId");
    let part = server.put(&format!("/bucket/m?partNumber=1&uploadId={id}")).body("abc");
    let etag = part.send().await.expect(200).header("etag").expect("an ETag").to_owned();
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    server.post(&format!("/bucket/m?uploadId={id}")).body(body).send().await.expect(200);
    assert_eq!(server.get("/bucket/m?tagging").send().await.expect(200).tags("Key"), ["u"]);
}

#[tokio::test]
async fn tags_of_buckets() {
    let server = Server::with_bucket().await;
    let tags = || server.get("/bucket?tagging");
    let put = |text: String| server.put("/bucket?tagging").body(text);
    tags().send().await.refused(404, "NoSuchTagSet");
    put(document(&[("a", "1"), ("b", "2")])).send().await.expect(200);
    assert_eq!(tags().send().await.expect(200).tags("Value"), ["1", "2"]);
    put(document(&[("a", "1"), ("a", "2")])).send().await.refused(400, "InvalidTag");
    server.delete("/bucket?tagging").send().await.expect(204);
    tags().send().await.refused(404, "NoSuchTagSet");
    // Nothing of a bucket that is gone shows through in its successor.
    put(document(&[("a", "1")])).send().await.expect(200);
    server.delete("/bucket").send().await.expect(204);
    server.put("/bucket").send().await.expect(200);
    tags().send().await.refused(404, "NoSuchTagSet");
}

#[tokio::test]
async fn attributes_of_objects_and_their_parts() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let ask = |key: &str, names: &str| {
        server.get(&format!("/bucket/{key}?attributes")).header("x-amz-object-attributes", names)
    };
    let plain = ask("k", "ETag,ObjectSize,StorageClass,Checksum,ObjectParts").send().await;
    let plain = plain.expect(200);
    assert!(plain.tag("ETag").contains("900150983cd24fb0d6963f7d28e17f72"));
    assert_eq!((&*plain.tag("ObjectSize"), &*plain.tag("StorageClass")), ("3", "STANDARD"));
    assert!(plain.text().contains("ChecksumCRC64NVME") && !plain.text().contains("ObjectParts"));
    assert!(!ask("k", "ETag").send().await.expect(200).text().contains("ObjectSize"));
    ask("k", "Colour").send().await.refused(400, "InvalidArgument");
    ask("nope", "ETag").send().await.refused(404, "NoSuchKey");

    let id = server.post("/bucket/m?uploads").header("x-amz-checksum-algorithm", "CRC32");
    let id = id.send().await.expect(200).tag("UploadId");
    let mut named = String::new();
    for (number, length) in [(1, 5 * MIB as usize), (3, 7)] {
        let part = server.put(&format!("/bucket/m?partNumber={number}&uploadId={id}"));
        let part = part.body(vec![1; length]).send().await.expect(200);
        let etag = part.header("etag").expect("an ETag");
        named += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    let body = format!("<CompleteMultipartUpload>{named}</CompleteMultipartUpload>");
    server.post(&format!("/bucket/m?uploadId={id}")).body(body).send().await.expect(200);
    let whole = ask("m", "ObjectParts").send().await.expect(200);
    assert_eq!(whole.tag("PartsCount"), "2");
    assert_eq!(whole.tags("PartNumber"), ["1", "3"]);
    assert_eq!(whole.tags("Size"), [(5 * MIB).to_string(), "7".to_owned()]);
    let page = ask("m", "ObjectParts").header("x-amz-max-parts", "1").send().await.expect(200);
    assert_eq!((&*page.tag("IsTruncated"), &*page.tag("NextPartNumberMarker")), ("true", "1"));
    let rest = ask("m", "ObjectParts").header("x-amz-part-number-marker", "1").send().await;
    assert_eq!(rest.expect(200).tags("PartNumber"), ["3"]);
    let head = server.head("/bucket/m?partNumber=3").send().await.expect(206);
    assert_eq!(head.header("x-amz-mp-parts-count"), Some("2"));
    assert_eq!(head.header("content-length"), Some("7"));
}
