//! Tokens, grants and owners that are refused; transfers that fail; requests that are dropped.

use std::sync::atomic::Ordering;
use std::time::Duration;

use keyway_auth::grant::GrantError;
use keyway_auth::sigv4::Payload;
use keyway_dataplane::{DirectError, TransferError};
use keyway_proto::key::Relinquished;
use keyway_proto::{NodeId, SessionId, SessionToken};

use super::{Direct, moved, nothing_moved, open};
use crate::direct_node::Fault;
use crate::fixture::{OTHER_KEY, signer, signer_of};

/// What grants are refused for, of those that a gateway cannot bring about by itself.
const REFUSALS: [GrantError; 4] =
    [GrantError::OtherNode, GrantError::Expired, GrantError::TooLong, GrantError::Overloaded];

async fn with_object() -> Direct {
    let direct = Direct::start().await;
    direct.server.put("/bucket/key").body("abc").send().await.expect(200);
    direct
}

#[tokio::test]
async fn a_token_that_is_not_signed_is_refused() {
    let direct = with_object().await;
    let (token, buffer) = direct.node.arm(direct.session, &[3]);
    for call in [
        direct.server.get("/bucket/key"),
        direct.server.put("/bucket/other").payload(Payload::Unsigned),
    ] {
        let reply = call.unsigned_header("x-amz-rdma-token", &token.encode()).send().await;
        nothing_moved(&reply.refused(403, "AccessDenied"), "quiet");
    }
    // One that is added to a presigned URL.
    let uri = format!("http://{}/bucket/key", direct.server.address).parse().unwrap();
    let (none, now) = (http::HeaderMap::new(), jiff::Timestamp::now());
    let minute = Duration::from_secs(60);
    let uri = signer().presign(&http::Method::GET, &uri, &none, minute, now).unwrap();
    let added = direct.server.get("/bucket/key").anonymous();
    let mut added = added.unsigned_header("x-amz-rdma-token", &token.encode()).request();
    *added.uri_mut() = uri;
    let reply = direct.server.send(added).await.refused(403, "AccessDenied");
    nothing_moved(&reply, "quiet");
    // One that is signed, and exchanged for another afterwards.
    let (other, other_buffer) = direct.node.arm(direct.session, &[3]);
    let mut request = direct.get("/bucket/key", &token).request();
    request.headers_mut().insert("x-amz-rdma-token", other.encode().parse().unwrap());
    let reply = direct.server.send(request).await.refused(403, "SignatureDoesNotMatch");
    nothing_moved(&reply, "quiet");
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 0);
    for buffer in [&buffer, &other_buffer] {
        assert_eq!(direct.node.read(buffer), [0xee; 3]);
    }
}

#[tokio::test]
async fn malformed_tokens_are_refused_and_not_repeated() {
    let direct = with_object().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let good = token.encode();
    for bad in ["kw1:".to_owned(), format!("{good}0"), good.to_uppercase(), format!("{good},")] {
        for call in [
            direct.server.get("/bucket/key"),
            direct.server.put("/bucket/key").payload(Payload::Unsigned),
        ] {
            let reply = call.header("x-amz-rdma-token", &bad).send().await;
            let reply = reply.refused(400, "InvalidRDMAToken");
            nothing_moved(&reply, "quiet");
            assert!(!reply.text().contains(&good[4..20]), "the token is repeated");
        }
    }
    let two = direct.get("/bucket/key", &token).header("x-amz-rdma-token", &good).send().await;
    nothing_moved(&two.refused(400, "InvalidRDMAToken"), "quiet");
    assert_eq!(direct.server.get("/bucket/key").send().await.text(), "abc");
}

/// Goal: a session serves nobody but the one who opened it, not even within a tenant.
#[tokio::test]
async fn another_ones_session_is_not_open() {
    let direct = with_object().await;
    let (token, buffer) = direct.node.arm(direct.session, &[3]);
    let call = direct.get("/bucket/key", &token).signer(signer_of(OTHER_KEY));
    let reply = call.send().await.refused(400, "InvalidRDMAToken");
    nothing_moved(&reply, "quiet");
    assert!(reply.tag("Message").contains("session is not open"));
    let put = direct.put("/bucket/other", &token).signer(signer_of(OTHER_KEY)).send().await;
    nothing_moved(&put.refused(400, "InvalidRDMAToken"), "quiet");
    assert_eq!(direct.node.read(&buffer), [0xee; 3]);
    moved(&direct.get("/bucket/key", &token).send().await.expect(200), "200", b"abc");
}

#[tokio::test]
async fn sessions_that_are_not_there_are_refused() {
    let direct = with_object().await;
    let (token, _) = direct.node.arm(SessionId::new(NodeId(1), 99), &[3]);
    let reply = direct.get("/bucket/key", &token).send().await.refused(400, "InvalidRDMAToken");
    nothing_moved(&reply, "quiet");
    // A node that this gateway does not know: a read has its bytes elsewhere anyway.
    let windows = token.windows().to_vec();
    let token = SessionToken::new(SessionId::new(NodeId(9), 1), windows).unwrap();
    let read = direct.get("/bucket/key", &token).send().await.expect(200);
    assert_eq!((read.header("x-amz-rdma-reply"), read.text()), (Some("501"), "abc"));
    let write = direct.put("/bucket/key", &token).send().await;
    nothing_moved(&write.refused(400, "InvalidRDMAToken"), "quiet");
    assert_eq!(direct.server.get("/bucket/key").send().await.text(), "abc");
}

#[tokio::test]
async fn altered_and_replayed_grants_move_nothing() {
    let direct = with_object().await;
    let mut faults = vec![Fault::Altered, Fault::Replayed];
    let refused = |error| Fault::Fails(DirectError::Grant(error), Relinquished::Quiet);
    faults.extend(REFUSALS.into_iter().take(3).map(refused));
    for fault in faults {
        let (token, buffer) = direct.node.arm(direct.session, &[3]);
        direct.node.fail_next(fault.clone());
        let reply = direct.get("/bucket/key", &token).send().await;
        nothing_moved(&reply.refused(400, "InvalidRDMAToken"), "quiet");
        assert_eq!(direct.node.read(&buffer), [0xee; 3], "{fault:?}");
    }
    direct.node.fail_next(refused(REFUSALS[3]));
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let reply = direct.get("/bucket/key", &token).send().await.refused(503, "SlowDown");
    nothing_moved(&reply, "quiet");
}

#[tokio::test]
async fn failed_transfers_tell_what_became_of_the_key() {
    let direct = with_object().await;
    let before = direct.server.chunks().await;
    let unreachable = DirectError::Transfer(TransferError::Unreachable("gone".into()));
    for (error, key, told, status, code) in [
        (DirectError::Link("x".into()), Relinquished::Fenced, "fenced", 500, "RDMATransferFailed"),
        (DirectError::TimedOut, Relinquished::Fenced, "fenced", 500, "RDMATransferFailed"),
        (DirectError::Cancelled, Relinquished::Quiet, "quiet", 500, "RDMATransferFailed"),
        (DirectError::InvalidPlan("x"), Relinquished::Quiet, "quiet", 400, "InvalidRDMAToken"),
        (unreachable, Relinquished::Unknown, "unknown", 503, "ServiceUnavailable"),
        (TransferError::Busy.into(), Relinquished::Quiet, "quiet", 503, "SlowDown"),
    ] {
        for write in [false, true] {
            let (token, _) = direct.node.arm(direct.session, &[3]);
            direct.node.fail_next(Fault::Fails(error.clone(), key));
            let call = if write {
                direct.put("/bucket/other", &token)
            } else {
                direct.get("/bucket/key", &token)
            };
            nothing_moved(&call.send().await.refused(status, code), told);
        }
    }
    assert_eq!(direct.server.chunks().await, before);
    direct.server.get("/bucket/other").send().await.refused(404, "NoSuchKey");
    let counted = direct.server.direct_counts.stats().transfers;
    for expected in [("none", "fenced", 4), ("none", "quiet", 6), ("none", "unknown", 2)] {
        assert!(counted.contains(&expected), "{counted:?}");
    }
}

/// Goal: a key that a node may still use is not lent a second time.
#[tokio::test]
async fn a_lost_chunk_under_an_uncertain_key_is_not_tried_again() {
    let direct = with_object().await;
    let (token, _) = direct.node.arm(direct.session, &[3]);
    let lost = TransferError::NoSuchChunk(keyway_proto::ChunkId::generate());
    direct.node.fail_next(Fault::Fails(lost.into(), Relinquished::Unknown));
    let reply = direct.get("/bucket/key", &token).send().await;
    nothing_moved(&reply.refused(500, "InternalError"), "unknown");
    assert_eq!(direct.node.grants.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_receipt_that_does_not_add_up_is_no_success() {
    let direct = with_object().await;
    let faults = || [Fault::ShortReceipt(1), Fault::AnswersForAnother];
    for (write, fault) in [false, true].into_iter().flat_map(|write| faults().map(|f| (write, f))) {
        let (token, _) = direct.node.arm(direct.session, &[3]);
        direct.node.fail_next(fault);
        let call = if write {
            direct.put("/bucket/other", &token)
        } else {
            direct.get("/bucket/key", &token)
        };
        nothing_moved(&call.send().await.refused(500, "InternalError"), "invalidated");
    }
    direct.server.get("/bucket/other").send().await.refused(404, "NoSuchKey");
}

/// Goal: a node that was started anew costs one more question for its key; its sessions are
/// gone all the same.
#[tokio::test]
async fn sealing_keys_are_asked_for_when_they_are_needed() {
    let direct = with_object().await;
    let get = async || {
        let (token, _) = direct.node.arm(direct.session, &[3]);
        direct.get("/bucket/key", &token).send().await
    };
    let asked = || direct.node.asked.load(Ordering::SeqCst);
    let several = futures::future::join_all((0..8).map(|_| get())).await;
    several.into_iter().for_each(|reply| moved(&reply.expect(200), "200", b"abc"));
    assert_eq!(asked(), 1, "one asks for all");
    direct.node.fail_next(Fault::Restarts);
    nothing_moved(&get().await.refused(400, "InvalidRDMAToken"), "quiet");
    assert_eq!(asked(), 2);
    let session = open(&direct.server, &direct.node).await;
    let (token, _) = direct.node.arm(session, &[3]);
    *direct.node.fresh_for.lock() = Duration::ZERO;
    moved(&direct.get("/bucket/key", &token).send().await.expect(200), "200", b"abc");
    assert_eq!(asked(), 2, "the key is fresh");

    let stale = with_object().await;
    *stale.node.fresh_for.lock() = Duration::ZERO;
    for number in 1..=3 {
        let (token, _) = stale.node.arm(stale.session, &[3]);
        moved(&stale.get("/bucket/key", &token).send().await.expect(200), "200", b"abc");
        assert_eq!(stale.node.asked.load(Ordering::SeqCst), number);
    }
}

/// Goal: a client that goes away has its transfer given up, and leaves no object.
#[tokio::test]
async fn a_dropped_request_gives_the_transfer_up() {
    let direct = with_object().await;
    for write in [false, true] {
        let (token, _) = direct.node.arm(direct.session, &[3]);
        direct.node.fail_next(Fault::Hangs);
        let call = if write {
            direct.put("/bucket/other", &token)
        } else {
            direct.get("/bucket/key", &token)
        };
        tokio::select! {
            reply = call.send() => panic!("{reply:?}"),
            () = direct.node.hanging.notified() => {}
        }
        let given_up = direct.node.given_up.notified();
        tokio::time::timeout(Duration::from_secs(20), given_up).await.expect("it is given up");
    }
    direct.server.get("/bucket/other").send().await.refused(404, "NoSuchKey");
}
