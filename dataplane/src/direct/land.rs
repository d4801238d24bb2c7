//! PUT into the memory tier: the client's memory → where the bytes stay.
//!
//! Sketch, per chunk of 16 MiB out of a GPU: memory of the tier, one copy by the copy engine
//! straight into it (300 µs at 55 GB/s), one digest by the GPU of the same bytes where they lie
//! (16 µs at 1 TB/s), side by side; no lease, no copy and no pass by a processor.
//! [`LANDINGS_IN_FLIGHT`] chunks keep the bus busy. Out of shared host memory: one `memcpy`, and
//! one pass for each digest, on a blocking thread for each chunk in flight. The blocks' CRC32Cs
//! are computed by the flusher, which holds the bytes against the digest that was taken here.
//! What bounds it: the bus; for host memory, the threads.

use futures::future::{BoxFuture, FutureExt as _, try_join, try_join_all};
use futures::stream::{FuturesOrdered, StreamExt as _};
use keyway_fabric::LinkError;
use keyway_fabric::ipc::{Batch, NodeLink};
use keyway_fabric::memory::{Destination, Extent};
use keyway_proto::checksum::Hasher;
use keyway_proto::{Checksum, ChecksumKind, PutPlan, RemoteWindow};

use super::remote::RemoteCursor;
use crate::node::{DirectError, TransferError};
use crate::store::StagedChunk;
use crate::store::tier::{Landing, MemoryTier};

/// Chunks on their way at once.
const LANDINGS_IN_FLIGHT: usize = 8;

/// The first chunks of a plan, as many as found room.
#[derive(Default)]
pub(super) struct Landed {
    pub(super) chunks: Vec<Box<dyn StagedChunk>>,
    /// Of all their bytes.
    sums: Vec<Checksum>,
}

impl Landed {
    /// A digest of these bytes and those that follow, whose digest is `rest`.
    pub(super) fn followed_by(&self, rest: Checksum, bytes: u64) -> Checksum {
        let before = self.sums.iter().find(|sum| sum.kind() == rest.kind());
        before.and_then(|before| before.combine(&rest, bytes)).unwrap_or(rest)
    }

    fn add(&mut self, Chunk { staged, bytes, sums }: Chunk) {
        self.chunks.push(staged);
        self.sums = match self.sums.is_empty() {
            true => sums,
            false => sums.into_iter().map(|sum| self.followed_by(sum, bytes)).collect(),
        };
    }
}

/// A chunk that has landed.
struct Chunk {
    staged: Box<dyn StagedChunk>,
    bytes: u64,
    sums: Vec<Checksum>,
}

/// Lands chunks until all have, or one finds no room. The plan asks for digests that combine.
pub(super) async fn run(
    plan: &PutPlan,
    link: &NodeLink,
    tier: &MemoryTier,
    cursor: &mut RemoteCursor,
) -> Result<Landed, DirectError> {
    let crc64nvme = plan.digests.with(ChecksumKind::Crc64Nvme);
    let kinds: Vec<ChecksumKind> = crc64nvme.iter().collect();
    let mut landed = Landed::default();
    let mut under_way = FuturesOrdered::new();
    for chunk in &plan.chunks {
        if under_way.len() == LANDINGS_IN_FLIGHT
            && let Some(oldest) = under_way.next().await
        {
            landed.add(oldest?);
        }
        let Some((extents, landing)) = tier.land_behind(*chunk).await? else { break };
        under_way.push_back(begin(link, extents, landing, cursor, &kinds)?);
    }
    while let Some(oldest) = under_way.next().await {
        landed.add(oldest?);
    }
    Ok(landed)
}

/// Begins the copies and the digests of a chunk.
fn begin(
    link: &NodeLink,
    extents: Vec<Extent>,
    landing: Landing,
    cursor: &mut RemoteCursor,
    kinds: &[ChecksumKind],
) -> Result<BoxFuture<'static, Result<Chunk, DirectError>>, DirectError> {
    let (mut copies, mut runs, mut bytes) = (Vec::with_capacity(1), Vec::with_capacity(1), 0);
    for extent in extents {
        let open = extent.open().expect("memory that was just reserved is empty");
        let of_extent = cursor.take(open.len() as u32);
        let reached: u64 = of_extent.iter().map(|run| u64::from(run.length)).sum();
        if reached != open.len() as u64 {
            return Err(DirectError::InvalidPlan("the plan is longer than its windows"));
        }
        bytes += reached;
        runs.extend_from_slice(&of_extent);
        // A batch of its own: so each copy gives its own extent back.
        let mut batch = Batch::default();
        batch.read(open, &of_extent);
        let (link, posted) = (link.clone(), link.begin(batch)?);
        copies.push(async move {
            let landed = link.landed(posted).await?;
            let extent = landed.destinations.into_iter().find_map(Destination::into_extent);
            let extent = extent.ok_or(LinkError::Closed)?;
            Ok::<Extent, LinkError>(extent.filled())
        });
    }
    let sums = device_sums(link, kinds, &runs)?;
    let kinds = kinds.to_vec();
    let landing = async move {
        let (extents, sums) = match sums {
            Some(sums) => try_join(try_join_all(copies), sums).await?,
            None => summed(try_join_all(copies).await?, kinds).await?,
        };
        let is_crc64 = |sum: &&Checksum| sum.kind() == ChecksumKind::Crc64Nvme;
        let source = *sums.iter().find(is_crc64).expect("it was asked for");
        Ok(Chunk { staged: landing.landed(extents, source), bytes, sums })
    };
    Ok(landing.boxed())
}

type Sums = BoxFuture<'static, Result<Vec<Checksum>, LinkError>>;

/// Begins to compute the checksums of the runs together where they lie; `None` when that is not
/// in a GPU.
fn device_sums(
    link: &NodeLink,
    kinds: &[ChecksumKind],
    runs: &[RemoteWindow],
) -> Result<Option<Sums>, DirectError> {
    let mut all = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let mut of_runs = Vec::with_capacity(runs.len());
        for run in runs {
            let Some(sum) = link.digest(*kind, run)? else { return Ok(None) };
            let length = u64::from(run.length);
            of_runs.push(async move { Ok::<_, LinkError>((sum.await?, length)) });
        }
        let empty = Checksum::of(*kind, &[]);
        all.push(async move {
            let join = |sum: Checksum, (next, length): (Checksum, u64)| {
                sum.combine(&next, length).expect("a GPU computes what combines")
            };
            Ok(try_join_all(of_runs).await?.into_iter().fold(empty, join))
        });
    }
    Ok(Some(try_join_all(all).boxed()))
}

/// Computes the checksums of what has landed, on a blocking thread.
async fn summed(
    extents: Vec<Extent>,
    kinds: Vec<ChecksumKind>,
) -> Result<(Vec<Extent>, Vec<Checksum>), DirectError> {
    let summing = tokio::task::spawn_blocking(move || {
        let sums = kinds.into_iter().map(|kind| {
            let mut hasher = Hasher::new(kind);
            for extent in &extents {
                hasher.update(extent.get(0..extent.len()).unwrap_or_default());
            }
            hasher.finish()
        });
        let sums = sums.collect();
        (extents, sums)
    });
    summing.await.map_err(|_| {
        let reason = "the hashing thread was lost".into();
        TransferError::Store { reason, sticky: false }.into()
    })
}
