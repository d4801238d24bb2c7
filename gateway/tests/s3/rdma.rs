//! Requests with an RDMA token: declined, and never misunderstood.

use keyway_auth::sigv4::Payload;

use crate::fixture::Server;

const TOKEN: &str =
    "00007f0012340000:00100000:0001a2b3:0011:00beef:1:fe80000000000000506b4b0300a1b2c3";

/// Goal: a write whose bytes are elsewhere stores no empty object.
#[tokio::test]
async fn a_put_with_a_token_stores_nothing() {
    let server = Server::with_bucket().await;
    let reply = server
        .put("/bucket/key")
        .header("x-amz-rdma-token", TOKEN)
        .payload(Payload::Unsigned)
        .send()
        .await
        .refused(501, "RDMANotSupported");
    assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"));
    server.get("/bucket/key").send().await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn a_get_with_a_token_has_the_body() {
    let server = Server::with_bucket().await;
    server.put("/bucket/key").body("abc").send().await.expect(200);
    for range in [None, Some("bytes=0-0,2-2")] {
        let mut call = server.get("/bucket/key").header("x-amz-rdma-token", TOKEN);
        if let Some(range) = range {
            call = call.header("range", range);
        }
        let reply = call.send().await.expect(200);
        assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"));
        assert_eq!(reply.text(), "abc");
    }
    let plain = server.get("/bucket/key").send().await.expect(200);
    assert_eq!(plain.header("x-amz-rdma-reply"), None);
}

/// Goal: an empty body with headers of our own passes through the protocol layer.
#[tokio::test]
async fn an_empty_answer_carries_its_headers() {
    let server = Server::with_bucket().await;
    server.put("/bucket/empty").header("x-amz-meta-a", "b").send().await.expect(200);
    let reply =
        server.get("/bucket/empty").header("x-amz-rdma-token", TOKEN).send().await.expect(200);
    assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(reply.header("content-length"), Some("0"));
    assert_eq!(reply.header("x-amz-meta-a"), Some("b"));
    assert!(reply.body.is_empty());
}

#[tokio::test]
async fn bad_tokens_are_refused() {
    let server = Server::with_bucket().await;
    server.put("/bucket/key").body("abc").send().await.expect(200);
    for token in ["zz", &TOKEN[1..], &TOKEN.to_uppercase()] {
        let reply = server
            .get("/bucket/key")
            .header("x-amz-rdma-token", token)
            .send()
            .await
            .refused(400, "InvalidRDMAToken");
        assert_eq!(reply.header("x-amz-rdma-reply"), None);
        assert!(!reply.text().contains(token), "the token is repeated");
    }
    server
        .put("/bucket/key")
        .unsigned_header("x-amz-rdma-token", TOKEN)
        .send()
        .await
        .refused(403, "AccessDenied");
    assert_eq!(server.get("/bucket/key").send().await.text(), "abc");
}
