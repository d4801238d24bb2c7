//! The engine over one redb file and a journal, with group commit.
//!
//! Sketch. There is one writer, and what bounds small commits is how many share one `fsync`. So one
//! writer thread takes every batch that waits, checks each one's preconditions inside the one write
//! transaction (later batches see the earlier ones of their group), writes the group's rows to the
//! [`journal`] with one write and one sync, publishes the new snapshot, and only then answers. While it
//! commits, the next group gathers in the queue. The [`tree`] itself is written once in many groups.
//! Per batch: one queue slot, one oneshot, its tree operations, and its rows' bytes in the journal. A
//! group in which nobody asks for more than memory is committed without the sync.
//!
//! Reads descend the last published snapshot in place, on the caller's thread: the pages are
//! in the cache or one `pread` away, less than a hop to another thread costs.
//!
//! A device without space: redb takes no further call after a failed write until it is opened
//! again. So growth is refused while the device still has a reserve, which what the journal has and
//! commits that free space may use; and after a failure all the same the file is closed and opened
//! again. After any other failure of a [`flush`] no commit is taken any more.

#[cfg(test)]
mod fault_tests;
mod flush;
mod journal;
mod record;
mod tree;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::RwLock;
use redb::{ReadOnlyTable, StorageError};
use tokio::sync::{mpsc, oneshot};

use flush::{Flushes, is_flush_error};
use writer::Writer;

use super::stats::{Counters, GroupCommit, MetaStats};
use super::{Batch, MetaConfig, MetaError, MetaStore};

/// The file's name within the data directory.
pub const FILE_NAME: &str = "metadata.redb";

/// Batches that may wait for the writer; senders beyond it wait their turn.
const QUEUE_MAX: usize = 1024;

type Snapshot = Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>;

/// A row that is written, or removed.
type Write = (Bytes, Option<Bytes>);

/// The embedded engine. Dropping it closes the queue and waits for the writer: what was
/// accepted is committed.
pub struct EmbeddedStore {
    requests: Option<mpsc::Sender<Request>>,
    snapshot: Arc<RwLock<Option<Snapshot>>>,
    writer: Option<std::thread::JoinHandle<()>>,
    counters: Arc<Counters>,
}

struct Request {
    batch: Batch,
    answer: oneshot::Sender<Result<(), MetaError>>,
}

impl EmbeddedStore {
    /// Opens the store in the directory `dir`, or makes it there. After a crash this repairs
    /// the file, which takes time in proportion to its size.
    ///
    /// # Errors
    /// [`MetaError::Engine`] when another process holds the file, or it is no such file.
    pub fn open(dir: &Path, config: &MetaConfig) -> Result<Self, MetaError> {
        Self::open_observed(dir, config, |_| {})
    }

    /// As [`open`](Self::open), and tells `observe` of every commit: on the writer's
    /// thread, before the answers leave, so it must not wait.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_observed(
        dir: &Path,
        config: &MetaConfig,
        observe: impl Fn(GroupCommit) + Send + 'static,
    ) -> Result<Self, MetaError> {
        Self::open_with(dir, config, Flushes::real(), Box::new(observe))
    }

    fn open_with(
        dir: &Path,
        config: &MetaConfig,
        flushes: Arc<Flushes>,
        observe: Box<dyn Fn(GroupCommit) + Send>,
    ) -> Result<Self, MetaError> {
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let snapshot = Arc::new(RwLock::new(None));
        let counters = Arc::new(Counters::default());
        let shared = (Arc::clone(&snapshot), Arc::clone(&counters));
        let writer = Writer::new(dir, config.clone(), flushes, shared.0, queue, shared.1, observe)?;
        let writer = std::thread::Builder::new()
            .name("meta-writer".into())
            .spawn(move || writer.run())
            .map_err(|error| engine_error("starting the writer", &error))?;
        Ok(Self { requests: Some(requests), snapshot, writer: Some(writer), counters })
    }

    /// What was done since the store was opened.
    pub fn stats(&self) -> MetaStats {
        self.counters.snapshot()
    }

    fn snapshot(&self) -> Result<Snapshot, MetaError> {
        self.snapshot.read().clone().ok_or_else(|| MetaError::Engine("the store is closed".into()))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.requests = None;
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the metadata writer panicked");
        }
    }
}

#[async_trait]
impl MetaStore for EmbeddedStore {
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        // Held until the value is copied: it does not keep its page from the writer itself.
        let snapshot = self.snapshot()?;
        self.counters.read();
        let value = snapshot.get(key).map_err(|error| storage_error("reading", &error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    async fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, MetaError> {
        if start >= end {
            return Ok(Vec::new());
        }
        let failed = |error: StorageError| storage_error("scanning", &error);
        let snapshot = self.snapshot()?;
        let range = snapshot.range::<&[u8]>(start..end).map_err(failed)?;
        let entries = range.take(limit).map(|entry| {
            let (key, value) = entry.map_err(failed)?;
            Ok((Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value())))
        });
        let entries = entries.collect::<Result<Vec<_>, MetaError>>()?;
        self.counters.scanned(entries.len());
        Ok(entries)
    }

    async fn commit(&self, batch: Batch) -> Result<(), MetaError> {
        let closed = || MetaError::Engine("the metadata writer has ended".into());
        let (answer, outcome) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(closed)?;
        requests.send(Request { batch, answer }).await.map_err(|_| closed())?;
        outcome.await.map_err(|_| closed())?
    }
}

fn engine_error(doing: &str, error: &dyn std::error::Error) -> MetaError {
    MetaError::Engine(format!("{doing}: {error}").into())
}

fn storage_error(doing: &str, error: &StorageError) -> MetaError {
    match error {
        StorageError::Io(error) if is_full(error) => MetaError::Full,
        error => engine_error(doing, error),
    }
}

fn io_error(doing: &str, error: &io::Error) -> MetaError {
    if is_full(error) { MetaError::Full } else { engine_error(doing, error) }
}

fn other_error(doing: &str, error: redb::Error) -> MetaError {
    match error {
        redb::Error::Io(error) if is_full(&error) => MetaError::Full,
        error => engine_error(doing, &error),
    }
}

/// The error of a commit. What was to be flushed may come back: that the device is full would be no
/// answer.
fn commit_error(error: redb::Error) -> MetaError {
    match error {
        redb::Error::Io(error) if is_flush_error(&error) => engine_error("committing", &error),
        error => other_error("committing", error),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
