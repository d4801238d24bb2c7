//! The records of the journal, as they are written and read.
//!
//! Records are whole or not there: the checksum covers number and rows, and the numbers follow each
//! other.

use bytes::{Buf as _, BufMut as _, Bytes};
use keyway_proto::{Checksum, ChecksumKind};

use super::Write;

/// Length of what follows it, its CRC64NVME, and the number, which is the first of what follows.
const HEADER_BYTES: usize = 4 + 8;
/// A row that is removed has this length.
const REMOVED: u32 = u32::MAX;

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

    /// Bytes of the whole record.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The record as it is written.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let (header, body) = self.bytes.split_at_mut(HEADER_BYTES);
        let mut header = &mut header[..];
        header.put_u32(u32::try_from(body.len()).expect("a record fits its file"));
        header.put_u64(sum(body));
        self.bytes
    }
}

/// The records from the file's beginning on, and where they end.
pub(super) fn read(mut left: Bytes) -> (Vec<Recorded>, usize) {
    let mut records: Vec<Recorded> = Vec::new();
    let (bytes, mut end) = (left.len(), 0);
    while let Some(record) = next(&mut left) {
        if records.last().is_some_and(|last| last.number.checked_add(1) != Some(record.number)) {
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
