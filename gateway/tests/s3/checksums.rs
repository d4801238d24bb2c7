//! checksums
