//! What goes wrong, and when.

use fastrand::Rng;

use super::world::{Event, MS, Time, World};

/// A driver that does one thing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// The client gives its buffer back when the answer is there.
    ReleaseOnAnswer,
    /// A window's key stays the same from bind to bind.
    SameKeyAgain,
    /// A revocation names a window, not its key: by then it may be lent again.
    RevokeWhateverIsThere,
    /// A queue pair in the error state is taken for one that is gone.
    ErrorForDestruction,
    /// A node's grant keys survive its restart; its memory of grants does not.
    GrantsOutliveRestart,
}

/// How bad a seed's world is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Of a thousand messages, so many are lost, and so many arrive twice.
    pub(crate) lost: u32,
    pub(crate) doubled: u32,
    /// Of a thousand messages or packets, so many are late by milliseconds.
    pub(crate) late: u32,
    /// Of a thousand transfers, so many are given up by their callers.
    pub(crate) given_up: u32,
    /// Of a thousand reads of the disk, so many fail.
    pub(crate) disk: u32,
    /// Deaths of anybody.
    pub(crate) deaths: u32,
}

impl Weather {
    const CALM: Self = Self { lost: 0, doubled: 0, late: 0, given_up: 0, disk: 0, deaths: 0 };

    /// One seed in eight has no faults at all.
    pub(crate) fn of(seed: u64) -> Self {
        if seed.is_multiple_of(8) {
            return Self::CALM;
        }
        let mut random = Rng::with_seed(!seed);
        Self {
            lost: random.u32(..60),
            doubled: random.u32(..120),
            late: random.u32(..150),
            given_up: random.u32(..400),
            disk: random.u32(..30),
            deaths: random.u32(..6),
        }
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.lost + self.doubled + self.late + self.given_up + self.disk + self.deaths == 0
    }
}

impl World {
    /// Whether something of which so many in a thousand happen happens now.
    pub(crate) fn happens(&mut self, of_thousand: u32) -> bool {
        !self.is_calm && self.random.u32(..1_000) < of_thousand
    }

    /// Plans the deaths; each has its return.
    pub(crate) fn plan_deaths(&mut self, until: Time) {
        for _ in 0..self.weather.deaths {
            let at = self.random.u64(..until);
            let back = at + self.random.u64(MS / 10..8 * MS);
            match self.random.u8(..3) {
                0 => {
                    let client = self.random.usize(..self.clients.len());
                    self.at(at, Event::ClientDies { client });
                    self.at(back, Event::ClientReturns { client });
                }
                1 => {
                    self.at(at, Event::GatewayDies);
                    self.at(back, Event::GatewayReturns);
                }
                _ => {
                    self.at(at, Event::NodeDies);
                    self.at(back, Event::NodeReturns);
                }
            }
        }
    }
}
