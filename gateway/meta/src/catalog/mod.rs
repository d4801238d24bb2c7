//! S3's semantics over any [`MetaStore`].

use std::sync::Arc;

use keyway_proto::{BucketName, ChunkId, ObjectKey, TenantId, UploadId};

use crate::record::*;
use crate::store::{MetaError, MetaStore};

/// The catalog.
pub struct Catalog {
    store: Arc<dyn MetaStore>,
}

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
    /// `PreconditionFailed`: a conditional write met another object.
    #[error("the condition does not hold")]
    PreconditionFailed,
    /// `BadDigest`: the checksum given for the whole differs from the one that follows from
    /// the parts.
    #[error("the checksum given for the object is not that of its parts")]
    ChecksumMismatch,
    /// The store's own failure.
    #[error(transparent)]
    Store(#[from] MetaError),
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
    pub checksum: Option<(keyway_proto::ChecksumKind, ChecksumType)>,
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
    pub checksum: Option<keyway_proto::Checksum>,
}

#[allow(unused_variables, clippy::todo)]
impl Catalog {
    /// A catalog over `store`.
    pub fn new(store: Arc<dyn MetaStore>) -> Self {
        Self { store }
    }

    /// Makes a bucket.
    pub async fn create_bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
        settings: BucketSettings,
        now: UnixMs,
    ) -> Result<Bucket, CatalogError> {
        todo!()
    }

    /// The bucket of that name.
    pub async fn bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
    ) -> Result<Bucket, CatalogError> {
        todo!()
    }

    /// A tenant's buckets with names after `after`, ascending.
    pub async fn buckets(
        &self,
        tenant: TenantId,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Bucket>, CatalogError> {
        todo!()
    }

    /// Deletes an empty bucket. Uploads in progress are aborted with it.
    pub async fn delete_bucket(
        &self,
        tenant: TenantId,
        name: &BucketName,
    ) -> Result<(), CatalogError> {
        todo!()
    }

    /// The current object under `key`.
    pub async fn object(&self, bucket: &Bucket, key: &ObjectKey) -> Result<Object, CatalogError> {
        todo!()
    }

    /// Makes `object` the current one under `key`: the one commit point of a PUT.
    pub async fn publish(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        object: Object,
        condition: WriteCondition,
    ) -> Result<(), CatalogError> {
        todo!()
    }

    /// Publishes an object that shares `source`'s chunks under `key`; `object` carries the
    /// same extents. Fails with `NoSuchKey` when the source's version is no longer there.
    pub async fn publish_copy(
        &self,
        source: (&Bucket, &ObjectKey),
        target: (&Bucket, &ObjectKey),
        object: Object,
        condition: WriteCondition,
    ) -> Result<(), CatalogError> {
        todo!()
    }

    /// Deletes the object under `key`. Deleting what is not there is no error (`false`),
    /// unless the condition asks for it.
    pub async fn delete(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        condition: WriteCondition,
    ) -> Result<bool, CatalogError> {
        todo!()
    }

    /// Lists current objects.
    pub async fn list(&self, bucket: &Bucket, query: &ListQuery) -> Result<ListPage, CatalogError> {
        todo!()
    }

    /// Begins a multipart upload.
    pub async fn create_upload(&self, bucket: &Bucket, upload: Upload) -> Result<(), CatalogError> {
        todo!()
    }

    /// The upload in progress.
    pub async fn upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
    ) -> Result<Upload, CatalogError> {
        todo!()
    }

    /// Stores a part, in place of an earlier one with its number.
    pub async fn publish_part(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        part: Part,
    ) -> Result<(), CatalogError> {
        todo!()
    }

    /// Parts with numbers after `after`.
    pub async fn parts(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        after: u16,
        limit: usize,
    ) -> Result<PartPage, CatalogError> {
        todo!()
    }

    /// Uploads in progress; `query.after` is the key marker, `after_id` the upload id marker.
    pub async fn uploads(
        &self,
        bucket: &Bucket,
        query: &ListQuery,
        after_id: Option<UploadId>,
    ) -> Result<UploadPage, CatalogError> {
        todo!()
    }

    /// Publishes the object made of these parts, and ends the upload. Completing again with
    /// the same parts answers with the object made the first time, as long as it is current.
    /// `checksum` is the one that the client gave for the whole, checked where it can be.
    pub async fn complete_upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
        parts: &[NamedPart],
        checksum: Option<keyway_proto::Checksum>,
        condition: WriteCondition,
        now: UnixMs,
    ) -> Result<Object, CatalogError> {
        todo!()
    }

    /// Ends the upload and gives up its parts.
    pub async fn abort_upload(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        id: UploadId,
    ) -> Result<(), CatalogError> {
        todo!()
    }

    /// Chunks that lost an owner and have none left: ready to be released by their node.
    pub async fn garbage(&self, limit: usize) -> Result<Vec<Extent>, CatalogError> {
        todo!()
    }

    /// Forgets chunks that their node has released.
    pub async fn forget_garbage(&self, chunks: &[Extent]) -> Result<(), CatalogError> {
        todo!()
    }

    /// Which of these chunks an object or a part owns: the node's sweeper asks before it
    /// frees what a crash left behind.
    pub async fn owned(&self, chunks: &[ChunkId]) -> Result<Vec<bool>, CatalogError> {
        todo!()
    }
}
