//! Prefetching: whole chunks, brought in before anybody reads them.

use std::sync::Arc;

use futures::stream::{self, StreamExt as _};
use keyway_fabric::memory::LeaseClass;
use keyway_proto::{ByteRange, ChunkId, ChunkSpec};

use super::Shared;
use super::index::Reason;
use super::read::Landing;
use crate::node::Prefetched;
use crate::store::{PIECE_BYTES_MAX, PinnedChunk, SINGLE_PIECE_BYTES_MAX};

/// Reads under way for one prefetch: enough for a drive, few beside the transfers'.
const READS_IN_FLIGHT: usize = 8;

pub(super) async fn load(shared: &Arc<Shared>, chunks: &[ChunkId]) -> Prefetched {
    let each = stream::iter(chunks.to_vec()).map(|chunk| load_chunk(Arc::clone(shared), chunk));
    let add = |mut loaded: Prefetched, bytes: Option<u64>| {
        match bytes {
            Some(bytes) => {
                loaded.chunks += 1;
                loaded.bytes += bytes;
            }
            None => loaded.missed += 1,
        }
        futures::future::ready(loaded)
    };
    each.buffer_unordered(READS_IN_FLIGHT).fold(Prefetched::default(), add).await
}

/// The chunk's bytes, if all of them are here in the end. Reads one piece at a time, so that it
/// holds one buffer.
async fn load_chunk(shared: Arc<Shared>, id: ChunkId) -> Option<u64> {
    if let Some(dirty) = shared.behind.find(id) {
        dirty.entry.touch();
        return Some(dirty.entry.length());
    }
    let pin: Arc<dyn PinnedChunk> = shared.store.pin(id)?.into();
    let chunk = ChunkSpec { id, length: pin.length() };
    let mut at = 0;
    while at < chunk.length {
        let window = piece_bytes(&shared, chunk.length);
        let end = (at / window + 1).saturating_mul(window).min(chunk.length);
        let range = ByteRange::new(at, end - at)?;
        at = end;
        if shared.index.find(id).is_some_and(|entry| entry.has_all(range)) {
            continue;
        }
        let pin = Arc::clone(&pin);
        let what = (Reason::Prefetch, Landing::Anywhere);
        let read = Arc::clone(&shared).read_through(pin, chunk, range, None, what);
        read.await.ok()?;
        // Without room there is no use in reading on.
        shared.index.find(id)?;
    }
    let entry = shared.index.find(id)?;
    // One that was here before, too, is wanted for longer.
    entry.touch();
    entry.has_all(ByteRange::whole(chunk.length)).then_some(chunk.length)
}

/// Small pieces while buffers are scarce: transfers come first.
fn piece_bytes(shared: &Shared, length: u64) -> u64 {
    let scarce = length > SINGLE_PIECE_BYTES_MAX && shared.pool.is_scarce(LeaseClass::Unit);
    if scarce { LeaseClass::Medium.bytes() as u64 } else { PIECE_BYTES_MAX as u64 }
}
