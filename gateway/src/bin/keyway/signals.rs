//! Signals that a server obeys.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP, watched from the start on, so that none is lost.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Starts watching.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let watch = |kind| signal(kind).context("cannot watch for signals");
        Ok(Self {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            hangup: watch(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to stop; calls `reload` at each SIGHUP.
    pub(crate) async fn until_stop(&mut self, reload: impl Fn()) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => reload(),
            }
        }
    }

    /// Waits for the next signal to stop.
    pub(crate) async fn second(&mut self) {
        self.until_stop(|| {}).await;
    }
}
