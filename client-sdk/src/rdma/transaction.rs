//! One transfer under one key, from the lending of the memory to its return.
//!
//! Sketch: one bind (one doorbell, one completion), one HTTP request without a body, one
//! completion that names the dead key. No byte is copied or touched by the CPU here, but for those
//! that go by way of a slab.
//!
//! [`Holder`] decides every step; this file only tells it what happened and does what it says.
//! All of it runs in a task of its own that owns the memory: a caller who goes away is an event
//! like any other, and the memory is nobody's until its key is dead.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderValue;
use keyway_fabric::LinkError;
use keyway_fabric::gpu::StreamTurn;
use keyway_fabric::ipc::IpcError;
use keyway_fabric::verbs::VerbsError;
use keyway_proto::SessionToken;
use keyway_proto::key::{
    Answer as KeyAnswer, Direction, Ending, Holder, HolderAction, HolderEvent, Relinquished,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::armed::{Armed, Released};
use super::fallback::Fallback;
use super::rails::Ticket;
use super::reply::{Moved, Reply, relinquished};
use super::target::Target;
use crate::error::{ClientError, Malformed};
use crate::http::{Answer, Call, Covered, Wire};
use crate::phases::{Marks, Service};
use crate::transfer::Stop;

/// How long the adapter may take to show that the key is dead after the service said so.
const CONFIRMATION_MAX: Duration = Duration::from_secs(10);
const TOKEN: &str = "x-amz-rdma-token";
/// Whose tokens these are: a server that knows others alone must not take them for its own.
const AGENT: (&str, HeaderValue) = ("x-amz-rdma-agent", HeaderValue::from_static("keyway"));

/// A transfer by RDMA that failed. Its key is dead all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// The connection to the node broke.
    #[error("the RDMA connection broke")]
    Link(#[source] LinkError),
    /// The adapter did not show that the node had given the key up, so that the connection was
    /// taken down.
    #[error("the key's end was not confirmed")]
    Unconfirmed,
    /// The memory cannot be registered with the adapter.
    #[error("the memory cannot be registered")]
    Registration(#[source] VerbsError),
    /// The node of this host did not map the memory.
    #[error("the node did not map the memory")]
    Sharing(#[source] IpcError),
    /// The memory is of a kind that no other process can map.
    #[error("the memory cannot be shared")]
    NotShared(#[source] Fallback),
}

/// What is to be transferred.
pub(crate) struct Order<M> {
    pub(crate) ticket: Ticket,
    pub(crate) wire: Arc<Wire>,
    /// The request, without its token.
    pub(crate) call: Call,
    pub(crate) memory: M,
    pub(crate) direction: Direction,
    pub(crate) answer_timeout: Duration,
    /// Held until the key is dead.
    pub(crate) turn: Option<Arc<StreamTurn>>,
}

/// A transfer that ended: the memory is its owner's again, and the key is dead.
pub(crate) struct Settled<M> {
    pub(crate) memory: M,
    pub(crate) ticket: Ticket,
    pub(crate) outcome: Outcome,
    /// When it came to which point, where its bytes moved.
    pub(crate) marks: Marks,
}

/// How it ended.
pub(crate) enum Outcome {
    /// The bytes moved.
    Moved(Answer, Moved),
    /// The service answered without moving them.
    Answered(Answer),
    /// It is not known what the memory, or the object, holds.
    Failed(ClientError),
}

/// Transfers, and comes back when the key is dead.
///
/// Dropping the future gives the transfer up; the memory is freed when its key is dead.
pub(crate) async fn transact<M: Target>(order: Order<M>, stop: &Stop) -> Settled<M> {
    let left = CancellationToken::new();
    let _leaving = left.clone().drop_guard();
    let stop = stop.clone();
    let given_up = async move {
        tokio::select! {
            error = stop.reached() => match error {
                ClientError::Deadline => HolderEvent::Deadline,
                _ => HolderEvent::Cancel,
            },
            () = left.cancelled() => HolderEvent::Cancel,
        }
    };
    rejoin(tokio::spawn(drive(order, given_up))).await
}

async fn drive<M: Target>(
    order: Order<M>,
    given_up: impl Future<Output = HolderEvent> + Send,
) -> Settled<M> {
    // The turn ends with the task.
    let Order { ticket, wire, mut call, memory, direction, answer_timeout, turn: _turn } = order;
    let session = Arc::clone(&ticket.session);
    let mut marks = Marks::begin();
    let mut given_up = pin!(given_up);
    // Opens nothing to anybody yet.
    let hold = async {
        let room = session.room(memory.length(), direction).await;
        marks = Marks::begin();
        session.hold(&memory, direction).await.map(|held| (room, held))
    };
    let held = tokio::select! {
        biased;
        held = hold => held.map_err(ClientError::from),
        event = &mut given_up => Err(match event {
            HolderEvent::Deadline => ClientError::Deadline,
            _ => ClientError::GivenUp,
        }),
    };
    let (room, mut held) = match held {
        Ok(held) => held,
        Err(error) => return Settled { memory, ticket, outcome: Outcome::Failed(error), marks },
    };
    let mut holder = Holder::new(session.strength.revoker(), session.race);
    let mut action = holder.on(HolderEvent::Start);
    debug_assert_eq!(action, Some(HolderAction::Bind));
    let armed = {
        let mut binding = pin!(session.arm(memory, &mut held, direction));
        let mut is_wanted = true;
        loop {
            tokio::select! {
                biased;
                armed = &mut binding => break armed,
                event = &mut given_up, if is_wanted => {
                    is_wanted = false;
                    holder.on(event);
                }
            }
        }
    };
    let mut armed = match armed {
        Ok(armed) => armed,
        Err((error, memory)) => {
            action = holder.on(HolderEvent::BindFailed);
            debug_assert_eq!(action, Some(HolderAction::DestroyQp));
            session.fence().await;
            holder.on(HolderEvent::QpDestroyed);
            return Settled { memory, ticket, outcome: Outcome::Failed(error.into()), marks };
        }
    };
    let mut seen = Seen::default();
    marks.lent = Instant::now().into_std();
    action = holder.on(HolderEvent::Bound);
    if action == Some(HolderAction::Send) {
        let token = SessionToken::new(session.id, armed.remote());
        let token = token.expect("memory that is lent has a first and a last byte").encode();
        let mut token = HeaderValue::try_from(token).expect("hexadecimal digits");
        token.set_sensitive(true);
        call.headers.insert(TOKEN, token);
        call.headers.insert(AGENT.0, AGENT.1);
        if direction == Direction::Read {
            call.covered = Covered::Nothing;
        }
        let exchange = wire.exchange(&call, answer_timeout);
        action = Some(watch(&mut holder, &mut armed, exchange, given_up, &mut seen).await);
    }
    let action = action.expect("a bound key is sent or revoked");
    let ending = end(&mut holder, &mut armed, action).await;
    let released: Released<M> = match armed.release() {
        Ok(released) => released,
        // The machine and the adapter's own record say the same; were it not so, the adapter
        // would have the last word.
        Err(mut armed) => {
            armed.fence().await;
            armed.release().unwrap_or_else(|_| unreachable!("a fenced key is dead"))
        }
    };
    drop((held, room));
    marks.dead = Instant::now().into_std();
    if let (Some(at), Some(Ok(answer))) = (seen.answered, &seen.exchange) {
        marks.answered = at.into_std();
        marks.service = Service::of(answer.headers());
    }
    let memory = released.memory(arrived(ending, &seen, direction)).await;
    Settled { memory, ticket, outcome: outcome(ending, seen, direction), marks }
}

/// What was seen while the key lived.
#[derive(Default)]
struct Seen {
    exchange: Option<Result<Answer, ClientError>>,
    answered: Option<Instant>,
    broken: Option<LinkError>,
}

/// Sends the request, and feeds the machine until it wants something done.
async fn watch<M: Target>(
    holder: &mut Holder,
    armed: &mut Armed<M>,
    exchange: impl Future<Output = Result<Answer, ClientError>>,
    mut given_up: impl Future<Output = HolderEvent> + Unpin,
    seen: &mut Seen,
) -> HolderAction {
    let mut exchange = pin!(exchange);
    let mut invalidated = pin!(armed.invalidated());
    let mut has_ended = false;
    let mut patience = pin!(tokio::time::sleep(CONFIRMATION_MAX));
    loop {
        let event = tokio::select! {
            biased;
            ended = &mut invalidated, if !has_ended => {
                has_ended = true;
                match ended {
                    Ok(()) => HolderEvent::Invalidated { ours: true },
                    Err(why) => {
                        seen.broken = Some(why);
                        HolderEvent::QpFailed
                    }
                }
            }
            answer = &mut exchange, if seen.exchange.is_none() => {
                let event = HolderEvent::Answer(about_key(&answer));
                seen.exchange = Some(answer);
                let now = Instant::now();
                seen.answered = Some(now);
                patience.as_mut().reset(now + CONFIRMATION_MAX);
                event
            }
            event = &mut given_up => event,
            () = &mut patience, if seen.exchange.is_some() => HolderEvent::Deadline,
        };
        if let Some(action) = holder.on(event) {
            return action;
        }
    }
}

/// Does what the machine says until it gives the memory back. None of it can be given up.
async fn end<M: Target>(
    holder: &mut Holder,
    armed: &mut Armed<M>,
    mut action: HolderAction,
) -> Ending {
    loop {
        let event = match action {
            HolderAction::Release(ending) => return ending,
            HolderAction::Revoke => match armed.revoke().await {
                Ok(()) => HolderEvent::Revoked,
                Err(_) => HolderEvent::RevokeFailed,
            },
            HolderAction::DestroyQp => {
                armed.fence().await;
                HolderEvent::QpDestroyed
            }
            HolderAction::Bind | HolderAction::Send => unreachable!("a key is bound and sent once"),
        };
        action = holder.on(event).expect("what was wanted done is waited for");
    }
}

/// What an exchange says of the key.
fn about_key(exchange: &Result<Answer, ClientError>) -> KeyAnswer {
    match exchange {
        Ok(answer) => {
            let moved = Reply::of(answer.status(), answer.headers()).has_moved();
            KeyAnswer { moved, key: relinquished(answer.headers()) }
        }
        // Nobody was told of the key when no request left.
        Err(error) if !error.request_left() => KeyAnswer { moved: false, key: Relinquished::Quiet },
        Err(_) => KeyAnswer { moved: false, key: Relinquished::Unknown },
    }
}

/// Bytes that the node wrote, where it is certain that it did and will write no more.
fn arrived(ending: Ending, seen: &Seen, direction: Direction) -> usize {
    match &seen.exchange {
        Some(Ok(answer)) if ending == Ending::Done && direction == Direction::Write => {
            match Reply::of(answer.status(), answer.headers()) {
                Reply::Moved(moved) => usize::try_from(moved.bytes).unwrap_or(usize::MAX),
                _ => 0,
            }
        }
        _ => 0,
    }
}

fn outcome(ending: Ending, seen: Seen, direction: Direction) -> Outcome {
    let broken = |why| RdmaError::Link(why).into();
    let error = match (ending, seen.exchange) {
        (Ending::Done | Ending::NotMoved, Some(Ok(answer))) => return answered(answer),
        // What the node has read is stored, and its checksum tells whether it was ours.
        (Ending::Unconfirmed, Some(Ok(answer))) if direction == Direction::Read => {
            return answered(answer);
        }
        (Ending::NotMoved, Some(Err(error))) => error,
        (Ending::Cancelled, _) => ClientError::GivenUp,
        (Ending::TimedOut, _) => ClientError::Deadline,
        (Ending::Broken, _) => broken(seen.broken.unwrap_or(LinkError::Closed)),
        _ => RdmaError::Unconfirmed.into(),
    };
    Outcome::Failed(error)
}

fn answered(answer: Answer) -> Outcome {
    match Reply::of(answer.status(), answer.headers()) {
        Reply::Moved(moved) => Outcome::Moved(answer, moved),
        Reply::Malformed => Outcome::Failed(Malformed::new("a strange RDMA reply").into()),
        Reply::Declined(_) | Reply::Absent => Outcome::Answered(answer),
    }
}

/// A task's result. A panic goes on where it belongs; a task that ends without one ends with its
/// runtime, and so does whoever waits for it.
pub(super) async fn rejoin<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
    }
}
