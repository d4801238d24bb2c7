//! One run of an object's bytes into one run of memory, however often it takes.
//!
//! The run is asked for with `If-Match` once its ETag is known, so bytes of two versions
//! never meet in one buffer. When a body breaks midway the next attempt asks for what is
//! missing; the checksum in the making goes on where it stood.

use std::future::Future;

use keyway_fabric::memory::{HostBuffer, HostSliceMut};
use keyway_proto::checksum::Hasher;
use keyway_proto::{ByteRange, Checksum, ChecksumKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::info::{ObjectInfo, content_length, content_range};
use super::{Failed, Meter};
use crate::error::{ClientError, Malformed};
use crate::http::{Answer, Call, Client};

/// What is fetched.
pub(super) struct Fetch {
    pub(super) client: Client,
    /// The GET, without range or pin.
    pub(super) call: Call,
    /// The bytes; `None` for the whole object, whose size the answer tells.
    pub(super) range: Option<ByteRange>,
    /// Makes memory of up to this many bytes where the target is empty.
    pub(super) grow_max: Option<u64>,
    /// The ETag that every answer must have.
    pub(super) pin: Option<String>,
    /// The checksum to compute; `None` for the one that the first answer offers.
    pub(super) hash: Option<ChecksumKind>,
    pub(super) meter: Meter,
    pub(super) stop: Stop,
}

/// When a fetch gives up although it could go on.
#[derive(Clone)]
pub(super) struct Stop {
    pub(super) deadline: Option<Instant>,
    pub(super) token: Option<CancellationToken>,
}

impl Stop {
    /// Runs a future unless it is time to stop. The future borrows the memory, so the memory
    /// is free again once this returns.
    pub(super) async fn or<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let given_up = async {
            match &self.token {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let late = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = work => result,
            () = late => Err(ClientError::Deadline),
            () = given_up => Err(ClientError::GivenUp),
        }
    }
}

/// What was fetched.
pub(super) struct Fetched {
    pub(super) target: HostSliceMut,
    /// Bytes at the front of the target.
    pub(super) bytes: u64,
    /// Of the first answer.
    pub(super) info: ObjectInfo,
    /// Of the bytes, if one was asked for or offered.
    pub(super) checksum: Option<Checksum>,
    pub(super) retries: u32,
}

/// How far a fetch has come.
struct State {
    reached: u64,
    info: Option<ObjectInfo>,
    expected: Option<u64>,
    hasher: Option<Hasher>,
}

impl Fetch {
    /// The same for a part of it.
    pub(super) fn part(&self, range: ByteRange) -> Self {
        Self {
            client: self.client.clone(),
            call: self.call.clone(),
            range: Some(range),
            grow_max: None,
            pin: self.pin.clone(),
            hash: self.hash,
            meter: self.meter.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Fills the front of `target`.
    ///
    /// # Errors
    /// With the memory, when retrying could not help or was not allowed any more.
    pub(super) async fn run(
        mut self,
        mut target: HostSliceMut,
    ) -> Result<Fetched, Failed<HostSliceMut>> {
        let mut state = State {
            reached: 0,
            info: None,
            expected: self.range.map(ByteRange::length),
            hasher: self.hash.map(Hasher::new),
        };
        let mut retries = self.client.retries();
        let stop = self.stop.clone();
        loop {
            let result = stop.or(self.attempt(&mut target, &mut state)).await;
            match result {
                Ok(()) => break,
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
            info: state.info.unwrap_or_default(),
            checksum: state.hasher.map(Hasher::finish),
            retries: retries.spent(),
        })
    }

    async fn attempt(
        &mut self,
        target: &mut HostSliceMut,
        state: &mut State,
    ) -> Result<(), ClientError> {
        // A body that broke before its ETag was known cannot be continued safely.
        if self.pin.is_none() && state.reached > 0 {
            self.meter.take_back(state.reached);
            *state = State {
                reached: 0,
                info: None,
                expected: self.range.map(ByteRange::length),
                hasher: self.hash.map(Hasher::new),
            };
        }
        // Everything came, and only the end of the last body was lost.
        if state.expected == Some(state.reached) && state.info.is_some() {
            return Ok(());
        }
        let wanted = self.wanted(state)?;
        let call = self.ranged(wanted)?;
        let mut answer = match self.client.attempt(&call).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.refused(error)),
        };
        let expected = self.check(&answer, wanted, state)?;
        self.make_room(expected, target)?;
        while let Some(piece) = answer.chunk().await? {
            let start = state.reached as usize;
            let end = start + piece.len();
            if end as u64 > expected {
                return Err(Malformed::new("more bytes than announced").into());
            }
            target[start..end].copy_from_slice(&piece);
            if let Some(hasher) = &mut state.hasher {
                hasher.update(&piece);
            }
            state.reached = end as u64;
            self.meter.add(piece.len() as u64);
        }
        if state.reached < expected {
            return Err(ClientError::BrokenBody { expected, received: state.reached });
        }
        Ok(())
    }

    /// The bytes that are still missing, as a range of the object; `None` for all of an
    /// object of unknown size.
    fn wanted(&self, state: &State) -> Result<Option<ByteRange>, ClientError> {
        let Some(expected) = state.expected else { return Ok(None) };
        let offset = self.range.map_or(0, ByteRange::offset) + state.reached;
        if self.range.is_none() && state.reached == 0 {
            return Ok(None);
        }
        ByteRange::new(offset, expected - state.reached)
            .map(Some)
            .ok_or(ClientError::RangeOutside { size: expected })
    }

    fn ranged(&self, wanted: Option<ByteRange>) -> Result<Call, ClientError> {
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
    fn refused(&self, error: ClientError) -> ClientError {
        let ours = self.pin.is_some() && !self.call.headers.contains_key("if-match");
        match error.status() {
            Some(::http::StatusCode::PRECONDITION_FAILED) if ours => ClientError::Changed,
            _ => error,
        }
    }

    /// Holds the head of an answer against what was asked, before a byte is taken.
    fn check(
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
            if self.range.is_none() && state.hasher.is_none() {
                state.hasher = info.checksum().ok().map(|sum| Hasher::new(sum.kind()));
            }
            self.pin = self.pin.take().or_else(|| info.etag.clone());
            if self.range.is_none() {
                self.meter.set_total(info.size);
            }
            state.info = Some(info);
        }
        Ok(needed)
    }

    fn make_room(&self, needed: u64, target: &mut HostSliceMut) -> Result<(), ClientError> {
        let available = target.len() as u64;
        if needed <= available {
            return Ok(());
        }
        match self.grow_max {
            Some(max) if available == 0 && needed <= max => *target = memory(needed)?,
            _ => return Err(ClientError::TargetTooSmall { needed, available }),
        }
        Ok(())
    }
}

/// Memory of the client's own.
pub(super) fn memory(bytes: u64) -> Result<HostSliceMut, ClientError> {
    let bytes = usize::try_from(bytes).map_err(|_| ClientError::TooLarge(bytes))?;
    let mut buffer = HostBuffer::zeroed(bytes)?;
    Ok(buffer.slice_mut(..).expect("a new buffer is not lent"))
}
