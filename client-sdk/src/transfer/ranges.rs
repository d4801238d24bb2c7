//! Several ranges of one object, all of one version of it.
//!
//! Ranges whose memory is one run, as that of slices cut off one buffer in turn, are gathered
//! where a node of this host can do that: one request for a thousand of them ([`super::gather`]).
//! All others are a GET each, side by side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use keyway_fabric::gpu::StreamTurn;
use keyway_proto::ByteRange;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::landing::GetTarget;
use super::{Failed, Gather, GatherOutcome, GetObject, GetOutcome, Stop, Unverified, Verified};
use crate::error::ClientError;
use crate::http::Client;
use crate::rdma::Reach;

impl Client {
    /// Reads several ranges of an object side by side, all from the same version, into memory
    /// of one kind.
    pub fn get_ranges<M: GetTarget>(&self, bucket: &str, key: &str) -> GetRanges<M> {
        GetRanges { get: self.get_object(bucket, key), wanted: Vec::new(), deadline: None }
    }
}

/// A read of several ranges.
#[derive(Debug)]
#[must_use = "requests are sent by `send`"]
pub struct GetRanges<M> {
    get: GetObject,
    wanted: Vec<(ByteRange, M)>,
    deadline: Option<Duration>,
}

type RangeResult<M> = Result<GetOutcome<M>, Failed<M>>;

/// What one task reads.
enum Work<M> {
    One(ByteRange, M),
    /// Into one run of memory, filled to its end.
    Many(Vec<ByteRange>, M),
}

impl<M: GetTarget> GetRanges<M> {
    /// Adds a range and the memory for it.
    pub fn range(mut self, range: ByteRange, target: M) -> Self {
        self.wanted.push((range, target));
        self
    }

    /// Fails with status 412 unless the object has this ETag. It pins the version without asking
    /// for it.
    pub fn if_match(mut self, etag: impl Into<String>) -> Self {
        self.get = self.get.if_match(etag);
        self
    }

    /// Requests in flight at a time.
    pub fn concurrency(mut self, ranges: usize) -> Self {
        self.get = self.get.concurrency(ranges);
        self
    }

    /// Takes its turn on a stream of the caller's, as [`GetObject::on_stream`].
    pub fn on_stream(mut self, turn: StreamTurn) -> Self {
        self.get = self.get.on_stream(turn);
        self
    }

    /// Gives up after this long.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// Reads the ranges; outcomes come in the order in which ranges were added. The version
    /// is pinned before the first byte, so none is of another.
    ///
    /// # Errors
    /// The first failure, and all memory, in the order of the ranges.
    pub async fn send(self) -> Result<Vec<GetOutcome<M>>, Failed<Vec<M>>> {
        let Self { mut get, wanted, deadline } = self;
        let until = deadline.map(|after| Instant::now() + after);
        let stop = Stop { deadline: until, token: None };
        let gathers = wanted.first().is_some_and(|(_, first)| {
            let lengths = wanted.iter().map(|(range, _)| range.length());
            let bytes = lengths.fold(0, u64::saturating_add);
            wanted.len() > 1 && get.client.rdma().may_gather(bytes, &Reach::of(first))
        });
        let one = |(range, target)| Work::One(range, target);
        let works = if gathers { joined(wanted) } else { wanted.into_iter().map(one).collect() };
        // What is gathered as a whole sees to its version itself.
        if !matches!(&works[..], [Work::Many(..)]) {
            get = match stop.or(get.clone().pinned()).await {
                Ok(get) => get,
                Err(error) => {
                    let target = works.into_iter().flat_map(Work::into_memory).collect();
                    return Err(Failed { error, target });
                }
            };
        }
        let run = |work: Work<M>| work.run(within(&get, until));
        let done = side_by_side(works, get.concurrency, run).await;
        settle(done.flatten())
    }
}

/// Does all, so many at a time, and gives what became of each in order; of what went down with the
/// runtime, nothing.
async fn side_by_side<W, R, F>(
    works: Vec<W>,
    at_once: usize,
    run: impl Fn(W) -> F,
) -> impl Iterator<Item = R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let mut done: Vec<Option<R>> = works.iter().map(|_| None).collect();
    let mut waiting: VecDeque<_> = works.into_iter().enumerate().collect();
    let mut running = JoinSet::new();
    loop {
        while running.len() < at_once {
            let Some((index, work)) = waiting.pop_front() else { break };
            let work = run(work);
            running.spawn(async move { (index, work.await) });
        }
        match running.join_next().await {
            None => return done.into_iter().flatten(),
            Some(Ok((index, result))) => done[index] = Some(result),
            Some(Err(error)) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// Reads ranges by a GET each.
pub(super) async fn singly<M: GetTarget>(
    get: &GetObject,
    wanted: Vec<(ByteRange, M)>,
    until: Option<Instant>,
) -> Result<Vec<GetOutcome<M>>, Failed<Vec<M>>> {
    let run = |(range, target)| within(get, until).range(range).into(target);
    settle(side_by_side(wanted, get.concurrency, run).await)
}

/// The same, for what is left of the time.
fn within(get: &GetObject, until: Option<Instant>) -> GetObject {
    match until {
        Some(until) => get.clone().deadline(until.saturating_duration_since(Instant::now())),
        None => get.clone(),
    }
}

impl<M: GetTarget> Work<M> {
    async fn run(self, get: GetObject) -> Vec<RangeResult<M>> {
        match self {
            Self::One(range, target) => vec![get.range(range).into(target).await],
            Self::Many(ranges, memory) => {
                let ranges: Arc<[ByteRange]> = ranges.into();
                match Gather::of(get).into(memory, Arc::clone(&ranges)).await {
                    Ok(outcome) => parted(outcome, &ranges),
                    Err(Failed { error, target }) => {
                        let mut cause = Some(error);
                        let of_range = |target| {
                            let error = cause.take().unwrap_or(ClientError::GivenUp);
                            Err(Failed { error, target })
                        };
                        cut(target, &ranges).into_iter().map(of_range).collect()
                    }
                }
            }
        }
    }

    fn into_memory(self) -> Vec<M> {
        match self {
            Self::One(_, target) => vec![target],
            Self::Many(ranges, memory) => cut(memory, &ranges),
        }
    }
}

/// Joins ranges whose memory is one run. The order stays.
fn joined<M: GetTarget>(wanted: Vec<(ByteRange, M)>) -> Vec<Work<M>> {
    let mut works: Vec<Work<M>> = Vec::new();
    for (range, mut target) in wanted {
        // A place that its range does not fill would leave a gap.
        let is_filled = !range.is_empty() && range.length() == target.length() as u64;
        if is_filled && let Some(Work::Many(ranges, memory)) = works.last_mut() {
            match memory.unsplit(target) {
                Ok(()) => {
                    ranges.push(range);
                    continue;
                }
                Err(apart) => target = apart,
            }
        }
        works.push(match is_filled {
            true => Work::Many(vec![range], target),
            false => Work::One(range, target),
        });
    }
    works.into_iter().map(Work::alone).collect()
}

impl<M> Work<M> {
    /// A single range is no gathering.
    fn alone(self) -> Self {
        match self {
            Self::Many(ranges, memory) if ranges.len() == 1 => Self::One(ranges[0], memory),
            work => work,
        }
    }
}

/// The ranges' own pieces of memory that they fill.
fn cut<M: GetTarget>(mut memory: M, ranges: &[ByteRange]) -> Vec<M> {
    let mut pieces = Vec::with_capacity(ranges.len());
    let Some((_, front)) = ranges.split_last() else { return pieces };
    pieces.extend(front.iter().map(|range| memory.split_to(range.length() as usize)));
    pieces.push(memory);
    pieces
}

fn parted<M: GetTarget>(outcome: GatherOutcome<M>, ranges: &[ByteRange]) -> Vec<RangeResult<M>> {
    let GatherOutcome { target, path, strength, mut fallbacks, retries, info, .. } = outcome;
    let of_range = |(target, range): (M, &ByteRange)| {
        Ok(GetOutcome {
            target,
            bytes: range.length(),
            path,
            strength,
            // They were the gathering's, and are told once.
            fallbacks: std::mem::take(&mut fallbacks),
            verified: Verified::No(Unverified::Range),
            retries,
            info: info.clone(),
        })
    };
    cut(target, ranges).into_iter().zip(ranges).map(of_range).collect()
}

fn settle<M>(
    done: impl Iterator<Item = RangeResult<M>>,
) -> Result<Vec<GetOutcome<M>>, Failed<Vec<M>>> {
    let done: Vec<_> = done.collect();
    if done.iter().all(Result::is_ok) {
        return Ok(done.into_iter().flatten().collect());
    }
    let mut cause = None;
    let mut target = Vec::with_capacity(done.len());
    for result in done {
        match result {
            Ok(outcome) => target.push(outcome.target),
            Err(failed) => {
                cause.get_or_insert(failed.error);
                target.push(failed.target);
            }
        }
    }
    Err(Failed { error: cause.unwrap_or(ClientError::GivenUp), target })
}
