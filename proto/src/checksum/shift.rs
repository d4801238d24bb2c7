//! What a CRC becomes when zeros follow: the arithmetic behind combining.
//!
//! A CRC is a polynomial over GF(2) modulo the algorithm's own, its bits reflected. Appending
//! `n` bytes multiplies it by x^(8n), and x^(8n) is a product of the powers x^(2^k), which stand
//! in a table made at compile time. So a combination costs one multiplication of 64 steps for
//! each bit that is set in `n`: one, for the powers of two that blocks and chunks are. Squaring
//! matrices, as the library does, costs some 20 µs each time: more than reading the bytes.
//!
//! It holds for CRCs that start and end with all bits inverted, as all of ours do.

/// The powers x^(2^k) of one algorithm.
pub(super) struct Shift {
    polynomial: u64,
    /// The bit of x^0: the highest of the algorithm's width.
    one: u64,
    powers: [u64; POWERS],
}

/// Enough for lengths of 2^63 bytes in bits.
const POWERS: usize = 67;

impl Shift {
    /// Of the reflected `polynomial`, `width` bits wide.
    pub(super) const fn new(polynomial: u64, width: u32) -> Self {
        let mut shift = Self { polynomial, one: 1 << (width - 1), powers: [0; POWERS] };
        shift.powers[0] = shift.one >> 1;
        let mut power = 1;
        while power < POWERS {
            let root = shift.powers[power - 1];
            shift.powers[power] = shift.multiply(root, root);
            power += 1;
        }
        shift
    }

    /// The CRC of a run of bytes followed by `length` bytes whose CRC is `next`.
    pub(super) const fn combine(&self, crc: u64, next: u64, mut length: u64) -> u64 {
        let mut shifted = crc;
        // Bytes to bits: three powers up.
        let mut power = 3;
        while length > 0 {
            if length & 1 == 1 {
                shifted = self.multiply(self.powers[power], shifted);
            }
            length >>= 1;
            power += 1;
        }
        shifted ^ next
    }

    const fn multiply(&self, left: u64, mut right: u64) -> u64 {
        let mut product = 0;
        let mut bit = self.one;
        while bit > 0 {
            // Masks instead of branches: the bits of a CRC cannot be predicted.
            product ^= right & ((left & bit != 0) as u64).wrapping_neg();
            right = (right >> 1) ^ (self.polynomial & (right & 1).wrapping_neg());
            bit >>= 1;
        }
        product
    }
}
