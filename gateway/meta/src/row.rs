//! Rows: how records are stored.
//!
//! One format byte, then a protobuf message: fields are added by new tags, and readers skip
//! those that they do not know. What is long and of one shape (extents, parts) is packed into
//! one field of fixed entries: decoding an object costs a few allocations however many
//! chunks it has, and a listing skips the field whole.

mod object;
mod packed;
mod upload;

use bytes::{BufMut as _, Bytes, BytesMut};
use keyway_proto::{BucketId, TenantId};
use prost::Message;

use crate::record::{Bucket, BucketSettings, EtagPolicy, Extent, UnixMs};
use crate::store::MetaError;

pub(crate) use object::{StoredObject, decode_object, decode_summary, encode_object};
pub(crate) use packed::{pack_extents, unpack_extents};
pub(crate) use upload::{
    Completion, decode_completion, decode_part, decode_upload, encode_completion, encode_part,
    encode_upload,
};

/// The only format so far.
const FORMAT: u8 = 1;

/// What stands under [`crate::key::bucket_alive`].
pub(crate) fn alive() -> Bytes {
    Bytes::from_static(&[FORMAT])
}

pub(crate) fn encode_counter(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

pub(crate) fn decode_counter(row: &[u8]) -> Result<u64, MetaError> {
    row.try_into().map(u64::from_be_bytes).map_err(|_| MetaError::Damaged("counter"))
}

/// A chunk, as the owners and the garbage queue keep it.
pub(crate) fn encode_extent(extent: &Extent) -> Bytes {
    pack_extents(std::slice::from_ref(extent))
}

pub(crate) fn decode_extent(row: &[u8]) -> Result<Extent, MetaError> {
    match unpack_extents(row)?.as_slice() {
        [extent] => Ok(*extent),
        _ => Err(MetaError::Damaged("extent")),
    }
}

#[derive(Clone, PartialEq, Message)]
struct BucketRow {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    created_ms: u64,
    #[prost(string, tag = "3")]
    region: String,
    /// 0: MD5; 1: CRC64NVME.
    #[prost(uint32, tag = "4")]
    etag: u32,
}

pub(crate) fn encode_bucket(bucket: &Bucket) -> Bytes {
    encode(&BucketRow {
        id: bucket.id.0,
        created_ms: bucket.created.0,
        region: bucket.settings.region.clone(),
        etag: match bucket.settings.etag {
            EtagPolicy::Md5 => 0,
            EtagPolicy::Crc64Nvme => 1,
        },
    })
}

pub(crate) fn decode_bucket(
    tenant: TenantId,
    name: &str,
    row: &Bytes,
) -> Result<Bucket, MetaError> {
    let row: BucketRow = decode(row, "bucket")?;
    Ok(Bucket {
        id: BucketId(row.id),
        tenant,
        name: name.parse().map_err(|_| MetaError::Damaged("bucket name"))?,
        created: UnixMs(row.created_ms),
        settings: BucketSettings {
            region: row.region,
            etag: match row.etag {
                0 => EtagPolicy::Md5,
                1 => EtagPolicy::Crc64Nvme,
                _ => return Err(MetaError::Damaged("bucket ETag policy")),
            },
        },
    })
}

fn encode(message: &impl Message) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + message.encoded_len());
    row.put_u8(FORMAT);
    message.encode(&mut row).expect("the buffer grows as needed");
    row.freeze()
}

fn decode<M: Message + Default>(row: &Bytes, what: &'static str) -> Result<M, MetaError> {
    match row.first() {
        Some(&FORMAT) => M::decode(row.slice(1..)).map_err(|_| MetaError::Damaged(what)),
        _ => Err(MetaError::Damaged(what)),
    }
}
