//! The key that an object's bytes are encrypted under.

use std::fmt;

use zeroize::Zeroizing;

/// 256 bits that open an object's chunks, and nothing else. Wiped from memory when dropped, and
/// never printed.
#[derive(Clone)]
pub struct DataKey(Box<Zeroizing<[u8; Self::BYTES]>>);

impl DataKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// The key of these bytes; `None` when they are not as many.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        // Filled where it stays: a move would leave a copy behind.
        let mut key = Box::new(Zeroizing::new([0; Self::BYTES]));
        if bytes.len() != Self::BYTES {
            return None;
        }
        key.copy_from_slice(bytes);
        Some(Self(key))
    }

    /// The bytes, for whoever encrypts with them or hands them on sealed.
    pub fn expose(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl PartialEq for DataKey {
    /// Looks at all bytes, whichever differ.
    fn eq(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(other.0.iter()).fold(0, |sum, (a, b)| sum | (a ^ b));
        differing == 0
    }
}

impl Eq for DataKey {}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_their_bytes_and_do_not_show_them() {
        let key = DataKey::from_slice(&[0xab; 32]).expect("32 bytes");
        assert_eq!(key.expose(), &[0xab; 32]);
        assert_eq!(Some(key.clone()), DataKey::from_slice(&[0xab; 32]));
        let mut other = [0xab; 32];
        other[31] ^= 1;
        assert_ne!(Some(key.clone()), DataKey::from_slice(&other));
        for length in [0, 31, 33] {
            assert!(DataKey::from_slice(&vec![0; length]).is_none(), "{length} bytes");
        }
        assert_eq!(format!("{key:?}"), "DataKey(hidden)");
    }
}
