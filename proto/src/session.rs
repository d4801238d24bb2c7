//! Sessions: a client's queue pair and a node's, connected, owned by one principal.
//!
//! A client asks its gateway for a session over signed HTTP; the gateway asks the node. Both
//! requests carry the same values, so they are defined once, here.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{NodeId, SessionId, TenantId};
use crate::receipt::KeyStrength;

/// Longest access key id that a session's owner has.
pub const ACCESS_KEY_BYTES_MAX: usize = 128;
/// Most windows of one session: transfers that it may have in flight.
pub const SESSION_WINDOWS_MAX: u32 = 256;

/// Whose session it is. Nobody else's requests may use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionOwner {
    /// The tenant, in whose protection domain the node's end lives.
    pub tenant: TenantId,
    /// The access key that signed; at most [`ACCESS_KEY_BYTES_MAX`] bytes.
    pub access_key: Arc<str>,
}

/// What carries packets between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLayer {
    /// RoCE: addressed by GID.
    Ethernet,
    /// InfiniBand: addressed by LID, and by GID across subnets.
    Infiniband,
}

/// The global identifier of a port: 16 bytes, an IPv6 or IPv4-mapped address under RoCE v2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether it is an IPv4-mapped address.
    pub fn is_ipv4(&self) -> bool {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }

    /// Whether it is of link-local scope.
    pub fn is_link_local(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl Serialize for Gid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let address = std::net::Ipv6Addr::deserialize(deserializer)?;
        Ok(Self(address.octets()))
    }
}

/// The most bytes of a packet's payload that a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum PathMtu {
    /// 256 bytes.
    B256 = 256,
    /// 512 bytes.
    B512 = 512,
    /// 1,024 bytes.
    B1024 = 1024,
    /// 2,048 bytes.
    B2048 = 2048,
    /// 4,096 bytes.
    B4096 = 4096,
}

impl PathMtu {
    /// All of them, ascending.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        self as u32
    }
}

impl From<PathMtu> for u32 {
    fn from(mtu: PathMtu) -> Self {
        mtu.bytes()
    }
}

/// A number that is no path MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no path MTU: 256, 512, 1024, 2048 or 4096")]
pub struct InvalidMtu(pub u32);

impl TryFrom<u32> for PathMtu {
    type Error = InvalidMtu;

    fn try_from(bytes: u32) -> Result<Self, InvalidMtu> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes).ok_or(InvalidMtu(bytes))
    }
}

/// One end of a connection: what the other must know to send to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpAddress {
    /// What carries the packets.
    pub link: LinkLayer,
    /// The port's GID.
    pub gid: Gid,
    /// The port's local identifier; 0 under Ethernet.
    pub lid: u16,
    /// The queue pair's number, 24 bits.
    pub qp: u32,
    /// The first packet's sequence number, 24 bits.
    pub psn: u32,
    /// The port's MTU; the connection takes the smaller of the two.
    pub mtu: PathMtu,
}

/// A 24-bit number that has more bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("queue pair and packet sequence numbers have 24 bits")]
pub struct InvalidAddress;

impl QpAddress {
    /// The address itself when its numbers fit their 24 bits.
    ///
    /// # Errors
    /// [`InvalidAddress`].
    pub fn checked(self) -> Result<Self, InvalidAddress> {
        if (self.qp | self.psn) >> 24 == 0 { Ok(self) } else { Err(InvalidAddress) }
    }
}

/// A port of a node that takes sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// The node.
    pub node: NodeId,
    /// The rail's number within the node.
    pub rail: u32,
    /// The adapter and port, for people: `mlx5_0/1`.
    pub name: String,
    /// What carries the packets.
    pub link: LinkLayer,
    /// The port's GID.
    pub gid: Gid,
    /// The strongest keys that the adapter's self-test allows.
    pub strength: KeyStrength,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// The node.
    pub node: NodeId,
    /// Its rail.
    pub rail: u32,
    /// The client's end.
    pub client: QpAddress,
    /// Transfers that the client wants to have in flight, 1 to [`SESSION_WINDOWS_MAX`].
    pub windows: u32,
    /// The key strengths that the client's adapter can give.
    pub strengths: Vec<KeyStrength>,
}

/// What a node gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionOffer {
    /// The session.
    pub session: SessionId,
    /// The node.
    pub node: NodeId,
    /// The node's end.
    pub server: QpAddress,
    /// How keys of this session die: the strongest that both ends can do.
    pub strength: KeyStrength,
    /// Transfers that the session may have in flight.
    pub windows: u32,
    /// The node closes the session when it was not used for this long.
    pub idle_timeout_ms: u64,
}

/// Which sessions are to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionSelector {
    /// This one, if it is this owner's.
    One(SessionId, SessionOwner),
    /// Those of an access key of a tenant.
    Owner(SessionOwner),
    /// Those of a tenant.
    Tenant(TenantId),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> QpAddress {
        QpAddress {
            link: LinkLayer::Ethernet,
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]),
            lid: 0,
            qp: 17,
            psn: 0x00ab_cdef,
            mtu: PathMtu::B4096,
        }
    }

    #[test]
    fn an_address_reads_as_it_was_written() {
        let text = serde_json::to_string(&address()).expect("serialises");
        assert!(text.contains("\"::ffff:10.77.0.1\"") && text.contains("4096"), "{text}");
        assert_eq!(serde_json::from_str::<QpAddress>(&text).expect("parses"), address());
        let strange = text.replace("4096", "1500");
        assert!(serde_json::from_str::<QpAddress>(&strange).is_err());
    }

    #[test]
    fn numbers_have_24_bits() {
        assert!(address().checked().is_ok());
        assert_eq!(QpAddress { qp: 1 << 24, ..address() }.checked(), Err(InvalidAddress));
        assert_eq!(QpAddress { psn: u32::MAX, ..address() }.checked(), Err(InvalidAddress));
    }
}
