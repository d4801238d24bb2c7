//! Many ranges of one object in one request: the document of the control endpoint.
//!
//! ```text
//! "kwr1" │ bucket u16 │ key u16 │ etag u16 │ ranges u16 │ bucket … │ key … │ etag … │
//! ranges × ( offset u64 │ length u32 │ at u32 )
//! ```
//!
//! Numbers are little-endian; the first three count the bytes of the texts, which are UTF-8; an
//! etag of no bytes is none. `at` is where a range's first byte lands, counted from the first
//! byte of the window. Ranges stand in the order of the memory: each begins where the one before
//! it ends, or later. So no two of them can meet there, and one pass tells it.
//!
//! Sketch, per range: 16 bytes, read where they lie; three comparisons; nothing is allocated. A
//! document of 1,024 ranges has 16.5 KiB, whose SHA-256 takes about 10 µs at each end.

use crate::range::ByteRange;

/// Most ranges in one request.
pub const RANGES_MAX: usize = 4096;
/// Longest ETag in a request, in bytes, quotes included.
pub const ETAG_BYTES_MAX: usize = 256;
/// Longest bucket name and key in a request, in bytes. What names are sound is said elsewhere.
const NAME_BYTES_MAX: usize = 1024;
/// Longest document, in bytes.
pub const RANGES_DOCUMENT_BYTES_MAX: usize =
    HEAD_BYTES + 2 * NAME_BYTES_MAX + ETAG_BYTES_MAX + RANGES_MAX * RANGE_BYTES;

const MAGIC: [u8; 4] = *b"kwr1";
const HEAD_BYTES: usize = 12;
const RANGE_BYTES: usize = 16;

const _: () = assert!(RANGES_MAX <= u16::MAX as usize);
const _: () = assert!(NAME_BYTES_MAX <= u16::MAX as usize);

/// A range of an object, and where it lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRange {
    /// The bytes of the object: at least one, and fewer than 2^32.
    pub range: ByteRange,
    /// Where the first of them lands, counted from the window's first byte.
    pub at: u32,
}

/// A request for ranges of one object, over the document that it was parsed out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangesRequest<'a> {
    bucket: &'a str,
    key: &'a str,
    etag: Option<&'a str>,
    ranges: &'a [[u8; RANGE_BYTES]],
    bytes: u64,
    memory: u64,
}

/// Why a list of ranges is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRanges {
    /// The document is none.
    #[error("the document of ranges is malformed")]
    Malformed,
    /// The bucket's name, the key or the ETag is longer than any.
    #[error("a name is too long")]
    Name,
    /// None, or more than [`RANGES_MAX`].
    #[error("there must be 1 to {RANGES_MAX} ranges")]
    Count,
    /// A range of no byte, of 2^32 or more, or one whose end no number holds.
    #[error("a range is empty or too long")]
    Length,
    /// A range that lands where another does, or before it.
    #[error("ranges overlap in memory, or are not in its order")]
    Order,
    /// A range that lands beyond what a window can hold.
    #[error("a range lands beyond 4 GiB")]
    Memory,
}

impl<'a> RangesRequest<'a> {
    /// The request that a document holds. Reads each byte once.
    ///
    /// # Errors
    /// [`InvalidRanges`] says which rule it breaks.
    pub fn parse(document: &'a [u8]) -> Result<Self, InvalidRanges> {
        use InvalidRanges::Malformed;
        let (head, rest) = document.split_first_chunk::<HEAD_BYTES>().ok_or(Malformed)?;
        if head[..4] != MAGIC {
            return Err(Malformed);
        }
        let number = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let (bucket, key, etag, count) = (number(4), number(6), number(8), number(10));
        named(bucket, key, etag)?;
        counted(count)?;
        let (bucket, rest) = text(rest, bucket)?;
        let (key, rest) = text(rest, key)?;
        let (etag, rest) = text(rest, etag)?;
        let (ranges, []) = rest.as_chunks::<RANGE_BYTES>() else { return Err(Malformed) };
        if ranges.len() != count {
            return Err(Malformed);
        }
        let etag = (!etag.is_empty()).then_some(etag);
        let (mut bytes, mut memory) = (0, 0);
        for encoded in ranges {
            let placed = decoded(encoded).ok_or(InvalidRanges::Length)?;
            memory = placed.after(memory)?;
            bytes += placed.range.length();
        }
        Ok(Self { bucket, key, etag, ranges, bytes, memory })
    }

    /// The document of a request.
    ///
    /// # Errors
    /// [`InvalidRanges`] for one that [`parse`](Self::parse) would refuse.
    pub fn encode(
        bucket: &str,
        key: &str,
        etag: Option<&str>,
        ranges: impl ExactSizeIterator<Item = PlacedRange>,
    ) -> Result<Vec<u8>, InvalidRanges> {
        let (etag, count) = (etag.unwrap_or_default(), ranges.len());
        named(bucket.len(), key.len(), etag.len())?;
        counted(count)?;
        let texts = bucket.len() + key.len() + etag.len();
        let mut document = Vec::with_capacity(HEAD_BYTES + texts + count * RANGE_BYTES);
        document.extend_from_slice(&MAGIC);
        for number in [bucket.len(), key.len(), etag.len(), count] {
            document.extend_from_slice(&(number as u16).to_le_bytes());
        }
        for text in [bucket, key, etag] {
            document.extend_from_slice(text.as_bytes());
        }
        let mut memory = 0;
        for placed in ranges {
            memory = placed.after(memory)?;
            document.extend_from_slice(&placed.range.offset().to_le_bytes());
            document.extend_from_slice(&(placed.range.length() as u32).to_le_bytes());
            document.extend_from_slice(&placed.at.to_le_bytes());
        }
        Ok(document)
    }

    /// The bucket's name, unchecked.
    pub fn bucket(&self) -> &'a str {
        self.bucket
    }

    /// The object's key, unchecked.
    pub fn key(&self) -> &'a str {
        self.key
    }

    /// What the object's ETag must be, as `If-Match` has it.
    pub fn etag(&self) -> Option<&'a str> {
        self.etag
    }

    /// The ranges, in the order of the memory.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = PlacedRange> + use<'a> {
        self.ranges.iter().map(|encoded| decoded(encoded).expect("they were parsed"))
    }

    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory that the ranges reach, gaps included.
    pub fn memory(&self) -> u64 {
        self.memory
    }
}

impl PlacedRange {
    /// The end of this range in memory, where others end at `memory`.
    fn after(&self, memory: u64) -> Result<u64, InvalidRanges> {
        let length = u32::try_from(self.range.length()).unwrap_or(0);
        if length == 0 {
            return Err(InvalidRanges::Length);
        }
        if u64::from(self.at) < memory {
            return Err(InvalidRanges::Order);
        }
        let end = self.at.checked_add(length).ok_or(InvalidRanges::Memory)?;
        Ok(u64::from(end))
    }
}

fn decoded(encoded: &[u8; RANGE_BYTES]) -> Option<PlacedRange> {
    let (offset, rest) = encoded.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (at, _) = rest.split_first_chunk::<4>()?;
    let length = u64::from(u32::from_le_bytes(*length));
    let range = ByteRange::new(u64::from_le_bytes(*offset), length)?;
    Some(PlacedRange { range, at: u32::from_le_bytes(*at) })
}

fn named(bucket: usize, key: usize, etag: usize) -> Result<(), InvalidRanges> {
    let short = bucket <= NAME_BYTES_MAX && key <= NAME_BYTES_MAX && etag <= ETAG_BYTES_MAX;
    if short { Ok(()) } else { Err(InvalidRanges::Name) }
}

fn counted(ranges: usize) -> Result<(), InvalidRanges> {
    if (1..=RANGES_MAX).contains(&ranges) { Ok(()) } else { Err(InvalidRanges::Count) }
}

fn text(bytes: &[u8], length: usize) -> Result<(&str, &[u8]), InvalidRanges> {
    let (text, rest) = bytes.split_at_checked(length).ok_or(InvalidRanges::Malformed)?;
    Ok((std::str::from_utf8(text).map_err(|_| InvalidRanges::Malformed)?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn placed(offset: u64, length: u64, at: u32) -> PlacedRange {
        PlacedRange { range: ByteRange::new(offset, length).expect("a range"), at }
    }

    fn encoded(ranges: &[PlacedRange]) -> Result<Vec<u8>, InvalidRanges> {
        RangesRequest::encode("bucket", "a/key", Some("\"abc\""), ranges.iter().copied())
    }

    #[test]
    fn the_form_is_the_documented_one() {
        let document = encoded(&[placed(7, 4096, 0), placed(1 << 40, 1, 5000)]).expect("sound");
        let mut expected = b"kwr1\x06\x00\x05\x00\x05\x00\x02\x00bucketa/key\"abc\"".to_vec();
        expected.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(document, expected);
        let request = RangesRequest::parse(&document).expect("sound");
        assert_eq!((request.bucket(), request.key()), ("bucket", "a/key"));
        assert_eq!(request.etag(), Some("\"abc\""));
        assert_eq!((request.bytes(), request.memory()), (4097, 5001));
    }

    #[test]
    fn each_rule_has_its_refusal() {
        let last = u64::MAX - 10;
        for (ranges, refusal) in [
            (&[][..], InvalidRanges::Count),
            (&[placed(0, 1, 0); RANGES_MAX + 1], InvalidRanges::Count),
            (&[placed(0, 0, 0)], InvalidRanges::Length),
            (&[placed(0, 1 << 32, 0)], InvalidRanges::Length),
            (&[placed(0, 2, 0), placed(9, 1, 1)], InvalidRanges::Order),
            (&[placed(0, 2, 9), placed(9, 1, 0)], InvalidRanges::Order),
            (&[placed(0, 2, u32::MAX - 1)], InvalidRanges::Memory),
        ] {
            assert_eq!(encoded(ranges), Err(refusal));
        }
        let long = "k".repeat(NAME_BYTES_MAX + 1);
        let one = || std::iter::once(placed(0, 1, 0));
        assert_eq!(RangesRequest::encode("b", &long, None, one()), Err(InvalidRanges::Name));
        let sound = encoded(&[placed(last, 10, u32::MAX - 10)]).expect("the last of all bytes");
        let parsed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut document = sound.clone();
            change(&mut document);
            RangesRequest::parse(&document).map(|_| ())
        };
        assert_eq!(parsed(&|_| {}), Ok(()));
        assert_eq!(parsed(&|document| document[3] = b'2'), Err(InvalidRanges::Malformed));
        assert_eq!(parsed(&|document| document[10] = 2), Err(InvalidRanges::Malformed));
        assert_eq!(parsed(&|document| document[10] = 0), Err(InvalidRanges::Count));
        assert_eq!(parsed(&|document| document[9] = 2), Err(InvalidRanges::Name));
        assert_eq!(parsed(&|document| document.push(0)), Err(InvalidRanges::Malformed));
        assert_eq!(parsed(&|document| document[12] = 0xff), Err(InvalidRanges::Malformed));
        // The range's end passes the last number.
        let at = sound.len() - 8;
        assert_eq!(parsed(&|document| document[at] = 11), Err(InvalidRanges::Length));
        for length in 0..sound.len() {
            assert!(RangesRequest::parse(&sound[..length]).is_err(), "cut at {length}");
        }
    }

    proptest! {
        #[test]
        fn what_was_asked_for_is_read(
            bucket in ".{0,63}",
            key in ".{0,200}",
            etag in prop::option::of(".{1,40}"),
            lengths in prop::collection::vec((0..1u64 << 62, 1u32..100_000, 0u32..5000), 1..100),
        ) {
            let mut end = 0;
            let ranges: Vec<_> = lengths.into_iter().map(|(offset, length, gap)| {
                let at = end + gap;
                end = at + length;
                placed(offset, u64::from(length), at)
            }).collect();
            let document =
                RangesRequest::encode(&bucket, &key, etag.as_deref(), ranges.iter().copied());
            let document = document.expect("sound");
            prop_assert!(document.len() <= RANGES_DOCUMENT_BYTES_MAX);
            let request = RangesRequest::parse(&document).expect("sound");
            prop_assert_eq!((request.bucket(), request.key()), (&bucket[..], &key[..]));
            prop_assert_eq!(request.etag(), etag.as_deref());
            prop_assert_eq!(request.ranges().collect::<Vec<_>>(), ranges);
            prop_assert_eq!(request.memory(), u64::from(end));
        }

        /// Goal: nothing is guessed: what is understood is written the same way.
        #[test]
        fn foreign_bytes_never_panic(
            bytes: Vec<u8>,
            lengths in prop::array::uniform4(0u8..4),
            tail in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut near = b"kwr1".to_vec();
            near.extend(lengths.iter().flat_map(|length| [*length, 0]));
            near.extend(tail);
            for document in [bytes, near] {
                let Ok(request) = RangesRequest::parse(&document) else { continue };
                let again = RangesRequest::encode(
                    request.bucket(), request.key(), request.etag(), request.ranges(),
                );
                prop_assert_eq!(again, Ok(document));
            }
        }
    }
}
