//! buckets
