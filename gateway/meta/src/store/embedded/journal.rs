//! What was committed since the tree was last written to its device.
//!
//! Sketch. A durable commit of the tree writes every page that its rows have touched, 4 KiB for a row
//! of 200 bytes, wherever they lie, and syncs them all. The journal takes the rows of a group as one
//! record behind the last one, in a file whose blocks are all there: one write of some KiB and one
//! sync that changes nothing of the file system's. The tree's commits stay in memory until the
//! journal is full; then one durable commit writes each page once, and the journal begins anew. What
//! an earlier round left in the file has lower numbers than what follows it.
//!
//! The tree tells the number of the last record that it has, in the commit that took it in. So a
//! record is applied once, whichever of the two a crash left behind.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use super::flush::{Flushed, Flushes};
use super::record::{self, Record, Recorded};

/// The file's name within the data directory.
pub(super) const FILE_NAME: &str = "metadata.journal";

/// Bytes of the file.
const BYTES: usize = 1 << 20;

/// The file, and the records that wait to be written to it.
pub(super) struct Journal {
    file: File,
    flushes: Arc<Flushes>,
    /// Where the next record will be written.
    at: usize,
    /// Whole records, not yet written.
    waiting: Vec<u8>,
}

impl Journal {
    /// Opens the file, or makes it, and reads what is in it.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn open(dir: &Path, flushes: &Arc<Flushes>) -> io::Result<(Self, Vec<Recorded>)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(dir.join(FILE_NAME))?;
        let there = usize::try_from(file.metadata()?.len()).unwrap_or(BYTES).min(BYTES);
        let mut bytes = vec![0; BYTES];
        file.read_exact_at(&mut bytes[..there], 0)?;
        if there < BYTES {
            // Blocks that are there are written without a change of the file system's.
            file.write_all_at(&bytes[there..], there as u64)?;
            flushes.run(Flushed::Journal, &file)?;
            flushes.run(Flushed::Journal, &File::open(dir)?)?;
        }
        let (records, at) = record::read(bytes.into());
        Ok((Self { file, flushes: Arc::clone(flushes), at, waiting: Vec::new() }, records))
    }

    /// Takes a record, to be written with the next [`sync`](Self::sync); gives it up where it does
    /// not fit.
    #[must_use]
    pub(super) fn push(&mut self, record: Record) -> bool {
        let fits = self.at + self.waiting.len() + record.len() <= BYTES;
        if fits {
            self.waiting.append(&mut record.finish());
        }
        fits
    }

    /// Makes durable what was taken.
    ///
    /// # Errors
    /// The device's; what was taken may then be there or not.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.waiting, self.at as u64)?;
        self.flushes.run(Flushed::Journal, &self.file)?;
        self.at += self.waiting.len();
        self.waiting.clear();
        Ok(())
    }

    /// Begins anew: the tree has all that was taken.
    pub(super) fn restart(&mut self) {
        self.at = 0;
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Write;
    use super::*;

    fn row(key: &str, value: Option<&str>) -> Write {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        (bytes(key), value.map(bytes))
    }

    fn record(number: u64, rows: &[Write]) -> Record {
        let mut record = Record::new(number);
        rows.iter().for_each(|row| record.push(row));
        record
    }

    fn open(dir: &tempfile::TempDir) -> (Journal, Vec<Recorded>) {
        Journal::open(dir.path(), &Flushes::real()).unwrap()
    }

    fn numbers(records: &[Recorded]) -> Vec<u64> {
        records.iter().map(|record| record.number).collect()
    }

    #[test]
    fn records_are_read_as_they_were_taken_and_only_once_they_are_synced() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, found) = open(&dir);
        assert!(found.is_empty());
        let rows = [row("a", Some("1")), row("b", None), row("", Some("")), row("c", Some("3"))];
        assert!(journal.push(record(1, &rows)) && journal.push(record(2, &[])));
        assert!(open(&dir).1.is_empty());
        journal.sync().unwrap();
        let (mut journal, found) = open(&dir);
        assert_eq!(numbers(&found), [1, 2]);
        assert_eq!(found[0].rows, rows);
        assert!(journal.push(record(3, &rows)));
        journal.sync().unwrap();
        assert_eq!(numbers(&open(&dir).1), [1, 2, 3]);
    }

    #[test]
    fn what_an_earlier_round_left_is_not_taken_for_this_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(&dir);
        for number in 1..=9 {
            assert!(journal.push(record(number, &[row("a", Some("1"))])));
        }
        journal.sync().unwrap();
        journal.restart();
        for number in 10..=12 {
            assert!(journal.push(record(number, &[row("a", Some("2"))])));
        }
        journal.sync().unwrap();
        assert_eq!(numbers(&open(&dir).1), [10, 11, 12]);
    }

    #[test]
    fn a_record_that_is_torn_or_turned_ends_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let (mut journal, _) = open(&dir);
        let mut ends = vec![0];
        for number in 1..=3 {
            assert!(journal.push(record(number, &[row("key", Some("value"))])));
            journal.sync().unwrap();
            ends.push(journal.at);
        }
        let whole = std::fs::read(&path).unwrap();
        for at in 0..ends[3] {
            let expected = ends.iter().filter(|end| **end <= at).count() - 1;
            let mut torn = whole.clone();
            torn[at..].fill(0);
            // Zeros may end a record that ends in zeros; these do not.
            std::fs::write(&path, &torn).unwrap();
            assert_eq!(open(&dir).1.len(), expected, "torn at {at}");
            let mut turned = whole.clone();
            turned[at] ^= 0x40;
            std::fs::write(&path, &turned).unwrap();
            assert_eq!(open(&dir).1.len(), expected, "turned at {at}");
        }
        // A file that was never made to its end.
        std::fs::write(&path, &whole[..ends[2]]).unwrap();
        assert_eq!(numbers(&open(&dir).1), [1, 2]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES as u64);
    }

    #[test]
    fn what_does_not_fit_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(&dir);
        let large = "x".repeat(BYTES / 4);
        let taken =
            (1..).take_while(|n| journal.push(record(*n, &[row("k", Some(&large))]))).count();
        assert_eq!(taken, 3);
        journal.sync().unwrap();
        assert_eq!(open(&dir).1.len(), 3);
        journal.restart();
        assert!(journal.push(record(4, &[row("k", Some(&large))])));
    }
}
