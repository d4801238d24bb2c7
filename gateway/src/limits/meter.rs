//! A rate, and what was taken of it: the generic cell rate algorithm.
//!
//! One number says all: the time by which everything that was taken is paid for. Whoever takes
//! moves it on; where it lies further ahead than the burst allows, there is a wait. Limits may
//! change between two calls, for they are told with each. The time is told, too, in nanoseconds.
//!
//! Cost: one compare-and-swap.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

const SECOND_NS: u64 = 1_000_000_000;

/// So much in a second, and so much of it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    per_second: NonZeroU64,
    burst: u64,
}

impl Rate {
    pub(super) fn new(per_second: NonZeroU64, burst: u64) -> Self {
        Self { per_second, burst }
    }

    /// A second's worth at once.
    pub(super) fn of_second(per_second: NonZeroU64) -> Self {
        Self::new(per_second, per_second.get())
    }

    /// The time that an amount pays for.
    fn cost_ns(self, amount: u64) -> u64 {
        let cost = u128::from(amount) * u128::from(SECOND_NS) / u128::from(self.per_second.get());
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// How far ahead of the time one may be and still take.
    fn tolerance_ns(self) -> u64 {
        self.cost_ns(self.burst.saturating_sub(1))
    }
}

/// What was taken.
#[derive(Debug, Default)]
pub(super) struct Meter {
    paid_ns: AtomicU64,
}

impl Meter {
    /// Takes an amount, and tells how long to wait before it is used. What was taken before is
    /// waited for, never the amount itself: one that is larger than a burst is not stuck.
    ///
    /// # Errors
    /// The wait, if it is longer than `patience_ns`; nothing was taken then.
    pub(super) fn take(
        &self,
        rate: Rate,
        amount: u64,
        now_ns: u64,
        patience_ns: u64,
    ) -> Result<u64, u64> {
        let (cost, tolerance) = (rate.cost_ns(amount), rate.tolerance_ns());
        let mut paid = self.paid_ns.load(Ordering::Relaxed);
        loop {
            let wait = paid.saturating_sub(now_ns.saturating_add(tolerance));
            if wait > patience_ns {
                return Err(wait);
            }
            let next = paid.max(now_ns).saturating_add(cost);
            let swapped = self.paid_ns.compare_exchange_weak(
                paid,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return Ok(wait),
                Err(seen) => paid = seen,
            }
        }
    }

    /// Gives back what was taken and is not used.
    pub(super) fn give_back(&self, rate: Rate, amount: u64) {
        let cost = rate.cost_ns(amount);
        let back = |paid: u64| Some(paid.saturating_sub(cost));
        let _ = self.paid_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }

    /// Whether all that was taken is paid for: as if it were new.
    pub(super) fn is_idle(&self, now_ns: u64) -> bool {
        self.paid_ns.load(Ordering::Relaxed) <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(per_second: u64, burst: u64) -> Rate {
        Rate::new(NonZeroU64::new(per_second).expect("not zero"), burst)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let (meter, rate) = (Meter::default(), rate(2, 5));
        let now = 7 * SECOND_NS;
        for _ in 0..5 {
            assert_eq!(meter.take(rate, 1, now, 0), Ok(0));
        }
        assert_eq!(meter.take(rate, 1, now, 0), Err(SECOND_NS / 2));
        assert_eq!(meter.take(rate, 1, now + SECOND_NS / 2, 0), Ok(0));
        assert!(meter.take(rate, 1, now + SECOND_NS / 2, 0).is_err());
        meter.give_back(rate, 1);
        assert_eq!(meter.take(rate, 1, now + SECOND_NS / 2, 0), Ok(0));
        assert!(!meter.is_idle(now + SECOND_NS) && meter.is_idle(now + 4 * SECOND_NS));
    }

    #[test]
    fn what_is_larger_than_a_burst_delays_what_follows() {
        let (meter, rate) = (Meter::default(), rate(100, 100));
        assert_eq!(meter.take(rate, 1000, 0, 0), Ok(0));
        let wait = meter.take(rate, 1, 0, u64::MAX).expect("patient");
        assert!((9 * SECOND_NS..=9 * SECOND_NS + SECOND_NS / 50).contains(&wait), "{wait}");
    }

    #[test]
    fn a_lower_limit_holds_at_once() {
        let meter = Meter::default();
        assert_eq!(meter.take(rate(1000, 1000), 1000, 0, 0), Ok(0));
        assert!(meter.take(rate(1, 1), 1, 0, 0).is_err());
    }

    proptest! {
        /// Goal: in no stretch of time passes more than the burst and the rate allow. Method:
        /// takers at random times; every pair of them bounds what passed between.
        #[test]
        fn no_stretch_has_more(
            per_second in 1u64..2000,
            burst in 1u64..50,
            pauses in prop::collection::vec(0u64..20_000_000, 1..200),
        ) {
            let (meter, rate) = (Meter::default(), rate(per_second, burst));
            let mut now = SECOND_NS;
            let mut passed = Vec::new();
            for pause in pauses {
                now += pause;
                if meter.take(rate, 1, now, 0).is_ok() {
                    passed.push(now);
                }
            }
            for (first, from) in passed.iter().enumerate() {
                for (last, to) in passed.iter().enumerate().skip(first) {
                    let count = (last - first + 1) as u128;
                    let earned = u128::from(to - from) * u128::from(per_second);
                    // A cost is rounded down by less than a nanosecond for each.
                    let slack = count * u128::from(per_second);
                    let most = u128::from(burst) * u128::from(SECOND_NS) + earned + slack;
                    prop_assert!(count * u128::from(SECOND_NS) <= most);
                }
            }
        }
    }
}
