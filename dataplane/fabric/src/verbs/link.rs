//! A connection to a peer, as tasks use it.
//!
//! Sketch of a batch: one message to the port's thread, one doorbell for all its requests,
//! one signaled completion, one message back. No byte is copied; no lock is taken per byte.
//! A batch waits for room in the send queue, which is its bound.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::key::Direction;
use keyway_proto::{QpAddress, RemoteKey, RemoteWindow};
use tokio::sync::{Semaphore, oneshot, watch};

use super::armed::{Arming, owns};
use super::domain::{Domain, Registration};
use super::dynamic::DcTarget;
use super::link_state::LinkState;
use super::port::{Command, CqShare, LinkShape, PortShared};
use super::queue::{QueuePair, Window};
use super::route::Route;
use super::work::{Bind, Held, Reply, Request, Verb};
use super::{Armed, VerbsError};
use crate::LinkError;
use crate::memory::Lease;

/// A queue pair that has an address and no peer yet.
pub struct PendingLink {
    state: LinkState,
    shared: Arc<Shared>,
    address: QpAddress,
    route: Route,
}

impl PendingLink {
    /// Makes a queue pair with its windows. Blocks for system calls.
    pub(super) fn new(
        port: &Arc<PortShared>,
        domain: &Arc<Domain>,
        shape: LinkShape,
    ) -> Result<Self, VerbsError> {
        let slot = port.take_slot(shape)?;
        let receives = shape.receives();
        let qp = QueuePair::new(domain, &port.cq, shape.sends, receives)?;
        qp.initialise(&port.info)?;
        let id = port.next_link();
        qp.receive(Request::receive_id(id), receives)?;
        // After the queue pair: soft-RoCE's teardown at a process' death depends on it.
        let windows = (0..shape.windows).map(|_| Window::new(domain));
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        let address = QpAddress {
            link: port.info.link,
            gid: port.info.gid,
            lid: port.info.lid,
            qp: qp.number(),
            psn: qp.psn(),
            mtu: port.info.mtu,
        };
        let (state, shared) = assemble((port, id), domain, shape, qp, windows, slot);
        Ok(Self { state, shared, address, route: Route::default() })
    }

    /// What the peer must know.
    pub fn address(&self) -> QpAddress {
        self.address
    }

    /// Has it take this way. Before anybody is told of its address: the way may carry smaller
    /// packets than the port.
    #[must_use]
    pub fn along(mut self, route: Route) -> Self {
        self.address.mtu = route.mtu(&self.shared.port.info);
        self.route = route;
        self
    }

    /// Connects to the peer. Blocks for system calls; the peer need not be ready.
    ///
    /// # Errors
    /// [`VerbsError::OtherNetwork`], [`VerbsError::Native`].
    pub fn connect(self, peer: &QpAddress) -> Result<Link, VerbsError> {
        if peer.link != self.address.link {
            return Err(VerbsError::OtherNetwork);
        }
        let vector = self.route.vector(&self.shared.port.info, self.address.mtu, peer);
        self.state.qp().connect(peer, &vector)?;
        self.shared.port.send(Command::Adopt(Box::new(self.state)))?;
        Ok(Link { shared: self.shared })
    }
}

/// What the port's thread keeps of a link, and what tasks share.
fn assemble(
    (port, id): (&Arc<PortShared>, u32),
    domain: &Arc<Domain>,
    shape: LinkShape,
    qp: QueuePair,
    windows: Vec<Window>,
    slot: CqShare,
) -> (LinkState, Arc<Shared>) {
    let (status, watch) = watch::channel(None);
    let shared = Shared {
        id,
        port: Arc::clone(port),
        domain: Arc::clone(domain),
        sends: Arc::new(Semaphore::new(shape.sends as usize)),
        sends_max: shape.sends,
        windows: Arc::new(Semaphore::new(shape.windows as usize)),
        status: watch,
    };
    (LinkState::new(id, qp, windows, status, slot), Arc::new(shared))
}

/// A connected queue pair. Clones share it; the last one's drop destroys it.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    id: u32,
    port: Arc<PortShared>,
    domain: Arc<Domain>,
    sends: Arc<Semaphore>,
    sends_max: u32,
    windows: Arc<Semaphore>,
    /// Says why once the queue pair is gone.
    status: watch::Receiver<Option<LinkError>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A port that is gone has destroyed its links.
        let _ = self.port.send(Command::End { link: self.id, why: LinkError::Closed, keep: None });
    }
}

impl Link {
    /// A link over an initiator's queue pair, which is connected to nobody.
    pub(super) fn over_initiator(
        port: &Arc<PortShared>,
        domain: &Arc<Domain>,
        shape: LinkShape,
        qp: QueuePair,
        slot: CqShare,
    ) -> Result<Self, VerbsError> {
        let id = port.next_link();
        let (state, shared) = assemble((port, id), domain, shape, qp, Vec::new(), slot);
        port.send(Command::Adopt(Box::new(state)))?;
        Ok(Self { shared })
    }

    /// Posts a batch and waits for its end.
    ///
    /// Dropping the future does not stop it; its memory is freed when the device is done.
    ///
    /// # Errors
    /// [`LinkError`] once the queue pair is destroyed: the device touches none of the batch's
    /// memory any more.
    ///
    /// # Panics
    /// When the batch is empty or longer than the send queue.
    pub async fn post(&self, batch: Batch) -> Result<Landed, LinkError> {
        let posted = self.begin(batch).await?;
        self.landed(posted).await
    }

    /// Posts a batch, and answers as soon as there is room for it in the send queue.
    ///
    /// # Errors
    /// [`LinkError`] when the link is gone.
    ///
    /// # Panics
    /// When the batch is empty or longer than the send queue.
    pub async fn begin(&self, batch: Batch) -> Result<Posted, LinkError> {
        self.begin_to(None, batch).await
    }

    /// Begins a batch to the target; none is the peer that the queue pair is connected to.
    pub(super) async fn begin_to(
        &self,
        to: Option<Arc<DcTarget>>,
        batch: Batch,
    ) -> Result<Posted, LinkError> {
        let requests = u32::try_from(batch.verbs.len()).unwrap_or(u32::MAX);
        assert!((1..=self.shared.sends_max).contains(&requests), "a batch fits the send queue");
        let (reply, landed) = oneshot::channel();
        self.submit_to(to, requests, batch.verbs, Reply::Batch(reply)).await?;
        Ok(Posted(landed))
    }

    /// Waits for the end of a batch of this link.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn landed(&self, posted: Posted) -> Result<Landed, LinkError> {
        self.answer(posted.0).await
    }

    /// Most requests of one batch.
    pub fn batch_max(&self) -> usize {
        self.shared.sends_max as usize
    }

    /// Lends memory to the peer under a new window: waits for a free one, binds it, and
    /// answers when the adapter knows the key.
    ///
    /// Dropping the future ends a key that is under way; the memory is freed after it.
    ///
    /// # Errors
    /// The memory, and why the link is gone.
    ///
    /// # Panics
    /// When the registration does not cover the range, or the range is not the memory's: that is a
    /// slice of a buffer, for a peer that writes an exclusive one.
    pub async fn arm<M: Send + 'static>(
        &self,
        memory: M,
        registration: Arc<Registration>,
        address: u64,
        length: u32,
        direction: Direction,
    ) -> Result<Armed<M>, (LinkError, M)> {
        assert!(registration.covers(address, length as usize), "the range is registered");
        assert!(owns(&memory, address, length, direction), "the range is the memory's own");
        let Ok(permit) = Arc::clone(&self.shared.windows).acquire_owned().await else {
            return Err((LinkError::Closed, memory));
        };
        let (reply, bound) = oneshot::channel();
        let lend = Arming::new(self.clone(), memory, address, length, reply);
        let bind = Verb::Bind(Bind { registration, address, length, direction, permit });
        // What was not posted comes back the same way as what ended with the link.
        let _ = self.submit(1, vec![bind], Reply::Bind(Box::new(lend))).await;
        match bound.await.expect("a lend answers on its drop at the latest") {
            Ok(armed) => Ok(armed),
            Err(memory) => Err((self.destroyed().await, memory)),
        }
    }

    /// Asks the peer's adapter for a sign of life: an empty WRITE, which needs no key.
    ///
    /// # Errors
    /// [`LinkError`] once the link is gone.
    pub async fn heartbeat(&self) -> Result<(), LinkError> {
        self.post(Batch { verbs: vec![Verb::Heartbeat] }).await.map(drop)
    }

    /// Resolves, with the reason, when the queue pair no longer exists.
    pub async fn destroyed(&self) -> LinkError {
        let mut status = self.shared.status.clone();
        match status.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(LinkError::Closed),
            // The port's thread is gone, and what it owned with it.
            Err(_) => LinkError::Closed,
        }
    }

    /// Whether the queue pair still exists, as far as is known here.
    pub fn is_alive(&self) -> bool {
        self.shared.status.borrow().is_none()
    }

    /// Destroys the queue pair with its windows, and waits until it is gone. `keep` is dropped
    /// after that.
    pub async fn fence(&self) -> LinkError {
        self.fence_keeping(None);
        self.destroyed().await
    }

    pub(super) fn fence_keeping(&self, keep: Option<Held>) {
        let why = LinkError::Closed;
        // A port that is gone has destroyed its links: its thread closes the queue after that.
        let _ = self.shared.port.send(Command::End { link: self.shared.id, why, keep });
    }

    /// The domain that the link is in.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.shared.domain
    }

    pub(super) async fn revoke(&self, slot: usize, key: RemoteKey) -> Result<(), LinkError> {
        let (reply, revoked) = oneshot::channel();
        self.submit(1, vec![Verb::Revoke { slot, key }], Reply::Revoke(reply)).await?;
        self.answer(revoked).await
    }

    async fn submit(&self, requests: u32, verbs: Vec<Verb>, reply: Reply) -> Result<(), LinkError> {
        self.submit_to(None, requests, verbs, reply).await
    }

    async fn submit_to(
        &self,
        to: Option<Arc<DcTarget>>,
        requests: u32,
        verbs: Vec<Verb>,
        reply: Reply,
    ) -> Result<(), LinkError> {
        let permit = Arc::clone(&self.shared.sends).acquire_many_owned(requests).await;
        let permit = permit.map_err(|_| LinkError::Closed)?;
        let request = Request { link: self.shared.id, to, verbs, reply, permit };
        match self.shared.port.send(Command::Post(request)) {
            Ok(()) => Ok(()),
            // The port is going. Whoever hears of it may free memory, so it is told only when
            // the queue pair is gone.
            Err(_) => Err(self.destroyed().await),
        }
    }

    async fn answer<T>(
        &self,
        answer: oneshot::Receiver<Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        match answer.await {
            Ok(answer) => answer,
            // The request met a link that was gone already.
            Err(_) => Err(self.destroyed().await),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

/// Requests that are posted together, in order, with one doorbell.
#[derive(Default)]
pub struct Batch {
    verbs: Vec<Verb>,
}

impl Batch {
    /// Writes bytes of registered memory to the peer's address, under its key.
    ///
    /// # Panics
    /// When the registration does not cover the bytes.
    pub fn write(
        &mut self,
        registration: &Arc<Registration>,
        bytes: Bytes,
        address: u64,
        key: RemoteKey,
    ) {
        let local = bytes.as_ptr() as u64;
        assert!(registration.covers(local, bytes.len()), "the bytes are registered");
        let registration = Arc::clone(registration);
        self.verbs.push(Verb::Write { registration, bytes, address, key });
    }

    /// Reads runs of the peer's memory into a lease, one behind the other: a request each.
    ///
    /// # Panics
    /// When the registration does not cover the lease, or the lease is shorter than the runs.
    pub fn read(&mut self, registration: &Arc<Registration>, lease: Lease, runs: &[RemoteWindow]) {
        let mut local = lease.base().as_ptr() as u64;
        assert!(registration.covers(local, lease.len()), "the lease is registered");
        let bytes: u64 = runs.iter().map(|run| u64::from(run.length)).sum();
        assert!(bytes <= lease.len() as u64, "the lease holds the bytes");
        let mut lease = Some(lease);
        for run in runs {
            self.verbs.push(Verb::Read {
                registration: Arc::clone(registration),
                // With the first: all requests of a batch live and end together.
                lease: lease.take(),
                local,
                remote: *run,
            });
            local += u64::from(run.length);
        }
    }

    /// Ends the peer's key, with a message that carries nothing else. It is executed after
    /// the WRITEs before it; READs before it must have completed, or be waited for by it.
    pub fn invalidate(&mut self, key: RemoteKey) {
        self.verbs.push(Verb::Invalidate { key });
    }

    /// Whether it moves bytes and does nothing else.
    pub(super) fn moves_alone(&self) -> bool {
        self.verbs.iter().all(|verb| matches!(verb, Verb::Write { .. } | Verb::Read { .. }))
    }

    /// Requests in the batch.
    pub fn len(&self) -> usize {
        self.verbs.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.verbs.is_empty()
    }
}

/// A batch under way. Dropping it does not stop it.
pub struct Posted(oneshot::Receiver<Result<Landed, LinkError>>);

/// A batch that ended well.
#[derive(Debug, Default)]
pub struct Landed {
    /// The leases that READs filled, in order.
    pub leases: Vec<Lease>,
}
