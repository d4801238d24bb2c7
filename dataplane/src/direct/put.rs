//! PUT: the client's memory → leases → extents, but for what [`land`](super::land) takes.
//!
//! Sketch, per MiB: one RDMA READ, or one copy, into a lease, one pass of CRC32C per block and one
//! of each digest asked for, one device write from the same lease. Up to [`READS_IN_FLIGHT`] READs
//! run ahead of the drive. MD5 and SHA run on a blocking thread, a piece at a time, and bound the
//! transfer where they are asked for.

use std::collections::VecDeque;

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready, try_join_all};
use keyway_fabric::memory::LeasePool;
use keyway_proto::checksum::MultiHasher;
use keyway_proto::unit::CHUNK_BYTES_MAX;
use keyway_proto::{DigestSet, Digests, Durability, PutPlan, SessionToken};

use super::execute::Needs;
use super::land::{self, Landed};
use super::remote::RemoteCursor;
use super::transport::Transport;
use crate::engine::{Turn, begin_chunk, publish};
use crate::node::{DirectError, TransferError};
use crate::store::{BlobStore, Piece, StagedChunk, StoreError, next_piece};

/// Pieces being read ahead of the one that is written.
const READS_IN_FLIGHT: usize = 4;

type Seal = BoxFuture<'static, Result<Box<dyn StagedChunk>, StoreError>>;

/// Bytes that have all arrived, on their way to the drive.
pub(super) struct Staging {
    seals: Vec<Seal>,
    digests: Digests,
    durability: Durability,
    plan: PutPlan,
    _turn: Turn,
}

/// Bytes that are as durable as was asked for, and that nobody sees yet.
pub(super) struct Staged {
    chunks: Vec<Box<dyn StagedChunk>>,
    digests: Digests,
    durability: Durability,
    plan: PutPlan,
}

impl Staging {
    /// Waits until all is as durable as was asked for.
    pub(super) async fn seal(self) -> Result<Staged, DirectError> {
        let Self { seals, digests, durability, plan, _turn } = self;
        Ok(Staged { chunks: try_join_all(seals).await?, digests, durability, plan })
    }
}

impl Staged {
    /// Makes the chunks readable.
    pub(super) fn publish(
        self,
        store: &dyn BlobStore,
    ) -> Result<(Digests, Durability), DirectError> {
        publish(self.chunks, &self.plan, store)?;
        Ok((self.digests, self.durability))
    }
}

pub(super) async fn run<T: Transport>(
    plan: &PutPlan,
    target: &SessionToken,
    way: &T,
    needs: &Needs,
    turn: Turn,
) -> Result<Staging, DirectError> {
    if plan.chunks.iter().any(|chunk| !(1..=CHUNK_BYTES_MAX).contains(&chunk.length)) {
        return Err(DirectError::InvalidPlan("a chunk's length is out of bounds"));
    }
    let mut cursor = RemoteCursor::new(target);
    let landed = land(plan, way, needs, &mut cursor).await?;
    let rest = &plan.chunks[landed.chunks.len()..];
    let mut reads = Reads {
        chunks: rest.iter().map(|chunk| (chunk.length, 0)).collect(),
        under_way: VecDeque::with_capacity(READS_IN_FLIGHT),
        cursor,
        way,
        pool: &needs.pool,
    };
    let mut hasher = PieceHasher::new(plan.digests);
    let mut seals: Vec<Seal> = Vec::with_capacity(rest.len());
    let mut durability = Durability::Disk;
    for chunk in rest {
        let (mut writer, of_chunk) =
            begin_chunk(*chunk, plan, &*needs.store, needs.tier.as_deref()).await?;
        durability = durability.min(of_chunk);
        let mut left = chunk.length;
        while left > 0 {
            let piece = hasher.update(reads.next().await?).await?;
            left -= piece.len() as u64;
            writer.write(piece).await?;
        }
        seals.push(writer.seal());
    }
    let rest_bytes = rest.iter().map(|chunk| chunk.length).sum();
    let digests = hasher.finish();
    let digests = digests.iter().map(|sum| landed.followed_by(*sum, rest_bytes)).collect();
    if !landed.chunks.is_empty() {
        durability = Durability::Memory;
    }
    let here = landed.chunks.into_iter().map(|chunk| ready(Ok(chunk)).boxed());
    let seals = here.chain(seals).collect();
    Ok(Staging { seals, digests, durability, plan: plan.clone(), _turn: turn })
}

/// What of the plan goes straight into the memory tier: its first chunks, as many as find room.
async fn land<T: Transport>(
    plan: &PutPlan,
    way: &T,
    needs: &Needs,
    cursor: &mut RemoteCursor,
) -> Result<Landed, DirectError> {
    match (plan.durability, way.local(), &needs.tier) {
        (Durability::Memory, Some(link), Some(tier))
            if plan.digests.iter().all(|kind| kind.combines()) =>
        {
            land::run(plan, link, tier, cursor).await
        }
        _ => Ok(Landed::default()),
    }
}

/// The READs of a transfer, some ahead of the piece being taken.
struct Reads<'a, T: Transport> {
    /// Bytes of each chunk, and those of them asked for.
    chunks: VecDeque<(u64, u64)>,
    under_way: VecDeque<(T::Posted, usize)>,
    cursor: RemoteCursor,
    way: &'a T,
    pool: &'a LeasePool,
}

impl<T: Transport> Reads<'_, T> {
    /// The next piece. It lies in one chunk.
    async fn next(&mut self) -> Result<Piece, DirectError> {
        while self.under_way.len() < READS_IN_FLIGHT && self.begin().await? {}
        let next = self.under_way.pop_front();
        let (posted, length) = next.ok_or(DirectError::InvalidPlan("nothing is left to read"))?;
        let leases = self.way.landed(posted).await?;
        let lease = leases.into_iter().next().expect("a READ gives its lease back");
        Ok(Piece::landed(lease, length))
    }

    /// Begins a READ; `false` when there is none left, or no buffer for it.
    async fn begin(&mut self) -> Result<bool, DirectError> {
        while self.chunks.front().is_some_and(|(whole, at)| at == whole) {
            self.chunks.pop_front();
        }
        let Some((whole, at)) = self.chunks.front_mut() else { return Ok(false) };
        let (class, length) = next_piece(*at, *whole, self.pool);
        // One that holds buffers must not wait for more: two such would wait for each other.
        let lease = match self.under_way.is_empty() {
            true => self.pool.lease(class).await,
            false => match self.pool.try_lease(class) {
                Some(lease) => lease,
                None => return Ok(false),
            },
        };
        *at += length as u64;
        let runs = self.cursor.take(length as u32);
        let mut batch = T::Batch::default();
        self.way.read(&mut batch, lease, &runs);
        let posted = self.way.begin(batch).await?;
        self.under_way.push_back((posted, length));
        Ok(true)
    }
}

/// Hashes pieces in order: CRCs in place, slow digests on a blocking thread.
struct PieceHasher {
    fast: MultiHasher,
    slow: Option<MultiHasher>,
}

impl PieceHasher {
    fn new(digests: DigestSet) -> Self {
        let (fast, slow) = digests.iter().partition::<Vec<_>, _>(|kind| kind.combines());
        let slow = (!slow.is_empty()).then(|| MultiHasher::new(slow.into_iter().collect()));
        Self { fast: MultiHasher::new(fast.into_iter().collect()), slow }
    }

    async fn update(&mut self, piece: Piece) -> Result<Piece, DirectError> {
        self.fast.update(piece.bytes());
        let Some(mut slow) = self.slow.take() else { return Ok(piece) };
        let hashed = tokio::task::spawn_blocking(move || {
            slow.update(piece.bytes());
            (slow, piece)
        });
        let (slow, piece) = hashed.await.map_err(|_| TransferError::Store {
            reason: "the hashing thread was lost".into(),
            sticky: false,
        })?;
        self.slow = Some(slow);
        Ok(piece)
    }

    fn finish(self) -> Digests {
        let slow = self.slow.map(MultiHasher::finish).unwrap_or_default();
        self.fast.finish().iter().chain(slow.iter()).copied().collect()
    }
}
