//! Transfers past HTTP: the node moves the bytes, the request and its answer carry none.
//!
//! | step | where |
//! |---|---|
//! | what the caller says about it | [`config`] |
//! | this machine's ports, opened and tried once | [`ports`] |
//! | the service's rails, and which port reaches which | [`rails`], [`pairing`] |
//! | a session: two queue pairs, connected | [`session`] |
//! | memory of the client's own that stays registered, and copies | [`slab`] |
//! | buffers registered with an adapter | [`registrations`] |
//! | the same with a node of this host, and what it has mapped | [`local`] |
//! | memory that is lent | [`target`], [`armed`] |
//! | one transfer under one key | [`transaction`] |
//! | what an answer says of the key and the bytes | [`reply`] |
//! | where the time went | [`phases`](crate::phases) |
//! | why bytes went over HTTP after all | [`fallback`] |
//!
//! Nothing is opened before a transfer could use it, and where there is no adapter nothing is
//! asked of the service. **The rule**: memory returns to its owner when its key is dead, on
//! every way out.

mod armed;
mod config;
mod fallback;
mod local;
mod pairing;
mod parts;
mod ports;
mod rails;
mod registrations;
mod reply;
mod session;
mod slab;
mod sums;
mod target;
mod transaction;
mod travelled;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyway_fabric::gpu::Gpu;
use keyway_proto::{KeyStrength, NodeId, TransferPath};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::builder::PathPolicy;
use crate::error::ClientError;
use crate::http::{Client, Wire};
use crate::phases::Marks;
use fallback::Counters;
use ports::{LocalPort, MemoryKind};
use rails::{Opening, Rails, Told, Way};

pub use config::{InvalidMark, RdmaConfig};
pub use fallback::{Fallback, Fallbacks, RdmaStats};
pub(crate) use rails::Ticket;
pub(crate) use reply::{Moved, Reply};
pub use session::SessionError;
pub(crate) use target::Target;
pub use transaction::RdmaError;
pub(crate) use transaction::{Order, Outcome, Settled, transact};
pub(crate) use travelled::Travelled;

/// Most bytes that one window holds: half of what adapters are known to take.
pub(crate) const WINDOW_BYTES_MAX: u64 = 1 << 30;
/// Failed transfers of one part before it goes over HTTP.
pub(crate) const FAILURES_MAX: u32 = 2;

/// A rail that a client uses, as [`Client::rdma_rails`] tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailReport {
    /// Our port, such as `mlx5_0/1`.
    pub port: String,
    /// The node.
    pub node: NodeId,
    /// Its port, as it calls it.
    pub rail: String,
    /// What protects memory that is lent there; `None` when no session was opened.
    pub strength: Option<KeyStrength>,
    /// Transfers that moved their bytes over it, since the client was built.
    pub transfers: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Transfers that failed there, and were made again, maybe over another rail, or given up.
    pub failures: u64,
    /// Whether it rests, for it failed a moment ago: the others carry what comes.
    pub rests: bool,
}

impl Client {
    /// Opens a session on every rail that can be used and does not rest, and tells of all of them.
    /// Transfers do so by themselves; this says beforehand what they will find, and afterwards which
    /// rail carried how much.
    ///
    /// # Errors
    /// Why transfers will go over HTTP.
    pub async fn rdma_rails(&self) -> Result<Vec<RailReport>, Fallback> {
        let rdma = self.rdma();
        let rails = rdma.rails().await?;
        let mut reports = Vec::new();
        for slot in rails.slots() {
            let Way::Rail(port, rail) = &slot.way else { continue };
            // One that rests is left alone.
            let session = match slot.rests() {
                true => None,
                false => slot.session(MemoryKind::Host, &rdma.opening()).await,
            };
            let (transfers, bytes, failures) = slot.moved();
            reports.push(RailReport {
                port: port.name(),
                node: rail.node,
                rail: rail.name.clone(),
                strength: session.map(|session| session.strength),
                transfers,
                bytes,
                failures,
                rests: slot.rests(),
            });
        }
        Ok(reports)
    }

    /// What this client and its clones did by RDMA.
    pub fn rdma_stats(&self) -> RdmaStats {
        self.rdma().counters.stats()
    }
}

/// A client's side of RDMA.
pub(crate) struct Rdma {
    wire: Arc<Wire>,
    policy: PathPolicy,
    config: RdmaConfig,
    counters: Counters,
    /// Whether the service was found not to move many ranges in one request.
    no_ranges: AtomicBool,
    ports: OnceCell<Result<Vec<Arc<LocalPort>>, Fallback>>,
    listed: tokio::sync::Mutex<Option<Listed>>,
}

/// What the service said, and when.
struct Listed {
    at: Instant,
    rails: Result<Arc<Rails>, Fallback>,
    doors: Result<Arc<Rails>, Fallback>,
}

/// What may be done with the memory of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Whether adapters may reach it at all; which one does, it tells by its test.
    registrable: bool,
    shareable: bool,
    /// The GPU whose memory it is.
    gpu: Option<Arc<Gpu>>,
}

impl Reach {
    pub(crate) fn of<M: Target>(memory: &M) -> Self {
        let gpu = memory.gpu().map(Arc::clone);
        let registrable = gpu.as_ref().is_none_or(|gpu| gpu.limits().dma_buf);
        Self { registrable, shareable: memory.is_shareable(), gpu }
    }

    /// Of memory of the client's own.
    pub(crate) fn of_own(shared: bool) -> Self {
        Self { registrable: true, shareable: shared, gpu: None }
    }
}

impl Rdma {
    pub(crate) fn new(wire: Arc<Wire>, policy: PathPolicy, config: RdmaConfig) -> Self {
        Self {
            wire,
            policy,
            config,
            counters: Counters::default(),
            no_ranges: AtomicBool::new(false),
            ports: OnceCell::new(),
            listed: tokio::sync::Mutex::default(),
        }
    }

    /// Whether so many bytes are to go by RDMA if they can.
    pub(crate) fn is_wanted(&self, bytes: u64) -> bool {
        match self.policy {
            PathPolicy::Auto => bytes >= self.config.min_bytes,
            PathPolicy::Require(TransferPath::Http) => false,
            // The service, too, sends nothing over HTTP.
            PathPolicy::Require(_) => bytes > 0,
        }
    }

    /// Whether there is a rail to try.
    pub(crate) async fn is_there(&self) -> bool {
        match self.policy {
            PathPolicy::Require(TransferPath::Http) => false,
            PathPolicy::Require(TransferPath::IpcHost | TransferPath::IpcGpu) => true,
            _ => self.rails().await.is_ok(),
        }
    }

    /// Whether HTTP is no way out.
    pub(crate) fn is_required(&self) -> bool {
        !matches!(self.policy, PathPolicy::Auto | PathPolicy::Require(TransferPath::Http))
    }

    /// Leave for a transfer of so many bytes, with this node or any: through a door of this
    /// host where the memory can be shared, else over an adapter. Waits for a free window.
    ///
    /// # Errors
    /// Why it has to go over HTTP.
    pub(crate) async fn ticket(
        &self,
        node: Option<NodeId>,
        bytes: u64,
        reach: Reach,
    ) -> Result<Ticket, Fallback> {
        // What ends in the host's memory comes here from there, but for what no bounce buffer holds.
        let ends_in_host =
            [TransferPath::VerbsHost, TransferPath::IpcHost].map(PathPolicy::Require);
        let unstaged = reach.gpu.is_some() && ends_in_host.contains(&self.policy);
        if bytes > WINDOW_BYTES_MAX || unstaged {
            return Err(Fallback::TooLarge);
        }
        let (local, verbs) = match self.policy {
            PathPolicy::Auto => (reach.shareable, reach.registrable || !reach.shareable),
            PathPolicy::Require(TransferPath::IpcHost | TransferPath::IpcGpu) => (true, false),
            PathPolicy::Require(_) => (false, true),
        };
        let mut why = Fallback::NotShared;
        let auto = matches!(self.policy, PathPolicy::Auto);
        if auto && reach.gpu.is_some() && bytes < self.config.local_gpu_min_bytes {
            why = Fallback::Small;
        } else if local && reach.shareable {
            match self.local_ticket(node).await {
                Ok(ticket) => return Ok(ticket),
                Err(reason) => why = reason,
            }
        }
        if !verbs {
            return Err(why);
        }
        let small = why == Fallback::Small;
        let rails = self.rails().await.map_err(|reason| if small { why } else { reason })?;
        if !reach.registrable {
            return Err(if small { why } else { Fallback::Registration });
        }
        // Device memory has no windows, and no slab.
        let of_device = self.config.strength_min..=self.config.strength_max;
        if reach.gpu.is_some() && !of_device.contains(&KeyStrength::Registration) {
            return Err(Fallback::TooWeak);
        }
        let insisting = self.is_required();
        rails.ticket(node, bytes, reach.gpu.as_ref(), insisting, &self.opening()).await
    }

    /// Leave for a transfer with a node of this host. Waits for a free window.
    async fn local_ticket(&self, node: Option<NodeId>) -> Result<Ticket, Fallback> {
        if self.config.strength_min > KeyStrength::Ipc {
            return Err(Fallback::TooWeak);
        }
        // What is mapped has room for any.
        let (doors, bytes) = (self.doors().await?, 0);
        doors.ticket(node, bytes, None, self.is_required(), &self.opening()).await
    }

    /// Whether so many bytes of a GPU's memory travel by way of the host's: where that is asked
    /// for, or where adapters reach the host's alone.
    pub(crate) async fn stages(&self, bytes: u64, reach: &Reach) -> bool {
        let Some(gpu) = &reach.gpu else { return false };
        match self.policy {
            PathPolicy::Require(TransferPath::VerbsHost | TransferPath::IpcHost) => bytes > 0,
            PathPolicy::Auto if self.is_wanted(bytes) => {
                let Ok(rails) = self.rails().await else { return false };
                // A node of this host needs no adapter.
                if self.config.strength_min <= KeyStrength::Ipc && self.doors().await.is_ok() {
                    return false;
                }
                let direct = reach.registrable
                    && self.config.strength_min <= KeyStrength::Registration
                    && self.config.strength_max >= KeyStrength::Registration
                    && rails.reach(gpu).await;
                !direct
            }
            _ => false,
        }
    }

    /// Whether many ranges of so many bytes in all may go in one request.
    pub(crate) fn may_gather(&self, bytes: u64, reach: &Reach) -> bool {
        let local = PathPolicy::Require(TransferPath::IpcHost);
        let local = [PathPolicy::Auto, local, PathPolicy::Require(TransferPath::IpcGpu)];
        // By way of the host's memory it is one range at a time.
        let staged = reach.gpu.is_some() && self.shares();
        local.contains(&self.policy)
            && !staged
            && reach.shareable
            && self.config.strength_min <= KeyStrength::Ipc
            && self.is_wanted(bytes)
            && !self.no_ranges.load(Ordering::Relaxed)
    }

    /// Leave for a transfer of many ranges: with a node of this host, or none.
    pub(crate) async fn gather_ticket(&self) -> Result<Ticket, Fallback> {
        self.local_ticket(None).await
    }

    /// The service does not move many ranges in one request.
    pub(crate) fn gathers_no_ranges(&self) {
        self.no_ranges.store(true, Ordering::Relaxed);
    }

    /// Whether a node is reached.
    pub(crate) async fn reaches(&self, node: NodeId) -> bool {
        let through =
            |ways: Result<Arc<Rails>, Fallback>| ways.is_ok_and(|ways| ways.reaches(node));
        through(self.rails().await) || through(self.known_doors().await)
    }

    /// Whether memory of the client's own has to be of the kind that can be shared.
    pub(crate) fn shares(&self) -> bool {
        matches!(self.policy, PathPolicy::Require(TransferPath::IpcHost))
    }

    /// Goes on over HTTP, where that is allowed.
    ///
    /// # Errors
    /// [`ClientError::PathUnavailable`] where it is not.
    pub(crate) fn fall_back(
        &self,
        reason: Fallback,
        fallbacks: &mut Fallbacks,
    ) -> Result<(), ClientError> {
        if self.is_required() {
            let path = match self.policy {
                PathPolicy::Require(path) => path,
                PathPolicy::Auto => TransferPath::Http,
            };
            return Err(ClientError::PathUnavailable { path, reason });
        }
        tracing::debug!(%reason, "over HTTP");
        self.counters.fell_back(reason);
        fallbacks.add(reason);
        Ok(())
    }

    /// A transfer ended well.
    pub(crate) fn moved(&self, ticket: &Ticket, bytes: u64, marks: &Marks) {
        ticket.succeeded(bytes);
        self.counters.phases.add(marks);
        self.counters.transfers.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A transfer failed for this reason. Tells whether it was RDMA that failed.
    pub(crate) fn failed(&self, ticket: &Ticket, error: &ClientError) -> bool {
        let is_ours = match error {
            ClientError::Rdma(_) => true,
            ClientError::Service(refusal) => refusal.code == "RDMATransferFailed",
            _ => false,
        };
        if error.code() == Some("InvalidRDMAToken") {
            ticket.forgotten();
        }
        if is_ours {
            ticket.failed(rail_is_down(error));
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        is_ours
    }

    /// Why another attempt by RDMA is not worth it, where that is certain.
    pub(crate) fn hopeless(error: &ClientError) -> Option<Fallback> {
        match error {
            ClientError::Rdma(RdmaError::Registration(_)) => Some(Fallback::Registration),
            ClientError::Rdma(RdmaError::Sharing(_)) => Some(Fallback::NotShared),
            ClientError::Rdma(RdmaError::NotShared(reason)) => Some(*reason),
            _ => None,
        }
    }

    /// How long an answer may take.
    pub(crate) fn answer_timeout(&self) -> std::time::Duration {
        self.config.answer_timeout
    }

    pub(crate) fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    fn opening(&self) -> Opening<'_> {
        Opening { wire: &self.wire, config: &self.config, counters: &self.counters }
    }

    /// The rails; asked for with the first transfer, and again when there were none a while ago.
    async fn rails(&self) -> Result<Arc<Rails>, Fallback> {
        // Where there is no adapter, nothing is asked of the service.
        self.ports().await?;
        self.list(|listed| &listed.rails).await
    }

    async fn doors(&self) -> Result<Arc<Rails>, Fallback> {
        self.list(|listed| &listed.doors).await
    }

    /// The doors, as far as they were asked for.
    async fn known_doors(&self) -> Result<Arc<Rails>, Fallback> {
        let listed = self.listed.lock().await;
        listed.as_ref().map_or(Err(Fallback::NoDoor), |listed| listed.doors.clone())
    }

    async fn ports(&self) -> Result<&[Arc<LocalPort>], Fallback> {
        let ports = self.ports.get_or_init(|| ports::open(&self.config)).await;
        ports.as_deref().map_err(|reason| *reason)
    }

    /// What the service told, asked for again where that was nothing a while ago.
    async fn list(
        &self,
        wanted: impl Fn(&Listed) -> &Result<Arc<Rails>, Fallback>,
    ) -> Result<Arc<Rails>, Fallback> {
        let mut listed = self.listed.lock().await;
        let fresh =
            |listed: &&Listed| wanted(listed).is_ok() || listed.at.elapsed() < self.config.pause;
        if let Some(listed) = listed.as_ref().filter(fresh) {
            return wanted(listed).clone();
        }
        let Told { rails, doors } = rails::ask(&self.wire).await;
        let ports = if rails.is_empty() { Ok(&[][..]) } else { self.ports().await };
        let rails = ports.and_then(|ports| Rails::over(rails, ports));
        let (rails, doors) = (rails.map(Arc::new), Rails::through(doors).map(Arc::new));
        let now = listed.insert(Listed { at: Instant::now(), rails, doors });
        wanted(now).clone()
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Whether an error means that the adapter or the way to the node is not there.
fn rail_is_down(error: &ClientError) -> bool {
    use keyway_fabric::verbs::LinkError;
    matches!(
        error,
        ClientError::Rdma(RdmaError::Link(LinkError::Unreachable | LinkError::Adapter(_)))
    )
}
