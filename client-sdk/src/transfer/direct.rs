//! A fetch by RDMA: the node writes the run into memory that is lent for it alone.
//!
//! What was landed is hashed where it lies, and held against what the node says it sent and, for
//! whole objects, against the object's own checksum as over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::http::Method;
use keyway_proto::key::Direction;
use keyway_proto::{ByteRange, Checksum, ChecksumKind, DigestSet, Digests, NodeId};

use super::ObjectInfo;
use super::fetch::{Fetch, State};
use super::landing::GetTarget;
use crate::error::{ClientError, Malformed};
use crate::http::Answer;
use crate::rdma::{
    FAILURES_MAX, Fallback, Fallbacks, Moved, Order, Outcome, Rdma, Reach, Reply, Settled, Ticket,
    Travelled, transact,
};

/// What an attempt led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All is there.
    Done,
    /// Another attempt may do better, at once.
    Again,
}

/// The node that has the object, where a service with several has told. Parts share it.
#[derive(Clone)]
pub(super) struct Route(Arc<AtomicU64>);

impl Default for Route {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Route {
    fn node(&self) -> Option<NodeId> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok().map(NodeId)
    }

    fn set(&self, node: NodeId) {
        self.0.store(node.0.into(), Ordering::Relaxed);
    }
}

/// How a run's attempts by RDMA went.
#[derive(Default)]
pub(super) struct Direct {
    /// What is left goes over HTTP.
    over: bool,
    failures: u32,
    /// A session was found closed, and the run asked for again.
    reopened: bool,
    /// The node was found out, and the run asked for again.
    rerouted: bool,
    fallbacks: Fallbacks,
    /// How the run travelled, where not over HTTP.
    moved: Option<Travelled>,
    /// The checksum of what landed.
    pub(super) found: Option<Checksum>,
}

impl Direct {
    pub(super) fn travelled(&self) -> Travelled {
        match self.moved {
            Some(moved) => Travelled { fallbacks: self.fallbacks, ..moved },
            None => Travelled::over_http(self.fallbacks),
        }
    }
}

impl Fetch {
    /// Leave to fetch the run by RDMA; `None` where it goes over HTTP.
    ///
    /// # Errors
    /// When it must not go over HTTP, or it is time to stop.
    pub(super) async fn ticket<M: GetTarget>(
        &self,
        state: &mut State,
        target: &M,
    ) -> Result<Option<Ticket>, ClientError> {
        let rdma = self.client.rdma();
        let room = target.length();
        let bytes = state.expected.unwrap_or(room as u64);
        // A body that broke midway is continued as it began.
        if state.direct.over || state.reached > 0 || room == 0 || !rdma.is_wanted(bytes) {
            return Ok(None);
        }
        let tried = state.direct.failures >= FAILURES_MAX && !rdma.is_required();
        let ticket = if tried {
            Err(Fallback::Failed)
        } else {
            let reach = Reach::of(target);
            // Apart, for it is large where sessions have to be opened.
            let ticket = Box::pin(rdma.ticket(self.route.node(), bytes, reach));
            let ticket = async { Ok(ticket.await) };
            self.stop.or(ticket).await?
        };
        let reason = match ticket {
            Ok(ticket) => return Ok(Some(ticket)),
            Err(reason) => reason,
        };
        state.direct.over = true;
        rdma.fall_back(reason, &mut state.direct.fallbacks)?;
        Ok(None)
    }

    /// Lends the front of `target` for one attempt, and gives all of it back when its key is
    /// dead.
    pub(super) async fn attempt_direct<M: GetTarget>(
        &mut self,
        ticket: Ticket,
        mut target: M,
        state: &mut State,
    ) -> (M, Result<Step, ClientError>) {
        let asked = self.wanted(state).and_then(|wanted| Ok((wanted, self.ranged(wanted)?)));
        let (wanted, call) = match asked {
            Ok(asked) => asked,
            Err(error) => return (target, Err(error)),
        };
        let available = target.length() as u64;
        let length = state.expected.unwrap_or(available);
        if length > available {
            let error = ClientError::TargetTooSmall { needed: length, available };
            return (target, Err(error));
        }
        let memory = target.split_to(length as usize);
        let rdma = self.client.rdma();
        let order = Order {
            ticket,
            wire: Arc::clone(rdma.wire()),
            call,
            memory,
            direction: Direction::Write,
            answer_timeout: rdma.answer_timeout(),
            turn: self.turn.clone(),
        };
        let Settled { mut memory, ticket, outcome, marks } = transact(order, &self.stop).await;
        let result = match outcome {
            Outcome::Moved(answer, moved) => {
                let landed;
                (memory, landed) = self.landed(&answer, &moved, wanted, memory, state).await;
                if landed.is_ok() {
                    let travelled = Travelled::past_http::<M>(&ticket, Fallbacks::default());
                    state.direct.moved = Some(travelled);
                    self.client.rdma().moved(&ticket, moved.bytes, &marks);
                }
                landed.map(|()| Step::Done)
            }
            Outcome::Answered(answer) => {
                let result;
                (memory, result) = self.answered(answer, wanted, ticket, memory, state).await;
                result
            }
            Outcome::Failed(error) => self.failed_direct(error, &ticket, state),
        };
        if memory.unsplit(target).is_err() {
            unreachable!("the front of a slice meets its rest");
        }
        (memory, result)
    }

    /// Holds what the service says it moved against what was asked for and what is there.
    async fn landed<M: GetTarget>(
        &mut self,
        answer: &Answer,
        moved: &Moved,
        wanted: Option<ByteRange>,
        memory: M,
        state: &mut State,
    ) -> (M, Result<(), ClientError>) {
        let needed = match self.check(answer, wanted, state) {
            Ok(needed) if moved.bytes == needed && needed <= memory.length() as u64 => needed,
            Ok(_) => {
                let error = Malformed::new("other bytes than asked for were moved");
                return (memory, Err(error.into()));
            }
            Err(error) => return (memory, Err(error)),
        };
        let set = DigestSet::NONE.with(ChecksumKind::Crc64Nvme);
        let set = state.kind.into_iter().fold(set, DigestSet::with);
        let (memory, found) = memory.digests(needed as usize, set).await;
        (memory, found.and_then(|found| self.compare(&found, moved, state)))
    }

    fn compare(
        &mut self,
        found: &Digests,
        moved: &Moved,
        state: &mut State,
    ) -> Result<(), ClientError> {
        if let Some(&found) = found.value(ChecksumKind::Crc64Nvme)
            && found != moved.crc64nvme
        {
            return Err(ClientError::ChecksumMismatch { expected: moved.crc64nvme, found });
        }
        state.direct.found = state.kind.and_then(|kind| found.value(kind).copied());
        if state.direct.found.is_none() {
            // A kind that the memory's device does not compute: nothing to compare with.
            state.kind = None;
        }
        state.reached = moved.bytes;
        self.meter.add(moved.bytes);
        Ok(())
    }

    /// Nobody knows what is in the memory.
    fn failed_direct(
        &self,
        error: ClientError,
        ticket: &Ticket,
        state: &mut State,
    ) -> Result<Step, ClientError> {
        let rdma = self.client.rdma();
        state.direct.failures += u32::from(rdma.failed(ticket, &error));
        match Rdma::hopeless(&error) {
            Some(reason) if !rdma.is_required() => {
                state.direct.over = true;
                rdma.fall_back(reason, &mut state.direct.fallbacks)?;
                Ok(Step::Again)
            }
            _ => Err(error),
        }
    }

    /// An answer without bytes in the memory: they may be in its body.
    async fn answered<M: GetTarget>(
        &mut self,
        mut answer: Answer,
        wanted: Option<ByteRange>,
        ticket: Ticket,
        memory: M,
        state: &mut State,
    ) -> (M, Result<Step, ClientError>) {
        if !answer.status().is_success() {
            let error = answer.read_error(&Method::GET).await;
            let result = self.refused_direct(error, &ticket, memory.length() as u64, state).await;
            return (memory, result);
        }
        // The window is another's now; the body needs none.
        drop(ticket);
        match self.declined(&answer, wanted, state).await {
            Ok(Some(needed)) => {
                let (memory, taken) = self.take_body(answer, needed, memory, state).await;
                (memory, taken.map(|_| Step::Done))
            }
            Ok(None) => (memory, Ok(Step::Again)),
            Err(error) => (memory, Err(error)),
        }
    }

    /// Goes on with the body of an answer, and tells the bytes that there will be in all; `None`
    /// where another node is to be asked.
    async fn declined(
        &mut self,
        answer: &Answer,
        wanted: Option<ByteRange>,
        state: &mut State,
    ) -> Result<Option<u64>, ClientError> {
        let rdma = self.client.rdma();
        let reply = Reply::of(answer.status(), answer.headers());
        if let Reply::Declined(Some(node)) = reply
            && !state.direct.rerouted
            && rdma.reaches(node).await
        {
            state.direct.rerouted = true;
            self.route.set(node);
            return Ok(None);
        }
        let reason = match reply {
            Reply::Declined(Some(_)) => Fallback::OtherNode,
            Reply::Declined(None) => Fallback::Declined,
            _ => Fallback::Ignored,
        };
        state.direct.over = true;
        // There is nothing to be moved of an empty object.
        if super::info::content_length(answer)? > 0 {
            rdma.fall_back(reason, &mut state.direct.fallbacks)?;
        }
        self.check(answer, wanted, state).map(Some)
    }

    async fn refused_direct(
        &mut self,
        error: ClientError,
        ticket: &Ticket,
        available: u64,
        state: &mut State,
    ) -> Result<Step, ClientError> {
        let rdma = self.client.rdma();
        match error.code() {
            Some("InvalidRDMAToken") => {
                rdma.failed(ticket, &error);
                if !std::mem::replace(&mut state.direct.reopened, true) {
                    return Ok(Step::Again);
                }
                state.direct.over = true;
                rdma.fall_back(Fallback::NoSession, &mut state.direct.fallbacks)?;
                Ok(Step::Again)
            }
            Some("RDMATransferFailed") => self.failed_direct(error, ticket, state),
            Some("RDMAWindowTooSmall") => {
                let mut call = self.call.clone();
                call.method = Method::HEAD;
                let head = self.stop.or(self.client.attempt(&call)).await?;
                let needed = ObjectInfo::from_answer(&head)?.size;
                Err(ClientError::TargetTooSmall { needed, available })
            }
            _ => Err(self.refused(error)),
        }
    }
}
