//! Rails and sessions.

use bytes::Bytes;
use keyway_proto::session::ACCESS_KEY_BYTES_MAX;
use keyway_proto::{
    Gid, KeyStrength, LinkLayer, NodeId, PathMtu, QpAddress, Rail, SessionId, SessionOffer,
    SessionOwner, SessionRequest, SessionSelector, TenantId,
};

use super::{Malformed, strength, strength_message};
use crate::schema;
use crate::schema::close_sessions_request::{OneSession, Selector};

/// The message for a rail; `None` when it names something that the schema lacks.
pub fn rail_message(rail: &Rail) -> Option<schema::Rail> {
    Some(schema::Rail {
        rail: rail.rail,
        name: rail.name.clone(),
        link: link_message(rail.link).into(),
        gid: gid_bytes(rail.gid),
        strength: strength_message(rail.strength)?.into(),
    })
}

/// The rail in a message of `node`'s.
pub fn rail(node: NodeId, message: &schema::Rail) -> Result<Rail, Malformed> {
    Ok(Rail {
        node,
        rail: message.rail,
        name: message.name.clone(),
        link: link(message.link())?,
        gid: gid(&message.gid)?,
        strength: strength(message.strength())?,
    })
}

/// The request for a session; `None` when it names something that the schema lacks.
pub fn open_session_request(
    owner: &SessionOwner,
    request: &SessionRequest,
) -> Option<schema::OpenSessionRequest> {
    let strengths = request.strengths.iter().map(|&s| strength_message(s).map(i32::from));
    Some(schema::OpenSessionRequest {
        node: request.node.0,
        owner: Some(owner_message(owner)),
        rail: request.rail,
        client: Some(address_message(&request.client)),
        windows: request.windows,
        strengths: strengths.collect::<Option<_>>()?,
    })
}

/// Who asks in a request, and for what.
pub fn session_request(
    message: &schema::OpenSessionRequest,
) -> Result<(SessionOwner, SessionRequest), Malformed> {
    if message.strengths.len() > KeyStrength::ALL.len() {
        return Err(Malformed("key strengths"));
    }
    let request = SessionRequest {
        node: NodeId(message.node),
        rail: message.rail,
        client: address(message.client.as_ref())?,
        windows: message.windows,
        strengths: message.strengths().map(strength).collect::<Result<_, _>>()?,
    };
    Ok((session_owner(message.owner.as_ref())?, request))
}

/// The message for an offer; `None` when it names something that the schema lacks.
pub fn session_offer_message(offer: &SessionOffer) -> Option<schema::SessionOffer> {
    Some(schema::SessionOffer {
        session: offer.session.0,
        server: Some(address_message(&offer.server)),
        strength: strength_message(offer.strength)?.into(),
        windows: offer.windows,
        idle_timeout_ms: offer.idle_timeout_ms,
    })
}

/// The offer in a message of `node`'s.
pub fn session_offer(
    node: NodeId,
    message: &schema::SessionOffer,
) -> Result<SessionOffer, Malformed> {
    let session = SessionId(message.session);
    if session.node() != node {
        return Err(Malformed("session"));
    }
    Ok(SessionOffer {
        session,
        node,
        server: address(message.server.as_ref())?,
        strength: strength(message.strength())?,
        windows: message.windows,
        idle_timeout_ms: message.idle_timeout_ms,
    })
}

/// The request to end sessions.
pub fn close_sessions_request(
    node: NodeId,
    selector: &SessionSelector,
) -> schema::CloseSessionsRequest {
    let selector = match selector {
        SessionSelector::One(session, owner) => {
            Selector::One(OneSession { session: session.0, owner: Some(owner_message(owner)) })
        }
        SessionSelector::Owner(owner) => Selector::Owner(owner_message(owner)),
        SessionSelector::Tenant(tenant) => Selector::Tenant(tenant.0),
    };
    schema::CloseSessionsRequest { node: node.0, selector: Some(selector) }
}

/// Which sessions a request means.
pub fn session_selector(
    message: &schema::CloseSessionsRequest,
) -> Result<SessionSelector, Malformed> {
    match message.selector.as_ref().ok_or(Malformed("selector"))? {
        Selector::One(one) => {
            let owner = session_owner(one.owner.as_ref())?;
            Ok(SessionSelector::One(SessionId(one.session), owner))
        }
        Selector::Owner(owner) => Ok(SessionSelector::Owner(session_owner(Some(owner))?)),
        Selector::Tenant(tenant) => Ok(SessionSelector::Tenant(TenantId(*tenant))),
    }
}

/// Whose a session is.
pub fn session_owner(message: Option<&schema::SessionOwner>) -> Result<SessionOwner, Malformed> {
    let message = message.ok_or(Malformed("owner"))?;
    if !(1..=ACCESS_KEY_BYTES_MAX).contains(&message.access_key.len()) {
        return Err(Malformed("owner"));
    }
    let access_key = message.access_key.as_str().into();
    Ok(SessionOwner { tenant: TenantId(message.tenant), access_key })
}

pub(super) fn owner_message(owner: &SessionOwner) -> schema::SessionOwner {
    schema::SessionOwner { tenant: owner.tenant.0, access_key: owner.access_key.to_string() }
}

fn address_message(address: &QpAddress) -> schema::QpAddress {
    schema::QpAddress {
        link: link_message(address.link).into(),
        gid: gid_bytes(address.gid),
        lid: u32::from(address.lid),
        qp: address.qp,
        psn: address.psn,
        mtu: address.mtu.bytes(),
    }
}

fn address(message: Option<&schema::QpAddress>) -> Result<QpAddress, Malformed> {
    let message = message.ok_or(Malformed("address"))?;
    let address = QpAddress {
        link: link(message.link())?,
        gid: gid(&message.gid)?,
        lid: u16::try_from(message.lid).map_err(|_| Malformed("lid"))?,
        qp: message.qp,
        psn: message.psn,
        mtu: PathMtu::try_from(message.mtu).map_err(|_| Malformed("mtu"))?,
    };
    address.checked().map_err(|_| Malformed("address"))
}

fn link_message(link: LinkLayer) -> schema::LinkLayer {
    match link {
        LinkLayer::Ethernet => schema::LinkLayer::Ethernet,
        LinkLayer::Infiniband => schema::LinkLayer::Infiniband,
    }
}

fn link(message: schema::LinkLayer) -> Result<LinkLayer, Malformed> {
    match message {
        schema::LinkLayer::Ethernet => Ok(LinkLayer::Ethernet),
        schema::LinkLayer::Infiniband => Ok(LinkLayer::Infiniband),
        schema::LinkLayer::Unspecified => Err(Malformed("link layer")),
    }
}

fn gid_bytes(gid: Gid) -> Bytes {
    Bytes::copy_from_slice(&gid.0)
}

fn gid(bytes: &[u8]) -> Result<Gid, Malformed> {
    bytes.try_into().map(Gid).map_err(|_| Malformed("gid"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    fn strengths() -> impl Strategy<Value = KeyStrength> {
        prop::sample::select(KeyStrength::ALL.to_vec())
    }

    fn addresses() -> impl Strategy<Value = QpAddress> {
        let link = prop::sample::select(vec![LinkLayer::Ethernet, LinkLayer::Infiniband]);
        let mtu = prop::sample::select(PathMtu::ALL.to_vec());
        let number = || 0u32..1 << 24;
        (link, any::<[u8; 16]>(), any::<u16>(), number(), number(), mtu).prop_map(
            |(link, gid, lid, qp, psn, mtu)| QpAddress { link, gid: Gid(gid), lid, qp, psn, mtu },
        )
    }

    fn owners() -> impl Strategy<Value = SessionOwner> {
        (any::<u64>(), "\\PC{1,32}").prop_map(|(tenant, access_key)| SessionOwner {
            tenant: TenantId(tenant),
            access_key: access_key.into(),
        })
    }

    proptest! {
        #[test]
        fn rails_and_offers_round_trip(
            node: u32, rail_number: u32, name: String, address in addresses(),
            strength in strengths(), serial: u32, windows: u32, idle_timeout_ms: u64,
        ) {
            let node = NodeId(node);
            let given = Rail {
                node, rail: rail_number, name, link: address.link, gid: address.gid, strength,
            };
            prop_assert_eq!(rail(node, &rail_message(&given).expect("known")), Ok(given));
            let given = SessionOffer {
                session: SessionId::new(node, serial),
                node,
                server: address,
                strength,
                windows,
                idle_timeout_ms,
            };
            let message = session_offer_message(&given).expect("known");
            prop_assert_eq!(session_offer(node, &message), Ok(given));
            let other = NodeId(node.0.wrapping_add(1));
            prop_assert_eq!(session_offer(other, &message), Err(Malformed("session")));
        }

        #[test]
        fn requests_round_trip(
            owner in owners(), node: u32, rail: u32, client in addresses(), windows: u32,
            strengths in prop::collection::vec(strengths(), 0..=5), session: u64,
        ) {
            let given = SessionRequest { node: NodeId(node), rail, client, windows, strengths };
            let message = open_session_request(&owner, &given).expect("known");
            prop_assert_eq!(session_request(&message), Ok((owner.clone(), given)));
            for selector in [
                SessionSelector::One(SessionId(session), owner.clone()),
                SessionSelector::Tenant(owner.tenant),
                SessionSelector::Owner(owner),
            ] {
                let message = close_sessions_request(NodeId(node), &selector);
                prop_assert_eq!(session_selector(&message), Ok(selector));
            }
        }

        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            if let Ok(message) = schema::OpenSessionRequest::decode(&bytes[..]) {
                let _ = session_request(&message);
            }
            if let Ok(message) = schema::CloseSessionsRequest::decode(&bytes[..]) {
                let _ = session_selector(&message);
            }
        }
    }

    #[test]
    fn what_stands_for_nothing_is_refused() {
        let owner = SessionOwner { tenant: TenantId(1), access_key: "a".into() };
        let client = QpAddress {
            link: LinkLayer::Ethernet,
            gid: Gid([1; 16]),
            lid: 0,
            qp: 1,
            psn: 1,
            mtu: PathMtu::B1024,
        };
        let request =
            SessionRequest { node: NodeId(1), rail: 0, client, windows: 1, strengths: vec![] };
        let message = open_session_request(&owner, &request).expect("known");
        let altered = |change: fn(&mut schema::OpenSessionRequest)| {
            let mut message = message.clone();
            change(&mut message);
            session_request(&message).expect_err("refused")
        };
        fn address(message: &mut schema::OpenSessionRequest) -> &mut schema::QpAddress {
            message.client.get_or_insert_default()
        }
        assert_eq!(altered(|m| m.client = None), Malformed("address"));
        assert_eq!(altered(|m| address(m).qp = 1 << 24), Malformed("address"));
        assert_eq!(altered(|m| address(m).lid = 1 << 16), Malformed("lid"));
        assert_eq!(altered(|m| address(m).mtu = 1500), Malformed("mtu"));
        assert_eq!(altered(|m| address(m).link = 0), Malformed("link layer"));
        assert_eq!(altered(|m| address(m).gid = Bytes::new()), Malformed("gid"));
        assert_eq!(altered(|m| m.strengths = vec![0]), Malformed("key strength"));
        assert_eq!(
            altered(|m| m.strengths = vec![5; 1 + KeyStrength::ALL.len()]),
            Malformed("key strengths")
        );
        let long = |m: &mut schema::OpenSessionRequest| {
            m.owner.get_or_insert_default().access_key = "a".repeat(ACCESS_KEY_BYTES_MAX + 1);
        };
        assert_eq!(altered(long), Malformed("owner"));
    }
}
