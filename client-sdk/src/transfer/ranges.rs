//! Several ranges of one object, all of one version of it.

use std::collections::VecDeque;
use std::time::Duration;

use keyway_fabric::gpu::StreamTurn;
use keyway_proto::ByteRange;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::landing::GetTarget;
use super::{Failed, GetObject, GetOutcome, Stop};
use crate::error::ClientError;
use crate::http::Client;

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

    /// Ranges in flight at a time.
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
        let Self { get, wanted, deadline } = self;
        let until = deadline.map(|after| Instant::now() + after);
        let stop = Stop { deadline: until, token: None };
        let get = match stop.or(get.pinned()).await {
            Ok(get) => get,
            Err(error) => {
                let target = wanted.into_iter().map(|(_, target)| target).collect();
                return Err(Failed { error, target });
            }
        };
        let concurrency = get.concurrency;
        let mut done: Vec<Option<RangeResult<M>>> = wanted.iter().map(|_| None).collect();
        let mut waiting: VecDeque<_> = wanted.into_iter().enumerate().collect();
        let mut running = JoinSet::new();
        loop {
            while running.len() < concurrency {
                let Some((index, (range, target))) = waiting.pop_front() else { break };
                let mut get = get.clone().range(range);
                if let Some(until) = until {
                    get = get.deadline(until.saturating_duration_since(Instant::now()));
                }
                running.spawn(async move { (index, get.into(target).await) });
            }
            match running.join_next().await {
                None => break,
                Some(Ok((index, result))) => done[index] = Some(result),
                Some(Err(error)) => {
                    if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic);
                    }
                }
            }
        }
        settle(done)
    }
}

fn settle<M>(done: Vec<Option<RangeResult<M>>>) -> Result<Vec<GetOutcome<M>>, Failed<Vec<M>>> {
    if done.iter().flatten().all(Result::is_ok) {
        return Ok(done.into_iter().flatten().flatten().collect());
    }
    let mut cause = None;
    let mut target = Vec::with_capacity(done.len());
    for result in done.into_iter().flatten() {
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
