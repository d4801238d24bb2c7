//! Conditional reads, writes and deletions.

use crate::fixture::Server;

const ETAG: &str = "\"900150983cd24fb0d6963f7d28e17f72\"";
const MODIFIED: &str = "Thu, 01 Jan 2026 00:00:00 GMT";
const BEFORE: &str = "Wed, 31 Dec 2025 23:59:59 GMT";

#[tokio::test]
async fn reads() {
    let server = Server::with_bucket().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    for (headers, status) in [
        (&[("if-match", ETAG)][..], 200),
        (&[("if-match", "*")], 200),
        (&[("if-match", "\"x\"")], 412),
        (&[("if-none-match", ETAG)], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"x\"")], 200),
        (&[("if-modified-since", MODIFIED)], 304),
        (&[("if-modified-since", BEFORE)], 200),
        (&[("if-modified-since", "yesterday")], 200),
        (&[("if-unmodified-since", MODIFIED)], 200),
        (&[("if-unmodified-since", BEFORE)], 412),
        (&[("if-unmodified-since", "yesterday")], 200),
        (&[("if-match", ETAG), ("if-unmodified-since", BEFORE)], 200),
        (&[("if-none-match", ETAG), ("if-modified-since", BEFORE)], 304),
        (&[("if-none-match", "\"x\""), ("if-modified-since", MODIFIED)], 200),
        (&[("if-match", "\"x\""), ("if-none-match", ETAG)], 412),
    ] {
        for mut call in [server.get("/bucket/k"), server.head("/bucket/k")] {
            for (name, value) in headers {
                call = call.header(name, value);
            }
            let reply = call.send().await.expect(status);
            match status {
                304 => {
                    assert_eq!(reply.header("etag"), Some(ETAG), "{headers:?}");
                    assert_eq!(reply.header("last-modified"), Some(MODIFIED));
                    assert!(reply.body.is_empty());
                }
                412 if !reply.body.is_empty() => {
                    assert_eq!(reply.tag("Code"), "PreconditionFailed");
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn writes() {
    let server = Server::with_bucket().await;
    let put = || server.put("/bucket/k").body("abc");
    put().header("if-match", ETAG).send().await.refused(404, "NoSuchKey");
    put().header("if-none-match", "*").send().await.expect(200);
    put().header("if-none-match", "*").send().await.refused(412, "PreconditionFailed");
    put().header("if-match", "\"x\"").send().await.refused(412, "PreconditionFailed");
    put().header("if-match", ETAG).send().await.expect(200);
    put().header("if-none-match", ETAG).send().await.refused(501, "NotImplemented");
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "abc");

    let delete = || server.delete("/bucket/k");
    delete().header("if-match", "\"x\"").send().await.refused(412, "PreconditionFailed");
    delete().header("if-match", ETAG).send().await.expect(204);
    delete().send().await.expect(204);
}

/// Goal: of writers that each want to be first, one is; the others leave no chunk.
#[tokio::test]
async fn one_writer_wins() {
    let server = Server::with_bucket().await;
    let puts = (0..8).map(|n| {
        server.put("/bucket/k").header("if-none-match", "*").body(format!("writer {n}")).send()
    });
    let replies = futures::future::join_all(puts).await;
    let won = replies.iter().filter(|reply| reply.status == 200).count();
    assert_eq!(won, 1);
    assert!(replies.iter().all(|reply| matches!(reply.status.as_u16(), 200 | 409 | 412)));
    assert_eq!(server.chunks().await, 1);
}
