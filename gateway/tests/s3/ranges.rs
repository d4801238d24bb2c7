//! ranges
