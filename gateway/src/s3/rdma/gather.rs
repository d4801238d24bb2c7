//! Many ranges of one object into one window of the client's memory.
//!
//! Sketch, per range: a binary search among the object's chunks, and one piece of 16 bytes; per
//! request two words for each chunk of the object.

use http::{Extensions, HeaderMap};
use keyway_meta::Object;
use keyway_proto::gather::GATHER_PIECES_MAX;
use keyway_proto::{
    DataKey, DirectWork, GatherPiece, GatherPlan, NodeId, PlacedRange, RangesRequest, TenantId,
    TransferId, Verification, Weight,
};
use s3s::S3ErrorCode;

use super::counts::Declined;
use super::token::{Token, token};
use super::{ALWAYS, Lent, Moved, Offered, transfer};
use crate::s3::Core;
use crate::s3::access::Caller;
use crate::s3::errors::Failure;

/// The memory that a request for ranges offers: one window, with room for all of them.
///
/// # Errors
/// `InvalidRequest` for a request without a token, `InvalidRDMAToken` for a malformed one,
/// [`Failure::RdmaDeclined`] for one that is not of a session, `InvalidArgument` for several
/// windows, and [`Failure::WindowTooSmall`].
pub(in crate::s3) fn offered_memory(
    core: &Core,
    headers: &HeaderMap,
    extensions: &Extensions,
    request: &RangesRequest<'_>,
) -> Result<Offered, Failure> {
    let token = match token(headers)? {
        Some(Token::Session(token)) => token,
        Some(Token::Dynamic(_)) => {
            core.direct_counts.count_declined(Declined::Foreign);
            return Err(Failure::RdmaDeclined);
        }
        None => {
            return Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "Ranges are moved by RDMA alone: the request must have an RDMA token.",
            ));
        }
    };
    if token.windows().len() != 1 {
        let message = "The token of a request for ranges must have one window.";
        return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
    }
    let (room, needed) = (token.length(), request.memory());
    if needed > room {
        return Err(Failure::WindowTooSmall { room, needed });
    }
    let lent = Lent::of(extensions).ok_or(Failure::Unwatched)?;
    Ok(Offered { target: token.into(), lent })
}

impl Offered {
    /// Whether the token's key may be lent again.
    pub(in crate::s3) fn is_quiet(&self) -> bool {
        self.lent.is_quiet()
    }
}

/// Moves the ranges of the object, each to its place.
///
/// # Errors
/// [`Failure::RangeNotSatisfiable`] for a range that leaves the object, [`Failure::RdmaDeclined`]
/// where bytes are on other nodes than the session's, and those of [`transfer`].
pub(in crate::s3) async fn gathered_into(
    core: &Core,
    caller: &Caller,
    offered: &Offered,
    (object, key): (&Object, Option<DataKey>),
    request: &RangesRequest<'_>,
    verification: Verification,
) -> Result<Moved, Failure> {
    let node = offered.target.session().node();
    let plan = match plan(object, request.ranges(), caller.account(), node) {
        Ok(plan) => GatherPlan { weight: core.weight(plan.tenant), verification, key, ..plan },
        Err(Refusal::Leaves) => return Err(Failure::RangeNotSatisfiable { size: object.size }),
        Err(Refusal::TooMany) => {
            let message = "The ranges are of too many chunks of the object.";
            return Err(Failure::refuse(S3ErrorCode::InvalidArgument, message));
        }
        Err(Refusal::OtherNode) => {
            core.direct_counts.count_declined(Declined::OtherNode);
            return Err(Failure::RdmaDeclined);
        }
    };
    let (moved, _) = transfer(core, caller, offered, DirectWork::Gather(plan, ALWAYS)).await?;
    Ok(moved)
}

/// Why ranges have no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// One leaves the object.
    Leaves,
    /// They are of more pieces than a plan has.
    TooMany,
    /// Not all are on the node.
    OtherNode,
}

/// The pieces of an object's chunks that ranges are made of.
fn plan(
    object: &Object,
    ranges: impl ExactSizeIterator<Item = PlacedRange>,
    tenant: TenantId,
    node: NodeId,
) -> Result<GatherPlan, Refusal> {
    /// Of a chunk that no piece is of.
    const UNUSED: u32 = u32::MAX;
    let mut size = 0;
    let starts: Vec<u64> = object
        .extents
        .iter()
        .map(|extent| {
            let start = size;
            size += extent.chunk.length;
            start
        })
        .collect();
    let mut numbers = vec![UNUSED; starts.len()];
    let mut chunks = Vec::new();
    let mut pieces = Vec::with_capacity(ranges.len());
    for PlacedRange { range, at } in ranges {
        if range.end() > size {
            return Err(Refusal::Leaves);
        }
        let mut index = starts.partition_point(|start| *start <= range.offset()) - 1;
        let (mut offset, mut at) = (range.offset() - starts[index], u64::from(at));
        let mut left = range.length();
        while left > 0 {
            let extent = &object.extents[index];
            if extent.node != node {
                return Err(Refusal::OtherNode);
            }
            if numbers[index] == UNUSED {
                numbers[index] = chunks.len() as u32;
                chunks.push(extent.chunk.id);
            }
            let length = left.min(extent.chunk.length - offset);
            let narrow = |number: u64| u32::try_from(number).map_err(|_| Refusal::TooMany);
            pieces.push(GatherPiece {
                chunk: numbers[index],
                offset: narrow(offset)?,
                length: narrow(length)?,
                at: narrow(at)?,
            });
            (index, offset, at, left) = (index + 1, 0, at + length, left - length);
        }
        if pieces.len() > GATHER_PIECES_MAX {
            return Err(Refusal::TooMany);
        }
    }
    let (weight, verification) = (Weight::default(), Verification::default());
    let transfer = TransferId::generate();
    Ok(GatherPlan { transfer, tenant, weight, chunks, pieces, verification, key: None })
}

#[cfg(test)]
mod tests {
    use keyway_meta::{Extent, ObjectHeaders, UnixMs};
    use keyway_proto::{ByteRange, ChunkId, ChunkSpec, VersionId};
    use proptest::prelude::*;

    use super::*;

    fn object(lengths: &[u64], nodes: &[u32]) -> Object {
        let extent = |(number, length): (usize, &u64)| Extent {
            chunk: ChunkSpec { id: ChunkId::new(0, [number as u8; 10]), length: *length },
            node: NodeId(nodes.get(number).copied().unwrap_or(1)),
        };
        Object {
            version: VersionId::new(0, [0; 10]),
            named: false,
            size: lengths.iter().sum(),
            modified: UnixMs(0),
            etag: String::new(),
            checksum: None,
            headers: ObjectHeaders::default(),
            parts: Vec::new(),
            extents: lengths.iter().enumerate().map(extent).collect(),
            durability: keyway_proto::Durability::Disk,
            stored_by: None,
        }
    }

    fn planned(object: &Object, ranges: &[PlacedRange]) -> Result<GatherPlan, Refusal> {
        plan(object, ranges.iter().copied(), TenantId(1), NodeId(1))
    }

    fn placed(offset: u64, length: u64, at: u32) -> PlacedRange {
        PlacedRange { range: ByteRange::new(offset, length).expect("fits"), at }
    }

    #[test]
    fn what_cannot_be_planned_is_said() {
        let two = object(&[10, 10], &[1, 2]);
        assert!(planned(&two, &[placed(0, 10, 0), placed(3, 3, 10)]).is_ok());
        assert_eq!(planned(&two, &[placed(9, 2, 0)]), Err(Refusal::OtherNode));
        assert_eq!(planned(&two, &[placed(19, 2, 0)]), Err(Refusal::Leaves));
        assert_eq!(planned(&two, &[placed(u64::MAX - 1, 1, 0)]), Err(Refusal::Leaves));
        assert_eq!(planned(&object(&[], &[]), &[placed(0, 1, 0)]), Err(Refusal::Leaves));
        let many = object(&[1; GATHER_PIECES_MAX + 1], &[]);
        let all = placed(0, GATHER_PIECES_MAX as u64 + 1, 0);
        assert_eq!(planned(&many, &[all]), Err(Refusal::TooMany));
    }

    proptest! {
        /// Goal: each byte of each range lands in its place, whatever the chunks; and what is
        /// planned is sound. Method: chunks whose bytes tell their place in the object.
        #[test]
        fn pieces_are_the_ranges(
            lengths in prop::collection::vec(1u64..50, 1..12),
            asked in prop::collection::vec((any::<prop::sample::Index>(), 1u64..80, 0u32..9), 1..40),
        ) {
            let object = object(&lengths, &[]);
            let mut end = 0;
            let ranges: Vec<_> = asked.into_iter().map(|(offset, length, gap)| {
                let offset = offset.index(object.size as usize) as u64;
                let length = length.min(object.size - offset);
                let at = end + gap;
                end = at + length as u32;
                placed(offset, length, at)
            }).collect();
            let plan = planned(&object, &ranges).expect("inside the object");
            prop_assert!(plan.is_sound());
            prop_assert_eq!(plan.memory(), u64::from(end));
            let start_of = |chunk: ChunkId| -> u64 {
                let before = object.extents.iter().take_while(|extent| extent.chunk.id != chunk);
                before.map(|extent| extent.chunk.length).sum()
            };
            let place = |offset: u64, length: u64, at: u64| {
                (0..length).map(move |byte| (at + byte, offset + byte))
            };
            let found: Vec<_> = plan.pieces.iter().flat_map(|piece| {
                let start = start_of(plan.chunks[piece.chunk as usize]);
                let range = piece.range();
                place(start + range.offset(), range.length(), u64::from(piece.at))
            }).collect();
            let wanted: Vec<_> = ranges.iter().flat_map(|placed| {
                place(placed.range.offset(), placed.range.length(), u64::from(placed.at))
            }).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
