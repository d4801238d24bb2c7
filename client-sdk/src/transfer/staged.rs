//! Reads into a GPU's memory by way of the host's: a node moves the bytes into pinned memory, and
//! the copy engine moves them on.
//!
//! Taken where adapters reach the host's memory alone, or where a path is required that ends
//! there. The transfer is one into host memory in every respect, its key and checksum included.
//! It costs the bus what an adapter that writes into the GPU would have cost it, and one pass
//! over the host's memory; parts run side by side, so that one's copy goes on beside another's
//! transfer. The caller's stream is waited for before a bounce buffer is: who held buffers until its
//! turn would keep them from those whose turns come before it.

use futures::future::BoxFuture;
use keyway_fabric::memory::DeviceSliceMut;
use keyway_proto::{ByteRange, ChecksumKind};

use super::fetch::{Fetch, Fetched};
use super::{Failed, parts};
use crate::error::ClientError;
use crate::rdma::{Reach, Target as _};
use crate::staging::{BOUNCE_BYTES_MAX, Bounce, COPIES_MAX};

/// What a longer run is cut into.
const PIECE_BYTES: u64 = 16 << 20;

/// Fills the front of `target`, by the host's memory where that is the way.
///
/// # Errors
/// As [`Fetch::run`].
pub(super) async fn fetch(
    fetch: Fetch,
    target: DeviceSliceMut,
) -> Result<Fetched<DeviceSliceMut>, Failed<DeviceSliceMut>> {
    let room = target.length() as u64;
    let bytes = fetch.range.map_or(room, ByteRange::length).min(room);
    let rdma = fetch.client.rdma();
    let reach = Reach::of(&target);
    if !Box::pin(rdma.stages(bytes, &reach)).await {
        return fetch.run(target).await;
    }
    if bytes > BOUNCE_BYTES_MAX as u64 {
        return match fetch.range.filter(|_| fetch.hash.is_none_or(ChecksumKind::combines)) {
            Some(range) => in_pieces(fetch, range, target).await,
            // What has no known length, or is hashed in order, is one run.
            None => fetch.run(target).await,
        };
    }
    // Apart, for it is large, and other ways have no use for it.
    Box::pin(staged(fetch, target, bytes as usize)).await
}

/// In parts, of which each has a bounce buffer.
fn in_pieces(
    fetch: Fetch,
    range: ByteRange,
    target: DeviceSliceMut,
) -> BoxFuture<'static, Result<Fetched<DeviceSliceMut>, Failed<DeviceSliceMut>>> {
    Box::pin(parts::fetch(fetch, range, target, PIECE_BYTES, COPIES_MAX))
}

async fn staged(
    mut fetch: Fetch,
    target: DeviceSliceMut,
    bytes: usize,
) -> Result<Fetched<DeviceSliceMut>, Failed<DeviceSliceMut>> {
    let (turn, stop) = (fetch.turn.take(), fetch.stop.clone());
    if let Some(turn) = &turn {
        let begun = async { Ok(turn.begun().await?) };
        if let Err(error) = stop.or(begun).await {
            return Err(Failed { error, target });
        }
    }
    let mut bounce = match stop.or(bounce(&fetch, &target, bytes)).await {
        Ok(bounce) => bounce,
        Err(error) => return Err(Failed { error, target }),
    };
    let fetched = match fetch.run(bounce.lend(bytes)).await {
        Ok(fetched) => fetched,
        Err(Failed { error, .. }) => return Err(Failed { error, target }),
    };
    let Fetched { target: memory, bytes, info, checksum, retries, travelled } = fetched;
    let landed = memory.freeze().part(0..bytes as usize);
    let (target, copied) = bounce.copy_in(landed, target, turn).await;
    match copied {
        Ok(()) => Ok(Fetched { target, bytes, info, checksum, retries, travelled }),
        Err(error) => Err(Failed { error, target }),
    }
}

async fn bounce(
    fetch: &Fetch,
    target: &DeviceSliceMut,
    bytes: usize,
) -> Result<Bounce, ClientError> {
    let ring = fetch.client.staging().ring(target.gpu()).await?;
    ring.bounces.take(bytes).await
}
