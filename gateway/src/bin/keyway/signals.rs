//! Signals that a server obeys.

use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Signals that come within this time are one wish: Ctrl-C reaches all processes of a terminal,
/// and one of them, or a supervisor, may then pass it on.
const ONE_WISH: Duration = Duration::from_secs(1);

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

    /// Waits for a signal to stop that is a wish of its own: after a first one, just now.
    pub(crate) async fn second(&mut self) {
        let first = Instant::now();
        loop {
            self.until_stop(|| {}).await;
            if first.elapsed() >= ONE_WISH {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// Goal: the signals of one Ctrl-C do not count twice; one that comes later does.
    ///
    /// Method: this process sends itself signals, of both kinds and without a pause, until one is
    /// taken for the second.
    #[tokio::test]
    async fn signals_that_come_together_are_one_wish() {
        let mut signals = Signals::new().expect("signals are watched");
        let tell = |signal| kill_process(getpid(), signal).expect("it is told");
        tell(Signal::INT);
        signals.until_stop(|| {}).await;
        let first = Instant::now();
        let mut second = std::pin::pin!(signals.second());
        let mut told = 0;
        while futures::poll!(&mut second).is_pending() {
            tell(if told % 2 == 0 { Signal::TERM } else { Signal::INT });
            told += 1;
            tokio::task::yield_now().await;
        }
        assert!(told > 2, "told {told} times");
        assert!(first.elapsed() >= ONE_WISH, "taken after {:?}", first.elapsed());
    }
}
