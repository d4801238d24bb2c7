//! What was committed since the tree was last written to its device.
//!
//! Sketch. A durable commit of the tree writes every page that its rows have touched, 4 KiB for a row
//! of 200 bytes, wherever they lie, and syncs them all. The journal takes the rows of a group as one
//! record behind the last one, in a file whose blocks are all there: one write of some KiB and one
//! sync that changes nothing of the file system's. The tree's commits stay in memory until the
//! journal is full; then one durable commit writes each page once, and the journal begins anew.
//!
//! The tree tells the number of the last record that it has, in the commit that took it in. So a
//! record is applied once, whichever of the two a crash left behind. Records are whole or not there:
//! their checksum covers number and rows, and the numbers follow each other. What an earlier round
//! left in the file has lower numbers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use keyway_proto::{Checksum, ChecksumKind};

use super::Write;
use super::flush::{Flushed, Flushes};

/// The file's name within the data directory.
pub(super) const FILE_NAME: &str = "metadata.journal";

/// Bytes of the file.
const BYTES: usize = 1 << 20;
/// Length of what follows it, its CRC64NVME, and the number, which is the first of what follows.
const HEADER_BYTES: usize = 4 + 8;
/// A row that is removed has this length.
const REMOVED: u32 = u32::MAX;

/// The file, and the records that wait to be written to it.
pub(super) struct Journal {
    file: File,
    flushes: Arc<Flushes>,
    /// Where the next record will be written.
    at: usize,
    /// Whole records, not yet written.
    waiting: Vec<u8>,
}

/// The rows of one commit, as they are gathered.
pub(super) struct Record {
    number: u64,
    bytes: Vec<u8>,
    rows: u64,
}

/// A record as it was read.
pub(super) struct Recorded {
    /// Its number.
    pub(super) number: u64,
    /// Its rows, in order.
    pub(super) rows: Vec<Write>,
}

impl Record {
    pub(super) fn new(number: u64) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.put_u64(number);
        Self { number, bytes, rows: 0 }
    }

    /// Takes a row.
    pub(super) fn push(&mut self, (key, value): &Write) {
        let length = |bytes: &Bytes| u32::try_from(bytes.len()).unwrap_or(REMOVED);
        self.bytes.put_u32(length(key));
        self.bytes.put_u32(value.as_ref().map_or(REMOVED, length));
        self.bytes.put_slice(key);
        self.bytes.put_slice(value.as_deref().unwrap_or_default());
        self.rows += 1;
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// How many rows it has.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    fn finish(mut self) -> Vec<u8> {
        let (header, body) = self.bytes.split_at_mut(HEADER_BYTES);
        let mut header = &mut header[..];
        header.put_u32(u32::try_from(body.len()).expect("a record fits its file"));
        header.put_u64(sum(body));
        self.bytes
    }
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
        let (records, at) = read(bytes.into());
        Ok((Self { file, flushes: Arc::clone(flushes), at, waiting: Vec::new() }, records))
    }

    /// Takes a record, to be written with the next [`sync`](Self::sync); gives it up where it does
    /// not fit.
    #[must_use]
    pub(super) fn push(&mut self, record: Record) -> bool {
        let fits = self.at + self.waiting.len() + record.bytes.len() <= BYTES;
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

/// The records from the file's beginning on, and where they end.
fn read(mut left: Bytes) -> (Vec<Recorded>, usize) {
    let mut records: Vec<Recorded> = Vec::new();
    let (bytes, mut end) = (left.len(), 0);
    while let Some(record) = next(&mut left) {
        if records.last().is_some_and(|last| last.number + 1 != record.number) {
            break;
        }
        records.push(record);
        end = bytes - left.len();
    }
    (records, end)
}

/// The next record; `None` where there is no whole one.
fn next(left: &mut Bytes) -> Option<Recorded> {
    let length = left.try_get_u32().ok()? as usize;
    let expected = left.try_get_u64().ok()?;
    if length > left.len() {
        return None;
    }
    let mut body = left.split_to(length);
    if sum(&body) != expected {
        return None;
    }
    let number = body.try_get_u64().ok()?;
    let mut rows = Vec::new();
    while !body.is_empty() {
        let key = body.try_get_u32().ok()? as usize;
        let value = body.try_get_u32().ok()?;
        let value_bytes = if value == REMOVED { 0 } else { value as usize };
        if key.checked_add(value_bytes)? > body.len() {
            return None;
        }
        let key = body.split_to(key);
        rows.push((key, (value != REMOVED).then(|| body.split_to(value_bytes))));
    }
    Some(Recorded { number, rows })
}

fn sum(bytes: &[u8]) -> u64 {
    Checksum::of(ChecksumKind::Crc64Nvme, bytes).crc64nvme().expect("the kind that was asked for")
}

#[cfg(test)]
mod tests {
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
