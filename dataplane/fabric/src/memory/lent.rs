//! Memory lent by the range, wherever it is: in the host or in a GPU.
//!
//! Invariant: `Lends` never holds an exclusive range that overlaps another entry, and every
//! living [`Exclusive`] or [`Shared`] has exactly one entry, equal to its range. So whoever
//! owns an `Exclusive` is the only one with a way to its bytes, and whoever lends anew needs
//! the owner's `&mut`.
//!
//! Cost: one lock per lend, split and drop, none per byte.

use std::any::Any;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::lends::{LendError, Lends};

/// A caller's memory, whole, and what of it is out.
pub(super) struct Whole<M> {
    pub(super) memory: M,
    bytes: usize,
    lends: Mutex<Lends>,
}

impl<M> Whole<M> {
    pub(super) fn new(memory: M, bytes: usize) -> Arc<Self> {
        Arc::new(Self { memory, bytes, lends: Mutex::new(Lends::default()) })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nobody fills any of it.
    pub(super) fn is_readable(&self) -> bool {
        self.lends.lock().exclusive.is_empty()
    }

    /// Whether nothing of it is out.
    pub(super) fn is_idle(&self) -> bool {
        self.lends.lock().is_empty()
    }

    /// Takes the memory out.
    pub(super) fn into_memory(self) -> M {
        self.memory
    }

    /// The bytes that a range names.
    pub(super) fn resolve(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<Range<usize>, LendError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.bytes,
        };
        if start <= end && end <= self.bytes {
            Ok(start..end)
        } else {
            Err(LendError::OutOfRange { start, end, length: self.bytes })
        }
    }
}

/// A range that is out to one transfer alone.
pub(super) struct Exclusive<M> {
    whole: Arc<Whole<M>>,
    range: Range<usize>,
}

impl<M> Exclusive<M> {
    pub(super) fn lend(
        whole: &Arc<Whole<M>>,
        range: impl RangeBounds<usize>,
    ) -> Result<Self, LendError> {
        let range = whole.resolve(range)?;
        whole.lends.lock().lend_exclusive(range.clone())?;
        Ok(Self { whole: Arc::clone(whole), range })
    }

    pub(super) fn memory(&self) -> &M {
        &self.whole.memory
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Cuts off and gives the first `bytes` bytes; `self` keeps the rest.
    pub(super) fn split_to(&mut self, bytes: usize) -> Self {
        let length = self.range.len();
        assert!(bytes <= length, "cannot cut {bytes} bytes off a slice of {length}");
        let cut = self.range.start + bytes;
        self.whole.lends.lock().split_exclusive(&self.range, cut);
        let front = self.range.start..cut;
        self.range.start = cut;
        Self { whole: Arc::clone(&self.whole), range: front }
    }

    /// Joins `next` back on, which begins where `self` ends; gives it back otherwise.
    pub(super) fn unsplit(&mut self, mut next: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.whole, &next.whole) || self.range.end != next.range.start {
            return Err(next);
        }
        let end = next.range.end;
        self.whole.lends.lock().join_exclusive(&self.range, &next.range);
        self.range.end = end;
        // Its entry is empty by now; dropping it takes that out.
        next.range.start = end;
        Ok(())
    }

    /// Ends the exclusive lend: the same bytes for reading.
    pub(super) fn freeze(self) -> Shared<M> {
        // The reader's entry comes before the writer's goes, so that nobody gets in between.
        self.whole.lends.lock().share(self.range.clone());
        Shared { whole: Arc::clone(&self.whole), range: self.range.clone() }
    }

    pub(super) fn life(&self) -> BufferLife
    where
        M: Send + Sync + 'static,
    {
        BufferLife::of(&self.whole)
    }
}

impl<M> Drop for Exclusive<M> {
    fn drop(&mut self) {
        self.whole.lends.lock().return_exclusive(&self.range);
    }
}

/// A range that is out for reading.
pub(super) struct Shared<M> {
    whole: Arc<Whole<M>>,
    range: Range<usize>,
}

impl<M> Shared<M> {
    pub(super) fn lend(
        whole: &Arc<Whole<M>>,
        range: impl RangeBounds<usize>,
    ) -> Result<Self, LendError> {
        let range = whole.resolve(range)?;
        whole.lends.lock().lend_shared(range.clone())?;
        Ok(Self { whole: Arc::clone(whole), range })
    }

    pub(super) fn memory(&self) -> &M {
        &self.whole.memory
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// A part of it; `range` counts from its first byte.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        let inside = range.start <= range.end && range.end <= self.range.len();
        assert!(inside, "the part leaves its slice");
        let part = self.range.start + range.start..self.range.start + range.end;
        self.whole.lends.lock().share(part.clone());
        Self { whole: Arc::clone(&self.whole), range: part }
    }

    pub(super) fn life(&self) -> BufferLife
    where
        M: Send + Sync + 'static,
    {
        BufferLife::of(&self.whole)
    }
}

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        self.part(0..self.range.len())
    }
}

impl<M> Drop for Shared<M> {
    fn drop(&mut self) {
        self.whole.lends.lock().return_shared(&self.range);
    }
}

/// Whether a buffer is still in use: by its owner, or by a slice of it. A registration does not
/// count: it keeps memory mapped, and is no reason for anybody to use it.
#[derive(Clone)]
pub struct BufferLife(Weak<dyn Any + Send + Sync>);

impl BufferLife {
    fn of<M: Send + Sync + 'static>(whole: &Arc<Whole<M>>) -> Self {
        let life: Weak<Whole<M>> = Arc::downgrade(whole);
        Self(life)
    }

    /// Whether the buffer and all slices of it are gone.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl fmt::Debug for BufferLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferLife").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}
