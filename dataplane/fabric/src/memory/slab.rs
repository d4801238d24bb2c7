//! Memory that a device has registered for long, given out in pieces, one transfer each.
//!
//! Sketch: an [`Arena`] of whole blocks. A run of bytes takes one contiguous extent, or, where it is
//! longer than a block, several: as many blocks as it needs, the last maybe in part. Taking them is
//! some tree steps under one lock; who finds none free waits.
//!
//! Who waits is served in the order of coming, whatever the others want: many short runs cannot
//! starve a long one. Only the first in the queue holds pieces while it waits for more, and no
//! run is longer than the slab, so that those who have theirs always end its wait.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Mutex, Notify};

use super::arena::{Arena, ArenaStats, EXTENT_BYTES_MAX, Extent, OpenExtent};
use super::region::{HugePages, MemoryError};
use crate::verbs::Anchor;

/// Longest piece that is one run of addresses; a slab is made of such blocks.
pub const PIECE_BYTES_MAX: usize = EXTENT_BYTES_MAX;

/// A bounded memory of pieces. Clones share it.
#[derive(Clone)]
pub struct Slab {
    shared: Arc<Shared>,
}

struct Shared {
    arena: Arena,
    bytes: usize,
    /// Held by the first of those who wait; fair.
    turn: Mutex<()>,
    /// Told with each piece that comes back. Keeps one word for who is not listening yet.
    freed: Notify,
}

impl Slab {
    /// A slab of as many whole blocks as `bytes` bytes hold, and at least one.
    ///
    /// # Errors
    /// [`MemoryError`] when the kernel refuses the memory.
    pub fn map(bytes: usize) -> Result<Self, MemoryError> {
        let bytes = (bytes / PIECE_BYTES_MAX).max(1) * PIECE_BYTES_MAX;
        let arena = Arena::map(bytes, HugePages::Transparent)?;
        let (turn, freed) = (Mutex::default(), Notify::new());
        Ok(Self { shared: Arc::new(Shared { arena, bytes, turn, freed }) })
    }

    /// Most bytes of one run: all that there are.
    pub fn bytes(&self) -> usize {
        self.shared.bytes
    }

    /// How full it is.
    pub fn stats(&self) -> ArenaStats {
        self.shared.arena.stats()
    }

    /// All of it, with what keeps it mapped: for one registration.
    pub fn anchor(&self) -> Anchor {
        self.shared.arena.anchor()
    }

    /// Room for a run of `bytes` bytes. Waits for it; whoever gives up waiting holds nothing.
    ///
    /// # Panics
    /// When the run is empty, or longer than the slab.
    pub async fn take(&self, bytes: usize) -> Pieces {
        assert!((1..=self.bytes()).contains(&bytes), "a run fits its slab");
        let _turn = self.shared.turn.lock().await;
        let mut pieces = Pieces { extents: Vec::new(), bytes, slab: self.clone() };
        let mut left = bytes;
        while left > 0 {
            let length = left.min(PIECE_BYTES_MAX);
            let extent = loop {
                match self.shared.arena.extent(length).and_then(Extent::open) {
                    Some(extent) => break extent,
                    None => self.shared.freed.notified().await,
                }
            };
            pieces.extents.push(extent);
            left -= length;
        }
        pieces
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The pieces of one run, its holder's alone. Given back on drop: by whoever knows that no device
/// and no peer reaches them any more under what the run was for.
pub struct Pieces {
    extents: Vec<OpenExtent>,
    bytes: usize,
    slab: Slab,
}

impl Pieces {
    /// Bytes of the run.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it holds no byte. None does.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The pieces in the order of the run's bytes: where each begins, and its bytes.
    pub fn places(&self) -> impl Iterator<Item = (u64, usize)> {
        self.extents.iter().map(|extent| (extent.base().as_ptr() as u64, extent.len()))
    }

    /// The bytes of each piece. A device or peer that writes there has to be done.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.extents.iter().map(|extent| &extent[..])
    }

    /// The same, to be filled. A device or peer that reads there must not have begun.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.extents.iter_mut().map(|extent| &mut extent[..])
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // The memory first: who is woken must find it.
        self.extents.clear();
        self.slab.shared.freed.notify_one();
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::memory::PAGE_BYTES;

    const BLOCK: usize = PIECE_BYTES_MAX;

    #[test]
    fn a_run_is_as_long_as_it_was_asked_for() {
        let slab = Slab::map(2 * BLOCK + 5).expect("memory");
        assert_eq!(slab.bytes(), 2 * BLOCK);
        for bytes in [1, PAGE_BYTES + 1, BLOCK, BLOCK + 1, 2 * BLOCK] {
            let mut run = slab.take(bytes).now_or_never().expect("free");
            assert_eq!(run.places().count(), bytes.div_ceil(BLOCK));
            run.parts_mut().for_each(|part| part.fill(7));
            assert_eq!(run.parts().map(<[u8]>::len).sum::<usize>(), bytes);
            assert_eq!(slab.stats().used_bytes, bytes.next_multiple_of(PAGE_BYTES) as u64);
        }
        assert_eq!(slab.stats().used_bytes, 0);
        assert_eq!(Slab::map(1).expect("memory").bytes(), BLOCK);
    }

    /// The long run waits for all that is out, and who comes after it for the long run.
    #[test]
    fn nobody_overtakes_who_waits() {
        let slab = Slab::map(2 * BLOCK).expect("memory");
        let short = slab.take(1).now_or_never().expect("free");
        let mut long = pin!(slab.take(2 * BLOCK));
        assert!(long.as_mut().now_or_never().is_none());
        let mut late = pin!(slab.take(1));
        assert!(late.as_mut().now_or_never().is_none(), "there is room, but not its turn");
        drop(short);
        let long = long.as_mut().now_or_never().expect("all is free");
        assert!(late.as_mut().now_or_never().is_none());
        drop(long);
        assert!(late.as_mut().now_or_never().is_some());
    }

    /// Who gives up waiting gives back what it had, and leaves its turn to the next.
    #[test]
    fn who_gives_up_leaves_no_hole() {
        let slab = Slab::map(2 * BLOCK).expect("memory");
        let short = slab.take(1).now_or_never().expect("free");
        {
            let mut long = pin!(slab.take(2 * BLOCK));
            assert!(long.as_mut().now_or_never().is_none());
            assert!(slab.stats().used_bytes > BLOCK as u64, "it holds a block meanwhile");
        }
        let next = slab.take(BLOCK).now_or_never().expect("a block is free again");
        drop((short, next));
        assert_eq!(slab.stats().used_bytes, 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// No two living runs share a byte, and all of it is free in the end.
        #[test]
        fn runs_are_disjoint(steps in prop::collection::vec((any::<bool>(), 1..=3 * BLOCK), 1..60)) {
            let slab = Slab::map(3 * BLOCK).expect("memory");
            let mut runs: Vec<Pieces> = Vec::new();
            for (take, number) in steps {
                if take {
                    // A run for which there is no room waits: it is given up here.
                    runs.extend(slab.take(number).now_or_never());
                } else if !runs.is_empty() {
                    runs.swap_remove(number % runs.len());
                }
                let mut places: Vec<_> = runs.iter().flat_map(Pieces::places).collect();
                places.sort_unstable();
                let apart = |two: &[(u64, usize)]| two[0].0 + two[0].1 as u64 <= two[1].0;
                prop_assert!(places.windows(2).all(apart));
                let held: usize =
                    places.iter().map(|(_, bytes)| bytes.next_multiple_of(PAGE_BYTES)).sum();
                prop_assert_eq!(slab.stats().used_bytes, held as u64);
            }
            runs.clear();
            prop_assert!(slab.take(3 * BLOCK).now_or_never().is_some());
        }
    }
}
