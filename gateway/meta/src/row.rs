//! Rows: how records are stored.
//!
//! One format byte, then a protobuf message: fields are added by new tags, and readers skip
//! those that they do not know. What is long and of one shape (extents, parts) is packed into
//! one field of fixed entries: decoding an object costs a few allocations however many
//! chunks it has, and a listing skips the field whole.

mod event;
mod object;
mod packed;
mod pending;
mod upload;

use bytes::{BufMut as _, Bytes, BytesMut};
use keyway_proto::{BucketId, TenantId, Verification, VersionId};
use prost::Message;

use crate::key::Counted;
use crate::record::{Bucket, BucketSettings, EtagPolicy, Extent, UnixMs, Versioning};
use crate::store::MetaError;

pub(crate) use event::{decode_event, encode_event};
pub(crate) use object::{
    Kind, StoredObject, decode_kind, decode_object, decode_summary, encode_marker, encode_object,
};
pub(crate) use packed::{pack_extents, unpack_extents};
pub(crate) use pending::{decode_pending, encode_pending};
pub(crate) use upload::{
    Completion, decode_completion, decode_part, decode_upload, encode_completion, encode_part,
    encode_upload,
};

/// The only format so far.
const FORMAT: u8 = 1;

/// What stands under [`crate::key::bucket_alive`]: a write that requires it requires that the
/// bucket keeps versions as the writer believes.
pub(crate) fn alive(versioning: Versioning) -> Bytes {
    Bytes::from_static(match versioning {
        Versioning::Unversioned => &[FORMAT],
        Versioning::Enabled => &[FORMAT, 1],
        Versioning::Suspended => &[FORMAT, 2],
    })
}

pub(crate) fn decode_alive(row: &[u8]) -> Result<Versioning, MetaError> {
    match row {
        [FORMAT] => Ok(Versioning::Unversioned),
        [FORMAT, 1] => Ok(Versioning::Enabled),
        [FORMAT, 2] => Ok(Versioning::Suspended),
        _ => Err(MetaError::Damaged("bucket's standing")),
    }
}

/// Bytes of what a version or a part holds, none of a delete marker; and the name of who stored it,
/// empty for nobody.
pub(crate) fn size_of(row: &Bytes, counted: Counted) -> Result<(u64, String), MetaError> {
    Ok(match counted {
        Counted::Version => {
            let VersionSize { size, stored_by } = decode(row, "version")?;
            (size, stored_by)
        }
        Counted::Part => {
            let PartSize { size, stored_by } = decode(row, "part")?;
            (size, stored_by)
        }
    })
}

/// The fields of a version's row that count.
#[derive(Clone, PartialEq, Message)]
struct VersionSize {
    #[prost(uint64, tag = "2")]
    size: u64,
    #[prost(string, tag = "15")]
    stored_by: String,
}

/// The fields of a part's row that count.
#[derive(Clone, PartialEq, Message)]
struct PartSize {
    #[prost(uint64, tag = "1")]
    size: u64,
    #[prost(string, tag = "7")]
    stored_by: String,
}

/// What stands where the key says all.
pub(crate) fn mark() -> Bytes {
    Bytes::from_static(&[FORMAT])
}

/// A document that is its writer's to read.
pub(crate) fn encode_document(document: &[u8]) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + document.len());
    row.put_u8(FORMAT);
    row.put_slice(document);
    row.freeze()
}

pub(crate) fn decode_document(row: &Bytes) -> Result<Bytes, MetaError> {
    match row.first() {
        Some(&FORMAT) => Ok(row.slice(1..)),
        _ => Err(MetaError::Damaged("document")),
    }
}

/// Which version is a key's null version.
pub(crate) fn encode_version_id(version: VersionId) -> Bytes {
    Bytes::copy_from_slice(&version.to_bytes())
}

pub(crate) fn decode_version_id(row: &[u8]) -> Result<VersionId, MetaError> {
    row.try_into().map(VersionId::from_bytes).map_err(|_| MetaError::Damaged("version id"))
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
    /// 0: never; 1: enabled; 2: suspended.
    #[prost(uint32, tag = "5")]
    versioning: u32,
    #[prost(bool, tag = "6")]
    object_lock: bool,
    /// 0: not chosen; 1: before delivery; 2: inline; 3: left to the client.
    #[prost(uint32, tag = "7")]
    verification: u32,
    #[prost(bool, tag = "8")]
    tells: bool,
    #[prost(bool, tag = "9")]
    encrypts: bool,
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
        versioning: match bucket.settings.versioning {
            Versioning::Unversioned => 0,
            Versioning::Enabled => 1,
            Versioning::Suspended => 2,
        },
        object_lock: bucket.settings.object_lock,
        verification: match bucket.settings.verification {
            None => 0,
            Some(Verification::BeforeDelivery) => 1,
            Some(Verification::Inline) => 2,
            Some(Verification::Client) => 3,
        },
        tells: bucket.settings.tells,
        encrypts: bucket.settings.encrypts,
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
            versioning: match row.versioning {
                0 => Versioning::Unversioned,
                1 => Versioning::Enabled,
                2 => Versioning::Suspended,
                _ => return Err(MetaError::Damaged("bucket's versioning")),
            },
            object_lock: row.object_lock,
            verification: match row.verification {
                0 => None,
                1 => Some(Verification::BeforeDelivery),
                2 => Some(Verification::Inline),
                3 => Some(Verification::Client),
                _ => return Err(MetaError::Damaged("bucket's verification")),
            },
            tells: row.tells,
            encrypts: row.encrypts,
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

#[cfg(test)]
mod tests {
    use keyway_proto::{
        Checksum, ChecksumKind, ChunkId, ChunkSpec, Durability, NodeId, ObjectKey, UploadId,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::key::Owner;
    use crate::record::{
        ChecksumType, DeleteMarker, Encryption, KeyHolder, Object, ObjectChecksum, ObjectHeaders,
        ObjectLock, Part, PartSummary, Retention, RetentionMode, Upload,
    };

    fn extent(n: u8) -> Extent {
        let chunk = ChunkSpec { id: ChunkId::from_bytes([n; 16]), length: u64::from(n) + 1 };
        Extent { chunk, node: NodeId(u32::from(n)) }
    }

    fn headers() -> ObjectHeaders {
        let text = |text: &str| Some(text.to_owned());
        ObjectHeaders {
            content_type: text("text/plain"),
            content_encoding: text("gzip"),
            content_language: text("de"),
            content_disposition: text("inline"),
            cache_control: text(""),
            expires: text("0"),
            storage_class: text("STANDARD"),
            website_redirect_location: text("/x"),
            user: [("a".to_owned(), "ä".to_owned()), ("b".to_owned(), String::new())].into(),
            tags: vec![("z".to_owned(), String::new()), ("a".to_owned(), "ä".to_owned())],
            lock: ObjectLock {
                retention: Some(Retention { mode: RetentionMode::Compliance, until: UnixMs(9) }),
                legal_hold: true,
            },
            encryption: Some(Encryption {
                holder: KeyHolder::Customer,
                sealed_key: Bytes::from_static(b"sealed"),
            }),
        }
    }

    fn object() -> Object {
        let checksum = Checksum::of(ChecksumKind::Sha256, b"x");
        Object {
            version: VersionId::from_bytes([1; 16]),
            named: false,
            size: 3,
            modified: UnixMs(4),
            etag: "etag".into(),
            checksum: Some(ObjectChecksum { value: checksum, kind: ChecksumType::Composite }),
            headers: headers(),
            parts: vec![
                PartSummary { number: 1, size: 2, checksum: Some(checksum) },
                PartSummary { number: 10_000, size: 1, checksum: None },
            ],
            extents: vec![extent(1), extent(255)],
            durability: Durability::Disk,
            stored_by: None,
        }
    }

    #[test]
    fn records_round_trip() {
        let id = UploadId::from_bytes([2; 16]);
        for owner in [Owner::Version(object().version), Owner::Upload(id)] {
            let row = encode_object(object(), owner);
            let stored = decode_object(&row).unwrap();
            assert_eq!((stored.object, stored.owner), (object(), owner));
            let summary = decode_summary(&row).unwrap();
            assert_eq!((summary.size, summary.modified), (3, UnixMs(4)));
            assert_eq!(summary.checksum, Some((ChecksumKind::Sha256, ChecksumType::Composite)));
            assert_eq!(summary.storage_class.as_deref(), Some("STANDARD"));
        }
        let key: ObjectKey = "k".parse().unwrap();
        let checksum = Some((ChecksumKind::Crc32c, ChecksumType::FullObject));
        let upload =
            Upload { id, key: key.clone(), initiated: UnixMs(5), headers: headers(), checksum };
        assert_eq!(decode_upload(id, key, &encode_upload(upload.clone())).unwrap(), upload);
        let part = Part {
            number: 258,
            size: 9,
            etag: "e".into(),
            modified: UnixMs(6),
            checksums: ChecksumKind::ALL.map(|kind| Checksum::of(kind, b"y")).to_vec(),
            extents: vec![extent(7)],
            durability: Durability::Memory,
            stored_by: Some("anna".into()),
        };
        let row_key = crate::key::part(id, part.number);
        assert_eq!(decode_part(&row_key, &encode_part(part.clone())).unwrap(), part);
        let mut by_service = object();
        by_service.headers.encryption =
            Some(Encryption { holder: KeyHolder::Service, sealed_key: Bytes::new() });
        let row = encode_object(by_service.clone(), Owner::Upload(id));
        assert_eq!(decode_object(&row).unwrap().object, by_service);
        let mut plain = object();
        plain.headers = ObjectHeaders::default();
        let row = encode_object(plain.clone(), Owner::Upload(id));
        assert_eq!(decode_object(&row).unwrap().object, plain);
        let pending =
            Object { durability: Durability::Memory, stored_by: Some("anna".into()), ..object() };
        let row = encode_object(pending.clone(), Owner::Upload(id));
        assert_eq!(decode_object(&row).unwrap().object, pending);
        assert!(decode_pending(&encode_pending(None)).unwrap().is_none());
        let (replaced, stored) =
            decode_pending(&encode_pending(Some(row.clone()))).unwrap().unwrap();
        assert_eq!((replaced, stored.object), (row, pending));
        assert_eq!(decode_extent(&encode_extent(&extent(3))).unwrap(), extent(3));
    }

    #[test]
    fn versions_round_trip() {
        let named = Object { named: true, ..object() };
        let row = encode_object(named.clone(), Owner::Version(named.version));
        assert_eq!(decode_object(&row).unwrap().object, named);
        let kind = decode_kind(&row).unwrap();
        assert_eq!((kind.version(), kind.named()), (named.version, true));
        for named in [false, true] {
            let marker = DeleteMarker { version: object().version, named, modified: UnixMs(7) };
            let row = encode_marker(&marker);
            assert!(matches!(decode_kind(&row).unwrap(), Kind::Marker(found) if found == marker));
            assert!(matches!(decode_object(&row), Err(MetaError::Damaged(_))));
        }
        assert_eq!(decode_version_id(&encode_version_id(named.version)).unwrap(), named.version);
        for versioning in [Versioning::Unversioned, Versioning::Enabled, Versioning::Suspended] {
            assert_eq!(decode_alive(&alive(versioning)).unwrap(), versioning);
            let bucket = Bucket {
                id: BucketId(1),
                tenant: TenantId::ROOT,
                name: "bucket".parse().unwrap(),
                created: UnixMs(2),
                settings: BucketSettings {
                    versioning,
                    object_lock: versioning == Versioning::Enabled,
                    verification: match versioning {
                        Versioning::Unversioned => None,
                        Versioning::Enabled => Some(Verification::BeforeDelivery),
                        Versioning::Suspended => Some(Verification::Client),
                    },
                    tells: versioning != Versioning::Suspended,
                    encrypts: versioning == Versioning::Suspended,
                    ..BucketSettings::default()
                },
            };
            let row = encode_bucket(&bucket);
            assert_eq!(decode_bucket(TenantId::ROOT, "bucket", &row).unwrap(), bucket);
        }
        // As it was written before buckets had versions.
        assert_eq!(&alive(Versioning::Unversioned)[..], [1]);
    }

    /// Bytes on disk, spelt out: a field that moves is a change of format.
    #[test]
    fn the_object_row_is_pinned() {
        let bare = Object {
            checksum: None,
            headers: ObjectHeaders::default(),
            parts: Vec::new(),
            extents: Vec::new(),
            ..object()
        };
        let row = encode_object(bare, Owner::Version(object().version));
        let mut expected = vec![1, 0x0a, 16];
        expected.extend([1; 16]);
        expected.extend([0x10, 3, 0x18, 4, 0x22, 4]);
        expected.extend(b"etag");
        assert_eq!(row, expected);
    }

    #[test]
    fn another_format_is_damaged_not_misread() {
        let row = encode_object(object(), Owner::Version(object().version));
        let mut newer = row.to_vec();
        newer[0] = 2;
        assert!(matches!(decode_object(&newer.into()), Err(MetaError::Damaged(_))));
        assert!(matches!(decode_object(&Bytes::new()), Err(MetaError::Damaged(_))));
    }

    /// Every decoder, over these bytes: it may refuse, it must not panic.
    fn decode_all(row: &Bytes) {
        let id = UploadId::from_bytes([0; 16]);
        let _ = decode_bucket(TenantId::ROOT, "bucket", row);
        let _ = decode_counter(row);
        let _ = decode_document(row);
        let _ = decode_extent(row);
        let _ = decode_object(row);
        let _ = decode_summary(row);
        let _ = decode_kind(row);
        let _ = decode_alive(row);
        let _ = decode_version_id(row);
        let _ = decode_upload(id, "k".parse().unwrap(), row);
        let _ = decode_part(row, row);
        let _ = decode_completion(row);
        let _ = decode_pending(row);
        let _ = decode_event(row);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(mut row: Vec<u8>) {
            decode_all(&row.clone().into());
            row.insert(0, FORMAT);
            decode_all(&row.into());
        }

        #[test]
        fn damaged_rows_never_panic(at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
            let mut row = encode_object(object(), Owner::Version(object().version)).to_vec();
            let length = row.len();
            row[at.index(length)] = value;
            row.truncate(cut.index(length) + 1);
            decode_all(&row.into());
        }
    }
}
