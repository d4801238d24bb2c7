//! Many ranges of one object, packed into one piece of memory.
//!
//! Sketch, per request of 1,024 ranges of 4 KiB, with a node of this host: one signature over a
//! document of 16 KiB, one key, one request and its answer, and one checksum over the memory, on
//! the GPU where it is one's; per range 16 bytes and no allocation. So a client asks for a million
//! ranges a second with a thousand requests. What bounds it: the node, and reading the memory once
//! for the checksum. Where there is no such node, a GET each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ::http::StatusCode;
use keyway_fabric::gpu::StreamTurn;
use keyway_proto::ranges::RANGES_MAX;
use keyway_proto::{ByteRange, KeyStrength, TransferPath};
use tokio_util::sync::CancellationToken;

use super::gathered::Batch;
use super::landing::GetTarget;
use super::{Failed, GetObject, ObjectInfo, Stop, crew};
use crate::error::ClientError;
use crate::http::Client;
use crate::rdma::{Fallbacks, Travelled};

/// Ranges of one request, unless said.
const RANGES_PER_REQUEST: usize = 1024;
/// Bytes of one request, if it has more than one range.
const BYTES_PER_REQUEST: u64 = 64 << 20;

impl Client {
    /// Reads many ranges of an object, small ones most of all, into one piece of memory: one
    /// behind the other, in the order in which they are given.
    pub fn gather(&self, bucket: &str, key: &str) -> Gather {
        Gather::of(self.get_object(bucket, key))
    }
}

/// A read of many ranges: [`into`](Self::into) the caller's memory.
///
/// Dropping the future cancels it; the memory is freed, or can be lent again, when the last
/// request in flight has let go of its piece.
#[derive(Clone, Debug)]
#[must_use = "requests are sent by `into`"]
pub struct Gather {
    get: GetObject,
    ranges_per_request: usize,
}

/// A finished gathering.
#[derive(Debug)]
#[non_exhaustive]
pub struct GatherOutcome<M> {
    /// The memory that was filled, from its first byte on.
    pub target: M,
    /// Bytes read: as many as all ranges have.
    pub bytes: u64,
    /// How they travelled.
    pub path: TransferPath,
    /// What protected the caller's memory. Where requests travelled differently, path and
    /// strength are those of the weakest.
    pub strength: KeyStrength,
    /// Requests that went over HTTP although another path was allowed, and why.
    pub fallbacks: Fallbacks,
    /// Requests that had to be made again.
    pub retries: u32,
    /// The object that all ranges are of.
    pub info: ObjectInfo,
}

impl Gather {
    pub(super) fn of(get: GetObject) -> Self {
        Self { get, ranges_per_request: RANGES_PER_REQUEST }
    }

    /// Fails with status 412 unless the object has this ETag. It pins the version without asking
    /// for it.
    pub fn if_match(mut self, etag: impl Into<String>) -> Self {
        self.get = self.get.if_match(etag);
        self
    }

    /// Ranges of one request, 1 to 4,096; 1,024 unless said.
    pub fn ranges_per_request(mut self, ranges: usize) -> Self {
        self.ranges_per_request = ranges.clamp(1, RANGES_MAX);
        self
    }

    /// Requests in flight at a time.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.get = self.get.concurrency(requests);
        self
    }

    /// Takes its turn on a stream of the caller's, as [`GetObject::on_stream`].
    pub fn on_stream(mut self, turn: StreamTurn) -> Self {
        self.get = self.get.on_stream(turn);
        self
    }

    /// Gives up after this long, retries and pauses included.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.get = self.get.deadline(after);
        self
    }

    /// Reads the ranges into the front of the memory, which comes back in the outcome or in the
    /// error. All are of one version of the object: the first that was read, or that of
    /// [`if_match`](Self::if_match).
    ///
    /// # Errors
    /// [`Failed`] with the reason, among them [`ClientError::TargetTooSmall`],
    /// [`ClientError::Changed`], [`ClientError::ChecksumMismatch`] and, with status 416, a range
    /// that leaves the object.
    pub async fn into<M: GetTarget>(
        self,
        mut target: M,
        ranges: impl Into<Arc<[ByteRange]>>,
    ) -> Result<GatherOutcome<M>, Failed<M>> {
        let Self { mut get, ranges_per_request } = self;
        let (ranges, available) = (ranges.into(), target.length() as u64);
        let sum = |sum: u64, range: &ByteRange| sum.checked_add(range.length());
        let needed = ranges.iter().try_fold(0, sum).unwrap_or(u64::MAX);
        if needed > available {
            return Err(Failed {
                error: ClientError::TargetTooSmall { needed, available },
                target,
            });
        }
        let (stop, ours) = (get.stop(), get.if_match.is_none());
        let spans = spans(&ranges, ranges_per_request);
        if let [_] = spans[..] {
            let memory = target.split_to(needed as usize);
            let batch = Batch { get, ranges, stop };
            return finish(batch.run(memory).await, target, ours);
        }
        // Requests side by side must not see two versions.
        get = match stop.or(get.clone().pinned()).await {
            Ok(get) => get,
            Err(error) => return Err(Failed { error, target }),
        };
        let mut batches = VecDeque::with_capacity(spans.len());
        for span in spans {
            let ranges: Arc<[ByteRange]> = ranges[span].into();
            let bytes: u64 = ranges.iter().map(|range| range.length()).sum();
            batches.push_back((ranges, target.split_to(bytes as usize)));
        }
        finish(side_by_side(&get, batches, stop).await, target, ours)
    }
}

/// What became of a request, or of all of them.
pub(super) type BatchResult<M> = Result<GatherOutcome<M>, Failed<M>>;

/// Runs requests side by side, and joins what became of them.
async fn side_by_side<M: GetTarget>(
    get: &GetObject,
    waiting: VecDeque<(Arc<[ByteRange]>, M)>,
    mut stop: Stop,
) -> BatchResult<M> {
    let token = CancellationToken::new();
    stop.token = Some(token.clone());
    let _stop_all = token.clone().drop_guard();
    let batch = |(ranges, memory)| {
        let batch = Batch { get: get.clone(), ranges, stop: stop.clone() };
        batch.run(memory)
    };
    let (done, waiting) = crew::run(waiting, get.concurrency, &token, batch).await;
    let given_up = |(_, target)| Err(Failed { error: ClientError::GivenUp, target });
    let all = done.into_iter().chain(waiting.into_iter().map(given_up));
    all.reduce(joined).expect("a gathering has a request")
}

/// Both, with the memory of both in one piece.
fn joined<M: GetTarget>(before: BatchResult<M>, next: BatchResult<M>) -> BatchResult<M> {
    let join = |mut front: M, next: M| {
        // A piece is missing only when its task went down with the runtime.
        let _ = front.unsplit(next);
        front
    };
    match (before, next) {
        (Ok(before), Ok(next)) if before.info.etag == next.info.etag => {
            let travelled = before.travelled().and(&next.travelled());
            let Travelled { path, strength, fallbacks } = travelled;
            Ok(GatherOutcome {
                target: join(before.target, next.target),
                bytes: before.bytes + next.bytes,
                path,
                strength,
                fallbacks,
                retries: before.retries + next.retries,
                info: before.info,
            })
        }
        (Ok(before), Ok(next)) => {
            let target = join(before.target, next.target);
            Err(Failed { error: ClientError::Changed, target })
        }
        (Ok(before), Err(Failed { error, target })) => {
            Err(Failed { error, target: join(before.target, target) })
        }
        (Err(Failed { error, target }), Ok(next)) => {
            Err(Failed { error, target: join(target, next.target) })
        }
        (Err(before), Err(next)) => {
            // What was given up on account of another failure is no cause.
            let first = !matches!(before.error, ClientError::GivenUp);
            let error = if first { before.error } else { next.error };
            Err(Failed { error, target: join(before.target, next.target) })
        }
    }
}

impl<M> GatherOutcome<M> {
    /// The same with another target.
    pub fn map<U>(self, turn: impl FnOnce(M) -> U) -> GatherOutcome<U> {
        let Self { target, bytes, path, strength, fallbacks, retries, info } = self;
        let target = turn(target);
        GatherOutcome { target, bytes, path, strength, fallbacks, retries, info }
    }

    pub(super) fn travelled(&self) -> Travelled {
        let Self { path, strength, fallbacks, .. } = self;
        Travelled { path: *path, strength: *strength, fallbacks: *fallbacks }
    }
}

/// Gives the memory back whole: what was filled, and the rest behind it. `ours` says that the
/// version was pinned by this client and not by its caller.
fn finish<M: GetTarget>(mut result: BatchResult<M>, rest: M, ours: bool) -> BatchResult<M> {
    let front = match &mut result {
        Ok(outcome) => &mut outcome.target,
        Err(failed) => {
            if ours && failed.error.status() == Some(StatusCode::PRECONDITION_FAILED) {
                failed.error = ClientError::Changed;
            }
            &mut failed.target
        }
    };
    // Missing only when its task went down with the runtime.
    let _ = front.unsplit(rest);
    result
}

/// Cuts a list into requests.
fn spans(ranges: &[ByteRange], ranges_max: usize) -> Vec<std::ops::Range<usize>> {
    let mut spans = Vec::with_capacity(ranges.len() / ranges_max + 1);
    let (mut begin, mut bytes) = (0, 0u64);
    for (at, range) in ranges.iter().enumerate() {
        let is_full = at - begin == ranges_max || bytes + range.length() > BYTES_PER_REQUEST;
        if is_full && at > begin {
            spans.push(begin..at);
            (begin, bytes) = (at, 0);
        }
        bytes += range.length();
    }
    spans.push(begin..ranges.len());
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_by_count_and_by_bytes() {
        let ranges = |lengths: &[u64]| -> Vec<_> {
            lengths.iter().map(|length| ByteRange::new(9, *length).expect("a range")).collect()
        };
        let one = |found: Vec<std::ops::Range<usize>>| (found.len(), found[0].clone());
        assert_eq!(one(spans(&[], 4)), (1, 0..0));
        assert_eq!(one(spans(&ranges(&[1; 4]), 4)), (1, 0..4));
        assert_eq!(spans(&ranges(&[1; 9]), 4), [0..4, 4..8, 8..9]);
        let large = BYTES_PER_REQUEST;
        assert_eq!(spans(&ranges(&[1, large, 1, large - 1, 1]), 9), [0..1, 1..2, 2..4, 4..5]);
        assert_eq!(spans(&ranges(&[2 * large, 0, 1]), 9), [0..1, 1..3]);
    }
}
