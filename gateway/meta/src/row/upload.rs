//! Rows of uploads in progress, of their parts, and of what became of them.

use bytes::Bytes;
use keyway_proto::{Durability, ObjectKey, UploadId, VersionId};
use prost::Message;

use super::object::{
    HeadersRow, durability, headers_record, headers_row, id, name_record, name_row,
};
use super::packed::{
    kind_number, kind_numbered, pack_checksums, pack_extents, unpack_checksums, unpack_extents,
};
use super::{decode, encode};
use crate::record::{ChecksumType, Part, UnixMs, Upload};
use crate::store::MetaError;

#[derive(Clone, PartialEq, Message)]
struct UploadRow {
    #[prost(uint64, tag = "1")]
    initiated_ms: u64,
    #[prost(message, optional, tag = "2")]
    headers: Option<HeadersRow>,
    /// 0: none asked for.
    #[prost(uint32, tag = "3")]
    checksum_kind: u32,
    #[prost(bool, tag = "4")]
    composite: bool,
    #[prost(string, optional, tag = "5")]
    storage_class: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PartRow {
    #[prost(uint64, tag = "1")]
    size: u64,
    #[prost(string, tag = "2")]
    etag: String,
    #[prost(uint64, tag = "3")]
    modified_ms: u64,
    #[prost(bytes = "bytes", tag = "4")]
    checksums: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    extents: Bytes,
    #[prost(bool, tag = "6")]
    in_memory: bool,
    /// Empty for nobody.
    #[prost(string, tag = "7")]
    stored_by: String,
}

#[derive(Clone, PartialEq, Message)]
struct CompletionRow {
    #[prost(bytes = "bytes", tag = "1")]
    version: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    parts_digest: Bytes,
}

/// What became of a completed upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// The version it made.
    pub(crate) version: VersionId,
    /// Of bucket, key and named parts: the same question gets the same answer.
    pub(crate) parts_digest: Bytes,
}

pub(crate) fn encode_upload(upload: Upload) -> Bytes {
    let (headers, storage_class) = headers_row(upload.headers);
    encode(&UploadRow {
        initiated_ms: upload.initiated.0,
        headers,
        checksum_kind: upload.checksum.map_or(0, |(kind, _)| kind_number(kind).into()),
        composite: upload.checksum.is_some_and(|(_, kind)| kind == ChecksumType::Composite),
        storage_class,
    })
}

pub(crate) fn decode_upload(
    id: UploadId,
    key: ObjectKey,
    row: &Bytes,
) -> Result<Upload, MetaError> {
    let row: UploadRow = decode(row, "upload")?;
    let of = if row.composite { ChecksumType::Composite } else { ChecksumType::FullObject };
    let checksum = match row.checksum_kind {
        0 => None,
        number => {
            Some((kind_numbered(number).ok_or(MetaError::Damaged("upload's checksum kind"))?, of))
        }
    };
    Ok(Upload {
        id,
        key,
        initiated: UnixMs(row.initiated_ms),
        headers: headers_record(row.headers, row.storage_class)?,
        checksum,
    })
}

pub(crate) fn encode_part(part: Part) -> Bytes {
    encode(&PartRow {
        size: part.size,
        etag: part.etag,
        modified_ms: part.modified.0,
        checksums: pack_checksums(&part.checksums),
        extents: pack_extents(&part.extents),
        in_memory: part.durability == Durability::Memory,
        stored_by: name_row(part.stored_by.as_ref()),
    })
}

/// The part under the row's `key`.
pub(crate) fn decode_part(key: &[u8], row: &Bytes) -> Result<Part, MetaError> {
    let number: [u8; 2] = key.last_chunk().copied().ok_or(MetaError::Damaged("part number"))?;
    let row: PartRow = decode(row, "part")?;
    Ok(Part {
        number: u16::from_be_bytes(number),
        size: row.size,
        etag: row.etag,
        modified: UnixMs(row.modified_ms),
        checksums: unpack_checksums(&row.checksums)?,
        extents: unpack_extents(&row.extents)?,
        durability: durability(row.in_memory),
        stored_by: name_record(&row.stored_by),
    })
}

pub(crate) fn encode_completion(completion: &Completion) -> Bytes {
    encode(&CompletionRow {
        version: Bytes::copy_from_slice(&completion.version.to_bytes()),
        parts_digest: completion.parts_digest.clone(),
    })
}

pub(crate) fn decode_completion(row: &Bytes) -> Result<Completion, MetaError> {
    let row: CompletionRow = decode(row, "completion")?;
    Ok(Completion {
        version: VersionId::from_bytes(id(&row.version, "version id")?),
        parts_digest: row.parts_digest,
    })
}
