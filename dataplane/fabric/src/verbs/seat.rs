//! Where a port's reactor is while its thread waits for events.

use parking_lot::Mutex;

use super::reactor::Reactor;

/// Empty while the thread works.
#[derive(Default)]
pub(super) struct Seat {
    reactor: Mutex<Option<Reactor>>,
}

impl Seat {
    /// The thread goes to wait.
    pub(super) fn leave(&self, reactor: Reactor) {
        *self.reactor.lock() = Some(reactor);
    }

    /// It is back. Nothing is there when a task panicked in its turn: the reactor went with that.
    pub(super) fn take(&self) -> Option<Reactor> {
        self.reactor.lock().take()
    }

    /// Takes a turn in the thread's place. Tells whether that was possible, and left nothing to do;
    /// otherwise the thread is to be woken. Never blocks.
    pub(super) fn turn(&self) -> bool {
        let Some(mut seat) = self.reactor.try_lock() else { return false };
        let Some(mut reactor) = seat.take() else { return false };
        let done = reactor.turn_of_a_task();
        *seat = Some(reactor);
        done
    }
}
