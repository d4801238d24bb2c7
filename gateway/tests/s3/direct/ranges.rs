//! Many ranges of one object in one request.

use std::sync::atomic::Ordering;

use keyway_auth::sigv4::Payload;
use keyway_gateway::control::RANGES_PATH;
use keyway_proto::unit::MIB;
use keyway_proto::{ByteRange, DirectWork, PlacedRange, RangesRequest, SessionToken};

use super::{Direct, moved, nothing_moved, open, pattern};
use crate::direct_node::Fault;
use crate::fixture::{Call, OTHER_KEY, signer_of};

pub(super) fn placed(offset: u64, length: u64, at: u32) -> PlacedRange {
    PlacedRange { range: ByteRange::new(offset, length).unwrap(), at }
}

pub(super) fn document(key: &str, etag: Option<&str>, ranges: &[PlacedRange]) -> Vec<u8> {
    RangesRequest::encode("bucket", key, etag, ranges.iter().copied()).unwrap()
}

impl Direct {
    pub(super) fn ranges(&self, token: &SessionToken, document: Vec<u8>) -> Call<'_> {
        let call = self.server.post(RANGES_PATH).header("x-amz-rdma-token", &token.encode());
        call.body(document)
    }
}

#[tokio::test]
async fn ranges_land_in_their_places_under_one_key() {
    let direct = Direct::start().await;
    let bytes = pattern(40 * MIB as usize);
    let put = direct.server.put("/bucket/key").header("x-amz-meta-a", "b").body(bytes.clone());
    let etag = put.send().await.expect(200).header("etag").unwrap().to_owned();
    // Out of order in the object, one of them twice, one over the border of two chunks, and a gap
    // in memory.
    let ranges = [
        placed(39 * MIB, 4096, 0),
        placed(7, 1, 4096),
        placed(16 * MIB - 100, 300, 5000),
        placed(7, 1, 5300),
    ];
    let mut expected = vec![0xee; 6000];
    let mut sent = Vec::new();
    for PlacedRange { range, at } in ranges {
        let part = &bytes[range.offset() as usize..range.end() as usize];
        expected[at as usize..at as usize + part.len()].copy_from_slice(part);
        sent.extend_from_slice(part);
    }
    for etag in [None, Some(&etag[..]), Some("*")] {
        let (token, buffer) = direct.node.arm(direct.session, &[6000]);
        let grants = direct.node.grants.load(Ordering::SeqCst);
        let reply = direct.ranges(&token, document("key", etag, &ranges)).send().await.expect(200);
        moved(&reply, "200", &sent);
        assert_eq!(direct.node.read(&buffer), expected);
        assert_eq!(direct.node.grants.load(Ordering::SeqCst), grants + 1, "one grant for all");
        assert_eq!(direct.node.live_keys(), 0);
        assert_eq!(reply.header("x-keyway-object-size"), Some(&bytes.len().to_string()[..]));
        assert_eq!(reply.header("x-amz-meta-a"), Some("b"));
        assert!(reply.header("x-amz-checksum-crc64nvme").is_some());
    }
    let last = direct.node.last.lock().take().unwrap();
    let DirectWork::Gather(plan, _) = last.work else { panic!("{last:?}") };
    assert_eq!((plan.chunks.len(), plan.pieces.len()), (3, 5), "a chunk is named once");
}

#[tokio::test]
async fn what_cannot_be_read_moves_nothing() {
    let direct = Direct::start().await;
    let put = direct.server.put("/bucket/key").body("abcdef").send().await.expect(200);
    let etag = put.header("etag").unwrap().to_owned();
    direct.server.put("/bucket/empty").send().await.expect(200);
    let (token, buffer) = direct.node.arm(direct.session, &[8]);
    let two = [placed(0, 2, 0), placed(3, 3, 2)];
    for (document, status, code) in [
        (document("none", None, &two), 404, "NoSuchKey"),
        (document("key", Some("\"other\""), &two), 412, "PreconditionFailed"),
        (document("key", None, &[two[0], placed(4, 3, 2)]), 416, "InvalidRange"),
        (document("key", None, &[placed(u64::MAX - 9, 8, 0)]), 416, "InvalidRange"),
        (document("empty", None, &two), 416, "InvalidRange"),
        (document("key", None, &[two[0], placed(0, 3, 6)]), 400, "RDMAWindowTooSmall"),
        (document("k\u{1}", None, &two), 400, "InvalidArgument"),
        (document(&"k".repeat(1024), None, &two), 404, "NoSuchKey"),
        (b"{}".to_vec(), 400, "InvalidRequest"),
        (Vec::new(), 400, "InvalidRequest"),
        (vec![0; 70_000], 400, "EntityTooLarge"),
    ] {
        let reply = direct.ranges(&token, document).send().await.refused(status, code);
        nothing_moved(&reply, "quiet");
    }
    // Places that meet, and a range of nothing: no encoder of ours writes them.
    let mut sound = document("key", None, &two);
    let last = sound.len() - 4;
    sound[last] = 1;
    let reply = direct.ranges(&token, sound.clone()).send().await;
    let reply = reply.refused(400, "InvalidArgument");
    assert!(reply.tag("Message").contains("overlap"), "{reply:?}");
    (sound[last], sound[last - 4]) = (2, 0);
    let reply = direct.ranges(&token, sound).send().await.refused(400, "InvalidArgument");
    nothing_moved(&reply, "quiet");
    assert_eq!(direct.node.read(&buffer), [0xee; 8]);
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    let reply = direct.ranges(&token, document("key", Some(&etag), &two)).send().await.expect(200);
    moved(&reply, "200", b"abdef");
    assert_eq!(direct.node.read(&buffer), *b"abdef\xee\xee\xee");
}

#[tokio::test]
async fn requests_without_leave_are_refused() {
    let direct = Direct::start().await;
    direct.server.put("/bucket/key").body("abcdef").send().await.expect(200);
    let ranges = || document("key", None, &[placed(0, 2, 0), placed(3, 3, 2)]);
    let (token, buffer) = direct.node.arm(direct.session, &[8]);
    let bare = direct.server.post(RANGES_PATH).body(ranges()).send().await;
    bare.refused(400, "InvalidRequest");
    let unsigned = direct.ranges(&token, ranges()).payload(Payload::Unsigned).send().await;
    nothing_moved(&unsigned.refused(400, "InvalidRequest"), "quiet");
    let foreign = direct.server.post(RANGES_PATH).body(ranges());
    let foreign = foreign.unsigned_header("x-amz-rdma-token", &token.encode()).send().await;
    nothing_moved(&foreign.refused(403, "AccessDenied"), "quiet");
    direct.ranges(&token, ranges()).anonymous().send().await.refused(403, "AccessDenied");
    // Another's session, and another bucket's owner.
    let other = direct.ranges(&token, ranges()).signer(signer_of(OTHER_KEY)).send().await;
    nothing_moved(&other.refused(400, "InvalidRDMAToken"), "quiet");
    direct.server.get(RANGES_PATH).send().await.refused(405, "MethodNotAllowed");
    let two = direct.node.arm(direct.session, &[4, 4]).0;
    let reply = direct.ranges(&two, ranges()).send().await.refused(400, "InvalidArgument");
    nothing_moved(&reply, "quiet");
    // A token of a dynamically connected target.
    let dct = format!("{:016x}:{:08x}:{:08x}:0000:000001:0:{:032x}", 4096, 8, 7, 0);
    let call = direct.server.post(RANGES_PATH).header("x-amz-rdma-token", &dct);
    let declined = call.body(ranges()).send().await.refused(501, "RDMANotSupported");
    assert_eq!(declined.header("x-amz-rdma-reply"), Some("501"));
    assert_eq!(direct.node.read(&buffer), [0xee; 8]);
}

#[tokio::test]
async fn bytes_on_other_nodes_are_declined() {
    let (direct, other) = Direct::start_two().await;
    let session = open(&direct.server, &other).await;
    let (token, buffer) = other.arm(session, &[6]);
    other.fill(&buffer, b"abcdef");
    direct.put("/bucket/key", &token).send().await.expect(200);
    let ranges = document("key", None, &[placed(0, 2, 0), placed(3, 3, 2)]);
    let (token, buffer) = direct.node.arm(direct.session, &[5]);
    let reply = direct.ranges(&token, ranges.clone()).send().await;
    let reply = reply.refused(501, "RDMANotSupported");
    assert_eq!(reply.header("x-keyway-rdma-key"), Some("quiet"));
    assert_eq!(direct.node.read(&buffer), [0xee; 5]);
    let (token, buffer) = other.arm(session, &[5]);
    moved(&direct.ranges(&token, ranges).send().await.expect(200), "200", b"abdef");
    assert_eq!(other.read(&buffer), b"abdef");
}

/// Goal: an object replaced under a request is read as it is then; a failed transfer says so.
#[tokio::test]
async fn faults_are_met_as_those_of_a_get() {
    let direct = Direct::start().await;
    direct.server.put("/bucket/key").body("abcdef").send().await.expect(200);
    let ranges = || document("key", None, &[placed(0, 2, 0), placed(3, 3, 2)]);
    let (token, buffer) = direct.node.arm(direct.session, &[5]);
    direct.node.fail_next(Fault::LosesChunk);
    moved(&direct.ranges(&token, ranges()).send().await.expect(200), "200", b"abdef");
    assert_eq!(direct.node.read(&buffer), b"abdef");
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 2);
    // The key is dead.
    let again = direct.ranges(&token, ranges()).send().await;
    nothing_moved(&again.refused(500, "RDMATransferFailed"), "quiet");
    let (token, _) = direct.node.arm(direct.session, &[5]);
    direct.node.fail_next(Fault::ShortReceipt(1));
    let short = direct.ranges(&token, ranges()).send().await;
    nothing_moved(&short.refused(500, "InternalError"), "invalidated");
    for fault in [Fault::Altered, Fault::Replayed] {
        let (token, buffer) = direct.node.arm(direct.session, &[5]);
        direct.node.fail_next(fault);
        let reply = direct.ranges(&token, ranges()).send().await;
        nothing_moved(&reply.refused(400, "InvalidRDMAToken"), "quiet");
        assert_eq!(direct.node.read(&buffer), [0xee; 5]);
    }
}
