//! The row of an object, its headers, and the summary that listings read.

use bytes::{Bytes, BytesMut};
use keyway_proto::{Durability, UploadId, VersionId};
use prost::Message;

use super::packed::{
    kind_numbered, pack_checksum, pack_extents, pack_parts, unpack_checksums, unpack_extents,
    unpack_parts,
};
use super::{decode, encode};
use crate::catalog::ObjectSummary;
use crate::key::Owner;
use crate::record::{ChecksumType, Object, ObjectChecksum, ObjectHeaders, UnixMs};
use crate::store::MetaError;

/// An object, and under which id it owns its chunks.
pub(crate) struct StoredObject {
    pub(crate) object: Object,
    pub(crate) owner: Owner,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectRow {
    #[prost(bytes = "bytes", tag = "1")]
    version: Bytes,
    #[prost(uint64, tag = "2")]
    size: u64,
    #[prost(uint64, tag = "3")]
    modified_ms: u64,
    #[prost(string, tag = "4")]
    etag: String,
    #[prost(bytes = "bytes", tag = "5")]
    checksum: Bytes,
    #[prost(bool, tag = "6")]
    composite: bool,
    #[prost(message, optional, tag = "7")]
    headers: Option<HeadersRow>,
    #[prost(bytes = "bytes", tag = "8")]
    parts: Bytes,
    #[prost(bytes = "bytes", tag = "9")]
    extents: Bytes,
    /// The upload that it was made of and that owns its chunks; empty: the version owns them.
    #[prost(bytes = "bytes", tag = "10")]
    upload: Bytes,
    #[prost(string, optional, tag = "11")]
    storage_class: Option<String>,
    #[prost(bool, tag = "12")]
    in_memory: bool,
}

/// The fields of [`ObjectRow`] that a listing tells.
#[derive(Clone, PartialEq, Message)]
struct SummaryRow {
    #[prost(uint64, tag = "2")]
    size: u64,
    #[prost(uint64, tag = "3")]
    modified_ms: u64,
    #[prost(string, tag = "4")]
    etag: String,
    #[prost(bytes = "bytes", tag = "5")]
    checksum: Bytes,
    #[prost(bool, tag = "6")]
    composite: bool,
    #[prost(string, optional, tag = "11")]
    storage_class: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeadersRow {
    #[prost(string, optional, tag = "1")]
    content_type: Option<String>,
    #[prost(string, optional, tag = "2")]
    content_encoding: Option<String>,
    #[prost(string, optional, tag = "3")]
    content_language: Option<String>,
    #[prost(string, optional, tag = "4")]
    content_disposition: Option<String>,
    #[prost(string, optional, tag = "5")]
    cache_control: Option<String>,
    #[prost(string, optional, tag = "6")]
    expires: Option<String>,
    #[prost(string, optional, tag = "7")]
    website_redirect_location: Option<String>,
    #[prost(btree_map = "string, string", tag = "8")]
    user: std::collections::BTreeMap<String, String>,
}

pub(crate) fn encode_object(object: Object, owner: Owner) -> Bytes {
    let mut checksum = BytesMut::new();
    if let Some(given) = &object.checksum {
        pack_checksum(Some(&given.value), &mut checksum);
    }
    let composite = object.checksum.as_ref().is_some_and(|sum| sum.kind == ChecksumType::Composite);
    let (headers, storage_class) = headers_row(object.headers);
    encode(&ObjectRow {
        version: Bytes::copy_from_slice(&object.version.to_bytes()),
        size: object.size,
        modified_ms: object.modified.0,
        etag: object.etag,
        checksum: checksum.freeze(),
        composite,
        headers,
        parts: pack_parts(&object.parts),
        extents: pack_extents(&object.extents),
        upload: match owner {
            Owner::Version(_) => Bytes::new(),
            Owner::Upload(id) => Bytes::copy_from_slice(&id.to_bytes()),
        },
        storage_class,
        in_memory: object.durability == Durability::Memory,
    })
}

pub(crate) fn decode_object(row: &Bytes) -> Result<StoredObject, MetaError> {
    let row: ObjectRow = decode(row, "object")?;
    let version = VersionId::from_bytes(id(&row.version, "version id")?);
    let owner = if row.upload.is_empty() {
        Owner::Version(version)
    } else {
        Owner::Upload(UploadId::from_bytes(id(&row.upload, "upload id")?))
    };
    let checksum = unpack_checksums(&row.checksum)?.into_iter().next();
    let object = Object {
        version,
        size: row.size,
        modified: UnixMs(row.modified_ms),
        etag: row.etag,
        checksum: checksum
            .map(|value| ObjectChecksum { value, kind: checksum_type(row.composite) }),
        headers: headers_record(row.headers, row.storage_class),
        parts: unpack_parts(&row.parts)?,
        extents: unpack_extents(&row.extents)?,
        durability: durability(row.in_memory),
    };
    Ok(StoredObject { object, owner })
}

pub(crate) fn decode_summary(row: &Bytes) -> Result<ObjectSummary, MetaError> {
    let row: SummaryRow = decode(row, "object")?;
    let kind = row.checksum.first().and_then(|number| kind_numbered((*number).into()));
    Ok(ObjectSummary {
        size: row.size,
        modified: UnixMs(row.modified_ms),
        etag: row.etag,
        checksum: kind.map(|kind| (kind, checksum_type(row.composite))),
        storage_class: row.storage_class,
    })
}

pub(super) fn headers_row(headers: ObjectHeaders) -> (Option<HeadersRow>, Option<String>) {
    let row = HeadersRow {
        content_type: headers.content_type,
        content_encoding: headers.content_encoding,
        content_language: headers.content_language,
        content_disposition: headers.content_disposition,
        cache_control: headers.cache_control,
        expires: headers.expires,
        website_redirect_location: headers.website_redirect_location,
        user: headers.user,
    };
    ((row != HeadersRow::default()).then_some(row), headers.storage_class)
}

pub(super) fn headers_record(
    row: Option<HeadersRow>,
    storage_class: Option<String>,
) -> ObjectHeaders {
    let row = row.unwrap_or_default();
    ObjectHeaders {
        content_type: row.content_type,
        content_encoding: row.content_encoding,
        content_language: row.content_language,
        content_disposition: row.content_disposition,
        cache_control: row.cache_control,
        expires: row.expires,
        storage_class,
        website_redirect_location: row.website_redirect_location,
        user: row.user,
    }
}

pub(super) fn durability(in_memory: bool) -> Durability {
    if in_memory { Durability::Memory } else { Durability::Disk }
}

fn checksum_type(composite: bool) -> ChecksumType {
    if composite { ChecksumType::Composite } else { ChecksumType::FullObject }
}

pub(super) fn id(bytes: &[u8], what: &'static str) -> Result<[u8; 16], MetaError> {
    bytes.try_into().map_err(|_| MetaError::Damaged(what))
}
