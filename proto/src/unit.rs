//! Sizes that more than one room must agree on.

/// 1,024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1,048,576 bytes.
pub const MIB: u64 = 1 << 20;
/// 1,073,741,824 bytes.
pub const GIB: u64 = 1 << 30;

/// Bytes covered by one CRC32C on disk: a range read verifies whole blocks.
pub const BLOCK_BYTES: u64 = 64 * KIB;
/// Largest chunk that a storage node keeps under one id.
pub const CHUNK_BYTES_MAX: u64 = 16 * MIB;
/// Largest object: S3's own limit.
pub const OBJECT_BYTES_MAX: u64 = 5 * 1024 * GIB;
/// Largest body of one PUT or one part: S3's own limit.
pub const PART_BYTES_MAX: u64 = 5 * GIB;
/// Smallest part of a multipart upload but the last: S3's own limit.
pub const PART_BYTES_MIN: u64 = 5 * MIB;
/// Highest part number: S3's own limit.
pub const PART_NUMBER_MAX: u16 = 10_000;
/// Longest object key in bytes: S3's own limit.
pub const KEY_BYTES_MAX: usize = 1024;

const _: () =
    assert!(CHUNK_BYTES_MAX.is_power_of_two() && CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
