//! Buckets that keep versions.

use crate::fixture::{Reply, Server};

const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
const SUSPENDED: &str =
    "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";

impl Server {
    /// Starts one with a bucket that keeps versions.
    async fn with_versions() -> Self {
        let server = Self::with_bucket().await;
        server.keep(ENABLED).await;
        server
    }

    async fn keep(&self, document: &'static str) {
        self.put("/bucket?versioning").body(document).send().await.expect(200);
    }

    /// Puts an object; answers its version.
    async fn put_version(&self, path: &str, body: &'static str) -> String {
        let reply = self.put(path).body(body).send().await.expect(200);
        reply.version()
    }
}

impl Reply {
    #[track_caller]
    fn version(&self) -> String {
        self.header("x-amz-version-id").expect("a version").to_owned()
    }
}

#[tokio::test]
async fn what_is_overwritten_or_deleted_is_kept() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("null").send().await.expect(200);
    server.keep(ENABLED).await;
    let state = server.get("/bucket?versioning").send().await.expect(200);
    assert_eq!(state.tag("Status"), "Enabled");
    let before = server.get("/bucket/k").send().await.expect(200);
    assert_eq!(before.version(), "null");
    let first = server.put_version("/bucket/k", "first").await;
    let second = server.put_version("/bucket/k", "second").await;
    let of = |version: &str| format!("/bucket/k?versionId={version}");
    for (version, text) in [("null", "null"), (&first, "first"), (&second, "second")] {
        let got = server.get(&of(version)).send().await.expect(200);
        assert_eq!((got.text(), &*got.version()), (text, version));
        server.head(&of(version)).send().await.expect(200);
        server.get(&format!("{}&acl", of(version))).send().await.expect(200);
    }
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "second");

    let deleted = server.delete("/bucket/k").send().await.expect(204);
    assert_eq!(deleted.header("x-amz-delete-marker"), Some("true"));
    let marker = deleted.version();
    let gone = server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
    assert_eq!(gone.header("x-amz-delete-marker"), Some("true"));
    assert_eq!(gone.version(), marker);
    let refused = server.get(&of(&marker)).send().await.refused(405, "MethodNotAllowed");
    assert_eq!(refused.header("x-amz-delete-marker"), Some("true"));
    assert_eq!(refused.header("allow"), Some("DELETE"));
    server.head(&of(&marker)).send().await.expect(405);
    assert!(server.get("/bucket?list-type=2").send().await.expect(200).tags("Key").is_empty());
    server.put("/bucket/k").header("if-none-match", "*").body("3").send().await.expect(200);

    let other = "0".repeat(32);
    server.get(&of(&other)).send().await.refused(404, "NoSuchVersion");
    server.get(&of("7")).send().await.refused(400, "InvalidArgument");
    server.delete(&of("7")).send().await.refused(400, "InvalidArgument");
    server.delete(&of(&other)).send().await.expect(204);
}

#[tokio::test]
async fn removing_a_version_brings_back_the_one_before() {
    let server = Server::with_versions().await;
    let first = server.put_version("/bucket/k", "first").await;
    let second = server.put_version("/bucket/k", "second").await;
    let marker = server.delete("/bucket/k").send().await.expect(204).version();
    let removed = server.delete(&format!("/bucket/k?versionId={marker}")).send().await.expect(204);
    assert_eq!(removed.header("x-amz-delete-marker"), Some("true"));
    assert_eq!(removed.version(), marker);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "second");
    server.delete("/bucket").send().await.refused(409, "BucketNotEmpty");
    server.delete(&format!("/bucket/k?versionId={second}")).send().await.expect(204);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "first");
    server.delete(&format!("/bucket/k?versionId={first}")).send().await.expect(204);
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
    server.delete("/bucket").send().await.expect(204);
}

#[tokio::test]
async fn suspended_buckets_have_one_null_version() {
    let server = Server::with_versions().await;
    let first = server.put_version("/bucket/k", "first").await;
    server.keep(SUSPENDED).await;
    assert_eq!(server.put_version("/bucket/k", "second").await, "null");
    assert_eq!(server.put_version("/bucket/k", "third").await, "null");
    let deleted = server.delete("/bucket/k").send().await.expect(204);
    assert_eq!(deleted.version(), "null");
    assert_eq!(deleted.header("x-amz-delete-marker"), Some("true"));
    let listed = server.get("/bucket?versions").send().await.expect(200);
    assert_eq!(listed.tags("VersionId"), ["null", &*first]);
    assert_eq!(server.chunks().await, 3, "garbage is not collected here, and nothing was copied");
    server.delete("/bucket/k?versionId=null").send().await.expect(204);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "first");
}

#[tokio::test]
async fn copies_of_versions() {
    let server = Server::with_versions().await;
    let first = server.put_version("/bucket/k", "first").await;
    server.put_version("/bucket/k", "second").await;
    let marker = server.delete("/bucket/k").send().await.expect(204).version();
    let copy = |source: String| server.put("/bucket/k").header("x-amz-copy-source", &source);
    let of_deleted = server.put("/bucket/l").header("x-amz-copy-source", "bucket/k").send().await;
    of_deleted.refused(404, "NoSuchKey");
    let of_marker = copy(format!("bucket/k?versionId={marker}")).send().await;
    of_marker.refused(400, "InvalidRequest");
    let back = copy(format!("bucket/k?versionId={first}")).send().await.expect(200);
    assert_eq!(back.header("x-amz-copy-source-version-id"), Some(&*first));
    assert_ne!(back.version(), first);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "first");
    let id = server.post("/bucket/m?uploads").send().await.expect(200).tag("UploadId");
    let part = server
        .put(&format!("/bucket/m?partNumber=1&uploadId={id}"))
        .header("x-amz-copy-source", &format!("bucket/k?versionId={first}"))
        .send()
        .await
        .expect(200);
    assert_eq!(part.header("x-amz-copy-source-version-id"), Some(&*first));
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part>\
         </CompleteMultipartUpload>",
        part.tag("ETag")
    );
    let complete = || server.post(&format!("/bucket/m?uploadId={id}")).body(body.clone());
    let made = complete().send().await.expect(200).version();
    server.put_version("/bucket/m", "newer").await;
    assert_eq!(complete().send().await.expect(200).version(), made, "the same, told again");
}

#[tokio::test]
async fn listings_of_versions() {
    let server = Server::with_bucket().await;
    server.put("/bucket/a").body("0").send().await.expect(200);
    let unversioned = server.get("/bucket?versions").send().await.expect(200);
    assert_eq!(unversioned.tags("VersionId"), ["null"]);
    assert_eq!(unversioned.tags("IsLatest"), ["true"]);
    server.keep(ENABLED).await;
    let newer = server.put_version("/bucket/a", "1").await;
    let nested = server.put_version("/bucket/d/x%20y", "2").await;
    server.delete("/bucket/d/x%20y").send().await.expect(204);
    let all = server.get("/bucket?versions&delimiter=/").send().await.expect(200);
    // The protocol layer writes delete markers before versions.
    assert_eq!(all.tags("VersionId"), [&*newer, "null"]);
    assert_eq!(all.tags("IsLatest"), ["true", "false"]);
    assert_eq!(all.tag("CommonPrefixes"), "<Prefix>d/</Prefix>");
    let below = server.get("/bucket?versions&prefix=d/&encoding-type=url").send().await.expect(200);
    assert_eq!(below.tags("Key"), ["d/x%20y", "d/x%20y"]);
    assert!(below.text().contains("<DeleteMarker>"));
    assert!(below.tags("VersionId").contains(&nested));

    let (mut found, mut markers) = (Vec::new(), String::new());
    for _ in 0..4 {
        let page = server.get(&format!("/bucket?versions&max-keys=1{markers}"));
        let page = page.send().await.expect(200);
        found.extend(page.tags("VersionId"));
        if page.tag("IsTruncated") == "false" {
            break;
        }
        let (key, version) = (page.tag("NextKeyMarker"), page.tag("NextVersionIdMarker"));
        markers = format!("&key-marker={}&version-id-marker={version}", key.replace(' ', "%20"));
    }
    assert_eq!(found.len(), 4);
    assert_eq!((&found[0], &*found[1]), (&newer, "null"));
    server
        .get("/bucket?versions&version-id-marker=null")
        .send()
        .await
        .refused(400, "InvalidArgument");
    server
        .get("/bucket?versions&key-marker=a&version-id-marker=7")
        .send()
        .await
        .refused(400, "InvalidArgument");
}

#[tokio::test]
async fn many_versions_at_once() {
    let server = Server::with_versions().await;
    let first = server.put_version("/bucket/k", "first").await;
    server.put_version("/bucket/k", "second").await;
    let body = format!(
        "<Delete><Object><Key>k</Key><VersionId>{first}</VersionId></Object>\
         <Object><Key>k</Key></Object>\
         <Object><Key>k</Key><VersionId>7</VersionId></Object></Delete>"
    );
    let reply = server.delete_objects(body).await.expect(200);
    assert_eq!(reply.tags("DeleteMarker"), ["true"]);
    assert_eq!(reply.tags("DeleteMarkerVersionId").len(), 1);
    assert_eq!(reply.tag("Code"), "InvalidArgument");
    let listed = server.get("/bucket?versions").send().await.expect(200);
    assert!(!listed.tags("VersionId").contains(&first));
    let marker = reply.tag("DeleteMarkerVersionId");
    let body =
        format!("<Delete><Object><Key>k</Key><VersionId>{marker}</VersionId></Object></Delete>");
    let reply = server.delete_objects(body).await.expect(200);
    assert_eq!(reply.tags("DeleteMarkerVersionId"), [marker]);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "second");
}

#[tokio::test]
async fn conditions_meet_the_current_version() {
    let server = Server::with_versions().await;
    let first = server.put("/bucket/k").body("first").send().await.expect(200);
    let etag = first.header("etag").expect("an ETag").to_owned();
    server.put_version("/bucket/k", "second").await;
    let put = || server.put("/bucket/k").header("if-match", &etag).body("x");
    put().send().await.refused(412, "PreconditionFailed");
    server.delete("/bucket/k").header("if-match", &etag).send().await.expect(412);
    let by_name = format!("/bucket/k?versionId={}", first.version());
    server.delete(&by_name).header("if-match", "\"x\"").send().await.expect(412);
    server.delete(&by_name).header("if-match", &etag).send().await.expect(204);
}

#[tokio::test]
async fn configurations_that_are_none() {
    let server = Server::with_bucket().await;
    let put = |document: &'static str| server.put("/bucket?versioning").body(document);
    put("<VersioningConfiguration/>")
        .send()
        .await
        .refused(400, "IllegalVersioningConfigurationException");
    put("<VersioningConfiguration><Status>On</Status></VersioningConfiguration>")
        .send()
        .await
        .refused(400, "IllegalVersioningConfigurationException");
    put("<Versioning/>").send().await.refused(400, "MalformedXML");
    put("").send().await.expect(400);
    server.put("/nowhere?versioning").body(ENABLED).send().await.refused(404, "NoSuchBucket");
}

#[tokio::test]
async fn versions_are_durable_whatever_was_asked_for() {
    let server = Server::with_versions().await;
    let body = vec![7_u8; 300 << 10];
    let put = server.put("/bucket/k").header("x-keyway-durability", "memory").body(body);
    let reply = put.send().await.expect(200);
    assert_eq!(reply.header("x-keyway-durability"), Some("disk"));
}
