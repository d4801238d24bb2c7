//! The node's door for processes of its own host, and the tickets that open it.
//!
//! The gateway asks for a ticket on behalf of whom it has authenticated; whoever shows it at
//! the socket, once and within [`TICKET_LIFE`], has the session. What the kernel says of the
//! visitor's user is held against the configuration besides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_auth::grant;
use keyway_fabric::ipc::{DoorListener, NodeGpus, SLOTS_MAX, Visitor, host_id};
use keyway_proto::{
    Door, DoorTicket, HostId, KeyStrength, LocalSessionOffer, LocalSessionRequest, NodeId,
    SessionId, SessionOwner, SessionSelector,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::session::{Sessions, Way, selects};
use super::{IpcConfig, RdmaConfig};
use crate::node::SessionError;
use crate::store::AccessMode;

/// How long a ticket waits to be shown.
const TICKET_LIFE: Duration = Duration::from_secs(10);
/// How long a visitor may take to show one.
const VISITOR_PATIENCE: Duration = Duration::from_secs(5);
/// Visitors that have not shown theirs yet; further ones wait in the socket's queue.
const VISITORS_MAX: usize = 64;
/// How long to wait when no visitor could be let in, for want of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a node that must have a door has none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorUnavailable {
    /// The configuration names no socket.
    #[error("a door for local clients is required, and no socket is named")]
    NoPath,
    /// The socket cannot be opened.
    #[error("the door {path:?} for local clients cannot be opened")]
    Socket {
        /// The socket's path.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// The door, and whom it waits for.
pub(super) struct LocalDoor {
    host: HostId,
    socket: String,
    tickets: Arc<Mutex<HashMap<DoorTicket, Expected>>>,
    accepting: JoinHandle<()>,
}

/// Whose ticket it is.
struct Expected {
    session: SessionId,
    owner: SessionOwner,
    windows: u32,
    until: Instant,
}

impl LocalDoor {
    /// Opens the door that the operator wants. Says in the log why there is none.
    pub(super) fn open(
        config: &IpcConfig,
        limits: &RdmaConfig,
        sessions: &Arc<Sessions>,
        gpus: &Arc<NodeGpus>,
    ) -> Result<Option<Self>, DoorUnavailable> {
        let required = match config.mode {
            AccessMode::Off => return Ok(None),
            AccessMode::Auto => false,
            AccessMode::Require => true,
        };
        let Some(path) = &config.socket else {
            return if required { Err(DoorUnavailable::NoPath) } else { Ok(None) };
        };
        let opened = path
            .to_str()
            .ok_or_else(|| std::io::Error::other("the path is no UTF-8"))
            .and_then(|socket| Ok((socket.to_owned(), host_id()?, DoorListener::bind(path)?)));
        let (socket, host, listener) = match opened {
            Ok(opened) => opened,
            Err(source) if required => {
                return Err(DoorUnavailable::Socket { path: path.clone(), source });
            }
            Err(error) => {
                tracing::info!(%error, ?path, "no door for local clients");
                return Ok(None);
            }
        };
        let tickets = Arc::default();
        let reception = Reception {
            tickets: Arc::clone(&tickets),
            sessions: Arc::clone(sessions),
            gpus: Arc::clone(gpus),
            users: config.users.clone(),
            limits: limits.clone(),
        };
        let accepting = tokio::spawn(accept(listener, Arc::new(reception)));
        Ok(Some(Self { host, socket, tickets, accepting }))
    }

    pub(super) fn describe(&self, node: NodeId) -> Door {
        Door { node, host: self.host, socket: self.socket.clone() }
    }

    /// A ticket for the owner.
    pub(super) fn offer(
        &self,
        owner: SessionOwner,
        request: LocalSessionRequest,
        sessions: &Sessions,
        limits: &RdmaConfig,
    ) -> Result<LocalSessionOffer, SessionError> {
        sessions.room(&owner, limits)?;
        let most = limits.windows_per_session_max.min(SLOTS_MAX as u32);
        let windows = request.windows.clamp(1, most);
        let (session, ticket) = (sessions.next_id(), DoorTicket(grant::nonce()));
        let now = Instant::now();
        let mut tickets = self.tickets.lock();
        tickets.retain(|_, expected| expected.until > now);
        if tickets.len() >= limits.sessions_max {
            return Err(SessionError::TooMany);
        }
        tickets.insert(ticket, Expected { session, owner, windows, until: now + TICKET_LIFE });
        let idle_timeout_ms = limits.idle_timeout_ms;
        Ok(LocalSessionOffer { session, node: request.node, ticket, windows, idle_timeout_ms })
    }

    /// Lets tickets expire that were not shown yet, and tells how many they were.
    pub(super) fn withdraw(&self, selector: &SessionSelector) -> u64 {
        let mut tickets = self.tickets.lock();
        let before = tickets.len();
        tickets.retain(|_, expected| !selects(selector, expected.session, &expected.owner));
        (before - tickets.len()) as u64
    }

    /// How many tickets may still be shown.
    pub(super) fn expected(&self, selector: &SessionSelector) -> u64 {
        let now = Instant::now();
        let tickets = self.tickets.lock();
        let means = |expected: &&Expected| {
            expected.until > now && selects(selector, expected.session, &expected.owner)
        };
        tickets.values().filter(means).count() as u64
    }
}

impl Drop for LocalDoor {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What a visitor is held against.
struct Reception {
    tickets: Arc<Mutex<HashMap<DoorTicket, Expected>>>,
    sessions: Arc<Sessions>,
    gpus: Arc<NodeGpus>,
    users: Vec<u32>,
    limits: RdmaConfig,
}

async fn accept(listener: DoorListener, reception: Arc<Reception>) {
    let room = Arc::new(Semaphore::new(VISITORS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(visitor) => {
                let reception = Arc::clone(&reception);
                tokio::spawn(async move {
                    reception.receive(visitor).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a local client could not be let in");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Reception {
    async fn receive(&self, visitor: Visitor) {
        let (user, process) = (visitor.user, visitor.process);
        let shown = tokio::time::timeout(VISITOR_PATIENCE, visitor.ticket()).await;
        let Ok(Ok(ticket)) = shown else {
            tracing::debug!(user, process, "a visitor showed no ticket");
            return;
        };
        let expected = self.tickets.lock().remove(&ticket);
        let expected = expected.filter(|expected| {
            let is_welcome = self.users.is_empty() || self.users.contains(&user);
            is_welcome && expected.until > Instant::now()
        });
        let Some(Expected { session, owner, windows, .. }) = expected else {
            tracing::info!(user, process, "a local client was turned away");
            visitor.refuse().await;
            return;
        };
        let link = match visitor.admit(windows as usize, Arc::clone(&self.gpus)).await {
            Ok(link) => link,
            Err(error) => {
                tracing::info!(%error, user, process, "a local client was not let in");
                return;
            }
        };
        tracing::debug!(%session, user, process, "a local session began");
        let way = Way::Ipc(link);
        let begun =
            self.sessions.begin(session, owner, way, KeyStrength::Ipc, windows, &self.limits);
        if let Err(error) = begun {
            tracing::info!(%error, %session, "a local session did not begin");
        }
    }
}
