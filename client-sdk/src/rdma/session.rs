//! A session with a node: two queue pairs, connected by way of the service.
//!
//! Sketch of an opening: a protection domain and a queue pair with its windows here (system
//! calls, off the runtime's threads), one signed request that makes the node's end, and the
//! connecting. A session is used until it breaks, idles too long for the node, or its client is
//! gone; the node is told of the end, and where that fails finds out by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Method};
use bytes::Bytes;
use keyway_fabric::verbs::{Domain, Link, LinkShape, VerbsError};
use keyway_proto::key::RevokeRace;
use keyway_proto::{KeyStrength, Rail, SessionId, SessionOffer, SessionRequest};
use tokio::sync::Semaphore;

use super::RdmaConfig;
use super::ports::LocalPort;
use super::registrations::Registrations;
use crate::error::{ClientError, Malformed};
use crate::http::{Call, Wire};

/// Requests of a client's end beside its windows': none, but a queue has at least one.
const SENDS_MIN: u32 = 2;
/// How often registrations of buffers that are gone are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// Why no session was opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The adapter refused.
    #[error("the adapter refused")]
    Verbs(#[from] VerbsError),
    /// The service refused, or could not be asked.
    #[error("the service opened no session")]
    Service(#[source] Box<ClientError>),
    /// The node offers keys that were not asked for, or no room for any.
    #[error("the node offers something else than was asked for")]
    StrangeOffer,
    /// The runtime shuts down.
    #[error("the client is shutting down")]
    ShuttingDown,
}

impl From<ClientError> for SessionError {
    fn from(error: ClientError) -> Self {
        Self::Service(Box::new(error))
    }
}

/// An open session.
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) link: Link,
    pub(super) strength: KeyStrength,
    pub(super) race: RevokeRace,
    pub(super) domain: Arc<Domain>,
    pub(super) registrations: Arc<Registrations>,
    /// Transfers that may be in flight.
    pub(super) permits: Arc<Semaphore>,
    /// Set when the service no longer knows it.
    forgotten: AtomicBool,
    wire: Arc<Wire>,
    /// Its thread serves the link until the last transfer has ended.
    _port: Arc<LocalPort>,
}

impl Session {
    /// Opens a session between a port and a rail.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is left of it here.
    pub(super) async fn open(
        wire: &Arc<Wire>,
        port: &Arc<LocalPort>,
        rail: &Rail,
        config: &RdmaConfig,
    ) -> Result<Arc<Self>, SessionError> {
        let (domain, pending) = {
            let (port, shape) = (Arc::clone(port), shape(port.strength, config.windows));
            blocking(move || {
                let domain = Domain::new(port.port().device())?;
                let pending = port.port().link(&domain, shape)?;
                Ok((domain, pending))
            })
            .await?
        };
        let strengths = port.strengths(config.strength_min);
        let request = SessionRequest {
            node: rail.node,
            rail: rail.rail,
            client: pending.address(),
            windows: config.windows,
            strengths: strengths.clone(),
        };
        let offer = ask(wire, &request).await?;
        let sound = strengths.contains(&offer.strength)
            && offer.node == rail.node
            && offer.session.node() == rail.node
            && offer.windows >= 1;
        // From here on the node has an end of its own, which `Session`'s drop tells it to close.
        let server = offer.server.checked().ok().filter(|_| sound);
        let Some(server) = server else {
            close(wire, offer.session);
            return Err(SessionError::StrangeOffer);
        };
        let link = match blocking(move || pending.connect(&server)).await {
            Ok(link) => link,
            Err(error) => {
                close(wire, offer.session);
                return Err(error);
            }
        };
        let windows = offer.windows.min(config.windows);
        let registrations = Arc::new(Registrations::new(&domain, port.is_exact()));
        tokio::spawn(sweep(Arc::downgrade(&registrations)));
        tracing::debug!(
            session = %offer.session, rail = rail.name, strength = %offer.strength, windows,
            "RDMA session opened"
        );
        Ok(Arc::new(Self {
            id: offer.session,
            strength: offer.strength,
            race: port.race(),
            domain,
            registrations,
            permits: Arc::new(Semaphore::new(windows as usize)),
            forgotten: AtomicBool::new(false),
            wire: Arc::clone(wire),
            link,
            _port: Arc::clone(port),
        }))
    }

    /// Whether transfers may still begin.
    pub(super) fn is_usable(&self) -> bool {
        self.link.is_alive() && !self.forgotten.load(Ordering::Relaxed)
    }

    /// The service does not know it any more.
    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.forgotten.load(Ordering::Relaxed) {
            close(&self.wire, self.id);
        }
    }
}

/// What a link must have room for. Windows are made where the adapter has any, for it is the
/// node that has the last word on the kind of keys.
fn shape(strength: KeyStrength, windows: u32) -> LinkShape {
    match strength {
        KeyStrength::Window | KeyStrength::WindowLocal => LinkShape::client(windows),
        _ => LinkShape { sends: SENDS_MIN, windows: 0 },
    }
}

async fn ask(wire: &Wire, request: &SessionRequest) -> Result<SessionOffer, SessionError> {
    let mut call = Call::control(Method::POST, "/_keyway/v1/sessions");
    call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(request).expect("types of ours have a JSON form");
    call.body = Bytes::from(body).into();
    let document = wire.attempt(&call).await?.document().await?;
    let offer = serde_json::from_slice(&document);
    offer.map_err(|error| ClientError::from(Malformed::because("a strange session", error)).into())
}

/// Tells the service that a session has ended, if there is anybody left to tell it.
fn close(wire: &Arc<Wire>, session: SessionId) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let wire = Arc::clone(wire);
    runtime.spawn(async move {
        let call = Call::control(Method::DELETE, &format!("/_keyway/v1/sessions/{session}"));
        if let Err(error) = wire.attempt(&call).await {
            tracing::debug!(%error, %session, "the service was not told of a session's end");
        }
    });
}

async fn sweep(registrations: Weak<Registrations>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(registrations) = registrations.upgrade() else { return };
        registrations.sweep();
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, VerbsError> + Send + 'static,
) -> Result<T, SessionError> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|_| SessionError::ShuttingDown)??)
}
