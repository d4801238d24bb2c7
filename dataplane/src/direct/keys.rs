//! The node's grant keys: made here, told to gateways over the authenticated channel, and
//! changed while they are in use.

use std::time::{Duration, Instant};

use keyway_auth::grant::{Grant, GrantError, GrantKey, GrantKeyId, LIFETIME_MS_MAX, Verifier};
use keyway_proto::NodeId;
use parking_lot::Mutex;

use crate::node::SealingKey;

/// How long a gateway seals under one key before it asks again.
const FRESH: Duration = Duration::from_secs(15 * 60);
/// How long the node gives out one key. Two are accepted: this one and the one before.
const CURRENT: Duration = Duration::from_secs(30 * 60);

// A grant sealed at the last moment under the previous key expires before that key goes.
const _: () = assert!(FRESH.as_millis() as u64 + LIFETIME_MS_MAX < CURRENT.as_millis() as u64);

/// The keys of one life of the node: after a restart, grants from before are refused.
pub(super) struct GrantKeys(Mutex<Ring>);

struct Ring {
    current: GrantKey,
    since: Instant,
    next_id: u32,
    verifier: Verifier,
}

impl GrantKeys {
    pub(super) fn new(node: NodeId) -> Self {
        // Ids start anywhere, so that a key of an earlier life is not taken for this one's.
        let first = fastrand::u32(..);
        let current = GrantKey::generate(GrantKeyId(first));
        let verifier = Verifier::new(node, std::slice::from_ref(&current));
        let next_id = first.wrapping_add(1);
        Self(Mutex::new(Ring { current, since: Instant::now(), next_id, verifier }))
    }

    /// The key to seal with now.
    pub(super) fn sealing_key(&self, dynamic: bool) -> SealingKey {
        let mut ring = self.0.lock();
        if ring.since.elapsed() >= CURRENT {
            ring.rotate();
        }
        SealingKey { key: ring.current.clone(), fresh_for: FRESH, dynamic }
    }

    /// Accepts a grant once.
    pub(super) fn accept<'a>(
        &self,
        sealed: &'a [u8],
        now_ms: u64,
    ) -> Result<Grant<'a>, GrantError> {
        self.0.lock().verifier.accept(sealed, now_ms)
    }
}

impl Ring {
    fn rotate(&mut self) {
        let fresh = GrantKey::generate(GrantKeyId(self.next_id));
        self.next_id = self.next_id.wrapping_add(1);
        let previous = std::mem::replace(&mut self.current, fresh);
        self.verifier.rotate(&[self.current.clone(), previous]);
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use keyway_auth::grant::Sealer;
    use keyway_proto::{SessionId, TenantId};

    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn sealed(key: &SealingKey, nonce: u8) -> Vec<u8> {
        Sealer::new(&key.key).seal(&Grant {
            node: NodeId(1),
            session: SessionId(1),
            tenant: TenantId::ROOT,
            expiry_ms: NOW_MS + 1000,
            nonce: [nonce; 16],
            plan: b"plan",
        })
    }

    /// A key is accepted until two younger ones are there.
    #[test]
    fn the_previous_key_is_still_accepted() {
        let keys = GrantKeys::new(NodeId(1));
        let first = keys.sealing_key(false);
        keys.0.lock().rotate();
        assert!(keys.accept(&sealed(&first, 1), NOW_MS).is_ok());
        assert!(keys.accept(&sealed(&keys.sealing_key(false), 2), NOW_MS).is_ok());
        keys.0.lock().rotate();
        assert_eq!(keys.accept(&sealed(&first, 3), NOW_MS), Err(GrantError::UnknownKey));
    }

    #[test]
    fn an_earlier_life_is_refused() {
        let before = GrantKeys::new(NodeId(1)).sealing_key(false);
        let now = GrantKeys::new(NodeId(1));
        assert!(now.accept(&sealed(&before, 1), NOW_MS).is_err());
    }
}
