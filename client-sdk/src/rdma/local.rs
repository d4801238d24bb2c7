//! A session with a node of this host: its door, and the memory that it has mapped.
//!
//! Sketch of an opening: one signed request for a ticket, one connection to a Unix socket, one
//! message each way. Of a transfer's preparation: a look at the list of what is mapped; where
//! the memory is not in it, one message and the node's mapping of it, about 10 ms for a GPU's
//! allocation. What is mapped stays so until its allocation is gone.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::http::Method;
use keyway_fabric::gpu::CopyQueue;
use keyway_fabric::ipc::{ClientLink, ExportId, IpcError, SharedRegion, host_id};
use keyway_fabric::memory::BufferLife;
use keyway_proto::{Door, LocalSessionOffer, LocalSessionRequest};
use parking_lot::Mutex;

use super::RdmaConfig;
use super::fallback::Fallback;
use super::session::{SWEEP, Session, SessionError, ask, close};
use super::target::Target;
use super::transaction::RdmaError;
use crate::http::Wire;

/// How long a door may take to open: as long as its ticket lives.
const DOOR_PATIENCE: Duration = Duration::from_secs(10);
/// Allocations of one session that stay mapped.
const KEPT_MAX: usize = 1024;

/// A link to a node of this host.
pub(super) struct LocalLane {
    pub(super) link: ClientLink,
    pub(super) regions: Arc<Regions>,
}

/// What a node has mapped.
pub(super) struct Regions {
    link: ClientLink,
    kept: Mutex<Vec<Kept>>,
    /// Of the GPUs whose memory was lent: opening one costs more than a transfer does.
    engines: Mutex<Vec<CopyQueue>>,
}

struct Kept {
    region: Arc<SharedRegion>,
    life: BufferLife,
}

impl Regions {
    /// The region that a target lies in; mapped now where it is not yet.
    pub(super) async fn of(&self, target: &impl Target) -> Result<Arc<SharedRegion>, RdmaError> {
        self.keep_engine(target);
        if let Some(known) = self.known(&target.export_id()?) {
            return Ok(known);
        }
        let export = target.export()?;
        // Two transfers of a new buffer may both share it: one of them is swept with it.
        let shared = match self.link.share(export.clone()).await {
            // What was freed may still be mapped, and its addresses are in use again.
            Err(IpcError::Refused(_)) if self.sweep() > 0 => self.link.share(export).await,
            shared => shared,
        };
        let region = Arc::new(shared.map_err(RdmaError::Sharing)?);
        let mut kept = self.kept.lock();
        let oldest = (kept.len() >= KEPT_MAX).then(|| kept.remove(0));
        kept.push(Kept { region: Arc::clone(&region), life: target.life() });
        drop((kept, oldest));
        Ok(region)
    }

    /// Has the engine that digests the target's memory stay as long as the session.
    fn keep_engine(&self, target: &impl Target) {
        let Some(gpu) = target.gpu() else { return };
        let mut engines = self.engines.lock();
        if engines.iter().any(|engine| engine.gpu().ordinal() == gpu.ordinal()) {
            return;
        }
        // What is wrong with it, its use will tell.
        engines.extend(CopyQueue::open(gpu));
    }

    fn known(&self, id: &ExportId) -> Option<Arc<SharedRegion>> {
        let kept = self.kept.lock();
        let same = kept.iter().find(|kept| kept.region.id() == *id)?;
        Some(Arc::clone(&same.region))
    }

    /// Has the node let go of what is no more. Of a GPU's allocation the driver tells: buffers
    /// over it come and go while it stays. Tells how many they were. The node hears of
    /// them before it is asked for anything else.
    fn sweep(&self) -> usize {
        let is_over = |kept: &mut Kept| match kept.region.is_current() {
            Some(is_current) => !is_current,
            None => kept.life.is_over(),
        };
        let over: Vec<_> = self.kept.lock().extract_if(.., |kept| is_over(kept)).collect();
        over.len()
    }
}

async fn sweep(regions: Weak<Regions>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(regions) = regions.upgrade() else { return };
        regions.sweep();
    }
}

/// The doors that a process of this host can come to.
pub(super) fn of_this_host(doors: Vec<Door>) -> Vec<Door> {
    let Ok(host) = host_id() else { return Vec::new() };
    // Another container of this host may have the same boot and another file system.
    doors.into_iter().filter(|door| door.host == host && Path::new(&door.socket).exists()).collect()
}

impl Session {
    /// Opens a session with a node of this host.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is left of it here.
    pub(super) async fn open_local(
        wire: &Arc<Wire>,
        door: &Door,
        config: &RdmaConfig,
    ) -> Result<Arc<Self>, SessionError> {
        let request = LocalSessionRequest { node: door.node, windows: config.windows };
        let offer: LocalSessionOffer =
            ask(wire, Method::POST, "/_keyway/v1/local-sessions", &request).await?;
        if offer.node != door.node || offer.session.node() != door.node || offer.windows == 0 {
            close(wire, offer.session);
            return Err(SessionError::StrangeOffer);
        }
        let opening = ClientLink::open(Path::new(&door.socket), offer.ticket);
        let opened = tokio::time::timeout(DOOR_PATIENCE, opening).await;
        let link = match opened.unwrap_or(Err(IpcError::Closed)) {
            Ok(link) => link,
            Err(error) => {
                close(wire, offer.session);
                return Err(error.into());
            }
        };
        let windows = offer.windows.min(config.windows);
        tracing::debug!(session = %offer.session, windows, "local session opened");
        let regions = Arc::new(Regions {
            link: link.clone(),
            kept: Mutex::default(),
            engines: Mutex::default(),
        });
        tokio::spawn(sweep(Arc::downgrade(&regions)));
        Ok(Arc::new(Self::local(wire, offer.session, windows, LocalLane { link, regions })))
    }
}

/// Why memory cannot be shared with a node of this host.
impl From<Fallback> for RdmaError {
    fn from(reason: Fallback) -> Self {
        Self::NotShared(reason)
    }
}
