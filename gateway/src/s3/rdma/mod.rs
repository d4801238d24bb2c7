//! Direct transfers: requests that carry an RDMA token.
//!
//! Sketch, of a GET or PUT that moves n bytes: no body on HTTP; the plan's metadata reads and
//! commit as over HTTP; one grant, one call to the node that has the session. The bytes move
//! between that node and the client's memory. What bounds it: the link.
//!
//! | step | where |
//! |---|---|
//! | the header becomes a token, or a refusal | [`token`] |
//! | what became of the key it lends, told in every answer | [`lent`] |
//! | a GET's plan, or why the body goes over HTTP | [`read`] |
//! | a PUT's plan | [`write`](mod@write) |
//! | the plan of many ranges | [`gather`] |
//! | the headers of an answer | [`answer`] |
//! | what is counted | [`counts`] |
//!
//! **The rule.** A token lends a key to the client's memory. The answer leaves when the node
//! has given that key up, and says how; when nobody knows, it says that.

mod answer;
mod counts;
mod gather;
mod lent;
mod read;
mod token;
mod write;

use std::time::{Duration, Instant};

use keyway_dataplane::{DirectError, TransferError};
use keyway_proto::{
    Checksum, ChecksumKind, DigestSet, DirectPlan, DirectTarget, DirectWork, KeyStrength, Receipt,
    TransferPath,
};

use super::Core;
use super::access::Caller;
use super::errors::Failure;
use super::etag;
use crate::audit::Event;

pub(super) use answer::{DECLINED, REPLY, TIMING};
pub use counts::{DirectCounts, DirectStats};
pub(super) use gather::{gathered_into, offered_memory};
pub(super) use lent::Lent;
pub(super) use read::{Direct, OfferedRead, moved_into, offered_read};
pub(super) use token::TOKEN;
pub(super) use write::{declined_by_policy, offered_write, refuse_copy, store, written};

/// What a request offers: windows of the client's memory, and by what they are reached.
pub(super) struct Offered {
    target: DirectTarget,
    lent: Lent,
}

/// A transfer that moved its bytes.
pub(super) struct Moved {
    bytes: u64,
    path: TransferPath,
    strength: KeyStrength,
    checksum: Checksum,
    since: Instant,
    node_took: Duration,
}

/// Has the session's node move the bytes.
///
/// # Errors
/// [`Failure::Exceeded`] for who has as many keys in flight as it may, or bytes to pay for that take
/// too long; [`Failure::Direct`], and for the store's own failures what it would be over HTTP.
async fn transfer(
    core: &Core,
    caller: &Caller,
    offered: &Offered,
    work: DirectWork,
) -> Result<(Moved, Receipt), Failure> {
    let asked = work.transfer();
    let owner = caller.session_owner().ok_or(DirectError::NoSuchSession)?;
    let plan = DirectPlan { owner, target: offered.target.clone(), work };
    let length = plan.length();
    // Before the key is lent: until its end it counts as in flight.
    let in_flight = caller.usage.direct(length).await?;
    offered.lent.lend();
    let asked_at = Instant::now();
    let transferred = core.grants.transfer(&plan, core.clock.now().0).await;
    let node_took = asked_at.elapsed();
    drop(in_flight);
    offered.lent.settle(transferred.key);
    let path = transferred.moved.as_ref().ok().map(|receipt| receipt.path);
    core.direct_counts.count_transfer(path, transferred.key);
    core.audit.tell(Event::Key {
        caller: caller.name(),
        access_key: caller.access_key(),
        session: plan.session().to_string(),
        work: match plan.work {
            DirectWork::Get(..) => "get",
            DirectWork::Put(_) => "put",
            DirectWork::Gather(..) => "ranges",
        },
        path: path.map(TransferPath::as_str),
        bytes: transferred.moved.as_ref().map_or(0, |receipt| receipt.bytes),
        key: transferred.key.as_str(),
        request: caller.request(),
    });
    let receipt = match transferred.moved {
        Ok(receipt) => receipt,
        Err(error) => {
            if matches!(error, DirectError::Transfer(TransferError::Full)) {
                core.wake_maintenance();
            }
            return Err(error.into());
        }
    };
    if receipt.transfer != asked || receipt.bytes != length {
        return Err(Failure::StrangeReceipt);
    }
    let moved = Moved {
        bytes: receipt.bytes,
        path: receipt.path,
        strength: receipt.strength,
        checksum: etag::required(&receipt.digests, ChecksumKind::Crc64Nvme)?,
        since: offered.lent.since(),
        node_took,
    };
    Ok((moved, receipt))
}

/// What every direct transfer is checked by, besides what else is asked for.
const ALWAYS: DigestSet = DigestSet::NONE.with(ChecksumKind::Crc64Nvme);
