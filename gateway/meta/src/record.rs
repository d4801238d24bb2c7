//! What the catalog keeps: buckets, objects, uploads, parts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::{
    BucketId, BucketName, Checksum, ChecksumKind, ChunkSpec, Durability, NodeId, ObjectKey,
    TenantId, UploadId, Verification, VersionId,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketSettings {
    /// Region given at creation; empty for the server's own.
    pub region: String,
    /// How ETags are made.
    pub etag: EtagPolicy,
    /// Whether what is overwritten or deleted is kept.
    pub versioning: Versioning,
    /// Whether versions can be locked. Never taken back.
    pub object_lock: bool,
    /// When what is read is compared with its checksums; as the owner has it unless it is said.
    pub verification: Option<Verification>,
    /// Whether somebody asked to be told of changes: then there is a
    /// [`ConfigurationKind::Notification`].
    pub tells: bool,
    /// Whether what comes without a word about it is encrypted, under keys of the service's.
    pub encrypts: bool,
}

/// Whether a bucket keeps what is overwritten or deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versioning {
    /// It does not, and never did: each key has its null version at most.
    #[default]
    Unversioned,
    /// Each write makes a version with an id of its own.
    Enabled,
    /// Each write makes the key's null version, in place of the one before; versions with ids
    /// stay.
    Suspended,
}

/// A document that configures a bucket, by what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigurationKind {
    /// Tags of the bucket.
    Tagging,
    /// Who may ask from other origins.
    Cors,
    /// What locks new versions.
    ObjectLock,
    /// What becomes of objects in time.
    Lifecycle,
    /// Who may do what, as its owner wrote it.
    Policy,
    /// What of policies is not for everybody.
    PublicAccessBlock,
    /// Who owns objects.
    Ownership,
    /// Who is told of changes.
    Notification,
}

impl ConfigurationKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Tagging,
        Self::Cors,
        Self::ObjectLock,
        Self::Lifecycle,
        Self::Policy,
        Self::PublicAccessBlock,
        Self::Ownership,
        Self::Notification,
    ];

    /// The number in the rows' keys: never reused.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tagging => 1,
            Self::Cors => 2,
            Self::ObjectLock => 3,
            Self::Lifecycle => 4,
            Self::Policy => 5,
            Self::PublicAccessBlock => 6,
            Self::Ownership => 7,
            Self::Notification => 8,
        }
    }
}

/// How a client names a version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionName {
    /// The one that was written without an id.
    Null,
    /// The one with this id.
    Id(VersionId),
}

impl VersionName {
    /// The name that a client gives; `None` when it is none of ours.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "null" {
            return Some(Self::Null);
        }
        // One form alone is ours, though the parser knows several of the same id.
        text.parse().ok().filter(|id: &VersionId| id.to_string() == text).map(Self::Id)
    }
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Id(id) => fmt::Display::fmt(id, f),
        }
    }
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
    /// Whether clients know the version by its id. One that they do not is the null version of
    /// its key, of which there is one at most.
    pub named: bool,
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
    /// Whose usage it counts in, beside the tenant's.
    pub stored_by: Option<StoredBy>,
}

/// The name of the user who stored something in a bucket of its own tenant. Of what a tenant itself
/// stores, a role, or somebody of another tenant, nobody is named.
pub type StoredBy = Arc<str>;

impl Object {
    /// How clients name the version.
    pub fn name(&self) -> VersionName {
        if self.named { VersionName::Id(self.version) } else { VersionName::Null }
    }
}

/// A version that says that there is no object any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteMarker {
    /// The version.
    pub version: VersionId,
    /// As [`Object::named`].
    pub named: bool,
    /// When the object was deleted.
    pub modified: UnixMs,
}

impl DeleteMarker {
    /// How clients name the version.
    pub fn name(&self) -> VersionName {
        if self.named { VersionName::Id(self.version) } else { VersionName::Null }
    }
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
    /// Tags, in the client's order; they can be changed later.
    pub tags: Vec<(String, String)>,
    /// What keeps the version from being deleted; it can be changed later.
    pub lock: ObjectLock,
    /// How the bytes are encrypted, if they are.
    pub encryption: Option<Encryption>,
}

/// How the bytes of an object, or of an upload's parts, are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// Who can open the key.
    pub holder: KeyHolder,
    /// The key to the bytes, as it was sealed for this bucket and object key. It is opaque here.
    pub sealed_key: Bytes,
}

/// Who can open the key to an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHolder {
    /// The service, with the key that it keeps for secrets (SSE-S3).
    Service,
    /// Whoever has the key that came with the request that stored it (SSE-C).
    Customer,
}

/// What keeps a version from being deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectLock {
    /// Until a time.
    pub retention: Option<Retention>,
    /// Until it is taken back.
    pub legal_hold: bool,
}

/// Keeps a version until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Whether it can be lifted.
    pub mode: RetentionMode,
    /// The version may be deleted from then on.
    pub until: UnixMs,
}

/// S3's two kinds of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionMode {
    /// Those who may bypass it can shorten or lift it.
    Governance,
    /// Nobody can; it can be prolonged.
    Compliance,
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
    /// As [`Object::stored_by`].
    pub stored_by: Option<StoredBy>,
}
