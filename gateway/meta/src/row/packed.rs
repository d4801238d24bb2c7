//! Fields of fixed entries: extents, parts, checksums.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use keyway_proto::{Checksum, ChecksumKind, ChunkId, ChunkSpec, NodeId};

use crate::record::{Extent, PartSummary};
use crate::store::MetaError;

/// Chunk id, length, node.
const EXTENT_BYTES: usize = 16 + 8 + 4;

pub(crate) fn pack_extents(extents: &[Extent]) -> Bytes {
    let mut packed = BytesMut::with_capacity(extents.len() * EXTENT_BYTES);
    for extent in extents {
        packed.put_slice(&extent.chunk.id.to_bytes());
        packed.put_u64(extent.chunk.length);
        packed.put_u32(extent.node.0);
    }
    packed.freeze()
}

pub(crate) fn unpack_extents(mut packed: &[u8]) -> Result<Vec<Extent>, MetaError> {
    if !packed.len().is_multiple_of(EXTENT_BYTES) {
        return Err(MetaError::Damaged("extents"));
    }
    let mut extents = Vec::with_capacity(packed.len() / EXTENT_BYTES);
    while packed.has_remaining() {
        let mut id = [0; 16];
        packed.copy_to_slice(&mut id);
        let chunk = ChunkSpec { id: ChunkId::from_bytes(id), length: packed.get_u64() };
        extents.push(Extent { chunk, node: NodeId(packed.get_u32()) });
    }
    Ok(extents)
}

/// A checksum is its kind's number and its value; none is a zero.
pub(super) fn pack_checksum(checksum: Option<&Checksum>, packed: &mut BytesMut) {
    match checksum {
        Some(checksum) => {
            packed.put_u8(kind_number(checksum.kind()));
            packed.put_slice(checksum.value());
        }
        None => packed.put_u8(0),
    }
}

fn unpack_checksum(packed: &mut &[u8]) -> Result<Option<Checksum>, MetaError> {
    const DAMAGED: MetaError = MetaError::Damaged("checksum");
    let number = packed.try_get_u8().map_err(|_| DAMAGED)?;
    if number == 0 {
        return Ok(None);
    }
    let kind = kind_numbered(number.into()).ok_or(DAMAGED)?;
    let value = packed.get(..kind.bytes()).ok_or(DAMAGED)?;
    let checksum = Checksum::new(kind, value).ok_or(DAMAGED)?;
    packed.advance(kind.bytes());
    Ok(Some(checksum))
}

pub(super) fn pack_checksums<'a>(checksums: impl IntoIterator<Item = &'a Checksum>) -> Bytes {
    let mut packed = BytesMut::new();
    for checksum in checksums {
        pack_checksum(Some(checksum), &mut packed);
    }
    packed.freeze()
}

pub(super) fn unpack_checksums(mut packed: &[u8]) -> Result<Vec<Checksum>, MetaError> {
    let mut checksums = Vec::new();
    while packed.has_remaining() {
        checksums.extend(unpack_checksum(&mut packed)?);
    }
    Ok(checksums)
}

pub(super) fn pack_parts(parts: &[PartSummary]) -> Bytes {
    let mut packed = BytesMut::with_capacity(parts.len() * 19);
    for part in parts {
        packed.put_u16(part.number);
        packed.put_u64(part.size);
        pack_checksum(part.checksum.as_ref(), &mut packed);
    }
    packed.freeze()
}

pub(super) fn unpack_parts(mut packed: &[u8]) -> Result<Vec<PartSummary>, MetaError> {
    const DAMAGED: MetaError = MetaError::Damaged("parts");
    let mut parts = Vec::new();
    while packed.has_remaining() {
        parts.push(PartSummary {
            number: packed.try_get_u16().map_err(|_| DAMAGED)?,
            size: packed.try_get_u64().map_err(|_| DAMAGED)?,
            checksum: unpack_checksum(&mut packed)?,
        });
    }
    Ok(parts)
}

/// Kinds are numbered from 1: a zero is none.
pub(super) fn kind_number(kind: ChecksumKind) -> u8 {
    match kind {
        ChecksumKind::Crc32 => 1,
        ChecksumKind::Crc32c => 2,
        ChecksumKind::Crc64Nvme => 3,
        ChecksumKind::Sha1 => 4,
        ChecksumKind::Sha256 => 5,
        ChecksumKind::Md5 => 6,
    }
}

pub(super) fn kind_numbered(number: u32) -> Option<ChecksumKind> {
    ChecksumKind::ALL.into_iter().find(|kind| u32::from(kind_number(*kind)) == number)
}
