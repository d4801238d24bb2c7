//! Events to a JetStream stream of a NATS server: published, and acknowledged by the stream.
//!
//! Each carries its id as `Nats-Msg-Id`: what is delivered twice within the stream's window for
//! duplicates stands in it once.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::{self, context::PublishError};
use async_nats::{ConnectOptions, HeaderMap};
use bytes::Bytes;
use rustls::ClientConfig;
use tokio::sync::OnceCell;

use super::target::DeliveryError;

/// Messages that wait for a connection which is being made anew.
const WAITING_MAX: usize = 64;

/// A subject of a NATS server.
pub(super) struct Nats {
    url: String,
    subject: String,
    credentials: Option<PathBuf>,
    tls: ClientConfig,
    timeout: Duration,
    /// Made with the first event; it makes itself anew when it breaks.
    context: OnceCell<jetstream::Context>,
}

impl Nats {
    pub(super) fn new(
        url: &str,
        subject: &str,
        credentials: Option<PathBuf>,
        tls: ClientConfig,
        timeout: Duration,
    ) -> Self {
        let (url, subject) = (url.to_owned(), subject.to_owned());
        Self { url, subject, credentials, tls, timeout, context: OnceCell::new() }
    }

    pub(super) async fn send(&self, message: Bytes, id: &str) -> Result<(), DeliveryError> {
        let context = self.context.get_or_try_init(|| self.connect()).await?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        let published = context.publish_with_headers(self.subject.clone(), headers, message).await;
        let unreachable = |error: PublishError| DeliveryError::Unreachable(error.into());
        published.map_err(unreachable)?.await.map_err(unreachable)?;
        Ok(())
    }

    async fn connect(&self) -> Result<jetstream::Context, DeliveryError> {
        let mut options = ConnectOptions::new()
            .name("keyway")
            .tls_client_config(self.tls.clone())
            .require_tls(self.url.starts_with("tls://"))
            .connection_timeout(self.timeout)
            .request_timeout(Some(self.timeout))
            .client_capacity(WAITING_MAX);
        if let Some(path) = &self.credentials {
            let read = options.credentials_file(path).await;
            options = read.map_err(|error| DeliveryError::Unreachable(error.into()))?;
        }
        let connected = options.connect(&self.url).await;
        let client = connected.map_err(|error| DeliveryError::Unreachable(error.into()))?;
        Ok(jetstream::new(client))
    }
}
