//! Tokens of dynamically connected targets: served where a node reaches them, else declined.

use std::sync::atomic::Ordering;

use keyway_auth::sigv4::Payload;
use keyway_proto::{RdmaToken, RemoteWindow};

use super::{Direct, moved_under, nothing_moved, pattern};
use crate::direct_node::{Buffer, DirectNode};
use crate::fixture::{Call, Reply};

/// The number of the clients' target.
const NUMBER: u32 = 0xbeef;

impl Direct {
    async fn serving() -> Self {
        let direct = Self::start().await;
        *direct.node.dynamic.lock() = Some(NUMBER);
        // The sealing key, which says so, is asked for with the first grant.
        direct
    }

    fn stock(&self, call: Call<'_>, token: &RdmaToken) -> impl Future<Output = Reply> {
        call.header("x-amz-rdma-token", &token.encode()).payload(Payload::Unsigned).send()
    }
}

/// As a stock client does: one registration, and a token for a part of it.
fn token(direct: &Direct, node: &DirectNode, length: u32, number: u32) -> (RdmaToken, Buffer) {
    let (windows, buffer) = node.arm(direct.session, &[length]);
    let RemoteWindow { address, length, key } = windows.windows()[0];
    let token = RdmaToken::new(address, length, key.0, 0x11, number, Some([0xfe; 16]));
    (token.unwrap(), buffer)
}

/// The answer says that `bytes` were moved, and that the key lives on.
#[track_caller]
fn moved(reply: &Reply, status: &str, bytes: &[u8]) {
    moved_under(reply, status, bytes, "standing", "quiet");
}

#[track_caller]
fn declined(reply: &Reply) {
    assert_eq!(reply.header("x-amz-rdma-reply"), Some("501"), "{reply:?}");
    assert_eq!(reply.header("x-keyway-rdma-key"), Some("quiet"));
    assert_eq!(reply.header("x-keyway-node"), None);
}

/// Goal: objects, parts and ranges go and come under such a token, without any session.
#[tokio::test]
async fn bytes_come_and_go() {
    let direct = Direct::serving().await;
    let server = &direct.server;
    let bytes = pattern(100_000);
    let (from, buffer) = token(&direct, &direct.node, 100_000, NUMBER);
    direct.node.fill(&buffer, &bytes);
    moved(&direct.stock(server.put("/bucket/key"), &from).await.expect(200), "200", &bytes);
    let (to, buffer) = token(&direct, &direct.node, 100_001, NUMBER);
    moved(&direct.stock(server.get("/bucket/key"), &to).await.expect(200), "200", &bytes);
    let mut landed = bytes.clone();
    landed.push(0xee);
    assert_eq!(direct.node.read(&buffer), landed);
    let ranged = server.get("/bucket/key").header("range", "bytes=10-19");
    moved(&direct.stock(ranged, &to).await.expect(206), "206", &bytes[10..20]);
    assert_eq!(direct.node.read(&buffer)[..10], bytes[10..20]);
    assert!(server.get("/bucket/key").send().await.body[..] == bytes[..]);
}

/// Goal: a range is never cut to what the token covers.
#[tokio::test]
async fn what_is_too_long_is_refused() {
    let direct = Direct::serving().await;
    direct.server.put("/bucket/key").body("abc").send().await.expect(200);
    let (token, buffer) = token(&direct, &direct.node, 2, NUMBER);
    let reply = direct.stock(direct.server.get("/bucket/key"), &token).await;
    nothing_moved(&reply.refused(400, "RDMAWindowTooSmall"), "quiet");
    assert_eq!(direct.node.read(&buffer), [0xee; 2]);
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
}

/// Goal: without an adapter that does it no grant leaves; and where the node finds that it does not
/// reach the address, the bytes come over HTTP as well.
#[tokio::test]
async fn what_is_not_reached_goes_over_http() {
    for serves in [false, true] {
        let direct = if serves { Direct::serving().await } else { Direct::start().await };
        direct.server.put("/bucket/key").body("abc").send().await.expect(200);
        let (token, buffer) = token(&direct, &direct.node, 3, NUMBER + 1);
        let reply = direct.stock(direct.server.get("/bucket/key"), &token).await.expect(200);
        declined(&reply);
        assert_eq!((reply.text(), direct.node.read(&buffer)), ("abc", vec![0xee; 3]));
        let reply = direct.stock(direct.server.put("/bucket/key"), &token).await;
        declined(&reply.refused(501, "RDMANotSupported"));
        assert_eq!(direct.server.get("/bucket/key").send().await.text(), "abc");
        assert_eq!(direct.node.grants.load(Ordering::SeqCst), if serves { 2 } else { 0 });
        let counted = direct.server.direct_counts.stats().declined;
        assert!(counted.contains(&("foreign", 2)), "{counted:?}");
    }
}

/// A node that reaches such targets takes the writes; what the other holds comes over HTTP.
#[tokio::test]
async fn the_node_that_can_is_chosen() {
    let (direct, other) = Direct::start_two().await;
    *other.dynamic.lock() = Some(NUMBER);
    let server = &direct.server;
    for turn in 0..8 {
        let (from, buffer) = token(&direct, &other, 3, NUMBER);
        other.fill(&buffer, b"abc");
        let path = format!("/bucket/key-{turn}");
        moved(&direct.stock(server.put(&path), &from).await.expect(200), "200", b"abc");
        moved(&direct.stock(server.get(&path), &from).await.expect(200), "200", b"abc");
    }
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    let (windows, buffer) = direct.node.arm(direct.session, &[3]);
    direct.node.fill(&buffer, b"xyz");
    direct.put("/bucket/there", &windows).send().await.expect(200);
    let (to, _) = token(&direct, &other, 3, NUMBER);
    let reply = direct.stock(server.get("/bucket/there"), &to).await.expect(200);
    declined(&reply);
    assert_eq!(reply.text(), "xyz");
}

/// Goal: whoever demands stronger keys than such clients have gets no RDMA, and its bytes.
#[tokio::test]
async fn a_demanded_strength_is_not_undercut() {
    let direct = Direct::serving().await;
    let server = &direct.server;
    server.put("/bucket/key").body("abc").send().await.expect(200);
    let policy = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Principal": "*",
        "Action": "keyway:Rdma*", "Resource": "arn:aws:s3:::bucket/*",
        "Condition": {"StringNotEquals": {"keyway:KeyStrength": "window"}}}]}"#;
    server.put("/bucket?policy").body(policy).send().await.expect(204);
    let (token, buffer) = token(&direct, &direct.node, 3, NUMBER);
    let reply = direct.stock(server.get("/bucket/key"), &token).await.expect(200);
    declined(&reply);
    assert_eq!((reply.text(), direct.node.read(&buffer)), ("abc", vec![0xee; 3]));
    let put = direct.stock(server.put("/bucket/key"), &token).await;
    declined(&put.refused(501, "RDMANotSupported"));
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    assert!(server.direct_counts.stats().declined.contains(&("policy", 2)));
}

/// Goal: a PUT that speaks of a body besides is refused, as under any other token.
#[tokio::test]
async fn a_body_beside_the_token_is_refused() {
    let direct = Direct::serving().await;
    let (token, _) = token(&direct, &direct.node, 3, NUMBER);
    let call = direct.server.put("/bucket/key").body("abc");
    let reply = direct.stock(call, &token).await;
    nothing_moved(&reply.refused(400, "InvalidRequest"), "quiet");
    direct.server.get("/bucket/key").send().await.refused(404, "NoSuchKey");
}
