//! The client's end of a key: the buffer's guardian.

use super::{Relinquished, RevokeRace, Revoker};

/// The client's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    revoker: Revoker,
    race: RevokeRace,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Nothing was posted.
    Idle,
    /// The bind is posted; the token has not left.
    Binding { abandoned: Option<Ending> },
    /// The key lives; the request may be anywhere.
    Armed,
    /// The answer says that the node invalidated the key; the completion has not come yet.
    Answered(Ending),
    /// The completion that names the key came; the answer has not.
    Invalidated,
    /// Our own invalidation is posted.
    Revoking(Ending),
    /// The queue pair is being destroyed.
    Fencing(Ending),
    /// The buffer is its owner's again.
    Released,
}

/// What happened at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HolderEvent {
    /// The caller wants the transfer.
    Start,
    /// The bind (or the registration) completed.
    Bound,
    /// The bind completed in error.
    BindFailed,
    /// The gateway's answer arrived.
    Answer(Answer),
    /// A receive completion said that the peer invalidated a key of this queue pair.
    Invalidated {
        /// Whether it was this key.
        ours: bool,
    },
    /// Our own invalidation (or deregistration) completed.
    Revoked,
    /// Our own invalidation completed in error.
    RevokeFailed,
    /// The queue pair is in the error state.
    QpFailed,
    /// The queue pair is gone, and its windows with it.
    QpDestroyed,
    /// The caller gave up.
    Cancel,
    /// The time that the caller set has passed.
    Deadline,
}

/// The gateway's answer, as far as the key is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Whether the bytes moved.
    pub moved: bool,
    /// What the node knows of the key.
    pub key: Relinquished,
}

/// What the client's driver must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HolderAction {
    /// Post the bind and wait for its completion.
    Bind,
    /// Send the request with the token.
    Send,
    /// Post LOCAL_INV (or deregister) and wait for its completion. Of [`Revoker::Nobody`]: take the
    /// piece back.
    Revoke,
    /// Destroy the queue pair with its windows, and wait until it is gone.
    DestroyQp,
    /// Give the buffer back to its owner, with this outcome. The key is dead.
    Release(Ending),
}

/// How the transfer ended for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The bytes moved, and the key was seen to die.
    Done,
    /// The request was answered without moving bytes: declined or failed.
    NotMoved,
    /// The key's death could not be confirmed the ordinary way. The buffer's content is
    /// undefined.
    Unconfirmed,
    /// The caller gave up.
    Cancelled,
    /// The time passed.
    TimedOut,
    /// The queue pair failed.
    Broken,
}

impl Holder {
    /// A key that has not begun to live.
    pub const fn new(revoker: Revoker, race: RevokeRace) -> Self {
        Self { revoker, race, state: State::Idle }
    }

    /// Whether the buffer went back to its owner.
    pub fn is_released(&self) -> bool {
        self.state == State::Released
    }

    /// Takes an event in; says what to do, if anything. An event that cannot concern the key
    /// in its present state changes nothing.
    pub fn on(&mut self, event: HolderEvent) -> Option<HolderAction> {
        use HolderEvent as E;
        match (&self.state, event) {
            (State::Idle, E::Start) => {
                self.go(State::Binding { abandoned: None }, HolderAction::Bind)
            }
            (State::Idle, E::Cancel | E::Deadline) => self.release(ending_of(event)),

            // The bind is on its way to the adapter: nothing can be undone before it completes.
            (State::Binding { abandoned: None }, E::Cancel | E::Deadline) => {
                self.state = State::Binding { abandoned: Some(ending_of(event)) };
                None
            }
            (State::Binding { abandoned: None }, E::Bound) => {
                self.go(State::Armed, HolderAction::Send)
            }
            // The token never left, so no peer can race this revocation.
            (State::Binding { abandoned: Some(ending) }, E::Bound) => self.revoke(*ending),
            (State::Binding { .. }, E::BindFailed | E::QpFailed) => self.fence(Ending::Broken),

            (State::Armed, E::Invalidated { ours: true }) if self.revoker == Revoker::Node => {
                self.state = State::Invalidated;
                None
            }
            (State::Armed, E::Answer(answer)) => self.answered(answer),
            (State::Armed, E::Cancel | E::Deadline) => self.abandon(ending_of(event)),

            (State::Answered(ending), E::Invalidated { ours: true }) => self.release(*ending),
            // The node claims a completion that our adapter never showed.
            (State::Answered(_), E::Cancel | E::Deadline) => self.fence(Ending::Unconfirmed),

            (State::Invalidated, E::Answer(answer)) => self.release(ending_from(answer)),
            (State::Invalidated, E::Cancel | E::Deadline) => self.release(ending_of(event)),

            (State::Revoking(ending), E::Revoked) => self.release(*ending),
            (State::Revoking(ending), E::RevokeFailed | E::QpFailed) => self.fence(*ending),
            // The peer's invalidation crossed ours: ours will complete, one way or the other.
            (State::Revoking(_), E::Invalidated { ours: true }) => None,

            (State::Fencing(ending), E::QpDestroyed) => self.release(*ending),

            // A key we did not lend, or one that no peer may invalidate: the peer is broken.
            (
                State::Armed | State::Answered(_) | State::Invalidated | State::Revoking(_),
                E::Invalidated { .. },
            ) => self.fence(Ending::Unconfirmed),
            (State::Armed | State::Answered(_), E::QpFailed) => self.fence(Ending::Broken),
            _ => None,
        }
    }

    fn answered(&mut self, answer: Answer) -> Option<HolderAction> {
        let ending = ending_from(answer);
        match (answer.key, self.revoker) {
            (Relinquished::Invalidated, Revoker::Node) => {
                self.state = State::Answered(ending);
                None
            }
            // The request may have run twice on its way, and the other run's node be about to
            // invalidate.
            (Relinquished::Quiet, Revoker::Node) if self.race == RevokeRace::Forbidden => {
                self.fence(ending)
            }
            // This run's node will not touch the key. Another's would lose the race.
            (Relinquished::Quiet, _) => self.revoke(ending),
            // A node that invalidates a key it must not, that lost its queue pair, or whose
            // fate nobody knows: take the whole connection down.
            (Relinquished::Invalidated | Relinquished::Fenced | Relinquished::Unknown, _) => {
                self.fence(if answer.moved { Ending::Unconfirmed } else { ending })
            }
        }
    }

    /// Gives up while the node may be at work under the key.
    fn abandon(&mut self, ending: Ending) -> Option<HolderAction> {
        match (self.revoker, self.race) {
            // There is no key that would die of it, and the piece is the next transfer's.
            (Revoker::Nobody, _) | (_, RevokeRace::Forbidden) => self.fence(ending),
            (_, RevokeRace::Harmless) => self.revoke(ending),
        }
    }

    fn revoke(&mut self, ending: Ending) -> Option<HolderAction> {
        self.go(State::Revoking(ending), HolderAction::Revoke)
    }

    fn fence(&mut self, ending: Ending) -> Option<HolderAction> {
        self.go(State::Fencing(ending), HolderAction::DestroyQp)
    }

    fn release(&mut self, ending: Ending) -> Option<HolderAction> {
        self.go(State::Released, HolderAction::Release(ending))
    }

    #[expect(clippy::unnecessary_wraps, reason = "reads as the answer of `on`")]
    fn go(&mut self, state: State, action: HolderAction) -> Option<HolderAction> {
        self.state = state;
        Some(action)
    }
}

fn ending_of(event: HolderEvent) -> Ending {
    if event == HolderEvent::Cancel { Ending::Cancelled } else { Ending::TimedOut }
}

fn ending_from(answer: Answer) -> Ending {
    if answer.moved { Ending::Done } else { Ending::NotMoved }
}
