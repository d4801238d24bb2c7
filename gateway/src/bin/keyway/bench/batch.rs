//! GETs of many ranges of one object at once, at random places.

use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use keyway_client::{Client, GatherOutcome};
use keyway_proto::ByteRange;
use serde::{Deserialize, Serialize};

use super::dataset::Target;
use super::pattern;
use crate::memory::Buffer;

/// The seed of the object's bytes.
const SEED: u64 = 7;

/// What one GET asks for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) ranges: usize,
    /// Bytes of a range.
    size: u64,
    /// Bytes of the object that they are of.
    pub(super) object: u64,
}

impl Batch {
    /// Of an object with room for one range at least.
    pub(super) fn new(ranges: usize, size: u64, object: u64) -> Self {
        Self { ranges: ranges.max(1), size, object: object.max(size) }
    }

    /// Bytes of all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges as u64 * self.size
    }

    /// Ranges at random places, which are whole words: that is how the pattern is told.
    pub(super) fn random(&self, random: &mut fastrand::Rng) -> Arc<[ByteRange]> {
        let step = self.size.next_multiple_of(8);
        let places = ((self.object - self.size) / step) + 1;
        let mut range = || {
            let range = ByteRange::new(random.u64(0..places) * step, self.size);
            range.expect("inside the object")
        };
        (0..self.ranges).map(|_| range()).collect()
    }
}

fn key(object: u64) -> String {
    format!("batch/{object}")
}

/// Stores the object.
pub(super) async fn prepare(target: &Target, bucket: &str, batch: Batch) -> anyhow::Result<()> {
    let key = key(batch.object);
    let stored = target.client.head_object(bucket, &key).await;
    if stored.is_ok_and(|info| info.size == batch.object) {
        return Ok(());
    }
    let mut body = vec![0; batch.object as usize];
    pattern::fill(&mut body, SEED);
    target.filler.put_object(bucket, &key).body(Bytes::from(body)).send().await?;
    Ok(())
}

/// Reads the ranges into the front of the buffer.
pub(super) async fn gather(
    client: &Client,
    bucket: &str,
    buffer: &mut Buffer,
    batch: Batch,
    ranges: &Arc<[ByteRange]>,
) -> anyhow::Result<GatherOutcome<()>> {
    let gather = client.gather(bucket, &key(batch.object)).ranges_per_request(batch.ranges);
    Box::pin(buffer.gather(gather, batch.bytes() as usize, Arc::clone(ranges))).await
}

/// Compares what a buffer holds with what was stored.
pub(super) fn compare(buffer: &Buffer, batch: Batch, ranges: &[ByteRange]) -> anyhow::Result<()> {
    let is_right = buffer.look(batch.bytes() as usize, |bytes| {
        let pieces = bytes.chunks(batch.size as usize).zip(ranges);
        pieces
            .into_iter()
            .all(|(piece, range)| pattern::matches(piece, SEED, range.offset() as usize))
    })?;
    ensure!(is_right, "ranges hold other bytes than were stored");
    Ok(())
}
