//! The headers that answer a token.

use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue};
use keyway_proto::NodeId;

use super::Moved;

/// The header that tells how a token was met.
pub(in crate::s3) const REPLY: HeaderName = HeaderName::from_static("x-amz-rdma-reply");
/// Declined: the bytes travel over HTTP.
pub(in crate::s3) const DECLINED: HeaderValue = HeaderValue::from_static("501");

const BYTES: HeaderName = HeaderName::from_static("x-amz-rdma-bytes-transferred");
const PATH: HeaderName = HeaderName::from_static("x-keyway-rdma-path");
const STRENGTH: HeaderName = HeaderName::from_static("x-keyway-rdma-strength");
const CHECKSUM: HeaderName = HeaderName::from_static("x-keyway-rdma-checksum");
/// The header that tells what took how long, in milliseconds, as W3C's Server Timing has it.
pub(in crate::s3) const TIMING: HeaderName = HeaderName::from_static("server-timing");
const NODE: HeaderName = HeaderName::from_static("x-keyway-node");

impl Moved {
    /// Tells of a transfer in an answer of this status, whose body is empty.
    pub(in crate::s3) fn tell(&self, status: u16, headers: &mut HeaderMap) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        headers.insert(REPLY, HeaderValue::from(status));
        headers.insert(BYTES, HeaderValue::from(self.bytes));
        headers.insert(PATH, HeaderValue::from_static(self.path.as_str()));
        headers.insert(STRENGTH, HeaderValue::from_static(self.strength.as_str()));
        let checksum = format!("crc64nvme={}", self.checksum.to_base64());
        if let Ok(value) = HeaderValue::try_from(checksum) {
            headers.insert(CHECKSUM, value);
        }
        // All of the request, and the node's part.
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        let (all, node) = (ms(self.since.elapsed()), ms(self.node_took));
        if let Ok(value) =
            HeaderValue::try_from(format!("gateway;dur={all:.3}, node;dur={node:.3}"))
        {
            headers.insert(TIMING, value);
        }
    }
}

/// Tells that the body goes over HTTP, and which node has the bytes where a session with that
/// one would have served.
pub(super) fn declined(holder: Option<NodeId>, headers: &mut HeaderMap) {
    headers.insert(REPLY, DECLINED);
    if let Some(node) = holder {
        headers.insert(NODE, HeaderValue::from(node.0));
    }
}
