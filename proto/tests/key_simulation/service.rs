//! The gateway and the node: grants, and the driver around [`Worker`].

use std::collections::BTreeMap;

use keyway_proto::key::{
    Answer, Direction, Relinquished, Revoker, Worker, WorkerAction, WorkerEvent,
};

use super::adapter::{Op, Packet, Qp};
use super::faults::Flaw;
use super::world::{Event, MS, Message, Refused, Said, Time, US, World};

/// Requests that move a transfer's bytes.
pub(crate) const MOVES: u32 = 4;
const GRANT_LIFETIME: Time = 6 * MS;
const NODE_TIMEOUT: Time = 9 * MS;
/// Longer than the node's.
const GATEWAY_TIMEOUT: Time = 12 * MS;
/// How often a node sees whether its clients live.
const LOOK: Time = 5 * MS;

#[derive(Default)]
pub(crate) struct Gateway {
    pub(crate) is_down: bool,
    /// The life of the node whose key it seals with.
    life: u32,
    /// Grants whose receipts it waits for.
    pub(crate) pending: BTreeMap<usize, usize>,
}

pub(crate) struct Grant {
    pub(crate) transfer: usize,
    session: usize,
    key: u32,
    life: u32,
    expires: Time,
    executed: u32,
    /// Whether somebody repeated the request, whom nobody answers.
    is_copy: bool,
}

#[derive(Default)]
pub(crate) struct Node {
    pub(crate) is_down: bool,
    life: u32,
    /// Grants seen, until they expire.
    seen: BTreeMap<usize, Time>,
    pub(crate) jobs: BTreeMap<usize, Job>,
}

#[derive(Debug)]
pub(crate) struct Job {
    worker: Worker,
    session: usize,
    key: u32,
    direction: Direction,
    revoker: Revoker,
    to_post: u32,
    in_flight: u32,
    is_answered: bool,
}

impl Job {
    /// Whether the driver may call the bytes moved.
    fn has_moved(&self) -> bool {
        let all_complete = self.direction == Direction::Read || self.revoker == Revoker::Client;
        self.to_post == 0 && (!all_complete || self.in_flight == 0)
    }
}

impl World {
    pub(crate) fn delivered(&mut self, message: Message) {
        match message {
            Message::Request { .. } | Message::Hangup { .. } | Message::Receipt { .. }
                if self.gateway.is_down => {}
            Message::Plan { .. } | Message::Cancel { .. } if self.node.is_down => {}
            Message::Request { transfer, key, copy } => self.requested(transfer, key, copy),
            Message::Plan { grant, copy } => self.planned(grant, copy),
            Message::Cancel { grant } => self.node_gives_up(grant),
            Message::Hangup { transfer } => {
                let grants: Vec<usize> = self
                    .gateway
                    .pending
                    .iter()
                    .filter(|(_, waiting)| **waiting == transfer)
                    .map(|(grant, _)| *grant)
                    .collect();
                for grant in grants {
                    self.gateway.pending.remove(&grant);
                    self.send(Message::Cancel { grant });
                }
            }
            Message::Receipt { grant, said } => {
                if said.refused == Some(Refused::UnknownKey) {
                    self.gateway.life = self.node.life;
                }
                if let Some(transfer) = self.gateway.pending.remove(&grant) {
                    self.send(Message::Answer { transfer, said });
                }
            }
            Message::Answer { transfer, said } => self.answered(transfer, said),
        }
    }

    fn requested(&mut self, transfer: usize, key: u32, is_copy: bool) {
        let grant = self.grants.len();
        let session = self.transfers[transfer].session;
        let (life, expires) = (self.gateway.life, self.now + GRANT_LIFETIME);
        self.grants.push(Grant { transfer, session, key, life, expires, executed: 0, is_copy });
        if !is_copy {
            self.gateway.pending.insert(grant, transfer);
            self.after(GATEWAY_TIMEOUT, Event::GatewayTiresOf { grant });
        }
        self.send(Message::Plan { grant, copy: is_copy });
    }

    pub(crate) fn gateway_tires_of(&mut self, grant: usize) {
        if let Some(transfer) = self.gateway.pending.remove(&grant) {
            self.send(Message::Cancel { grant });
            let answer = Answer { moved: false, key: Relinquished::Unknown };
            self.send(Message::Answer { transfer, said: Said { answer, refused: None } });
        }
    }

    pub(crate) fn gateway_dies(&mut self) {
        self.gateway.is_down = true;
        for (grant, transfer) in std::mem::take(&mut self.gateway.pending) {
            // Broken connections are noticed, now and then after a while.
            let delay = self.delay(50 * US);
            self.after(delay, Event::AnswerOverdue { transfer });
            self.send(Message::Cancel { grant });
        }
    }

    pub(crate) fn node_dies(&mut self) {
        self.node = Node { is_down: true, life: self.node.life + 1, ..Node::default() };
        // What is on the wire still arrives.
        for session in &mut self.sessions {
            session.node_qp = Qp::Gone;
        }
    }

    /// Checks a grant, and executes its plan.
    fn planned(&mut self, grant: usize, copy: bool) {
        let now = self.now;
        self.node.seen.retain(|_, expires| *expires > now);
        let Grant { transfer, session, key, life, expires, is_copy, .. } = self.grants[grant];
        // The flawed node finds the clients' queue pairs again, too.
        let forgets = self.flaw != Flaw::GrantsOutliveRestart;
        let is_open = self.sessions[session].node_qp == Qp::Ready || !forgets;
        let refused = if life != self.node.life && forgets {
            Some(Refused::UnknownKey)
        } else if expires <= now {
            Some(Refused::Expired)
        // From here on the grant is used up, whatever comes.
        } else if self.node.seen.insert(grant, expires).is_some() {
            // Whoever repeats it learns that; the transfer goes on.
            self.run.refused += 1;
            return;
        } else {
            (!is_open).then_some(Refused::NoSuchSession)
        };
        let is_answered = !(copy || is_copy);
        if refused.is_some() {
            self.run.refused += 1;
            if is_answered {
                let answer = Answer { moved: false, key: Relinquished::Quiet };
                self.send(Message::Receipt { grant, said: Said { answer, refused } });
            }
            return;
        }
        self.grants[grant].executed += 1;
        self.rule(self.grants[grant].executed == 1, "no grant executes twice");
        let (direction, client) =
            (self.transfers[transfer].direction, self.sessions[session].client);
        let revoker = self.clients[client].revoker;
        let worker = Worker::new(revoker, direction);
        let (to_post, in_flight) = (0, 0);
        let job = Job { worker, session, key, direction, revoker, to_post, in_flight, is_answered };
        self.node.jobs.insert(grant, job);
        self.tell_worker(grant, WorkerEvent::Start);
        self.after(NODE_TIMEOUT, Event::NodeTiresOf { grant });
    }

    fn tell_worker(&mut self, grant: usize, event: WorkerEvent) {
        let Some(job) = self.node.jobs.get_mut(&grant) else { return };
        let (session, key, is_answered) = (job.session, job.key, job.is_answered);
        match job.worker.on(event) {
            Some(WorkerAction::Move) => {
                job.to_post = MOVES;
                let delay = self.delay(20 * US);
                self.after(delay, Event::Posts { grant });
            }
            Some(WorkerAction::Drain) => job.to_post = 0,
            Some(WorkerAction::Invalidate) => {
                job.to_post = 0;
                self.post(session, Packet { op: Op::Invalidate, grant, key });
            }
            Some(WorkerAction::DestroyQp) => self.destroy_node_qp(session),
            Some(WorkerAction::Finish { moved, key }) => {
                self.node.jobs.remove(&grant);
                if is_answered {
                    let said = Said { answer: Answer { moved, key }, refused: None };
                    self.send(Message::Receipt { grant, said });
                }
            }
            None => {}
        }
    }

    /// The disk has the next bytes, or room for them.
    pub(crate) fn posts(&mut self, grant: usize) {
        let Some(job) = self.node.jobs.get(&grant).filter(|job| job.to_post > 0) else { return };
        let (session, key) = (job.session, job.key);
        let op = if job.direction == Direction::Write { Op::Write } else { Op::Read };
        if self.happens(self.weather.disk) {
            return self.node_gives_up(grant);
        }
        let job = self.node.jobs.get_mut(&grant).expect("it was there");
        job.to_post -= 1;
        job.in_flight += 1;
        let (is_last, has_moved) = (job.to_post == 0, job.has_moved());
        self.post(session, Packet { op, grant, key });
        if has_moved {
            self.tell_worker(grant, WorkerEvent::Moved);
        } else if !is_last {
            let delay = self.delay(20 * US);
            self.after(delay, Event::Posts { grant });
        }
    }

    /// A request of the node's completed.
    pub(crate) fn completes(&mut self, session: usize, packet: Packet) {
        let Packet { op, grant, .. } = packet;
        if self.sessions[session].node_qp != Qp::Ready {
            return;
        }
        if op == Op::Invalidate {
            return self.tell_worker(grant, WorkerEvent::InvalidateCompleted);
        }
        let Some(job) = self.node.jobs.get_mut(&grant) else { return };
        job.in_flight -= 1;
        let (is_drained, has_moved) = (job.in_flight == 0, job.has_moved());
        if is_drained {
            self.tell_worker(grant, WorkerEvent::Drained);
        }
        if has_moved {
            self.tell_worker(grant, WorkerEvent::Moved);
        }
    }

    pub(crate) fn node_gives_up(&mut self, grant: usize) {
        let Some(job) = self.node.jobs.get(&grant) else { return };
        let in_flight = job.in_flight;
        self.tell_worker(grant, WorkerEvent::GiveUp { in_flight });
    }

    pub(crate) fn node_sees_error(&mut self, session: usize) {
        if self.sessions[session].node_qp == Qp::Ready {
            self.sessions[session].node_qp = Qp::Error;
            self.each_job(session, WorkerEvent::QpFailed);
            self.destroy_node_qp(session);
        }
    }

    fn destroy_node_qp(&mut self, session: usize) {
        if self.sessions[session].node_qp != Qp::Gone {
            self.sessions[session].node_qp = Qp::Error;
            let delay = self.random.u64(10 * US..100 * US);
            self.after(delay, Event::NodeQpGone { session });
        }
    }

    pub(crate) fn node_qp_gone(&mut self, session: usize) {
        self.sessions[session].node_qp = Qp::Gone;
        self.each_job(session, WorkerEvent::QpFailed);
        self.each_job(session, WorkerEvent::QpDestroyed);
    }

    fn each_job(&mut self, session: usize, event: WorkerEvent) {
        let jobs = self.node.jobs.iter().filter(|(_, job)| job.session == session);
        for grant in jobs.map(|(grant, _)| *grant).collect::<Vec<_>>() {
            self.tell_worker(grant, event);
        }
    }

    /// A heartbeat in a session: a client that is gone does not answer.
    pub(crate) fn looks(&mut self, session: usize) {
        let open = &self.sessions[session];
        if open.node_qp == Qp::Gone {
            return;
        }
        if open.client_qp != Qp::Ready {
            self.node_sees_error(session);
        }
        self.after(LOOK, Event::Looks { session });
    }
}
