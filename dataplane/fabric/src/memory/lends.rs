//! Which ranges of a buffer are out, and to whom: one transfer alone, or any number of
//! readers.

use std::ops::Range;

/// Why a range was not lent, or bytes not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LendError {
    /// The range leaves the buffer.
    #[error("bytes {start}..{end} are not inside a buffer of {length} bytes")]
    OutOfRange {
        /// First byte asked for.
        start: usize,
        /// The byte after the last asked for.
        end: usize,
        /// The buffer's length.
        length: usize,
    },
    /// A slice that covers some of these bytes is still out.
    #[error("some of these bytes are lent to a transfer")]
    Lent,
}

/// The ranges that are out. Few at a time (one per transfer), so plain vectors.
#[derive(Default)]
pub(super) struct Lends {
    pub(super) exclusive: Vec<Range<usize>>,
    shared: Vec<Range<usize>>,
}

impl Lends {
    pub(super) fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.shared.is_empty()
    }

    pub(super) fn lend_exclusive(&mut self, range: Range<usize>) -> Result<(), LendError> {
        if overlaps(&self.exclusive, &range) || overlaps(&self.shared, &range) {
            return Err(LendError::Lent);
        }
        self.exclusive.push(range);
        Ok(())
    }

    pub(super) fn lend_shared(&mut self, range: Range<usize>) -> Result<(), LendError> {
        if overlaps(&self.exclusive, &range) {
            return Err(LendError::Lent);
        }
        self.share(range);
        Ok(())
    }

    /// For a range that a living slice of the caller's covers already.
    pub(super) fn share(&mut self, range: Range<usize>) {
        self.shared.push(range);
    }

    pub(super) fn split_exclusive(&mut self, range: &Range<usize>, cut: usize) {
        self.return_exclusive(range);
        self.exclusive.push(range.start..cut);
        self.exclusive.push(cut..range.end);
    }

    /// `left` grows by `right`, which keeps an empty range at its end.
    pub(super) fn join_exclusive(&mut self, left: &Range<usize>, right: &Range<usize>) {
        self.return_exclusive(left);
        self.return_exclusive(right);
        self.exclusive.push(left.start..right.end);
        self.exclusive.push(right.end..right.end);
    }

    pub(super) fn return_exclusive(&mut self, range: &Range<usize>) {
        take(&mut self.exclusive, range);
    }

    pub(super) fn return_shared(&mut self, range: &Range<usize>) {
        take(&mut self.shared, range);
    }
}

fn overlaps(lent: &[Range<usize>], range: &Range<usize>) -> bool {
    lent.iter().any(|other| other.start < range.end && range.start < other.end)
}

fn take(lent: &mut Vec<Range<usize>>, range: &Range<usize>) {
    // From the end: what is cut into a thousand pieces is cut off its last entry.
    let entry = lent.iter().rposition(|other| other == range);
    lent.swap_remove(entry.expect("every living slice has its entry"));
}
