//! Doors, and sessions between processes of one host.

use bytes::Bytes;
use keyway_proto::{
    Door, DoorTicket, HostId, LocalSessionOffer, LocalSessionRequest, NodeId, SessionId,
    SessionOwner,
};

use super::Malformed;
use super::session::{owner_message, session_owner};
use crate::schema;

/// The message for a door.
pub fn door_message(door: &Door) -> schema::Door {
    schema::Door { host: Bytes::copy_from_slice(&door.host.0), socket: door.socket.clone() }
}

/// The door in a message of `node`'s.
pub fn door(node: NodeId, message: &schema::Door) -> Result<Door, Malformed> {
    let host = (&message.host[..]).try_into().map_err(|_| Malformed("host"))?;
    Ok(Door { node, host: HostId(host), socket: message.socket.clone() })
}

/// The request for a session with a process of the node's host.
pub fn open_local_session_request(
    owner: &SessionOwner,
    request: LocalSessionRequest,
) -> schema::OpenLocalSessionRequest {
    schema::OpenLocalSessionRequest {
        node: request.node.0,
        owner: Some(owner_message(owner)),
        windows: request.windows,
    }
}

/// Who asks in a request, and for what.
pub fn local_session_request(
    message: &schema::OpenLocalSessionRequest,
) -> Result<(SessionOwner, LocalSessionRequest), Malformed> {
    let request = LocalSessionRequest { node: NodeId(message.node), windows: message.windows };
    Ok((session_owner(message.owner.as_ref())?, request))
}

/// The message for an offer. It must leave over the authenticated channel alone.
pub fn local_session_offer_message(offer: &LocalSessionOffer) -> schema::LocalSessionOffer {
    schema::LocalSessionOffer {
        session: offer.session.0,
        ticket: Bytes::copy_from_slice(&offer.ticket.0),
        windows: offer.windows,
        idle_timeout_ms: offer.idle_timeout_ms,
    }
}

/// The offer in a message of `node`'s.
pub fn local_session_offer(
    node: NodeId,
    message: &schema::LocalSessionOffer,
) -> Result<LocalSessionOffer, Malformed> {
    let session = SessionId(message.session);
    if session.node() != node {
        return Err(Malformed("session"));
    }
    let ticket = (&message.ticket[..]).try_into().map_err(|_| Malformed("ticket"))?;
    Ok(LocalSessionOffer {
        session,
        node,
        ticket: DoorTicket(ticket),
        windows: message.windows,
        idle_timeout_ms: message.idle_timeout_ms,
    })
}

#[cfg(test)]
mod tests {
    use keyway_proto::TenantId;

    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let node = NodeId(7);
        let given = Door { node, host: HostId([5; 16]), socket: "/run/keyway/door".into() };
        let mut message = door_message(&given);
        assert_eq!(door(node, &message), Ok(given));
        message.host.truncate(15);
        assert_eq!(door(node, &message), Err(Malformed("host")));

        let owner = SessionOwner { tenant: TenantId(1), access_key: "a".into() };
        let given = LocalSessionRequest { node, windows: 9 };
        let message = open_local_session_request(&owner, given);
        assert_eq!(local_session_request(&message), Ok((owner, given)));

        let session = SessionId::new(node, 3);
        let ticket = DoorTicket([8; 16]);
        let given = LocalSessionOffer { session, node, ticket, windows: 9, idle_timeout_ms: 1000 };
        let mut message = local_session_offer_message(&given);
        assert_eq!(local_session_offer(node, &message), Ok(given));
        assert_eq!(local_session_offer(NodeId(8), &message), Err(Malformed("session")));
        message.ticket = Bytes::new();
        assert_eq!(local_session_offer(node, &message), Err(Malformed("ticket")));
    }
}
