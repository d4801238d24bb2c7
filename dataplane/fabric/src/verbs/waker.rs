//! Wakes a parked thread through a file descriptor that it polls beside others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that is written only while the thread is parked: a busy thread costs its
/// callers no system call.
pub(super) struct Waker {
    fd: OwnedFd,
    parked: AtomicBool,
}

impl Waker {
    pub(super) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, parked: AtomicBool::new(false) })
    }

    /// Wakes the thread if it is parked. Call it after what it shall see was written.
    pub(super) fn wake(&self) {
        // Pairs with the exchange in `park`: either the thread sees the queue, or we see it
        // parked.
        if self.parked.swap(false, Ordering::SeqCst) {
            // The counter cannot overflow: each write follows a `park`.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Says that the thread is about to wait; it must look at its queue once more.
    pub(super) fn park(&self) {
        self.parked.store(true, Ordering::SeqCst);
    }

    /// Says that it runs again.
    pub(super) fn unpark(&self) {
        self.parked.store(false, Ordering::SeqCst);
        let mut counter = [0; 8];
        // Empty when nobody woke us.
        let _ = rustix::io::read(&self.fd, &mut counter);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
