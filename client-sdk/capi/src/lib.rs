//! The Keyway client for C: `include/keyway.h`, and `include/keyway_cufile.h` in the shape of
//! cuFile.
//!
//! | module | what |
//! |---|---|
//! | `abi` | the structures, as the headers have them |
//! | `border` | C's pointers in, errors and texts out; no panic passes |
//! | `client` | clients, objects, listings |
//! | `memory` | memory by its address: registered, or for one call |
//! | `transfer` | calls that wait |
//! | `queue` | requests that do not, and their completions |
//! | `cufile` | the same as cuFile has it |
//!
//! Bytes never pass through here: a transfer writes where the pointer points. Cost of a call
//! beside the client's: its texts are copied, and registered memory is looked up by its address.
//!
//! The headers are checked against this crate by the test `headers`.

#![allow(
    clippy::missing_safety_doc,
    reason = "what callers must see to stands in the headers, for all functions at once"
)]

pub mod abi;
mod border;
pub mod client;
pub mod cufile;
#[cfg(test)]
mod headers;
mod memory;
pub mod queue;
pub mod transfer;

pub use memory::{keyway_memory_deregister, keyway_memory_register};
