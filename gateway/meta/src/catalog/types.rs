//! What the catalog is asked and answers.

use keyway_proto::{Checksum, ChecksumKind, ObjectKey, TenantId, UploadId, VersionId};

use crate::record::{ChecksumType, DeleteMarker, Part, StoredBy, UnixMs, Upload, VersionName};
use crate::store::MetaError;

/// Why the catalog refused: each maps to one S3 code.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// `NoSuchBucket`.
    #[error("no such bucket")]
    NoSuchBucket,
    /// `BucketAlreadyOwnedByYou`.
    #[error("the bucket exists already")]
    BucketExists,
    /// `BucketNotEmpty`: objects remain.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// `NoSuchKey`.
    #[error("no such key")]
    NoSuchKey,
    /// `NoSuchVersion`.
    #[error("no such version")]
    NoSuchVersion,
    /// `NoSuchKey`: the current version is this delete marker.
    #[error("the object was deleted")]
    Deleted(DeleteMarker),
    /// `MethodNotAllowed`: the version asked for is this delete marker.
    #[error("the version is a delete marker")]
    IsDeleteMarker(DeleteMarker),
    /// `AccessDenied`: the version is locked.
    #[error("the version is locked")]
    Locked,
    /// `InvalidBucketState`: the bucket keeps no versions, or must not cease to.
    #[error("the bucket's state does not allow it")]
    InvalidBucketState,
    /// `NoSuchUpload`.
    #[error("no such upload")]
    NoSuchUpload,
    /// `InvalidPart`: a part is missing or its ETag or checksum differs.
    #[error("part {0} is missing or differs from the one named")]
    InvalidPart(u16),
    /// `InvalidPartOrder`: part numbers do not ascend.
    #[error("the parts are not in ascending order")]
    InvalidPartOrder,
    /// `EntityTooSmall`: a part but the last is under 5 MiB.
    #[error("part {0} is too small")]
    PartTooSmall(u16),
    /// `EntityTooLarge`: the whole would pass 5 TiB.
    #[error("the object would be too large")]
    TooLarge,
    /// `QuotaExceeded`: the tenant would store more than it may.
    #[error("the tenant would store more than it may")]
    QuotaExceeded,
    /// `PreconditionFailed`: a conditional write met another object.
    #[error("the condition does not hold")]
    PreconditionFailed,
    /// `BadDigest`: the checksum given for the whole differs from the one that follows from
    /// the parts.
    #[error("the checksum given for the object is not that of its parts")]
    ChecksumMismatch,
    /// The sweeper has given these chunks up: more time passed between their storing and
    /// their publishing than its grace period. The bytes must be stored anew.
    #[error("the chunks were swept before they were published")]
    Swept,
    /// What is copied or completed is in memory alone. It must be settled first.
    #[error("the bytes are not durable yet")]
    NotDurable,
    /// The store's own failure.
    #[error(transparent)]
    Store(#[from] MetaError),
}

/// Whose usage: a tenant's, or that of one of its users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The tenant.
    pub tenant: TenantId,
    /// The user; none for all that is in the tenant's buckets.
    pub user: Option<StoredBy>,
}

/// What somebody stores, or more of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of objects, of their other versions, and of parts.
    pub bytes: u64,
    /// How many those are, and delete markers with them.
    pub objects: u64,
}

/// What somebody may store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes, if they are bounded.
    pub bytes: Option<u64>,
    /// Objects, versions and parts, if they are.
    pub objects: Option<u64>,
}

/// What must hold of the current object for a write to take place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// Nothing.
    #[default]
    None,
    /// There is no object (`If-None-Match: *`).
    Absent,
    /// There is one with this ETag (`If-Match`); `*` is any object. S3 answers 404 when
    /// there is none.
    EtagIs(String),
    /// The version is this one, whatever clients call it.
    VersionIs(VersionId),
}

/// A listing's question. Texts are raw, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only keys that begin with it.
    pub prefix: String,
    /// Groups keys up to its first occurrence after the prefix; empty: none.
    pub delimiter: String,
    /// Only keys and groups strictly after it (`marker`, `start-after`, or the decoded
    /// continuation token).
    pub after: String,
    /// At most so many keys and groups together.
    pub limit: usize,
}

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects, ascending by key.
    pub objects: Vec<(ObjectKey, ObjectSummary)>,
    /// Groups, ascending.
    pub common_prefixes: Vec<String>,
    /// Where the next page begins (`after` of the next question); `None` at the end.
    pub next: Option<String>,
}

/// One page of a listing of versions: by key, each key's newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionPage {
    /// Versions and delete markers.
    pub versions: Vec<VersionEntry>,
    /// Groups, ascending.
    pub common_prefixes: Vec<String>,
    /// Key and version markers of the next page; `None` at the end.
    pub next: Option<(String, Option<VersionName>)>,
}

/// A version in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionEntry {
    /// Its key.
    pub key: ObjectKey,
    /// Its id.
    pub version: VersionId,
    /// Its name.
    pub name: VersionName,
    /// Whether it is its key's newest.
    pub is_latest: bool,
    /// When it was made.
    pub modified: UnixMs,
    /// The object; `None` for a delete marker.
    pub object: Option<ObjectSummary>,
}

/// What a listing tells of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSummary {
    /// Size in bytes.
    pub size: u64,
    /// Last change.
    pub modified: UnixMs,
    /// ETag without quotes.
    pub etag: String,
    /// Kind and type of the checksum, if any.
    pub checksum: Option<(ChecksumKind, ChecksumType)>,
    /// Storage class, if given.
    pub storage_class: Option<String>,
}

/// One page of uploads in progress, ascending by key, then by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// Uploads.
    pub uploads: Vec<Upload>,
    /// Groups, ascending.
    pub common_prefixes: Vec<String>,
    /// Key and upload id markers of the next page; `None` at the end.
    pub next: Option<(String, Option<UploadId>)>,
}

/// One page of parts, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartPage {
    /// Parts.
    pub parts: Vec<Part>,
    /// Part number marker of the next page; `None` at the end.
    pub next: Option<u16>,
}

/// A part as `CompleteMultipartUpload` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPart {
    /// Number.
    pub number: u16,
    /// ETag without quotes.
    pub etag: String,
    /// Checksum, if given.
    pub checksum: Option<Checksum>,
}
