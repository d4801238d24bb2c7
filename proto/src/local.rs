//! Sessions between two processes of one host: no adapter, a socket and shared memory.
//!
//! A client asks its gateway for such a session as for any other; what it gets is a ticket to
//! the node's door, a Unix socket. Whoever shows the ticket there, once, has the session.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{InvalidId, NodeId, SessionId};

/// A host, from one boot to the next: only processes of one host can share memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId(pub [u8; 16]);

/// What opens a session's door, once. Whoever holds it has the session, so it has no `Debug`
/// that shows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DoorTicket(pub [u8; 16]);

/// A node's door for processes of its own host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Door {
    /// The node.
    pub node: NodeId,
    /// Its host.
    pub host: HostId,
    /// The Unix socket's path, as the node's file system has it.
    pub socket: String,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSessionRequest {
    /// The node.
    pub node: NodeId,
    /// Transfers that the client wants to have in flight, 1 to
    /// [`SESSION_WINDOWS_MAX`](crate::session::SESSION_WINDOWS_MAX).
    pub windows: u32,
}

/// What a node gives. It waits a few seconds at its door for who shows the ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSessionOffer {
    /// The session.
    pub session: SessionId,
    /// The node.
    pub node: NodeId,
    /// What is to be shown at the door.
    pub ticket: DoorTicket,
    /// Transfers that the session may have in flight.
    pub windows: u32,
    /// The node closes the session when it was not used for this long.
    pub idle_timeout_ms: u64,
}

fn encode(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Exactly 32 lowercase hexadecimal digits.
fn decode(text: &str, kind: &'static str) -> Result<[u8; 16], InvalidId> {
    let lowercase = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 32 || !text.bytes().all(lowercase) {
        return Err(InvalidId { kind });
    }
    u128::from_str_radix(text, 16).map(u128::to_be_bytes).map_err(|_| InvalidId { kind })
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(self.0))
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

impl FromStr for HostId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        decode(text, "host id").map(Self)
    }
}

impl fmt::Debug for DoorTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DoorTicket(hidden)")
    }
}

impl Serialize for HostId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(self.0))
    }
}

impl<'de> Deserialize<'de> for HostId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for DoorTicket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(self.0))
    }
}

impl<'de> Deserialize<'de> for DoorTicket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        decode(&text, "ticket").map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_reads_as_it_was_written_and_hides_its_ticket() {
        let offer = LocalSessionOffer {
            session: SessionId::new(NodeId(3), 9),
            node: NodeId(3),
            ticket: DoorTicket(*b"planted-ticket-1"),
            windows: 4,
            idle_timeout_ms: 1000,
        };
        let text = serde_json::to_string(&offer).expect("serialises");
        assert_eq!(serde_json::from_str::<LocalSessionOffer>(&text).expect("parses"), offer);
        assert!(!format!("{offer:?}").contains("706c616e746564"));
    }

    #[test]
    fn other_texts_are_no_hosts() {
        let host = HostId([0xab; 16]);
        assert_eq!(host.to_string().parse(), Ok(host));
        for bad in ["", "ab", &"AB".repeat(16), &"+b".repeat(16), &"ab".repeat(17)] {
            assert!(bad.parse::<HostId>().is_err(), "{bad}");
        }
    }
}
