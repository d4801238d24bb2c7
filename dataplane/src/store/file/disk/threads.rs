//! Positioned reads and writes on a few threads: the way where io_uring is refused.
//!
//! Two system calls and two context switches per operation; flushes are shared: whoever
//! finds one running leaves its answer to the next.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::{Condvar, Mutex};

use super::{Disk, DiskCounters, Done, Op, QUEUE_OPS_MAX, Target, Write, same};

/// Enough to keep a disk's queue from running dry; more only takes memory.
const THREADS: usize = 8;

pub(in super::super) struct Threads {
    queue: Sender<Op>,
    shared: Arc<Shared>,
}

impl Threads {
    pub(in super::super) fn start() -> io::Result<Self> {
        let (queue, ops) = bounded(QUEUE_OPS_MAX);
        let shared = Arc::new(Shared::default());
        for number in 0..THREADS {
            let (ops, shared) = (ops.clone(), Arc::clone(&shared));
            thread::Builder::new()
                .name(format!("keyway-disk-{number}"))
                .spawn(move || serve(&ops, &shared))?;
        }
        Ok(Self { queue, shared })
    }
}

impl Disk for Threads {
    fn submit(&self, op: Op) {
        let counts = !matches!(op, Op::Close { .. });
        *self.shared.running.lock() += usize::from(counts);
        // The threads live as long as this sender.
        if self.queue.send(op).is_err() && counts {
            self.shared.finished();
        }
    }

    fn counters(&self) -> &DiskCounters {
        &self.shared.counters
    }
}

#[derive(Default)]
struct Shared {
    counters: DiskCounters,
    syncs: Mutex<HashMap<u32, SyncQueue>>,
    /// Operations taken and not answered.
    running: Mutex<usize>,
    idle: Condvar,
}

#[derive(Default)]
struct SyncQueue {
    running: bool,
    waiting: Vec<Done<()>>,
}

impl Shared {
    fn finished(&self) {
        let mut running = self.running.lock();
        *running -= 1;
        if *running == 0 {
            self.idle.notify_all();
        }
    }

    /// Waits until every operation has been answered.
    fn wait_idle(&self) {
        let mut running = self.running.lock();
        while *running > 0 {
            self.idle.wait(&mut running);
        }
    }
}

fn serve(ops: &Receiver<Op>, shared: &Shared) {
    for op in ops {
        match op {
            Op::Read { target, offset, mut lease, length, done } => {
                let read = target.file.read_exact_at(&mut lease[..length], offset);
                DiskCounters::add(&shared.counters.read_bytes, length as u64);
                let _ = done.send(read.map(|()| lease));
            }
            Op::Write(write) => perform_write(write, shared),
            Op::Sync { target, done } => perform_sync(&target, done, shared),
            Op::Close { done } => {
                shared.wait_idle();
                let _ = done.send(());
                continue;
            }
        }
        shared.finished();
    }
}

fn perform_write(write: Write, shared: &Shared) {
    let mut offset = write.offset;
    let mut result = Ok(());
    for (lease, length) in &write.buffers {
        // Goes on after a part: the rest fails with what was in the way.
        result = write.target.file.write_all_at(&lease[..*length], offset);
        if result.is_err() {
            break;
        }
        offset += *length as u64;
    }
    DiskCounters::add(&shared.counters.written_bytes, offset - write.offset);
    if result.is_ok() && write.sync {
        perform_sync(&write.target, write.done, shared);
    } else {
        let _ = write.done.send(result);
    }
}

fn perform_sync(target: &Arc<Target>, done: Done<()>, shared: &Shared) {
    let mut queues = shared.syncs.lock();
    let queue = queues.entry(target.slot).or_default();
    queue.waiting.push(done);
    if queue.running {
        return;
    }
    queue.running = true;
    loop {
        let waiting =
            std::mem::take(&mut queues.get_mut(&target.slot).expect("inserted above").waiting);
        drop(queues);
        let result = target.file.sync_data();
        shared.counters.synced(&result);
        for done in waiting {
            let _ = done.send(result.as_ref().copied().map_err(same));
        }
        queues = shared.syncs.lock();
        let queue = queues.get_mut(&target.slot).expect("inserted above");
        if queue.waiting.is_empty() {
            queue.running = false;
            return;
        }
    }
}
