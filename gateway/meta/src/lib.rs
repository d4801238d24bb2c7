//! Metadata: what exists, and where its bytes are.
//!
//! [`store`] is an ordered transactional key-value trait with the engine `embedded`; the
//! [`catalog`] above it holds S3's semantics, once, for every engine. [`record`] is what it
//! takes and gives; [`accounts`] keeps who there is; `key` and `row` are how that is stored (docs/metadata.md).
//!
//! What may not enter: HTTP, XML, object bytes, the clock (callers pass the time).

#![forbid(unsafe_code)]

pub mod accounts;
pub mod catalog;
mod identity;
mod key;
pub mod record;
mod row;
pub mod store;

pub use accounts::{Account, Accounts};
pub use catalog::{Catalog, CatalogError, Holder, Quota, Usage};
pub use identity::catalog_id;
pub use record::*;
pub use store::{
    Batch, EmbeddedStore, GroupCommit, MemoryStore, MetaConfig, MetaError, MetaStats, MetaStore,
    Tally,
};
