//! One request of a gathering, however often it takes; and what is done where there is none.
//!
//! What landed is held against what the node says that it sent. Where the service, or the way to
//! it, knows no such requests, each range is a GET of its own.

use std::sync::Arc;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderValue, Method};
use bytes::Bytes;
use keyway_proto::key::Direction;
use keyway_proto::{ByteRange, ChecksumKind, DigestSet, Digests, PlacedRange, RangesRequest};

use super::gather::{BatchResult, GatherOutcome};
use super::landing::GetTarget;
use super::ranges::singly;
use super::{Failed, GetObject, ObjectInfo, Stop};
use crate::error::{ClientError, Malformed};
use crate::http::{Answer, Call};
use crate::rdma::{
    FAILURES_MAX, Fallbacks, Moved, Order, Outcome, Rdma, Reach, Settled, Ticket, Travelled,
    transact,
};

const PATH: &str = "/_keyway/v1/ranges";
const DOCUMENT: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Ranges that one request can be about.
pub(super) struct Batch {
    pub(super) get: GetObject,
    pub(super) ranges: Arc<[ByteRange]>,
    pub(super) stop: Stop,
}

/// What an attempt led to.
enum Step {
    Done(Travelled, Box<ObjectInfo>),
    /// Another attempt may do better, at once.
    Again,
    /// It has to be done by a GET each.
    Singly,
}

/// What went wrong so far.
#[derive(Default)]
struct Troubles {
    failures: u32,
    /// A session was found closed, and the ranges asked for again.
    reopened: bool,
}

impl Batch {
    /// Fills the memory, which is as long as all ranges.
    pub(super) async fn run<M: GetTarget>(self, mut memory: M) -> BatchResult<M> {
        let (bytes, rdma) = (memory.length() as u64, self.get.client.rdma());
        let some = self.ranges.iter().filter(|range| !range.is_empty()).count();
        if some < 2 || !rdma.may_gather(bytes, &Reach::of(&memory)) {
            return self.singly(memory, 0).await;
        }
        if let Some(turn) = &self.get.turn {
            let begun = async { Ok(turn.begun().await?) };
            if let Err(error) = self.stop.or(begun).await {
                return Err(Failed { error, target: memory });
            }
        }
        // What no document can name, a GET is refused for in the service's own words.
        let Some(call) = self.call() else { return self.singly(memory, 0).await };
        let (mut retries, mut troubles) = (self.get.client.retries(), Troubles::default());
        loop {
            let step;
            // Apart, for it is large, and whoever reads by a GET has no use for it.
            (memory, step) = Box::pin(self.attempt(&call, memory, &mut troubles)).await;
            match step {
                Ok(Step::Done(travelled, info)) => {
                    let Travelled { path, strength, fallbacks } = travelled;
                    let (target, retries, info) = (memory, retries.spent(), *info);
                    let outcome =
                        GatherOutcome { target, bytes, path, strength, fallbacks, retries, info };
                    return Ok(outcome);
                }
                Ok(Step::Again) => {}
                Ok(Step::Singly) => return self.singly(memory, retries.spent()).await,
                Err(error) => {
                    if let Err(error) = self.stop.or(retries.after(error)).await {
                        return Err(Failed { error, target: memory });
                    }
                }
            }
        }
    }

    /// The request, without its token.
    fn call(&self) -> Option<Call> {
        let mut at = 0u64;
        let place = |range: &ByteRange| {
            let placed = PlacedRange { range: *range, at: u32::try_from(at).unwrap_or(u32::MAX) };
            at += range.length();
            placed
        };
        let some = self.ranges.iter().filter(|range| !range.is_empty());
        let placed: Vec<PlacedRange> = some.map(place).collect();
        let (bucket, key) = (&self.get.bucket, &self.get.key);
        let etag = self.get.if_match.as_deref();
        let document = RangesRequest::encode(bucket, key, etag, placed.into_iter()).ok()?;
        let mut call = Call::control(Method::POST, PATH);
        call.headers.insert(CONTENT_TYPE, DOCUMENT);
        call.body = Bytes::from(document).into();
        Some(call)
    }

    /// Lends the memory for one attempt, and gives it back when its key is dead.
    async fn attempt<M: GetTarget>(
        &self,
        call: &Call,
        memory: M,
        troubles: &mut Troubles,
    ) -> (M, Result<Step, ClientError>) {
        let rdma = self.get.client.rdma();
        if troubles.failures >= FAILURES_MAX && !rdma.is_required() {
            return (memory, Ok(Step::Singly));
        }
        let ticket = async { Ok(rdma.gather_ticket().await) };
        let ticket = match self.stop.or(ticket).await {
            Ok(Ok(ticket)) => ticket,
            // A GET has other ways, and says why it took them.
            Ok(Err(_)) => return (memory, Ok(Step::Singly)),
            Err(error) => return (memory, Err(error)),
        };
        let order = Order {
            ticket,
            wire: Arc::clone(rdma.wire()),
            call: call.clone(),
            memory,
            direction: Direction::Write,
            answer_timeout: rdma.answer_timeout(),
            turn: self.get.turn.clone(),
        };
        let Settled { mut memory, ticket, outcome, marks } = transact(order, &self.stop).await;
        let step = match outcome {
            Outcome::Moved(answer, moved) => {
                let info;
                (memory, info) = landed(&answer, &moved, memory).await;
                info.map(|info| {
                    rdma.moved(&ticket, moved.bytes, &marks);
                    let travelled = Travelled::past_http::<M>(&ticket, Fallbacks::default());
                    Step::Done(travelled, Box::new(info))
                })
            }
            Outcome::Answered(answer) => self.refused(answer, &ticket, troubles).await,
            Outcome::Failed(error) => failed(rdma, error, &ticket, troubles),
        };
        (memory, step)
    }

    /// An answer that moved nothing.
    async fn refused(
        &self,
        mut answer: Answer,
        ticket: &Ticket,
        troubles: &mut Troubles,
    ) -> Result<Step, ClientError> {
        let rdma = self.get.client.rdma();
        if answer.status().is_success() {
            return Err(Malformed::new("ranges that were not moved").into());
        }
        let error = answer.read_error(&Method::POST).await;
        match error.code() {
            Some("NoSuchKey" | "NoSuchBucket") => Err(error),
            // A server that does not know the path answers without a code of S3's.
            _ if error.is_not_found() => {
                rdma.gathers_no_ranges();
                Ok(Step::Singly)
            }
            // The bytes, or some of them, are elsewhere.
            Some("RDMANotSupported") => Ok(Step::Singly),
            Some("InvalidRDMAToken") => {
                rdma.failed(ticket, &error);
                let again = !std::mem::replace(&mut troubles.reopened, true);
                Ok(if again { Step::Again } else { Step::Singly })
            }
            _ => failed(rdma, error, ticket, troubles),
        }
    }

    /// By a GET each, all of one version.
    async fn singly<M: GetTarget>(&self, mut memory: M, retries: u32) -> BatchResult<M> {
        let get = match self.ranges.len() {
            0 | 1 => Ok(self.get.clone()),
            _ => self.stop.or(self.get.clone().pinned()).await,
        };
        let get = match get {
            Ok(get) => get,
            Err(error) => return Err(Failed { error, target: memory }),
        };
        let cut = |range: &ByteRange| (*range, memory.split_to(range.length() as usize));
        let wanted = self.ranges.iter().map(cut).collect();
        // The rest is empty; pieces are joined to its front.
        let join = |pieces: Vec<M>, rest: M| {
            let mut pieces = pieces.into_iter().chain([rest]);
            let mut whole = pieces.next().expect("the rest is there");
            for piece in pieces {
                // Missing only when its task went down with the runtime.
                let _ = whole.unsplit(piece);
            }
            whole
        };
        let outcomes = match singly(&get, wanted, self.stop.deadline).await {
            Ok(outcomes) => outcomes,
            Err(Failed { error, target }) => {
                return Err(Failed { error, target: join(target, memory) });
            }
        };
        let mut travelled: Option<Travelled> = None;
        let (mut bytes, mut retries, mut info) = (0, retries, None);
        let mut pieces = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            let (path, strength, fallbacks) = (outcome.path, outcome.strength, outcome.fallbacks);
            let next = Travelled { path, strength, fallbacks };
            // What is empty did not travel.
            if outcome.bytes > 0 {
                travelled = Some(travelled.map_or(next, |before| before.and(&next)));
                info.get_or_insert(outcome.info);
            }
            bytes += outcome.bytes;
            retries += outcome.retries;
            pieces.push(outcome.target);
        }
        let travelled = travelled.unwrap_or(Travelled::over_http(Fallbacks::default()));
        let Travelled { path, strength, fallbacks } = travelled;
        let (target, info) = (join(pieces, memory), info.unwrap_or_default());
        Ok(GatherOutcome { target, bytes, path, strength, fallbacks, retries, info })
    }
}

/// Nobody knows what is in the memory; or the service refused.
fn failed(
    rdma: &Rdma,
    error: ClientError,
    ticket: &Ticket,
    troubles: &mut Troubles,
) -> Result<Step, ClientError> {
    troubles.failures += u32::from(rdma.failed(ticket, &error));
    match Rdma::hopeless(&error) {
        Some(_) if !rdma.is_required() => Ok(Step::Singly),
        _ => Err(error),
    }
}

/// Holds what the service says that it moved against what is there.
async fn landed<M: GetTarget>(
    answer: &Answer,
    moved: &Moved,
    memory: M,
) -> (M, Result<ObjectInfo, ClientError>) {
    let bytes = memory.length();
    if moved.bytes != bytes as u64 {
        let error = Malformed::new("other bytes than asked for were moved");
        return (memory, Err(error.into()));
    }
    let set = DigestSet::NONE.with(ChecksumKind::Crc64Nvme);
    let (memory, found) = memory.digests(bytes, set).await;
    (memory, found.and_then(|found| compare(answer, moved, &found)))
}

fn compare(answer: &Answer, moved: &Moved, found: &Digests) -> Result<ObjectInfo, ClientError> {
    match found.value(ChecksumKind::Crc64Nvme) {
        Some(&found) if found != moved.crc64nvme => {
            return Err(ClientError::ChecksumMismatch { expected: moved.crc64nvme, found });
        }
        Some(_) => {}
        None => return Err(Malformed::new("ranges without a checksum").into()),
    }
    let mut info = ObjectInfo::from_answer(answer)?;
    let size = answer.text("x-keyway-object-size").and_then(|size| size.parse().ok());
    info.size = size.ok_or_else(|| Malformed::new("ranges of an object without a size"))?;
    Ok(info)
}
