//! Latencies in logarithmic buckets: 64 to each doubling, so a value is off by 1.6 % at most.

use std::time::Duration;

use serde::{Deserialize, Serialize};

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// Counts of latencies in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Sparse", try_from = "Sparse")]
pub(super) struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    sum_ns: u64,
}

/// The same between processes: buckets that hold something, each with its count.
#[derive(Serialize, Deserialize)]
struct Sparse {
    counts: Vec<(usize, u64)>,
    sum_ns: u64,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), count: 0, sum_ns: 0 }
    }

    pub(super) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / self.count.max(1) as f64 / 1e3
    }

    /// The latency in µs that a share of all stay within; 0 without any.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(index) as f64 / 1e3;
            }
        }
        0.0
    }
}

impl From<Histogram> for Sparse {
    fn from(histogram: Histogram) -> Self {
        let counts = histogram.counts.iter().copied().enumerate();
        Self { counts: counts.filter(|(_, count)| *count > 0).collect(), sum_ns: histogram.sum_ns }
    }
}

impl TryFrom<Sparse> for Histogram {
    type Error = &'static str;

    fn try_from(sparse: Sparse) -> Result<Self, Self::Error> {
        let mut histogram = Self::new();
        for (bucket, count) in sparse.counts {
            *histogram.counts.get_mut(bucket).ok_or("a bucket that there is not")? = count;
            histogram.count += count;
        }
        histogram.sum_ns = sparse.sum_ns;
        Ok(histogram)
    }
}

/// Values below `SUB` have a bucket each; above, the leading bits choose it.
fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let shift = 63 - ns.leading_zeros() - SUB_BITS;
    (shift as usize + 1) * SUB + (ns >> shift) as usize - SUB
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    let base = (SUB + index % SUB) as u128;
    u64::try_from(((base + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_values(ns: u64) {
            let upper = upper(bucket(ns));
            prop_assert!(upper >= ns);
            prop_assert!((upper - ns) as f64 <= ns as f64 / 32.0);
        }
    }

    #[test]
    fn quantiles() {
        let mut all = Histogram::new();
        let mut half = Histogram::new();
        for us in 1..=1000u64 {
            let to = if us % 2 == 0 { &mut all } else { &mut half };
            to.record(Duration::from_micros(us));
        }
        all.merge(&half);
        assert_eq!(all.count(), 1000);
        for (share, us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = all.quantile_us(share);
            assert!((found - us).abs() <= us * 0.02, "{share}: {found}");
        }
        assert!((all.mean_us() - 500.5).abs() < 0.01);
        assert_eq!(Histogram::new().quantile_us(0.5), 0.0);
        let text = serde_json::to_string(&all).expect("it can be told");
        let told: Histogram = serde_json::from_str(&text).expect("it can be read");
        assert_eq!((told.counts, told.sum_ns), (all.counts, all.sum_ns));
        let strange = format!("{{\"counts\":[[{BUCKETS},1]],\"sum_ns\":1}}");
        assert!(serde_json::from_str::<Histogram>(&strange).is_err());
    }
}
