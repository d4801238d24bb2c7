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
    if let Ok(plan) = convert::direct_plan(bytes) {
        assert_eq!(convert::direct_plan(&convert::direct_plan_bytes(&plan)), Ok(plan));
    }
    if let Ok(message) = schema::OpenSessionRequest::decode(bytes)
        && let Ok((owner, request)) = convert::session_request(&message)
    {
        let again = convert::open_session_request(&owner, &request).expect("it was understood");
        assert_eq!(convert::session_request(&again), Ok((owner, request)));
    }
    if let Ok(message) = schema::CloseSessionsRequest::decode(bytes)
        && let Ok(selector) = convert::session_selector(&message)
    {
        let again = convert::close_sessions_request(NodeId(1), &selector);
        assert_eq!(convert::session_selector(&again), Ok(selector));
    }
    if let Ok(message) = schema::TransferReply::decode(bytes) {
        let _ = convert::relinquished(message.key());
    }
    if let Ok(chunks) = convert::chunk_ids(bytes) {
        assert_eq!(convert::pack_chunk_ids(&chunks), bytes);
    }
});
