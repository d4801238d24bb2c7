//! GETs: the object's bytes into the client's memory.

use http::{Extensions, HeaderMap};
use keyway_dataplane::DirectError;
use keyway_meta::Object;
use keyway_proto::{
    ByteRange, DataKey, DirectTarget, DirectWork, GetPlan, NodeId, Piece, RdmaToken, TransferId,
    Verification,
};

use super::counts::Declined;
use super::token::{Token, token};
use super::{ALWAYS, Lent, Moved, Offered, answer, transfer};
use crate::s3::access::Caller;
use crate::s3::errors::Failure;
use crate::s3::{Core, ranges};

/// How a GET's token is met.
pub(in crate::s3) enum Direct {
    /// The bytes are in the client's memory.
    Moved(Moved),
    /// They go over HTTP.
    Declined {
        /// The node that has the first of them, where a session with it would have served.
        holder: Option<NodeId>,
    },
}

/// What a GET offers: memory of a session, or memory that whichever node has the bytes may reach.
pub(in crate::s3) enum OfferedRead {
    Memory(Offered),
    Dynamic(RdmaToken, Lent),
}

impl OfferedRead {
    /// Whether the token's key may be lent again.
    pub(in crate::s3) fn is_quiet(&self) -> bool {
        match self {
            Self::Memory(offered) => offered.lent.is_quiet(),
            Self::Dynamic(_, lent) => lent.is_quiet(),
        }
    }
}

/// What a GET offers, if it carries a token.
///
/// # Errors
/// `InvalidRDMAToken` for a malformed one.
pub(in crate::s3) fn offered_read(
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Option<OfferedRead>, Failure> {
    let Some(token) = token(headers)? else { return Ok(None) };
    let lent = Lent::of(extensions).ok_or(Failure::Unwatched)?;
    Ok(Some(match token {
        Token::Dynamic(token) => OfferedRead::Dynamic(token, lent),
        Token::Session(token) => OfferedRead::Memory(Offered { target: token.into(), lent }),
    }))
}

/// Moves `range` of the object into the memory that the request offers, or declines.
///
/// # Errors
/// [`Failure::WindowTooSmall`] for a range that is longer than the windows: a part of it would
/// be taken for the whole. Else as [`transfer`].
pub(in crate::s3) async fn moved_into(
    core: &Core,
    caller: &Caller,
    offered: &OfferedRead,
    (object, key): (&Object, Option<&DataKey>),
    range: ByteRange,
    verification: Verification,
) -> Result<Direct, Failure> {
    let decline = |why, holder| {
        core.direct_counts.count_declined(why);
        Ok(Direct::Declined { holder })
    };
    if caller.direct_is_forbidden() {
        return decline(Declined::Policy, None);
    }
    if range.is_empty() {
        return decline(Declined::Empty, None);
    }
    let of_dynamic;
    let offered = match offered {
        OfferedRead::Memory(offered) => offered,
        OfferedRead::Dynamic(token, lent) => {
            // No session binds it to a node: the one that has the first byte is asked.
            let first = ranges::pieces(object, range).map(|(at, _)| object.extents[at].node).next();
            let Some(node) = first else { return decline(Declined::Empty, None) };
            if !core.grants.reaches_dynamic(node).await {
                return decline(Declined::Foreign, None);
            }
            let target = DirectTarget::Dynamic(node, token.clone());
            of_dynamic = Offered { target, lent: lent.clone() };
            &of_dynamic
        }
    };
    let room = offered.target.length();
    if range.length() > room {
        return Err(Failure::WindowTooSmall { room, needed: range.length() });
    }
    let pieces = match pieces(object, range, &offered.target) {
        Ok(pieces) => pieces,
        // Of what lies on several nodes nobody has a token that would serve.
        Err(_) if matches!(offered.target, DirectTarget::Dynamic(..)) => {
            return decline(Declined::OtherNode, None);
        }
        Err(holder) => return decline(Declined::OtherNode, holder),
    };
    let (id, tenant) = (TransferId::generate(), caller.account());
    let weight = core.weight(tenant);
    let key = key.cloned();
    let plan = GetPlan { transfer: id, tenant, weight, pieces, verification, key };
    match transfer(core, caller, offered, DirectWork::Get(plan, ALWAYS)).await {
        Ok((moved, _)) => Ok(Direct::Moved(moved)),
        // The token's address is of a network that no adapter of the node's is on.
        Err(Failure::Direct(DirectError::NotServed)) if offered.lent.is_quiet() => {
            decline(Declined::Foreign, None)
        }
        Err(failure) => Err(failure),
    }
}

/// The pieces, if all are on the token's node; else the node that has the first.
fn pieces(
    object: &Object,
    range: ByteRange,
    target: &DirectTarget,
) -> Result<Vec<Piece>, Option<NodeId>> {
    let node = target.session().node();
    let mut holders = ranges::pieces(object, range).map(|(at, _)| object.extents[at].node);
    let first = holders.next();
    if first != Some(node) || holders.any(|holder| holder != node) {
        return Err(first);
    }
    Ok(ranges::pieces(object, range).map(|(_, piece)| piece).collect())
}

impl Direct {
    /// Tells of it in an answer of this status.
    pub(in crate::s3) fn tell(&self, status: u16, headers: &mut HeaderMap) {
        match self {
            Self::Moved(moved) => moved.tell(status, headers),
            Self::Declined { holder } => answer::declined(*holder, headers),
        }
    }
}
