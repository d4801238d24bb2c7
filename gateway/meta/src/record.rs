//! What the catalog keeps: buckets, objects, uploads, parts.

use std::collections::BTreeMap;

use keyway_proto::{
    BucketId, BucketName, Checksum, ChecksumKind, ChunkSpec, Durability, NodeId, ObjectKey,
    TenantId, UploadId, VersionId,
};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMs(pub u64);

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Never reused.
    pub id: BucketId,
    /// Owner.
    pub tenant: TenantId,
    /// Name, unique within the tenant.
    pub name: BucketName,
    /// When it was made.
    pub created: UnixMs,
    /// What its owner chose.
    pub settings: BucketSettings,
}

/// What a bucket's owner chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSettings {
    /// Region given at creation; empty for the server's own.
    pub region: String,
    /// How ETags are made.
    pub etag: EtagPolicy,
}

/// How the ETag of a single-part object is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtagPolicy {
    /// The MD5 of the bytes: what older tools compare with.
    #[default]
    Md5,
    /// Derived from the CRC64NVME that is computed anyway: an ETag that is not an MD5, as S3's
    /// own are for encrypted objects. Saves about 1.7 CPU seconds per GiB.
    Crc64Nvme,
}

/// A committed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The version.
    pub version: VersionId,
    /// Size in bytes.
    pub size: u64,
    /// Last change.
    pub modified: UnixMs,
    /// ETag without quotes.
    pub etag: String,
    /// The checksum that S3 reports, if any.
    pub checksum: Option<ObjectChecksum>,
    /// System headers and user metadata.
    pub headers: ObjectHeaders,
    /// Sizes and checksums of the parts, in order; empty for an object put in one piece.
    pub parts: Vec<PartSummary>,
    /// Where the bytes are, in order.
    pub extents: Vec<Extent>,
    /// What the bytes survive. An object in memory alone becomes durable, or what it replaced
    /// comes back.
    pub durability: Durability,
}

/// A checksum over an object, and how it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectChecksum {
    /// The value.
    pub value: Checksum,
    /// Over all bytes, or over the parts' checksums.
    pub kind: ChecksumType,
}

/// S3's two types of checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumType {
    /// Over all bytes of the object.
    FullObject,
    /// Over the concatenated checksums of its parts; reported with `-N` for N parts.
    Composite,
}

/// The headers stored with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectHeaders {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Content-Encoding`, without `aws-chunked`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Expires`, as given.
    pub expires: Option<String>,
    /// `x-amz-storage-class`, as given.
    pub storage_class: Option<String>,
    /// `x-amz-website-redirect-location`.
    pub website_redirect_location: Option<String>,
    /// `x-amz-meta-*`, names in lowercase without the prefix.
    pub user: BTreeMap<String, String>,
}

/// A run of bytes of an object: one chunk on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The chunk, whole.
    pub chunk: ChunkSpec,
    /// The node that holds it.
    pub node: NodeId,
}

/// A part of a completed multipart object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSummary {
    /// Number as the client gave it.
    pub number: u16,
    /// Size in bytes.
    pub size: u64,
    /// Checksum, in the upload's kind.
    pub checksum: Option<Checksum>,
}

/// A multipart upload in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub id: UploadId,
    /// The object it will become.
    pub key: ObjectKey,
    /// When it was begun.
    pub initiated: UnixMs,
    /// Headers for the object.
    pub headers: ObjectHeaders,
    /// The kind of checksum that its parts carry, and the type of the object's.
    pub checksum: Option<(ChecksumKind, ChecksumType)>,
}

/// An uploaded part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// 1 to 10,000.
    pub number: u16,
    /// Size in bytes.
    pub size: u64,
    /// ETag without quotes.
    pub etag: String,
    /// When it was stored.
    pub modified: UnixMs,
    /// All checksums known of it: the upload's kind, and CRC64NVME.
    pub checksums: Vec<Checksum>,
    /// Where the bytes are, in order.
    pub extents: Vec<Extent>,
    /// What the bytes survive. A part in memory alone becomes durable, or goes.
    pub durability: Durability,
}
