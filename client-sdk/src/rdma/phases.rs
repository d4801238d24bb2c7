//! Where the time of a transfer past HTTP goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::http::HeaderMap;

const SERVER_TIMING: &str = "server-timing";

/// The parts of transfers that moved their bytes, each summed over all of them. They follow each
/// other: together they are the time from the memory's lending to its bytes' comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Phases {
    /// Transfers that were timed.
    pub transfers: u64,
    /// Until the memory was lent: mapped or registered where it was not, and its key made.
    pub lend: Duration,
    /// The request and its answer, without what the service says it did in between: signing,
    /// two trips, and whoever had to be woken.
    pub wire: Duration,
    /// The service, without the node: the signature, the metadata, the plan, the grant's seal.
    pub gateway: Duration,
    /// The node: the grant's check, the bytes, the key's end.
    pub node: Duration,
    /// From the answer until the key was seen to be dead.
    pub confirm: Duration,
    /// The bytes' checksum, where they landed.
    pub verify: Duration,
}

impl Phases {
    /// What came to it since an earlier look.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            transfers: self.transfers.saturating_sub(before.transfers),
            lend: self.lend.saturating_sub(before.lend),
            wire: self.wire.saturating_sub(before.wire),
            gateway: self.gateway.saturating_sub(before.gateway),
            node: self.node.saturating_sub(before.node),
            confirm: self.confirm.saturating_sub(before.confirm),
            verify: self.verify.saturating_sub(before.verify),
        }
    }

    /// The parts and their names, in their order.
    pub fn parts(&self) -> [(&'static str, Duration); 6] {
        [
            ("lend", self.lend),
            ("wire", self.wire),
            ("gateway", self.gateway),
            ("node", self.node),
            ("confirm", self.confirm),
            ("verify", self.verify),
        ]
    }
}

/// When a transfer came to which point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(super) begun: Instant,
    pub(super) lent: Instant,
    pub(super) answered: Instant,
    pub(super) dead: Instant,
    pub(super) service: Service,
}

impl Marks {
    /// All at the same point.
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { begun: now, lent: now, answered: now, dead: now, service: Service::default() }
    }
}

/// What the service says that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    gateway: Duration,
    node: Duration,
}

impl Service {
    /// As an answer tells it; nothing where it does not.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let said = headers.get(SERVER_TIMING).and_then(|value| value.to_str().ok());
        let mut service = Self::default();
        for metric in said.unwrap_or_default().split(',') {
            let mut fields = metric.split(';').map(str::trim);
            let name = fields.next();
            let took = fields.find_map(|field| field.strip_prefix("dur=")?.parse::<f64>().ok());
            let took = took.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
            match (name, took) {
                (Some("gateway"), Some(took)) => service.gateway = took,
                (Some("node"), Some(took)) => service.node = took,
                _ => {}
            }
        }
        service
    }
}

/// The sums, in nanoseconds.
#[derive(Default)]
pub(super) struct Sums {
    transfers: AtomicU64,
    parts: [AtomicU64; 6],
}

impl Sums {
    /// Takes in a transfer whose bytes were compared by now.
    pub(super) fn add(&self, marks: &Marks) {
        let Service { gateway, node } = marks.service;
        let exchange = marks.answered.saturating_duration_since(marks.lent);
        let parts = [
            marks.lent.saturating_duration_since(marks.begun),
            exchange.saturating_sub(gateway.max(node)),
            gateway.saturating_sub(node),
            node,
            marks.dead.saturating_duration_since(marks.answered),
            marks.dead.elapsed(),
        ];
        self.transfers.fetch_add(1, Ordering::Relaxed);
        for (sum, part) in self.parts.iter().zip(parts) {
            sum.fetch_add(u64::try_from(part.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Phases {
        let part = |at: usize| Duration::from_nanos(self.parts[at].load(Ordering::Relaxed));
        Phases {
            transfers: self.transfers.load(Ordering::Relaxed),
            lend: part(0),
            wire: part(1),
            gateway: part(2),
            node: part(3),
            confirm: part(4),
            verify: part(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use ::http::HeaderValue;

    use super::*;

    fn told(value: &str) -> Service {
        let value = HeaderValue::from_str(value).expect("a value");
        Service::of(&HeaderMap::from_iter([(SERVER_TIMING.parse().expect("a name"), value)]))
    }

    #[test]
    fn a_service_says_what_it_took_or_nothing() {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let both = told("gateway;dur=0.250, node;desc=\"a node\";dur=0.125");
        assert_eq!(both, Service { gateway: ms(0.25), node: ms(0.125) });
        for strange in
            ["", "node", "node;dur=", "node;dur=-1", "node;dur=NaN", "other;dur=3", ";;,"]
        {
            assert_eq!(told(strange), Service::default(), "{strange}");
        }
    }

    #[test]
    fn the_parts_add_up_to_the_whole() {
        let sums = Sums::default();
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let service = Service { gateway: ms(5), node: ms(3) };
        sums.add(&Marks { begun, lent: at(1), answered: at(8), dead: at(9), service });
        let phases = sums.read();
        assert_eq!(phases.transfers, 1);
        let known = [phases.lend, phases.wire, phases.gateway, phases.node, phases.confirm];
        assert_eq!(known, [ms(1), ms(2), ms(2), ms(3), ms(1)]);
        assert_eq!(phases.parts().len(), 6);
    }
}
