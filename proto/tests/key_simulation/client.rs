//! Clients: callers who want transfers, and the driver around [`Holder`].

use keyway_proto::key::{
    Answer, Direction, Ending, Holder, HolderAction, HolderEvent, Relinquished, RevokeRace, Revoker,
};

use super::adapter::{Qp, Session};
use super::faults::Flaw;
use super::service::MOVES;
use super::world::{Event, MS, Message, Said, Time, US, World};

/// Sessions that a client has at once.
pub(crate) const RAILS: usize = 2;
/// How long a client waits for an answer: longer than the gateway waits for the node.
const ANSWER_TIMEOUT: Time = 14 * MS;
/// How long the key's death may take to show after an answer that tells of it.
const CONFIRMATION_MAX: Time = 2 * MS;
/// How soon a caller who found no window comes again.
const RETRY: Time = 100 * US;
const PATIENCE_MAX: Time = 6 * MS;

pub(crate) struct Client {
    pub(crate) is_alive: bool,
    pub(crate) revoker: Revoker,
    pub(crate) race: RevokeRace,
    pub(crate) rails: [Option<usize>; RAILS],
    /// Transfers that failed after faults had stopped.
    pub(crate) probes: u32,
    /// Whether one succeeded.
    pub(crate) is_well: bool,
}

#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) client: usize,
    pub(crate) session: usize,
    pub(crate) direction: Direction,
    pub(crate) is_probe: bool,
    /// `None` when the process is gone.
    holder: Option<Holder>,
    /// The window, and its key once that is bound.
    pub(crate) slot: usize,
    pub(crate) key: Option<u32>,
    /// Whether the memory may hold something else by now.
    pub(crate) is_released: bool,
    /// Moves of bytes into the buffer or out of it.
    pub(crate) moved: u32,
    was_answered: bool,
}

impl World {
    pub(crate) fn wants(&mut self, client: usize, probe: bool) {
        let rail = self.random.usize(..RAILS);
        let Some(session) = self.session_of(client, rail) else {
            return self.after(RETRY, Event::Wants { client, probe });
        };
        let direction = if self.random.bool() { Direction::Write } else { Direction::Read };
        let Client { revoker, race, .. } = self.clients[client];
        let transfer = self.transfers.len();
        self.transfers.push(Transfer {
            client,
            session,
            direction,
            is_probe: probe,
            holder: Some(Holder::new(revoker, race)),
            slot: 0,
            key: None,
            is_released: false,
            moved: 0,
            was_answered: false,
        });
        self.tell(transfer, HolderEvent::Start);
        if self.happens(self.weather.given_up) {
            let how = [HolderEvent::Cancel, HolderEvent::Deadline][self.random.usize(..2)];
            // Short patience is the likelier, and meets more.
            let patience = self.random.u64(..PATIENCE_MAX) >> self.random.u8(..7);
            self.after(patience, Event::GivesUp { transfer, how });
        }
    }

    /// A session with a free window; a new one where there is none that could be used.
    fn session_of(&mut self, client: usize, rail: usize) -> Option<usize> {
        if !self.clients[client].is_alive {
            return None;
        }
        let open = self.clients[client].rails[rail];
        if let Some(session) = open.filter(|session| self.sessions[*session].is_usable()) {
            return (!self.sessions[session].free.is_empty()).then_some(session);
        }
        if self.node.is_down || self.gateway.is_down {
            return None;
        }
        let session = self.sessions.len();
        // Some windows are near the end of their tags.
        let binds = if self.random.u8(..4) == 0 { 252 } else { 0 };
        let opened = Session::new(client, self.windows_made, self.random.u8(..), binds);
        self.windows_made += opened.windows.len() as u32;
        self.sessions.push(opened);
        self.clients[client].rails[rail] = Some(session);
        self.after(5 * MS, Event::Looks { session });
        Some(session)
    }

    /// Tells the machine, and does what it says.
    pub(crate) fn tell(&mut self, transfer: usize, event: HolderEvent) {
        let one = &mut self.transfers[transfer];
        let session = one.session;
        let Some(holder) = one.holder.as_mut().filter(|holder| !holder.is_released()) else {
            return;
        };
        if self.flaw == Flaw::ReleaseOnAnswer && matches!(event, HolderEvent::Answer(_)) {
            one.is_released = true;
        }
        match holder.on(event) {
            Some(HolderAction::Bind) => self.post_bind(transfer),
            Some(HolderAction::Send) => self.send_request(transfer),
            Some(HolderAction::Revoke) => {
                self.hang_up(transfer);
                // The port's thread, which knows the windows, is another.
                let delay = self.delay(10 * US);
                self.after(delay, Event::Revokes { transfer });
            }
            Some(HolderAction::DestroyQp) => {
                self.hang_up(transfer);
                let is_gone = self.sessions[session].client_qp == Qp::Gone;
                self.fence(session);
                if is_gone || self.flaw == Flaw::ErrorForDestruction {
                    self.tell(transfer, HolderEvent::QpDestroyed);
                }
            }
            Some(HolderAction::Release(ending)) => {
                self.hang_up(transfer);
                self.release(transfer, ending);
            }
            None => {}
        }
    }

    fn release(&mut self, transfer: usize, ending: Ending) {
        let one = &mut self.transfers[transfer];
        one.is_released = true;
        let is_whole = one.moved >= MOVES;
        self.rule(is_whole || ending != Ending::Done, "what is done has moved every byte");
        self.ended(transfer, ending);
    }

    fn send_request(&mut self, transfer: usize) {
        if self.gateway.is_down {
            let delay = self.delay(40 * US);
            return self.after(delay, Event::NoRequestLeft { transfer });
        }
        let key = self.transfers[transfer].key.expect("a bound window has a key");
        self.send(Message::Request { transfer, key, copy: false });
        self.after(ANSWER_TIMEOUT, Event::AnswerOverdue { transfer });
    }

    pub(crate) fn no_request_left(&mut self, transfer: usize) {
        self.transfers[transfer].was_answered = true;
        let answer = Answer { moved: false, key: Relinquished::Quiet };
        self.tell(transfer, HolderEvent::Answer(answer));
    }

    /// The connection broke, or it took too long.
    pub(crate) fn answer_lost(&mut self, transfer: usize) {
        let answer = Answer { moved: false, key: Relinquished::Unknown };
        self.answered(transfer, Said { answer, refused: None });
    }

    pub(crate) fn answered(&mut self, transfer: usize, said: Said) {
        if std::mem::replace(&mut self.transfers[transfer].was_answered, true) {
            return;
        }
        if said.refused == Some(super::world::Refused::NoSuchSession) {
            let session = self.transfers[transfer].session;
            self.sessions[session].is_forgotten = true;
        }
        self.after(CONFIRMATION_MAX, Event::DeathOverdue { transfer });
        self.tell(transfer, HolderEvent::Answer(said.answer));
    }

    pub(crate) fn gives_up(&mut self, transfer: usize, how: HolderEvent) {
        self.tell(transfer, how);
    }

    /// Whoever waits no more closes the connection.
    fn hang_up(&mut self, transfer: usize) {
        let one = &mut self.transfers[transfer];
        if one.key.is_some() && !std::mem::replace(&mut one.was_answered, true) {
            self.send(Message::Hangup { transfer });
        }
    }

    pub(crate) fn client_dies(&mut self, client: usize) {
        self.clients[client].is_alive = false;
        self.clients[client].rails = [None; RAILS];
        for transfer in self.transfers.iter_mut().filter(|one| one.client == client) {
            transfer.holder = None;
            // Memory that no queue pair reaches is the kernel's at once.
            transfer.is_released |= self.sessions[transfer.session].client_qp == Qp::Gone;
        }
        for session in 0..self.sessions.len() {
            let open = &self.sessions[session];
            if open.client == client && open.client_qp != Qp::Gone {
                let delay = self.random.u64(10 * US..3 * MS);
                self.after(delay, Event::KernelCleans { session });
            }
        }
    }
}
