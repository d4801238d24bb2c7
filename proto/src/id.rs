//! Identifiers: one newtype per thing, so that none is passed for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not the identifier it was parsed as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {kind}")]
pub struct InvalidId {
    /// What was expected, for example `chunk id`.
    pub kind: &'static str,
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Makes an id that sorts by `unix_ms` (milliseconds since 1970) and is unique
            /// by its 74 random bits, taken from `random` (UUID version 7, RFC 9562).
            pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
                Self(uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
            }

            /// Makes an id from the machine's clock and its random source.
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id's 16 bytes, which sort by time of creation.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.into_bytes()
            }

            /// The id with these 16 bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// Milliseconds since 1970 at which the id was made; 0 when it carries no time.
            pub fn unix_ms(self) -> u64 {
                self.0.get_timestamp().map_or(0, |stamp| {
                    let (seconds, nanos) = stamp.to_unix();
                    seconds * 1000 + u64::from(nanos) / 1_000_000
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self.0.as_simple(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.as_simple())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Uuid::try_parse(text).map(Self).map_err(|_| InvalidId { kind: $kind })
            }
        }
    };
}

uuid_id! {
    /// A write-once run of object bytes on a storage node. Never reused.
    ChunkId, "chunk id"
}
uuid_id! {
    /// One transfer: one request's bytes between a client and a node.
    TransferId, "transfer id"
}
uuid_id! {
    /// A multipart upload in progress.
    UploadId, "upload id"
}
uuid_id! {
    /// One version of one object.
    VersionId, "version id"
}

uuid_id! {
    /// A catalog of objects: the metadata that says which chunks are whose.
    CatalogId, "catalog id"
}

/// A tenant: the owner of users, buckets, quotas and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub u64);

impl TenantId {
    /// The tenant that exists from the first start on.
    pub const ROOT: Self = Self(0);
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A bucket. Never reused: a bucket made again under the same name has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BucketId(pub u64);

/// A storage node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node-{}", self.0)
    }
}

/// A session between a client and a node. It dies with the node's process: a node's serials
/// start anywhere and are never given twice, so that what was meant for an earlier life of it
/// is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// The session with this serial number on a node.
    pub const fn new(node: NodeId, serial: u32) -> Self {
        Self((node.0 as u64) << 32 | serial as u64)
    }

    /// The node's end is there.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 32) as u32)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SessionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let valid = text.len() == 16 && text.bytes().all(digit);
        let number = valid.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(InvalidId { kind: "session id" })
    }
}

impl Serialize for SessionId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_carry_it() {
        let early = ChunkId::new(1_700_000_000_123, [0xff; 10]);
        let late = ChunkId::new(1_700_000_000_124, [0; 10]);
        assert!(early < late);
        assert_eq!(early.unix_ms(), 1_700_000_000_123);
        assert_eq!(ChunkId::from_bytes(early.to_bytes()), early);
        assert_eq!(early.to_string().parse(), Ok(early));
    }

    #[test]
    fn foreign_text_is_refused() {
        assert_eq!("../../etc".parse::<UploadId>(), Err(InvalidId { kind: "upload id" }));
        let session = SessionId::new(NodeId(7), 0xab);
        assert_eq!(session.node(), NodeId(7));
        assert_eq!(session.to_string().parse(), Ok(session));
        for strange in ["", "ab", "+0000000000000ab", "00000000000000AB"] {
            assert_eq!(strange.parse::<SessionId>(), Err(InvalidId { kind: "session id" }));
        }
    }
}
