//! The tree on its device, and the journal in front of it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use keyway_proto::Durability;
use redb::{
    Database, ReadableDatabase as _, StorageError, Table, TableDefinition, TableError,
    TransactionError, WriteTransaction,
};

use super::flush::{Flushes, TreeFile};
use super::journal::Journal;
use super::record::{Record, Recorded};
use super::{FILE_NAME, Snapshot, Write, commit_error, engine_error, io_error, other_error};
use crate::store::{MetaConfig, MetaError};

pub(super) const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("keyway");
/// The number of the last commit, under 0.
const COMMITS: TableDefinition<'static, u64, u64> = TableDefinition::new("commits");

/// What a row may take of the device when the tree is written to it: a page, and as much again for
/// those above it.
const ROW_BYTES: u64 = 8 << 10;

pub(super) type WriteTable<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// The tree, and what it does not have on its device yet.
pub(super) struct Tree {
    database: Database,
    /// `None` where the device has no room for one: each durable commit writes the tree then.
    journal: Option<Journal>,
    /// The last commit's.
    number: u64,
    /// Rows written since the tree was written to its device.
    rows: u64,
}

impl Tree {
    /// Opens it, makes it if it is not there, and takes in what the journal alone has.
    pub(super) fn open(
        dir: &Path,
        config: &MetaConfig,
        flushes: &Arc<Flushes>,
    ) -> Result<Self, MetaError> {
        // Its lock comes first: the journal is of whoever has it.
        let mut database = open_database(dir, config, flushes)?;
        let (mut journal, records) = match Journal::open(dir, flushes) {
            Ok((journal, records)) => (Some(journal), records),
            Err(error) => match io_error("opening the journal", &error) {
                // It was never made, then.
                MetaError::Full => (None, Vec::new()),
                error => return Err(error),
            },
        };
        match take_in(&database, &records, redb::Durability::Immediate) {
            Ok(number) => {
                if let Some(journal) = &mut journal {
                    journal.restart();
                }
                Ok(Self { database, journal, number, rows: 0 })
            }
            // A full device must not keep the store from being read.
            Err(MetaError::Full) => {
                drop(database);
                database = open_database(dir, config, flushes)?;
                let number = take_in(&database, &records, redb::Durability::None)?;
                let rows = records.iter().map(|record| record.rows.len() as u64).sum();
                Ok(Self { database, journal, number, rows })
            }
            Err(error) => Err(error),
        }
    }

    /// The state after the last commit.
    pub(super) fn newest(&self) -> Result<Snapshot, MetaError> {
        newest(&self.database).map_err(|e| other_error("reading", e.into()))
    }

    /// A commit's record, to be filled with the rows that its transaction writes.
    pub(super) fn record(&self) -> Record {
        Record::new(self.number + 1)
    }

    pub(super) fn begin(&self) -> Result<WriteTransaction, MetaError> {
        self.database.begin_write().map_err(|e| other_error("beginning", e.into()))
    }

    /// Ends a transaction: in the journal, or, where that has no room or the tree owes its device as
    /// much as it may, by writing the tree with all that came before.
    pub(super) fn commit(
        &mut self,
        mut transaction: WriteTransaction,
        record: Record,
        durability: Durability,
        unwritten_max: u64,
    ) -> Result<(), MetaError> {
        let (number, rows) = (record.number(), record.rows());
        count(&transaction, number).map_err(|e| other_error("writing", e))?;
        let unwritten = (self.rows + rows) * ROW_BYTES;
        let is_taken = match &mut self.journal {
            Some(journal) => unwritten <= unwritten_max && journal.push(record),
            // What need not be durable needs no journal.
            None => durability == Durability::Memory,
        };
        if is_taken {
            if let Some(journal) = self.journal.as_mut().filter(|_| durability > Durability::Memory)
            {
                // What is in the journal may come back: that the device is full would be no answer,
                // neither here nor below.
                journal.sync().map_err(|e| engine_error("writing the journal", &e))?;
            }
            let in_memory = transaction.set_durability(redb::Durability::None);
            in_memory.map_err(|e| other_error("committing", e.into()))?;
            transaction.commit().map_err(|e| engine_error("committing", &e))?;
            self.rows += rows;
        } else {
            transaction.commit().map_err(|e| commit_error(e.into()))?;
            self.is_written();
        }
        self.number = number;
        Ok(())
    }

    /// Writes what is in memory and in the journal.
    pub(super) fn close(mut self) -> Result<(), MetaError> {
        if self.rows > 0 {
            self.begin()?.commit().map_err(|e| other_error("committing", e.into()))?;
            self.is_written();
        }
        Ok(())
    }

    fn is_written(&mut self) {
        self.rows = 0;
        if let Some(journal) = &mut self.journal {
            journal.restart();
        }
    }
}

/// Opens the file, and makes it if it is not there.
fn open_database(
    dir: &Path,
    config: &MetaConfig,
    flushes: &Arc<Flushes>,
) -> Result<Database, MetaError> {
    let cache_bytes = usize::try_from(config.cache_bytes).unwrap_or(usize::MAX);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(dir.join(FILE_NAME)).map_err(|e| io_error("opening", &e))?;
    let file = TreeFile::new(file, flushes).map_err(|e| other_error("opening", e.into()))?;
    let mut builder = Database::builder();
    let database = builder.set_cache_size(cache_bytes).create_with_backend(file);
    let database = database.map_err(|e| other_error("opening", e.into()))?;
    match newest(&database) {
        // Only then: a full device must not keep the store from being read.
        Err(TableError::TableDoesNotExist(_)) => {
            make_table(&database).map_err(|e| other_error("making the table", e))?;
        }
        found => drop(found.map_err(|e| other_error("reading", e.into()))?),
    }
    Ok(database)
}

/// Applies the records that the tree does not have. Answers the number of its last commit.
fn take_in(
    database: &Database,
    records: &[Recorded],
    durability: redb::Durability,
) -> Result<u64, MetaError> {
    let number = counted(database).map_err(|e| other_error("reading", e))?;
    let mut unknown = records.iter().skip_while(|record| record.number <= number).peekable();
    let Some(first) = unknown.peek() else { return Ok(number) };
    if first.number != number + 1 {
        let reason = "the journal does not follow the tree: one of the two is of another time";
        return Err(MetaError::Engine(reason.into()));
    }
    let apply_all = || -> Result<u64, redb::Error> {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(durability)?;
        let mut last = number;
        {
            let mut table = transaction.open_table(TABLE)?;
            for record in unknown {
                record.rows.iter().try_for_each(|row| apply(&mut table, row))?;
                last = record.number;
            }
        }
        count(&transaction, last)?;
        transaction.commit()?;
        Ok(last)
    };
    let last = apply_all().map_err(|e| other_error("applying the journal", e))?;
    tracing::info!(commits = last - number, "took commits out of the metadata journal");
    Ok(last)
}

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

/// The number of the last commit; 0 before the first.
fn counted(database: &Database) -> Result<u64, redb::Error> {
    match database.begin_read()?.open_table(COMMITS) {
        Ok(table) => Ok(table.get(0)?.map_or(0, |number| number.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn count(transaction: &WriteTransaction, number: u64) -> Result<(), redb::Error> {
    transaction.open_table(COMMITS)?.insert(0, number)?;
    Ok(())
}

/// Writes a row, or removes it.
pub(super) fn apply(table: &mut WriteTable<'_>, (key, value): &Write) -> Result<(), StorageError> {
    match value {
        Some(value) => drop(table.insert(&key[..], &value[..])?),
        None => drop(table.remove(&key[..])?),
    }
    Ok(())
}
