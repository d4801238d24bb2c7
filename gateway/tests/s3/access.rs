//! Who may ask, and how.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::Full;
use keyway_auth::sigv4::{Payload, Signer};
use keyway_auth::{AccessKeyId, SecretKey};
use keyway_gateway::s3::S3Config;
use keyway_proto::unit::MIB;

use crate::fixture::{ACCESS_KEY, SECRET_KEY, Server, signer};
use crate::signing::{EMPTY, presign_range, sign_only};

#[tokio::test]
async fn only_signatures_open() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    server.get("/bucket/k").anonymous().send().await.refused(403, "AccessDenied");
    server.put("/bucket/l").anonymous().body("x").send().await.refused(403, "AccessDenied");

    let other = |id: &str, secret: &str, service: &str| {
        Signer::new(AccessKeyId::new(id), SecretKey::new(secret.to_owned()), "eu-west-3", service)
    };
    let call = || server.get("/bucket/k");
    call().signer(other(ACCESS_KEY, SECRET_KEY, "s3")).send().await.expect(200);
    call()
        .signer(other("AKIDNOBODY", SECRET_KEY, "s3"))
        .send()
        .await
        .refused(403, "InvalidAccessKeyId");
    call()
        .signer(other(ACCESS_KEY, "wrong", "s3"))
        .send()
        .await
        .refused(403, "SignatureDoesNotMatch");
    call()
        .signer(other(ACCESS_KEY, SECRET_KEY, "sts"))
        .send()
        .await
        .refused(400, "AuthorizationHeaderMalformed");
    let token = signer().with_session_token("t".to_owned().into());
    call().signer(token).send().await.refused(400, "InvalidToken");
}

#[tokio::test]
async fn clocks_may_differ_by_a_quarter_of_an_hour() {
    let server = Server::with_bucket().await;
    for offset_s in [-890, 890] {
        server.get("/bucket").offset_s(offset_s).send().await.expect(200);
    }
    for offset_s in [-910, 910] {
        server.get("/bucket").offset_s(offset_s).send().await.refused(403, "RequestTimeTooSkewed");
    }
}

/// Goal: no header that changes what a request means can be added to somebody's signature.
#[tokio::test]
async fn every_amz_header_must_be_signed() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    for (name, value) in [
        ("x-amz-copy-source", "/bucket/k"),
        ("x-amz-meta-a", "b"),
        ("x-amz-rdma-token", "x"),
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-acl", "private"),
    ] {
        server
            .put("/bucket/l")
            .unsigned_header(name, value)
            .send()
            .await
            .refused(403, "AccessDenied");
    }
    server.get("/bucket/l").send().await.refused(404, "NoSuchKey");
    server
        .put("/fast")
        .unsigned_header("x-keyway-etag-policy", "crc64nvme")
        .send()
        .await
        .refused(403, "AccessDenied");
}

/// Goal: a signature holds for one server alone, so it covers the host.
#[tokio::test]
async fn the_host_must_be_signed() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    // The second range takes the way of reads that the protocol layer would refuse.
    for range in ["bytes=0-1", "nonsense"] {
        let names = ["host", "range", "x-amz-content-sha256", "x-amz-date"];
        for (names, status) in [(&names[..], [200, 206]), (&names[1..], [403, 403])] {
            let mut request = server.get("/bucket/k").header("range", range).request();
            sign_only(&mut request, names, EMPTY);
            let reply = server.send(request).await;
            assert!(status.contains(&reply.status.as_u16()), "{names:?}: {reply:?}");
        }
        let query = presign_range("/bucket/k", range);
        let call = server.get(&format!("/bucket/k?{query}")).anonymous();
        let reply = call.unsigned_header("range", range).send().await;
        assert!(reply.refused(403, "AccessDenied").tag("Message").contains("not signed"));
    }
}

fn presigned(server: &Server, method: &Method, path: &str, headers: &HeaderMap, age_s: i64) -> Uri {
    let uri = format!("http://{}{path}", server.address).parse().unwrap();
    let now = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(age_s);
    signer().presign(method, &uri, headers, Duration::from_secs(60), now).unwrap()
}

fn request(method: &Method, uri: Uri, body: &'static str) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from_static(body.as_bytes()));
    Request::builder().method(method).uri(uri).body(body).unwrap()
}

#[tokio::test]
async fn presigned_urls() {
    let server = Server::with_bucket().await;
    let none = HeaderMap::new();
    let put = presigned(&server, &Method::PUT, "/bucket/k", &none, 0);
    server.send(request(&Method::PUT, put.clone(), "abc")).await.expect(200);
    let get = presigned(&server, &Method::GET, "/bucket/k?response-content-type=a%2Fb", &none, 0);
    let got = server.send(request(&Method::GET, get.clone(), "")).await.expect(200);
    assert_eq!(got.text(), "abc");
    assert_eq!(got.header("content-type"), Some("a/b"));

    let old = presigned(&server, &Method::GET, "/bucket/k", &none, 61);
    server.send(request(&Method::GET, old, "")).await.refused(403, "AccessDenied");
    let early = presigned(&server, &Method::GET, "/bucket/k", &none, -1000);
    server.send(request(&Method::GET, early, "")).await.refused(403, "RequestTimeTooSkewed");
    server
        .send(request(&Method::DELETE, get.clone(), ""))
        .await
        .refused(403, "SignatureDoesNotMatch");
    let mut copy = request(&Method::PUT, put.clone(), "");
    copy.headers_mut().insert("x-amz-copy-source", "/bucket/k".parse().unwrap());
    server.send(copy).await.refused(403, "AccessDenied");
    let longer = get.to_string().replace("X-Amz-Expires=60", "X-Amz-Expires=604801");
    server
        .send(request(&Method::GET, longer.parse().unwrap(), ""))
        .await
        .refused(400, "AuthorizationQueryParametersError");
    let mut both = request(&Method::GET, get, "");
    both.headers_mut().insert("authorization", "AWS4-HMAC-SHA256 x".parse().unwrap());
    server.send(both).await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn forms_of_signatures_are_judged_first() {
    let server = Server::with_bucket().await;
    let scope = "20260101/us-east-1/s3/aws4_request";
    for (value, code) in [
        ("Basic dXNlcjpwYXNz".to_owned(), "InvalidArgument"),
        ("AWS4-HMAC-SHA512 Credential=a/b".to_owned(), "InvalidArgument"),
        ("AWS4-HMAC-SHA256".to_owned(), "AuthorizationHeaderMalformed"),
        (
            format!("AWS4-HMAC-SHA256 Credential=A/{scope}, SignedHeaders=host"),
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=host, Signature=0".to_owned(),
            "AuthorizationHeaderMalformed",
        ),
    ] {
        let call = server.get("/bucket/k").anonymous().unsigned_header("authorization", &value);
        call.send().await.refused(400, code);
    }
    let uri = presigned(&server, &Method::GET, "/bucket/k", &HeaderMap::new(), 0).to_string();
    for (from, to) in [("AWS4-HMAC-SHA256", "AWS4-HMAC-MD5"), ("%2Fs3%2F", "%2Fec2%2F")] {
        assert!(uri.contains(from), "{uri}");
        let other = uri.replace(from, to).parse().unwrap();
        server
            .send(request(&Method::GET, other, ""))
            .await
            .refused(400, "AuthorizationQueryParametersError");
    }
    let mut odd = server.put("/bucket/k").body("abc").request();
    odd.headers_mut().insert("x-amz-content-sha256", "TRUST-ME".parse().unwrap());
    server.send(odd).await.refused(400, "InvalidArgument");
    let patch = Method::from_bytes(b"PATCH").unwrap();
    server.call(patch, "/bucket/k").send().await.refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn the_old_signature_is_named() {
    let server = Server::with_bucket().await;
    let by_header = server
        .get("/bucket/k")
        .anonymous()
        .unsigned_header("authorization", "AWS AKIDTEST:c2lnbmF0dXJl")
        .send()
        .await
        .refused(400, "InvalidRequest");
    assert!(by_header.tag("Message").contains("AWS4-HMAC-SHA256"));
    let path = "/bucket/k?AWSAccessKeyId=AKIDTEST&Expires=1999999999&Signature=c2ln";
    server.get(path).anonymous().send().await.refused(400, "InvalidRequest");
}

#[tokio::test]
async fn virtual_hosts() {
    let config =
        S3Config { base_domains: vec!["s3.example.com".to_owned()], ..S3Config::default() };
    let server = Server::with(config, MIB).await;
    let host = "bucket.s3.example.com";
    server.put("/").header("host", host).send().await.expect(200);
    server.put("/a/b").header("host", host).body("abc").send().await.expect(200);
    assert_eq!(server.get("/bucket/a/b").send().await.expect(200).text(), "abc");
    let head = server.head("/a/b").header("host", host).header("range", "bytes=0-0").send().await;
    assert_eq!(head.expect(206).header("content-length"), Some("1"));
    let path_style = server.get("/bucket/a/b").header("host", "s3.example.com:80").send().await;
    assert_eq!(path_style.expect(200).text(), "abc");
    server
        .get("/a/b")
        .header("host", "x_y.s3.example.com")
        .send()
        .await
        .refused(400, "InvalidBucketName");
}

#[tokio::test]
async fn what_is_not_there_says_so() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    for path in ["/bucket?analytics", "/bucket/k?torrent", "/bucket?inventory"] {
        server.get(path).send().await.refused(501, "NotImplemented");
    }
    for (path, code) in [
        ("/bucket?policy", "NoSuchBucketPolicy"),
        ("/bucket?cors", "NoSuchCORSConfiguration"),
        ("/bucket?tagging", "NoSuchTagSet"),
        ("/bucket?lifecycle", "NoSuchLifecycleConfiguration"),
        ("/bucket?object-lock", "ObjectLockConfigurationNotFoundError"),
    ] {
        server.get(path).send().await.refused(404, code);
    }
    let versioning = server.get("/bucket?versioning").send().await.expect(200);
    assert!(!versioning.text().contains("Status"));
    for path in ["/bucket?acl", "/bucket/k?acl"] {
        assert_eq!(server.get(path).send().await.expect(200).tag("Permission"), "FULL_CONTROL");
    }
    server.get("/bucket/k?tagging").send().await.expect(200);
    server.get("/bucket/nope?acl").send().await.refused(404, "NoSuchKey");
    server.get("/bucket/k?versionId=null").send().await.expect(200);
    server.get("/bucket/k?versionId=7").send().await.refused(400, "InvalidArgument");
}

#[tokio::test]
async fn owners_are_compared() {
    let server = Server::with_bucket().await;
    let call = || server.get("/bucket");
    call().header("x-amz-expected-bucket-owner", "000000000000").send().await.expect(200);
    call()
        .header("x-amz-expected-bucket-owner", "123456789012")
        .send()
        .await
        .refused(403, "AccessDenied");
}

#[tokio::test]
async fn unsigned_bodies_need_a_length() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").payload(Payload::Unsigned).body("abc").send().await.expect(200);
    server.get("/bucket/k").payload(Payload::Unsigned).send().await.expect(200);
}
