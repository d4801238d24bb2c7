//! An ordered key-value store with atomic, conditional commits.
//!
//! [`embedded`] keeps it in one file of this machine; [`memory`] in a map, for tests and as
//! the reference that the conformance suite holds every engine against.

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use keyway_proto::Durability;

mod config;
#[cfg(test)]
mod conformance;
pub mod embedded;
pub mod memory;
mod stats;

pub use config::MetaConfig;
pub use embedded::EmbeddedStore;
pub use memory::MemoryStore;
pub use stats::{GroupCommit, MetaStats};

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
    /// that is as durable as the batch asks for. Commits are serializable: each sees all before it. What was committed
    /// is seen by every `get` and `scan` that begins after the answer.
    ///
    /// Dropping the future leaves open whether the batch is applied; it is never applied by
    /// halves.
    ///
    /// # Errors
    /// [`MetaError::Conflict`] when a precondition does not hold, [`MetaError::Exceeded`] when a
    /// tally would grow past its bound, and [`MetaError::Full`] when there is no space; nothing was
    /// changed then. After [`MetaError::Engine`] the outcome is
    /// unknown.
    async fn commit(&self, batch: Batch) -> Result<(), MetaError>;
}

/// A transaction: preconditions, then writes.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Each key must hold exactly this value (`None`: must be absent).
    pub expect: Vec<(Bytes, Option<Bytes>)>,
    /// Each range `start <= key < end` must hold no key.
    pub expect_empty: Vec<(Bytes, Bytes)>,
    /// What is written, in order; `None` deletes.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    /// Numbers that move with what is written; each key at most once.
    pub tallies: Vec<Tally>,
    /// Rows that are numbered when the batch is applied.
    pub appends: Vec<Append>,
    /// Whether the batch gives space up, and may therefore use the engine's reserve when the
    /// device is full.
    pub frees_space: bool,
    /// What it must survive before it is answered. What is in memory alone becomes durable with
    /// the next batch that is; a crash, or a device that fails, before that undoes it, never
    /// without all that came after it.
    pub durability: Durability,
}

impl Batch {
    /// Requires `key` to hold exactly `value`.
    pub fn expect(&mut self, key: Bytes, value: Option<Bytes>) {
        self.expect.push((key, value));
    }

    /// Requires that no key lies in `start..end`.
    pub fn expect_empty(&mut self, start: Bytes, end: Bytes) {
        self.expect_empty.push((start, end));
    }

    /// Writes `value` under `key`.
    pub fn put(&mut self, key: Bytes, value: Bytes) {
        self.writes.push((key, Some(value)));
    }

    /// Removes `key`; no error when it is not there.
    pub fn delete(&mut self, key: Bytes) {
        self.writes.push((key, None));
    }

    /// Whether it changes nothing.
    fn is_idle(&self) -> bool {
        self.writes.is_empty() && self.tallies.is_empty() && self.appends.is_empty()
    }
}

/// A row behind all that were appended under the same counter before, whatever their prefixes: its
/// key is `prefix` and the next number, 8 bytes, big-endian. So the order of such rows is that of
/// their commits, and batches that append do not meet there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Where the last number given out stands: 8 bytes, big-endian.
    pub counter: Bytes,
    /// What the row's key begins with.
    pub prefix: Bytes,
    /// The row.
    pub value: Bytes,
}

impl Append {
    /// The row under its number, and the counter's row, where the counter's is `now`.
    ///
    /// # Errors
    /// [`MetaError::Damaged`] where no counter stands.
    fn numbered(&self, now: Option<&[u8]>) -> Result<[(Bytes, Option<Bytes>); 2], MetaError> {
        let last = match now {
            Some(row) => row.try_into().map_err(|_| MetaError::Damaged("counter"))?,
            None => [0; 8],
        };
        let number = u64::from_be_bytes(last).saturating_add(1).to_be_bytes();
        let mut key = BytesMut::with_capacity(self.prefix.len() + number.len());
        key.put_slice(&self.prefix);
        key.put_slice(&number);
        let counted = (self.counter.clone(), Some(Bytes::copy_from_slice(&number)));
        Ok([(key.freeze(), Some(self.value.clone())), counted])
    }
}

/// Two numbers under a key, moved by a batch as they stand when it is applied: so that batches
/// that move the same ones do not meet there. Nothing stands there where both are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Where they stand: 8 bytes each, big-endian.
    pub key: Bytes,
    /// What is added to them.
    pub add: [i64; 2],
    /// What they may be at most, those that grow.
    pub at_most: [u64; 2],
}

impl Tally {
    /// What is to stand there instead of `now`; nothing for nothing.
    ///
    /// # Errors
    /// [`MetaError::Exceeded`], and [`MetaError::Damaged`] where no such numbers stand.
    fn moved(&self, now: Option<&[u8]>) -> Result<Option<Bytes>, MetaError> {
        let now = now.map_or(Ok([0, 0]), Self::decode)?;
        let mut next = now;
        for ((number, add), at_most) in next.iter_mut().zip(self.add).zip(self.at_most) {
            *number = number.saturating_add_signed(add);
            if add > 0 && *number > at_most {
                return Err(MetaError::Exceeded);
            }
        }
        Ok((next != [0, 0]).then(|| Self::encode(next)))
    }

    /// The row of two numbers.
    pub(crate) fn encode(numbers: [u64; 2]) -> Bytes {
        let mut row = BytesMut::with_capacity(16);
        numbers.into_iter().for_each(|number| row.put_u64(number));
        row.freeze()
    }

    /// The numbers in a row.
    pub(crate) fn decode(row: &[u8]) -> Result<[u64; 2], MetaError> {
        let damaged = MetaError::Damaged("tally");
        let row: [u8; 16] = row.try_into().map_err(|_| damaged)?;
        let (first, second) = (row.first_chunk::<8>(), row.last_chunk::<8>());
        let number = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Ok([number(first), number(second)])
    }
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
    /// A tally would grow past its bound.
    #[error("a bound of the commit is exceeded")]
    Exceeded,
    /// The engine failed.
    #[error("the metadata store failed: {0}")]
    Engine(std::sync::Arc<str>),
    /// A record that this version cannot read.
    #[error("a metadata record is damaged: {0}")]
    Damaged(&'static str),
}
