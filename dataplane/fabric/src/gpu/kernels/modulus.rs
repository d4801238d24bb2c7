//! Remainders of polynomials over GF(2), as the digest's kernel needs them.
//!
//! Polynomials of 64 coefficients, reflected: bit 0 is that of x^63. A 32-bit CRC's modulus is
//! multiplied by x^32, so that its remainders stand in the low half and all kinds are alike.

use std::sync::OnceLock;

use keyway_proto::ChecksumKind;

/// A CRC's modulus, and what of it the kernel looks up: `struct Modulus` of kernels.cu.
#[repr(C)]
pub(super) struct Modulus {
    /// Without its highest coefficient.
    poly: u64,
    /// x^(2^k).
    powers: [u64; 48],
    /// [n][v] is v, standing at four bits n, times x to the bits of a row.
    table: [[u64; 16]; 16],
}

/// log2 of the bits of a row.
const ROW_BITS_LOG2: usize = 15;

/// The modulus of a CRC; none of a checksum that is no CRC.
pub(super) fn of_kind(kind: ChecksumKind) -> Option<&'static Modulus> {
    static CRC32: OnceLock<Modulus> = OnceLock::new();
    static CRC32C: OnceLock<Modulus> = OnceLock::new();
    static CRC64: OnceLock<Modulus> = OnceLock::new();
    Some(match kind {
        ChecksumKind::Crc32 => CRC32.get_or_init(|| Modulus::new(0xedb8_8320)),
        ChecksumKind::Crc32c => CRC32C.get_or_init(|| Modulus::new(0x82f6_3b78)),
        ChecksumKind::Crc64Nvme => CRC64.get_or_init(|| Modulus::new(0x9a6c_9329_ac4b_c9b5)),
        ChecksumKind::Sha1 | ChecksumKind::Sha256 | ChecksumKind::Md5 => return None,
    })
}

impl Modulus {
    fn new(poly: u64) -> Self {
        // x^1, then squares.
        let mut powers = [1 << 62; 48];
        for k in 1..powers.len() {
            powers[k] = times(powers[k - 1], powers[k - 1], poly);
        }
        let row = powers[ROW_BITS_LOG2];
        let table = std::array::from_fn(|n| {
            std::array::from_fn(|v| times((v as u64) << (4 * n), row, poly))
        });
        Self { poly, powers, table }
    }

    /// x^`exponent`.
    fn power(&self, exponent: u64) -> u64 {
        let bits = (0..self.powers.len()).filter(|k| exponent >> k & 1 == 1);
        bits.fold(1 << 63, |product, k| times(product, self.powers[k], self.poly))
    }

    /// The checksum of `bytes` bytes whose bare remainder this is.
    pub(super) fn finish(&self, kind: ChecksumKind, remainder: u64, bytes: u64) -> u64 {
        // Both the initial value and the final complement are all ones.
        let ones = u64::MAX >> (64 - 8 * kind.bytes());
        remainder ^ times(ones, self.power(8 * bytes), self.poly) ^ ones
    }
}

/// The product of two polynomials modulo `poly`.
fn times(a: u64, b: u64, poly: u64) -> u64 {
    (0..64).fold(0, |product, bit| {
        let times_x = product >> 1 ^ poly & 0u64.wrapping_sub(product & 1);
        times_x ^ a & 0u64.wrapping_sub(b >> bit & 1)
    })
}

#[cfg(test)]
mod tests {
    use keyway_proto::Checksum;

    use super::*;

    /// A remainder, computed a bit at a time.
    fn remainder(modulus: &Modulus, bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |crc, byte| {
            (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
                crc >> 1 ^ modulus.poly & 0u64.wrapping_sub(crc & 1)
            })
        })
    }

    /// Goal: what a kernel's remainder is made into is the checksum. Method: remainders by the
    /// book, against the CPU's implementation.
    #[test]
    fn remainders_become_checksums() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| ((at * at) >> 3) as u8).collect();
        for kind in [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme] {
            let modulus = of_kind(kind).expect("a CRC");
            for length in [0, 1, 9, 255, 1000] {
                let remainder = remainder(modulus, &bytes[..length]);
                let found = super::super::checksum(kind, remainder, length as u64);
                assert_eq!(found, Some(Checksum::of(kind, &bytes[..length])), "{kind} {length}");
            }
        }
    }

    /// The table's entries add up to what a product with a row's power is.
    #[test]
    fn looking_up_is_multiplying() {
        let modulus = of_kind(ChecksumKind::Crc64Nvme).expect("a CRC");
        let word = 0x0123_4567_89ab_cdef_u64;
        let looked_up =
            (0..16).fold(0, |sum, n| sum ^ modulus.table[n][(word >> (4 * n) & 15) as usize]);
        assert_eq!(looked_up, times(word, modulus.power(8 * 4096), modulus.poly));
    }
}
