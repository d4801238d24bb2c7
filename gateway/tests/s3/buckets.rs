//! Buckets: create, head, list, delete, location.

use keyway_auth::sigv4::Payload;

use crate::fixture::Server;

#[tokio::test]
async fn the_life_of_a_bucket() {
    let server = Server::start().await;
    server.head("/bucket").send().await.expect(404);
    server.get("/bucket").send().await.refused(404, "NoSuchBucket");
    let made = server.put("/bucket").send().await.expect(200);
    assert_eq!(made.header("location"), Some("/bucket"));
    server.put("/bucket").send().await.refused(409, "BucketAlreadyOwnedByYou");
    let head = server.head("/bucket").send().await.expect(200);
    assert_eq!(head.header("x-amz-bucket-region"), Some("us-east-1"));

    server.put("/bucket/k").body("x").send().await.expect(200);
    server.delete("/bucket").send().await.refused(409, "BucketNotEmpty");
    server.delete("/bucket/k").send().await.expect(204);
    server.delete("/bucket").send().await.expect(204);
    server.delete("/bucket").send().await.refused(404, "NoSuchBucket");
    server.put("/bucket/k").body("x").send().await.refused(404, "NoSuchBucket");
}

#[tokio::test]
async fn locations() {
    let server = Server::start().await;
    let body = |region: &str| {
        format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint>\
             </CreateBucketConfiguration>"
        )
    };
    server.put("/here").body(body("us-east-1")).send().await.expect(200);
    server
        .put("/there")
        .body(body("eu-north-1"))
        .send()
        .await
        .refused(400, "IllegalLocationConstraintException");
    server.put("/there").body("<Create").send().await.refused(400, "MalformedXML");
    server
        .put("/there")
        .body(body("us-east-1"))
        .payload(Payload::Sha256([3; 32]))
        .send()
        .await
        .refused(400, "XAmzContentSHA256Mismatch");
    let location = server.get("/here?location").send().await.expect(200);
    assert!(location.text().contains("LocationConstraint"));
    assert_eq!(location.tag("LocationConstraint"), "");
}

#[tokio::test]
async fn names_are_checked() {
    let server = Server::start().await;
    for name in ["ab", "Upper", "under_score", "-edge", "a..b", "10.0.0.1"] {
        server.put(&format!("/{name}")).send().await.refused(400, "InvalidBucketName");
    }
}

#[tokio::test]
async fn pages_of_buckets() {
    let server = Server::start().await;
    for name in ["log-a", "log-b", "log-c", "www"] {
        server.put(&format!("/{name}")).send().await.expect(200);
    }
    let all = server.get("/").send().await.expect(200);
    assert_eq!(all.tags("Name"), ["log-a", "log-b", "log-c", "www"]);
    assert_eq!(all.tag("ContinuationToken"), "");
    assert_eq!(all.tags("CreationDate").len(), 4);
    let first = server.get("/?prefix=log-&max-buckets=2").send().await.expect(200);
    assert_eq!(first.tags("Name"), ["log-a", "log-b"]);
    let token = first.tag("ContinuationToken");
    let path = format!("/?prefix=log-&max-buckets=2&continuation-token={token}");
    let rest = server.get(&path).send().await.expect(200);
    assert_eq!(rest.tags("Name"), ["log-c"]);
    assert_eq!(rest.tag("ContinuationToken"), "");
    server.get("/?continuation-token=AAAA").send().await.refused(400, "InvalidArgument");
    server.get("/?max-buckets=0").send().await.refused(400, "InvalidArgument");
}

/// Goal: a bucket may trade the MD5 of its ETags for speed.
#[tokio::test]
async fn etag_policies() {
    let server = Server::start().await;
    server.put("/fast").header("x-keyway-etag-policy", "crc64nvme").send().await.expect(200);
    let put = server.put("/fast/k").body("123456789").send().await.expect(200);
    let etag = put.header("etag").unwrap();
    assert_eq!(etag, "\"ae8b14860a7998880000000000000009-c\"");
    server.get("/fast/k").header("if-match", etag).send().await.expect(200);
    let md5 = "JfnnlDI7RTiF9RgfG2JNCw==";
    server.put("/fast/k").header("content-md5", md5).body("123456789").send().await.expect(200);
    server
        .put("/odd")
        .header("x-keyway-etag-policy", "sha")
        .send()
        .await
        .refused(400, "InvalidArgument");
}
