//! The node's end of a key: moves the bytes, then gives the key up.

use super::{Direction, Relinquished, Revoker};

/// The node's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Worker {
    revoker: Revoker,
    direction: Direction,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// The grant was accepted; nothing was posted.
    Idle,
    /// Work requests under the key are posted or will be.
    Moving,
    /// No more will be posted; those that were have not all completed.
    Draining,
    /// SEND_WITH_INV is posted.
    Invalidating { moved: bool },
    /// The queue pair is being destroyed.
    Fencing,
    /// The receipt is written.
    Finished,
}

/// What happened at the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerEvent {
    /// The first work request under the key is being posted; the grant was verified, and never
    /// seen before. What is given up earlier leaves the key alone: where a request ran twice it
    /// may be dead, and SEND_WITH_INV must not name a dead key. Behind a request that was posted it
    /// cannot: that one fails first, and the queue pair with it.
    Start,
    /// GET: the last WRITE is posted. PUT: the last READ has completed and its bytes are safe.
    Moved,
    /// The disk failed, the gateway cancelled, or the time has passed. `in_flight` work
    /// requests of the transfer have not completed.
    GiveUp {
        /// Work requests posted and not completed.
        in_flight: u32,
    },
    /// The last work request in flight completed.
    Drained,
    /// The SEND_WITH_INV completed.
    InvalidateCompleted,
    /// The queue pair is in the error state; or the client took so long with the end of its key
    /// that the queue pair must go.
    QpFailed,
    /// The queue pair is gone.
    QpDestroyed,
}

/// What the node's driver must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerAction {
    /// Post the transfer's work requests.
    Move,
    /// Post no more of them; tell when the last in flight has completed.
    Drain,
    /// Post SEND_WITH_INV of the key, signaled.
    Invalidate,
    /// Destroy the queue pair.
    DestroyQp,
    /// Write the receipt.
    Finish {
        /// Whether all bytes moved.
        moved: bool,
        /// What is known of the key.
        key: Relinquished,
    },
}

impl Worker {
    /// A transfer whose grant was accepted.
    pub const fn new(revoker: Revoker, direction: Direction) -> Self {
        Self { revoker, direction, state: State::Idle }
    }

    /// Whether the receipt is written.
    pub fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Takes an event in; says what to do, if anything.
    pub fn on(&mut self, event: WorkerEvent) -> Option<WorkerAction> {
        use WorkerEvent as E;
        match (&self.state, event) {
            (State::Idle, E::Start) => self.go(State::Moving, WorkerAction::Move),
            (State::Idle, E::GiveUp { .. }) => self.finish(false, Relinquished::Quiet),

            // GET posts the invalidation behind the WRITEs: a queue pair executes them in
            // order. PUT has waited for its READs, which an invalidation may overtake.
            (State::Moving, E::Moved) => self.relinquish(true),
            (State::Moving, E::GiveUp { in_flight: 0 }) => self.relinquish(false),
            (State::Moving, E::GiveUp { .. }) => match (self.direction, self.revoker) {
                (Direction::Write, Revoker::Node) => self.relinquish(false),
                _ => self.go(State::Draining, WorkerAction::Drain),
            },
            (State::Draining, E::Drained) => self.relinquish(false),

            (State::Invalidating { moved }, E::InvalidateCompleted) => {
                let moved = *moved;
                self.finish(moved, Relinquished::Invalidated)
            }
            (State::Fencing, E::QpDestroyed) => self.finish(false, Relinquished::Fenced),

            (
                State::Idle | State::Moving | State::Draining | State::Invalidating { .. },
                E::QpFailed,
            ) => self.go(State::Fencing, WorkerAction::DestroyQp),
            _ => None,
        }
    }

    /// Ends the node's use of the key. Of keys that it does not end itself the caller of `Moved` has seen
    /// every completion, so the node is quiet.
    fn relinquish(&mut self, moved: bool) -> Option<WorkerAction> {
        match self.revoker {
            Revoker::Node => self.go(State::Invalidating { moved }, WorkerAction::Invalidate),
            Revoker::Client | Revoker::Nobody => self.finish(moved, Relinquished::Quiet),
        }
    }

    fn finish(&mut self, moved: bool, key: Relinquished) -> Option<WorkerAction> {
        self.go(State::Finished, WorkerAction::Finish { moved, key })
    }

    #[expect(clippy::unnecessary_wraps, reason = "reads as the answer of `on`")]
    fn go(&mut self, state: State, action: WorkerAction) -> Option<WorkerAction> {
        self.state = state;
        Some(action)
    }
}
