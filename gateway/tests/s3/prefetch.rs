//! Prefetching through the signed control endpoint, over a node with a memory tier.

use std::sync::Arc;

use keyway_dataplane::store::memory::MemoryStore;
use keyway_dataplane::store::tier::MemoryTier;
use keyway_dataplane::{EngineConfig, LocalNode, TierAdmit, TierConfig};
use keyway_fabric::memory::LeasePool;
use keyway_gateway::s3::S3Config;
use keyway_proto::unit::MIB;
use keyway_proto::{NodeId, PrefetchPosition, PrefetchReply};

use crate::fixture::Server;

const PREFETCH: &str = "/_keyway/v1/prefetch";

async fn server() -> Server {
    let pool = LeasePool::new(32 << 20).unwrap();
    let store = Arc::new(MemoryStore::new(256 * MIB));
    let config =
        TierConfig { size_bytes: 64 * MIB, admit: TierAdmit::OnPrefetch, ..TierConfig::default() };
    let tier = Arc::new(MemoryTier::over(store, pool.clone(), config).unwrap());
    let node = LocalNode::over_tier(NodeId(1), tier, pool, &EngineConfig::default());
    let server = Server::over(S3Config::default(), node.clone(), node).await;
    server.put("/bucket").send().await.expect(200);
    for (key, length) in [("a/1", 20 << 20), ("a/2", 5), ("a/empty", 0), ("b", 3 << 20)] {
        let body = vec![7; length];
        server.put(&format!("/bucket/{key}")).body(body).send().await.expect(200);
    }
    assert_eq!(server.node.stats().tier.used_bytes, 0);
    server
}

async fn prefetch(server: &Server, document: &str) -> PrefetchReply {
    let reply = server.post(PREFETCH).body(document.to_owned()).send().await.expect(200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    serde_json::from_slice(&reply.body).unwrap()
}

#[tokio::test]
async fn a_prefix_comes_into_memory() {
    let server = server().await;
    let reply = prefetch(&server, r#"{"bucket":"bucket","prefix":"a/"}"#).await;
    let bytes = (20 << 20) + 5;
    let whole = PrefetchReply { objects: 3, bytes, resident_bytes: bytes, ..Default::default() };
    assert_eq!(reply, whole);
    let misses = server.node.stats().tier.misses;
    let got = server.get("/bucket/a/1").send().await.expect(200);
    assert_eq!(got.body.len(), 20 << 20);
    assert_eq!(server.node.stats().tier.misses, misses);
    assert_eq!(server.node.stats().tier.chunks, 3);
}

#[tokio::test]
async fn named_keys_and_places_are_kept_to() {
    let server = server().await;
    let reply = prefetch(&server, r#"{"bucket":"bucket","keys":["b","none","a/2"]}"#).await;
    assert_eq!((reply.objects, reply.missing, reply.bytes), (2, 1, (3 << 20) + 5));
    assert_eq!(reply.resident_bytes, reply.bytes);
    let from = r#"{"bucket":"bucket","prefix":"a/","from":{"key":"a/1","chunk":1}}"#;
    let reply = prefetch(&server, from).await;
    assert_eq!((reply.objects, reply.bytes, reply.next), (3, (4 << 20) + 5, None));
    let gone = PrefetchPosition { key: "a/0".into(), chunk: 9 };
    let from = format!(
        r#"{{"bucket":"bucket","prefix":"a/","from":{}}}"#,
        serde_json::to_string(&gone).unwrap()
    );
    let reply = prefetch(&server, &from).await;
    assert_eq!((reply.objects, reply.missing), (3, 1));
}

#[tokio::test]
async fn refusals_have_their_codes() {
    let server = server().await;
    let post = |document: &str| server.post(PREFETCH).body(document.to_owned());
    for (document, status, code) in [
        (r#"{"bucket":"bucket"}"#, 400, "InvalidArgument"),
        (r#"{"bucket":"bucket","keys":[],"prefix":""}"#, 400, "InvalidArgument"),
        (r#"{"bucket":"other","prefix":""}"#, 404, "NoSuchBucket"),
        (r#"{"bucket":"B","prefix":""}"#, 400, "InvalidBucketName"),
        (r#"{"bucket":"bucket","keys":[""]}"#, 400, "InvalidArgument"),
        (
            r#"{"bucket":"bucket","prefix":"a","from":{"key":"b","chunk":0}}"#,
            400,
            "InvalidArgument",
        ),
        (r#"{"bucket":"bucket","prefix":"","planted":1}"#, 400, "MalformedJSON"),
        ("{", 400, "MalformedJSON"),
    ] {
        post(document).send().await.refused(status, code);
    }
    let open = post(r#"{"bucket":"bucket","prefix":""}"#).anonymous();
    open.send().await.refused(403, "AccessDenied");
    server.get(PREFETCH).send().await.refused(405, "MethodNotAllowed");
    assert_eq!(server.node.stats().tier.used_bytes, 0);
}
