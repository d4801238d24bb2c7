//! When stored bytes are compared with their checksums on their way to a reader.

use std::fmt;

use serde::{Deserialize, Serialize};

/// When a node compares what it reads from its device with the blocks' checksums. What its memory
/// tier holds was compared when it came in, and is not read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verification {
    /// All blocks before the first byte leaves: damage is an error instead of a broken body. What
    /// is longer than a small read is read twice.
    BeforeDelivery,
    /// Each block before its own bytes leave: damage breaks the transfer where it is.
    #[default]
    Inline,
    /// Never: the reader compares the object with the checksum that the answer tells.
    Client,
}

impl Verification {
    /// All of them, the strictest first.
    pub const ALL: [Self; 3] = [Self::BeforeDelivery, Self::Inline, Self::Client];

    /// The name, as it appears in headers and settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeDelivery => "before-delivery",
            Self::Inline => "inline",
            Self::Client => "client",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_and_understood() {
        for verification in Verification::ALL {
            assert_eq!(Verification::named(verification.as_str()), Some(verification));
        }
        for other in ["", "Inline", "client ", "none"] {
            assert_eq!(Verification::named(other), None);
        }
    }
}
