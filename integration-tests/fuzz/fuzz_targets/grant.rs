//! Sealed grants: nothing but the sealed bytes themselves is accepted, and those once.
#![no_main]

use keyway_auth::grant::{Grant, GrantKey, GrantKeyId, Sealer, Verifier};
use keyway_proto::{NodeId, SessionId, TenantId};
use libfuzzer_sys::fuzz_target;

const NOW_MS: u64 = 1_800_000_000_000;

fuzz_target!(|bytes: &[u8]| {
    let keys = [GrantKey::new(GrantKeyId(1), [7; 32])];
    let mut verifier = Verifier::new(NodeId(1), &keys);
    assert!(verifier.accept(bytes, NOW_MS).is_err(), "forged");

    let grant = Grant {
        node: NodeId(1),
        session: SessionId(2),
        tenant: TenantId(3),
        expiry_ms: NOW_MS + 1_000,
        nonce: [4; 16],
        plan: bytes,
    };
    let sealed = Sealer::new(&keys[0]).seal(&grant);
    if let Some((at, flip)) = bytes.first().zip(bytes.last()) {
        let mut altered = sealed.clone();
        let at = usize::from(*at) % altered.len();
        altered[at] ^= flip | 1;
        assert!(verifier.accept(&altered, NOW_MS).is_err(), "altered at {at}");
    }
    if verifier.accept(&sealed, NOW_MS).is_ok() {
        assert!(verifier.accept(&sealed, NOW_MS).is_err(), "replayed");
    }
});
