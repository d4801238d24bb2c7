//! Direct transfers and sessions across the network: answers that say what became of the
//! client's key, whatever else went wrong.
//!
//! Other failures travel as statuses (see [`failure`](super::failure)). These do not: a status
//! may come from anywhere between the two ends, and what it says of the key is nothing.

use keyway_auth::grant::{GrantError, GrantKey, GrantKeyId};
use keyway_proto::key::Relinquished;
use keyway_proto::{LocalSessionOffer, NodeId, SessionOffer};
use keyway_rpc::convert::{self, Malformed};
use keyway_rpc::schema;
use keyway_rpc::schema::direct_failure::{Cancelled, Failure, NoSuchSession, NotServed, TimedOut};
use keyway_rpc::schema::open_local_session_reply::Outcome as OpenedLocal;
use keyway_rpc::schema::open_session_reply::Outcome as Opened;
use keyway_rpc::schema::session_failure::{Failure as NotOpened, NoSuchRail, TooMany};
use keyway_rpc::schema::transfer_reply::Outcome;
use keyway_rpc::schema::{
    DirectFailure, GrantRefusal, OpenLocalSessionReply, OpenSessionReply, SealingKeyReply,
    SessionFailure, TransferReply,
};
use std::time::Duration;

use super::failure::{transfer_error, transfer_failure, unreachable};
use crate::node::{DirectError, SealingKey, SessionError, TransferError, Transferred};

/// The reasons of [`DirectError::InvalidPlan`] and [`SessionError::Incompatible`] that nodes
/// give. One that is not among them comes from a newer node, and is told in general words.
const REASONS: &[&str] = &[
    MALFORMED,
    "the plan is malformed",
    "the plan is not the grant's",
    "the bytes do not fit the windows",
    "a chunk's length is out of bounds",
    "nothing is left to read",
    "the plan is longer than its chunks",
    "the address is malformed",
    "no key strength in common",
    "another kind of network",
    "no path from the rail to the client's port",
];
/// The message says nothing that this node understands.
pub(super) const MALFORMED: &str = "the message is malformed";

/// The message for a transfer's end.
pub fn transfer_reply(transferred: &Transferred) -> TransferReply {
    let key = convert::relinquished_message(transferred.key).into();
    let outcome = match &transferred.moved {
        Ok(receipt) => match convert::receipt_message(receipt) {
            Some(receipt) => Outcome::Receipt(receipt),
            None => Outcome::Failure(direct_failure(&DirectError::Transfer(unreachable(
                "the receipt names a path that this protocol version lacks",
            )))),
        },
        Err(error) => Outcome::Failure(direct_failure(error)),
    };
    TransferReply { outcome: Some(outcome), key }
}

/// The transfer's end in a message.
pub fn transferred(reply: &TransferReply) -> Transferred {
    let moved = match &reply.outcome {
        Some(Outcome::Receipt(receipt)) => convert::receipt(receipt).map_err(not_understood),
        Some(Outcome::Failure(failure)) => Err(direct_error(failure)),
        None => Err(not_understood(Malformed("outcome"))),
    };
    Transferred { moved, key: convert::relinquished(reply.key()) }
}

/// The end of a transfer whose node's word did not arrive: it may still be under way.
pub fn lost(error: TransferError) -> Transferred {
    Transferred { moved: Err(DirectError::Transfer(error)), key: Relinquished::Unknown }
}

/// The message for a session's opening.
pub fn open_session_reply(opened: &Result<SessionOffer, SessionError>) -> OpenSessionReply {
    let outcome = match opened {
        Ok(offer) => match convert::session_offer_message(offer) {
            Some(offer) => Opened::Offer(offer),
            None => Opened::Failure(session_failure(&SessionError::Incompatible(MALFORMED))),
        },
        Err(error) => Opened::Failure(session_failure(error)),
    };
    OpenSessionReply { outcome: Some(outcome) }
}

/// The session that `node` opened, or why not.
pub fn opened(node: NodeId, reply: &OpenSessionReply) -> Result<SessionOffer, SessionError> {
    let malformed = |error: Malformed| SessionError::Unreachable(error.to_string().into());
    match &reply.outcome {
        Some(Opened::Offer(offer)) => convert::session_offer(node, offer).map_err(malformed),
        Some(Opened::Failure(failure)) => Err(session_error(failure)),
        None => Err(malformed(Malformed("outcome"))),
    }
}

/// The message for the opening of a session with a process of the node's host.
pub fn open_local_session_reply(
    opened: &Result<LocalSessionOffer, SessionError>,
) -> OpenLocalSessionReply {
    let outcome = match opened {
        Ok(offer) => OpenedLocal::Offer(convert::local_session_offer_message(offer)),
        Err(error) => OpenedLocal::Failure(session_failure(error)),
    };
    OpenLocalSessionReply { outcome: Some(outcome) }
}

/// The session that `node` offers, or why not.
pub fn opened_local(
    node: NodeId,
    reply: &OpenLocalSessionReply,
) -> Result<LocalSessionOffer, SessionError> {
    let malformed = |error: Malformed| SessionError::Unreachable(error.to_string().into());
    match &reply.outcome {
        Some(OpenedLocal::Offer(offer)) => {
            convert::local_session_offer(node, offer).map_err(malformed)
        }
        Some(OpenedLocal::Failure(failure)) => Err(session_error(failure)),
        None => Err(malformed(Malformed("outcome"))),
    }
}

/// The message for a sealing key. It must leave over the authenticated channel alone.
pub fn sealing_key_reply(key: &SealingKey) -> SealingKeyReply {
    SealingKeyReply {
        id: key.key.id().0,
        secret: key.key.secret().to_vec().into(),
        fresh_for_ms: u64::try_from(key.fresh_for.as_millis()).unwrap_or(u64::MAX),
        dynamic: key.dynamic,
    }
}

/// The sealing key in a message.
///
/// # Errors
/// [`Malformed`] when it is none.
pub fn sealing_key(reply: &SealingKeyReply) -> Result<SealingKey, Malformed> {
    let secret = (&reply.secret[..]).try_into().map_err(|_| Malformed("sealing key"))?;
    let key = GrantKey::new(GrantKeyId(reply.id), secret);
    let fresh_for = Duration::from_millis(reply.fresh_for_ms);
    Ok(SealingKey { key, fresh_for, dynamic: reply.dynamic })
}

fn not_understood(malformed: Malformed) -> DirectError {
    DirectError::Transfer(unreachable(&malformed.to_string()))
}

fn direct_failure(error: &DirectError) -> DirectFailure {
    let failure = match error {
        DirectError::Grant(refusal) => Failure::Grant(refusal_message(*refusal).into()),
        DirectError::NoSuchSession => Failure::NoSuchSession(NoSuchSession {}),
        DirectError::InvalidPlan(reason) => Failure::InvalidPlan((*reason).to_owned()),
        DirectError::Link(reason) => Failure::Link(reason.to_string()),
        DirectError::NotServed => Failure::NotServed(NotServed {}),
        DirectError::TimedOut => Failure::TimedOut(TimedOut {}),
        DirectError::Cancelled => Failure::Cancelled(Cancelled {}),
        DirectError::Transfer(error) => Failure::Transfer(transfer_failure(error)),
    };
    DirectFailure { failure: Some(failure) }
}

fn direct_error(failure: &DirectFailure) -> DirectError {
    match &failure.failure {
        Some(Failure::Grant(refusal)) => {
            let refusal = GrantRefusal::try_from(*refusal).ok().and_then(refusal_error);
            refusal.map_or_else(|| not_understood(Malformed("grant refusal")), DirectError::Grant)
        }
        Some(Failure::NoSuchSession(_)) => DirectError::NoSuchSession,
        Some(Failure::InvalidPlan(reason)) => {
            DirectError::InvalidPlan(known(reason, "the node refused the plan"))
        }
        Some(Failure::Link(reason)) => DirectError::Link(reason.as_str().into()),
        Some(Failure::NotServed(_)) => DirectError::NotServed,
        Some(Failure::TimedOut(_)) => DirectError::TimedOut,
        Some(Failure::Cancelled(_)) => DirectError::Cancelled,
        Some(Failure::Transfer(failure)) => transfer_error(failure.clone())
            .map_or_else(|| not_understood(Malformed("transfer failure")), DirectError::Transfer),
        None => not_understood(Malformed("direct failure")),
    }
}

/// The reason as the text that this process has of it.
fn known(reason: &str, otherwise: &'static str) -> &'static str {
    REASONS.iter().find(|known| **known == reason).copied().unwrap_or(otherwise)
}

fn refusal_message(refusal: GrantError) -> GrantRefusal {
    match refusal {
        GrantError::Malformed => GrantRefusal::Malformed,
        GrantError::UnknownKey => GrantRefusal::UnknownKey,
        GrantError::Forged => GrantRefusal::Forged,
        GrantError::OtherNode => GrantRefusal::OtherNode,
        GrantError::Expired => GrantRefusal::Expired,
        GrantError::TooLong => GrantRefusal::TooLong,
        GrantError::Replayed => GrantRefusal::Replayed,
        GrantError::Overloaded => GrantRefusal::Overloaded,
        // A reason that this version has no word for is still a refusal.
        _ => GrantRefusal::Malformed,
    }
}

fn refusal_error(message: GrantRefusal) -> Option<GrantError> {
    Some(match message {
        GrantRefusal::Malformed => GrantError::Malformed,
        GrantRefusal::UnknownKey => GrantError::UnknownKey,
        GrantRefusal::Forged => GrantError::Forged,
        GrantRefusal::OtherNode => GrantError::OtherNode,
        GrantRefusal::Expired => GrantError::Expired,
        GrantRefusal::TooLong => GrantError::TooLong,
        GrantRefusal::Replayed => GrantError::Replayed,
        GrantRefusal::Overloaded => GrantError::Overloaded,
        GrantRefusal::Unspecified => return None,
    })
}

fn session_failure(error: &SessionError) -> SessionFailure {
    let failure = match error {
        SessionError::NoSuchRail => NotOpened::NoSuchRail(NoSuchRail {}),
        SessionError::Incompatible(reason) => NotOpened::Incompatible((*reason).to_owned()),
        SessionError::TooMany => NotOpened::TooMany(TooMany {}),
        SessionError::Adapter(reason) => NotOpened::Adapter(reason.to_string()),
        SessionError::Unreachable(reason) => NotOpened::Unreachable(reason.to_string()),
    };
    SessionFailure { failure: Some(failure) }
}

fn session_error(failure: &SessionFailure) -> SessionError {
    match &failure.failure {
        Some(NotOpened::NoSuchRail(_)) => SessionError::NoSuchRail,
        Some(NotOpened::Incompatible(reason)) => {
            SessionError::Incompatible(known(reason, "the node refused the request"))
        }
        Some(NotOpened::TooMany(_)) => SessionError::TooMany,
        Some(NotOpened::Adapter(reason)) => SessionError::Adapter(reason.as_str().into()),
        Some(NotOpened::Unreachable(reason)) => SessionError::Unreachable(reason.as_str().into()),
        None => SessionError::Unreachable("the node's answer is malformed".into()),
    }
}

/// A misrouted transfer: refused before anything was posted.
pub(super) fn another_node() -> TransferReply {
    transfer_reply(&Transferred::refused(GrantError::OtherNode))
}

/// A request for a session that says nothing this node understands.
pub(super) fn malformed_session() -> schema::OpenSessionReply {
    open_session_reply(&Err(SessionError::Incompatible(MALFORMED)))
}

#[cfg(test)]
mod tests {
    use keyway_proto::{Digests, KeyFate, KeyStrength, Receipt, TransferId, TransferPath};

    use super::*;

    const FATES: [Relinquished; 4] = [
        Relinquished::Invalidated,
        Relinquished::Quiet,
        Relinquished::Fenced,
        Relinquished::Unknown,
    ];

    fn refusals() -> Vec<GrantError> {
        vec![
            GrantError::Malformed,
            GrantError::UnknownKey,
            GrantError::Forged,
            GrantError::OtherNode,
            GrantError::Expired,
            GrantError::TooLong,
            GrantError::Replayed,
            GrantError::Overloaded,
        ]
    }

    #[test]
    fn every_end_arrives_as_it_was_sent() {
        let mut errors: Vec<DirectError> = vec![
            DirectError::NoSuchSession,
            DirectError::Link("retries exceeded".into()),
            DirectError::NotServed,
            DirectError::TimedOut,
            DirectError::Cancelled,
            DirectError::Transfer(TransferError::Full),
            DirectError::Transfer(TransferError::Busy),
        ];
        errors.extend(refusals().into_iter().map(DirectError::Grant));
        errors.extend(REASONS.iter().map(|reason| DirectError::InvalidPlan(reason)));
        for error in errors {
            for key in FATES {
                let sent = Transferred { moved: Err(error.clone()), key };
                let arrived = transferred(&transfer_reply(&sent));
                assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
            }
        }
        let receipt = Receipt {
            transfer: TransferId::new(1, [2; 10]),
            bytes: 9,
            digests: Digests::default(),
            path: TransferPath::VerbsHost,
            strength: KeyStrength::Window,
            key: KeyFate::Relinquished(Relinquished::Invalidated),
            durability: keyway_proto::Durability::Memory,
        };
        let sent = Transferred { moved: Ok(receipt), key: Relinquished::Invalidated };
        let arrived = transferred(&transfer_reply(&sent));
        assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
    }

    #[test]
    fn an_empty_answer_says_nothing_of_the_key() {
        let arrived = transferred(&TransferReply::default());
        assert_eq!(arrived.key, Relinquished::Unknown);
        assert!(matches!(arrived.moved, Err(DirectError::Transfer(TransferError::Unreachable(_)))));
        let unknown = DirectFailure { failure: Some(Failure::Grant(99)) };
        let outcome = Some(Outcome::Failure(unknown));
        let key = keyway_rpc::schema::KeyFate::Quiet.into();
        let arrived = transferred(&TransferReply { outcome, key });
        assert_eq!(arrived.key, Relinquished::Quiet);
        assert!(arrived.moved.is_err());
    }

    #[test]
    fn every_refusal_of_a_session_arrives_as_it_was_sent() {
        let mut errors = vec![
            SessionError::NoSuchRail,
            SessionError::TooMany,
            SessionError::Adapter("ENOMEM".into()),
            SessionError::Unreachable("gone".into()),
        ];
        errors.extend(REASONS.iter().map(|reason| SessionError::Incompatible(reason)));
        for sent in errors {
            let arrived = opened(NodeId(1), &open_session_reply(&Err(sent.clone())));
            assert_eq!(format!("{:?}", arrived.unwrap_err()), format!("{sent:?}"));
        }
        assert!(opened(NodeId(1), &OpenSessionReply::default()).is_err());
    }

    #[test]
    fn a_sealing_key_arrives_whole_or_not_at_all() {
        let key = GrantKey::generate(GrantKeyId(7));
        let sent = SealingKey { key, fresh_for: Duration::from_millis(1500), dynamic: true };
        let mut reply = sealing_key_reply(&sent);
        let arrived = sealing_key(&reply).expect("whole");
        assert_eq!(arrived.key.secret(), sent.key.secret());
        assert_eq!((arrived.key.id(), arrived.fresh_for), (sent.key.id(), sent.fresh_for));
        assert!(arrived.dynamic);
        reply.secret.truncate(31);
        assert!(sealing_key(&reply).is_err());
    }
}
