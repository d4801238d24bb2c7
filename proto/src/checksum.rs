//! Checksums of object bytes: S3's kinds, their hashers, and their text forms.
//!
//! CRCs combine: the checksum of a whole follows from those of its parts, so that parts
//! are hashed side by side and an object's CRC64NVME never needs a second pass.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use md5::Digest as _;

mod shift;

use self::shift::Shift;

static CRC32: Shift = Shift::new(0xedb8_8320, 32);
static CRC32C: Shift = Shift::new(0x82f6_3b78, 32);
static CRC64NVME: Shift = Shift::new(0x9a6c_9329_ac4b_c9b5, 64);

/// A checksum that S3 knows. `Md5` is the one behind classic ETags and `Content-MD5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChecksumKind {
    /// CRC-32 (ISO-HDLC), 4 bytes.
    Crc32,
    /// CRC-32C (Castagnoli), 4 bytes.
    Crc32c,
    /// CRC-64/NVME, 8 bytes.
    Crc64Nvme,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// MD5, 16 bytes.
    Md5,
}

impl ChecksumKind {
    /// Every kind, in the order of their numbers on the wire.
    pub const ALL: [Self; 6] =
        [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256, Self::Md5];

    /// Length of a value in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Whether the checksum of a whole can be derived from those of its parts.
    pub const fn combines(self) -> bool {
        self.crc().is_some()
    }

    const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 | Self::Md5 => None,
        }
    }

    const fn shift(self) -> Option<&'static Shift> {
        match self {
            Self::Crc32 => Some(&CRC32),
            Self::Crc32c => Some(&CRC32C),
            Self::Crc64Nvme => Some(&CRC64NVME),
            Self::Sha1 | Self::Sha256 | Self::Md5 => None,
        }
    }
}

impl fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Md5 => "MD5",
        })
    }
}

/// A checksum's value, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum {
    kind: ChecksumKind,
    value: [u8; 32],
}

impl Checksum {
    /// The checksum with this value; `None` when its length is not the kind's.
    pub fn new(kind: ChecksumKind, value: &[u8]) -> Option<Self> {
        if value.len() != kind.bytes() {
            return None;
        }
        let mut padded = [0; 32];
        padded[..value.len()].copy_from_slice(value);
        Some(Self { kind, value: padded })
    }

    /// Parses S3's header form: the value in base64.
    pub fn from_base64(kind: ChecksumKind, text: &str) -> Option<Self> {
        // Longer than any value's text: not worth decoding.
        if text.len() > 64 {
            return None;
        }
        Self::new(kind, &BASE64.decode(text).ok()?)
    }

    /// The checksum of `bytes`.
    pub fn of(kind: ChecksumKind, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(kind);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The kind.
    pub const fn kind(&self) -> ChecksumKind {
        self.kind
    }

    /// The value, [`ChecksumKind::bytes`] long.
    pub fn value(&self) -> &[u8] {
        &self.value[..self.kind.bytes()]
    }

    /// S3's header form: the value in base64.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.value())
    }

    /// The value in lowercase hexadecimal, as ETags have it.
    pub fn to_hex(&self) -> String {
        use fmt::Write as _;
        self.value().iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The checksum of these bytes followed by `next_length` bytes whose checksum is `next`;
    /// `None` when the kind does not combine or the kinds differ.
    pub fn combine(&self, next: &Self, next_length: u64) -> Option<Self> {
        let shift = self.kind.shift()?;
        if next.kind != self.kind {
            return None;
        }
        let joined = shift.combine(self.number(), next.number(), next_length);
        Some(Self::from_number(self.kind, joined))
    }

    /// The CRC64NVME with this number, as [`crc64nvme`](Self::crc64nvme) tells it.
    pub fn from_crc64nvme(number: u64) -> Self {
        Self::from_number(ChecksumKind::Crc64Nvme, number)
    }

    /// A CRC64NVME's number; `None` when it is another kind.
    pub fn crc64nvme(&self) -> Option<u64> {
        (self.kind == ChecksumKind::Crc64Nvme).then(|| self.number())
    }

    fn number(&self) -> u64 {
        self.value().iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn from_number(kind: ChecksumKind, number: u64) -> Self {
        let bytes = number.to_be_bytes();
        let mut value = [0; 32];
        value[..kind.bytes()].copy_from_slice(&bytes[8 - kind.bytes()..]);
        Self { kind, value }
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.to_hex())
    }
}

/// A checksum in the making.
pub struct Hasher {
    kind: ChecksumKind,
    state: State,
    /// Of all that came before what `state` has seen, where sums were taken in.
    before: Option<Checksum>,
    /// Bytes that `state` has seen.
    seen: u64,
}

enum State {
    Crc(crc_fast::Digest),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Md5(md5::Md5),
}

impl Hasher {
    /// A hasher that has seen no byte.
    pub fn new(kind: ChecksumKind) -> Self {
        let state = match (kind.crc(), kind) {
            (Some(algorithm), _) => State::Crc(crc_fast::Digest::new(algorithm)),
            (None, ChecksumKind::Sha1) => State::Sha1(sha1::Sha1::new()),
            (None, ChecksumKind::Sha256) => State::Sha256(sha2::Sha256::new()),
            (None, _) => State::Md5(md5::Md5::new()),
        };
        Self { kind, state, before: None, seen: 0 }
    }

    /// Takes the next bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        match &mut self.state {
            State::Crc(digest) => digest.update(bytes),
            State::Sha1(digest) => digest.update(bytes),
            State::Sha256(digest) => digest.update(bytes),
            State::Md5(digest) => digest.update(bytes),
        }
    }

    /// Takes the next bytes in, whose checksum is known: without looking at them, where it is of
    /// this hasher's kind and combines.
    pub fn update_known(&mut self, bytes: &[u8], known: &Checksum) {
        if known.kind() != self.kind || !self.kind.combines() {
            return self.update(bytes);
        }
        let fresh = Self::new(self.kind);
        let before = std::mem::replace(self, fresh).finish();
        self.before = before.combine(known, bytes.len() as u64);
    }

    /// The checksum of all bytes seen.
    pub fn finish(self) -> Checksum {
        match self.state {
            State::Crc(digest) => {
                let seen = Checksum::from_number(self.kind, digest.finalize());
                let joined = self.before.map(|before| before.combine(&seen, self.seen));
                joined.flatten().unwrap_or(seen)
            }
            State::Sha1(digest) => Self::sealed(self.kind, &digest.finalize()),
            State::Sha256(digest) => Self::sealed(self.kind, &digest.finalize()),
            State::Md5(digest) => Self::sealed(self.kind, &digest.finalize()),
        }
    }

    fn sealed(kind: ChecksumKind, value: &[u8]) -> Checksum {
        Checksum::new(kind, value).expect("a digest is as long as its kind says")
    }
}

/// Kinds of checksum, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestSet(u8);

impl DigestSet {
    /// No kind.
    pub const NONE: Self = Self(0);

    /// This set and `kind`.
    #[must_use]
    pub const fn with(self, kind: ChecksumKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// The kinds in this set or in `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `kind` is in it.
    pub const fn contains(self, kind: ChecksumKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// The kinds in it, in the order of [`ChecksumKind::ALL`].
    pub fn iter(self) -> impl Iterator<Item = ChecksumKind> {
        ChecksumKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }

    /// The set as bits, bit `n` for the kind numbered `n`.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set with these bits; `None` when one stands for no kind.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits >> ChecksumKind::ALL.len() == 0 { Some(Self(bits)) } else { None }
    }
}

impl FromIterator<ChecksumKind> for DigestSet {
    fn from_iter<I: IntoIterator<Item = ChecksumKind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Values of several checksums over the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests(Vec<Checksum>);

impl Digests {
    /// The value of `kind`, if it was computed.
    pub fn value(&self, kind: ChecksumKind) -> Option<&Checksum> {
        self.0.iter().find(|checksum| checksum.kind() == kind)
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &Checksum> {
        self.0.iter()
    }
}

impl FromIterator<Checksum> for Digests {
    fn from_iter<I: IntoIterator<Item = Checksum>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Hashers of several kinds, fed together.
pub struct MultiHasher(Vec<Hasher>);

impl MultiHasher {
    /// One hasher for each kind in `set`.
    pub fn new(set: DigestSet) -> Self {
        Self(set.iter().map(Hasher::new).collect())
    }

    /// Takes the next bytes into every hasher.
    pub fn update(&mut self, bytes: &[u8]) {
        for hasher in &mut self.0 {
            hasher.update(bytes);
        }
    }

    /// Takes the next bytes in, one of whose checksums is known: only hashers of other kinds
    /// look at them.
    pub fn update_known(&mut self, bytes: &[u8], known: &Checksum) {
        for hasher in &mut self.0 {
            hasher.update_known(bytes, known);
        }
    }

    /// All values.
    pub fn finish(self) -> Digests {
        self.0.into_iter().map(Hasher::finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The check values of the catalogues: every kind over the nine bytes `123456789`.
    #[test]
    fn known_answers() {
        for (kind, hex) in [
            (ChecksumKind::Crc32, "cbf43926"),
            (ChecksumKind::Crc32c, "e3069283"),
            (ChecksumKind::Crc64Nvme, "ae8b14860a799888"),
            (ChecksumKind::Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
            (
                ChecksumKind::Sha256,
                "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
            (ChecksumKind::Md5, "25f9e794323b453885f5181f1b624d0b"),
        ] {
            assert_eq!(Checksum::of(kind, b"123456789").to_hex(), hex, "{kind}");
        }
    }

    proptest! {
        #[test]
        fn combining_equals_hashing_the_whole(left: Vec<u8>, right: Vec<u8>) {
            let whole = [left.as_slice(), right.as_slice()].concat();
            for kind in ChecksumKind::ALL {
                let joined = Checksum::of(kind, &left)
                    .combine(&Checksum::of(kind, &right), right.len() as u64);
                prop_assert_eq!(joined, kind.combines().then(|| Checksum::of(kind, &whole)));
            }
        }

        /// Bytes whose checksum was known are hashed as if they had been looked at.
        #[test]
        fn known_parts_count_as_seen(parts: Vec<(Vec<u8>, Option<bool>)>) {
            let whole = parts.iter().flat_map(|(part, _)| part.clone()).collect::<Vec<u8>>();
            let mut hasher = MultiHasher::new(ChecksumKind::ALL.into_iter().collect());
            for (part, known) in &parts {
                let kind = |crc64| match crc64 {
                    true => ChecksumKind::Crc64Nvme,
                    false => ChecksumKind::Sha1,
                };
                match known.map(kind) {
                    Some(kind) => hasher.update_known(part, &Checksum::of(kind, part)),
                    None => hasher.update(part),
                }
            }
            let digests = hasher.finish();
            for kind in ChecksumKind::ALL {
                prop_assert_eq!(digests.value(kind), Some(&Checksum::of(kind, &whole)));
            }
        }

        /// Lengths that no test could hash: the library's own arithmetic is the judge.
        #[test]
        fn long_shifts_agree_with_the_library(left: u64, right: u64, length in 0u64..1 << 50) {
            for kind in [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme] {
                let mask = u64::MAX >> (64 - 8 * kind.bytes());
                let (left, right) = (left & mask, right & mask);
                let (algorithm, shift) = (kind.crc().expect("a CRC"), kind.shift().expect("a CRC"));
                let theirs = crc_fast::checksum_combine(algorithm, left, right, length);
                prop_assert_eq!(shift.combine(left, right, length), theirs);
            }
        }

        #[test]
        fn base64_round_trips(bytes: Vec<u8>) {
            for kind in ChecksumKind::ALL {
                let checksum = Checksum::of(kind, &bytes);
                prop_assert_eq!(Checksum::from_base64(kind, &checksum.to_base64()), Some(checksum));
            }
        }

        #[test]
        fn foreign_text_never_panics(text: String) {
            for kind in ChecksumKind::ALL {
                let _ = Checksum::from_base64(kind, &text);
            }
        }
    }

    #[test]
    fn sets_refuse_unknown_bits() {
        let set = DigestSet::NONE.with(ChecksumKind::Md5).with(ChecksumKind::Crc32);
        assert_eq!(DigestSet::from_bits(set.bits()), Some(set));
        assert_eq!(DigestSet::from_bits(0x40), None);
    }
}
