//! Destroys links: windows, then the queue pair, and only then the memory.
//!
//! A thread of its own per port: destroying blocks, for milliseconds on adapters and for much
//! longer where a driver is unwell, and the other links' work must not wait for that.

use std::io;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use tokio::sync::watch;

use super::port::CqShare;
use super::queue::{QueuePair, Window};
use super::work::{Held, Work};
use crate::LinkError;

/// All that is left of a link.
pub(super) struct Burial {
    pub(super) qp: QueuePair,
    pub(super) windows: Vec<Window>,
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
                    match task {
                        Task::Bury(burial) => bury(*burial),
                        Task::Drop(held) => drop(held),
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
        // Memory under a device would be freed.
        assert!(sent.is_ok(), "the undertaker's thread lives as long as its handle");
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

fn bury(burial: Burial) {
    let Burial { qp, windows, works, keep, why, status, share } = burial;
    if let Err(error) = qp.fail() {
        tracing::debug!(%error, "a queue pair did not go into its error state");
    }
    drop(windows);
    drop(qp);
    // From here on the device touches none of it.
    drop(share);
    status.send_replace(Some(why.clone()));
    for work in works {
        work.reply.fail(&why);
    }
    drop(keep);
}
