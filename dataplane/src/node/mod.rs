//! The seam between the planes: a plan goes in, a receipt comes out.
//!
//! One trait, two forms: the engine of this process, and the stub of a node reached over
//! gRPC. The gateway cannot tell which it holds.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
use keyway_proto::{
    CatalogId, ChunkId, ChunkSpec, Door, GetPlan, LocalSessionOffer, LocalSessionRequest, NodeId,
    PutPlan, Rail, Receipt, SessionOffer, SessionOwner, SessionRequest, SessionSelector, Standing,
    TenantId,
};
use tokio::sync::oneshot;

mod direct;

pub use direct::{DirectError, SealingKey, SessionError, Transferred};

/// Object bytes on their way through HTTP, in frames of any size.
pub type Body = Pin<Box<dyn Stream<Item = Result<Bytes, TransferError>> + Send>>;

/// A storage node.
///
/// Dropping a returned future or body cancels the transfer: buffers are freed once the
/// device has let go of them, and a cancelled PUT leaves no chunk behind.
#[async_trait]
pub trait StorageNode: Send + Sync + 'static {
    /// The node's id.
    fn id(&self) -> NodeId;

    /// Says whose chunks the node keeps. The first catalog to come has the node for good: what it
    /// does not know is deleted, so that another one's chunks would be. A call that names none is
    /// let in as long as nobody came. Writes a file the first time, and costs nothing later.
    ///
    /// # Errors
    /// [`TransferError::OtherCatalog`]; [`TransferError::Store`] when it cannot be kept.
    fn claim(&self, catalog: Option<CatalogId>) -> Result<(), TransferError>;

    /// Starts delivering the plan's pieces. All chunks are pinned before this returns: what
    /// was found can be read to its end, even when it is released meanwhile.
    ///
    /// # Errors
    /// [`TransferError::NoSuchChunk`] when a piece's chunk is not here, and
    /// [`TransferError::InvalidPlan`] when a range leaves its chunk.
    async fn get(&self, plan: GetPlan) -> Result<Delivery, TransferError>;

    /// Stores exactly `plan.length()` bytes of `body` and answers when they are as durable as
    /// the receipt says. The chunks are readable from then on.
    ///
    /// # Errors
    /// [`TransferError::BodyTooShort`] and [`TransferError::BodyTooLong`] when the body is
    /// not as long as planned, [`TransferError::Full`] when the disk is. Nothing remains then.
    async fn put(&self, plan: PutPlan, body: Body) -> Result<Receipt, TransferError>;

    /// Gives up chunks. Unknown ids are no error: releasing twice is releasing once. Space is
    /// reused when the last transfer that reads it has ended.
    async fn release(&self, chunks: &[ChunkId]) -> Result<(), TransferError>;

    /// Where chunks stand on their way to the device, in order. Waits until none of them is
    /// [`Standing::Pending`], no longer than `wait`.
    async fn settle(
        &self,
        chunks: &[ChunkId],
        wait: Duration,
    ) -> Result<Vec<Standing>, TransferError>;

    /// Chunks stored here with an id greater than `after`, ascending, at most `limit`.
    async fn chunks(
        &self,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ChunkInfo>, TransferError>;

    /// Brings chunks, whole, into the node's memory tier, in the tenant's turn, and tells when
    /// that has ended what is there. A node without a tier brings in none.
    async fn prefetch(
        &self,
        tenant: TenantId,
        chunks: &[ChunkId],
    ) -> Result<Prefetched, TransferError>;

    /// The node's capacity and health.
    async fn status(&self) -> Result<NodeStatus, TransferError>;

    /// The ports that take sessions; none where the node has no usable adapter.
    async fn rails(&self) -> Result<Vec<Rail>, TransferError>;

    /// Connects a queue pair of the node's to the client's.
    ///
    /// # Errors
    /// [`SessionError`]; nothing remains then.
    async fn open_session(
        &self,
        owner: SessionOwner,
        request: SessionRequest,
    ) -> Result<SessionOffer, SessionError>;

    /// The door for clients of the node's own host, if it has one.
    async fn door(&self) -> Result<Option<Door>, TransferError>;

    /// Makes a ticket for that door.
    ///
    /// # Errors
    /// [`SessionError::NoSuchRail`] where there is none, [`SessionError::TooMany`].
    async fn open_local_session(
        &self,
        owner: SessionOwner,
        request: LocalSessionRequest,
    ) -> Result<LocalSessionOffer, SessionError>;

    /// Ends sessions, fencing every key in flight, and tells how many they were. When it
    /// returns, their queue pairs are gone.
    async fn close_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError>;

    /// How many sessions are open, tickets to the door that wait to be shown among them.
    async fn count_sessions(&self, selector: SessionSelector) -> Result<u64, TransferError>;

    /// Executes the [`DirectPlan`](keyway_proto::DirectPlan) in a sealed grant, and answers
    /// once the key is given up. Dropping the future gives the transfer up; the node then
    /// ends the key by itself.
    async fn transfer(&self, grant: Bytes) -> Transferred;

    /// The key to seal grants for this node with.
    ///
    /// # Errors
    /// [`TransferError::Unreachable`].
    async fn sealing_key(&self) -> Result<SealingKey, TransferError>;
}

/// A GET under way.
pub struct Delivery {
    /// Bytes that the body will yield.
    pub length: u64,
    /// The bytes, each block verified against its checksum before it is yielded.
    pub body: Body,
    /// Resolves after the body's last byte was taken; dropped without a value when the
    /// transfer failed or was cancelled.
    pub receipt: oneshot::Receiver<Receipt>,
}

/// A stored chunk.
pub type ChunkInfo = ChunkSpec;

/// What a prefetch came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// Chunks that are in memory, whole.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks that are not stored on this node, found no room, or could not be read.
    pub missed: u64,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Name of the blob store's engine, for example `file`.
    pub store: String,
    /// How the store reaches its device, for example `io_uring, O_DIRECT`, and why not
    /// better where it fell back.
    pub access: String,
    /// Bytes that the store may use in all.
    pub capacity_bytes: u64,
    /// Bytes free for new chunks.
    pub free_bytes: u64,
    /// Chunks stored.
    pub chunks: u64,
    /// Transfers under way.
    pub transfers: u64,
}

/// Why a transfer failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A chunk is not on this node: it was never here, or it was released.
    #[error("chunk {0:?} is not on this node")]
    NoSuchChunk(ChunkId),
    /// The plan contradicts itself or the store.
    #[error("invalid plan: {0}")]
    InvalidPlan(&'static str),
    /// Stored bytes do not match their checksum. They were not delivered.
    #[error("chunk {chunk:?} is damaged in the block at byte {offset}")]
    Damaged {
        /// The chunk.
        chunk: ChunkId,
        /// First byte of the damaged block within the chunk.
        offset: u64,
    },
    /// The body ended before the plan's length.
    #[error("the body ended after {received} of {expected} bytes")]
    BodyTooShort {
        /// Bytes received.
        received: u64,
        /// Bytes planned.
        expected: u64,
    },
    /// The body went on past the plan's length.
    #[error("the body is longer than the {expected} bytes announced")]
    BodyTooLong {
        /// Bytes planned.
        expected: u64,
    },
    /// The body's sender failed; `Display` shows the cause as the body's layer told it.
    #[error("the body broke off: {0}")]
    Body(BodyError),
    /// No space for new chunks.
    #[error("the store is full")]
    Full,
    /// Too many transfers under way; try again.
    #[error("the node is busy")]
    Busy,
    /// The store's device failed. Writes fail until the node is restarted when `sticky`.
    #[error("the store failed: {reason}")]
    Store {
        /// What failed.
        reason: std::sync::Arc<str>,
        /// Whether the store refuses further writes.
        sticky: bool,
    },
    /// The node keeps the chunks of another catalog.
    #[error("the node keeps another catalog's chunks")]
    OtherCatalog,
    /// A remote node cannot be reached or does not speak the protocol.
    #[error("the node cannot be reached: {0}")]
    Unreachable(std::sync::Arc<str>),
}

/// The cause of a broken body, kept as its own error so that the layer that made the body
/// recognises it again.
#[derive(Clone)]
pub struct BodyError(pub std::sync::Arc<dyn std::error::Error + Send + Sync>);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
