//! The client's adapter, the wire to it, and the node's end of the queue pairs.

use std::collections::VecDeque;

use keyway_proto::key::HolderEvent;

use super::client::Transfer;
use super::faults::Flaw;
use super::world::{Event, Time, US, World};

/// Windows of a session.
const WINDOWS: usize = 2;
/// Binds of a window before another takes its place: its tags, but one.
const BINDS_MAX: u32 = 255;
/// How long the node's adapter repeats what nobody acknowledges.
const RETRIES: Time = 2_000 * US;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Qp {
    Ready,
    Error,
    Gone,
}

/// A request of the client's own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Own {
    Bind { transfer: usize },
    Revoke { transfer: usize },
}

/// A request of the node's, on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) op: Op,
    pub(crate) grant: usize,
    pub(crate) key: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write,
    Read,
    Invalidate,
}

/// Two queue pairs, connected.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: usize,
    pub(crate) client_qp: Qp,
    pub(crate) node_qp: Qp,
    /// Whether the client opens another for what comes.
    pub(crate) is_forgotten: bool,
    pub(crate) windows: Vec<Window>,
    pub(crate) free: VecDeque<usize>,
    /// Packets on the wire with their times of arrival, in order.
    wire: VecDeque<(Time, Packet)>,
    is_pumping: bool,
    /// A WRITE whose key was found good, and the transfer whose buffer it goes to.
    landing: Option<(Packet, usize)>,
    last_arrival: Time,
    last_completion: Time,
    last_own: Time,
    is_being_destroyed: bool,
}

#[derive(Debug)]
pub(crate) struct Window {
    index: u32,
    tag: u8,
    binds: u32,
    /// The transfer whose buffer the adapter opens under this key.
    opens: Option<usize>,
    /// The transfer that the driver holds it for.
    pub(crate) holds: Option<usize>,
    is_revoking: bool,
}

impl Window {
    pub(crate) fn key(&self) -> u32 {
        self.index << 8 | u32::from(self.tag)
    }
}

impl Session {
    pub(crate) fn new(client: usize, mut index: u32, tag: u8, binds: u32) -> Self {
        let windows = (0..WINDOWS).map(|_| {
            index += 1;
            Window { index, tag, binds, opens: None, holds: None, is_revoking: false }
        });
        Self {
            client,
            client_qp: Qp::Ready,
            node_qp: Qp::Ready,
            is_forgotten: false,
            windows: windows.collect(),
            free: (0..WINDOWS).collect(),
            wire: VecDeque::new(),
            is_pumping: false,
            landing: None,
            last_arrival: 0,
            last_completion: 0,
            last_own: 0,
            is_being_destroyed: false,
        }
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.client_qp == Qp::Ready && !self.is_forgotten && !self.is_being_destroyed
    }

    /// Transfers whose keys would be found good.
    pub(crate) fn live_keys(&self) -> impl Iterator<Item = usize> + '_ {
        let is_ready = self.client_qp == Qp::Ready;
        self.windows.iter().filter_map(move |window| window.opens.filter(|_| is_ready))
    }

    /// Whether nothing is under way, and the node is not alone.
    pub(crate) fn has_settled(&self) -> bool {
        let is_alone = self.client_qp != Qp::Ready && self.node_qp != Qp::Gone;
        let is_held = self.windows.iter().any(|window| window.holds.is_some());
        self.wire.is_empty() && self.landing.is_none() && !is_alone && !is_held
    }

    /// The window that a transfer has.
    pub(crate) fn held_by(&mut self, transfer: usize) -> Option<&mut Window> {
        self.windows.iter_mut().find(|window| window.holds == Some(transfer))
    }

    fn opened_by(&mut self, key: u32) -> Option<&mut Window> {
        self.windows.iter_mut().find(|window| window.opens.is_some() && window.key() == key)
    }
}

/// The client's side.
impl World {
    pub(crate) fn post_bind(&mut self, transfer: usize) {
        let flaw = self.flaw;
        let session = self.transfers[transfer].session;
        let open = &mut self.sessions[session];
        let slot = open.free.pop_front().expect("a transfer begins where a window is free");
        self.transfers[transfer].slot = slot;
        let window = &mut open.windows[slot];
        if flaw != Flaw::SameKeyAgain {
            window.tag = window.tag.wrapping_add(1);
        }
        window.binds += 1;
        window.holds = Some(transfer);
        window.is_revoking = false;
        self.post_own(session, Own::Bind { transfer });
    }

    pub(crate) fn post_revoke(&mut self, transfer: usize) {
        let Transfer { session, slot, .. } = self.transfers[transfer];
        let open = &mut self.sessions[session];
        let found = if self.flaw == Flaw::RevokeWhateverIsThere {
            open.windows[slot].holds
        } else {
            open.held_by(transfer).map(|_| transfer)
        };
        self.rule(
            found.is_none_or(|found| found == transfer),
            "a revocation ends its own key only",
        );
        match self.sessions[session].held_by(transfer) {
            Some(window) => {
                window.is_revoking = true;
                self.post_own(session, Own::Revoke { transfer });
            }
            // The node's invalidation was faster. A second one is not posted.
            None => self.tell(transfer, HolderEvent::Revoked),
        }
    }

    fn post_own(&mut self, session: usize, own: Own) {
        let done = (self.now + self.random.u64(US..5 * US)).max(self.sessions[session].last_own);
        self.sessions[session].last_own = done;
        self.at(done, Event::OwnDone { session, own });
    }

    pub(crate) fn own_done(&mut self, session: usize, own: Own) {
        let open = &mut self.sessions[session];
        let is_ready = open.client_qp == Qp::Ready;
        match own {
            Own::Bind { transfer } if is_ready => {
                let window = open.held_by(transfer).expect("held since the bind was posted");
                window.opens = Some(transfer);
                let key = window.key();
                self.transfers[transfer].key = Some(key);
                self.tell(transfer, HolderEvent::Bound);
            }
            Own::Bind { transfer } => self.tell(transfer, HolderEvent::BindFailed),
            // What was let in has landed before the adapter says that nothing more will be.
            Own::Revoke { .. } if is_ready && open.landing.is_some() => {
                self.after(US, Event::OwnDone { session, own });
            }
            Own::Revoke { transfer } => {
                let window = open.held_by(transfer);
                let window = window.filter(|window| is_ready && window.opens.is_some());
                if let Some(window) = window {
                    window.opens = None;
                    self.free_window(session, transfer);
                    self.tell(transfer, HolderEvent::Revoked);
                } else {
                    // The node's invalidation was there, unseen: the loser breaks the queue pair.
                    self.client_qp_fails(session);
                    self.tell(transfer, HolderEvent::RevokeFailed);
                }
            }
        }
    }

    /// A receive completion names a key.
    pub(crate) fn polled(&mut self, session: usize, key: u32) {
        let open = &mut self.sessions[session];
        if open.client_qp == Qp::Gone {
            return;
        }
        let named = open.windows.iter().find(|window| window.key() == key);
        match named.and_then(|window| window.holds.map(|held| (held, window.is_revoking))) {
            Some((transfer, false)) => {
                self.free_window(session, transfer);
                self.tell(transfer, HolderEvent::Invalidated { ours: true });
            }
            // Ours is posted, and will complete one way or the other.
            Some((_, true)) => {}
            None => self.fence(session),
        }
    }

    fn free_window(&mut self, session: usize, transfer: usize) {
        let open = &mut self.sessions[session];
        let held = open.windows.iter().position(|window| window.holds == Some(transfer));
        let Some(slot) = held else { return };
        let window = &mut open.windows[slot];
        (window.holds, window.is_revoking) = (None, false);
        if window.binds >= BINDS_MAX {
            self.windows_made += 1;
            self.run.worn_windows += 1;
            (window.index, window.binds) = (self.windows_made, 0);
        }
        open.free.push_back(slot);
    }

    /// Begins the end of the client's queue pair.
    pub(crate) fn fence(&mut self, session: usize) {
        let open = &mut self.sessions[session];
        if open.client_qp != Qp::Gone && !open.is_being_destroyed {
            open.is_being_destroyed = true;
            open.client_qp = Qp::Error;
            let delay = self.random.u64(10 * US..100 * US);
            self.after(delay, Event::ClientQpGone { session });
        }
    }

    pub(crate) fn client_qp_gone(&mut self, session: usize) {
        if self.sessions[session].landing.is_some() {
            return self.after(US, Event::ClientQpGone { session });
        }
        self.destroy_client_qp(session);
        for transfer in 0..self.transfers.len() {
            if self.transfers[transfer].session == session {
                self.tell(transfer, HolderEvent::QpFailed);
                self.tell(transfer, HolderEvent::QpDestroyed);
            }
        }
    }

    fn destroy_client_qp(&mut self, session: usize) {
        let open = &mut self.sessions[session];
        open.client_qp = Qp::Gone;
        open.free.clear();
        for window in &mut open.windows {
            (window.opens, window.holds) = (None, None);
        }
    }

    /// The kernel takes a dead process's queue pair, and then its memory.
    pub(crate) fn kernel_cleans(&mut self, session: usize) {
        if self.sessions[session].landing.is_some() {
            return self.after(US, Event::KernelCleans { session });
        }
        self.destroy_client_qp(session);
        for transfer in self.transfers.iter_mut().filter(|one| one.session == session) {
            transfer.is_released = true;
        }
    }

    fn client_qp_fails(&mut self, session: usize) {
        if self.sessions[session].client_qp == Qp::Ready {
            self.sessions[session].client_qp = Qp::Error;
            let delay = self.delay(20 * US);
            self.after(delay, Event::ClientSeesError { session });
        }
    }

    /// Flushed receives are polled; the driver destroys what failed.
    pub(crate) fn client_sees_error(&mut self, session: usize) {
        if self.clients[self.sessions[session].client].is_alive {
            self.fence(session);
        }
    }
}

/// The wire, and what arrives at the client's adapter.
impl World {
    pub(crate) fn post(&mut self, session: usize, packet: Packet) {
        if self.sessions[session].node_qp != Qp::Ready {
            return;
        }
        let arrival = self.now + self.delay(5 * US);
        let open = &mut self.sessions[session];
        open.last_arrival = arrival.max(open.last_arrival);
        open.wire.push_back((open.last_arrival, packet));
        self.pump(session);
    }

    fn pump(&mut self, session: usize) {
        let now = self.now;
        let open = &mut self.sessions[session];
        if let Some((arrival, _)) = open.wire.front()
            && !open.is_pumping
        {
            open.is_pumping = true;
            let arrival = now.max(*arrival);
            self.at(arrival, Event::Arrives { session });
        }
    }

    pub(crate) fn arrives(&mut self, session: usize) {
        let open = &mut self.sessions[session];
        open.is_pumping = false;
        let Some((_, packet)) = open.wire.pop_front() else { return };
        if open.client_qp != Qp::Ready {
            open.wire.clear();
            return self.after(RETRIES, Event::NodeSeesError { session });
        }
        if packet.op == Op::Read {
            // Answered when the adapter comes to it; what follows may overtake it.
            let delay = self.delay(3 * US);
            self.after(delay, Event::Reads { session, packet });
            return self.pump(session);
        }
        let Some(window) = open.opened_by(packet.key) else { return self.refuse(session) };
        let opened = window.opens.expect("found as one that opens");
        if packet.op == Op::Write {
            // The next packet waits until this one has landed.
            open.is_pumping = true;
            open.landing = Some((packet, opened));
            let delay = self.delay(2 * US);
            return self.after(delay, Event::Lands { session });
        }
        window.opens = None;
        self.its_own(packet, opened);
        let delay = self.delay(3 * US);
        self.after(delay, Event::Polled { session, key: packet.key });
        self.complete(session, packet);
        self.pump(session);
    }

    /// Bytes that were let in land, whatever became of the queue pair since.
    pub(crate) fn lands(&mut self, session: usize) {
        let open = &mut self.sessions[session];
        open.is_pumping = false;
        let Some((packet, opened)) = open.landing.take() else { return };
        let is_ready = open.client_qp == Qp::Ready;
        self.touch(packet, opened);
        if is_ready {
            self.complete(session, packet);
        }
        self.pump(session);
    }

    pub(crate) fn reads(&mut self, session: usize, packet: Packet) {
        let open = &mut self.sessions[session];
        if open.client_qp != Qp::Ready {
            return self.after(RETRIES, Event::NodeSeesError { session });
        }
        let opened = open.opened_by(packet.key).and_then(|window| window.opens);
        let Some(opened) = opened else { return self.refuse(session) };
        self.touch(packet, opened);
        self.complete(session, packet);
    }

    fn touch(&mut self, packet: Packet, opened: usize) {
        self.its_own(packet, opened);
        let is_released = self.transfers[opened].is_released;
        self.rule(!is_released, "no byte moves after the buffer was released");
        self.transfers[opened].moved += 1;
    }

    fn its_own(&mut self, packet: Packet, opened: usize) {
        let meant = self.grants[packet.grant].transfer;
        self.rule(meant == opened, "a key opens its own transfer's buffer only");
    }

    /// An access error: both ends stop, and what was posted is flushed.
    fn refuse(&mut self, session: usize) {
        self.run.dead_keys_used += 1;
        self.client_qp_fails(session);
        self.sessions[session].wire.clear();
        let delay = self.delay(5 * US);
        self.after(delay, Event::NodeSeesError { session });
    }

    fn complete(&mut self, session: usize, packet: Packet) {
        let at = self.now + self.delay(5 * US);
        let open = &mut self.sessions[session];
        open.last_completion = at.max(open.last_completion);
        let at = open.last_completion;
        self.at(at, Event::Completes { session, packet });
    }
}
