//! When access keys were last used: noted in memory, to the minute, and stored now and then.
//!
//! A crash loses what was noted since the last time that it was stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyway_meta::UnixMs;
use parking_lot::RwLock;

/// Keys are noted once in so many milliseconds.
const GRAIN_MS: u64 = 60_000;

/// The times, in milliseconds since 1970.
#[derive(Default)]
pub(super) struct Used {
    times: RwLock<HashMap<Arc<str>, Times>>,
}

#[derive(Default)]
struct Times {
    noted: AtomicU64,
    stored: AtomicU64,
}

impl Used {
    /// The key is used now.
    pub(super) fn touch(&self, id: &str, now: UnixMs) {
        let now = now.0 - now.0 % GRAIN_MS;
        if let Some(times) = self.times.read().get(id) {
            // A load alone on most requests: no cache line changes hands.
            if times.noted.load(Ordering::Relaxed) < now {
                times.noted.store(now, Ordering::Relaxed);
            }
            return;
        }
        let mut times = self.times.write();
        times.entry(id.into()).or_default().noted.store(now, Ordering::Relaxed);
    }

    /// The key was stored as used at this time.
    pub(super) fn stored(&self, id: &str, at: UnixMs) {
        let times = Times { noted: at.0.into(), stored: at.0.into() };
        self.times.write().insert(id.into(), times);
    }

    pub(super) fn of(&self, id: &str) -> Option<UnixMs> {
        let times = self.times.read();
        times.get(id).map(|times| UnixMs(times.noted.load(Ordering::Relaxed)))
    }

    /// What is to be stored: marked as stored with the answer. Keys that are gone are forgotten.
    pub(super) fn take(&self, is_there: impl Fn(&str) -> bool) -> Vec<(Arc<str>, u64)> {
        let mut all = self.times.write();
        all.retain(|id, _| is_there(id));
        let fresh = all.iter().filter_map(|(id, times)| {
            let noted = times.noted.load(Ordering::Relaxed);
            (times.stored.swap(noted, Ordering::Relaxed) < noted).then(|| (Arc::clone(id), noted))
        });
        fresh.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_stored_once_for_each_minute_of_use() {
        let used = Used::default();
        assert_eq!(used.of("a"), None);
        for ms in [120_001, 120_002, 150_000] {
            used.touch("a", UnixMs(ms));
        }
        used.stored("gone", UnixMs(1));
        let there = |id: &str| id == "a";
        assert_eq!(used.take(there), [("a".into(), 120_000)]);
        assert!(used.take(there).is_empty());
        used.touch("a", UnixMs(180_000));
        assert_eq!(used.of("a"), Some(UnixMs(180_000)));
        assert_eq!(used.take(there).len(), 1);
        assert_eq!(used.of("gone"), None);
    }
}
