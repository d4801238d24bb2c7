//! S3 over the catalog and the storage nodes.
//!
//! The `s3s` crate speaks the protocol (routing, XML, signatures); the semantics are ours.
//! [`service()`] gives the tower service that a server mounts.

pub mod config;
mod service;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keyway_auth::CredentialStore;
use keyway_meta::{Catalog, UnixMs};

use crate::node::Nodes;

pub use config::S3Config;
pub use service::{InvalidConfig, RequestId, S3HttpService, service};

/// What the operations stand on.
#[derive(Clone)]
pub struct S3State {
    /// What exists.
    pub catalog: Arc<Catalog>,
    /// Where the bytes are.
    pub nodes: Nodes,
    /// Who may sign.
    pub credentials: Arc<dyn CredentialStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// Tells the time of day.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> UnixMs;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
