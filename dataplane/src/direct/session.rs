//! Sessions: who may use which link, and until when.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use keyway_fabric::LinkError;
use keyway_fabric::ipc::NodeLink;
use keyway_fabric::verbs::{LinkShape, VerbsError};
use keyway_proto::key::Revoker;
use keyway_proto::{
    KeyStrength, NodeId, RemoteKey, RemoteWindow, SessionId, SessionOffer, SessionOwner,
    SessionRequest, SessionSelector,
};
use parking_lot::Mutex;

use super::RdmaConfig;
use super::dynamic::DcWay;
use super::rail::NodeRail;
use super::transport::{Transport as _, VerbsWay};
use crate::engine::NodeMemory;
use crate::node::SessionError;

/// How often a session is looked at: whether it idles, and whether its client still lives.
const LOOK: Duration = Duration::from_secs(10);

/// The open sessions.
pub(super) struct Sessions {
    node: NodeId,
    next: AtomicU32,
    open: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// A session: a link to one client.
pub(crate) struct Session {
    pub(super) id: SessionId,
    pub(super) owner: SessionOwner,
    pub(super) way: Way,
    pub(super) strength: KeyStrength,
    windows: u32,
    begun: Instant,
    /// Milliseconds after `begun` at which it was last used.
    used_ms: AtomicU64,
    transfers: AtomicU32,
    /// Keys of transfers under way that the node is to end.
    keys: Mutex<HashSet<RemoteKey>>,
}

/// What a session's bytes travel over.
#[derive(Clone)]
pub(super) enum Way {
    /// A queue pair, connected to the client's.
    Verbs(VerbsWay),
    /// Mappings of the client's memory, on the same host.
    Ipc(NodeLink),
    /// An initiator that writes to the client's dynamically connected target, for one transfer.
    Dynamic(DcWay),
}

impl Way {
    async fn fence(&self) -> LinkError {
        match self {
            Self::Verbs(way) => way.link.fence().await,
            Self::Ipc(link) => link.fence().await,
            Self::Dynamic(way) => {
                way.fence().await;
                way.destroyed().await
            }
        }
    }

    async fn destroyed(&self) -> LinkError {
        match self {
            Self::Verbs(way) => way.link.destroyed().await,
            Self::Ipc(link) => link.destroyed().await,
            Self::Dynamic(way) => way.destroyed().await,
        }
    }

    /// Notices a client that died without a word: its adapter does not answer. A process of
    /// this host does not die unnoticed.
    async fn heartbeat(&self) {
        if let Self::Verbs(way) = self {
            let _ = way.link.heartbeat().await;
        }
    }
}

/// A transfer of a session, counted while it lives.
pub(crate) struct Use {
    pub(super) session: Arc<Session>,
    /// Where it is listed for this transfer alone.
    listed: Option<Arc<Sessions>>,
}

impl Sessions {
    pub(super) fn new(node: NodeId) -> Self {
        // Serials start anywhere, so that ids of an earlier life are not taken for this one's.
        Self { node, next: AtomicU32::new(fastrand::u32(..)), open: Mutex::default() }
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        rail: Arc<NodeRail>,
        memory: NodeMemory,
        owner: SessionOwner,
        request: SessionRequest,
        config: &RdmaConfig,
    ) -> Result<SessionOffer, SessionError> {
        let strength = common(rail.strength, &request.strengths)?;
        let client = request.client.checked();
        let client = client.map_err(|_| SessionError::Incompatible("the address is malformed"))?;
        self.room(&owner, config)?;
        let windows = request.windows.clamp(1, config.windows_per_session_max);
        let tenant = owner.tenant;
        // Queue pairs and registrations are made by blocking system calls.
        let made = tokio::task::spawn_blocking(move || {
            // Before anything is made for a client that is not there.
            let route = rail.port.route(client.link, client.gid, rail.marks)?;
            let domain = rail.domain(tenant, &memory)?;
            let pending = rail.port.link(&domain.domain, LinkShape::NODE)?.along(route);
            let server = pending.address();
            Ok((pending.connect(&client)?, domain, server))
        });
        let (link, domain, server) = made.await.map_err(|_| stopped())?.map_err(refused)?;
        let way = Way::Verbs(VerbsWay::new(link, domain));
        let session = self.begin(self.next_id(), owner, way, strength, windows, config)?;
        let (node, idle_timeout_ms) = (self.node, config.idle_timeout_ms);
        Ok(SessionOffer { session, node, server, strength, windows, idle_timeout_ms })
    }

    /// An id that no session of this life of the node had.
    pub(super) fn next_id(&self) -> SessionId {
        let next = || self.next.fetch_add(1, Ordering::Relaxed);
        // 0 stands for none.
        let serial = Some(next()).filter(|serial| *serial != 0).unwrap_or_else(next);
        SessionId::new(self.node, serial)
    }

    /// Takes a session up, and watches over it from here on.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: SessionId,
        owner: SessionOwner,
        way: Way,
        strength: KeyStrength,
        windows: u32,
        config: &RdmaConfig,
    ) -> Result<SessionId, SessionError> {
        let session = Session::new(id, owner, way, strength, windows);
        self.list(&session, config)?;
        let idle = Duration::from_millis(config.idle_timeout_ms);
        tokio::spawn(watch(Arc::clone(self), session, idle));
        Ok(id)
    }

    /// Lists one transfer that has no session of its client's, as a session of its own: whatever
    /// ends or counts the owner's sessions ends and counts it, too.
    pub(super) fn alone(
        self: &Arc<Self>,
        owner: SessionOwner,
        way: Way,
        config: &RdmaConfig,
    ) -> Result<Use, SessionError> {
        let session = Session::new(self.next_id(), owner, way, KeyStrength::Standing, 1);
        self.list(&session, config)?;
        session.transfers.fetch_add(1, Ordering::Relaxed);
        Ok(Use { session, listed: Some(Arc::clone(self)) })
    }

    fn list(&self, session: &Arc<Session>, config: &RdmaConfig) -> Result<(), SessionError> {
        // Others may have come while the link was made.
        let mut open = self.open.lock();
        room(&open, &session.owner, config)?;
        open.insert(session.id, Arc::clone(session));
        Ok(())
    }

    pub(super) fn room(
        &self,
        owner: &SessionOwner,
        config: &RdmaConfig,
    ) -> Result<(), SessionError> {
        room(&self.open.lock(), owner, config)
    }

    /// The owner's session, for one transfer of it.
    pub(super) fn take(&self, id: SessionId, owner: &SessionOwner) -> Option<Use> {
        let open = self.open.lock();
        let session = open.get(&id).filter(|session| session.owner == *owner)?;
        let taken = session.transfers.fetch_add(1, Ordering::Relaxed);
        let taken_use = Use { session: Arc::clone(session), listed: None };
        // More than windows: the client breaks its own promise.
        (taken < session.windows).then_some(taken_use)
    }

    pub(super) fn chosen(&self, selector: &SessionSelector) -> Vec<Arc<Session>> {
        let open = self.open.lock();
        let means = |session: &&Arc<Session>| selects(selector, session.id, &session.owner);
        open.values().filter(means).cloned().collect()
    }

    pub(super) async fn close(&self, selector: &SessionSelector) -> u64 {
        let chosen = self.chosen(selector);
        self.end(&chosen).await;
        chosen.len() as u64
    }

    /// Ends all of them: the node stops.
    pub(super) async fn close_all(&self) {
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        self.end(&all).await;
    }

    async fn end(&self, chosen: &[Arc<Session>]) {
        join_all(chosen.iter().map(|session| session.way.fence())).await;
        let mut open = self.open.lock();
        for session in chosen {
            open.remove(&session.id);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.open.lock().len() as u64
    }
}

impl Session {
    fn new(
        id: SessionId,
        owner: SessionOwner,
        way: Way,
        strength: KeyStrength,
        windows: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner,
            way,
            strength,
            windows,
            begun: Instant::now(),
            used_ms: AtomicU64::new(0),
            transfers: AtomicU32::new(0),
            keys: Mutex::default(),
        })
    }

    /// Takes the windows' keys for one transfer; `None` where another one, of the same request that
    /// ran twice, is under way under any of them. The first to end would end the other's key, and
    /// the second invalidate a dead one.
    pub(super) fn lend(&self, windows: &[RemoteWindow]) -> Option<Lent<'_>> {
        let mut lent = Lent { session: self, keys: Vec::new() };
        if self.strength.revoker() != Revoker::Node {
            return Some(lent);
        }
        for window in windows {
            if !self.keys.lock().insert(window.key) {
                return None;
            }
            lent.keys.push(window.key);
        }
        Some(lent)
    }

    fn touch(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used_ms.store(now, Ordering::Relaxed);
    }

    fn unused_for(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(used)
    }
}

/// The keys of one transfer, which no other may name while this lives.
pub(super) struct Lent<'a> {
    session: &'a Session,
    keys: Vec<RemoteKey>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut keys = self.session.keys.lock();
        for key in &self.keys {
            keys.remove(key);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.session.touch();
        self.session.transfers.fetch_sub(1, Ordering::Relaxed);
        if let Some(sessions) = &self.listed {
            let gone = sessions.open.lock().remove(&self.session.id);
            drop(gone);
        }
    }
}

/// Ends a session that idles or whose client is gone, and forgets one that has ended.
async fn watch(sessions: Arc<Sessions>, session: Arc<Session>, idle: Duration) {
    let (id, way) = (session.id, session.way.clone());
    loop {
        let ended = tokio::time::timeout(LOOK.min(idle), way.destroyed()).await;
        if let Ok(why) = ended {
            tracing::debug!(session = %id, %why, "a session ended");
            break;
        }
        if session.transfers.load(Ordering::Relaxed) > 0 {
            continue;
        }
        if session.unused_for() >= idle {
            way.fence().await;
        } else if session.unused_for() >= LOOK {
            way.heartbeat().await;
        }
    }
    sessions.open.lock().remove(&id);
}

/// Whether a selector means a session.
pub(super) fn selects(selector: &SessionSelector, id: SessionId, owner: &SessionOwner) -> bool {
    match selector {
        SessionSelector::One(one, of) => id == *one && owner == of,
        SessionSelector::Owner(of) => owner == of,
        SessionSelector::Tenant(tenant) => owner.tenant == *tenant,
    }
}

fn room(
    open: &HashMap<SessionId, Arc<Session>>,
    owner: &SessionOwner,
    config: &RdmaConfig,
) -> Result<(), SessionError> {
    let of_owner = open.values().filter(|session| session.owner == *owner).count();
    if open.len() >= config.sessions_max || of_owner >= config.sessions_per_key_max {
        return Err(SessionError::TooMany);
    }
    Ok(())
}

/// The strongest that both ends can do. A window's invalidation needs nothing of the node's
/// adapter but the sending; what the client's adapter cannot do, the node's does not help.
fn common(ours: KeyStrength, theirs: &[KeyStrength]) -> Result<KeyStrength, SessionError> {
    let usable = theirs.iter().copied().filter(|strength| {
        matches!(
            strength,
            KeyStrength::Window
                | KeyStrength::WindowLocal
                | KeyStrength::Registration
                | KeyStrength::Slab
        ) && (*strength != KeyStrength::Window || ours == KeyStrength::Window)
    });
    usable.max().ok_or(SessionError::Incompatible("no key strength in common"))
}

fn refused(error: VerbsError) -> SessionError {
    match error {
        VerbsError::OtherNetwork => SessionError::Incompatible("another kind of network"),
        VerbsError::TooManyLinks => SessionError::TooMany,
        VerbsError::NoPath(error) => {
            tracing::info!(%error, "a client's port is not reached");
            SessionError::Incompatible("no path from the rail to the client's port")
        }
        error => SessionError::Adapter(error.to_string().into()),
    }
}

fn stopped() -> SessionError {
    SessionError::Adapter("the node is shutting down".into())
}

#[cfg(test)]
mod tests {
    use keyway_fabric::verbs::ResolveError;
    use keyway_proto::Gid;

    use super::*;

    /// What a client can do nothing about is not the adapter's failure.
    #[test]
    fn an_unreachable_client_is_told_so() {
        let why = ResolveError::Unreachable { peer: Gid([0; 16]), why: "no route".to_owned() };
        let refused = refused(VerbsError::NoPath(why));
        assert!(matches!(refused, SessionError::Incompatible(why) if why.starts_with("no path")));
    }

    #[test]
    fn the_strongest_common_strength_is_taken() {
        use KeyStrength::{Http, Registration, Slab, Window, WindowLocal};
        let both = common(Window, &[Registration, Window, WindowLocal]);
        assert_eq!(both.ok(), Some(Window));
        assert_eq!(common(Registration, &[Window, WindowLocal]).ok(), Some(WindowLocal));
        assert_eq!(common(Window, &[Registration]).ok(), Some(Registration));
        assert_eq!(common(Window, &[Slab, Registration]).ok(), Some(Registration));
        assert_eq!(common(Slab, &[Http, Slab]).ok(), Some(Slab));
        assert!(common(Window, &[Http]).is_err());
        assert!(common(Window, &[]).is_err());
    }
}
