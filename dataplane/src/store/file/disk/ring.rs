//! One thread that owns an io_uring: the disk's reactor.
//!
//! Sketch: operations arrive through a bounded queue. The thread takes all that wait, enters
//! the kernel once to submit them and to wait for the first completion, and answers all that
//! have completed. So under load the cost of entering is shared by everything that arrived
//! meanwhile, and at rest the thread sleeps in the kernel; a pending read of an eventfd wakes
//! it, and submitters write to that only when it sleeps. Flushes are shared per file:
//! while one runs, the next collects.
//!
//! Invariant: a buffer's address reaches the kernel only together with an entry in `Flights`
//! that owns the lease (or the boxed counter of the eventfd), and the entry is removed only
//! by that operation's completion. The thread ends after the last completion, or leaks what
//! is still in flight.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use io_uring::{IoUring, opcode, squeue, types};
use keyway_fabric::memory::LeasePool;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::flight::{Flight, Flights};
use super::{Disk, DiskCounters, Done, Op, QUEUE_OPS_MAX, RESTARTS_MAX, Target, same, short};

/// Operations in the kernel at once.
const DEPTH: u32 = 256;

/// Files that the ring knows by number; others are named by descriptor.
const FILES_MAX: u32 = 1024;

/// The completion of the eventfd's read.
const WAKE: u64 = u64::MAX;

/// The reactor's handle.
pub(in super::super) struct Ring {
    queue: Sender<Op>,
    waker: Arc<Waker>,
    counters: Arc<DiskCounters>,
    /// Whether leases of the pool are registered with the kernel.
    pub(in super::super) registered_buffers: bool,
}

impl Ring {
    /// Starts the thread; leases of `pool` are registered where the kernel allows it.
    pub(in super::super) fn start(pool: LeasePool) -> io::Result<Self> {
        let (queue, ops) = bounded(QUEUE_OPS_MAX);
        let waker = Arc::new(Waker {
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
            asleep: AtomicBool::new(false),
        });
        let counters = Arc::new(DiskCounters::default());
        let (started, outcome) = std::sync::mpsc::sync_channel(1);
        let (thread_waker, thread_counters) = (Arc::clone(&waker), Arc::clone(&counters));
        thread::Builder::new().name("keyway-disk".to_owned()).spawn(move || match Reactor::new(
            ops,
            pool,
            thread_waker,
            thread_counters,
        ) {
            Ok(reactor) => {
                let _ = started.send(Ok(reactor.registered_buffers));
                reactor.run();
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        })?;
        let registered_buffers =
            outcome.recv().unwrap_or_else(|_| Err(io::Error::other("the reactor ended")))?;
        Ok(Self { queue, waker, counters, registered_buffers })
    }
}

impl Disk for Ring {
    fn submit(&self, op: Op) {
        // A reactor that ended has dropped its receiver; dropping the operation answers it.
        if self.queue.send(op).is_ok() {
            self.waker.wake();
        }
    }

    fn counters(&self) -> &DiskCounters {
        &self.counters
    }
}

impl Drop for Ring {
    /// Ends the thread; nobody waits for it.
    fn drop(&mut self) {
        let (done, _) = oneshot::channel();
        self.submit(Op::Close { done });
    }
}

struct Waker {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Waker {
    fn wake(&self) {
        // Orders the queue's push before the look at the flag, as the reactor orders its
        // flag before its last look at the queue: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // Fails only when the counter is full, and then the reactor wakes anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

struct Reactor {
    ring: IoUring,
    ops: Receiver<Op>,
    pool: LeasePool,
    registered_buffers: bool,
    registered_files: Option<Vec<i32>>,
    waker: Arc<Waker>,
    counters: Arc<DiskCounters>,
    flights: Flights,
    syncs: HashMap<u32, SyncQueue>,
    wake_count: Box<u64>,
    closing: Vec<oneshot::Sender<()>>,
    disconnected: bool,
}

#[derive(Default)]
struct SyncQueue {
    running: bool,
    waiting: Vec<Done<()>>,
}

impl Reactor {
    fn new(
        ops: Receiver<Op>,
        pool: LeasePool,
        waker: Arc<Waker>,
        counters: Arc<DiskCounters>,
    ) -> io::Result<Self> {
        // Completions are run when this thread enters, instead of interrupting it; kernels
        // before 6.1 do not know that.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(DEPTH)
            .or_else(|_| IoUring::builder().build(DEPTH))?;
        let region = pool.region();
        let vector =
            libc::iovec { iov_base: region.base().as_ptr().cast(), iov_len: region.bytes() };
        // SAFETY: the region lives as long as `self.pool`, which is dropped after the ring
        // (fields drop in order), and the kernel pins the pages besides.
        let registered_buffers = unsafe { ring.submitter().register_buffers(&[vector]) }.is_ok();
        let registered_files = ring
            .submitter()
            .register_files_sparse(FILES_MAX)
            .is_ok()
            .then(|| vec![-1; FILES_MAX as usize]);
        Ok(Self {
            ring,
            ops,
            pool,
            registered_buffers,
            registered_files,
            waker,
            counters,
            flights: Flights::new(DEPTH),
            syncs: HashMap::new(),
            wake_count: Box::new(0),
            closing: Vec::new(),
            disconnected: false,
        })
    }

    /// Serves until closed. A panic on the way leaks the reactor instead of freeing what the
    /// kernel may still write to.
    fn run(self) {
        let mut reactor = ManuallyDrop::new(self);
        match reactor.serve() {
            Ok(()) => ManuallyDrop::into_inner(reactor).end(),
            Err(error) => {
                tracing::error!(%error, "the io_uring failed; the store stops");
                ManuallyDrop::into_inner(reactor).abandon(&error);
            }
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        self.arm_wake();
        loop {
            self.take_ops();
            if self.flights.are_empty() && (self.disconnected || !self.closing.is_empty()) {
                return Ok(());
            }
            self.waker.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let wait = usize::from(self.ops.is_empty() || self.flights.are_full());
            let entered = self.ring.submit_and_wait(wait);
            self.waker.asleep.store(false, Ordering::Relaxed);
            match entered {
                Err(error) if !is_transient(&error) => return Err(error),
                _ => self.take_completions(),
            }
        }
    }

    /// Ends with nothing in flight but the eventfd's read.
    fn end(mut self) {
        for done in self.closing.drain(..) {
            let _ = done.send(());
        }
        // The kernel cancels the read when the ring goes, maybe after this returns: its
        // eight bytes are given up.
        let Self { ring, wake_count, .. } = self;
        let _leaked = Box::leak(wake_count);
        drop(ring);
    }

    /// Answers everything with the error, and gives up the buffers in flight: the kernel may
    /// still write to them.
    fn abandon(mut self, error: &io::Error) {
        for (flight, _) in self.flights.slots.iter_mut().filter_map(Option::take) {
            match flight {
                Flight::Read { lease, done, .. } => {
                    std::mem::forget(lease);
                    let _ = done.send(Err(same(error)));
                }
                Flight::Write { write, vectors, .. } => {
                    std::mem::forget((write.buffers, write.keep, vectors));
                    let _ = write.done.send(Err(same(error)));
                }
                Flight::Sync { waiting, .. } => answer_all(waiting, &Err(same(error))),
            }
        }
        self.end();
    }

    fn take_ops(&mut self) {
        while !self.flights.are_full() {
            match self.ops.try_recv() {
                Ok(op) => self.start(op),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.disconnected = true;
                    return;
                }
            }
        }
    }

    fn start(&mut self, op: Op) {
        match op {
            Op::Read { target, offset, lease, length, done } => {
                self.launch(Flight::Read { target, offset, lease, length, done }, 0);
            }
            Op::Write(write) => self.launch(Flight::write(write, 0), 0),
            Op::Sync { target, done } => self.sync(target, done),
            Op::Close { done } => self.closing.push(done),
        }
    }

    fn sync(&mut self, target: Arc<Target>, done: Done<()>) {
        let queue = self.syncs.entry(target.slot).or_default();
        queue.waiting.push(done);
        if !queue.running {
            queue.running = true;
            let waiting = std::mem::take(&mut queue.waiting);
            self.launch(Flight::Sync { target, waiting }, 0);
        }
    }

    fn launch(&mut self, flight: Flight, restarts: u8) {
        let file = self.file_of(flight.target());
        let number = self.flights.insert(flight, restarts);
        let (flight, _) = self.flights.slots[number as usize].as_ref().expect("just inserted");
        let entry = match file {
            FileName::Slot(slot) => {
                self.entry(flight, types::Fd(slot as i32)).flags(squeue::Flags::FIXED_FILE)
            }
            FileName::Descriptor(descriptor) => self.entry(flight, types::Fd(descriptor)),
        };
        self.push(&entry.user_data(u64::from(number)));
    }

    fn entry(&self, flight: &Flight, file: types::Fd) -> squeue::Entry {
        match flight {
            Flight::Read { offset, lease, length, .. } => {
                let base = lease.base().as_ptr();
                let length = *length as u32;
                if self.registered_buffers && lease.is_of(&self.pool) {
                    opcode::ReadFixed::new(file, base, length, 0).offset(*offset).build()
                } else {
                    opcode::Read::new(file, base, length).offset(*offset).build()
                }
            }
            Flight::Write { write, moved, vectors } => {
                let offset = write.offset + *moved as u64;
                match &write.buffers[..] {
                    [(lease, length)] => {
                        let base = lease.base().as_ptr().wrapping_add(*moved);
                        let length = (length - moved) as u32;
                        if self.registered_buffers && lease.is_of(&self.pool) {
                            opcode::WriteFixed::new(file, base, length, 0).offset(offset).build()
                        } else {
                            opcode::Write::new(file, base, length).offset(offset).build()
                        }
                    }
                    _ => opcode::Writev::new(file, vectors.as_ptr(), vectors.len() as u32)
                        .offset(offset)
                        .build(),
                }
            }
            Flight::Sync { .. } => {
                opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build()
            }
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the entry's addresses are those of leases (and of a vector on the
            // heap) owned by `flights` until the completion arrives, or of `wake_count`,
            // which outlives the ring.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is as deep as `flights`, plus the eventfd: make room.
            if let Err(error) = self.ring.submit()
                && !is_transient(&error)
            {
                tracing::error!(%error, "the io_uring takes nothing");
            }
        }
    }

    fn arm_wake(&mut self) {
        let event = types::Fd(self.waker.event.as_raw_fd());
        let count: *mut u64 = &raw mut *self.wake_count;
        let entry = opcode::Read::new(event, count.cast(), 8).build().user_data(WAKE);
        self.push(&entry);
    }

    fn take_completions(&mut self) {
        // Collected first: answering may launch more.
        let completed: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (number, result) in completed {
            if number == WAKE {
                self.arm_wake();
            } else {
                let (flight, restarts) = self.flights.remove(number);
                self.land(flight, result, restarts);
            }
        }
    }

    fn land(&mut self, flight: Flight, result: i32, restarts: u8) {
        if matches!(-result, libc::EINTR | libc::EAGAIN) && restarts < RESTARTS_MAX {
            return self.launch(flight, restarts + 1);
        }
        let moved = match usize::try_from(result) {
            Ok(moved) => Ok(moved),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        match flight {
            Flight::Read { lease, length, done, .. } => {
                DiskCounters::add(&self.counters.read_bytes, length as u64);
                let _ = done.send(whole(moved, length).map(|()| lease));
            }
            Flight::Write { write, moved: before, .. } => {
                let now = moved.as_ref().copied().unwrap_or_default();
                DiskCounters::add(&self.counters.written_bytes, now as u64);
                let landed = before + now;
                if now > 0 && landed < write.length() && restarts < RESTARTS_MAX {
                    // Something is in the way of the rest, a full disk above all, and the rest
                    // fails with it. Direct I/O stops between blocks, where it can go on.
                    return self.launch(Flight::write(write, landed), restarts + 1);
                }
                match whole(moved.map(|_| landed), write.length()) {
                    Ok(()) if write.sync => self.sync(write.target, write.done),
                    outcome => {
                        let _ = write.done.send(outcome);
                    }
                }
            }
            Flight::Sync { target, waiting } => {
                self.counters.synced(&moved);
                answer_all(waiting, &moved.map(|_| ()));
                let queue = self.syncs.entry(target.slot).or_default();
                let waiting = std::mem::take(&mut queue.waiting);
                queue.running = !waiting.is_empty();
                if queue.running {
                    self.launch(Flight::Sync { target, waiting }, 0);
                }
            }
        }
    }

    /// How the kernel is told the file; registers it at its first use.
    fn file_of(&mut self, target: &Target) -> FileName {
        let descriptor = target.file.as_raw_fd();
        let Some(known) =
            self.registered_files.as_mut().and_then(|files| files.get_mut(target.slot as usize))
        else {
            return FileName::Descriptor(descriptor);
        };
        if *known != descriptor {
            if self.ring.submitter().register_files_update(target.slot, &[descriptor]).is_err() {
                return FileName::Descriptor(descriptor);
            }
            *known = descriptor;
        }
        FileName::Slot(target.slot)
    }
}

enum FileName {
    Slot(u32),
    Descriptor(i32),
}

fn whole(moved: io::Result<usize>, asked: usize) -> io::Result<()> {
    match moved? {
        moved if moved == asked => Ok(()),
        moved => Err(short(moved, asked)),
    }
}

fn answer_all(waiting: Vec<Done<()>>, result: &io::Result<()>) {
    for done in waiting {
        let _ = done.send(result.as_ref().copied().map_err(same));
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
