//! Destroys links: windows, then the queue pair, and only then the memory.
//!
//! A thread of its own per port: destroying blocks, for milliseconds on adapters and for much
//! longer where a driver is unwell, and the other links' work must not wait for that.

use std::fmt;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use tokio::sync::watch;

use super::port::CqShare;
use super::queue::{QueuePair, Window};
use super::work::{Held, Work};
use crate::LinkError;

/// All that is left of a link. Fields in the order in which they may go.
pub(super) struct Burial {
    pub(super) windows: Vec<Window>,
    pub(super) qp: QueuePair,
    pub(super) works: Vec<Work>,
    pub(super) keep: Vec<Held>,
    pub(super) why: LinkError,
    pub(super) status: watch::Sender<Option<LinkError>>,
    pub(super) share: CqShare,
}

enum Task {
    Bury(Box<Burial>),
    Drop(Vec<Held>),
}

/// The thread's handle: dropping it waits until all is done.
pub(super) struct Undertaker {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Undertaker {
    pub(super) fn start(device: &str) -> io::Result<Self> {
        // Bounded by the links there are.
        let (tasks, queue) = crossbeam_channel::unbounded();
        let thread =
            std::thread::Builder::new().name(format!("kw-end-{device}")).spawn(move || {
                for task in queue {
                    let task = AssertUnwindSafe(move || match task {
                        Task::Bury(burial) => bury(*burial),
                        Task::Drop(held) => drop(held),
                    });
                    // A caller's destructor must not end the thread that others' links wait for.
                    if catch_unwind(task).is_err() {
                        tracing::error!("memory that a link held panicked on its drop");
                    }
                }
            })?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    pub(super) fn take(&self, burial: Burial) {
        self.give(Task::Bury(Box::new(burial)));
    }

    /// Drops these after all that was taken before.
    pub(super) fn keep(&self, held: Vec<Held>) {
        if !held.is_empty() {
            self.give(Task::Drop(held));
        }
    }

    fn give(&self, task: Task) {
        let tasks = self.tasks.as_ref().expect("the sender lives until the drop");
        let sent = tasks.send(task);
        if sent.is_err() {
            // Nobody is left to destroy the queue pair in the order that keeps memory from being
            // freed under the device.
            abort(format_args!("the thread that destroys links is gone"));
        }
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread that destroys links panicked");
        }
    }
}

/// Ends the process, where going on would free memory that a device may still write to. Not a panic:
/// profiles unwind, and other threads would go on.
pub(super) fn abort(why: fmt::Arguments<'_>) -> ! {
    tracing::error!("{why}; the process ends, for the device may still use its memory");
    // Clients need not listen to traces.
    let _ = writeln!(io::stderr(), "keyway: {why}");
    std::process::abort()
}

fn bury(burial: Burial) {
    // In this order unwinding, too, drops the queue pair before the memory.
    let Burial { keep, works, status, share, why, qp, windows } = burial;
    if let Err(error) = qp.fail() {
        tracing::debug!(%error, "a queue pair did not go into its error state");
    }
    drop(windows);
    drop(qp);
    // From here on the device touches none of it.
    drop(share);
    // Whoever hears of the end finds the requests' memory given back.
    let replies: Vec<_> = works.into_iter().map(|work| work.reply).collect();
    status.send_replace(Some(why.clone()));
    for reply in replies {
        reply.fail(&why);
    }
    drop(keep);
}
