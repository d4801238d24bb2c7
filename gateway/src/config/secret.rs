//! A secret in the configuration: read, never written.

use keyway_auth::SecretKey;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use subtle::ConstantTimeEq;

/// What stands in the place of a secret wherever the configuration is shown.
pub(crate) const HIDDEN: &str = "(hidden)";

/// A secret setting. Serializes as `(hidden)`.
#[derive(Clone, Debug)]
pub struct Secret(pub SecretKey);

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose().as_bytes().ct_eq(other.0.expose().as_bytes()).into()
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(SecretKey::new(text)))
    }
}
