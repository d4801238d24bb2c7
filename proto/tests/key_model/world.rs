//! The world of one transaction: both ends, what lies between them, and what may go wrong.

use keyway_proto::key::{
    Answer, Direction, Ending, Holder, HolderAction, HolderEvent, Relinquished, RevokeRace,
    Revoker, Worker, WorkerAction, WorkerEvent,
};

/// Grants that a replayed request can bring forth.
pub(super) const GRANTS: usize = 2;
/// Work requests that move the bytes of one transfer.
pub(super) const MOVES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// The client gives its buffer back when its patience ends.
    ReleaseOnDeadline,
    /// The node answers when the invalidation is posted, and the client believes it.
    BelieveEarlyReceipt,
    /// The node keeps no record of the grants it executed.
    NoReplayCache,
    /// A restarted node accepts grants of its former life.
    NoEpoch,
    /// A PUT's invalidation is posted beside its READs.
    InvalidateBesideReads,
    /// The client invalidates on an adapter that does not survive the race.
    RaceForbidden,
    /// A piece of a slab is taken back when patience ends, as if a key died of that.
    PieceTakenBack,
    /// The node invalidates a key that it has posted nothing under.
    InvalidateUnused,
    /// The node lets two transfers at one key at once.
    SharedKey,
    /// A dead client's memory is freed before its queue pair is gone.
    FreedAtDeath,
}

/// How much goes wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) lost: u8,
    pub(super) doubled: u8,
    pub(super) crashes: u8,
    pub(super) given_up: u8,
}

pub(super) const CALM: Faults = Faults { lost: 0, doubled: 0, crashes: 0, given_up: 0 };
pub(super) const ROUGH: Faults = Faults { lost: 1, doubled: 1, crashes: 1, given_up: 1 };

pub(super) struct World {
    pub(super) revoker: Revoker,
    pub(super) direction: Direction,
    pub(super) race: RevokeRace,
    pub(super) faults: Faults,
    pub(super) flaw: Flaw,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) holder: Holder,
    /// The process died. The kernel ends what it had; nobody hears an answer.
    pub(super) client_died: bool,
    pub(super) caller_gave_up: bool,
    pub(super) own: Option<Own>,
    pub(super) key: Key,
    pub(super) client_qp: Qp,
    pub(super) buffer_released: bool,
    pub(super) ending: Option<Ending>,
    /// Receive completions that name the key, not polled yet.
    pub(super) invalidations_seen: u8,
    pub(super) client_qp_error_seen: bool,

    pub(super) wire: Vec<Message>,
    pub(super) gateway_waits: [bool; GRANTS],
    pub(super) grants_sealed: u8,

    pub(super) node_epoch: u8,
    pub(super) node_qp: Qp,
    pub(super) seen: [bool; GRANTS],
    pub(super) executed: [u8; GRANTS],
    pub(super) workers: [Option<Job>; GRANTS],
    /// The session's queue pair: requests on their way to the client's adapter, in order.
    pub(super) posted: Vec<(usize, Op)>,

    pub(super) lost: u8,
    pub(super) doubled: u8,
    pub(super) crashes: u8,
    pub(super) given_up: u8,

    pub(super) touched_after_release: bool,
    pub(super) kernel_panicked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Job {
    pub(super) machine: Worker,
    pub(super) to_post: u8,
    pub(super) in_flight: u8,
}

/// An operation of the client's own, posted and not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Own {
    Bind,
    Revoke,
    Destroy,
    /// The kernel's, of a process that died: the queue pair goes, and then the memory, which may be
    /// a restarted client's from there on.
    Reap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Unborn,
    Alive,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Qp {
    Ready,
    Error,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Move,
    Invalidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    Request,
    Plan { grant: usize, epoch: u8 },
    Receipt { grant: usize, moved: bool, key: Relinquished },
    Answer { moved: bool, key: Relinquished },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Start,
    Deliver(usize),
    Lose(usize),
    Double(usize),
    OwnCompletes,
    Cancel,
    Deadline,
    SeeInvalidation,
    SeeClientQpError,
    Post(usize),
    GiveUp(usize),
    SeeNodeQpError(usize),
    NodeQpDestroyed(usize),
    Execute(usize),
    GatewayGivesUp(usize),
    ClientCrashes,
    GatewayCrashes,
    NodeCrashes,
}

impl World {
    pub(super) fn holder_event(&self, state: &mut State, event: HolderEvent) {
        if state.client_died {
            return;
        }
        if self.flaw == Flaw::ReleaseOnDeadline && event == HolderEvent::Deadline {
            state.buffer_released = true;
        }
        if let (Flaw::BelieveEarlyReceipt, HolderEvent::Answer(Answer { moved: true, .. })) =
            (self.flaw, event)
        {
            state.buffer_released = true;
        }
        match state.holder.on(event) {
            Some(HolderAction::Bind) => state.own = Some(Own::Bind),
            Some(HolderAction::Send) => state.send(Message::Request),
            Some(HolderAction::Revoke) => state.own = Some(Own::Revoke),
            Some(HolderAction::DestroyQp) => state.own = Some(Own::Destroy),
            Some(HolderAction::Release(ending)) => {
                state.buffer_released = true;
                state.ending = Some(ending);
            }
            None => {}
        }
    }

    pub(super) fn worker_event(&self, state: &mut State, grant: usize, event: WorkerEvent) {
        let Some(job) = &mut state.workers[grant] else { return };
        match job.machine.on(event) {
            Some(WorkerAction::Drain) => job.to_post = 0,
            Some(WorkerAction::Invalidate) => {
                job.to_post = 0;
                if state.node_qp == Qp::Ready {
                    state.posted.push((grant, Op::Invalidate));
                }
                if self.flaw == Flaw::BelieveEarlyReceipt {
                    let key = Relinquished::Invalidated;
                    state.send(Message::Receipt { grant, moved: true, key });
                }
            }
            // The moves are in its job already.
            Some(WorkerAction::Move | WorkerAction::DestroyQp) => {}
            Some(WorkerAction::Finish { moved, key }) => {
                job.to_post = 0;
                state.send(Message::Receipt { grant, moved, key });
            }
            None => {}
        }
    }

    /// Whether the driver may call the bytes moved: all posted, and, where the machine's
    /// contract asks for it, all completed.
    pub(super) fn has_moved(&self, job: &Job) -> bool {
        let unordered =
            self.direction == Direction::Read && self.flaw != Flaw::InvalidateBesideReads;
        let must_complete = unordered || self.revoker != Revoker::Node;
        job.to_post == 0 && (!must_complete || job.in_flight == 0)
    }

    pub(super) fn deliver(&self, state: &mut State, message: Message) {
        match message {
            Message::Request => {
                let grant = usize::from(state.grants_sealed);
                if grant < GRANTS {
                    state.grants_sealed += 1;
                    state.gateway_waits[grant] = true;
                    // The session, and with it the node's epoch, was agreed on before.
                    state.send(Message::Plan { grant, epoch: 0 });
                }
            }
            Message::Plan { grant, epoch } => {
                let known_session = epoch == state.node_epoch || self.flaw == Flaw::NoEpoch;
                let fresh = !state.seen[grant] || self.flaw == Flaw::NoReplayCache;
                let works =
                    |job: &Option<Job>| job.as_ref().is_some_and(|it| !it.machine.is_finished());
                let is_lent = self.revoker == Revoker::Node
                    && self.flaw != Flaw::SharedKey
                    && state.workers.iter().any(works);
                if !known_session || !fresh || works(&state.workers[grant]) {
                    return;
                }
                state.seen[grant] = true;
                if is_lent {
                    let key = Relinquished::Unknown;
                    return state.send(Message::Receipt { grant, moved: false, key });
                }
                state.executed[grant] += 1;
                let machine = Worker::new(self.revoker, self.direction);
                state.workers[grant] = Some(Job { machine, to_post: MOVES, in_flight: 0 });
                if self.flaw == Flaw::InvalidateUnused {
                    self.worker_event(state, grant, WorkerEvent::Start);
                }
            }
            // Of a request that ran twice, whoever doubled it passes either answer on.
            Message::Receipt { grant, moved, key } => {
                if std::mem::take(&mut state.gateway_waits[grant]) {
                    state.send(Message::Answer { moved, key });
                }
            }
            Message::Answer { moved, key } => {
                self.holder_event(state, HolderEvent::Answer(Answer { moved, key }));
            }
        }
    }

    pub(super) fn own_completes(&self, state: &mut State) {
        let Some(own) = state.own.take() else { return };
        match own {
            Own::Bind if state.client_qp == Qp::Ready => {
                state.key = Key::Alive;
                self.holder_event(state, HolderEvent::Bound);
            }
            Own::Bind => self.holder_event(state, HolderEvent::BindFailed),
            // The adapter is not asked: the piece is taken back, and its key lives on.
            Own::Revoke if self.revoker == Revoker::Nobody => {
                self.holder_event(state, HolderEvent::Revoked);
            }
            Own::Revoke if state.client_qp == Qp::Ready && state.key == Key::Alive => {
                state.key = Key::Dead;
                self.holder_event(state, HolderEvent::Revoked);
            }
            Own::Revoke => {
                if state.client_qp == Qp::Ready {
                    state.kernel_panicked |= self.race == RevokeRace::Forbidden;
                    state.client_qp = Qp::Error;
                }
                self.holder_event(state, HolderEvent::RevokeFailed);
            }
            Own::Destroy => {
                state.client_qp = Qp::Gone;
                state.key = Key::Dead;
                self.holder_event(state, HolderEvent::QpDestroyed);
            }
            Own::Reap => {
                state.client_qp = Qp::Gone;
                state.key = Key::Dead;
                state.buffer_released = true;
            }
        }
    }

    /// The client's adapter executes a request that is on its way.
    pub(super) fn execute(&self, state: &mut State, index: usize) {
        let (grant, op) = state.posted.remove(index);
        if state.client_qp != Qp::Ready || state.key != Key::Alive {
            state.kernel_panicked |= op == Op::Invalidate
                && state.client_qp == Qp::Ready
                && self.race == RevokeRace::Forbidden;
            state.fail_both();
            return;
        }
        match op {
            Op::Move => {
                state.touched_after_release |= state.buffer_released;
                let Some(job) = &mut state.workers[grant] else { return };
                job.in_flight = job.in_flight.saturating_sub(1);
                if job.in_flight == 0 {
                    self.worker_event(state, grant, WorkerEvent::Drained);
                }
                self.tell_moved(state, grant);
            }
            Op::Invalidate => {
                state.key = Key::Dead;
                state.invalidations_seen += 1;
                self.worker_event(state, grant, WorkerEvent::InvalidateCompleted);
            }
        }
    }

    pub(super) fn tell_moved(&self, state: &mut State, grant: usize) {
        if state.workers[grant].as_ref().is_some_and(|job| self.has_moved(job)) {
            self.worker_event(state, grant, WorkerEvent::Moved);
        }
    }
}

impl State {
    /// Whether bytes of the transfer may still arrive in what was lent for it.
    pub(super) fn may_still_arrive(&self) -> bool {
        let works = |job: &Job| !job.machine.is_finished() && job.to_post > 0;
        let under_way = self.posted.iter().any(|(_, op)| *op == Op::Move)
            || self.node_qp == Qp::Ready && self.workers.iter().flatten().any(works);
        under_way && self.key == Key::Alive && self.client_qp == Qp::Ready
    }

    pub(super) fn send(&mut self, message: Message) {
        self.wire.push(message);
        self.wire.sort_unstable_by_key(|message| format!("{message:?}"));
    }

    /// An access error: both ends of the connection stop, and what was posted is flushed.
    pub(super) fn fail_both(&mut self) {
        if self.client_qp == Qp::Ready {
            self.client_qp = Qp::Error;
        }
        if self.node_qp == Qp::Ready {
            self.node_qp = Qp::Error;
        }
        self.posted.clear();
    }
}
