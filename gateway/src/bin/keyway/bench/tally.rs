//! What was counted in one span, and how the counts of workers and processes add up.

use std::time::Duration;

use keyway_client::{BodyPhases, Phases};
use serde::{Deserialize, Serialize};

use super::cell::{Cell, Travelled};
use super::clock::Moment;
use super::histogram::Histogram;
use crate::memory::Memory;

/// Counts of operations that began and ended within a span.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) latencies: Histogram,
    pub(super) bytes: u64,
    /// Bytes whose checksum the client computed over what landed, or was sent, and found to be
    /// the service's.
    pub(super) verified_bytes: u64,
    /// Bytes of PUTs that were answered from memory.
    pub(super) memory_bytes: u64,
    /// The weakest way that any operation took.
    pub(super) travelled: Option<Travelled>,
    /// When the last operation ended.
    pub(super) ended: Moment,
    /// CPU time of the process over the span; of a single worker, none.
    pub(super) cpu: Duration,
    /// Where the time of transfers past HTTP went; of a single worker, nothing.
    pub(super) transfers: Spent,
    /// The same of bodies that were read over HTTP.
    pub(super) bodies: Spent,
}

/// So many, and the sums of their parts, in the order in which [`Phases::parts`] or
/// [`BodyPhases::parts`] names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spent {
    count: u64,
    parts: Vec<Duration>,
}

impl Spent {
    pub(super) fn past_http(phases: &Phases) -> Self {
        Self { count: phases.transfers, parts: phases.parts().map(|(_, time)| time).into() }
    }

    pub(super) fn of_bodies(phases: &BodyPhases) -> Self {
        Self { count: phases.bodies, parts: phases.parts().map(|(_, time)| time).into() }
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.parts.resize(self.parts.len().max(other.parts.len()), Duration::ZERO);
        self.parts.iter_mut().zip(&other.parts).for_each(|(part, more)| *part += *more);
    }

    /// The parts in µs, on average; nothing of nothing.
    pub(super) fn mean_us(&self) -> Option<impl Iterator<Item = f64>> {
        let mean = |time: &Duration| time.as_secs_f64() * 1e6 / self.count as f64;
        (self.count > 0).then(|| self.parts.iter().map(mean))
    }
}

impl Tally {
    /// Of nothing, from `begun` on.
    pub(super) fn new(begun: Moment) -> Self {
        Self {
            latencies: Histogram::new(),
            bytes: 0,
            verified_bytes: 0,
            memory_bytes: 0,
            travelled: None,
            ended: begun,
            cpu: Duration::ZERO,
            transfers: Spent::default(),
            bodies: Spent::default(),
        }
    }

    /// Bytes per second from the beginning to the last operation's end; 0 of none.
    pub(super) fn bytes_per_second(&self, begun: Moment) -> f64 {
        let seconds = self.ended.since(begun).as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.bytes += other.bytes;
        self.verified_bytes += other.verified_bytes;
        self.memory_bytes += other.memory_bytes;
        self.travelled = Travelled::weaker(self.travelled, other.travelled);
        self.ended = self.ended.max(other.ended);
        self.cpu += other.cpu;
        self.transfers.merge(&other.transfers);
        self.bodies.merge(&other.bodies);
    }
}

/// What was measured of one service in one cell.
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) target: String,
    /// Where the processes held objects: each in one of these, in turn.
    pub(super) memory: Vec<Memory>,
    /// Of all workers of all processes.
    pub(super) tally: Tally,
    /// What each process moved, in bytes per second until its own last answer.
    pub(super) shares: Vec<f64>,
    /// From the common beginning to the last answer.
    pub(super) elapsed: Duration,
    pub(super) dataset_bytes: u64,
    /// Bytes that the pass after the clock compared with what was stored.
    pub(super) compared_bytes: u64,
    pub(super) server_cpu: Option<Duration>,
    pub(super) server_peak_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use keyway_proto::{KeyStrength, TransferPath};

    use super::*;

    #[test]
    fn counts_of_processes_add_up_after_the_wire() {
        let begun = Moment::now();
        let of = |us: u64, travelled| {
            let mut tally = Tally::new(begun.after(Duration::from_micros(us)));
            tally.latencies.record(Duration::from_micros(us));
            (tally.bytes, tally.verified_bytes) = (10, 10);
            (tally.travelled, tally.cpu) = (Some(travelled), Duration::from_millis(3));
            tally.bodies = Spent { count: 2, parts: vec![Duration::from_micros(us); 4] };
            tally
        };
        let share = of(500, Travelled::HTTP).bytes_per_second(begun);
        assert!((share - 20_000.0).abs() < 1e-6, "10 bytes in 500 µs, not {share} a second");
        assert!(Tally::new(begun).bytes_per_second(begun).abs() < 1e-6, "nothing, not an infinity");
        let ipc = Travelled { path: TransferPath::IpcHost, strength: KeyStrength::Ipc };
        let mut all = Tally::new(begun);
        for tally in [of(500, ipc), of(100, Travelled::HTTP), of(100, ipc)] {
            let text = serde_json::to_string(&tally).expect("it can be told");
            all.merge(&serde_json::from_str(&text).expect("it can be read"));
        }
        assert_eq!((all.latencies.count(), all.bytes, all.verified_bytes), (3, 30, 30));
        assert_eq!((all.travelled, all.cpu), (Some(Travelled::HTTP), Duration::from_millis(9)));
        assert_eq!(all.ended.since(begun), Duration::from_micros(500));
        let bodies: Vec<_> = all.bodies.mean_us().expect("there were some").collect();
        assert!(bodies.len() == 4 && bodies.iter().all(|us| (us - 700.0 / 6.0).abs() < 1e-3));
        assert!(all.transfers.mean_us().is_none());
        let median = all.latencies.quantile_us(0.5);
        assert!((99.0..103.0).contains(&median), "{median}");
    }
}
