//! What accounts need beside requests: the sessions of keys that expire, temporary ones too, and
//! of nodes that did not answer; and the times of use.

use std::time::Duration;

use tokio::time::{self, MissedTickBehavior};

use super::{Accounts, cutoff};

/// How often expiry is looked at: sessions end within this of it.
const TICK: Duration = Duration::from_millis(500);
/// Ticks between two times that what was noted of use is stored.
const TICKS_PER_STORE: u32 = 120;

impl Accounts {
    /// Runs until `stop` resolves; then stores what was noted of use.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let mut ticks = time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = self.now();
        let mut count = 0_u32;
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = ticks.tick() => {}
            }
            let now = self.now();
            let directory = self.directory();
            let expired = directory.keys().filter(|key| {
                key.record.expires.is_some_and(|expires| last < expires && expires <= now)
            });
            let mut shut = self.watched.expired(now);
            for key in expired {
                shut.push(cutoff::of_key(key));
                shut.extend(self.watched.of_key(key.record.id.as_str()));
            }
            last = now;
            self.cut.off(&self.nodes, shut).await;
            self.cut.again(&self.nodes).await;
            count += 1;
            if count.is_multiple_of(TICKS_PER_STORE) {
                self.store_used().await;
            }
        }
        self.store_used().await;
    }

    async fn store_used(&self) {
        let directory = self.directory();
        let fresh = self.used.take(|id| directory.key(id).is_some());
        if fresh.is_empty() {
            return;
        }
        let stored = self.rows.used(fresh.iter().map(|(id, at)| (&**id, *at))).await;
        if let Err(error) = stored {
            tracing::warn!(%error, "when keys were last used was not stored");
        }
    }
}
