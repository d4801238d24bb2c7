//! The scrubber of the memory: compares what is here with its sums, at a pace.
//!
//! Memory with error correction should never need it. What does change (a bit, or a write by
//! somebody who should not) is thrown out before a reader meets it, in most cases.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keyway_proto::unit::MIB;
use keyway_proto::{ByteRange, ChunkId};

use super::Shared;

/// Bytes compared in a row.
const STEP_BYTES: u64 = MIB;

/// How long to rest between rounds, at least.
const REST: Duration = Duration::from_secs(1);

pub(super) async fn run(tier: Weak<Shared>, bytes_per_second: u64) {
    loop {
        tokio::time::sleep(REST).await;
        let Some(ids) = tier.upgrade().map(|tier| tier.index.ids()) else { return };
        for id in ids {
            let mut offset = 0;
            loop {
                let Some(shared) = tier.upgrade() else { return };
                let Some(compared) = shared.scrub(id, offset) else { break };
                drop(shared);
                offset += compared;
                let pause = compared as f64 / bytes_per_second as f64;
                tokio::time::sleep(Duration::from_secs_f64(pause)).await;
            }
        }
    }
}

impl Shared {
    /// Compares the step of a chunk that begins at `offset` and gives its length; `None` at the
    /// chunk's end, or when it is not here.
    pub(super) fn scrub(&self, id: ChunkId, offset: u64) -> Option<u64> {
        let entry = self.index.find(id)?;
        let length = STEP_BYTES.min(entry.length().saturating_sub(offset));
        let step = ByteRange::new(offset, length).filter(|step| !step.is_empty())?;
        if let Some(offset) = entry.damage(step) {
            self.throw_out(&entry, offset);
            return None;
        }
        self.index.counters.scrubbed_bytes.fetch_add(length, Ordering::Relaxed);
        Some(length)
    }
}
