//! The one thread that writes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use keyway_proto::Durability;
use parking_lot::RwLock;
use redb::{ReadableTable as _, StorageError};
use tokio::sync::mpsc;

use super::flush::Flushes;
use super::tree::{TABLE, Tree, WriteTable, apply};
use super::{Request, Snapshot, Write, engine_error, other_error, storage_error};
use crate::store::stats::{Counters, GroupCommit};
use crate::store::{Batch, MetaConfig, MetaError};

/// Batches in one commit.
const GROUP_MAX: usize = 256;
/// Of a device that is small the reserve is this part.
const RESERVE_SHARE: u64 = 16;
/// The one thread that writes.
pub(super) struct Writer {
    /// The directory, asked for the device's free space.
    device: File,
    dir: PathBuf,
    config: MetaConfig,
    flushes: Arc<Flushes>,
    snapshot: Arc<RwLock<Option<Snapshot>>>,
    /// `None` only between a failure and the next successful opening.
    tree: Option<Tree>,
    queue: mpsc::Receiver<Request>,
    counters: Arc<Counters>,
    observe: Box<dyn Fn(GroupCommit) + Send>,
}

/// How much room the device has.
#[derive(Clone, Copy)]
struct Room {
    /// Less than the reserve is free.
    is_tight: bool,
    reserve: u64,
}

impl Room {
    /// Bytes of the device that the tree may owe.
    fn unwritten(self) -> u64 {
        if self.is_tight { 0 } else { self.reserve }
    }
}

impl Writer {
    pub(super) fn new(
        dir: &Path,
        config: MetaConfig,
        flushes: Arc<Flushes>,
        snapshot: Arc<RwLock<Option<Snapshot>>>,
        queue: mpsc::Receiver<Request>,
        counters: Arc<Counters>,
        observe: Box<dyn Fn(GroupCommit) + Send>,
    ) -> Result<Self, MetaError> {
        let device = File::open(dir).map_err(|e| engine_error("opening the directory", &e))?;
        let dir = dir.to_owned();
        let mut writer =
            Self { device, dir, config, flushes, snapshot, tree: None, queue, counters, observe };
        writer.open()?;
        Ok(writer)
    }

    pub(super) fn run(mut self) {
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
        if let Some(Err(error)) = self.tree.take().map(Tree::close) {
            tracing::error!(%error, "the metadata tree was not written at the end");
        }
    }

    /// One commit of all batches whose preconditions hold. An error means all of them.
    fn commit_group(&mut self, group: &[Request]) -> Result<Vec<Result<(), MetaError>>, MetaError> {
        self.flushes.check()?;
        let room = self.room();
        let result = self.try_group(group, room);
        if let Err(error) = &result {
            tracing::error!(%error, batches = group.len(), "a metadata commit failed");
            // After a failed flush readers keep the snapshot that they have: what would be opened
            // again need not be on the device.
            if self.flushes.check().is_ok() {
                self.reopen();
            }
        }
        result
    }

    fn try_group(
        &mut self,
        group: &[Request],
        room: Room,
    ) -> Result<Vec<Result<(), MetaError>>, MetaError> {
        if self.tree.is_none() {
            self.open()?;
        }
        let tree = self.tree.as_mut().expect("opened just above");
        let begun = Instant::now();
        let transaction = tree.begin()?;
        let (mut changed, mut durability) = (false, Durability::Memory);
        let mut record = tree.record();
        let outcomes = {
            let mut table =
                transaction.open_table(TABLE).map_err(|e| other_error("opening", e.into()))?;
            let mut held = Held::default();
            let mut outcomes = Vec::with_capacity(group.len());
            for Request { batch, .. } in group {
                let outcome = if room.is_tight && !batch.frees_space {
                    Err(MetaError::Full)
                } else if holds(&table, batch, &mut held)
                    .map_err(|e| storage_error("checking", &e))?
                {
                    computed(&table, batch).map_err(|e| storage_error("checking", &e))?
                } else {
                    Err(MetaError::Conflict)
                };
                if let Ok(computed) = &outcome {
                    for row in batch.writes.iter().chain(computed) {
                        apply(&mut table, row).map_err(|e| storage_error("writing", &e))?;
                        record.push(row);
                    }
                    held.forget(batch);
                    changed |= !batch.is_idle();
                    durability = durability.max(batch.durability);
                }
                outcomes.push(outcome.map(drop));
            }
            outcomes
        };
        if changed {
            tree.commit(transaction, record, durability, room.unwritten())?;
            *self.snapshot.write() = Some(tree.newest()?);
            let batches = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            (self.observe)(GroupCommit { batches, duration: begun.elapsed() });
        } else {
            transaction.abort().map_err(|e| storage_error("aborting", &e))?;
        }
        Ok(outcomes)
    }

    /// Opens the tree, and makes it if it is not there.
    fn open(&mut self) -> Result<(), MetaError> {
        // Readers wait meanwhile: to them a failed write did not happen.
        let mut snapshot = self.snapshot.write();
        *snapshot = None;
        // Its lock on the file must be gone before it is opened again.
        self.tree = None;
        let tree = Tree::open(&self.dir, &self.config, &self.flushes)?;
        *snapshot = Some(tree.newest()?);
        self.tree = Some(tree);
        Ok(())
    }

    /// Closes the file and opens it again: the only way back after redb met an I/O error.
    fn reopen(&mut self) {
        if let Err(error) = self.open() {
            tracing::error!(%error, "the metadata store does not open; the next commit tries again");
        }
    }

    fn room(&self) -> Room {
        let asked = self.config.reserve_bytes;
        match rustix::fs::fstatvfs(&self.device) {
            Ok(status) => {
                let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
                let total = bytes(status.f_blocks);
                // A small device must not be all reserve; who asks for more than there is
                // wants nothing written.
                let reserve = if asked > total { asked } else { asked.min(total / RESERVE_SHARE) };
                Room { is_tight: bytes(status.f_bavail) < reserve, reserve }
            }
            // A device that does not tell is taken to have space: writing will show.
            Err(_) => Room { is_tight: false, reserve: asked },
        }
    }
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
