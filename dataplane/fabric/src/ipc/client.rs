//! The client's end of a link: regions that are shared, and memory lent under a key.
//!
//! Sketch of a lend: a free slot, four stores. Of its end in the ordinary case: one load, after
//! the service's answer came. [`Armed`] owns the memory and gives it back only once the key is
//! dead, as the one of an adapter does.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use keyway_proto::key::Direction;
use keyway_proto::{DoorTicket, RemoteWindow};
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::channel::{Channel, registered};
use super::message::{Memory, Message, VERSION};
use super::table::{Entry, Place, SLOTS_MAX, Table};
use super::{Export, ExportId, IpcError, Refusal};
use crate::LinkError;
use crate::memory::ExportHandle;

/// How soon a key is looked at again whose end nothing has announced, at first and at last.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);

/// The client's end. Clones share it; the last one's drop ends the link.
#[derive(Clone)]
pub struct ClientLink {
    shared: Arc<Shared>,
    _last: Arc<Last>,
}

struct Shared {
    table: Table,
    free: Mutex<VecDeque<Place>>,
    permits: Arc<Semaphore>,
    next_region: AtomicU32,
    orders: mpsc::UnboundedSender<Order>,
    end: Notify,
    /// What is dropped after the link's end.
    kept: Mutex<Vec<Box<dyn std::any::Any + Send>>>,
    status: watch::Receiver<Option<LinkError>>,
}

struct Last(Arc<Shared>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.end.notify_one();
    }
}

/// What the link's task is asked to do.
enum Order {
    Register { region: u32, export: Export, reply: oneshot::Sender<Result<(), Refusal>> },
    Unregister { region: u32, keep: Export },
}

/// Memory that the node has mapped; it is told to unmap it on drop.
pub struct SharedRegion {
    id: u32,
    export: Export,
    link: ClientLink,
}

impl ClientLink {
    /// Comes to a node's door with a ticket.
    ///
    /// # Errors
    /// [`IpcError`]; nothing is left of it then.
    pub async fn open(door: &Path, ticket: DoorTicket) -> Result<Self, IpcError> {
        let channel = Channel::connect(door).map_err(IpcError::Socket)?;
        // While its process lives: a number that was used again would be another's.
        let node = channel.peer().ok().and_then(|peer| watched(peer.pid));
        let hello = Message::Hello { version: VERSION, ticket };
        channel.send(&hello, None).await.map_err(IpcError::Socket)?;
        let (slots, file) = match channel.receive().await? {
            Some((Message::Welcome { slots }, Some(file))) => (slots as usize, file),
            Some((Message::Refused { why, .. }, _)) => return Err(why.into()),
            Some(_) => return Err(IpcError::Protocol("no welcome")),
            None => return Err(IpcError::Closed),
        };
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(IpcError::Protocol("a strange number of keys"));
        }
        let (orders, taken) = mpsc::unbounded_channel();
        let (told, status) = watch::channel(None);
        let shared = Arc::new(Shared {
            table: Table::open(file, slots)?,
            free: Mutex::new((0..slots).map(|slot| Place::new(slot as u8)).collect()),
            permits: Arc::new(Semaphore::new(slots)),
            next_region: AtomicU32::new(0),
            orders,
            end: Notify::new(),
            kept: Mutex::default(),
            status,
        });
        tokio::spawn(serve(Arc::clone(&shared), channel, node, taken, told));
        Ok(Self { _last: Arc::new(Last(Arc::clone(&shared))), shared })
    }

    /// Has the node map memory: once per allocation, for all transfers of it.
    ///
    /// # Errors
    /// [`IpcError::Refused`], [`IpcError::Closed`].
    pub async fn share(&self, export: Export) -> Result<SharedRegion, IpcError> {
        let id = self.shared.next_region.fetch_add(1, Ordering::Relaxed);
        let (reply, registered) = oneshot::channel();
        let order = Order::Register { region: id, export: export.clone(), reply };
        self.shared.orders.send(order).map_err(|_| IpcError::Closed)?;
        // From here on the node may have it mapped: the drop tells it to let go.
        let region = SharedRegion { id, export, link: self.clone() };
        registered.await.map_err(|_| IpcError::Closed)??;
        Ok(region)
    }

    /// Lends `length` bytes of a region under a new key. Waits for a free slot.
    ///
    /// # Errors
    /// The memory, and why the link is gone.
    ///
    /// # Panics
    /// When the bytes leave the region, or the region is another link's.
    pub async fn arm<M: Send + 'static>(
        &self,
        memory: M,
        region: &Arc<SharedRegion>,
        address: u64,
        length: u32,
        direction: Direction,
    ) -> Result<Armed<M>, (LinkError, M)> {
        assert!(region.covers(address, length as usize), "the region covers the memory");
        assert!(Arc::ptr_eq(&region.link.shared, &self.shared), "a region of this link");
        let permit = Arc::clone(&self.shared.permits).acquire_owned().await;
        let permit = permit.expect("a link never closes its semaphore");
        if !self.is_alive() {
            return Err((self.destroyed().await, memory));
        }
        let place = self.shared.free.lock().pop_front().expect("a permit stands for a free slot");
        let place = place.next();
        let entry = Entry { region: region.id, address, length: u64::from(length), direction };
        self.shared.table.arm(place, entry);
        let window = RemoteWindow { address, length, key: place.key() };
        let slot = Slot { place, _permit: permit, _region: Arc::clone(region) };
        Ok(Armed {
            link: self.clone(),
            memory: Some(memory),
            window,
            slot: Some(slot),
            dead: false,
        })
    }

    /// Whether the link still serves.
    pub fn is_alive(&self) -> bool {
        self.shared.status.borrow().is_none() && !self.shared.orders.is_closed()
    }

    /// Resolves, with the reason, when the node has nothing of this process mapped, or no
    /// longer exists.
    pub async fn destroyed(&self) -> LinkError {
        let mut status = self.shared.status.clone();
        match status.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(LinkError::Closed),
            // The runtime ended, and with it whoever could wait.
            Err(_) => LinkError::Closed,
        }
    }

    /// Ends the link, and waits until it has ended.
    pub async fn fence(&self) -> LinkError {
        self.shared.end.notify_one();
        self.destroyed().await
    }
}

impl fmt::Debug for ClientLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLink").field("is_alive", &self.is_alive()).finish_non_exhaustive()
    }
}

impl SharedRegion {
    /// Which memory it is of.
    pub fn id(&self) -> ExportId {
        self.export.id()
    }

    /// Whether the allocation is still there; `None` for host memory, whose owner knows.
    pub fn is_current(&self) -> Option<bool> {
        match &self.export {
            Export::Host { .. } => None,
            Export::Gpu(export) => Some(export.allocation.is_current()),
        }
    }

    /// Whether it holds these bytes.
    pub fn covers(&self, address: u64, length: usize) -> bool {
        let (base, bytes) = self.export.range();
        let end = address.checked_add(length as u64);
        address >= base && end.is_some_and(|end| end <= base.saturating_add(bytes))
    }
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRegion").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        let keep = self.export.clone();
        // A link that has ended has nothing mapped.
        let _ = self.link.shared.orders.send(Order::Unregister { region: self.id, keep });
    }
}

/// Memory lent to the node under a key.
pub struct Armed<M: Send + 'static> {
    link: ClientLink,
    memory: Option<M>,
    window: RemoteWindow,
    slot: Option<Slot>,
    dead: bool,
}

/// A key's place in the table, until it is dead.
struct Slot {
    place: Place,
    _permit: OwnedSemaphorePermit,
    _region: Arc<SharedRegion>,
}

impl<M: Send + 'static> Armed<M> {
    /// What the node is told.
    pub fn remote(&self) -> RemoteWindow {
        self.window
    }

    /// Whether the key is certainly dead.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    fn place(&self) -> Place {
        self.slot.as_ref().expect("the slot is there until the drop").place
    }

    /// Waits until the node has ended the key. Looks at the table whenever it is polled.
    ///
    /// # Errors
    /// [`LinkError`] when the link has ended instead; the key is dead then, too.
    pub async fn invalidated(&mut self) -> Result<(), LinkError> {
        if self.dead {
            return Ok(());
        }
        let (place, table) = (self.place(), &self.link.shared.table);
        let mut look = LOOK_FIRST;
        let mut timer = pin!(tokio::time::sleep(look));
        let mut destroyed = pin!(self.link.destroyed());
        let outcome = poll_fn(|context| {
            loop {
                if table.is_dead(place) {
                    return Poll::Ready(Ok(()));
                }
                if let Poll::Ready(why) = destroyed.as_mut().poll(context) {
                    return Poll::Ready(Err(why));
                }
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                look = (look * 2).min(LOOK_LAST);
                timer.as_mut().reset(tokio::time::Instant::now() + look);
            }
        });
        let outcome = outcome.await;
        self.dead = true;
        outcome
    }

    /// Takes the key back; where the node has claimed it, waits until the node has ended it.
    ///
    /// # Errors
    /// [`LinkError`] when the link has ended instead.
    pub async fn revoke(&mut self) -> Result<(), LinkError> {
        if !self.dead && self.link.shared.table.revoke(self.place()) {
            self.dead = true;
        }
        self.invalidated().await
    }

    /// Ends the key by ending the link, and waits for that.
    pub async fn fence(&mut self) {
        if !self.dead {
            self.link.fence().await;
            self.dead = true;
        }
    }

    /// Gives the memory back.
    ///
    /// # Errors
    /// The lend itself while its key may live.
    pub fn release(mut self) -> Result<M, Self> {
        if !self.dead {
            return Err(self);
        }
        Ok(self.memory.take().expect("the memory is there until it is given back"))
    }
}

impl<M: Send + 'static> Drop for Armed<M> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let shared = &self.link.shared;
        if self.dead || shared.table.revoke(slot.place) {
            // Behind all others: the longer a dead key rests, the later its name comes again.
            shared.free.lock().push_back(slot.place);
            return;
        }
        // Abandoned while the node is at work: the link goes first, then the memory.
        shared.kept.lock().push(Box::new((slot, self.memory.take())));
        shared.end.notify_one();
        // A link that has ended already looks at what is kept no more.
        if shared.status.borrow().is_some() {
            let kept = std::mem::take(&mut *shared.kept.lock());
            drop(kept);
        }
    }
}

impl<M: Send + 'static> fmt::Debug for Armed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed").field("dead", &self.dead).finish_non_exhaustive()
    }
}

/// Something that becomes readable when the process is no more, its memory and its
/// descriptors included.
fn watched(process: Pid) -> Option<AsyncFd<OwnedFd>> {
    let opened = pidfd_open(process, PidfdFlags::NONBLOCK);
    let opened = opened.inspect_err(|error| {
        // In another process namespace it has no number.
        tracing::debug!(%error, "the node's process cannot be watched");
    });
    registered(opened.ok()?, Interest::READABLE).ok()
}

/// Serves the link until either end wants to go, and waits for the node's end of it.
async fn serve(
    shared: Arc<Shared>,
    channel: Channel,
    node: Option<AsyncFd<OwnedFd>>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    told: watch::Sender<Option<LinkError>>,
) {
    let mut waiting = HashMap::new();
    // What the node may still have mapped.
    let mut leaving = HashMap::new();
    let (why, was_told) = loop {
        tokio::select! {
            biased;
            () = shared.end.notified() => break (LinkError::Closed, false),
            order = orders.recv() => {
                let Some(order) = order else { break (LinkError::Closed, false) };
                if carry_out(&channel, order, &mut waiting, &mut leaving).await.is_err() {
                    break (LinkError::Unreachable, false);
                }
            }
            received = channel.receive() => match received {
                Ok(Some((Message::Registered { region }, _))) => {
                    answer(&mut waiting, region, Ok(()));
                }
                Ok(Some((Message::Refused { region, why }, _))) => {
                    answer(&mut waiting, region, Err(why));
                }
                Ok(Some((Message::Unregistered { region }, _))) => {
                    leaving.remove(&region);
                }
                Ok(Some((Message::Bye, _))) => break (LinkError::Closed, true),
                Ok(None) => break (LinkError::Unreachable, false),
                Ok(Some(_)) | Err(_) => break (LinkError::Misbehaved, false),
            },
        }
    };
    orders.close();
    waiting.clear();
    if !was_told {
        await_end(&channel, node).await;
    }
    told.send_replace(Some(why));
    let kept = std::mem::take(&mut *shared.kept.lock());
    drop(kept);
}

type Waiting = HashMap<u32, oneshot::Sender<Result<(), Refusal>>>;

fn answer(waiting: &mut Waiting, region: u32, answer: Result<(), Refusal>) {
    if let Some(reply) = waiting.remove(&region) {
        // Whoever asked may have left.
        let _ = reply.send(answer);
    }
}

async fn carry_out(
    channel: &Channel,
    order: Order,
    waiting: &mut Waiting,
    leaving: &mut HashMap<u32, Export>,
) -> std::io::Result<()> {
    match order {
        Order::Register { region, export, reply } => {
            let (memory, file) = match &export {
                Export::Host { file, .. } => (Memory::Host, Some(file.as_fd())),
                Export::Gpu(export) => match &export.handle {
                    ExportHandle::Ipc(handle) => {
                        (Memory::GpuIpc { gpu: export.allocation.gpu.0, handle: *handle }, None)
                    }
                    ExportHandle::Vmm(file) => {
                        (Memory::GpuFile { gpu: export.allocation.gpu.0 }, Some(file.as_fd()))
                    }
                },
            };
            let (base, bytes) = export.range();
            waiting.insert(region, reply);
            channel.send(&Message::Register { region, base, bytes, memory }, file).await
        }
        Order::Unregister { region, keep } => {
            leaving.insert(region, keep);
            channel.send(&Message::Unregister { region }, None).await
        }
    }
}

/// Waits until the node has said that nothing is mapped, or is no more.
async fn await_end(channel: &Channel, node: Option<AsyncFd<OwnedFd>>) {
    // It may have gone already.
    let _ = channel.send(&Message::Bye, None).await;
    loop {
        match channel.receive().await {
            Ok(Some((Message::Bye, _))) => return,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    // The socket closes before a dying process has let go of its devices.
    if let Some(node) = node
        && let Err(error) = node.readable().await
    {
        tracing::debug!(%error, "the node's process cannot be watched any more");
    }
}
