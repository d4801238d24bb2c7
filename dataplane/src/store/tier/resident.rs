//! Many short ranges of one chunk that is here.
//!
//! Sketch, per range: a look at the run that the range before it was in, and a slice of that, which
//! counts one reader more; no lock, no lookup, no allocation. A run is a whole chunk where that is
//! here in one piece.

use std::sync::Arc;

use bytes::Bytes;
use keyway_proto::ByteRange;

use super::Shared;
use super::config::TierVerify;
use super::entry::Entry;
use crate::store::Resident;

/// Runs that are remembered: a chunk has few, and where it has many they are made again.
const RUNS_MAX: usize = 8;

/// A chunk that is here, whole or in part, and stays as long as this lives.
pub(super) struct HeldChunk {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    /// Runs of it, and where in the chunk each begins.
    runs: Vec<(u64, Bytes)>,
    /// Whether what it reads counts as a use.
    counts: bool,
    hits: u64,
    hit_bytes: u64,
}

impl HeldChunk {
    pub(super) fn new(shared: &Arc<Shared>, entry: Arc<Entry>, counts: bool) -> Self {
        let (shared, runs) = (Arc::clone(shared), Vec::with_capacity(1));
        Self { shared, entry, runs, counts, hits: 0, hit_bytes: 0 }
    }

    fn of_known(&self, range: ByteRange) -> Option<Bytes> {
        self.runs.iter().find_map(|(begin, run)| {
            let from = usize::try_from(range.offset().checked_sub(*begin)?).ok()?;
            let end = from + range.length() as usize;
            (end <= run.len()).then(|| run.slice(from..end))
        })
    }
}

impl Resident for HeldChunk {
    fn bytes(&mut self, range: ByteRange) -> Option<Bytes> {
        if self.shared.config.verify == TierVerify::EveryRead {
            if self.entry.is_out() {
                return None;
            }
            if let Some(offset) = self.entry.damage(range) {
                self.shared.throw_out(&self.entry, offset);
                return None;
            }
        }
        let bytes = match self.of_known(range) {
            Some(bytes) => bytes,
            None => {
                let run = self.entry.run_around(range)?;
                if self.runs.len() == RUNS_MAX {
                    self.runs.clear();
                }
                self.runs.push(run);
                self.of_known(range)?
            }
        };
        if std::mem::take(&mut self.counts) {
            self.entry.touch();
        }
        self.hits += 1;
        self.hit_bytes += range.length();
        Some(bytes)
    }
}

impl Drop for HeldChunk {
    fn drop(&mut self) {
        if self.hits > 0 {
            self.shared.index.counters.hit_often(self.hits, self.hit_bytes);
        }
    }
}
