//! Counts what is under way, and tells when nothing is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a [`Pass`] is of. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<State>);

#[derive(Default)]
struct State {
    inside: AtomicUsize,
    idle: Notify,
}

/// Stands for one thing under way.
pub(super) struct Pass(Arc<State>);

impl Gate {
    pub(super) fn enter(&self) -> Pass {
        self.0.inside.fetch_add(1, Ordering::AcqRel);
        Pass(Arc::clone(&self.0))
    }

    /// Resolves when nothing is under way.
    pub(super) async fn idle(&self) {
        loop {
            let notified = self.0.idle.notified();
            if self.0.inside.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.0.inside.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn idle_is_when_all_have_left() {
        let gate = Gate::default();
        gate.idle().await;
        let (first, second) = (gate.enter(), gate.enter());
        assert!(gate.idle().now_or_never().is_none());
        drop(first);
        let waits = tokio::spawn({
            let gate = gate.clone();
            async move { gate.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(second);
        waits.await.expect("no panic");
    }
}
