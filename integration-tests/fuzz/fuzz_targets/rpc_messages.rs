//! Messages of the node RPC: whatever is understood means the same when said again.
#![no_main]

use keyway_proto::NodeId;
use keyway_rpc::{convert, schema};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = schema::GetRequest::decode(bytes)
        && let Ok(plan) = convert::get_plan(&message)
    {
        let again = convert::get_plan(&convert::get_request(NodeId(1), &plan));
        assert_eq!(format!("{:?}", again.ok()), format!("{:?}", Some(plan)));
    }
    if let Ok(message) = schema::PutPlan::decode(bytes)
        && let Ok(plan) = convert::put_plan(&message)
    {
        let again = convert::put_plan(&convert::put_request(NodeId(1), &plan));
        assert_eq!(format!("{:?}", again.ok()), format!("{:?}", Some(plan)));
    }
    if let Ok(message) = schema::Receipt::decode(bytes) {
        let _ = convert::receipt(&message);
    }
    if let Ok(message) = schema::Chunk::decode(bytes) {
        let _ = convert::chunk_spec(&message);
    }
    if let Ok(chunks) = convert::chunk_ids(bytes) {
        assert_eq!(convert::pack_chunk_ids(&chunks), bytes);
    }
});
