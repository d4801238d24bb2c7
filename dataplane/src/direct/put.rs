//! PUT: the client's memory → leases → extents, but for what [`land`](super::land) takes.
//!
//! Sketch, per MiB: one RDMA READ, or one copy, into a lease, one pass of CRC32C per block and one
//! of each digest asked for, one device write from the same lease. Up to [`READS_IN_FLIGHT`] READs
//! run ahead of the drive. MD5 and SHA run on a blocking thread, a piece at a time, and bound the
//! transfer where they are asked for. Where the plan has a key, the piece is encrypted where it
//! landed, once it was summed: one move within the cache and one pass of AES-GCM more.

use std::collections::VecDeque;

use futures::FutureExt as _;
use futures::future::{BoxFuture, ready, try_join_all};
use keyway_fabric::memory::{Lease, LeasePool};
use keyway_proto::checksum::MultiHasher;
use keyway_proto::seal::opened_length;
use keyway_proto::{DigestSet, Digests, DirectTarget, Durability, PutPlan};

use super::execute::Needs;
use super::land::{self, Landed};
use super::remote::RemoteCursor;
use super::transport::Transport;
use crate::cipher::INLINE_BYTES_MAX;
use crate::engine::{Turn, begin_chunk, publish, stored};
use crate::node::{DirectError, TransferError};
use crate::store::{BlobStore, Piece, Sealer, StagedChunk, StoreError, next_piece};

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
    target: &DirectTarget,
    way: &T,
    needs: &Needs,
    turn: Turn,
) -> Result<Staging, DirectError> {
    if !plan.is_sound() {
        return Err(DirectError::InvalidPlan("a chunk's length is out of bounds"));
    }
    let mut cursor = RemoteCursor::new(target);
    let landed = land(plan, way, needs, &mut cursor).await?;
    let rest = &plan.chunks[landed.chunks.len()..];
    let mut reads = Reads {
        chunks: rest.iter().map(|chunk| (stored(*chunk, plan).0.length, 0)).collect(),
        is_sealed: plan.key.is_some(),
        under_way: VecDeque::with_capacity(READS_IN_FLIGHT),
        cursor,
        way,
        pool: &needs.pool,
    };
    let mut hasher = PieceHasher::new(plan.digests);
    let mut seals: Vec<Seal> = Vec::with_capacity(rest.len());
    let mut durability = Durability::Disk;
    for chunk in rest {
        let (stored, cipher) = stored(*chunk, plan);
        let (mut writer, of_chunk) =
            begin_chunk(stored, plan, &*needs.store, needs.tier.as_deref()).await?;
        durability = durability.min(of_chunk);
        let mut at = 0;
        while at < stored.length {
            let sealer = cipher.as_ref().map(|cipher| Sealer::at(cipher, at));
            let piece = hasher.update(reads.next().await?, sealer).await?;
            at += piece.len() as u64;
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
        // Encrypted bytes are made by a processor, out of leases.
        (Durability::Memory, Some(link), Some(tier))
            if plan.key.is_none() && plan.digests.iter().all(|kind| kind.combines()) =>
        {
            land::run(plan, link, tier, cursor).await
        }
        _ => Ok(Landed::default()),
    }
}

/// The READs of a transfer, some ahead of the piece being taken.
struct Reads<'a, T: Transport> {
    /// Stored bytes of each chunk, and those of them asked for.
    chunks: VecDeque<(u64, u64)>,
    /// Whether some of those are tags.
    is_sealed: bool,
    under_way: VecDeque<(T::Posted, usize)>,
    cursor: RemoteCursor,
    way: &'a T,
    pool: &'a LeasePool,
}

impl<T: Transport> Reads<'_, T> {
    /// The object's bytes of the next piece. It lies in one chunk, and fits the lease.
    async fn next(&mut self) -> Result<(Lease, usize), DirectError> {
        while self.under_way.len() < READS_IN_FLIGHT && self.begin().await? {}
        let next = self.under_way.pop_front();
        let (posted, length) = next.ok_or(DirectError::InvalidPlan("nothing is left to read"))?;
        let leases = self.way.landed(posted).await?;
        let lease = leases.into_iter().next().expect("a READ gives its lease back");
        Ok((lease, length))
    }

    /// Begins a READ; `false` when there is none left, or no buffer for it.
    async fn begin(&mut self) -> Result<bool, DirectError> {
        while self.chunks.front().is_some_and(|(whole, at)| at == whole) {
            self.chunks.pop_front();
        }
        let Some((whole, at)) = self.chunks.front_mut() else { return Ok(false) };
        let (class, room) = next_piece(*at, *whole, self.pool);
        let length = match self.is_sealed {
            true => opened_length(room as u64).expect("pieces are whole blocks") as usize,
            false => room,
        };
        // One that holds buffers must not wait for more: two such would wait for each other.
        let lease = match self.under_way.is_empty() {
            true => self.pool.lease(class).await,
            false => match self.pool.try_lease(class) {
                Some(lease) => lease,
                None => return Ok(false),
            },
        };
        *at += room as u64;
        let runs = self.cursor.take(length as u32);
        let mut batch = T::Batch::default();
        self.way.read(&mut batch, lease, &runs);
        let posted = self.way.begin(batch).await?;
        self.under_way.push_back((posted, length));
        Ok(true)
    }
}

/// Hashes what lands in order: CRCs in place, slow digests on a blocking thread, where long pieces
/// are encrypted, too.
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

    /// Takes in what has landed, and makes a piece of it.
    async fn update(
        &mut self,
        (lease, length): (Lease, usize),
        sealer: Option<Sealer>,
    ) -> Result<Piece, DirectError> {
        self.fast.update(&lease[..length]);
        let mut slow = self.slow.take();
        let seals_long = sealer.is_some() && length > INLINE_BYTES_MAX;
        if slow.is_none() && !seals_long {
            return Ok(piece(lease, length, sealer));
        }
        let hashed = tokio::task::spawn_blocking(move || {
            if let Some(slow) = &mut slow {
                slow.update(&lease[..length]);
            }
            (slow, piece(lease, length, sealer))
        });
        let (slow, piece) = hashed.await.map_err(|_| TransferError::Store {
            reason: "the hashing thread was lost".into(),
            sticky: false,
        })?;
        self.slow = slow;
        Ok(piece)
    }

    fn finish(self) -> Digests {
        let slow = self.slow.map(MultiHasher::finish).unwrap_or_default();
        self.fast.finish().iter().chain(slow.iter()).copied().collect()
    }
}

/// What has landed, as it is to be stored.
fn piece(lease: Lease, length: usize, sealer: Option<Sealer>) -> Piece {
    match sealer {
        Some(sealer) => Piece::landed_sealed(lease, length, &sealer),
        None => Piece::landed(lease, length),
    }
}
