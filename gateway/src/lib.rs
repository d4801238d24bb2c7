//! The gateway: S3 in, plans out, one commit point.
//!
//! [`serve()`] composes all of it from a [`Config`]; [`server`] speaks HTTP, [`s3`] holds the
//! S3 operations over the catalog and [`node`] the storage nodes that they send their plans
//! to, [`control`] opens sessions with them, [`accounts`] knows who there is, [`limits`] what they may
//! take, [`audit`] what they were refused, [`oidc`] asks who vouches for whom, [`notify`] tells of changes, [`maintenance`] releases what nothing names any more, [`admin`] answers operators,
//! [`doctor`] and [`pki`] help them, and [`telemetry`] tells what happens.
//!
//! What may not enter: disks, devices, `unsafe`. Object bytes pass through here in frames
//! that nobody copies.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod admin;
pub mod audit;
pub mod config;
mod configuration;
pub mod control;
pub mod doctor;
mod lifecycle;
pub mod limits;
pub mod maintenance;
pub mod node;
pub mod notify;
pub mod oidc;
pub mod pki;
pub mod s3;
pub mod serve;
pub mod server;
mod settle;
pub mod telemetry;

pub use config::Config;
pub use serve::{Root, Running, RunningNode, ServeError, serve, serve_gateway, serve_node};
