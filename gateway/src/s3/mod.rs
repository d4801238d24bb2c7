//! S3 over the catalog and the storage nodes.
//!
//! The `s3s` crate speaks the protocol (routing, XML, signatures; see
//! docs/decisions/0001-s3s.md); the semantics are ours. A request passes:
//!
//! | step | where |
//! |---|---|
//! | request id, refusals that need S3's own words, XML bodies checked | [`mod@service`], `envelope` |
//! | the forms of signatures and of chunked bodies | `signed`, `framing` |
//! | bucket from host or path, signature, who asks and whether they may | `host`, `access` |
//! | the operation | `operations` → `buckets`, `configuration`, `acl`, `get`, `put`, `copy`, `delete`, `list`, `versions`, `tagging`, `lock`, `lifecycle`, `attributes`, `multipart`, `notification`, `probes` |
//! | what several operations share | `conditions`, `ranges`, `checksums`, `headers`, `etag`, `resolve`, `page` |
//! | pages of other origins, and what they upload by forms | `cors`, `form` |
//! | object bytes | `body`, `store`, and past HTTP `rdma` |
//! | writes answered from memory, and the wait for them | `durability` |
//! | who holds the keys to encrypted objects | `encryption` |
//! | reads that the protocol layer would refuse, and control endpoints | `routes`, `lenient`, `prefetch`, `gather` |
//! | every failure's code | `errors` |
//!
//! [`service()`] gives the tower service that a server mounts.

mod access;
mod acl;
mod answer;
mod attributes;
mod body;
mod buckets;
mod checksums;
mod claim;
mod conditions;
pub mod config;
mod configuration;
mod copy;
mod cors;
mod delete;
mod durability;
mod encryption;
mod envelope;
mod errors;
mod etag;
mod form;
mod framing;
mod gather;
mod get;
mod headers;
mod host;
mod lenient;
mod lifecycle;
mod list;
mod lock;
mod multipart;
mod notification;
mod operations;
mod page;
mod prefetch;
mod probes;
mod put;
mod ranges;
mod rdma;
mod resolve;
mod routes;
pub mod service;
mod signed;
mod store;
mod sts;
mod tagging;
mod verification;
mod versions;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keyway_auth::{CredentialStore, KeyProvider};
use keyway_meta::{Catalog, EtagPolicy, UnixMs};
use keyway_proto::{TenantId, Verification, Weight};

use crate::audit::Audit;
use crate::control::admin::Administration;
use crate::limits::Limiter;
use crate::maintenance::Maintenance;
use crate::node::{Grants, Nodes};
use crate::notify::Notifier;
use crate::oidc::Issuers;

pub use config::S3Config;
pub use rdma::{DirectCounts, DirectStats};
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
    /// What seals the keys of encrypted objects.
    pub secrets: Arc<dyn KeyProvider>,
    /// Who administers them, where they can be administered.
    pub administration: Option<Administration>,
    /// Where refusals, changes and transfers are told.
    pub audit: Audit,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What strangers may try, and what tenants and users may take.
    pub limiter: Arc<Limiter>,
    /// Who vouches for web identities, and with which keys.
    pub issuers: Arc<Issuers>,
    /// Who is told of changes.
    pub notifier: Arc<Notifier>,
    /// Woken when there is too little space for what is to be written.
    pub maintenance: Option<Arc<Maintenance>>,
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

/// The state and the settings, as the operations use them.
struct Core {
    catalog: Arc<Catalog>,
    nodes: Nodes,
    grants: Grants,
    direct_counts: Arc<DirectCounts>,
    clock: Arc<dyn Clock>,
    region: String,
    default_etag: EtagPolicy,
    /// Of buckets that did not choose, and whose owners did not.
    verification: Verification,
    maintenance: Option<Arc<Maintenance>>,
    credentials: Arc<dyn CredentialStore>,
    audit: Audit,
    notifier: Arc<Notifier>,
    limiter: Arc<Limiter>,
    /// Whose buckets are meant by who neither signs nor names an owner.
    public_tenant: TenantId,
    rules: access::RuleBook,
    sessions: access::Sessions,
    secrets: Arc<dyn KeyProvider>,
    /// Whether objects are encrypted in buckets that did not choose.
    encrypts_by_default: bool,
    /// Whether customers' keys are taken over plaintext: something before this server ends TLS.
    customer_keys_without_tls: bool,
    put_max_bytes: u64,
    signed_chunks: store::SignedChunks,
    /// Turns for [`copy::PART_COPIES_MAX`] parts and objects.
    part_copies: tokio::sync::Semaphore,
}

impl Core {
    /// The tenant's share of what several want at once.
    fn weight(&self, tenant: TenantId) -> Weight {
        self.credentials.terms(tenant).weight
    }

    /// Has what nothing names any more released soon.
    fn wake_maintenance(&self) {
        if let Some(maintenance) = &self.maintenance {
            maintenance.wake();
        }
    }
}
