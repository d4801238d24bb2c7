//! The operator's targets, and how an event is brought to one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use hyper_rustls::ConfigBuilderExt as _;
use keyway_proto::TenantId;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};

use super::nats::Nats;
use super::stats::Counters;
use super::webhook::Webhook;
use crate::config;
use crate::oidc::{InvalidAuthorities, authorities};

/// Between two words in the log about events that are dropped.
const DROPS_TOLD: Duration = Duration::from_secs(60);

/// Why an event was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DeliveryError {
    /// No acknowledgement in time.
    #[error("the target does not answer in time")]
    TimedOut,
    /// No connection, one that broke, or no stream behind it.
    #[error("the target cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It takes no events, as things are.
    #[error("the target answers with status {0}")]
    Status(StatusCode),
    /// It does not take this one.
    #[error("the target refuses the event with status {0}")]
    Refused(StatusCode),
}

/// Why a target cannot be used as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTarget {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// What HTTP cannot carry as a token.
    #[error("the token is none that HTTP can carry")]
    Token,
    /// An address that is none.
    #[error("the address is none")]
    Address,
    /// A file that holds no authorities.
    #[error(transparent)]
    Authorities(#[from] InvalidAuthorities),
    /// The system's authorities, or TLS, cannot be used.
    #[error("TLS cannot be used")]
    Tls(#[source] std::io::Error),
}

/// Where events go.
pub(super) struct Target {
    pub(super) name: Arc<str>,
    /// As an ARN has it.
    pub(super) kind: &'static str,
    /// Who may name it; everybody without them.
    tenants: Option<Vec<TenantId>>,
    sink: Sink,
    timeout: Duration,
    pub(super) counters: Counters,
    /// When the log was last told that events are dropped.
    drops_told: Mutex<Option<Instant>>,
}

enum Sink {
    Webhook(Box<Webhook>),
    Nats(Box<Nats>),
}

impl Target {
    /// Reads its files.
    ///
    /// # Errors
    /// [`InvalidTarget`].
    pub(super) fn new(name: &str, config: &config::Target) -> Result<Self, InvalidTarget> {
        let (kind, sink, timeout_ms, tenants) = match config {
            config::Target::Webhook { url, token_file, ca_file, timeout_ms, tenants } => {
                let token = token_file.as_deref().map(read).transpose()?;
                let tls = tls(ca_file.as_deref(), url.starts_with("https:"))?;
                let webhook = Webhook::new(url, token.as_deref().map(str::trim), tls)?;
                ("webhook", Sink::Webhook(Box::new(webhook)), *timeout_ms, tenants)
            }
            config::Target::Nats {
                url,
                subject,
                credentials_file,
                ca_file,
                timeout_ms,
                tenants,
            } => {
                let tls = tls(ca_file.as_deref(), url.starts_with("tls:"))?;
                let timeout = Duration::from_millis(*timeout_ms);
                let nats = Nats::new(url, subject, credentials_file.clone(), tls, timeout);
                ("nats", Sink::Nats(Box::new(nats)), *timeout_ms, tenants)
            }
        };
        let of = |tenants: &Vec<u64>| tenants.iter().copied().map(TenantId).collect();
        Ok(Self {
            name: name.into(),
            kind,
            tenants: tenants.as_ref().map(of),
            sink,
            timeout: Duration::from_millis(timeout_ms),
            counters: Counters::default(),
            drops_told: Mutex::default(),
        })
    }

    /// Says in the log that events are dropped, now and then.
    pub(super) fn tell_drops(&self) {
        let mut told = self.drops_told.lock();
        if told.is_none_or(|told| told.elapsed() >= DROPS_TOLD) {
            *told = Some(Instant::now());
            let (target, dropped) = (&self.name, self.counters.dropped.load(Ordering::Relaxed));
            tracing::error!(%target, dropped, "too many events wait for a target: they are dropped");
        }
    }

    /// Whether the tenant may name it.
    pub(super) fn is_open_to(&self, tenant: TenantId) -> bool {
        self.tenants.as_ref().is_none_or(|tenants| tenants.contains(&tenant))
    }

    /// Brings it a message; `id` is the same whenever the same message is sent.
    pub(super) async fn send(&self, message: Bytes, id: &str) -> Result<(), DeliveryError> {
        let sending = async {
            match &self.sink {
                Sink::Webhook(webhook) => webhook.send(message).await,
                Sink::Nats(nats) => nats.send(message, id).await,
            }
        };
        let sent = tokio::time::timeout(self.timeout, sending).await;
        sent.unwrap_or(Err(DeliveryError::TimedOut))
    }
}

fn read(path: &Path) -> Result<String, InvalidTarget> {
    std::fs::read_to_string(path)
        .map_err(|source| InvalidTarget::File { path: path.to_owned(), source })
}

/// TLS that trusts these authorities, or the system's where it is needed.
fn tls(ca_file: Option<&Path>, needed: bool) -> Result<ClientConfig, InvalidTarget> {
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let broken = |error: rustls::Error| InvalidTarget::Tls(std::io::Error::other(error));
    let begun = ClientConfig::builder_with_provider(ring);
    let begun = begun.with_safe_default_protocol_versions().map_err(broken)?;
    let trusting = match ca_file {
        Some(path) => begun.with_root_certificates(authorities(&read(path)?)?),
        None if needed => begun.with_native_roots().map_err(InvalidTarget::Tls)?,
        None => begun.with_root_certificates(RootCertStore::empty()),
    };
    Ok(trusting.with_no_client_auth())
}
