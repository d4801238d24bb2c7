//! Sealing and accepting grants: a fixed header, the plan, an HMAC-SHA256 over both.

use hmac::{Hmac, KeyInit, Mac};
use keyway_proto::{NodeId, SessionId, TenantId};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::replay::{LIFETIME_MS_MAX, ReplayCache};
use super::{Grant, GrantError};
use crate::key_file::random_bytes;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 1 + 4 + 4 + 8 + 8 + 8 + 16;
const TAG_BYTES: usize = 32;
/// Largest sealed grant: a plan of 16,384 pieces fits.
const SEALED_BYTES_MAX: usize = 1 << 20;

/// Which of a node's keys sealed a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantKeyId(pub u32);

/// A key that a node shares with its gateways. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct GrantKey {
    id: GrantKeyId,
    secret: Zeroizing<[u8; 32]>,
}

impl GrantKey {
    /// The key with this id and secret.
    pub fn new(id: GrantKeyId, secret: [u8; 32]) -> Self {
        Self { id, secret: Zeroizing::new(secret) }
    }

    /// A key with this id and a secret from the system's random source.
    pub fn generate(id: GrantKeyId) -> Self {
        Self { id, secret: random_bytes() }
    }

    /// The key's id.
    pub fn id(&self) -> GrantKeyId {
        self.id
    }

    /// The secret, to be sent over an authenticated and encrypted channel.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// An HMAC that has taken the key in; cloned for each grant, it saves two of its blocks.
    fn mac(&self) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&*self.secret).expect("HMAC takes keys of any length")
    }
}

/// A gateway's end: seals grants for one node.
pub struct Sealer {
    key: GrantKeyId,
    mac: Hmac<Sha256>,
}

impl Sealer {
    /// Seals under `key`.
    pub fn new(key: &GrantKey) -> Self {
        Self { key: key.id, mac: key.mac() }
    }

    /// The grant's sealed form.
    pub fn seal(&self, grant: &Grant<'_>) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(HEADER_BYTES + grant.plan.len() + TAG_BYTES);
        sealed.push(VERSION);
        sealed.extend_from_slice(&self.key.0.to_be_bytes());
        sealed.extend_from_slice(&grant.node.0.to_be_bytes());
        sealed.extend_from_slice(&grant.session.0.to_be_bytes());
        sealed.extend_from_slice(&grant.tenant.0.to_be_bytes());
        sealed.extend_from_slice(&grant.expiry_ms.to_be_bytes());
        sealed.extend_from_slice(&grant.nonce);
        sealed.extend_from_slice(grant.plan);
        let mut mac = self.mac.clone();
        mac.update(&sealed);
        sealed.extend_from_slice(&mac.finalize().into_bytes());
        sealed
    }
}

/// A node's end: accepts each of its grants once.
pub struct Verifier {
    node: NodeId,
    /// The newest first. More than one while a rotation is under way.
    keys: Vec<(GrantKeyId, Hmac<Sha256>)>,
    replay: ReplayCache,
}

impl Verifier {
    /// Accepts grants for `node` sealed under any of `keys`.
    pub fn new(node: NodeId, keys: &[GrantKey]) -> Self {
        let mut verifier = Self { node, keys: Vec::new(), replay: ReplayCache::new() };
        verifier.rotate(keys);
        verifier
    }

    /// Replaces the keys. Grants accepted before stay remembered.
    pub fn rotate(&mut self, keys: &[GrantKey]) {
        self.keys = keys.iter().map(|key| (key.id, key.mac())).collect();
    }

    /// Accepts a grant at `now_ms` (milliseconds since 1970). Whether its session is alive and
    /// belongs to its tenant is the caller's to check.
    ///
    /// # Errors
    /// Says which rule the grant breaks. One that was refused is not remembered.
    pub fn accept<'a>(&mut self, sealed: &'a [u8], now_ms: u64) -> Result<Grant<'a>, GrantError> {
        if sealed.len() > SEALED_BYTES_MAX {
            return Err(GrantError::Malformed);
        }
        let (signed, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(GrantError::Malformed)?;
        let (key, grant) = parse(signed).ok_or(GrantError::Malformed)?;
        let (_, mac) = self.keys.iter().find(|(id, _)| *id == key).ok_or(GrantError::UnknownKey)?;
        let mut mac = mac.clone();
        mac.update(signed);
        mac.verify_slice(tag).map_err(|_| GrantError::Forged)?;
        if grant.node != self.node {
            return Err(GrantError::OtherNode);
        }
        if grant.expiry_ms <= now_ms {
            return Err(GrantError::Expired);
        }
        if grant.expiry_ms - now_ms > LIFETIME_MS_MAX {
            return Err(GrantError::TooLong);
        }
        self.replay.remember(grant.nonce, grant.expiry_ms, now_ms)?;
        Ok(grant)
    }
}

fn parse(signed: &[u8]) -> Option<(GrantKeyId, Grant<'_>)> {
    let (version, rest) = signed.split_first()?;
    let (key, rest) = rest.split_first_chunk()?;
    let (node, rest) = rest.split_first_chunk()?;
    let (session, rest) = rest.split_first_chunk()?;
    let (tenant, rest) = rest.split_first_chunk()?;
    let (expiry_ms, rest) = rest.split_first_chunk()?;
    let (nonce, plan) = rest.split_first_chunk()?;
    let grant = Grant {
        node: NodeId(u32::from_be_bytes(*node)),
        session: SessionId(u64::from_be_bytes(*session)),
        tenant: TenantId(u64::from_be_bytes(*tenant)),
        expiry_ms: u64::from_be_bytes(*expiry_ms),
        nonce: *nonce,
        plan,
    };
    (*version == VERSION).then_some((GrantKeyId(u32::from_be_bytes(*key)), grant))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NODE: NodeId = NodeId(7);
    const NOW_MS: u64 = 1_800_000_000_000;

    fn key(id: u32) -> GrantKey {
        GrantKey::new(GrantKeyId(id), [id as u8; 32])
    }

    fn grant(nonce: u8, plan: &[u8]) -> Grant<'_> {
        Grant {
            node: NODE,
            session: SessionId(3),
            tenant: TenantId(9),
            expiry_ms: NOW_MS + 1_000,
            nonce: [nonce; 16],
            plan,
        }
    }

    #[test]
    fn a_grant_is_accepted_once() {
        let mut verifier = Verifier::new(NODE, &[key(1)]);
        let sealed = Sealer::new(&key(1)).seal(&grant(1, b"plan"));
        assert_eq!(verifier.accept(&sealed, NOW_MS), Ok(grant(1, b"plan")));
        assert_eq!(verifier.accept(&sealed, NOW_MS), Err(GrantError::Replayed));
        assert_eq!(verifier.accept(&sealed, NOW_MS + 999), Err(GrantError::Replayed));
        assert_eq!(verifier.accept(&sealed, NOW_MS + 1_000), Err(GrantError::Expired));
    }

    #[test]
    fn a_clock_that_steps_back_brings_no_replay() {
        let mut verifier = Verifier::new(NODE, &[key(1)]);
        let sealer = Sealer::new(&key(1));
        let sealed = sealer.seal(&grant(1, b""));
        assert!(verifier.accept(&sealed, NOW_MS).is_ok());
        let mut later = grant(2, b"");
        later.expiry_ms = NOW_MS + 100_000;
        assert!(verifier.accept(&sealer.seal(&later), NOW_MS + 50_000).is_ok());
        assert_eq!(verifier.accept(&sealed, NOW_MS), Err(GrantError::Expired));
    }

    #[test]
    fn every_altered_bit_is_noticed() {
        let sealed = Sealer::new(&key(1)).seal(&grant(1, b"plan"));
        for bit in 0..sealed.len() * 8 {
            let mut altered = sealed.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let refusal = Verifier::new(NODE, &[key(1)]).accept(&altered, NOW_MS).unwrap_err();
            assert!(
                matches!(
                    refusal,
                    GrantError::Forged | GrantError::UnknownKey | GrantError::Malformed
                ),
                "bit {bit}: {refusal}"
            );
        }
    }

    #[test]
    fn other_nodes_long_lives_and_strangers_are_refused() {
        let mut verifier = Verifier::new(NODE, &[key(2), key(1)]);
        let sealer = Sealer::new(&key(1));
        let other = Grant { node: NodeId(8), ..grant(1, b"") };
        assert_eq!(verifier.accept(&sealer.seal(&other), NOW_MS), Err(GrantError::OtherNode));
        let long = Grant { expiry_ms: NOW_MS + LIFETIME_MS_MAX + 1, ..grant(1, b"") };
        assert_eq!(verifier.accept(&sealer.seal(&long), NOW_MS), Err(GrantError::TooLong));
        let forged = Sealer::new(&GrantKey::new(GrantKeyId(1), [0; 32])).seal(&grant(1, b""));
        assert_eq!(verifier.accept(&forged, NOW_MS), Err(GrantError::Forged));
        let stranger = Sealer::new(&key(3)).seal(&grant(1, b""));
        assert_eq!(verifier.accept(&stranger, NOW_MS), Err(GrantError::UnknownKey));
        assert!(verifier.accept(&sealer.seal(&grant(1, b"")), NOW_MS).is_ok(), "old key, rotating");
        verifier.rotate(&[key(2)]);
        let retired = sealer.seal(&grant(2, b""));
        assert_eq!(verifier.accept(&retired, NOW_MS), Err(GrantError::UnknownKey));
    }

    #[test]
    fn memory_is_freed_as_grants_expire() {
        let mut cache = ReplayCache::new();
        for second in 0..10_000_u64 {
            let nonce = u128::from(second).to_be_bytes();
            let now_ms = NOW_MS + second * 1_000;
            cache.remember(nonce, now_ms + LIFETIME_MS_MAX, now_ms).expect("fresh");
        }
        assert!(cache.remembered() <= LIFETIME_MS_MAX as usize / 1000 + 2);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            prop_assert!(Verifier::new(NODE, &[key(1)]).accept(&bytes, NOW_MS).is_err());
        }
    }
}
