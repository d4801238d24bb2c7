//! How much of what is shared a tenant gets.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A tenant's share of what several want at once: twice the weight, twice the bytes. Where
/// nobody else wants it, a tenant gets all there is, whatever its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u16);

impl Weight {
    /// The smallest.
    pub const MIN: Self = Self(1);
    /// The largest: a hundred times what a tenant has unless it is said.
    pub const MAX: Self = Self(10_000);

    /// The weight of this number, 1 to 10,000.
    pub fn new(number: u32) -> Option<Self> {
        let number = u16::try_from(number).ok()?;
        (Self::MIN.0..=Self::MAX.0).contains(&number).then_some(Self(number))
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }
}

impl Default for Weight {
    /// A hundred.
    fn default() -> Self {
        Self(100)
    }
}

/// A number that is no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a weight is a number from 1 to 10000")]
pub struct InvalidWeight;

impl TryFrom<u32> for Weight {
    type Error = InvalidWeight;

    fn try_from(number: u32) -> Result<Self, InvalidWeight> {
        Self::new(number).ok_or(InvalidWeight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> Self {
        weight.get()
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_bounds() {
        for number in [1, 100, 10_000] {
            assert_eq!(Weight::new(number).map(Weight::get), Some(number));
        }
        for number in [0, 10_001, 65_537, u32::MAX] {
            assert_eq!(Weight::try_from(number), Err(InvalidWeight));
        }
    }
}
