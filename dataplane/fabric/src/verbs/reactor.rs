//! What posts to a port's queue pairs and polls for them: one thread at a time, and nobody beside it.
//!
//! That is the port's thread as long as there is work. Sketch, per batch: one queue pop, one
//! `post_send` with one doorbell, one completion out of a poll that takes up to 32, one wake of the
//! waiting task. System calls: none while there is work. After at most [`SPIN`] without any, the
//! queue is armed and the thread waits in `poll(2)`; a thread that spun in vain spins less next time.
//!
//! While it waits, the reactor is in its [`Seat`]. Whoever lends memory, or ends a key, takes it from
//! there for a turn, and posts and polls by itself: the adapter has done that within microseconds, in
//! which a thread would not be awake.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};
use keyway_sys::verbs::abi::{self, Wc};
use rustix::event::{PollFd, PollFlags, poll};

use super::device::EventKind;
use super::link_state::LinkState;
use super::port::Command;
use super::queue::CompletionQueue;
use super::seat::Seat;
use super::undertaker::Undertaker;
use super::waker::Waker;
use super::work::{Held, Request};
use super::{Device, LinkError};

/// Completions taken by one poll.
const POLL_BATCH: usize = 32;
/// Commands taken before completions are looked at again.
const COMMAND_BATCH: usize = 64;
/// Longest spin without work before the thread waits.
const SPIN: Duration = Duration::from_micros(50);
/// Shortest: what one look costs.
const SPIN_MIN: Duration = Duration::from_micros(1);
/// Longest that a task looks for what it posted: adapters bind a window within 1 or 2 microseconds.
const TURN_SPIN: Duration = Duration::from_micros(3);

pub(super) struct Reactor {
    device: Arc<Device>,
    cq: Arc<CompletionQueue>,
    waker: Arc<Waker>,
    links: HashMap<u32, LinkState>,
    spin: Duration,
    /// Whether it was told to end, in a turn of a task's.
    stopped: bool,
    undertaker: Undertaker,
    // Last, when the undertaker is through: what is still in the queue then goes with it, and
    // whoever finds the queue closed knows that all queue pairs are gone.
    commands: Receiver<Command>,
}

/// Whether the thread goes on.
enum Turn {
    Busy,
    Idle,
    Stop,
}

impl Reactor {
    pub(super) fn new(
        device: Arc<Device>,
        cq: Arc<CompletionQueue>,
        waker: Arc<Waker>,
        commands: Receiver<Command>,
        undertaker: Undertaker,
    ) -> Self {
        Self {
            device,
            cq,
            waker,
            links: HashMap::new(),
            spin: SPIN,
            stopped: false,
            undertaker,
            commands,
        }
    }

    /// Serves the port until it is told to end.
    pub(super) fn run(mut self, seat: &Seat) {
        let (cq, waker) = (Arc::clone(&self.cq), Arc::clone(&self.waker));
        let device = Arc::clone(&self.device);
        while self.work() {
            let begun = Instant::now();
            seat.leave(self);
            let mut fds = [
                PollFd::from_borrowed_fd(cq.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(device.async_events(), PollFlags::IN),
            ];
            // An interrupted wait is a short one.
            let _ = poll(&mut fds, None);
            let eventful = fds[2].revents().contains(PollFlags::IN);
            // A task that panicked in its turn has dropped it.
            let Some(back) = seat.take() else { return };
            self = back;
            self.awake(begun.elapsed(), eventful);
        }
    }

    /// Works until there is nothing to do and an event will tell of more; tells whether to go on.
    fn work(&mut self) -> bool {
        let mut idle_since = None;
        loop {
            match self.turn() {
                Turn::Stop => return false,
                Turn::Busy => idle_since = None,
                Turn::Idle => {
                    let since = *idle_since.get_or_insert_with(Instant::now);
                    if since.elapsed() < self.spin {
                        std::hint::spin_loop();
                        continue;
                    }
                    idle_since = None;
                    if let Err(error) = self.cq.arm() {
                        let device = self.device.name();
                        tracing::error!(%error, device, "cannot arm the completion queue");
                        return false;
                    }
                    self.waker.park();
                    // What came between the last look and the arming raises no event.
                    match self.turn() {
                        Turn::Stop => return false,
                        Turn::Busy => {
                            self.waker.unpark();
                            self.cq.acknowledge();
                        }
                        Turn::Idle => return true,
                    }
                }
            }
        }
    }

    /// After a wait.
    fn awake(&mut self, waited: Duration, eventful: bool) {
        self.waker.unpark();
        self.cq.acknowledge();
        if eventful {
            self.events();
        }
        // Work that came while a spin would still have lasted makes the next spin worth it.
        self.spin =
            if waited < SPIN { (self.spin * 2).min(SPIN) } else { (self.spin / 2).max(SPIN_MIN) };
    }

    /// The turn of a task, which has sent a command; tells whether nothing is left for the thread.
    pub(super) fn turn_of_a_task(&mut self) -> bool {
        if let Turn::Stop = self.turn() {
            return false;
        }
        let posted = Instant::now();
        loop {
            match self.turn() {
                Turn::Stop => return false,
                Turn::Idle if posted.elapsed() < TURN_SPIN => std::hint::spin_loop(),
                Turn::Idle | Turn::Busy => return self.commands.is_empty(),
            }
        }
    }

    fn turn(&mut self) -> Turn {
        if self.stopped {
            return Turn::Stop;
        }
        let mut busy = false;
        for _ in 0..COMMAND_BATCH {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopped = true;
                    return Turn::Stop;
                }
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => break,
            }
            busy = true;
        }
        let mut completions = [Wc::default(); POLL_BATCH];
        match self.cq.poll(&mut completions) {
            Ok(count) => {
                for completion in &completions[..count] {
                    self.completion(completion);
                }
                busy |= count > 0;
            }
            Err(error) => {
                tracing::error!(%error, device = self.device.name(), "the completion queue failed");
                self.end_all(&LinkError::Adapter(error.to_string().into()));
                self.stopped = true;
                return Turn::Stop;
            }
        }
        if busy { Turn::Busy } else { Turn::Idle }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Adopt(link) => {
                self.links.insert(link.id(), *link);
            }
            Command::Post(request) => self.post(request),
            Command::End { link, why, keep } => self.end(link, why, keep.into_iter().collect()),
            Command::Stop => {}
        }
    }

    fn post(&mut self, request: Request) {
        // A link that is gone: dropping the reply tells.
        let Some(link) = self.links.get_mut(&request.link) else { return };
        let id = request.link;
        if let Err(why) = link.post(request) {
            self.end(id, why, Vec::new());
        }
    }

    fn completion(&mut self, completion: &Wc) {
        let id = (completion.wr_id >> 32) as u32;
        // Of a link that is gone already.
        let Some(link) = self.links.get_mut(&id) else { return };
        let outcome = if completion.status != abi::WC_SUCCESS {
            Err(self.device.failure(completion.status))
        } else if completion.wr_id as u32 == u32::MAX {
            link.received(completion, self.device.quirks())
        } else {
            link.completed(completion.wr_id as u32)
        };
        if let Err(why) = outcome {
            self.end(id, why, Vec::new());
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.device.next_async_event() {
            let link = self.links.values().find(|link| link.qp().is(event.element));
            let id = link.map(LinkState::id);
            match (event.kind, id) {
                (EventKind::Access, Some(id)) => self.end(id, LinkError::Access, Vec::new()),
                (EventKind::QueuePair(what), Some(id)) => {
                    let why = LinkError::Request { status: what.into() };
                    self.end(id, why, Vec::new());
                }
                (EventKind::Device(what), _) => {
                    tracing::error!(what, device = self.device.name(), "the adapter failed");
                    self.end_all(&LinkError::Adapter(what.into()));
                }
                (EventKind::Access | EventKind::QueuePair(_) | EventKind::Other, _) => {}
            }
        }
    }

    fn end(&mut self, id: u32, why: LinkError, keep: Vec<Held>) {
        // Gone already: what was kept for it may go as well once the undertaker is through.
        match self.links.remove(&id) {
            Some(link) => self.undertaker.take(link.bury(why, keep)),
            None => self.undertaker.keep(keep),
        }
    }

    fn end_all(&mut self, why: &LinkError) {
        for (_, link) in self.links.drain() {
            self.undertaker.take(link.bury(why.clone(), Vec::new()));
        }
    }
}

impl Drop for Reactor {
    /// Here rather than at the end of the loop: a panic must not free memory before the queue pairs
    /// are destroyed.
    fn drop(&mut self) {
        self.end_all(&LinkError::Closed);
        // For the thread, where a task has the reactor.
        self.waker.wake();
        for command in self.commands.try_iter() {
            match command {
                Command::Adopt(link) => {
                    self.undertaker.take(link.bury(LinkError::Closed, Vec::new()));
                }
                Command::End { keep, .. } => self.undertaker.keep(keep.into_iter().collect()),
                // Never posted: no device knows of it.
                Command::Post(_) | Command::Stop => {}
            }
        }
    }
}
