//! Parts of one read, side by side.
//!
//! Each part's task owns its piece of the memory by value. The pieces come back and are
//! joined whatever happened, so that the caller's memory returns whole; and a caller who
//! does not wait for that leaves tasks behind that end at their next step.

use std::collections::VecDeque;

use keyway_proto::{ByteRange, Checksum};
use tokio_util::sync::CancellationToken;

use super::fetch::{Fetch, Fetched};
use super::landing::GetTarget;
use super::{Failed, ObjectInfo, crew};
use crate::error::ClientError;
use crate::rdma::Travelled;

type PartResult<M> = Result<Fetched<M>, Failed<M>>;

/// A part that was not begun: its bytes, its memory.
type Waiting<M> = (ByteRange, M);

/// Fetches `range` in parts of `part_bytes`, `concurrency` at a time.
pub(super) async fn fetch<M: GetTarget>(
    mut fetch: Fetch,
    range: ByteRange,
    target: M,
    part_bytes: u64,
    concurrency: usize,
) -> PartResult<M> {
    let token = CancellationToken::new();
    fetch.stop.token = Some(token.clone());
    let _stop_parts = token.clone().drop_guard();

    let (waiting, rest) = cut(target, range, part_bytes);
    let part = |(range, piece): Waiting<M>| piece.fetch(fetch.part(range));
    let (done, waiting) = crew::run(waiting, concurrency, &token, part).await;
    collect(done, waiting, rest)
}

/// Cuts the memory as the range is cut; what is left of it comes last.
fn cut<M: GetTarget>(
    mut target: M,
    range: ByteRange,
    part_bytes: u64,
) -> (VecDeque<Waiting<M>>, M) {
    let mut waiting = VecDeque::new();
    let mut offset = range.offset();
    while offset < range.end() {
        let length = part_bytes.min(range.end() - offset);
        let part = ByteRange::new(offset, length).expect("lies within a range");
        waiting.push_back((part, target.split_to(length as usize)));
        offset += length;
    }
    (waiting, target)
}

/// Joins memory, checksums and counts of all parts; the first failure that is a cause.
fn collect<M: GetTarget>(
    done: Vec<PartResult<M>>,
    waiting: VecDeque<Waiting<M>>,
    rest: M,
) -> PartResult<M> {
    let mut pieces = Vec::with_capacity(done.len() + 1);
    let mut failure = None;
    let mut whole: Option<Sum> = None;
    for result in done {
        match result {
            Ok(Fetched { target, bytes, info, checksum, retries, travelled }) => {
                pieces.push(target);
                let part = Sum { bytes, info, checksum, retries, travelled };
                whole = Some(match whole {
                    None => part,
                    Some(before) => before.append(&part),
                });
            }
            Err(Failed { error, target }) => {
                pieces.push(target);
                if failure.is_none() || matches!(failure, Some(ClientError::GivenUp)) {
                    failure = Some(error);
                }
            }
        }
    }
    pieces.extend(waiting.into_iter().map(|(_, piece)| piece));
    pieces.push(rest);
    let target = pieces
        .into_iter()
        .reduce(|mut front, next| {
            // A piece is missing only when its task went down with the runtime; what came
            // before it is still the caller's.
            let _ = front.unsplit(next);
            front
        })
        .expect("the rest is always there");
    match (failure, whole) {
        (None, Some(Sum { bytes, info, checksum, retries, travelled })) => {
            Ok(Fetched { target, bytes, info, checksum, retries, travelled })
        }
        (error, _) => Err(Failed { error: error.unwrap_or(ClientError::GivenUp), target }),
    }
}

/// What parts add up to, memory aside.
struct Sum {
    bytes: u64,
    info: ObjectInfo,
    checksum: Option<Checksum>,
    retries: u32,
    travelled: Travelled,
}

impl Sum {
    fn append(self, part: &Self) -> Self {
        let combined = |before: Checksum| before.combine(&part.checksum?, part.bytes);
        Self {
            checksum: self.checksum.and_then(combined),
            bytes: self.bytes + part.bytes,
            retries: self.retries + part.retries,
            travelled: self.travelled.and(&part.travelled),
            info: self.info,
        }
    }
}
