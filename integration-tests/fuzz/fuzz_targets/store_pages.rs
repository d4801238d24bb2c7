//! Pages of the blob store, as they are and under a checksum that is right: whatever is understood
//! is the same when written again.
#![no_main]

use libfuzzer_sys::fuzz_target;

use layout::{Batch, Geometry, Header, PAGE, Superblock};
use store::block_sum;

// Private to its crate, and compiled here once more.
#[allow(dead_code)]
#[path = "../../../dataplane/src/store/file/layout.rs"]
mod layout;

/// What the pages take from their crate.
mod store {
    pub use keyway_dataplane::store::{SINGLE_PIECE_BYTES_MAX, block_sum};
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut page = [0; PAGE];
    let length = bytes.len().min(PAGE);
    page[..length].copy_from_slice(&bytes[..length]);
    page[12..16].fill(0);
    let sum = block_sum(&page);
    page[12..16].copy_from_slice(&sum.to_le_bytes());
    read(&page);
});

fn read(page: &[u8]) {
    if let Some(superblock) = Superblock::decode(page) {
        assert_eq!(Superblock::decode(&superblock.encode()), Some(superblock));
        let geometry = Geometry { units: superblock.units };
        assert!(geometry.file_bytes() >= geometry.unit_offset(0));
    }
    if let Some(header) = Header::decode(page) {
        assert!(!header.units.is_empty(), "a header speaks for its own unit");
        assert_eq!(Header::decode(&header.encode()), Some(header));
    }
    if let Some(batch) = Batch::decode(page) {
        assert_eq!(Batch::decode(&batch.encode()), Some(batch));
    }
}
