//! Time that all processes of a host share, and the CPU time of this one.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on the host's monotonic clock, in nanoseconds: the same in all its processes, so
/// that they can begin together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Moment(u64);

impl Moment {
    pub(super) fn now() -> Self {
        let now = read(ClockId::Monotonic);
        Self(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time since `earlier`; zero where it is later.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Waits for it.
    pub(super) async fn arrives(self) {
        tokio::time::sleep(self.since(Self::now())).await;
    }
}

/// CPU time of this process so far: user and system, all threads, to the nanosecond.
pub(super) fn own_cpu() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_moment_arrives_and_work_costs() {
        let (begun, cpu) = (Moment::now(), own_cpu());
        let later = begun.after(Duration::from_millis(5));
        later.arrives().await;
        assert!(Moment::now() >= later);
        assert_eq!(begun.since(later), Duration::ZERO);
        let mut sum = 0u64;
        while own_cpu() == cpu {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
