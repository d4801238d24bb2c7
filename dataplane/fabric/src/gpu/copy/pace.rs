//! When the GPU will be done, by what it took lately: so that its thread sleeps meanwhile.
//!
//! Sketch: looking for an event costs a driver call, and looking without pause costs a core. A
//! copy of 16 MiB takes 300 µs, of which the thread sleeps all but the last tenth; one of 4 KiB is
//! over before sleep would have begun. So a look is worth its while around the expected end, and
//! seldom afterwards, when something else is in the way.

use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Work up to here is expected at once; from here on it tells of the speed.
const TELLING_BYTES: u64 = MIB;
/// From the last call to the first byte, and from the last byte to the event.
const COPY_LATENCY: Duration = Duration::from_micros(5);
/// The same for a digest: three pieces of work, and the adding up of each block's words.
const DIGEST_LATENCY: Duration = Duration::from_micros(35);
/// How early the thread is up, at least: sleeping takes that long to end.
const EARLY: Duration = Duration::from_micros(25);
/// Naps shorter than this cost more than they spare.
const NAP_MIN: Duration = Duration::from_micros(20);
/// Between looks for what is late.
const NAP_LATE: Duration = Duration::from_micros(30);
/// Between the slowest and the fastest that is believed: 0.5 GB/s and 2 TB/s.
const NS_PER_MIB: std::ops::RangeInclusive<u64> = 500..=2_000_000;

/// The speed of something that does one work after the other.
pub(super) struct Pace {
    latency: Duration,
    ns_per_mib: u64,
    /// When the last of its work was seen to be over.
    seen: Option<Instant>,
}

/// What to do while the GPU works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Look again at once.
    Look,
    /// Sleep, unless there is something new to do.
    Nap(Duration),
}

impl Pace {
    /// One direction of the bus, at first: 50 GB/s.
    pub(super) fn of_the_bus() -> Self {
        Self { latency: COPY_LATENCY, ns_per_mib: 21_000, seen: None }
    }

    /// The digests, at first: 1 TB/s.
    pub(super) fn of_digests() -> Self {
        Self { latency: DIGEST_LATENCY, ns_per_mib: 1_000, seen: None }
    }

    /// What to do while work of so many bytes, given then, is the next to be over.
    pub(super) fn rest(&self, bytes: u64, given: Instant, now: Instant) -> Rest {
        let takes = self.takes(bytes);
        let expected = self.begun(given) + takes + self.latency;
        let around = (takes / 8).max(EARLY);
        if now > expected + around {
            return Rest::Nap(NAP_LATE);
        }
        match expected.checked_sub(around).map(|wake| wake.saturating_duration_since(now)) {
            Some(nap) if nap >= NAP_MIN => Rest::Nap(nap),
            _ => Rest::Look,
        }
    }

    /// Takes in that work was over when it was looked for. `rested` says that it may have been
    /// over for a while.
    pub(super) fn seen(&mut self, bytes: u64, given: Instant, now: Instant, rested: bool) {
        let begun = self.begun(given);
        let took = now.saturating_duration_since(begun + self.latency);
        let early = now <= begun + self.takes(bytes) + self.latency;
        self.seen = Some(now);
        if bytes < TELLING_BYTES {
            return;
        }
        let sample = (took.as_nanos() as u64).saturating_mul(MIB) / bytes;
        let learned = if rested && early {
            // It was over before the thread was up, nobody knows when.
            self.ns_per_mib - self.ns_per_mib / 16
        } else {
            self.ns_per_mib - self.ns_per_mib / 8 + sample / 8
        };
        self.ns_per_mib = learned.clamp(*NS_PER_MIB.start(), *NS_PER_MIB.end());
    }

    fn takes(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(self.ns_per_mib) / MIB)
    }

    fn begun(&self, given: Instant) -> Instant {
        self.seen.map_or(given, |seen| seen.max(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works on a bus of this speed, looked at as the thread does.
    const WORKS: u32 = 100;

    /// Tells how long the thread was up, and how long after its end each work was seen, once
    /// the speed is learned.
    fn drive(bytes: u64, ns_per_mib: u64) -> (Duration, Duration) {
        let mut pace = Pace::of_the_bus();
        let mut now = Instant::now();
        let (mut up, mut late) = (Duration::ZERO, Duration::ZERO);
        let look = Duration::from_micros(1);
        for work in 0..2 * WORKS {
            if work == WORKS {
                (up, late) = (Duration::ZERO, Duration::ZERO);
            }
            let given = now;
            let end = given + Duration::from_nanos(bytes * ns_per_mib / MIB) + COPY_LATENCY;
            let mut rested = false;
            while now < end {
                match pace.rest(bytes, given, now) {
                    Rest::Look => {
                        rested = false;
                        now += look;
                        up += look;
                    }
                    Rest::Nap(nap) => {
                        rested = true;
                        // Awake a little later than asked for.
                        now += nap + Duration::from_micros(8);
                        up += look;
                    }
                }
            }
            late += now - end;
            pace.seen(bytes, given, now, rested);
        }
        (up, late / WORKS)
    }

    #[test]
    fn short_copies_are_looked_for_without_a_nap() {
        let (_, late) = drive(4096, 19_000);
        assert!(late <= Duration::from_micros(1), "{late:?}");
    }

    #[test]
    fn long_copies_are_slept_through_at_any_speed() {
        for gb_per_s in [6, 12, 25, 55, 200] {
            let ns_per_mib = MIB / gb_per_s;
            let one = Duration::from_nanos(64 * ns_per_mib);
            let (up, late) = drive(64 * MIB, ns_per_mib);
            assert!(up < one * WORKS / 4, "up for {up:?} at {gb_per_s} GB/s");
            assert!(late < one / 16, "{late:?} late at {gb_per_s} GB/s");
        }
    }

    #[test]
    fn what_is_late_is_looked_for_now_and_then() {
        let pace = Pace::of_the_bus();
        let given = Instant::now();
        let much_later = given + Duration::from_secs(1);
        assert_eq!(pace.rest(4096, given, much_later), Rest::Nap(NAP_LATE));
    }
}
