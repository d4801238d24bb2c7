//! Grants: a gateway's permission for one transfer, checked by a node without asking anyone.
//!
//! A gateway that has authenticated and authorised a request seals the plan for it under a key
//! that it shares with one node. The node accepts a grant when the seal is its own key's, the
//! grant names this node and this session, it has not expired, and it was never accepted
//! before. Nothing about a grant is secret but the key; nothing in it can be altered.
//!
//! ```text
//! version u8 │ key u32 │ node u32 │ session u64 │ tenant u64 │ expiry_ms u64 │ nonce 16 B │ plan … │ HMAC-SHA256 32 B
//! ```
//!
//! Cost of accepting one with a plan of 100 bytes: four SHA-256 blocks and one hash-set
//! insertion; no allocation but the set's. `cargo bench -p keyway-auth --bench grant` tells.

mod replay;
mod seal;

use keyway_proto::{NodeId, SessionId, TenantId};

pub use replay::{LIFETIME_MS_MAX, NONCES_MAX};
pub use seal::{GrantKey, GrantKeyId, Sealer, Verifier};

/// A permission, before it is sealed or after it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    /// The node that may execute it.
    pub node: NodeId,
    /// The session whose memory it concerns.
    pub session: SessionId,
    /// Whose request it is.
    pub tenant: TenantId,
    /// Milliseconds since 1970 from which on it is refused.
    pub expiry_ms: u64,
    /// 128 bits that no other grant has.
    pub nonce: [u8; 16],
    /// The plan, encoded.
    pub plan: &'a [u8],
}

/// 128 bits from the system's random source, for one grant.
pub fn nonce() -> [u8; 16] {
    let random = crate::key_file::random_bytes();
    let (nonce, _) = random.split_first_chunk().expect("a key is longer than a nonce");
    *nonce
}

/// Why a grant was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// Too short, too long, or of another version.
    #[error("the grant is malformed")]
    Malformed,
    /// Sealed under a key that this node does not hold.
    #[error("the grant is sealed under an unknown key")]
    UnknownKey,
    /// The seal does not match: altered or forged.
    #[error("the grant's seal does not match")]
    Forged,
    /// It names another node.
    #[error("the grant is for another node")]
    OtherNode,
    /// Its time has passed.
    #[error("the grant has expired")]
    Expired,
    /// It would live longer than any grant may.
    #[error("the grant expires too far in the future")]
    TooLong,
    /// It was accepted before.
    #[error("the grant was used before")]
    Replayed,
    /// So many live grants are remembered that one more could not be: refused rather than
    /// risked.
    #[error("too many live grants")]
    Overloaded,
}
