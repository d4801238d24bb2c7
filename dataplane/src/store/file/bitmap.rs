//! Which units of a volume are taken.

/// A set of small numbers that finds free runs.
pub(super) struct Bitmap {
    words: Vec<u64>,
    length: usize,
    free: usize,
}

impl Bitmap {
    /// All of `length` numbers free.
    pub(super) fn new(length: usize) -> Self {
        Self { words: vec![0; length.div_ceil(64)], length, free: length }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Whether a number is taken; those past the end always are.
    pub(super) fn is_set(&self, number: usize) -> bool {
        number >= self.length || self.words[number / 64] & 1 << (number % 64) != 0
    }

    pub(super) fn set(&mut self, number: usize) {
        if !self.is_set(number) {
            self.words[number / 64] |= 1 << (number % 64);
            self.free -= 1;
        }
    }

    pub(super) fn clear(&mut self, number: usize) {
        if number < self.length && self.is_set(number) {
            self.words[number / 64] &= !(1 << (number % 64));
            self.free += 1;
        }
    }

    /// Takes `count` numbers that follow each other, the first that do.
    pub(super) fn take_run(&mut self, count: usize) -> Option<Vec<u16>> {
        if count == 0 || count > self.free {
            return None;
        }
        let mut start = 0;
        while start + count <= self.length {
            if self.words[start / 64] == u64::MAX {
                start = (start / 64 + 1) * 64;
                continue;
            }
            match (start..start + count).rev().find(|number| self.is_set(*number)) {
                Some(taken) => start = taken + 1,
                None => return Some(self.take_all(start..start + count)),
            }
        }
        None
    }

    /// Takes `count` numbers, together if possible.
    pub(super) fn take(&mut self, count: usize) -> Option<Vec<u16>> {
        if count > self.free {
            return None;
        }
        if let Some(run) = self.take_run(count) {
            return Some(run);
        }
        let scattered: Vec<usize> =
            (0..self.length).filter(|number| !self.is_set(*number)).take(count).collect();
        Some(self.take_all(scattered))
    }

    fn take_all(&mut self, numbers: impl IntoIterator<Item = usize>) -> Vec<u16> {
        let take = |number: usize| {
            self.set(number);
            number as u16
        };
        numbers.into_iter().map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_first_then_scattered() {
        let mut bitmap = Bitmap::new(70);
        assert_eq!(bitmap.take_run(3), Some(vec![0, 1, 2]));
        assert_eq!(bitmap.take_run(66), Some((3..69).collect()));
        bitmap.clear(1);
        bitmap.clear(40);
        assert_eq!(bitmap.take_run(2), None);
        assert_eq!(bitmap.take(3), Some(vec![1, 40, 69]));
        assert_eq!((bitmap.take(1), bitmap.free()), (None, 0));
    }

    proptest! {
        /// What is given out was free, and is counted.
        #[test]
        fn behaves_like_a_set(
            length in 1usize..200,
            steps in prop::collection::vec((0usize..20, any::<bool>(), 0usize..200), 0..60),
        ) {
            let mut bitmap = Bitmap::new(length);
            let mut model = std::collections::BTreeSet::new();
            for (count, as_run, freed) in steps {
                let free = length - model.len();
                let taken = if as_run { bitmap.take_run(count) } else { bitmap.take(count) };
                if let Some(numbers) = &taken {
                    prop_assert_eq!(numbers.len(), count);
                    for number in numbers {
                        prop_assert!(usize::from(*number) < length && model.insert(*number));
                    }
                }
                prop_assert!(as_run || taken.is_some() == (count <= free));
                model.remove(&(freed as u16));
                bitmap.clear(freed);
                prop_assert_eq!(bitmap.free(), length - model.len());
            }
        }
    }
}
