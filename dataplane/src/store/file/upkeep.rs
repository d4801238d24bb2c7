//! What the store does by itself: compaction and scrubbing.
//!
//! Both go through the same paths as transfers, one chunk at a time, and hold one lease
//! each: their weight on the foreground is that of one slow client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keyway_fabric::memory::LeaseClass;
use keyway_proto::{ByteRange, ChunkId, ChunkSpec};
use tokio::sync::{mpsc, oneshot};

use super::core::Core;
use super::index::{Location, Segment};
use super::recover::batches;
use super::segment::Append;
use crate::store::{PIECE_BYTES_MAX, StoreError, read_class};

/// How often compaction looks for work.
const COMPACT_EVERY: Duration = Duration::from_secs(5);

/// A segment with less than a half of its pages alive is worth moving: it costs at most as
/// much writing as it frees.
const LIVE_SHARE_DIVISOR: usize = 2;

/// Chunks listed at once by the scrubber.
const SCRUB_LIST: usize = 256;

/// Pause of the scrubber after a full round, and of one that found nothing.
const SCRUB_ROUND_PAUSE: Duration = Duration::from_secs(60);

/// Moves what is alive out of mostly dead segments, until the store goes.
pub(super) async fn compact(core: Arc<Core>, appends: mpsc::WeakSender<Append>) {
    loop {
        tokio::time::sleep(COMPACT_EVERY).await;
        let Some(appends) = appends.upgrade() else { return };
        if let Err(error) = compact_all(&core, &appends).await {
            tracing::warn!(%error, "a segment was not compacted");
        }
    }
}

/// Moves what is alive out of every segment that is worth it.
pub(super) async fn compact_all(
    core: &Arc<Core>,
    appends: &mpsc::Sender<Append>,
) -> Result<(), StoreError> {
    while let Some(segment) = emptiest(core) {
        move_out(core, appends, &segment).await?;
    }
    Ok(())
}

/// The sealed segment with the fewest live pages, if that is few enough.
fn emptiest(core: &Core) -> Option<Arc<Segment>> {
    let mut segments = core.segments.lock();
    segments.retain(|segment| segment.strong_count() > 0);
    let live = |segment: &Arc<Segment>| segment.live_pages.load(Ordering::Relaxed) as usize;
    segments
        .iter()
        .filter_map(std::sync::Weak::upgrade)
        .filter(|segment| segment.sealed.load(Ordering::Relaxed))
        // Without live pages the segment goes by itself, when its last reader does.
        .filter(|segment| (1..segment.pages() / LIVE_SHARE_DIVISOR).contains(&live(segment)))
        .min_by_key(live)
}

/// Moves a segment's live chunks into the open one. A crash in between leaves them in both
/// places; either copy that verifies is the chunk.
async fn move_out(
    core: &Arc<Core>,
    appends: &mpsc::Sender<Append>,
    segment: &Arc<Segment>,
) -> Result<(), StoreError> {
    let (listed_core, listed) = (Arc::clone(core), Arc::clone(segment));
    let found = tokio::task::spawn_blocking(move || {
        // A buffered reader's descriptor: pages need no alignment there.
        let path = listed_core.space.path_of(listed.units.volume.number);
        batches(&std::fs::File::open(path)?, &listed)
    });
    let found = found.await.map_err(|_| StoreError::Closed)?.map_err(Core::read_failed)?;
    for record in found.into_iter().flat_map(|(_, batch)| batch.records) {
        match move_chunk(core, appends, segment, record.chunk, record.sums).await {
            // Left where it is, for its readers to find damaged.
            Err(StoreError::Damaged { .. }) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    // Damaged chunks keep the segment: not again until restart.
    segment.sealed.store(false, Ordering::Relaxed);
    Ok(())
}

async fn move_chunk(
    core: &Arc<Core>,
    appends: &mpsc::Sender<Append>,
    segment: &Arc<Segment>,
    chunk: ChunkSpec,
    sums: Vec<u32>,
) -> Result<(), StoreError> {
    let lies_here = |location: &Location| matches!(location, Location::Record(record) if Arc::ptr_eq(&record.segment, segment));
    let Some(location) = core.index.find(chunk.id).filter(lies_here) else { return Ok(()) };
    let range = ByteRange::whole(chunk.length);
    let lease = core.pool.lease(read_class(range, chunk.length)).await;
    let (lease, _) = super::reader::read_verified(core, chunk.id, &location, range, lease).await?;
    let (done, answer) = oneshot::channel();
    let append = Append { chunk, lease, sums, spare: 0, done };
    appends.send(append).await.map_err(|_| StoreError::Closed)?;
    let record = answer.await.map_err(|_| StoreError::Closed)??;
    if core.index.relocate(chunk.id, segment, Location::Record(record)) {
        core.compacted_bytes.fetch_add(chunk.length, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads everything, again and again, at a given rate, so that damage is known before a
/// reader finds it.
pub(super) async fn scrub(core: Arc<Core>, bytes_per_second: u64) {
    if bytes_per_second == 0 {
        return;
    }
    let mut after = None;
    loop {
        let chunks = core.index.list(after, SCRUB_LIST);
        let Some(last) = chunks.last() else {
            after = None;
            tokio::time::sleep(SCRUB_ROUND_PAUSE).await;
            continue;
        };
        after = Some(last.id);
        for chunk in chunks {
            let pause = chunk.length as f64 / bytes_per_second as f64;
            tokio::time::sleep(Duration::from_secs_f64(pause)).await;
            scrub_chunk(&core, chunk.id).await;
        }
    }
}

/// Verifies one chunk; damage is counted and logged by the reader.
pub(super) async fn scrub_chunk(core: &Core, chunk: ChunkId) {
    let Some(location) = core.index.find(chunk) else { return };
    let length = location.length();
    let mut at = 0;
    while at < length {
        let end = (at + PIECE_BYTES_MAX as u64).min(length);
        let range = ByteRange::new(at, end - at).expect("inside the chunk");
        // Transfers first.
        while core.pool.is_scarce(LeaseClass::Unit) {
            tokio::time::sleep(COMPACT_EVERY).await;
        }
        let lease = core.pool.lease(read_class(range, length)).await;
        let _ = super::reader::read_verified(core, chunk, &location, range, lease).await;
        core.scrubbed_bytes.fetch_add(end - at, Ordering::Relaxed);
        at = end;
    }
}
