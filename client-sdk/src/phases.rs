//! Where the time of reads and writes goes: of transfers past HTTP, and of bodies.

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
    /// Until the memory was lent: mapped or registered where it was not, or copied into a slab, and
    /// its key made.
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
    /// The bytes' checksum, where they landed; before it their copy, where that was a slab.
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

/// The parts of reads over HTTP that ended well, each summed over all of them. They follow each
/// other: together they are the time from the request until its bytes are in the caller's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BodyPhases {
    /// Bodies that were timed.
    pub bodies: u64,
    /// The request and the head of its answer, without what the service says it did in between:
    /// signing, two trips, and whoever had to be woken.
    pub wire: Duration,
    /// The service until the head of its answer, as it says itself; nothing where it does not.
    pub service: Duration,
    /// Until the last byte was in the host's memory, and in the checksum.
    pub body: Duration,
    /// Until the GPU had the last byte, where the memory is one's.
    pub copy: Duration,
}

impl BodyPhases {
    /// What came to it since an earlier look.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            bodies: self.bodies.saturating_sub(before.bodies),
            wire: self.wire.saturating_sub(before.wire),
            service: self.service.saturating_sub(before.service),
            body: self.body.saturating_sub(before.body),
            copy: self.copy.saturating_sub(before.copy),
        }
    }

    /// The parts and their names, in their order.
    pub fn parts(&self) -> [(&'static str, Duration); 4] {
        [("wire", self.wire), ("service", self.service), ("body", self.body), ("copy", self.copy)]
    }
}

/// When a transfer came to which point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) begun: Instant,
    pub(crate) lent: Instant,
    pub(crate) answered: Instant,
    pub(crate) dead: Instant,
    pub(crate) service: Service,
}

impl Marks {
    /// All at the same point.
    pub(crate) fn begin() -> Self {
        let now = Instant::now();
        Self { begun: now, lent: now, answered: now, dead: now, service: Service::default() }
    }
}

/// What the service says that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Service {
    gateway: Duration,
    node: Duration,
}

impl Service {
    /// As an answer tells it; nothing where it does not.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
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

/// When a body came to which point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyMarks {
    pub(crate) begun: Instant,
    pub(crate) answered: Instant,
    pub(crate) received: Instant,
    pub(crate) service: Service,
}

/// How often something was done, and the sums of its parts in nanoseconds.
struct Sums<const N: usize> {
    count: AtomicU64,
    parts: [AtomicU64; N],
}

impl<const N: usize> Sums<N> {
    fn add(&self, parts: [Duration; N]) {
        self.count.fetch_add(1, Ordering::Relaxed);
        for (sum, part) in self.parts.iter().zip(parts) {
            sum.fetch_add(u64::try_from(part.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        }
    }

    fn read(&self) -> (u64, [Duration; N]) {
        let part = |at: usize| Duration::from_nanos(self.parts[at].load(Ordering::Relaxed));
        (self.count.load(Ordering::Relaxed), std::array::from_fn(part))
    }
}

impl<const N: usize> Default for Sums<N> {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), parts: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// The sums over a client's transfers.
#[derive(Default)]
pub(crate) struct TransferSums(Sums<6>);

impl TransferSums {
    /// Takes in a transfer whose bytes were compared by now.
    pub(crate) fn add(&self, marks: &Marks) {
        let Service { gateway, node } = marks.service;
        let exchange = marks.answered.saturating_duration_since(marks.lent);
        self.0.add([
            marks.lent.saturating_duration_since(marks.begun),
            exchange.saturating_sub(gateway.max(node)),
            gateway.saturating_sub(node),
            node,
            marks.dead.saturating_duration_since(marks.answered),
            marks.dead.elapsed(),
        ]);
    }

    pub(crate) fn read(&self) -> Phases {
        let (transfers, [lend, wire, gateway, node, confirm, verify]) = self.0.read();
        Phases { transfers, lend, wire, gateway, node, confirm, verify }
    }
}

/// The sums over a client's bodies.
#[derive(Default)]
pub(crate) struct BodySums(Sums<4>);

impl BodySums {
    /// Takes in a body whose bytes are where they belong by now.
    pub(crate) fn add(&self, marks: &BodyMarks) {
        let service = marks.service.gateway;
        self.0.add([
            marks.answered.saturating_duration_since(marks.begun).saturating_sub(service),
            service,
            marks.received.saturating_duration_since(marks.answered),
            marks.received.elapsed(),
        ]);
    }

    pub(crate) fn read(&self) -> BodyPhases {
        let (bodies, [wire, service, body, copy]) = self.0.read();
        BodyPhases { bodies, wire, service, body, copy }
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
        let sums = TransferSums::default();
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

    #[test]
    fn a_body_is_the_request_the_service_the_bytes_and_their_copy() {
        let (sums, ms) = (BodySums::default(), Duration::from_millis);
        let begun = Instant::now();
        let service = Service { gateway: ms(5), node: ms(0) };
        let (answered, received) = (begun + ms(8), begun + ms(9));
        sums.add(&BodyMarks { begun, answered, received, service });
        let once = sums.read();
        assert_eq!((once.bodies, once.wire, once.service, once.body), (1, ms(3), ms(5), ms(1)));
        sums.add(&BodyMarks { begun, answered, received, service });
        let again = sums.read().since(&once);
        assert_eq!((again.bodies, again.wire, again.body), (1, ms(3), ms(1)));
    }
}
