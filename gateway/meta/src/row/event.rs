//! The row of something that is to be told.

use bytes::Bytes;
use keyway_proto::BucketId;
use prost::Message;

use super::{decode, encode};
use crate::record::UnixMs;
use crate::store::MetaError;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventRow {
    #[prost(uint64, tag = "1")]
    pub(crate) bucket: u64,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(uint64, tag = "3")]
    pub(crate) at_ms: u64,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) document: Bytes,
}

pub(crate) fn encode_event(bucket: BucketId, key: &str, at: UnixMs, document: &Bytes) -> Bytes {
    let (key, document) = (key.to_owned(), document.clone());
    encode(&EventRow { bucket: bucket.0, key, at_ms: at.0, document })
}

pub(crate) fn decode_event(row: &Bytes) -> Result<EventRow, MetaError> {
    decode(row, "event")
}
