//! Virtual time, the network, and the rules.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

use fastrand::Rng;
use keyway_proto::key::{Answer, Ending, HolderEvent, RevokeRace, Revoker};

use super::adapter::{Own, Packet, Session};
use super::client::{Client, RAILS, Transfer};
use super::faults::{Flaw, Weather};
use super::service::{Gateway, Grant, Node};

/// Nanoseconds since the beginning.
pub(crate) type Time = u64;
pub(crate) const US: Time = 1_000;
pub(crate) const MS: Time = 1_000 * US;

const CLIENTS: usize = 3;
/// Transfers that each client's callers ask for while there are faults.
const WANTED: usize = 18;
/// So many of them at about the same time: more than there are windows.
const BURST: usize = 6;
/// When faults stop.
const CALM_AT: Time = 60 * MS;
/// Events within which everything has ended after that.
const EVENTS_MAX: u64 = 6_000;
/// Attempts of a client at its first success after that: one for each thing that it may have to
/// learn of (two sessions that are gone, a gateway's stale key), and the last.
const PROBES_MAX: u32 = 4;
/// Events that a failure tells.
const RECENT: usize = 40;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Wants { client: usize, probe: bool },
    GivesUp { transfer: usize, how: HolderEvent },
    NoRequestLeft { transfer: usize },
    AnswerOverdue { transfer: usize },
    DeathOverdue { transfer: usize },
    Revokes { transfer: usize },
    OwnDone { session: usize, own: Own },
    Polled { session: usize, key: u32 },
    ClientSeesError { session: usize },
    ClientQpGone { session: usize },

    Arrives { session: usize },
    Lands { session: usize },
    Reads { session: usize, packet: Packet },
    Completes { session: usize, packet: Packet },
    NodeSeesError { session: usize },
    NodeQpGone { session: usize },

    Delivered(Message),
    GatewayTiresOf { grant: usize },
    Posts { grant: usize },
    NodeTiresOf { grant: usize },
    Looks { session: usize },

    ClientDies { client: usize },
    KernelCleans { session: usize },
    ClientReturns { client: usize },
    GatewayDies,
    GatewayReturns,
    NodeDies,
    NodeReturns,
    FaultsStop,
}

/// What travels over the network beside RDMA. Who repeats a message is not answered: `copy`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    Request { transfer: usize, key: u32, copy: bool },
    Hangup { transfer: usize },
    Plan { grant: usize, copy: bool },
    Cancel { grant: usize },
    Receipt { grant: usize, said: Said },
    Answer { transfer: usize, said: Said },
}

/// What the node says of a transfer's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) answer: Answer,
    pub(crate) refused: Option<Refused>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    UnknownKey,
    Expired,
    NoSuchSession,
}

struct Due {
    at: Time,
    order: u64,
    event: Event,
}

pub(crate) struct World {
    pub(crate) now: Time,
    order: u64,
    due: BinaryHeap<Reverse<Due>>,
    recent: VecDeque<(Time, Event)>,
    broken: Option<&'static str>,
    pub(crate) random: Rng,
    pub(crate) weather: Weather,
    pub(crate) flaw: Flaw,
    /// Whether faults have stopped.
    pub(crate) is_calm: bool,

    pub(crate) clients: Vec<Client>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) grants: Vec<Grant>,
    pub(crate) gateway: Gateway,
    pub(crate) node: Node,
    pub(crate) windows_made: u32,
    pub(crate) run: Run,
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather, flaw: Flaw) -> Self {
        let mut random = Rng::with_seed(seed);
        let clients = (0..CLIENTS).map(|_| Client {
            is_alive: true,
            revoker: if random.bool() { Revoker::Node } else { Revoker::Client },
            race: if random.bool() { RevokeRace::Harmless } else { RevokeRace::Forbidden },
            rails: [None; RAILS],
            probes: 0,
            is_well: false,
        });
        let clients = clients.collect();
        let mut world = Self {
            now: 0,
            order: 0,
            due: BinaryHeap::new(),
            recent: VecDeque::with_capacity(RECENT),
            broken: None,
            random,
            weather,
            flaw,
            is_calm: false,
            clients,
            transfers: Vec::new(),
            sessions: Vec::new(),
            grants: Vec::new(),
            gateway: Gateway::default(),
            node: Node::default(),
            windows_made: 0,
            run: Run::default(),
        };
        for client in 0..CLIENTS {
            for _ in 0..WANTED / BURST {
                let at = world.random.u64(..CALM_AT * 3 / 4);
                for _ in 0..BURST {
                    let at = at + world.random.u64(..MS);
                    world.at(at, Event::Wants { client, probe: false });
                }
            }
        }
        world.plan_deaths(CALM_AT * 3 / 4);
        world.at(CALM_AT, Event::FaultsStop);
        world
    }

    /// Lets everything happen.
    pub(crate) fn run(mut self) -> Result<Run, Failure> {
        let mut after_calm = 0;
        while !self.has_settled() {
            let Some(Reverse(Due { at, event, .. })) = self.due.pop() else {
                return Err(self.failure("everything ends"));
            };
            debug_assert!(at >= self.now);
            self.now = at;
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back((at, event));
            self.handle(event);
            self.run.events += 1;
            let live = self.sessions.iter().flat_map(Session::live_keys);
            let usable = live.filter(|transfer| self.transfers[*transfer].is_released).count();
            self.rule(usable == 0, "no key is usable after its buffer was released");
            after_calm += u64::from(self.is_calm);
            self.rule(after_calm < EVENTS_MAX, "everything ends within a bound of events");
            if let Some(rule) = self.broken {
                return Err(self.failure(rule));
            }
        }
        self.run.transfers = self.transfers.len() as u64;
        self.run.sessions = self.sessions.len() as u64;
        self.run.grants = self.grants.len() as u64;
        Ok(self.run)
    }

    /// Whether all that was begun has ended, and everybody is well again.
    fn has_settled(&self) -> bool {
        self.is_calm
            && self.clients.iter().all(|client| client.is_well)
            && self.transfers.iter().all(|transfer| transfer.is_released)
            && self.sessions.iter().all(Session::has_settled)
            && self.node.jobs.is_empty()
            && self.gateway.pending.is_empty()
    }

    pub(crate) fn rule(&mut self, holds: bool, rule: &'static str) {
        if !holds {
            self.broken.get_or_insert(rule);
        }
    }

    fn failure(self, rule: &'static str) -> Failure {
        let open = self.transfers.iter().enumerate().filter(|(_, one)| !one.is_released);
        let mut under_way: Vec<String> = open.map(|(at, one)| format!("{at}: {one:?}")).collect();
        under_way.extend(self.node.jobs.iter().map(|(grant, job)| format!("{grant}: {job:?}")));
        let sessions = self.sessions.iter().enumerate().filter(|(_, one)| !one.has_settled());
        under_way.extend(sessions.map(|(at, one)| format!("{at}: {one:?}")));
        Failure { rule, weather: self.weather, recent: self.recent.into(), under_way }
    }

    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.due.push(Reverse(Due { at, order: self.order, event }));
    }

    pub(crate) fn after(&mut self, delay: Time, event: Event) {
        self.at(self.now + delay, event);
    }

    /// So long, and in bad weather now and then a thousand times that.
    pub(crate) fn delay(&mut self, about: Time) -> Time {
        let delay = self.random.u64(about / 2..about * 2);
        if self.happens(self.weather.late) { delay * self.random.u64(1..1_000) } else { delay }
    }

    pub(crate) fn send(&mut self, message: Message) {
        if self.happens(self.weather.lost) {
            return;
        }
        let delay = self.delay(40 * US);
        self.after(delay, Event::Delivered(message));
        if self.happens(self.weather.doubled) {
            let mut again = message;
            if let Message::Request { copy, .. } | Message::Plan { copy, .. } = &mut again {
                *copy = true;
            }
            let delay = self.random.u64(..5 * MS);
            self.after(delay, Event::Delivered(again));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wants { client, probe } => self.wants(client, probe),
            Event::GivesUp { transfer, how } => self.gives_up(transfer, how),
            Event::NoRequestLeft { transfer } => self.no_request_left(transfer),
            Event::AnswerOverdue { transfer } => self.answer_lost(transfer),
            Event::DeathOverdue { transfer } => self.gives_up(transfer, HolderEvent::Deadline),
            Event::Revokes { transfer } => self.post_revoke(transfer),
            Event::OwnDone { session, own } => self.own_done(session, own),
            Event::Polled { session, key } => self.polled(session, key),
            Event::ClientSeesError { session } => self.client_sees_error(session),
            Event::ClientQpGone { session } => self.client_qp_gone(session),
            Event::Arrives { session } => self.arrives(session),
            Event::Lands { session } => self.lands(session),
            Event::Reads { session, packet } => self.reads(session, packet),
            Event::Completes { session, packet } => self.completes(session, packet),
            Event::NodeSeesError { session } => self.node_sees_error(session),
            Event::NodeQpGone { session } => self.node_qp_gone(session),
            Event::Delivered(message) => self.delivered(message),
            Event::GatewayTiresOf { grant } => self.gateway_tires_of(grant),
            Event::Posts { grant } => self.posts(grant),
            Event::NodeTiresOf { grant } => self.node_gives_up(grant),
            Event::Looks { session } => self.looks(session),
            Event::ClientDies { client } => self.client_dies(client),
            Event::KernelCleans { session } => self.kernel_cleans(session),
            Event::ClientReturns { client } => self.clients[client].is_alive = true,
            Event::GatewayDies => self.gateway_dies(),
            Event::GatewayReturns => self.gateway.is_down = false,
            Event::NodeDies => self.node_dies(),
            Event::NodeReturns => self.node.is_down = false,
            Event::FaultsStop => {
                self.is_calm = true;
                for client in 0..CLIENTS {
                    self.after(client as Time, Event::Wants { client, probe: true });
                }
            }
        }
    }

    /// A transfer ended for its caller.
    pub(crate) fn ended(&mut self, transfer: usize, ending: Ending) {
        let Transfer { client, is_probe, .. } = self.transfers[transfer];
        let is_done = ending == Ending::Done;
        self.run.done += u64::from(is_done);
        self.run.fenced += u64::from(matches!(ending, Ending::Broken | Ending::Unconfirmed));
        self.rule(is_done || !self.weather.is_calm(), "an undisturbed transfer succeeds");
        if is_probe && is_done {
            self.clients[client].is_well = true;
        } else if is_probe {
            self.clients[client].probes += 1;
            let patient = self.clients[client].probes < PROBES_MAX;
            self.rule(patient, "every client succeeds again when faults have stopped");
            self.after(MS, Event::Wants { client, probe: true });
        }
    }
}

/// What happened in runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) events: u64,
    pub(crate) transfers: u64,
    pub(crate) done: u64,
    pub(crate) fenced: u64,
    pub(crate) sessions: u64,
    pub(crate) grants: u64,
    pub(crate) refused: u64,
    pub(crate) dead_keys_used: u64,
    pub(crate) worn_windows: u64,
}

impl Run {
    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.transfers += other.transfers;
        self.done += other.done;
        self.fenced += other.fenced;
        self.sessions += other.sessions;
        self.grants += other.grants;
        self.refused += other.refused;
        self.dead_keys_used += other.dead_keys_used;
        self.worn_windows += other.worn_windows;
    }

    /// Whether everything that this is about occurred.
    pub(crate) fn is_eventful(&self) -> bool {
        let rare = self.fenced.min(self.refused).min(self.dead_keys_used).min(self.worn_windows);
        rare > 0 && self.done * 3 > self.transfers && self.done < self.transfers
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, transfers, done, fenced, sessions, grants, .. } = self;
        write!(
            f,
            "{events} events, {transfers} transfers ({done} done, {fenced} ended with their queue \
             pair), {sessions} sessions, {grants} grants ({} refused), {} uses of dead keys, \
             {} windows worn",
            self.refused, self.dead_keys_used, self.worn_windows
        )
    }
}

/// A rule that did not hold.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) rule: &'static str,
    weather: Weather,
    recent: Vec<(Time, Event)>,
    /// What had not ended.
    under_way: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "'{}' does not hold, in {:?}, after", self.rule, self.weather)?;
        self.recent.iter().try_for_each(|(at, event)| {
            writeln!(f, "{:>6}.{:03} us  {event:?}", at / US, at % US)
        })?;
        self.under_way.iter().try_for_each(|what| writeln!(f, "under way: {what}"))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}
