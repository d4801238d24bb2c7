//! Metadata: what exists, and where its bytes are.
//!
//! [`store`] is an ordered transactional key-value trait with one engine, `embedded`; the
//! [`catalog`] above it holds S3's semantics, once, for every engine.
//!
//! What may not enter: HTTP, XML, object bytes, the clock (callers pass the time).

#![forbid(unsafe_code)]

pub mod catalog;
pub mod record;
pub mod store;

pub use catalog::{Catalog, CatalogError};
pub use record::*;
pub use store::{Batch, MetaError, MetaStore};
