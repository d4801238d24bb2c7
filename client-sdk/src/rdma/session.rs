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
use keyway_fabric::ipc::IpcError;
use keyway_fabric::verbs::{self, Domain, Link, LinkShape, ResolveError, VerbsError};
use keyway_proto::key::{Direction, RevokeRace};
use keyway_proto::{KeyStrength, Rail, SessionId, SessionOffer, SessionRequest, TransferPath};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RdmaConfig;
use super::armed::{Armed, Held};
use super::local::LocalLane;
use super::ports::{LocalPort, MemoryKind};
use super::registrations::Registrations;
use super::slab::{HeldPieces, Lent, Slabs};
use super::target::Target;
use super::transaction::{RdmaError, rejoin};
use crate::error::{ClientError, Malformed};
use crate::http::{Call, Wire};

/// Requests of a client's end beside its windows': none, but a queue has at least one.
const SENDS_MIN: u32 = 2;
/// Long reads of a session that are under way at a time, in MiB; none counts for more than half of
/// it, so that there are always two. Were all under way at once, all would end at once, and the link
/// would stand still while the client sums them.
const LONG_READS_MIB: u32 = 16;
const MIB: usize = 1 << 20;
/// How often registrations of buffers that are gone are looked for.
pub(super) const SWEEP: Duration = Duration::from_secs(1);

/// Why no session was opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The adapter refused.
    #[error("the adapter refused")]
    Verbs(#[source] VerbsError),
    /// No packet of this port reaches the node's.
    #[error("the node's port is not reached from this one")]
    NoPath(#[source] ResolveError),
    /// A node of this host did not let us in.
    #[error("the node of this host did not let us in")]
    Door(#[from] IpcError),
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

impl From<VerbsError> for SessionError {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::NoPath(error) => Self::NoPath(error),
            error => Self::Verbs(error),
        }
    }
}

impl From<ClientError> for SessionError {
    fn from(error: ClientError) -> Self {
        Self::Service(Box::new(error))
    }
}

/// An open session.
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) strength: KeyStrength,
    pub(super) race: RevokeRace,
    lane: Lane,
    /// Transfers that may be in flight.
    pub(super) permits: Arc<Semaphore>,
    /// Set when the service no longer knows it.
    forgotten: AtomicBool,
    wire: Arc<Wire>,
}

/// What a session's memory is lent over.
enum Lane {
    Verbs(VerbsLane),
    Local(LocalLane),
}

/// A queue pair of ours.
struct VerbsLane {
    link: Link,
    domain: Arc<Domain>,
    registrations: Arc<Registrations>,
    /// Used where the strength is `slab`.
    slabs: Slabs,
    /// [`LONG_READS_MIB`].
    long_reads: Arc<Semaphore>,
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
        memory: MemoryKind,
        config: &RdmaConfig,
    ) -> Result<Arc<Self>, SessionError> {
        let (domain, pending) = {
            let shape = shape(port.strongest(memory, config), config.windows);
            let port = Arc::clone(port);
            let (link, node, marks) = (rail.link, rail.gid, config.marks());
            blocking(move || {
                // Nothing is made, and the service not asked, for a node that is not reached.
                let route = port.port().route(link, node, marks)?;
                let domain = Domain::new(port.port().device())?;
                let pending = port.port().link(&domain, shape)?.along(route);
                Ok((domain, pending))
            })
            .await?
        };
        let strengths = port.strengths(memory, config);
        let request = SessionRequest {
            node: rail.node,
            rail: rail.rail,
            client: pending.address(),
            windows: config.windows,
            strengths: strengths.clone(),
        };
        let offer: SessionOffer = ask(wire, Method::POST, "/_keyway/v1/sessions", &request).await?;
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
        let race = port.race();
        let slabs = Slabs::new(&domain, config.slab_bytes);
        let long_reads = Arc::new(Semaphore::new(LONG_READS_MIB as usize));
        let port = Arc::clone(port);
        let lane = VerbsLane { link, domain, registrations, slabs, long_reads, _port: port };
        Ok(Arc::new(Self {
            id: offer.session,
            strength: offer.strength,
            race,
            lane: Lane::Verbs(lane),
            permits: Arc::new(Semaphore::new(windows as usize)),
            forgotten: AtomicBool::new(false),
            wire: Arc::clone(wire),
        }))
    }

    /// A session with a node of this host.
    pub(super) fn local(wire: &Arc<Wire>, id: SessionId, windows: u32, lane: LocalLane) -> Self {
        Self {
            id,
            strength: KeyStrength::Ipc,
            // Whoever comes second finds the key dead.
            race: RevokeRace::Harmless,
            lane: Lane::Local(lane),
            permits: Arc::new(Semaphore::new(windows as usize)),
            forgotten: AtomicBool::new(false),
            wire: Arc::clone(wire),
        }
    }

    /// Whether transfers may still begin.
    pub(super) fn is_usable(&self) -> bool {
        let is_alive = match &self.lane {
            Lane::Verbs(lane) => lane.link.is_alive(),
            Lane::Local(lane) => lane.link.is_alive(),
        };
        is_alive && !self.forgotten.load(Ordering::Relaxed)
    }

    /// Whether it has room for a transfer of so many bytes.
    pub(super) fn holds(&self, bytes: u64) -> bool {
        match &self.lane {
            Lane::Verbs(lane) if self.strength == KeyStrength::Slab => lane.slabs.hold(bytes),
            Lane::Verbs(_) | Lane::Local(_) => true,
        }
    }

    /// How bytes travel into and out of such memory.
    pub(super) fn path<M: Target>(&self) -> TransferPath {
        match &self.lane {
            Lane::Verbs(_) => M::PATH,
            Lane::Local(_) => M::LOCAL_PATH,
        }
    }

    /// Waits until the link has room for a transfer of so many bytes, which has it until what this
    /// gives is dropped: `None` for one that waits for nobody.
    pub(super) async fn room(
        &self,
        bytes: usize,
        direction: Direction,
    ) -> Option<OwnedSemaphorePermit> {
        let Lane::Verbs(lane) = &self.lane else { return None };
        let share = share_of_long_reads(bytes, direction)?;
        Arc::clone(&lane.long_reads).acquire_many_owned(share).await.ok()
    }

    /// What a key to the memory is made over.
    pub(super) async fn hold(
        &self,
        memory: &impl Target,
        direction: Direction,
    ) -> Result<Held, RdmaError> {
        match &self.lane {
            Lane::Verbs(lane) if self.strength == KeyStrength::Slab => {
                lane.slabs.take(memory.length(), direction).await.map(Held::Pieces)
            }
            Lane::Local(lane) => lane.regions.of(memory).await.map(Held::Region),
            Lane::Verbs(_) if self.strength == KeyStrength::Registration => Ok(Held::Nothing),
            Lane::Verbs(lane) => {
                let registration = lane.registrations.of(memory).await;
                registration.map(Held::Registration).map_err(RdmaError::Registration)
            }
        }
    }

    /// Lends the memory.
    pub(super) async fn arm<M: Target>(
        &self,
        memory: M,
        held: &mut Held,
        direction: Direction,
    ) -> Result<Armed<M>, (RdmaError, M)> {
        let address = memory.address();
        let length = u32::try_from(memory.length()).expect("a window's memory is bounded");
        match (&self.lane, &mut *held) {
            (Lane::Local(lane), Held::Region(region)) => {
                let armed = lane.link.arm(memory, region, address, length, direction).await;
                armed.map(Armed::Ipc).map_err(|(error, memory)| (RdmaError::Link(error), memory))
            }
            (Lane::Verbs(lane), Held::Registration(held)) => {
                let registration = Arc::clone(held.registration());
                let armed = lane.link.arm(memory, registration, address, length, direction).await;
                armed.map(Armed::Verbs).map_err(|(error, memory)| (RdmaError::Link(error), memory))
            }
            (Lane::Verbs(lane), Held::Pieces(_)) => {
                let held = std::mem::replace(held, Held::Nothing);
                let Held::Pieces(HeldPieces { pieces, registration }) = held else {
                    unreachable!("pieces were held a line before")
                };
                let mut lent = Lent { memory, pieces };
                if direction == Direction::Read {
                    lent.copy_in().await;
                }
                Ok(lent.arm(lane.link.clone(), &registration))
            }
            (Lane::Verbs(lane), _) => {
                let (link, domain) = (lane.link.clone(), Arc::clone(&lane.domain));
                let anchor = match memory.exact_anchor() {
                    Ok(anchor) => anchor,
                    Err(error) => return Err((RdmaError::Registration(error), memory)),
                };
                let register =
                    move || verbs::Armed::register(link, &domain, memory, anchor, direction);
                let armed = rejoin(tokio::task::spawn_blocking(register)).await;
                let refused = |(error, memory)| (RdmaError::Registration(error), memory);
                armed.map(Armed::Verbs).map_err(refused)
            }
            (Lane::Local(_), _) => unreachable!("what is held is of the session's own kind"),
        }
    }

    /// Ends the link, and every key of it.
    pub(super) async fn fence(&self) {
        match &self.lane {
            Lane::Verbs(lane) => drop(lane.link.fence().await),
            Lane::Local(lane) => drop(lane.link.fence().await),
        }
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

/// What a transfer takes of [`LONG_READS_MIB`]; `None` for what is short, or no read.
fn share_of_long_reads(bytes: usize, direction: Direction) -> Option<u32> {
    let is_long_read = direction == Direction::Write && bytes >= MIB;
    is_long_read.then(|| bytes.div_ceil(MIB).min(LONG_READS_MIB as usize / 2) as u32)
}

/// What a link must have room for. Windows are made where the adapter has any, for it is the
/// node that has the last word on the kind of keys.
fn shape(strength: KeyStrength, windows: u32) -> LinkShape {
    match strength {
        KeyStrength::Window | KeyStrength::WindowLocal => LinkShape::client(windows),
        _ => LinkShape { sends: SENDS_MIN, windows: 0 },
    }
}

/// Asks the service with a document, and reads the one that it answers with.
pub(super) async fn ask<T: DeserializeOwned>(
    wire: &Wire,
    method: Method,
    path: &str,
    request: &impl Serialize,
) -> Result<T, SessionError> {
    let mut call = Call::control(method, path);
    call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = serde_json::to_vec(request).expect("types of ours have a JSON form");
    call.body = Bytes::from(body).into();
    let document = wire.attempt(&call).await?.document().await?;
    let offer = serde_json::from_slice(&document);
    offer.map_err(|error| ClientError::from(Malformed::because("a strange session", error)).into())
}

/// Tells the service that a session has ended, if there is anybody left to tell it.
pub(super) fn close(wire: &Arc<Wire>, session: SessionId) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_long_reads_always_fit_and_short_ones_do_not_wait() {
        let share = |bytes| share_of_long_reads(bytes, Direction::Write);
        assert_eq!([0, 4096, MIB - 1].map(share), [None; 3]);
        assert_eq!([MIB, MIB + 1, 8 * MIB].map(share), [1, 2, 8].map(Some));
        assert_eq!(share(1 << 30).map(|most| 2 * most), Some(LONG_READS_MIB));
        assert_eq!(share_of_long_reads(64 * MIB, Direction::Read), None);
    }
}
