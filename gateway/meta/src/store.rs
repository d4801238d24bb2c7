//! An ordered key-value store with atomic, conditional commits.

use async_trait::async_trait;
use bytes::Bytes;

/// An engine. Keys and values are bytes; keys sort bytewise.
#[async_trait]
pub trait MetaStore: Send + Sync + 'static {
    /// The value under `key`.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError>;

    /// Entries with `start <= key < end`, ascending, at most `limit`, from one snapshot.
    async fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, MetaError>;

    /// Applies the whole batch if all its preconditions hold at that moment, and answers when
    /// that is durable. Commits are serializable: each sees all before it.
    ///
    /// # Errors
    /// [`MetaError::Conflict`] when a precondition does not hold; nothing was changed then.
    async fn commit(&self, batch: Batch) -> Result<(), MetaError>;
}

/// A transaction: preconditions, then writes.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Each key must hold exactly this value (`None`: must be absent).
    pub expect: Vec<(Bytes, Option<Bytes>)>,
    /// What is written, in order; `None` deletes.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
}

/// Why the store refused.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// A precondition did not hold.
    #[error("a precondition of the commit did not hold")]
    Conflict,
    /// No space on the device.
    #[error("the metadata store is full")]
    Full,
    /// The engine failed.
    #[error("the metadata store failed: {0}")]
    Engine(std::sync::Arc<str>),
    /// A record that this version cannot read.
    #[error("a metadata record is damaged: {0}")]
    Damaged(&'static str),
}
