//! From a request's body to chunks that nobody sees yet.
//!
//! Sketch of a PUT: frames pass by reference to the node, which hashes, writes and syncs them;
//! then one comparison of digests, then the caller's one commit. Nothing is visible before
//! that, and what is refused is released at once. What bounds it: the node's MD5, about
//! 1.6 ns per byte where the ETag is one.

use std::sync::Arc;

use keyway_dataplane::{StorageNode, TransferError};
use keyway_meta::Extent;
use keyway_proto::checksum::MultiHasher;
use keyway_proto::plan::chunk_lengths;
use keyway_proto::seal::sealed_chunk_lengths;
use keyway_proto::{
    ChunkId, ChunkSpec, DataKey, DigestSet, Digests, Durability, PutPlan, TenantId, TransferId,
};
use s3s::S3ErrorCode;
use s3s::dto::StreamingBlob;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Core;
use super::body::Intake;
use super::errors::Failure;

/// Stored bytes: as durable as they say, and invisible until the catalog names them.
#[derive(Default)]
pub(super) struct Stored {
    /// What they survive.
    pub(super) durability: Durability,
    /// The digests that were asked for.
    pub(super) digests: Digests,
    chunks: Vec<Chunks>,
    extents: Vec<Extent>,
}

/// Chunks of one node that go again unless they are kept.
struct Chunks {
    node: Arc<dyn StorageNode>,
    ids: Vec<ChunkId>,
}

impl Stored {
    /// Chunks that `node` has stored.
    pub(super) fn new(
        node: Arc<dyn StorageNode>,
        chunks: Vec<ChunkSpec>,
        digests: Digests,
        durability: Durability,
    ) -> Self {
        let ids = chunks.iter().map(|chunk| chunk.id).collect();
        let id = node.id();
        let extents = chunks.into_iter().map(|chunk| Extent { chunk, node: id }).collect();
        Self { durability, digests, chunks: vec![Chunks { node, ids }], extents }
    }

    /// Where the bytes are.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.extents.clone()
    }

    /// Puts what follows these bytes behind them; the digests are the caller's to know.
    pub(super) fn append(&mut self, mut next: Self) {
        self.durability = self.durability.min(next.durability);
        self.chunks.append(&mut next.chunks);
        self.extents.append(&mut next.extents);
    }

    /// Leaves the chunks to the catalog. Call it before the commit: once that has begun, its
    /// outcome may be unknown, and the sweeper alone may judge.
    pub(super) fn keep(mut self) -> Kept {
        Kept(std::mem::take(&mut self.chunks))
    }

    /// Gives the chunks up at once.
    pub(super) async fn release(mut self) {
        for chunks in std::mem::take(&mut self.chunks) {
            chunks.release().await;
        }
    }
}

impl Drop for Stored {
    /// The request was cancelled between the node's receipt and the commit.
    fn drop(&mut self) {
        for chunks in std::mem::take(&mut self.chunks) {
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { chunks.release().await });
            }
        }
    }
}

/// Chunks that the catalog was asked to own.
pub(super) struct Kept(Vec<Chunks>);

impl Kept {
    /// The catalog's answer: chunks that it certainly did not take are given up.
    pub(super) async fn settle<T>(
        self,
        answer: Result<T, keyway_meta::CatalogError>,
    ) -> Result<T, Failure> {
        use keyway_meta::{CatalogError, MetaError};
        let failure = match answer {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        // An engine's failure may have come after the commit: the sweeper will ask.
        let unknown = matches!(&failure, CatalogError::Store(cause)
            if !matches!(cause, MetaError::Conflict | MetaError::Full));
        if !unknown {
            for chunks in self.0 {
                chunks.release().await;
            }
        }
        Err(failure.into())
    }
}

impl Chunks {
    async fn release(self) {
        if let Err(error) = self.node.release(&self.ids).await {
            // The sweeper frees them later.
            tracing::warn!(node = %self.node.id(), %error, "chunks were not released");
        }
    }
}

/// Stores `length` bytes of `body`, encrypted where there is a key, and computes their digests.
///
/// Dropping the future leaves nothing behind.
///
/// # Errors
/// The body's and the node's; nothing is kept then.
pub(super) async fn store(
    core: &Core,
    tenant: TenantId,
    length: u64,
    digests: DigestSet,
    durability: Durability,
    key: Option<&DataKey>,
    body: Intake,
) -> Result<Stored, Failure> {
    if length == 0 {
        body.finish_empty().await?;
        let digests = MultiHasher::new(digests).finish();
        let durability = Durability::Disk;
        return Ok(Stored { durability, digests, chunks: Vec::new(), extents: Vec::new() });
    }
    store_stream(core, tenant, length, digests, durability, key, body.into_body()).await
}

/// As [`store`], for a body that has at least one byte and needs no checks of its own.
pub(super) async fn store_stream(
    core: &Core,
    tenant: TenantId,
    length: u64,
    digests: DigestSet,
    durability: Durability,
    key: Option<&DataKey>,
    body: keyway_dataplane::Body,
) -> Result<Stored, Failure> {
    let node = core.nodes.place(fastrand::u64(..)).clone();
    let plan = planned(core, tenant, length, digests, durability, key);
    let chunks = plan.chunks.clone();
    let stored = node.put(plan, body).await;
    if matches!(stored, Err(TransferError::Full)) {
        // What was overwritten or deleted lately may be all that is in the way.
        core.wake_maintenance();
    }
    let receipt = stored?;
    Ok(Stored::new(node, chunks, receipt.digests, receipt.durability))
}

/// A plan for `length` bytes in new chunks, encrypted where there is a key.
pub(super) fn planned(
    core: &Core,
    tenant: TenantId,
    length: u64,
    digests: DigestSet,
    durability: Durability,
    key: Option<&DataKey>,
) -> PutPlan {
    let chunk = |length| ChunkSpec { id: ChunkId::generate(), length };
    PutPlan {
        transfer: TransferId::generate(),
        tenant,
        weight: core.weight(tenant),
        chunks: match key {
            None => chunk_lengths(length).map(chunk).collect(),
            Some(_) => sealed_chunk_lengths(length).map(chunk).collect(),
        },
        digests,
        durability,
        key: key.cloned(),
    }
}

/// The length of a body, as announced.
///
/// # Errors
/// `MissingContentLength` and `EntityTooLarge`.
pub(super) fn announced_length(core: &Core, content_length: Option<i64>) -> Result<u64, Failure> {
    let length = content_length
        .and_then(|length| u64::try_from(length).ok())
        .ok_or_else(|| Failure::code(S3ErrorCode::MissingContentLength))?;
    if length > core.put_max_bytes {
        return Err(Failure::code(S3ErrorCode::EntityTooLarge));
    }
    Ok(length)
}

/// The body of an input that has one.
pub(super) fn intake(body: Option<StreamingBlob>, length: u64) -> Intake {
    let body = body.unwrap_or_else(|| StreamingBlob::from(s3s::Body::empty()));
    Intake::new(body, length)
}

/// Memory for signed chunks: each is held whole until its signature is verified.
pub(super) struct SignedChunks {
    chunk_kib: u32,
    budget: Semaphore,
}

impl SignedChunks {
    /// A budget for chunks of at most `chunk_bytes`.
    pub(super) fn new(chunk_bytes: usize, budget_bytes: usize) -> Self {
        let permits = (budget_bytes / 1024).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let chunk_kib = u32::try_from((chunk_bytes / 1024).clamp(1, permits)).unwrap_or(u32::MAX);
        Self { chunk_kib, budget: Semaphore::new(permits) }
    }

    /// Room for one request's chunk, when its body has signed ones. Waits for it: how many
    /// can wait is bounded by the connections that the server accepts.
    pub(super) async fn room(
        &self,
        headers: &http::HeaderMap,
        length: u64,
    ) -> Option<SemaphorePermit<'_>> {
        let mode = headers.get("x-amz-content-sha256")?;
        if !mode.as_bytes().starts_with(b"STREAMING-AWS4-HMAC-SHA256") {
            return None;
        }
        let length_kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.budget.acquire_many(self.chunk_kib.min(length_kib).max(1)).await.ok()
    }
}
