//! An object from its parts: what `CompleteMultipartUpload` checks and derives. Pure.

use std::collections::HashMap;

use keyway_proto::checksum::Hasher;
use keyway_proto::unit::{OBJECT_BYTES_MAX, PART_BYTES_MIN};
use keyway_proto::{Checksum, ChecksumKind, VersionId};

use super::{CatalogError, NamedPart};
use crate::record::{ChecksumType, Object, ObjectChecksum, Part, PartSummary, UnixMs, Upload};

/// The object that the parts [chosen](choose) make; nobody's, so far.
pub(super) fn assemble(
    upload: Upload,
    chosen: &[&Part],
    claimed: Option<Checksum>,
    version: VersionId,
    now: UnixMs,
) -> Result<Object, CatalogError> {
    let size = total_size(chosen)?;
    let (kind, of) = upload.checksum.unwrap_or((ChecksumKind::Crc64Nvme, ChecksumType::FullObject));
    let value = match of {
        ChecksumType::FullObject => combined(chosen, kind),
        ChecksumType::Composite => composite(chosen, kind),
    };
    if value.is_none() && upload.checksum.is_some() {
        let lacking = chosen.iter().find(|part| value_of(part, kind).is_none());
        return Err(CatalogError::InvalidPart(lacking.map_or(0, |part| part.number)));
    }
    if let Some(claimed) = claimed {
        let derived = match upload.checksum {
            _ if claimed.kind() == kind => value,
            // What the upload was begun with is what it ends with.
            Some(_) => None,
            None => combined(chosen, claimed.kind()),
        };
        // What cannot be compared is not taken for right.
        if derived != Some(claimed) {
            return Err(CatalogError::ChecksumMismatch);
        }
    }
    Ok(Object {
        version,
        named: false,
        size,
        modified: now,
        etag: etag(chosen),
        checksum: value.map(|value| ObjectChecksum { value, kind: of }),
        headers: upload.headers,
        parts: chosen
            .iter()
            .map(|part| PartSummary {
                number: part.number,
                size: part.size,
                checksum: value_of(part, kind).copied(),
            })
            .collect(),
        extents: chosen.iter().flat_map(|part| part.extents.iter().copied()).collect(),
        durability: chosen.iter().map(|part| part.durability).min().unwrap_or_default(),
        stored_by: None,
    })
}

/// The parts that are named, if they ascend and are those that were stored.
pub(super) fn choose<'p>(
    parts: &'p [Part],
    named: &[NamedPart],
) -> Result<Vec<&'p Part>, CatalogError> {
    if named.is_empty() {
        return Err(CatalogError::InvalidPart(0));
    }
    if named.windows(2).any(|pair| pair[0].number >= pair[1].number) {
        return Err(CatalogError::InvalidPartOrder);
    }
    let stored: HashMap<u16, &Part> = parts.iter().map(|part| (part.number, part)).collect();
    let chosen = named.iter().map(|named| {
        let part = stored.get(&named.number).filter(|part| {
            part.etag == named.etag
                && named.checksum.is_none_or(|given| value_of(part, given.kind()) == Some(&given))
        });
        part.copied().ok_or(CatalogError::InvalidPart(named.number))
    });
    chosen.collect()
}

fn total_size(chosen: &[&Part]) -> Result<u64, CatalogError> {
    let (_, all_but_last) = chosen.split_last().ok_or(CatalogError::InvalidPart(0))?;
    if let Some(small) = all_but_last.iter().find(|part| part.size < PART_BYTES_MIN) {
        return Err(CatalogError::PartTooSmall(small.number));
    }
    let sum = chosen.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.size));
    sum.filter(|sum| *sum <= OBJECT_BYTES_MAX).ok_or(CatalogError::TooLarge)
}

/// S3's rule: the MD5 over the parts' MD5s, and their number. Where parts' ETags are not
/// MD5s, their text takes its place: still one value for the same parts.
fn etag(chosen: &[&Part]) -> String {
    let mut hasher = Hasher::new(ChecksumKind::Md5);
    for part in chosen {
        match md5_bytes(&part.etag) {
            Some(digest) => hasher.update(&digest),
            None => hasher.update(part.etag.as_bytes()),
        }
    }
    format!("{}-{}", hasher.finish().to_hex(), chosen.len())
}

fn md5_bytes(etag: &str) -> Option<[u8; 16]> {
    if etag.len() != 32 || !etag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some(u128::from_str_radix(etag, 16).ok()?.to_be_bytes())
}

fn value_of(part: &Part, kind: ChecksumKind) -> Option<&Checksum> {
    part.checksums.iter().find(|checksum| checksum.kind() == kind)
}

/// Over all bytes, from the parts' own; `None` when a part lacks it or the kind does not
/// combine.
fn combined(chosen: &[&Part], kind: ChecksumKind) -> Option<Checksum> {
    let (first, rest) = chosen.split_first()?;
    if !kind.combines() {
        return None;
    }
    rest.iter().try_fold(*value_of(first, kind)?, |sum, part| {
        sum.combine(value_of(part, kind)?, part.size)
    })
}

/// Over the parts' values.
fn composite(chosen: &[&Part], kind: ChecksumKind) -> Option<Checksum> {
    let mut hasher = Hasher::new(kind);
    for part in chosen {
        hasher.update(value_of(part, kind)?.value());
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use keyway_proto::{Durability, UploadId};

    use super::*;
    use crate::record::ObjectHeaders;

    /// An object of one part, of the bytes `abc`, that has checksums of these kinds.
    fn assembled(
        upload: Option<(ChecksumKind, ChecksumType)>,
        kept: &[ChecksumKind],
        claimed: Checksum,
    ) -> Result<Object, CatalogError> {
        let upload = Upload {
            id: UploadId::new(5, [7; 10]),
            key: "k".parse().expect("a key"),
            initiated: UnixMs(5),
            headers: ObjectHeaders::default(),
            checksum: upload,
        };
        let part = Part {
            number: 1,
            size: 3,
            etag: "e".into(),
            modified: UnixMs(6),
            checksums: kept.iter().map(|kind| Checksum::of(*kind, b"abc")).collect(),
            extents: Vec::new(),
            durability: Durability::Disk,
            stored_by: None,
        };
        assemble(upload, &[&part], Some(claimed), VersionId::new(7, [8; 10]), UnixMs(7))
    }

    #[test]
    fn a_checksum_that_cannot_be_compared_is_not_taken_for_right() {
        use ChecksumKind::{Crc32, Crc64Nvme, Sha256};
        let right = |kind| Checksum::of(kind, b"abc");
        let of_crc64 = Some((Crc64Nvme, ChecksumType::FullObject));
        for (upload, kept, claimed, is_taken) in [
            (None, &[Crc64Nvme][..], Crc64Nvme, true),
            (None, &[Crc64Nvme, Crc32], Crc32, true),
            (None, &[Crc64Nvme], Crc32, false),
            (None, &[Crc64Nvme, Sha256], Sha256, false),
            (of_crc64, &[Crc64Nvme], Crc64Nvme, true),
            (of_crc64, &[Crc64Nvme, Crc32], Crc32, false),
        ] {
            let made = assembled(upload, kept, right(claimed));
            let refused = matches!(made, Err(CatalogError::ChecksumMismatch));
            assert_eq!((made.is_ok(), refused), (is_taken, !is_taken), "{upload:?} {claimed}");
        }
    }
}
