//! PUTs and parts out of a client's memory.

use std::sync::atomic::Ordering;

use keyway_auth::sigv4::Payload;
use keyway_dataplane::{DirectError, TransferError};
use keyway_proto::key::Relinquished;
use keyway_proto::{Checksum, ChecksumKind};

use super::{Direct, moved, nothing_moved, pattern};
use crate::direct_node::Fault;

#[tokio::test]
async fn a_put_stores_what_the_windows_hold() {
    let direct = Direct::start().await;
    let bytes = pattern((33 << 20) + 5);
    let (token, buffer) = direct.node.arm(direct.session, &[20 << 20, (13 << 20) + 5]);
    direct.node.fill(&buffer, &bytes);
    let sha = Checksum::of(ChecksumKind::Sha256, &bytes).to_base64();
    let call = direct.put("/bucket/key", &token).header("x-amz-meta-a", "b");
    let reply = call.header("x-amz-checksum-sha256", &sha).send().await.expect(200);
    moved(&reply, "200", &bytes);
    assert_eq!(reply.header("x-amz-checksum-sha256"), Some(&sha[..]));
    let md5 = Checksum::of(ChecksumKind::Md5, &bytes).to_hex();
    assert_eq!(reply.header("etag"), Some(&format!("\"{md5}\"")[..]));
    let stored = direct.server.get("/bucket/key").send().await.expect(200);
    assert!(stored.body == bytes);
    assert_eq!(stored.header("x-amz-meta-a"), Some("b"));
    let counted = direct.server.direct_counts.stats().transfers;
    assert!(counted.contains(&("verbs-host", "invalidated", 1)), "{counted:?}");
}

#[tokio::test]
async fn without_a_checksum_the_answer_has_one() {
    let direct = Direct::start().await;
    let (token, buffer) = direct.node.arm(direct.session, &[3]);
    direct.node.fill(&buffer, b"abc");
    let reply = direct.put("/bucket/key", &token).send().await.expect(200);
    moved(&reply, "200", b"abc");
    let told = Checksum::of(ChecksumKind::Crc64Nvme, b"abc").to_base64();
    assert_eq!(reply.header("x-amz-checksum-crc64nvme"), Some(&told[..]));
}

/// Goal: bytes that are not the declared ones are not kept, and the answer still says that the
/// key is dead.
#[tokio::test]
async fn a_wrong_checksum_stores_nothing() {
    let direct = Direct::start().await;
    let bytes = pattern(100_000);
    let id = direct.server.post("/bucket/key?uploads").send().await.expect(200).tag("UploadId");
    for path in ["/bucket/key".to_owned(), format!("/bucket/key?partNumber=1&uploadId={id}")] {
        let (token, buffer) = direct.node.arm(direct.session, &[100_000]);
        direct.node.fill(&buffer, &bytes);
        direct.node.fail_next(Fault::Corrupts);
        let crc = Checksum::of(ChecksumKind::Crc32c, &bytes).to_base64();
        let call = direct.put(&path, &token).header("x-amz-checksum-crc32c", &crc);
        let reply = call.send().await.refused(400, "BadDigest");
        nothing_moved(&reply, "invalidated");
        assert_eq!(direct.server.chunks().await, 0, "{path}");
    }
    direct.server.get("/bucket/key").send().await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn conditions_hold_and_what_they_refuse_is_released() {
    let direct = Direct::start().await;
    let put = async |node: &str| {
        let (token, buffer) = direct.node.arm(direct.session, &[3]);
        direct.node.fill(&buffer, node.as_bytes());
        direct.put("/bucket/key", &token).header("if-none-match", "*").send().await
    };
    moved(&put("abc").await.expect(200), "200", b"abc");
    let second = put("def").await.refused(412, "PreconditionFailed");
    nothing_moved(&second, "invalidated");
    assert_eq!(direct.server.chunks().await, 1);
    assert_eq!(direct.server.get("/bucket/key").send().await.text(), "abc");
}

/// Parts by RDMA and over HTTP make one object.
#[tokio::test]
async fn parts_may_be_mixed() {
    let direct = Direct::start().await;
    let (first, second) = (pattern(6 << 20), pattern(1000));
    let create = direct.server.post("/bucket/key?uploads");
    let id = create.header("x-amz-checksum-algorithm", "CRC32C").send().await.tag("UploadId");
    let path = |number: u32| format!("/bucket/key?partNumber={number}&uploadId={id}");
    let (token, buffer) = direct.node.arm(direct.session, &[6 << 20]);
    direct.node.fill(&buffer, &first);
    let one = direct.put(&path(1), &token).send().await.expect(200);
    moved(&one, "200", &first);
    let crc = Checksum::of(ChecksumKind::Crc32c, &first).to_base64();
    assert_eq!(one.header("x-amz-checksum-crc32c"), Some(&crc[..]));
    let two = direct.server.put(&path(2)).body(second.clone()).send().await.expect(200);
    let document = [(1, &one), (2, &two)].map(|(number, reply)| {
        let etag = reply.header("etag").unwrap();
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    });
    let document =
        format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", document.concat());
    let complete = direct.server.post(&format!("/bucket/key?uploadId={id}")).body(document);
    complete.send().await.expect(200);
    let whole = direct.server.get("/bucket/key").send().await.expect(200);
    assert!(whole.body == [first, second].concat());
}

/// Goal: a request that has a body besides its token is not understood as one of the two.
#[tokio::test]
async fn a_body_beside_the_token_is_refused() {
    let direct = Direct::start().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let put = || direct.put("/bucket/key", &token);
    for call in [
        put().body("abc"),
        put().payload(Payload::EMPTY),
        put().header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
        put().chunked(3, &[]),
        put().header("content-encoding", "AWS-chunked, gzip"),
    ] {
        let reply = call.send().await;
        assert_eq!(reply.status, 400, "{reply:?}");
        nothing_moved(&reply, "quiet");
    }
    let copy = put().header("x-amz-copy-source", "bucket/other").send().await;
    let copy = copy.refused(501, "RDMANotSupported");
    assert_eq!(copy.header("x-keyway-rdma-key"), Some("quiet"));
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    assert_eq!(direct.server.chunks().await, 0);
    direct.server.get("/bucket/key").send().await.refused(404, "NoSuchKey");
}

#[tokio::test]
async fn a_full_store_is_507_as_over_http() {
    let direct = Direct::start().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let full = DirectError::Transfer(TransferError::Full);
    direct.node.fail_next(Fault::Fails(full, Relinquished::Invalidated));
    let reply = direct.put("/bucket/key", &token).send().await;
    nothing_moved(&reply.refused(507, "InsufficientStorage"), "invalidated");
}

#[tokio::test]
async fn more_than_a_put_may_hold_is_refused() {
    let direct = Direct::start().await;
    // The windows lie about nothing but their size: the memory is not looked at.
    let (token, _) = direct.node.arm(direct.session, &[1]);
    let window = token.windows()[0];
    let large = keyway_proto::RemoteWindow { address: 4096, length: u32::MAX, ..window };
    let token = keyway_proto::SessionToken::new(direct.session, vec![large; 2]).unwrap();
    let reply = direct.put("/bucket/key", &token).send().await.refused(400, "EntityTooLarge");
    nothing_moved(&reply, "quiet");
}
