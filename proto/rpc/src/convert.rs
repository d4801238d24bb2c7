//! Messages to types and back. Whatever a peer sends becomes a valid value or a
//! [`Malformed`]; nothing is guessed.

use bytes::Bytes;
use keyway_proto::plan::ChunkSpec;
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, ChunkId, DigestSet, GetPlan, KeyFate, KeyStrength, NodeId,
    Piece, PutPlan, Receipt, TenantId, TransferId, TransferPath,
};

use crate::schema;

/// A message that says nothing this version understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub &'static str);

/// The id with these bytes.
pub fn chunk_id(bytes: &[u8]) -> Result<ChunkId, Malformed> {
    Ok(ChunkId::from_bytes(id(bytes, "chunk id")?))
}

/// The message for a chunk id.
pub fn chunk_bytes(chunk: ChunkId) -> Bytes {
    Bytes::copy_from_slice(&chunk.to_bytes())
}

/// The ids packed one after the other.
pub fn chunk_ids(packed: &[u8]) -> Result<Vec<ChunkId>, Malformed> {
    let (ids, []) = packed.as_chunks::<16>() else {
        return Err(Malformed("chunk ids"));
    };
    Ok(ids.iter().map(|id| ChunkId::from_bytes(*id)).collect())
}

/// Packs ids one after the other.
pub fn pack_chunk_ids(chunks: &[ChunkId]) -> Bytes {
    chunks.iter().flat_map(|chunk| chunk.to_bytes()).collect()
}

/// The request for a plan.
pub fn get_request(node: NodeId, plan: &GetPlan) -> schema::GetRequest {
    let pieces = plan.pieces.iter().map(|piece| schema::Piece {
        chunk: chunk_bytes(piece.chunk),
        offset: piece.range.offset(),
        length: piece.range.length(),
    });
    schema::GetRequest {
        node: node.0,
        transfer: transfer_bytes(plan.transfer),
        tenant: plan.tenant.0,
        pieces: pieces.collect(),
    }
}

/// The plan in a request. Its length does not overflow.
pub fn get_plan(request: &schema::GetRequest) -> Result<GetPlan, Malformed> {
    let pieces = request.pieces.iter().map(|piece| {
        let range = ByteRange::new(piece.offset, piece.length).ok_or(Malformed("range"))?;
        Ok(Piece { chunk: chunk_id(&piece.chunk)?, range })
    });
    let pieces = pieces.collect::<Result<Vec<_>, Malformed>>()?;
    sum(pieces.iter().map(|piece| piece.range.length()))?;
    let transfer = transfer_id(&request.transfer)?;
    Ok(GetPlan { transfer, tenant: TenantId(request.tenant), pieces })
}

/// The message for a plan.
pub fn put_request(node: NodeId, plan: &PutPlan) -> schema::PutPlan {
    schema::PutPlan {
        node: node.0,
        transfer: transfer_bytes(plan.transfer),
        tenant: plan.tenant.0,
        chunks: plan.chunks.iter().map(chunk_message).collect(),
        digests: plan.digests.iter().fold(0, |bits, kind| bits | 1 << (kind_number(kind) - 1)),
    }
}

/// The plan in a message. Its length does not overflow.
pub fn put_plan(message: &schema::PutPlan) -> Result<PutPlan, Malformed> {
    let chunks = message.chunks.iter().map(chunk_spec).collect::<Result<Vec<_>, _>>()?;
    sum(chunks.iter().map(|chunk| chunk.length))?;
    if message.digests >> ChecksumKind::ALL.len() != 0 {
        return Err(Malformed("digests"));
    }
    let asked = |kind: &ChecksumKind| message.digests & 1 << (kind_number(*kind) - 1) != 0;
    Ok(PutPlan {
        transfer: transfer_id(&message.transfer)?,
        tenant: TenantId(message.tenant),
        chunks,
        digests: ChecksumKind::ALL.into_iter().filter(asked).collect::<DigestSet>(),
    })
}

/// The message for a chunk.
pub fn chunk_message(chunk: &ChunkSpec) -> schema::Chunk {
    schema::Chunk { id: chunk_bytes(chunk.id), length: chunk.length }
}

/// The chunk in a message.
pub fn chunk_spec(message: &schema::Chunk) -> Result<ChunkSpec, Malformed> {
    Ok(ChunkSpec { id: chunk_id(&message.id)?, length: message.length })
}

/// The message for a receipt; `None` when it names something that the schema lacks.
pub fn receipt_message(receipt: &Receipt) -> Option<schema::Receipt> {
    let digests = receipt.digests.iter().map(|digest| schema::Digest {
        kind: kind_number(digest.kind()),
        value: Bytes::copy_from_slice(digest.value()),
    });
    let path = match receipt.path {
        TransferPath::Http => schema::TransferPath::Http,
        _ => return None,
    };
    let strength = match receipt.strength {
        KeyStrength::Http => schema::KeyStrength::Http,
        _ => return None,
    };
    let key = match receipt.key {
        KeyFate::NoKey => schema::KeyFate::NoKey,
        _ => return None,
    };
    Some(schema::Receipt {
        transfer: transfer_bytes(receipt.transfer),
        bytes: receipt.bytes,
        digests: digests.collect(),
        path: path.into(),
        strength: strength.into(),
        key: key.into(),
    })
}

/// The receipt in a message.
pub fn receipt(message: &schema::Receipt) -> Result<Receipt, Malformed> {
    let digests = message.digests.iter().map(|digest| {
        let kind = ChecksumKind::ALL.into_iter().find(|kind| kind_number(*kind) == digest.kind);
        kind.and_then(|kind| Checksum::new(kind, &digest.value)).ok_or(Malformed("digest"))
    });
    let path = match message.path() {
        schema::TransferPath::Http => TransferPath::Http,
        schema::TransferPath::Unspecified => return Err(Malformed("transfer path")),
    };
    let strength = match message.strength() {
        schema::KeyStrength::Http => KeyStrength::Http,
        schema::KeyStrength::Unspecified => return Err(Malformed("key strength")),
    };
    let key = match message.key() {
        schema::KeyFate::NoKey => KeyFate::NoKey,
        schema::KeyFate::Unspecified => return Err(Malformed("key fate")),
    };
    Ok(Receipt {
        transfer: transfer_id(&message.transfer)?,
        bytes: message.bytes,
        digests: digests.collect::<Result<_, _>>()?,
        path,
        strength,
        key,
    })
}

fn transfer_id(bytes: &[u8]) -> Result<TransferId, Malformed> {
    Ok(TransferId::from_bytes(id(bytes, "transfer id")?))
}

fn transfer_bytes(transfer: TransferId) -> Bytes {
    Bytes::copy_from_slice(&transfer.to_bytes())
}

fn id(bytes: &[u8], what: &'static str) -> Result<[u8; 16], Malformed> {
    bytes.try_into().map_err(|_| Malformed(what))
}

fn sum(lengths: impl Iterator<Item = u64>) -> Result<u64, Malformed> {
    let mut lengths = lengths;
    lengths.try_fold(0_u64, u64::checked_add).ok_or(Malformed("length"))
}

/// Numbers on the wire begin with 1, so that a missing field is no kind.
fn kind_number(kind: ChecksumKind) -> u32 {
    match kind {
        ChecksumKind::Crc32 => 1,
        ChecksumKind::Crc32c => 2,
        ChecksumKind::Crc64Nvme => 3,
        ChecksumKind::Sha1 => 4,
        ChecksumKind::Sha256 => 5,
        ChecksumKind::Md5 => 6,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    #[test]
    fn plans_and_receipts_round_trip() {
        let range = ByteRange::new(3, 4).expect("fits");
        let plan = GetPlan {
            transfer: TransferId::new(1, [2; 10]),
            tenant: TenantId(3),
            pieces: vec![Piece { chunk: ChunkId::new(4, [5; 10]), range }],
        };
        assert_eq!(get_plan(&get_request(NodeId(1), &plan)), Ok(plan.clone()));
        let put = PutPlan {
            transfer: plan.transfer,
            tenant: plan.tenant,
            chunks: vec![ChunkSpec { id: plan.pieces[0].chunk, length: 9 }],
            digests: DigestSet::NONE.with(ChecksumKind::Crc32).with(ChecksumKind::Md5),
        };
        assert_eq!(put_plan(&put_request(NodeId(1), &put)), Ok(put));
        let given = Receipt {
            transfer: plan.transfer,
            bytes: 9,
            digests: ChecksumKind::ALL.map(|kind| Checksum::of(kind, b"x")).into_iter().collect(),
            path: TransferPath::Http,
            strength: KeyStrength::Http,
            key: KeyFate::NoKey,
        };
        assert_eq!(receipt(&receipt_message(&given).expect("known")), Ok(given));
    }

    #[test]
    fn what_stands_for_nothing_is_refused() {
        let piece =
            |offset, length| schema::Piece { chunk: Bytes::from_static(&[0; 16]), offset, length };
        let request = |pieces| schema::GetRequest {
            transfer: Bytes::from_static(&[0; 16]),
            pieces,
            ..Default::default()
        };
        assert_eq!(get_plan(&schema::GetRequest::default()), Err(Malformed("transfer id")));
        let overflow = request(vec![piece(u64::MAX, 1)]);
        assert_eq!(get_plan(&overflow), Err(Malformed("range")));
        let too_long = request(vec![piece(0, u64::MAX), piece(0, 1)]);
        assert_eq!(get_plan(&too_long), Err(Malformed("length")));
        assert_eq!(chunk_ids(&[0; 17]), Err(Malformed("chunk ids")));
        assert_eq!(receipt(&schema::Receipt::default()), Err(Malformed("transfer path")));
        let digests = schema::PutPlan {
            transfer: Bytes::from_static(&[0; 16]),
            digests: 0x40,
            ..Default::default()
        };
        assert_eq!(put_plan(&digests), Err(Malformed("digests")));
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            if let Ok(message) = schema::GetRequest::decode(&bytes[..]) {
                let _ = get_plan(&message);
            }
            if let Ok(message) = schema::PutPlan::decode(&bytes[..]) {
                let _ = put_plan(&message);
            }
            if let Ok(message) = schema::Receipt::decode(&bytes[..]) {
                let _ = receipt(&message);
            }
        }
    }
}
