//! The bytes of an object that a read asks for.

use keyway_meta::Object;
use keyway_proto::{ByteRange, Piece};
use s3s::S3ErrorCode;
use s3s::dto::Range;

use super::errors::Failure;

/// What a read will deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// The bytes.
    pub(super) range: ByteRange,
    /// Whether the answer is a part of the object (206 and `Content-Range`).
    pub(super) partial: bool,
    /// The index of the part asked for by number, if the object has parts.
    pub(super) part: Option<usize>,
}

impl Selection {
    /// The bytes of `object` that a range or a part number selects; all without either.
    ///
    /// # Errors
    /// `InvalidRange` (416) for a range that covers no byte, `InvalidPartNumber` (416) for a
    /// part that is not there, `InvalidRequest` for both together.
    pub(super) fn of(
        object: &Object,
        range: Option<Range>,
        part_number: Option<i32>,
    ) -> Result<Self, Failure> {
        match (range, part_number) {
            (None, None) => {
                Ok(Self { range: ByteRange::whole(object.size), partial: false, part: None })
            }
            (Some(range), None) => Self::by_range(object.size, range),
            (None, Some(number)) => Self::by_part(object, number),
            (Some(_), Some(_)) => Err(Failure::refuse(
                S3ErrorCode::InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter",
            )),
        }
    }

    fn by_range(size: u64, range: Range) -> Result<Self, Failure> {
        let range = bytes_of(size, range).ok_or(Failure::RangeNotSatisfiable { size })?;
        Ok(Self { range, partial: true, part: None })
    }

    fn by_part(object: &Object, number: i32) -> Result<Self, Failure> {
        if object.parts.is_empty() && number == 1 {
            let range = ByteRange::whole(object.size);
            // An empty object has no byte that a Content-Range could name.
            return Ok(Self { range, partial: object.size > 0, part: None });
        }
        let mut offset = 0u64;
        for (index, part) in object.parts.iter().enumerate() {
            if i32::from(part.number) == number {
                let range = ByteRange::new(offset, part.size)
                    .ok_or(Failure::RangeNotSatisfiable { size: object.size })?;
                return Ok(Self { range, partial: part.size > 0, part: Some(index) });
            }
            offset = offset.saturating_add(part.size);
        }
        Err(Failure::refuse(
            S3ErrorCode::Custom("InvalidPartNumber".into()),
            "The requested partnumber is not satisfiable",
        ))
    }

    /// The `Content-Range` of a partial answer.
    pub(super) fn content_range(&self, size: u64) -> Option<String> {
        let last = self.range.end().checked_sub(1)?;
        self.partial.then(|| format!("bytes {}-{last}/{size}", self.range.offset()))
    }
}

/// The bytes that an HTTP range selects of `size`; `None` when it covers none.
pub(super) fn bytes_of(size: u64, range: Range) -> Option<ByteRange> {
    let found = range.check(size).ok()?;
    let length = found.end.checked_sub(found.start).filter(|length| *length > 0)?;
    ByteRange::new(found.start, length)
}

/// The pieces of `object`'s chunks that cover `range`, in order, each with its extent's index.
pub(super) fn pieces(object: &Object, range: ByteRange) -> impl Iterator<Item = (usize, Piece)> {
    let mut start = 0u64;
    object.extents.iter().enumerate().filter_map(move |(index, extent)| {
        let whole = ByteRange::new(start, extent.chunk.length)?;
        start = whole.end();
        let covered = whole.intersect(range)?;
        let range = ByteRange::new(covered.offset() - whole.offset(), covered.length())?;
        Some((index, Piece { chunk: extent.chunk.id, range }))
    })
}

#[cfg(test)]
mod tests {
    use keyway_meta::{Extent, ObjectHeaders, PartSummary, UnixMs};
    use keyway_proto::{ChunkId, ChunkSpec, NodeId, VersionId};
    use proptest::prelude::*;

    use super::*;

    fn object(lengths: &[u64]) -> Object {
        Object {
            durability: keyway_proto::Durability::Disk,
            stored_by: None,
            version: VersionId::new(0, [0; 10]),
            named: false,
            size: lengths.iter().sum(),
            modified: UnixMs(0),
            etag: String::new(),
            checksum: None,
            headers: ObjectHeaders::default(),
            parts: Vec::new(),
            extents: (0u8..)
                .zip(lengths)
                .map(|(n, length)| Extent {
                    chunk: ChunkSpec { id: ChunkId::new(0, [n; 10]), length: *length },
                    node: NodeId(0),
                })
                .collect(),
        }
    }

    #[test]
    fn ranges_are_cut_to_the_object() {
        for (text, size, expected) in [
            ("bytes=0-0", 10, Some((0, 1))),
            ("bytes=2-5", 10, Some((2, 4))),
            ("bytes=5-", 10, Some((5, 5))),
            ("bytes=-3", 10, Some((7, 3))),
            ("bytes=-30", 10, Some((0, 10))),
            ("bytes=5-99", 10, Some((5, 5))),
            ("bytes=10-", 10, None),
            ("bytes=10-20", 10, None),
            ("bytes=-0", 10, None),
            ("bytes=0-", 0, None),
            ("bytes=-5", 0, None),
        ] {
            let range = Range::parse(text).expect(text);
            let found = bytes_of(size, range).map(|r| (r.offset(), r.length()));
            assert_eq!(found, expected, "{text} of {size}");
        }
    }

    #[test]
    fn parts_by_number() {
        let mut object = object(&[5, 5, 2]);
        let part = |number, size| PartSummary { number, size, checksum: None };
        object.parts = vec![part(2, 10), part(7, 2)];
        let second = Selection::of(&object, None, Some(7)).expect("is there");
        assert_eq!(second.range, ByteRange::new(10, 2).expect("fits"));
        assert_eq!(second.content_range(object.size).as_deref(), Some("bytes 10-11/12"));
        assert!(Selection::of(&object, None, Some(1)).is_err());
    }

    proptest! {
        /// Goal: the pieces are exactly the bytes of the range, whatever the chunks.
        #[test]
        fn pieces_cover_the_range(
            lengths in proptest::collection::vec(1u64..50, 0..8),
            offset in 0u64..400,
            length in 0u64..400,
        ) {
            let object = object(&lengths);
            let asked = ByteRange::new(offset, length).expect("fits");
            let bytes: Vec<(ChunkId, u64)> = object
                .extents
                .iter()
                .flat_map(|e| (0..e.chunk.length).map(|at| (e.chunk.id, at)))
                .collect();
            let expected: Vec<_> = bytes
                .iter()
                .enumerate()
                .filter(|(at, _)| (offset..offset + length).contains(&(*at as u64)))
                .map(|(_, byte)| *byte)
                .collect();
            let found: Vec<_> = pieces(&object, asked)
                .flat_map(|(_, p)| {
                    (p.range.offset()..p.range.end()).map(move |at| (p.chunk, at))
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
