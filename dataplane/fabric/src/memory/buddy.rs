//! Which pages of an arena are free: a buddy allocator that wastes no page.
//!
//! Blocks are powers of two pages, aligned to their size, up to [`BLOCK_PAGES_MAX`]. A run of
//! any other length takes the next larger block and gives its tail back at once, so a run is
//! contiguous and costs what it holds: 9 MiB take 9 MiB, not 16. Free blocks are taken lowest
//! address first, which keeps large ones whole at the other end. No I/O, no addresses: page
//! numbers alone.

use std::collections::BTreeSet;

/// Orders of blocks: 2^0 to 2^12 pages.
const ORDERS: usize = 13;
/// Pages of the largest block: 16 MiB.
pub(super) const BLOCK_PAGES_MAX: u32 = 1 << (ORDERS - 1);

pub(super) struct Buddy {
    /// First pages of the free blocks of each order.
    free: [BTreeSet<u32>; ORDERS],
    free_pages: u32,
    pages: u32,
}

impl Buddy {
    /// With pages `0..pages` free.
    pub(super) fn new(pages: u32) -> Self {
        let mut buddy = Self { free: Default::default(), free_pages: 0, pages };
        buddy.give_back(0, pages);
        buddy
    }

    pub(super) fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// The first of `pages` free pages in a row, which are taken from now on.
    pub(super) fn take(&mut self, pages: u32) -> Option<u32> {
        if !(1..=BLOCK_PAGES_MAX).contains(&pages) {
            return None;
        }
        let order = pages.next_power_of_two().trailing_zeros() as usize;
        let from = (order..ORDERS).find(|order| !self.free[*order].is_empty())?;
        let first = self.free[from].pop_first().expect("the set is not empty");
        let block = 1 << from;
        self.free_pages -= block;
        self.give_back(first + pages, block - pages);
        Some(first)
    }

    /// Frees pages. They must have been taken.
    pub(super) fn give_back(&mut self, mut first: u32, mut pages: u32) {
        while pages > 0 {
            // The largest aligned block that begins here and does not reach further.
            let fits = pages.ilog2().min(first.trailing_zeros()).min(ORDERS as u32 - 1);
            self.give_back_block(first, fits as usize);
            first += 1 << fits;
            pages -= 1 << fits;
        }
    }

    fn give_back_block(&mut self, mut first: u32, mut order: usize) {
        self.free_pages += 1 << order;
        assert!(self.free_pages <= self.pages, "pages are given back once");
        while order + 1 < ORDERS && self.free[order].remove(&(first ^ 1 << order)) {
            first &= !(1 << order);
            order += 1;
        }
        let fresh = self.free[order].insert(first);
        assert!(fresh, "pages are given back once");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Runs never overlap, what is free adds up, and all of it joins again.
        #[test]
        fn runs_are_disjoint_and_join_again(
            pages in 1u32..3 * BLOCK_PAGES_MAX,
            steps in prop::collection::vec((any::<bool>(), 1..BLOCK_PAGES_MAX + 2), 1..200),
        ) {
            let mut buddy = Buddy::new(pages);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (take, length) in steps {
                if take {
                    let clashes = |taken: &[(u32, u32)], first, length| {
                        let apart = |(other, many): &(u32, u32)| {
                            first + length <= *other || other + many <= first
                        };
                        !taken.iter().all(apart)
                    };
                    if let Some(first) = buddy.take(length) {
                        prop_assert!(first + length <= pages && !clashes(&taken, first, length));
                        taken.push((first, length));
                    } else if length <= BLOCK_PAGES_MAX {
                        // Refused only when no aligned block is free.
                        let block = length.next_power_of_two();
                        for first in (0..pages / block).map(|number| number * block) {
                            prop_assert!(clashes(&taken, first, block));
                        }
                    }
                } else if !taken.is_empty() {
                    let (first, length) = taken.swap_remove(length as usize % taken.len());
                    buddy.give_back(first, length);
                }
                let held: u32 = taken.iter().map(|(_, many)| many).sum();
                prop_assert_eq!(buddy.free_pages() + held, pages);
            }
            for (first, length) in taken {
                buddy.give_back(first, length);
            }
            prop_assert_eq!(&buddy.free, &Buddy::new(pages).free);
        }
    }

    #[test]
    fn a_run_wastes_no_page() {
        let mut buddy = Buddy::new(BLOCK_PAGES_MAX);
        let run = buddy.take(BLOCK_PAGES_MAX / 2 + 1).expect("free");
        assert_eq!(buddy.free_pages(), BLOCK_PAGES_MAX / 2 - 1);
        assert_eq!(buddy.take(BLOCK_PAGES_MAX / 4), Some(run + BLOCK_PAGES_MAX * 3 / 4));
        assert_eq!(buddy.take(0), None);
        assert_eq!(buddy.take(BLOCK_PAGES_MAX + 1), None);
    }
}
