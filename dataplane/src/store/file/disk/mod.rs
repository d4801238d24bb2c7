//! How bytes reach the disk: operations in, answers out.
//!
//! - [`ring`]: one reactor thread that owns an io_uring.
//! - [`threads`]: a few threads with `pread` and `pwrite`, where io_uring is refused.
//!
//! Buffers travel with their operation: whoever drops the answer's receiver cancels nothing,
//! and the lease goes back to the pool when the device is done with it. A write also carries
//! what must not be reused before it has landed.

use std::any::Any;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use keyway_fabric::memory::Lease;
use tokio::sync::oneshot;

use super::space::is_no_space;

mod flight;
pub(super) mod ring;
pub(super) mod threads;

/// Operations that may wait to be taken up. Every operation but a flush holds a lease, so
/// the pool's size keeps the queue far below this; a full one makes the submitter wait.
const QUEUE_OPS_MAX: usize = 4096;

/// How often one operation is started anew when the kernel says "interrupted" or "again", or
/// has written a part.
const RESTARTS_MAX: u8 = 64;

/// A file that operations name.
#[derive(Debug)]
pub(super) struct Target {
    /// The file, opened for how it will be used.
    pub(super) file: File,
    /// The file's place in a ring's table, unique among open files and small.
    pub(super) slot: u32,
}

/// One operation.
pub(super) enum Op {
    /// Fills the first `length` bytes of the lease.
    Read { target: Arc<Target>, offset: u64, lease: Lease, length: usize, done: Done<Lease> },
    /// Writes buffers one after the other.
    Write(Write),
    /// Makes durable what was answered as written before.
    Sync { target: Arc<Target>, done: Done<()> },
    /// Answers when everything before it has been answered, and ends the engine.
    Close { done: oneshot::Sender<()> },
}

/// A write, optionally followed by a flush before it is answered.
pub(super) struct Write {
    pub(super) target: Arc<Target>,
    pub(super) offset: u64,
    /// Leases and how much of each is written; multiples of a page.
    pub(super) buffers: Vec<(Lease, usize)>,
    pub(super) sync: bool,
    /// Kept alive until the device has let go: the space that is written to.
    pub(super) keep: Arc<dyn Any + Send + Sync>,
    pub(super) done: Done<()>,
}

impl Write {
    fn length(&self) -> usize {
        self.buffers.iter().map(|(_, length)| length).sum()
    }
}

pub(super) type Done<T> = oneshot::Sender<io::Result<T>>;

/// Executes operations.
pub(super) trait Disk: Send + Sync + 'static {
    /// Takes an operation. The answer comes through the operation's own channel, and is an
    /// error when the engine has ended.
    fn submit(&self, op: Op);

    /// What was done so far.
    fn counters(&self) -> &DiskCounters;
}

/// What an I/O engine did.
#[derive(Debug, Default)]
pub(super) struct DiskCounters {
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) syncs: AtomicU64,
    /// Flushes that found no space.
    pub(super) full_syncs: AtomicU64,
}

impl DiskCounters {
    /// Counts a flush: before it is answered, and before the file's next one begins.
    pub(super) fn synced<T>(&self, outcome: &io::Result<T>) {
        Self::add(&self.syncs, 1);
        if outcome.as_ref().is_err_and(is_no_space) {
            Self::add(&self.full_syncs, 1);
        }
    }

    pub(super) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

/// The asynchronous face of an engine.
impl dyn Disk {
    pub(super) fn read(
        &self,
        target: &Arc<Target>,
        offset: u64,
        lease: Lease,
        length: usize,
    ) -> impl Future<Output = io::Result<Lease>> + Send + use<> {
        let (done, answer) = oneshot::channel();
        self.submit(Op::Read { target: Arc::clone(target), offset, lease, length, done });
        answered(answer)
    }

    pub(super) fn write(
        &self,
        target: &Arc<Target>,
        offset: u64,
        buffers: Vec<(Lease, usize)>,
        sync: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> BoxFuture<'static, io::Result<()>> {
        let (done, answer) = oneshot::channel();
        let target = Arc::clone(target);
        self.submit(Op::Write(Write { target, offset, buffers, sync, keep, done }));
        Box::pin(answered(answer))
    }

    pub(super) fn sync(
        &self,
        target: &Arc<Target>,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let (done, answer) = oneshot::channel();
        self.submit(Op::Sync { target: Arc::clone(target), done });
        answered(answer)
    }

    pub(super) async fn close(&self) {
        let (done, answer) = oneshot::channel();
        self.submit(Op::Close { done });
        // An engine that has ended already drops the sender: closed either way.
        let _ = answer.await;
    }
}

async fn answered<T>(answer: oneshot::Receiver<io::Result<T>>) -> io::Result<T> {
    answer.await.unwrap_or_else(|_| Err(io::Error::other("the I/O engine has ended")))
}

/// The kernel moved fewer bytes than asked, without saying why.
fn short(moved: usize, asked: usize) -> io::Error {
    let kind = io::ErrorKind::UnexpectedEof;
    io::Error::new(kind, format!("{moved} of {asked} bytes were moved"))
}

/// One error for several receivers: `io::Error` does not clone.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
