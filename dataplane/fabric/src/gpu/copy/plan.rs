//! Which copies make up a batch: neighbours merged, long ones cut, small ones gathered.

use super::batch::{Run, Way};

/// Longer copies are cut, so that they spread over streams and others get in between.
pub(super) const PIECE_BYTES: u64 = 16 << 20;
/// Runs up to here are a kernel's, where there are enough of them: a copy of 64 KiB takes the
/// copy engine 4 µs, of which the bus needs 1.2.
pub(super) const GATHER_RUN_BYTES: u64 = 64 << 10;
/// Fewer small runs than this are cheaper as copies than as a kernel's launch.
pub(super) const GATHER_RUNS_MIN: usize = 8;
/// A kernel's warp moves at most this much at a time.
pub(super) const GATHER_PIECE_BYTES: u64 = 4 << 10;

/// A run, and the number of the pin that covers its host side; none where it is not pinned.
pub(super) type Placed = (Run, Option<usize>);

/// What to give the GPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) copies: Vec<Run>,
    /// Pieces for kernels, by way.
    pub(super) gather: Vec<Run>,
    pub(super) scatter: Vec<Run>,
}

/// Plans a batch. Runs are merged in the order in which they came: whoever reads ranges of an
/// object sends them ascending.
pub(super) fn plan(runs: &[Placed], kernels: bool) -> Plan {
    let merged = merge(runs);
    let small = |(run, pin): &Placed| run.bytes <= GATHER_RUN_BYTES && pin.is_some();
    let gathers = |way: Way| {
        let of_way = |placed: &&Placed| placed.0.way == way && small(placed);
        kernels && merged.iter().filter(of_way).count() >= GATHER_RUNS_MIN
    };
    let (into, from) = (gathers(Way::IntoDevice), gathers(Way::FromDevice));
    let mut plan = Plan::default();
    for placed in &merged {
        let run = placed.0;
        match run.way {
            Way::IntoDevice if into && small(placed) => {
                plan.gather.extend(pieces(run, GATHER_PIECE_BYTES));
            }
            Way::FromDevice if from && small(placed) => {
                plan.scatter.extend(pieces(run, GATHER_PIECE_BYTES));
            }
            Way::IntoDevice | Way::FromDevice => plan.copies.extend(pieces(run, PIECE_BYTES)),
        }
    }
    plan
}

fn merge(runs: &[Placed]) -> Vec<Placed> {
    let mut merged: Vec<Placed> = Vec::with_capacity(runs.len());
    for (run, pin) in runs {
        if let Some((last, of)) = merged.last_mut()
            && of == pin
            && last.way == run.way
            && last.host + last.bytes == run.host
            && last.device + last.bytes == run.device
        {
            last.bytes += run.bytes;
        } else {
            merged.push((*run, *pin));
        }
    }
    merged
}

/// Cuts a run so that no piece crosses a multiple of `bytes` from its beginning.
fn pieces(run: Run, bytes: u64) -> impl Iterator<Item = Run> {
    (0..run.bytes).step_by(bytes as usize).map(move |offset| Run {
        host: run.host + offset,
        device: run.device + offset,
        bytes: (run.bytes - offset).min(bytes),
        way: run.way,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTO: Way = Way::IntoDevice;

    fn run(host: u64, device: u64, bytes: u64) -> Run {
        Run { host, device, bytes, way: INTO }
    }

    #[test]
    fn neighbours_on_both_sides_become_one_copy() {
        let runs = [
            (run(0, 1 << 30, 1 << 20), Some(0)),
            (run(1 << 20, (1 << 30) + (1 << 20), 1 << 20), Some(0)),
            (run(2 << 20, 5 << 30, 1 << 20), Some(0)),
        ];
        let planned = plan(&runs, true);
        assert_eq!(planned.copies, [run(0, 1 << 30, 2 << 20), runs[2].0]);
        assert!(planned.gather.is_empty());
    }

    #[test]
    fn pins_are_not_merged_across() {
        let runs = [(run(0, 100, 10), Some(0)), (run(10, 110, 10), Some(1))];
        assert_eq!(plan(&runs, true).copies.len(), 2);
        let runs = [(run(0, 100, 10), None), (run(10, 110, 10), None)];
        assert_eq!(plan(&runs, true).copies.len(), 1);
    }

    #[test]
    fn only_many_small_pinned_runs_are_gathered() {
        let page = |at: u64, pin| (run(at * 8192, at * 8192, 4096), pin);
        let few: Vec<_> = (0..GATHER_RUNS_MIN as u64 - 1).map(|at| page(at, Some(0))).collect();
        assert_eq!(plan(&few, true).copies.len(), few.len());
        let many: Vec<_> = (0..1000).map(|at| page(at, Some(0))).collect();
        assert_eq!(plan(&many, true).gather.len(), 1000);
        assert_eq!(plan(&many, false).copies.len(), 1000);
        let loose: Vec<_> = (0..1000).map(|at| page(at, None)).collect();
        assert_eq!(plan(&loose, true).copies.len(), 1000);
    }

    proptest! {
        /// Every byte is moved once, from where it was to where it was to be.
        #[test]
        fn a_plan_moves_what_was_asked(
            sizes in prop::collection::vec((1u64..200_000, 0u64..3, 0u64..2), 0..40),
            kernels: bool,
        ) {
            let mut at = (1 << 40, 1 << 41);
            let mut runs = Vec::new();
            for (bytes, gap, pin) in sizes {
                at.0 += gap * 64;
                let way = if gap == 2 { Way::FromDevice } else { INTO };
                let run = Run { host: at.0, device: at.1, bytes, way };
                runs.push((run, (pin == 0).then_some(0)));
                at = (at.0 + bytes, at.1 + bytes);
            }
            let planned = plan(&runs, kernels);
            let mut moved: Vec<Run> =
                [planned.copies, planned.gather, planned.scatter].concat();
            moved.sort_by_key(|run| run.host);
            let moved: Vec<Placed> = moved.into_iter().map(|run| (run, None)).collect();
            let asked: Vec<Placed> = runs.iter().map(|(run, _)| (*run, None)).collect();
            prop_assert_eq!(merge(&moved), merge(&asked));
        }
    }
}
