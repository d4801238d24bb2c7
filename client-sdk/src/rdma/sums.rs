//! Checksums of host memory that a transfer has filled, or will drain.
//!
//! Nothing is known of a transfer's bytes before all have landed, so that the time for their sum
//! adds to its own: one thread sums 12 GB/s out of memory, and a link brings 50. So CRCs,
//! which combine, are summed by several threads, piece by piece. The caller's task takes pieces
//! like the others and waits only for those that others have begun.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::thread::available_parallelism;

use keyway_proto::checksum::MultiHasher;
use keyway_proto::{Checksum, DigestSet, Digests};
use tokio::sync::mpsc;

/// Bytes that one thread takes at a time, and that are summed before other tasks have their turn.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces for which it is worth to wake a thread.
const PIECES_MIN: usize = 2;
/// Threads that sum one memory; several transfers of a process sum at once.
const THREADS_MAX: usize = 4;

static THREADS: LazyLock<usize> =
    LazyLock::new(|| available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX)));

/// Checksums of the first `bytes` bytes of the memory, which comes back.
pub(super) async fn of<M>(memory: M, bytes: usize, set: DigestSet) -> (M, Digests)
where
    M: Deref<Target = [u8]> + Send + Sync + 'static,
{
    let job = Job { bytes, set, next: AtomicUsize::new(0) };
    let threads = (job.pieces() / PIECES_MIN).min(*THREADS);
    if threads < 2 || !set.iter().all(|kind| kind.combines()) {
        let digests = in_order(&memory[..bytes], set).await;
        return (memory, digests);
    }
    let (job, memory) = (Arc::new(job), Arc::new(memory));
    let (tell, mut told) = mpsc::unbounded_channel();
    for _ in 1..threads {
        let (job, memory, tell) = (Arc::clone(&job), Arc::downgrade(&memory), tell.clone());
        tokio::task::spawn_blocking(move || job.help(&memory, &tell));
    }
    drop(tell);
    let mut sums = vec![None; job.pieces()];
    let mut missing = sums.len();
    while let Some(piece) = job.take() {
        sums[piece] = Some(job.sum(&memory, piece));
        missing -= 1;
        tokio::task::yield_now().await;
    }
    for _ in 0..missing {
        let (piece, sum) = told.recv().await.expect("who takes a piece tells its sum");
        sums[piece] = Some(sum);
    }
    let memory = Arc::into_inner(memory).expect("who has told a sum holds no memory");
    (memory, job.joined(sums.iter().flatten()))
}

async fn in_order(bytes: &[u8], set: DigestSet) -> Digests {
    let mut hasher = MultiHasher::new(set);
    for (turn, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        if turn > 0 {
            tokio::task::yield_now().await;
        }
        hasher.update(piece);
    }
    hasher.finish()
}

/// What several threads sum.
struct Job {
    bytes: usize,
    set: DigestSet,
    /// The piece that nobody has taken yet.
    next: AtomicUsize,
}

impl Job {
    fn pieces(&self) -> usize {
        self.bytes.div_ceil(PIECE_BYTES)
    }

    fn take(&self) -> Option<usize> {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        (piece < self.pieces()).then_some(piece)
    }

    fn range(&self, piece: usize) -> Range<usize> {
        let begin = piece * PIECE_BYTES;
        begin..self.bytes.min(begin + PIECE_BYTES)
    }

    fn sum(&self, memory: &[u8], piece: usize) -> Digests {
        let mut hasher = MultiHasher::new(self.set);
        hasher.update(&memory[self.range(piece)]);
        hasher.finish()
    }

    /// Sums pieces until none is left, or the memory's owner has given up.
    fn help<M>(&self, memory: &Weak<M>, tell: &mpsc::UnboundedSender<(usize, Digests)>)
    where
        M: Deref<Target = [u8]>,
    {
        while let Some(piece) = self.take() {
            let Some(memory) = memory.upgrade() else { return };
            let sum = self.sum(&memory, piece);
            // Before it is told, since the owner takes its memory back then.
            drop(memory);
            let _ = tell.send((piece, sum));
        }
    }

    /// The checksums of all, of those of each piece.
    fn joined<'a>(&self, sums: impl Iterator<Item = &'a Digests>) -> Digests {
        let join = |before: Digests, (piece, next): (usize, &Digests)| {
            let length = self.range(piece).len() as u64;
            let combine = |sum: &Checksum| sum.combine(next.value(sum.kind())?, length);
            before.iter().filter_map(combine).collect()
        };
        sums.enumerate().fold(MultiHasher::new(self.set).finish(), join)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keyway_proto::ChecksumKind;
    use proptest::prelude::*;

    use super::*;

    const CRCS: [ChecksumKind; 3] =
        [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme];

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// However long, and whoever sums which piece.
        #[test]
        fn several_threads_find_what_one_does(
            spare in 0..4096_usize,
            pieces in 0..9_usize,
            odd in -1_isize..=1,
            kinds in proptest::sample::subsequence(&ChecksumKind::ALL, 0..=6),
        ) {
            let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
            let bytes = (pieces * PIECE_BYTES).saturating_add_signed(odd);
            let memory = noise(bytes + spare);
            for set in [kinds.into_iter().collect(), CRCS.into_iter().collect::<DigestSet>()] {
                let found = runtime.block_on(of(memory.clone(), bytes, set));
                let one = set.iter().map(|kind| Checksum::of(kind, &memory[..bytes])).collect();
                prop_assert_eq!(found, (memory.clone(), one));
            }
        }
    }

    /// Memory that is slow to read.
    struct Slow(Arc<Vec<u8>>);

    impl Deref for Slow {
        type Target = [u8];

        fn deref(&self) -> &[u8] {
            std::thread::sleep(Duration::from_millis(10));
            &self.0
        }
    }

    /// Whoever gives up has the memory freed after the pieces that others have begun.
    #[tokio::test]
    async fn the_memory_of_one_who_gives_up_is_freed() {
        let memory = Arc::new(noise(64 * PIECE_BYTES));
        let set = DigestSet::NONE.with(ChecksumKind::Crc64Nvme);
        let sums = of(Slow(Arc::clone(&memory)), memory.len(), set);
        let given_up = tokio::time::timeout(Duration::from_millis(50), sums).await;
        assert!(given_up.is_err(), "64 pieces take two threads 320 ms");
        while Arc::strong_count(&memory) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
