//! Rails and sessions through the signed control endpoints.

use keyway_auth::sigv4::Payload;
use keyway_gateway::control::DOCUMENT_BYTES_MAX;
use keyway_proto::{Door, KeyStrength, LinkLayer, NodeId, Rail, SessionOffer, SessionRequest};

use super::Direct;
use crate::direct_node::{SESSIONS_MAX, session_request};
use crate::fixture::{OTHER_KEY, Reply, signer, signer_of};

const SESSIONS: &str = "/_keyway/v1/sessions";

fn json(request: &SessionRequest) -> Vec<u8> {
    serde_json::to_vec(request).unwrap()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rails {
    version: u32,
    rails: Vec<Rail>,
    doors: Vec<Door>,
}

#[tokio::test]
async fn rails_of_all_nodes_are_listed() {
    let (direct, _) = Direct::start_two().await;
    let reply = direct.server.get("/_keyway/v1/rails").send().await.expect(200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let told: Rails = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((told.version, told.doors), (1, vec![]));
    let nodes: Vec<NodeId> = told.rails.iter().map(|rail| rail.node).collect();
    assert_eq!(nodes, [NodeId(1), NodeId(2)]);
    assert_eq!(told.rails[0].strength, KeyStrength::Window);
    direct.server.get("/_keyway/v1/rails").anonymous().send().await.refused(403, "AccessDenied");
}

#[tokio::test]
async fn a_session_is_its_openers_to_close() {
    let direct = Direct::start().await;
    assert_eq!(direct.node.sessions(), 1);
    let path = format!("{SESSIONS}/{}", direct.session);
    let other = direct.server.delete(&path).signer(signer_of(OTHER_KEY)).send().await;
    other.refused(404, "NoSuchSession");
    direct.server.delete(&path).anonymous().send().await.refused(403, "AccessDenied");
    assert_eq!(direct.node.sessions(), 1);
    let closed = direct.server.delete(&path).send().await.expect(204);
    assert!(closed.body.is_empty());
    assert_eq!(direct.node.sessions(), 0);
    direct.server.delete(&path).send().await.refused(404, "NoSuchSession");
    let elsewhere = format!("{SESSIONS}/0000000900000001");
    direct.server.delete(&elsewhere).send().await.refused(404, "NoSuchSession");
    direct.server.delete(&format!("{SESSIONS}/x")).send().await.refused(404, "NoSuchSession");
}

#[tokio::test]
async fn refusals_have_their_codes() {
    let direct = Direct::start().await;
    let good = session_request(NodeId(1));
    let post = async |request: Vec<u8>| -> Reply {
        direct.server.post(SESSIONS).body(request).send().await
    };
    let altered = |change: fn(&mut SessionRequest)| {
        let mut request = good.clone();
        change(&mut request);
        json(&request)
    };
    for (request, status, code) in [
        (altered(|r| r.node = NodeId(9)), 404, "NoSuchRail"),
        (altered(|r| r.rail = 7), 404, "NoSuchRail"),
        (altered(|r| r.client.link = LinkLayer::Infiniband), 409, "IncompatibleSession"),
        (altered(|r| r.windows = 0), 400, "InvalidArgument"),
        (altered(|r| r.windows = 257), 400, "InvalidArgument"),
        (altered(|r| r.strengths.clear()), 400, "InvalidArgument"),
        (
            altered(|r| r.strengths = vec![KeyStrength::Slab; 1 + KeyStrength::ALL.len()]),
            400,
            "InvalidArgument",
        ),
        (altered(|r| r.client.qp = 1 << 24), 400, "InvalidArgument"),
        (b"{".to_vec(), 400, "MalformedJSON"),
        (Vec::new(), 400, "MalformedJSON"),
        (b"{\"node\":1,\"planted\":2}".to_vec(), 400, "MalformedJSON"),
    ] {
        let text = String::from_utf8_lossy(&request).into_owned();
        let reply = post(request).await;
        assert!(!reply.text().contains("planted"), "{}", reply.text());
        assert_eq!((reply.status.as_u16(), &reply.tag("Code")[..]), (status, code), "{text}");
        reply.refused(status, code);
    }
    let long = vec![b' '; DOCUMENT_BYTES_MAX + 1];
    post(long).await.refused(400, "EntityTooLarge");
    let spacious = [json(&good), vec![b' '; 1000]].concat();
    for _ in 1..SESSIONS_MAX {
        post(spacious.clone()).await.expect(200);
    }
    post(json(&good)).await.refused(503, "TooManySessions");
    assert_eq!(direct.node.sessions(), SESSIONS_MAX);
}

/// Goal: what a session is made from is what was signed.
#[tokio::test]
async fn the_document_must_be_signed() {
    let direct = Direct::start().await;
    let request = json(&session_request(NodeId(1)));
    let unsigned = direct.server.post(SESSIONS).body(request.clone()).payload(Payload::Unsigned);
    unsigned.send().await.refused(400, "InvalidRequest");
    let uri = format!("http://{}{SESSIONS}", direct.server.address).parse().unwrap();
    let (none, now) = (http::HeaderMap::new(), jiff::Timestamp::now());
    let hour = std::time::Duration::from_secs(3600);
    let uri = signer().presign(&http::Method::POST, &uri, &none, hour, now).unwrap();
    let mut presigned = direct.server.post(SESSIONS).body(request.clone()).request();
    *presigned.uri_mut() = uri;
    // The hash stays: a header that a presigned URL does not cover.
    presigned.headers_mut().remove("authorization");
    presigned.headers_mut().remove("x-amz-date");
    direct.server.send(presigned).await.refused(400, "InvalidRequest");
    let anonymous = direct.server.post(SESSIONS).body(request.clone()).anonymous();
    anonymous.send().await.refused(403, "AccessDenied");
    let mut exchanged = direct.server.post(SESSIONS).body(request.clone()).request();
    let mut other = request;
    let at = other.windows(10).position(|part| part == b"\"windows\":").unwrap() + 10;
    other[at] = b'9';
    *exchanged.body_mut() = http_body_util::Full::new(other.into());
    let reply = direct.server.send(exchanged).await;
    reply.refused(400, "XAmzContentSHA256Mismatch");
    assert_eq!(direct.node.sessions(), 1);
}

#[tokio::test]
async fn other_paths_and_methods_are_not_there() {
    let direct = Direct::start().await;
    direct.server.get("/_keyway/v1/none").send().await.refused(404, "NoSuchEndpoint");
    direct.server.get(SESSIONS).send().await.refused(405, "MethodNotAllowed");
    direct.server.put("/_keyway/v1/rails").send().await.refused(405, "MethodNotAllowed");
}

/// The offer has what a client connects with.
#[tokio::test]
async fn an_offer_is_whole() {
    let direct = Direct::start().await;
    let request = session_request(NodeId(1));
    let reply = direct.server.post(SESSIONS).body(json(&request)).send().await.expect(200);
    let offer: SessionOffer = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((offer.node, offer.session.node()), (NodeId(1), NodeId(1)));
    assert_eq!((offer.strength, offer.windows), (KeyStrength::Window, 4));
    assert_eq!(offer.server.qp, 18);
}
