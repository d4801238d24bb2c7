//! What the client's other languages share: C (`capi`) and Python (`python`).
//!
//! A [`Connection`] is a client that knows forks, [`Settings`] are a client's options as plain
//! values, [`Place`] is an object's address as text, [`Memory`] is host or GPU memory of the
//! caller, [`Report`] is what every outcome says, and [`Failure`] sorts every error into a
//! [`Kind`], which each language maps once.
//!
//! What may not enter: anything of one language, and `unsafe`. The borders stand in the crates
//! of the languages.

#![forbid(unsafe_code)]

mod connection;
mod failure;
mod listing;
mod memory;
mod place;
mod process;
mod report;
mod runtime;
mod settings;
mod transfer;

pub use connection::Connection;
pub use failure::{Failure, Kind};
pub use listing::{Listed, Listing};
pub use memory::{Memory, Source, Target};
pub use place::{InvalidPlace, Place};
pub use process::{Made, PerProcess};
pub use report::Report;
pub use runtime::runtime;
pub use settings::{InvalidSetting, Settings};
pub use transfer::{Fetch, Store, Turn, flush, head};
