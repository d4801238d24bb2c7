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
use crate::record::{
    ChecksumType, DeleteMarker, Encryption, KeyHolder, Object, ObjectChecksum, ObjectHeaders,
    ObjectLock, Retention, RetentionMode, StoredBy, UnixMs, VersionName,
};
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
    /// Whether clients know it by its id; the null version otherwise, as all were before buckets
    /// had versions.
    #[prost(bool, tag = "13")]
    named: bool,
    /// Whether it says that the object was deleted; then `version`, `modified_ms` and `named`
    /// are all that it has.
    #[prost(bool, tag = "14")]
    delete_marker: bool,
    /// Empty for nobody.
    #[prost(string, tag = "15")]
    stored_by: String,
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

/// The fields of [`ObjectRow`] that tell what a version is.
#[derive(Clone, PartialEq, Message)]
struct VersionRow {
    #[prost(bytes = "bytes", tag = "1")]
    version: Bytes,
    #[prost(uint64, tag = "3")]
    modified_ms: u64,
    #[prost(bool, tag = "13")]
    named: bool,
    #[prost(bool, tag = "14")]
    delete_marker: bool,
}

/// Which version a row holds, and whether it is a delete marker.
pub(crate) enum Kind {
    Object { version: VersionId, named: bool },
    Marker(DeleteMarker),
}

impl Kind {
    pub(crate) fn version(&self) -> VersionId {
        match self {
            Self::Object { version, .. } => *version,
            Self::Marker(marker) => marker.version,
        }
    }

    pub(crate) fn named(&self) -> bool {
        match self {
            Self::Object { named, .. } => *named,
            Self::Marker(marker) => marker.named,
        }
    }

    /// How clients name the version.
    pub(crate) fn name(&self) -> VersionName {
        if self.named() { VersionName::Id(self.version()) } else { VersionName::Null }
    }
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
    #[prost(message, repeated, tag = "9")]
    tags: Vec<TagRow>,
    /// 0: none; 1: governance; 2: compliance.
    #[prost(uint32, tag = "10")]
    retention: u32,
    #[prost(uint64, tag = "11")]
    retain_until_ms: u64,
    #[prost(bool, tag = "12")]
    legal_hold: bool,
    /// 0: not encrypted; 1: the service has the key; 2: a customer has it.
    #[prost(uint32, tag = "13")]
    key_holder: u32,
    #[prost(bytes = "bytes", tag = "14")]
    sealed_key: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TagRow {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

pub(crate) fn encode_marker(marker: &DeleteMarker) -> Bytes {
    encode(&ObjectRow {
        version: Bytes::copy_from_slice(&marker.version.to_bytes()),
        modified_ms: marker.modified.0,
        named: marker.named,
        delete_marker: true,
        ..ObjectRow::default()
    })
}

/// What a row of versions holds, without the object.
pub(crate) fn decode_kind(row: &Bytes) -> Result<Kind, MetaError> {
    let row: VersionRow = decode(row, "version")?;
    let version = VersionId::from_bytes(id(&row.version, "version id")?);
    let (named, modified) = (row.named, UnixMs(row.modified_ms));
    Ok(if row.delete_marker {
        Kind::Marker(DeleteMarker { version, named, modified })
    } else {
        Kind::Object { version, named }
    })
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
        named: object.named,
        delete_marker: false,
        stored_by: name_row(object.stored_by.as_ref()),
    })
}

pub(crate) fn decode_object(row: &Bytes) -> Result<StoredObject, MetaError> {
    let row: ObjectRow = decode(row, "object")?;
    if row.delete_marker {
        return Err(MetaError::Damaged("object that is a delete marker"));
    }
    let version = VersionId::from_bytes(id(&row.version, "version id")?);
    let owner = if row.upload.is_empty() {
        Owner::Version(version)
    } else {
        Owner::Upload(UploadId::from_bytes(id(&row.upload, "upload id")?))
    };
    let checksum = unpack_checksums(&row.checksum)?.into_iter().next();
    let object = Object {
        version,
        named: row.named,
        size: row.size,
        modified: UnixMs(row.modified_ms),
        etag: row.etag,
        checksum: checksum
            .map(|value| ObjectChecksum { value, kind: checksum_type(row.composite) }),
        headers: headers_record(row.headers, row.storage_class)?,
        parts: unpack_parts(&row.parts)?,
        extents: unpack_extents(&row.extents)?,
        durability: durability(row.in_memory),
        stored_by: name_record(&row.stored_by),
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
    let retention = headers.lock.retention;
    let (key_holder, sealed_key) = match headers.encryption {
        None => (0, Bytes::new()),
        Some(Encryption { holder: KeyHolder::Service, sealed_key }) => (1, sealed_key),
        Some(Encryption { holder: KeyHolder::Customer, sealed_key }) => (2, sealed_key),
    };
    let row = HeadersRow {
        content_type: headers.content_type,
        content_encoding: headers.content_encoding,
        content_language: headers.content_language,
        content_disposition: headers.content_disposition,
        cache_control: headers.cache_control,
        expires: headers.expires,
        website_redirect_location: headers.website_redirect_location,
        user: headers.user,
        tags: headers.tags.into_iter().map(|(key, value)| TagRow { key, value }).collect(),
        retention: match retention.map(|retention| retention.mode) {
            None => 0,
            Some(RetentionMode::Governance) => 1,
            Some(RetentionMode::Compliance) => 2,
        },
        retain_until_ms: retention.map_or(0, |retention| retention.until.0),
        legal_hold: headers.lock.legal_hold,
        key_holder,
        sealed_key,
    };
    ((row != HeadersRow::default()).then_some(row), headers.storage_class)
}

pub(super) fn headers_record(
    row: Option<HeadersRow>,
    storage_class: Option<String>,
) -> Result<ObjectHeaders, MetaError> {
    let row = row.unwrap_or_default();
    let mode = match row.retention {
        0 => None,
        1 => Some(RetentionMode::Governance),
        2 => Some(RetentionMode::Compliance),
        _ => return Err(MetaError::Damaged("retention mode")),
    };
    let until = UnixMs(row.retain_until_ms);
    let holder = match row.key_holder {
        0 => None,
        1 => Some(KeyHolder::Service),
        2 => Some(KeyHolder::Customer),
        // Bytes must not be taken for what they are not.
        _ => return Err(MetaError::Damaged("key holder")),
    };
    let sealed_key = row.sealed_key;
    Ok(ObjectHeaders {
        content_type: row.content_type,
        content_encoding: row.content_encoding,
        content_language: row.content_language,
        content_disposition: row.content_disposition,
        cache_control: row.cache_control,
        expires: row.expires,
        storage_class,
        website_redirect_location: row.website_redirect_location,
        user: row.user,
        tags: row.tags.into_iter().map(|tag| (tag.key, tag.value)).collect(),
        lock: ObjectLock {
            retention: mode.map(|mode| Retention { mode, until }),
            legal_hold: row.legal_hold,
        },
        encryption: holder.map(|holder| Encryption { holder, sealed_key }),
    })
}

pub(super) fn name_row(name: Option<&StoredBy>) -> String {
    name.map_or_else(String::new, |name| name.as_ref().to_owned())
}

pub(super) fn name_record(name: &str) -> Option<StoredBy> {
    (!name.is_empty()).then(|| name.into())
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
