//! Goal: no interleaving of client, gateway, node, network and adapters breaks a key rule.
//!
//! Method: the real [`Holder`] and [`Worker`] run inside a model of everything around them:
//! messages that are lost, doubled (a request, too, which then has two grants) and reordered; a node
//! whose work requests land late, even after it crashed; a client's process that dies, so that the
//! kernel destroys its queue pair and then frees its memory; adapters that kill keys and queue
//! pairs; a caller who gives up at any moment. A restarted client has another session, which
//! nothing of the old one is connected to: all that could meet is the memory, so what arrives in
//! freed memory counts as a late byte. The checker visits every reachable state. Each deliberate flaw must be caught,
//! which shows that the properties can fail.

#![expect(clippy::print_stdout, reason = "the checker's report is the test's product")]

#[path = "key_model/world.rs"]
mod world;

use std::time::Duration;

use keyway_proto::key::{
    Direction, Ending, Holder, HolderEvent, Relinquished, RevokeRace, Revoker, WorkerEvent,
};
use stateright::{Checker, Model, Property, UniformChooser};

use world::*;

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let race = if self.flaw == Flaw::RaceForbidden { RevokeRace::Harmless } else { self.race };
        let revoker = match self.flaw {
            Flaw::PieceTakenBack => Revoker::Client,
            _ => self.revoker,
        };
        vec![State {
            holder: Holder::new(revoker, race),
            client_died: false,
            caller_gave_up: false,
            own: None,
            key: Key::Unborn,
            client_qp: Qp::Ready,
            buffer_released: false,
            ending: None,
            invalidations_seen: 0,
            client_qp_error_seen: false,
            wire: Vec::new(),
            gateway_waits: [false; GRANTS],
            grants_sealed: 0,
            node_epoch: 0,
            node_qp: Qp::Ready,
            seen: [false; GRANTS],
            executed: [0; GRANTS],
            workers: [None, None],
            posted: Vec::new(),
            lost: 0,
            doubled: 0,
            crashes: 0,
            given_up: 0,
            touched_after_release: false,
            kernel_panicked: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let lives = !state.client_died && !state.holder.is_released();
        if state.own.is_none() && state.key == Key::Unborn && lives {
            steps.push(Step::Start);
        }
        for index in 0..state.wire.len() {
            steps.push(Step::Deliver(index));
            if state.lost < self.faults.lost {
                steps.push(Step::Lose(index));
            }
            // The key of a slab outlives its transfer: a request that runs twice reaches the slab a
            // second time, whoever has the piece by then, and the sum of that one's bytes tells.
            let may_double =
                self.revoker != Revoker::Nobody || state.wire[index] != Message::Request;
            if state.doubled < self.faults.doubled && may_double {
                steps.push(Step::Double(index));
            }
        }
        if state.own.is_some() {
            steps.push(Step::OwnCompletes);
        }
        if state.invalidations_seen > 0 && lives {
            steps.push(Step::SeeInvalidation);
        }
        if state.client_qp == Qp::Error && !state.client_qp_error_seen && lives {
            steps.push(Step::SeeClientQpError);
        }
        for grant in 0..GRANTS {
            if state.gateway_waits[grant] && state.given_up < self.faults.given_up {
                steps.push(Step::GatewayGivesUp(grant));
            }
            let Some(job) = &state.workers[grant] else { continue };
            if job.machine.is_finished() {
                continue;
            }
            if job.to_post > 0 && state.node_qp == Qp::Ready {
                steps.push(Step::Post(grant));
                if state.given_up < self.faults.given_up {
                    steps.push(Step::GiveUp(grant));
                }
            }
            if state.node_qp == Qp::Error {
                steps.push(Step::SeeNodeQpError(grant));
            }
            if state.node_qp == Qp::Gone {
                steps.push(Step::NodeQpDestroyed(grant));
            }
        }
        for index in 0..state.posted.len() {
            // An invalidation may overtake READs; nothing else leaves the order.
            let overtakes = self.direction == Direction::Read
                && state.posted[index].1 == Op::Invalidate
                && state.posted[..index].iter().all(|(_, op)| *op == Op::Move);
            if index == 0 || overtakes {
                steps.push(Step::Execute(index));
            }
        }
        if state.crashes < self.faults.crashes {
            steps.extend([Step::GatewayCrashes, Step::NodeCrashes]);
            if lives {
                steps.push(Step::ClientCrashes);
            }
        }
        // A caller's patience may end at any time; when nothing else can happen it does.
        let started = state.own.is_some() || state.key != Key::Unborn;
        if started && !state.caller_gave_up && lives {
            if self.faults.given_up > 0 || steps.is_empty() {
                steps.push(Step::Deadline);
            }
            if self.faults.given_up > 0 {
                steps.push(Step::Cancel);
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match step {
            Step::Start => self.holder_event(state, HolderEvent::Start),
            Step::Deliver(index) => {
                let message = state.wire.remove(index);
                self.deliver(state, message);
            }
            Step::Lose(index) => {
                state.wire.remove(index);
                state.lost += 1;
            }
            Step::Double(index) => {
                let message = state.wire[index];
                state.send(message);
                state.doubled += 1;
            }
            Step::OwnCompletes => self.own_completes(state),
            Step::Cancel | Step::Deadline => {
                state.caller_gave_up = true;
                let event =
                    if step == Step::Cancel { HolderEvent::Cancel } else { HolderEvent::Deadline };
                self.holder_event(state, event);
            }
            Step::SeeInvalidation => {
                state.invalidations_seen -= 1;
                self.holder_event(state, HolderEvent::Invalidated { ours: true });
            }
            Step::SeeClientQpError => {
                state.client_qp_error_seen = true;
                self.holder_event(state, HolderEvent::QpFailed);
            }
            Step::Post(grant) => {
                self.worker_event(state, grant, WorkerEvent::Start);
                let job = state.workers[grant].as_mut()?;
                job.to_post -= 1;
                job.in_flight += 1;
                state.posted.push((grant, Op::Move));
                self.tell_moved(state, grant);
            }
            Step::GiveUp(grant) => {
                state.given_up += 1;
                let in_flight = u32::from(state.workers[grant].as_ref()?.in_flight);
                self.worker_event(state, grant, WorkerEvent::GiveUp { in_flight });
            }
            Step::SeeNodeQpError(_) => {
                // The session's queue pair is shared by its transfers: all of them learn of it.
                for each in 0..GRANTS {
                    self.worker_event(state, each, WorkerEvent::QpFailed);
                }
                state.node_qp = Qp::Gone;
            }
            Step::NodeQpDestroyed(grant) => {
                self.worker_event(state, grant, WorkerEvent::QpFailed);
                self.worker_event(state, grant, WorkerEvent::QpDestroyed);
            }
            Step::Execute(index) => self.execute(state, index),
            Step::GatewayGivesUp(grant) => {
                state.given_up += 1;
                state.gateway_waits[grant] = false;
                state.send(Message::Answer { moved: false, key: Relinquished::Unknown });
            }
            Step::ClientCrashes => {
                state.crashes += 1;
                state.client_died = true;
                state.own = Some(Own::Reap);
                state.buffer_released |= self.flaw == Flaw::FreedAtDeath;
            }
            Step::GatewayCrashes => {
                state.crashes += 1;
                state.gateway_waits = [false; GRANTS];
            }
            Step::NodeCrashes => {
                // What is on the wire already still arrives.
                state.crashes += 1;
                state.node_epoch += 1;
                state.seen = [false; GRANTS];
                state.workers = [None, None];
                state.node_qp = Qp::Ready;
            }
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no byte moves after the buffer was released", |_, state: &State| {
                !state.touched_after_release
            }),
            Property::always("a released buffer's key is dead", |world: &World, state: &State| {
                let lives_on = world.revoker == Revoker::Nobody;
                !state.buffer_released || state.key != Key::Alive || lives_on
            }),
            Property::always(
                "no piece is used again while bytes may still arrive",
                |_, state: &State| !state.buffer_released || !state.may_still_arrive(),
            ),
            Property::always("no grant executes twice", |_, state: &State| {
                state.executed.iter().all(|times| *times <= 1)
            }),
            Property::always("no kernel panics", |_, state: &State| !state.kernel_panicked),
            Property::always("an undisturbed transfer succeeds", |world: &World, state: &State| {
                let calm = world.faults.lost + world.faults.doubled + world.faults.crashes == 0
                    && world.faults.given_up == 0;
                !calm || state.ending.is_none_or(|ending| ending == Ending::Done)
            }),
            Property::eventually("the buffer is released", |_, state: &State| {
                state.buffer_released
            }),
        ]
    }
}

fn worlds(faults: Faults) -> impl Iterator<Item = World> {
    let revokers = [Revoker::Node, Revoker::Client, Revoker::Nobody];
    revokers.into_iter().flat_map(move |revoker| {
        [Direction::Write, Direction::Read].into_iter().flat_map(move |direction| {
            [RevokeRace::Harmless, RevokeRace::Forbidden].into_iter().map(move |race| World {
                revoker,
                direction,
                race,
                faults,
                flaw: Flaw::None,
            })
        })
    })
}

fn check(world: World) -> usize {
    let name =
        format!("{:?} {:?} {:?} {:?}", world.revoker, world.direction, world.race, world.faults);
    let checker = world.checker().threads(2).spawn_bfs().join();
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{name}: '{property}' does not hold:\n{path}");
    }
    let states = checker.unique_state_count();
    println!("{name}: {states} states, all properties hold");
    states
}

#[test]
fn every_rule_holds_in_calm_worlds() {
    worlds(CALM).for_each(|world| assert!(check(world) > 5));
}

#[test]
fn every_rule_holds_when_everything_goes_wrong_once() {
    for mut world in worlds(ROUGH) {
        if world.revoker == Revoker::Nobody {
            // Its requests do not double, so that there is one grant: more of the rest goes wrong.
            world.faults = Faults { lost: 2, doubled: 2, crashes: 2, given_up: 2 };
        }
        assert!(check(world) > 10_000);
    }
}

/// Longer runs of bad luck than can be visited one by one.
#[test]
fn every_rule_holds_on_seeded_walks() {
    let faults = Faults { lost: 3, doubled: 3, crashes: 2, given_up: 3 };
    for (seed, world) in (0x6b65_7977_6179_u64..).zip(worlds(faults)) {
        let checker = world
            .checker()
            .timeout(Duration::from_millis(500))
            .spawn_simulation(seed, UniformChooser)
            .join();
        if let Some((property, path)) = checker.discoveries().into_iter().next() {
            panic!("seed {seed:#x}: '{property}' does not hold:\n{path}");
        }
        assert!(checker.state_count() > 1_000, "the walk went nowhere");
    }
}

#[test]
fn each_flaw_is_caught() {
    use Direction::{Read, Write};
    const REUSED: &str = "no piece is used again while bytes may still arrive";
    for (flaw, direction, faults, broken_rule) in [
        (Flaw::ReleaseOnDeadline, Write, ROUGH, "no byte moves after the buffer was released"),
        (Flaw::BelieveEarlyReceipt, Write, ROUGH, "a released buffer's key is dead"),
        (Flaw::NoReplayCache, Write, ROUGH, "no grant executes twice"),
        (Flaw::NoEpoch, Write, ROUGH, "no grant executes twice"),
        (Flaw::InvalidateBesideReads, Read, CALM, "an undisturbed transfer succeeds"),
        (Flaw::RaceForbidden, Write, ROUGH, "no kernel panics"),
        (Flaw::InvalidateUnused, Write, ROUGH, "no kernel panics"),
        (Flaw::SharedKey, Write, ROUGH, "no kernel panics"),
        (Flaw::SharedKey, Read, ROUGH, "no kernel panics"),
        (Flaw::FreedAtDeath, Write, ROUGH, "no byte moves after the buffer was released"),
        (Flaw::PieceTakenBack, Write, ROUGH, REUSED),
        (Flaw::PieceTakenBack, Read, ROUGH, REUSED),
    ] {
        let (revoker, race) = match flaw {
            Flaw::PieceTakenBack => (Revoker::Nobody, RevokeRace::Harmless),
            _ => (Revoker::Node, RevokeRace::Forbidden),
        };
        let world = World { revoker, direction, race, faults, flaw };
        let checker = world.checker().threads(2).spawn_bfs().join();
        assert!(
            checker.discovery(broken_rule).is_some(),
            "{flaw:?} went unnoticed by '{broken_rule}'"
        );
        println!("{flaw:?}: caught by '{broken_rule}'");
    }
}
