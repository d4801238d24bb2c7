//! The engine over one redb file, with group commit.
//!
//! Sketch. A durable commit of redb is one `fsync`, and there is one writer: what bounds
//! small commits is how many share it. So one writer thread takes every batch that waits,
//! checks each one's preconditions inside the one write transaction (later batches see the
//! earlier ones of their group), commits once, publishes the new snapshot, and only then
//! answers. While it commits, the next group gathers in the queue. Per batch: one queue
//! slot, one oneshot, its tree operations, and its share of the dirty pages' writes. A group in
//! which nobody asks for more than memory is committed without the `fsync`.
//!
//! Reads descend the last published snapshot in place, on the caller's thread: the pages are
//! in the cache or one `pread` away, less than a hop to another thread costs.
//!
//! A device without space: redb takes no further call after a failed write until it is opened
//! again. So growth is refused while the device still has a reserve, which commits that free
//! space may use; and after a failure all the same the file is closed and opened again.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use keyway_proto::Durability;
use parking_lot::RwLock;
use redb::{
    Database, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _, StorageError, Table,
    TableDefinition, TableError, TransactionError,
};
use tokio::sync::{mpsc, oneshot};

use super::stats::{Counters, GroupCommit, MetaStats};
use super::{Batch, MetaConfig, MetaError, MetaStore};

/// The file's name within the data directory.
pub const FILE_NAME: &str = "metadata.redb";

/// Batches that may wait for the writer; senders beyond it wait their turn.
const QUEUE_MAX: usize = 1024;
/// Batches in one commit.
const GROUP_MAX: usize = 256;

/// Of a device that is small the reserve is this part.
const RESERVE_SHARE: u64 = 16;

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("keyway");

type Snapshot = Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>;
type WriteTable<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

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
        let path = dir.join(FILE_NAME);
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let snapshot = Arc::new(RwLock::new(None));
        let counters = Arc::new(Counters::default());
        let mut writer = Writer {
            device: File::open(dir)
                .map_err(|error| engine_error("opening the directory", &error))?,
            path,
            config: config.clone(),
            snapshot: Arc::clone(&snapshot),
            database: None,
            queue,
            behind: false,
            counters: Arc::clone(&counters),
            observe: Box::new(observe),
        };
        writer.open()?;
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

/// The one thread that writes.
struct Writer {
    /// The directory, asked for the device's free space.
    device: File,
    path: PathBuf,
    config: MetaConfig,
    snapshot: Arc<RwLock<Option<Snapshot>>>,
    /// `None` only between a failure and the next successful opening.
    database: Option<Database>,
    queue: mpsc::Receiver<Request>,
    /// Whether the last commit is in memory alone.
    behind: bool,
    counters: Arc<Counters>,
    observe: Box<dyn Fn(GroupCommit) + Send>,
}

impl Writer {
    fn run(mut self) {
        let mut group = Vec::with_capacity(GROUP_MAX);
        while self.queue.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
            let outcomes = self.commit_group(&group);
            for (index, request) in group.drain(..).enumerate() {
                let outcome = match &outcomes {
                    Ok(outcomes) => outcomes[index].clone(),
                    Err(error) => Err(error.clone()),
                };
                self.counters.batch(&outcome);
                // A caller that no longer waits has learnt to live with an unknown outcome.
                let _ = request.answer.send(outcome);
            }
        }
        *self.snapshot.write() = None;
        if self.behind
            && let Err(error) = self.catch_up()
        {
            tracing::error!(%error, "the last metadata commits were lost");
        }
    }

    /// Makes durable what is in memory alone.
    fn catch_up(&self) -> Result<(), redb::Error> {
        if let Some(database) = &self.database {
            database.begin_write()?.commit()?;
        }
        Ok(())
    }

    /// One commit of all batches whose preconditions hold. An error means all of them.
    fn commit_group(&mut self, group: &[Request]) -> Result<Vec<Result<(), MetaError>>, MetaError> {
        let tight = self.is_tight();
        let result = self.try_group(group, tight);
        if let Err(error) = &result {
            tracing::error!(%error, batches = group.len(), "a metadata commit failed");
            self.reopen();
        }
        result
    }

    fn try_group(
        &mut self,
        group: &[Request],
        tight: bool,
    ) -> Result<Vec<Result<(), MetaError>>, MetaError> {
        if self.database.is_none() {
            self.open()?;
        }
        let database = self.database.as_ref().expect("opened just above");
        let begun = Instant::now();
        let mut transaction =
            database.begin_write().map_err(|e| other_error("beginning", e.into()))?;
        let (mut changed, mut durability) = (false, Durability::Memory);
        let outcomes = {
            let mut table =
                transaction.open_table(TABLE).map_err(|e| other_error("opening", e.into()))?;
            let mut held = Held::default();
            let mut outcomes = Vec::with_capacity(group.len());
            for Request { batch, .. } in group {
                let outcome = if tight && !batch.frees_space {
                    Err(MetaError::Full)
                } else if holds(&table, batch, &mut held)
                    .map_err(|e| storage_error("checking", &e))?
                {
                    computed(&table, batch).map_err(|e| storage_error("checking", &e))?
                } else {
                    Err(MetaError::Conflict)
                };
                if let Ok(computed) = &outcome {
                    let writes = batch.writes.iter().chain(computed);
                    apply(&mut table, writes).map_err(|e| storage_error("writing", &e))?;
                    held.forget(batch);
                    changed |= !batch.is_idle();
                    durability = durability.max(batch.durability);
                }
                outcomes.push(outcome.map(drop));
            }
            outcomes
        };
        if changed {
            self.behind = durability == Durability::Memory;
            if self.behind {
                transaction
                    .set_durability(redb::Durability::None)
                    .map_err(|e| other_error("committing", e.into()))?;
            }
            transaction.commit().map_err(|e| other_error("committing", e.into()))?;
            let newest = newest(database).map_err(|e| other_error("reading", e.into()))?;
            *self.snapshot.write() = Some(newest);
            let batches = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            (self.observe)(GroupCommit { batches, duration: begun.elapsed() });
        } else {
            transaction.abort().map_err(|e| storage_error("aborting", &e))?;
        }
        Ok(outcomes)
    }

    /// Opens the file, and makes it if it is not there.
    fn open(&mut self) -> Result<(), MetaError> {
        // Readers wait meanwhile: to them a failed write did not happen.
        let mut snapshot = self.snapshot.write();
        *snapshot = None;
        // Its lock on the file must be gone before it is opened again.
        self.database = None;
        self.behind = false;
        let cache_bytes = usize::try_from(self.config.cache_bytes).unwrap_or(usize::MAX);
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .create(&self.path)
            .map_err(|e| other_error("opening", e.into()))?;
        let found = match newest(&database) {
            // Only then: a full device must not keep the store from being read.
            Err(TableError::TableDoesNotExist(_)) => {
                make_table(&database).map_err(|e| other_error("making the table", e))?;
                newest(&database)
            }
            found => found,
        };
        *snapshot = Some(found.map_err(|e| other_error("reading", e.into()))?);
        self.database = Some(database);
        Ok(())
    }

    /// Closes the file and opens it again: the only way back after redb met an I/O error.
    fn reopen(&mut self) {
        if let Err(error) = self.open() {
            tracing::error!(%error, "the metadata store does not open; the next commit tries again");
        }
    }

    /// Whether less than the reserve is free on the device.
    fn is_tight(&self) -> bool {
        match rustix::fs::fstatvfs(&self.device) {
            Ok(status) => {
                let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
                let (asked, total) = (self.config.reserve_bytes, bytes(status.f_blocks));
                // A small device must not be all reserve; who asks for more than there is
                // wants nothing written.
                let reserve = if asked > total { asked } else { asked.min(total / RESERVE_SHARE) };
                bytes(status.f_bavail) < reserve
            }
            // A device that does not tell is taken to have space: writing will show.
            Err(_) => false,
        }
    }
}

/// The state after the last commit.
fn newest(database: &Database) -> Result<Snapshot, TableError> {
    let transaction = database.begin_read().map_err(|error| match error {
        TransactionError::Storage(error) => TableError::Storage(error),
        other => TableError::Storage(StorageError::Corrupted(other.to_string())),
    })?;
    Ok(Arc::new(transaction.open_table(TABLE)?))
}

fn make_table(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(TABLE)?;
    Ok(transaction.commit()?)
}

/// The last precondition that held and was not written to since. Batches of a group often
/// share one, the row of their bucket: it is looked up once.
#[derive(Default)]
struct Held<'g>(Option<&'g (Bytes, Option<Bytes>)>);

impl Held<'_> {
    fn forget(&mut self, written: &Batch) {
        let held = |(key, _): &(Bytes, Option<Bytes>)| written.writes.iter().any(|w| w.0 == key);
        if self.0.is_some_and(held) {
            self.0 = None;
        }
    }
}

fn holds<'g>(
    table: &WriteTable<'_>,
    batch: &'g Batch,
    held: &mut Held<'g>,
) -> Result<bool, StorageError> {
    for (index, precondition) in batch.expect.iter().enumerate() {
        if held.0 == Some(precondition) {
            continue;
        }
        let (key, expected) = precondition;
        let found = table.get(&key[..])?;
        if found.as_ref().map(redb::AccessGuard::value) != expected.as_deref() {
            return Ok(false);
        }
        if index == 0 {
            held.0 = Some(precondition);
        }
    }
    for (start, end) in &batch.expect_empty {
        if start < end && table.range::<&[u8]>(&start[..]..&end[..])?.next().is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A row that is written, or removed.
type Write = (Bytes, Option<Bytes>);

/// What the batch's tallies and appended rows come to; the inner error refuses the batch.
fn computed(
    table: &WriteTable<'_>,
    batch: &Batch,
) -> Result<Result<Vec<Write>, MetaError>, StorageError> {
    let mut rows: Vec<Write> = Vec::with_capacity(batch.tallies.len() + 2 * batch.appends.len());
    for tally in &batch.tallies {
        let now = table.get(&tally.key[..])?;
        match tally.moved(now.as_ref().map(redb::AccessGuard::value)) {
            Ok(row) => rows.push((tally.key.clone(), row)),
            Err(refused) => return Ok(Err(refused)),
        }
    }
    for append in &batch.appends {
        let before = rows.iter().rfind(|(key, _)| *key == append.counter);
        let numbered = match before {
            Some((_, row)) => append.numbered(row.as_deref()),
            None => {
                let now = table.get(&append.counter[..])?;
                append.numbered(now.as_ref().map(redb::AccessGuard::value))
            }
        };
        match numbered {
            Ok(numbered) => rows.extend(numbered),
            Err(refused) => return Ok(Err(refused)),
        }
    }
    Ok(Ok(rows))
}

fn apply<'a>(
    table: &mut WriteTable<'_>,
    writes: impl Iterator<Item = &'a Write>,
) -> Result<(), StorageError> {
    for (key, value) in writes {
        match value {
            Some(value) => drop(table.insert(&key[..], &value[..])?),
            None => drop(table.remove(&key[..])?),
        }
    }
    Ok(())
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

fn other_error(doing: &str, error: redb::Error) -> MetaError {
    match error {
        redb::Error::Io(error) if is_full(&error) => MetaError::Full,
        error => engine_error(doing, &error),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
