//! Byte ranges within an object, a chunk or a buffer.

use std::fmt;

/// `length` bytes from `offset` on. `offset + length` never overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    offset: u64,
    length: u64,
}

impl ByteRange {
    /// The range of `length` bytes from `offset` on; `None` when its end would pass `u64::MAX`.
    pub const fn new(offset: u64, length: u64) -> Option<Self> {
        match offset.checked_add(length) {
            Some(_) => Some(Self { offset, length }),
            None => None,
        }
    }

    /// The range of the first `length` bytes.
    pub const fn whole(length: u64) -> Self {
        Self { offset: 0, length }
    }

    /// First byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Number of bytes.
    pub const fn length(self) -> u64 {
        self.length
    }

    /// The byte after the last.
    pub const fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Whether it covers no byte.
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Whether every byte of `other` lies in this range.
    pub const fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }

    /// The bytes that both ranges cover; `None` when there are none.
    pub fn intersect(self, other: Self) -> Option<Self> {
        let offset = self.offset.max(other.offset);
        let end = self.end().min(other.end());
        (offset < end).then(|| Self { offset, length: end - offset })
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflowing_range_is_no_range() {
        assert_eq!(ByteRange::new(u64::MAX, 1), None);
        assert!(ByteRange::new(u64::MAX, 0).is_some());
    }

    #[test]
    fn intersection_is_what_both_cover() {
        let left = ByteRange::new(10, 10).expect("fits");
        let right = ByteRange::new(15, 10).expect("fits");
        assert_eq!(left.intersect(right), ByteRange::new(15, 5));
        assert_eq!(left.intersect(ByteRange::new(20, 1).expect("fits")), None);
    }
}
