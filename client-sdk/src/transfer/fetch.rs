//! One run of an object's bytes into one run of memory, however often it takes.
//!
//! The run is asked for with `If-Match` once its ETag is known, so bytes of two versions
//! never meet in one buffer. When a body breaks midway the next attempt asks for what is
//! missing; the checksum in the making goes on where it stood. How an attempt goes by RDMA
//! stands in [`direct`](super::direct), how bytes of a body get into the memory in
//! [`landing`](super::landing).

use std::sync::Arc;
use std::time::Instant;

use keyway_fabric::gpu::StreamTurn;
use keyway_fabric::memory::{HostBuffer, HostSliceMut};
use keyway_proto::checksum::Hasher;
use keyway_proto::{ByteRange, Checksum, ChecksumKind};

use super::direct::{Direct, Route, Step};
use super::info::{ObjectInfo, content_length, content_range};
use super::landing::{GetTarget, Landing as _};
use super::{Failed, Meter, Stop};
use crate::error::{ClientError, Malformed};
use crate::http::{Answer, Call, Client};
use crate::phases::{BodyMarks, Service};
use crate::rdma::Travelled;

/// Bytes received and hashed at a time: they are still in the core's cache when they are hashed.
const PIECE_BYTES: usize = 512 * 1024;

/// What is fetched.
pub struct Fetch {
    pub(super) client: Client,
    /// The GET, without range or pin.
    pub(super) call: Call,
    /// The bytes; `None` for the whole object, whose size the answer tells.
    pub(super) range: Option<ByteRange>,
    /// The ETag that every answer must have.
    pub(super) pin: Option<String>,
    /// The checksum to compute; `None` for the one that the first answer offers.
    pub(super) hash: Option<ChecksumKind>,
    pub(super) meter: Meter,
    pub(super) stop: Stop,
    /// What was learnt of where the object is.
    pub(super) route: Route,
    /// The caller's stream waits for its end.
    pub(super) turn: Option<Arc<StreamTurn>>,
}

/// What was fetched.
pub struct Fetched<M> {
    pub(super) target: M,
    /// Bytes at the front of the target.
    pub(super) bytes: u64,
    /// Of the first answer.
    pub(super) info: ObjectInfo,
    /// Of the bytes, if one was asked for or offered.
    pub(super) checksum: Option<Checksum>,
    pub(super) retries: u32,
    pub(super) travelled: Travelled,
}

/// How far a fetch has come.
pub(super) struct State {
    pub(super) reached: u64,
    pub(super) info: Option<ObjectInfo>,
    pub(super) expected: Option<u64>,
    /// The kind of checksum, once it is known.
    pub(super) kind: Option<ChecksumKind>,
    hasher: Option<Hasher>,
    pub(super) direct: Direct,
}

impl State {
    fn new(fetch: &Fetch, direct: Direct) -> Self {
        Self {
            reached: 0,
            info: None,
            expected: fetch.range.map(ByteRange::length),
            kind: fetch.hash,
            hasher: None,
            direct,
        }
    }

    fn hash(&mut self, piece: &[u8]) {
        if let Some(kind) = self.kind {
            self.hasher.get_or_insert_with(|| Hasher::new(kind)).update(piece);
        }
    }

    /// Of all bytes that came; those that did not pass through here were hashed as they lie.
    fn checksum(&mut self) -> Option<Checksum> {
        let kind = self.kind?;
        let hashed = || self.hasher.take().unwrap_or_else(|| Hasher::new(kind)).finish();
        Some(self.direct.found.filter(|found| found.kind() == kind).unwrap_or_else(hashed))
    }
}

impl Fetch {
    /// The same for a part of it.
    pub(super) fn part(&self, range: ByteRange) -> Self {
        Self {
            client: self.client.clone(),
            call: self.call.clone(),
            range: Some(range),
            pin: self.pin.clone(),
            hash: self.hash,
            meter: self.meter.clone(),
            stop: self.stop.clone(),
            route: self.route.clone(),
            turn: self.turn.clone(),
        }
    }

    /// Fills the front of `target`.
    ///
    /// # Errors
    /// With the memory, when retrying could not help or was not allowed any more.
    pub(super) async fn run<M: GetTarget>(self, target: M) -> Result<Fetched<M>, Failed<M>> {
        self.run_growing(target, |_| None).await
    }

    /// The same; where the body needs more memory than there is, `grow` may make it.
    pub(super) async fn run_growing<M: GetTarget>(
        mut self,
        mut target: M,
        grow: impl Fn(u64) -> Option<Result<M, ClientError>> + Send + Sync,
    ) -> Result<Fetched<M>, Failed<M>> {
        let mut state = State::new(&self, Direct::default());
        let mut retries = self.client.retries();
        let stop = self.stop.clone();
        if let Some(turn) = &self.turn {
            let begun = async { Ok(turn.begun().await?) };
            if let Err(error) = stop.or(begun).await {
                return Err(Failed { error, target });
            }
        }
        loop {
            let result = match self.ticket(&mut state, &target).await {
                Ok(Some(ticket)) => {
                    let result;
                    let attempt = self.attempt_direct(ticket, target, &mut state);
                    // Apart, for it is large, and reads by HTTP have no use for it.
                    (target, result) = Box::pin(attempt).await;
                    result
                }
                Ok(None) => {
                    let result;
                    (target, result) = self.attempt(target, &mut state, &grow).await;
                    result
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(Step::Done) => break,
                Ok(Step::Again) => {}
                Err(error) => {
                    if let Err(error) = stop.or(retries.after(error)).await {
                        return Err(Failed { error, target });
                    }
                }
            }
        }
        Ok(Fetched {
            target,
            bytes: state.reached,
            checksum: state.checksum(),
            info: state.info.unwrap_or_default(),
            retries: retries.spent(),
            travelled: state.direct.travelled(),
        })
    }

    async fn attempt<M: GetTarget>(
        &mut self,
        mut target: M,
        state: &mut State,
        grow: impl Fn(u64) -> Option<Result<M, ClientError>>,
    ) -> (M, Result<Step, ClientError>) {
        // A body that broke before its ETag was known cannot be continued safely.
        if self.pin.is_none() && state.reached > 0 {
            self.meter.take_back(state.reached);
            let direct = std::mem::take(&mut state.direct);
            *state = State::new(self, direct);
        }
        // Everything came, and only the end of the last body was lost.
        if state.expected == Some(state.reached) && state.info.is_some() {
            return (target, Ok(Step::Done));
        }
        let (stop, begun) = (self.stop.clone(), Instant::now());
        let (answer, needed) = match stop.or(Box::pin(self.ask(state))).await {
            Ok(asked) => asked,
            Err(error) => return (target, Err(error)),
        };
        let (answered, service) = (Instant::now(), Service::of(answer.headers()));
        if needed > target.length() as u64 {
            match grow(needed) {
                Some(Ok(grown)) => target = grown,
                Some(Err(error)) => return (target, Err(error)),
                None => {
                    let available = target.length() as u64;
                    return (target, Err(ClientError::TargetTooSmall { needed, available }));
                }
            }
        }
        let (target, taken) = self.take_body(answer, needed, target, state).await;
        let taken = taken.map(|received| {
            let marks = BodyMarks { begun, answered, received, service };
            self.client.bodies().add(&marks);
            Step::Done
        });
        (target, taken)
    }

    /// Asks for what is missing. Gives the answer, and the bytes that there will be in all.
    async fn ask(&mut self, state: &mut State) -> Result<(Answer, u64), ClientError> {
        let wanted = self.wanted(state)?;
        let call = self.ranged(wanted)?;
        let answer = self.client.attempt(&call).await.map_err(|error| self.refused(error))?;
        let needed = self.check(&answer, wanted, state)?;
        Ok((answer, needed))
    }

    /// Takes the bytes out of an answer's body, of which there will be `needed` in all. Tells
    /// when the last one had come; by now it is where it belongs.
    pub(super) async fn take_body<M: GetTarget>(
        &mut self,
        mut answer: Answer,
        needed: u64,
        target: M,
        state: &mut State,
    ) -> (M, Result<Instant, ClientError>) {
        let available = target.length() as u64;
        if needed > available {
            return (target, Err(ClientError::TargetTooSmall { needed, available }));
        }
        let (offset, turn) = (state.reached as usize, self.turn.clone());
        let mut landing = match target.land(self.client.staging(), offset, turn).await {
            Ok(landing) => landing,
            Err(Failed { error, target }) => return (target, Err(error)),
        };
        let stop = self.stop.clone();
        let received = stop.or(self.receive::<M>(&mut answer, needed, &mut landing, state)).await;
        let came = Instant::now();
        let (target, landed) = landing.end().await;
        (target, landed.and(received).map(|()| came))
    }

    async fn receive<M: GetTarget>(
        &self,
        answer: &mut Answer,
        needed: u64,
        landing: &mut M::Landing,
        state: &mut State,
    ) -> Result<(), ClientError> {
        while state.reached < needed {
            let most = PIECE_BYTES.min((needed - state.reached).try_into().unwrap_or(usize::MAX));
            let room = landing.room(most).await?;
            let bytes = answer.read(room).await?;
            if bytes == 0 {
                let (expected, received) = (needed, state.reached);
                return Err(ClientError::BrokenBody { expected, received });
            }
            state.hash(&room[..bytes]);
            landing.filled(bytes);
            state.reached += bytes as u64;
            self.meter.add(bytes as u64);
        }
        if answer.read(&mut [0]).await? > 0 {
            return Err(Malformed::new("more bytes than announced").into());
        }
        Ok(())
    }

    /// The bytes that are still missing, as a range of the object; `None` for all of an
    /// object of unknown size.
    pub(super) fn wanted(&self, state: &State) -> Result<Option<ByteRange>, ClientError> {
        let Some(expected) = state.expected else { return Ok(None) };
        let offset = self.range.map_or(0, ByteRange::offset) + state.reached;
        if self.range.is_none() && state.reached == 0 {
            return Ok(None);
        }
        ByteRange::new(offset, expected - state.reached)
            .map(Some)
            .ok_or(ClientError::RangeOutside { size: expected })
    }

    pub(super) fn ranged(&self, wanted: Option<ByteRange>) -> Result<Call, ClientError> {
        let mut call = self.call.clone();
        if let Some(range) = wanted {
            let (first, last) = (range.offset(), range.end().saturating_sub(1));
            call.header("range", &format!("bytes={first}-{last}"))?;
        }
        if let Some(etag) = &self.pin {
            call.header("if-match", etag)?;
        }
        Ok(call)
    }

    /// A failed precondition means a replaced object where the precondition was our pin.
    pub(super) fn refused(&self, error: ClientError) -> ClientError {
        let ours = self.pin.is_some() && !self.call.headers.contains_key("if-match");
        match error.status() {
            Some(::http::StatusCode::PRECONDITION_FAILED) if ours => ClientError::Changed,
            _ => error,
        }
    }

    /// Holds the head of an answer against what was asked, before a byte is taken.
    pub(super) fn check(
        &mut self,
        answer: &Answer,
        wanted: Option<ByteRange>,
        state: &mut State,
    ) -> Result<u64, ClientError> {
        let etag = answer.text("etag");
        if let (Some(pin), Some(etag)) = (self.pin.as_deref(), etag)
            && pin != etag
        {
            return Err(ClientError::Changed);
        }
        let announced = match (wanted, content_range(answer)?) {
            (Some(wanted), Some((range, size))) => {
                let fits = range.offset() == wanted.offset() && range.length() <= wanted.length();
                if !fits {
                    return Err(Malformed::new("another range than asked for").into());
                }
                if range.length() < wanted.length() {
                    return Err(ClientError::RangeOutside { size });
                }
                range.length()
            }
            // A server without ranges sends the whole: good where the whole was wanted.
            (Some(wanted), None) => {
                let length = content_length(answer)?;
                if wanted != ByteRange::whole(length) {
                    return Err(Malformed::new("a whole object instead of a range").into());
                }
                length
            }
            (None, None) => content_length(answer)?,
            (None, Some(_)) => return Err(Malformed::new("a range nobody asked for").into()),
        };
        let needed = state.reached + announced;
        state.expected = Some(needed);
        if state.info.is_none() {
            let info = ObjectInfo::from_answer(answer)?;
            if self.range.is_none() && state.kind.is_none() {
                state.kind = info.checksum().ok().map(|sum| sum.kind());
            }
            self.pin = self.pin.take().or_else(|| info.etag.clone());
            if self.range.is_none() {
                self.meter.set_total(info.size);
            }
            state.info = Some(info);
        }
        Ok(needed)
    }
}

/// Memory of the client's own, of the kind that can be shared where that is wanted.
pub(super) fn memory(bytes: u64, shared: bool) -> Result<HostSliceMut, ClientError> {
    let bytes = usize::try_from(bytes).map_err(|_| ClientError::TooLarge(bytes))?;
    let mut buffer = if shared { HostBuffer::shared(bytes)? } else { HostBuffer::zeroed(bytes)? };
    Ok(buffer.slice_mut(..).expect("a new buffer is not lent"))
}
