//! What an issuer publishes: where its keys are, and the keys.

use std::fmt;

use http::Uri;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::issuer::Issuer;

/// Most keys that an issuer may publish.
pub const KEYS_MAX: usize = 64;

/// Why what an issuer publishes is of no use. It repeats nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKeys {
    /// The description is not one.
    #[error("the issuer's description is malformed")]
    Description,
    /// It describes another issuer.
    #[error("the description is another issuer's")]
    OtherIssuer,
    /// Keys at an address that is not safe.
    #[error("the issuer's keys are at an address that may not be asked")]
    Address,
    /// The set of keys is not one.
    #[error("the issuer's keys are malformed")]
    Keys,
    /// More keys than [`KEYS_MAX`].
    #[error("the issuer has more than {KEYS_MAX} keys")]
    TooMany,
}

/// Where an issuer's description says that its keys are.
///
/// # Errors
/// [`InvalidKeys`].
pub fn keys_url(issuer: &Issuer, description: &[u8]) -> Result<Uri, InvalidKeys> {
    #[derive(Deserialize)]
    struct Description {
        issuer: String,
        jwks_uri: String,
    }
    let description: Description =
        serde_json::from_slice(description).map_err(|_| InvalidKeys::Description)?;
    // Another issuer's keys would let that one speak for this one.
    if description.issuer != issuer.as_str() {
        return Err(InvalidKeys::OtherIssuer);
    }
    issuer.keys_at(&description.jwks_uri).ok_or(InvalidKeys::Address)
}

/// The keys that an issuer signs tokens with. What it publishes for other purposes, or of kinds that
/// are not known, is left out.
pub struct KeySet(Vec<Key>);

/// A public key.
pub(super) struct Key {
    id: Option<String>,
    kind: Kind,
    /// The one algorithm that it is for, where it says so.
    only: Option<Algorithm>,
    pub(super) key: DecodingKey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl KeySet {
    /// Reads what an issuer publishes.
    ///
    /// # Errors
    /// [`InvalidKeys`].
    pub fn read(document: &[u8]) -> Result<Self, InvalidKeys> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let document: Document = serde_json::from_slice(document).map_err(|_| InvalidKeys::Keys)?;
        if document.keys.len() > KEYS_MAX {
            return Err(InvalidKeys::TooMany);
        }
        Ok(Self(document.keys.into_iter().filter_map(Key::read).collect()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys that a token with this header may be signed with. One that names no key must not
    /// be guessed at: then there is one key, or none.
    pub(super) fn candidates(&self, id: Option<&str>, algorithm: Algorithm) -> Vec<&Key> {
        let fits =
            |key: &&Key| key.may(algorithm) && id.is_none_or(|id| key.id.as_deref() == Some(id));
        let found: Vec<&Key> = self.0.iter().filter(fits).collect();
        if found.len() > 1 && id.is_none() { Vec::new() } else { found }
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({})", self.0.len())
    }
}

impl Key {
    fn read(json: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(json).ok()?;
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
        let verifies = common
            .key_operations
            .as_ref()
            .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !signs || !verifies {
            return None;
        }
        let kind = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Kind::Rsa,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => Kind::P256,
                EllipticCurve::P384 => Kind::P384,
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                Kind::Ed25519
            }
            // Secrets among them.
            _ => return None,
        };
        let only = match common.key_algorithm {
            None => None,
            Some(algorithm) => Some(algorithm.to_string().parse().ok()?),
        };
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { id: jwk.common.key_id, kind, only, key })
    }

    /// Whether the key may verify this algorithm: it is one of its own kind.
    fn may(&self, algorithm: Algorithm) -> bool {
        kind_of(algorithm) == Some(self.kind) && self.only.is_none_or(|only| only == algorithm)
    }
}

/// The kind of key that an algorithm needs; none for those with shared secrets.
fn kind_of(algorithm: Algorithm) -> Option<Kind> {
    match algorithm {
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => Some(Kind::Rsa),
        Algorithm::ES256 => Some(Kind::P256),
        Algorithm::ES384 => Some(Kind::P384),
        Algorithm::EdDSA => Some(Kind::Ed25519),
        _ => None,
    }
}

/// Whether an algorithm is one with public keys.
pub(super) fn is_asymmetric(algorithm: Algorithm) -> bool {
    kind_of(algorithm).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_name_their_issuer() {
        let issuer: Issuer = "https://idp.example.com/a".parse().expect("an issuer");
        let url = |issuer_of: &str, keys: &str| {
            let text = format!(r#"{{"issuer": "{issuer_of}", "jwks_uri": "{keys}", "x": [1]}}"#);
            keys_url(&issuer, text.as_bytes()).map(|url| url.to_string())
        };
        let keys = "https://idp.example.com/keys";
        assert_eq!(url("https://idp.example.com/a", keys).as_deref(), Ok(keys));
        for other in ["https://idp.example.com/a/", "https://idp.example.com", "https://x"] {
            assert_eq!(url(other, keys), Err(InvalidKeys::OtherIssuer), "{other}");
        }
        let near = url("https://idp.example.com/a", "http://127.0.0.1/keys");
        assert_eq!(near, Err(InvalidKeys::Address));
        assert_eq!(keys_url(&issuer, b"[]"), Err(InvalidKeys::Description));
    }

    #[test]
    fn only_keys_for_signatures_are_taken() {
        let set = |keys: &str| KeySet::read(format!(r#"{{"keys": [{keys}]}}"#).as_bytes());
        let rsa = r#"{"kty": "RSA", "kid": "a", "n": "AQAB", "e": "AQAB"}"#;
        let kinds = [
            r#"{"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"}"#,
            r#"{"kty": "RSA", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB"}"#,
            r#"{"kty": "RSA", "key_ops": ["encrypt"], "n": "AQAB", "e": "AQAB"}"#,
            r#"{"kty": "oct", "k": "c2VjcmV0"}"#,
            r#"{"kty": "OKP", "crv": "X25519", "x": "AQAB"}"#,
            r#"{"kty": "new", "z": 1}"#,
            r#"{"kty": "RSA", "n": "*", "e": "AQAB"}"#,
            "7",
        ];
        let all = set(&format!("{rsa}, {}", kinds.join(", "))).expect("a set");
        assert_eq!(all.len(), 1);
        assert_eq!(all.candidates(Some("a"), Algorithm::RS256).len(), 1);
        assert_eq!(all.candidates(None, Algorithm::PS512).len(), 1);
        for (id, algorithm) in [
            (Some("b"), Algorithm::RS256),
            (Some("a"), Algorithm::ES256),
            (Some("a"), Algorithm::HS256),
            (None, Algorithm::EdDSA),
        ] {
            assert!(all.candidates(id, algorithm).is_empty(), "{id:?} {algorithm:?}");
        }
        let two = set(&format!("{rsa}, {}", rsa.replace("\"a\"", "\"b\""))).expect("a set");
        assert!(two.candidates(None, Algorithm::RS256).is_empty(), "it would be guessing");
        assert!(matches!(set(&vec!["1"; KEYS_MAX + 1].join(",")), Err(InvalidKeys::TooMany)));
        assert!(matches!(KeySet::read(b"{}"), Err(InvalidKeys::Keys)));
    }
}
