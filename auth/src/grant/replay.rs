//! Nonces of accepted grants, remembered until the grants have expired.
//!
//! One set per second of expiry, in a ring: forgetting a second is clearing a set, and memory
//! is bounded by the grants that can be alive.

use std::collections::HashSet;

use super::GrantError;

/// Longest life of a grant in milliseconds.
pub const LIFETIME_MS_MAX: u64 = 120_000;
/// Most grants remembered at once.
pub const NONCES_MAX: usize = 4 << 20;

const SLOTS: usize = (LIFETIME_MS_MAX / 1000) as usize + 2;

pub(super) struct ReplayCache {
    slots: Vec<HashSet<[u8; 16]>>,
    /// Second up to which, exclusive, slots were cleared.
    cleared_s: u64,
    remembered: usize,
}

impl ReplayCache {
    pub(super) fn new() -> Self {
        Self { slots: vec![HashSet::new(); SLOTS], cleared_s: 0, remembered: 0 }
    }

    /// Remembers a nonce that lives until `expiry_ms`, which is later than `now_ms` and at most
    /// [`LIFETIME_MS_MAX`] away.
    pub(super) fn remember(
        &mut self,
        nonce: [u8; 16],
        expiry_ms: u64,
        now_ms: u64,
    ) -> Result<(), GrantError> {
        self.forget_before(now_ms / 1000);
        // A clock that stepped back must not make room for a nonce in a slot being cleared.
        let second = expiry_ms / 1000;
        if second < self.cleared_s {
            return Err(GrantError::Expired);
        }
        if second - self.cleared_s >= SLOTS as u64 {
            return Err(GrantError::TooLong);
        }
        if self.remembered >= NONCES_MAX {
            return Err(GrantError::Overloaded);
        }
        if !self.slots[second as usize % SLOTS].insert(nonce) {
            return Err(GrantError::Replayed);
        }
        self.remembered += 1;
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.remembered
    }

    fn forget_before(&mut self, second: u64) {
        let behind = second.saturating_sub(self.cleared_s).min(SLOTS as u64);
        for passed in second - behind..second {
            let slot = &mut self.slots[passed as usize % SLOTS];
            self.remembered -= slot.len();
            slot.clear();
        }
        self.cleared_s = self.cleared_s.max(second);
    }
}
