//! How a transfer's bytes travelled, as its outcome tells it.

use keyway_proto::{KeyStrength, TransferPath};

use super::fallback::Fallbacks;
use super::rails::Ticket;
use super::target::Target;

/// How bytes travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Travelled {
    pub(crate) path: TransferPath,
    pub(crate) strength: KeyStrength,
    pub(crate) fallbacks: Fallbacks,
}

impl Travelled {
    /// In bodies.
    pub(crate) fn over_http(fallbacks: Fallbacks) -> Self {
        Self { path: TransferPath::Http, strength: KeyStrength::Http, fallbacks }
    }

    /// Past them, into or out of memory of this kind.
    pub(crate) fn past_http<M: Target>(ticket: &Ticket, fallbacks: Fallbacks) -> Self {
        let path = ticket.session.path::<M>();
        Self { path, strength: ticket.session.strength, fallbacks }
    }

    /// Both: the weaker counts.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        if other.strength < self.strength {
            (self.path, self.strength) = (other.path, other.strength);
        }
        self.fallbacks.merge(&other.fallbacks);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fallback;
    use super::*;

    #[test]
    fn the_weaker_part_counts() {
        let mut fallbacks = Fallbacks::default();
        fallbacks.add(Fallback::Paused);
        let http = Travelled::over_http(fallbacks);
        let strength = KeyStrength::Window;
        let direct = Travelled { path: TransferPath::VerbsHost, strength, ..http };
        for both in [http.and(&direct), direct.and(&http)] {
            assert_eq!((both.path, both.strength), (TransferPath::Http, KeyStrength::Http));
            assert_eq!(both.fallbacks.count(Fallback::Paused), 2);
        }
        let local = Travelled { strength: KeyStrength::WindowLocal, ..direct };
        assert_eq!(direct.and(&local).strength, KeyStrength::WindowLocal);
    }
}
