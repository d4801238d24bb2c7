//! The metadata's journal, as it is and under a checksum that is right: whatever is understood is the
//! same when written again, and ends where it was said to.
#![no_main]

use bytes::Bytes;
use keyway_proto::{Checksum, ChecksumKind};
use libfuzzer_sys::fuzz_target;

use record::{Record, Recorded, read};

// Private to its crate, and compiled here once more.
#[allow(dead_code)]
#[path = "../../../gateway/meta/src/store/embedded/record.rs"]
mod record;

/// What records take from their crate.
type Write = (Bytes, Option<Bytes>);

fuzz_target!(|bytes: &[u8]| {
    check(bytes.to_vec());
    let sum = Checksum::of(ChecksumKind::Crc64Nvme, bytes).crc64nvme().expect("asked for");
    let mut whole = Vec::with_capacity(12 + bytes.len());
    whole.extend_from_slice(&u32::try_from(bytes.len()).expect("short").to_be_bytes());
    whole.extend_from_slice(&sum.to_be_bytes());
    whole.extend_from_slice(bytes);
    check(whole);
});

fn check(journal: Vec<u8>) {
    let (records, end) = read(journal.clone().into());
    let again: Vec<u8> = records.into_iter().flat_map(written).collect();
    assert_eq!(again, journal[..end]);
}

fn written(recorded: Recorded) -> Vec<u8> {
    let mut record = Record::new(recorded.number);
    recorded.rows.iter().for_each(|row| record.push(row));
    assert_eq!((record.number(), record.rows()), (recorded.number, recorded.rows.len() as u64));
    let bytes = record.len();
    let written = record.finish();
    assert_eq!(written.len(), bytes);
    written
}
