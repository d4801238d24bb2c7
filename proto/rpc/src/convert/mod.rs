//! Messages to types and back. Whatever a peer sends becomes a valid value or a
//! [`Malformed`]; nothing is guessed.

use bytes::Bytes;
use keyway_proto::key::Relinquished;
use keyway_proto::plan::ChunkSpec;
use keyway_proto::{
    ByteRange, Checksum, ChecksumKind, ChunkId, DataKey, DigestSet, Durability, GetPlan, KeyFate,
    KeyStrength, NodeId, Piece, PutPlan, Receipt, Standing, TenantId, TransferId, TransferPath,
    Verification, Weight,
};

use crate::schema;

mod direct;
mod local;
mod session;

pub use direct::{direct_plan, direct_plan_bytes};
pub use local::{
    door, door_message, local_session_offer, local_session_offer_message, local_session_request,
    open_local_session_request,
};
pub use session::{
    close_sessions_request, open_session_request, rail, rail_message, session_offer,
    session_offer_message, session_owner, session_request, session_selector,
};

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

/// Where each chunk stands, one byte for each.
pub fn pack_standings(standings: &[Standing]) -> Bytes {
    let number = |standing: &Standing| match standing {
        Standing::Durable => 1,
        Standing::Pending => 2,
        Standing::Missing => 3,
    };
    standings.iter().map(number).collect()
}

/// Where each chunk stands.
pub fn standings(packed: &[u8]) -> Result<Vec<Standing>, Malformed> {
    let standing = |number: &u8| match number {
        1 => Ok(Standing::Durable),
        2 => Ok(Standing::Pending),
        3 => Ok(Standing::Missing),
        _ => Err(Malformed("standing")),
    };
    packed.iter().map(standing).collect()
}

/// The request for a plan.
pub fn get_request(node: NodeId, plan: &GetPlan) -> schema::GetRequest {
    schema::GetRequest {
        node: node.0,
        transfer: transfer_bytes(plan.transfer),
        tenant: plan.tenant.0,
        pieces: piece_messages(&plan.pieces),
        verification: verification_number(plan.verification),
        weight: plan.weight.get(),
        key: data_key_bytes(plan.key.as_ref()),
    }
}

/// The plan in a request. Its length does not overflow.
pub fn get_plan(request: &schema::GetRequest) -> Result<GetPlan, Malformed> {
    let transfer = transfer_id(&request.transfer)?;
    Ok(GetPlan {
        transfer,
        tenant: TenantId(request.tenant),
        pieces: pieces(&request.pieces)?,
        verification: verification(request.verification)?,
        weight: weight(request.weight)?,
        key: data_key(&request.key)?,
    })
}

fn data_key_bytes(key: Option<&DataKey>) -> Bytes {
    key.map(|key| Bytes::copy_from_slice(key.expose())).unwrap_or_default()
}

fn data_key(bytes: &[u8]) -> Result<Option<DataKey>, Malformed> {
    // Gateways from before there was encryption say nothing.
    if bytes.is_empty() {
        return Ok(None);
    }
    DataKey::from_slice(bytes).map(Some).ok_or(Malformed("data key"))
}

fn weight(number: u32) -> Result<Weight, Malformed> {
    // Gateways from before there were weights say nothing.
    if number == 0 { Ok(Weight::default()) } else { Weight::new(number).ok_or(Malformed("weight")) }
}

fn verification_number(verification: Verification) -> i32 {
    let number = match verification {
        Verification::BeforeDelivery => schema::Verification::BeforeDelivery,
        Verification::Inline => schema::Verification::Inline,
        Verification::Client => schema::Verification::Client,
    };
    number.into()
}

fn verification(number: i32) -> Result<Verification, Malformed> {
    match schema::Verification::try_from(number) {
        Ok(schema::Verification::BeforeDelivery) => Ok(Verification::BeforeDelivery),
        // Gateways from before there was a choice say nothing.
        Ok(schema::Verification::Unspecified | schema::Verification::Inline) => {
            Ok(Verification::Inline)
        }
        Ok(schema::Verification::Client) => Ok(Verification::Client),
        Err(_) => Err(Malformed("verification")),
    }
}

/// The message for a plan.
pub fn put_request(node: NodeId, plan: &PutPlan) -> schema::PutPlan {
    schema::PutPlan {
        node: node.0,
        transfer: transfer_bytes(plan.transfer),
        tenant: plan.tenant.0,
        chunks: plan.chunks.iter().map(chunk_message).collect(),
        digests: digest_bits(plan.digests),
        memory_first: plan.durability == Durability::Memory,
        weight: plan.weight.get(),
        key: data_key_bytes(plan.key.as_ref()),
    }
}

/// The plan in a message. Its length does not overflow.
pub fn put_plan(message: &schema::PutPlan) -> Result<PutPlan, Malformed> {
    let chunks = message.chunks.iter().map(chunk_spec).collect::<Result<Vec<_>, _>>()?;
    sum(chunks.iter().map(|chunk| chunk.length))?;
    Ok(PutPlan {
        transfer: transfer_id(&message.transfer)?,
        tenant: TenantId(message.tenant),
        chunks,
        digests: digest_set(message.digests)?,
        durability: durability(message.memory_first),
        weight: weight(message.weight)?,
        key: data_key(&message.key)?,
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
    Some(schema::Receipt {
        transfer: transfer_bytes(receipt.transfer),
        bytes: receipt.bytes,
        digests: digests.collect(),
        path: path_message(receipt.path)?.into(),
        strength: strength_message(receipt.strength)?.into(),
        key: fate_message(receipt.key)?.into(),
        in_memory: receipt.durability == Durability::Memory,
    })
}

/// The receipt in a message.
pub fn receipt(message: &schema::Receipt) -> Result<Receipt, Malformed> {
    let digests = message.digests.iter().map(|digest| {
        let kind = ChecksumKind::ALL.into_iter().find(|kind| kind_number(*kind) == digest.kind);
        kind.and_then(|kind| Checksum::new(kind, &digest.value)).ok_or(Malformed("digest"))
    });
    Ok(Receipt {
        transfer: transfer_id(&message.transfer)?,
        bytes: message.bytes,
        digests: digests.collect::<Result<_, _>>()?,
        path: path(message.path())?,
        strength: strength(message.strength())?,
        key: fate(message.key())?,
        durability: durability(message.in_memory),
    })
}

/// The message for what became of a direct transfer's key.
pub fn relinquished_message(key: Relinquished) -> schema::KeyFate {
    match key {
        Relinquished::Invalidated => schema::KeyFate::Invalidated,
        Relinquished::Quiet => schema::KeyFate::Quiet,
        Relinquished::Fenced => schema::KeyFate::Fenced,
        Relinquished::Unknown => schema::KeyFate::Unknown,
    }
}

/// What became of a direct transfer's key. Whatever says nothing of it is
/// [`Relinquished::Unknown`], which is always safe.
pub fn relinquished(message: schema::KeyFate) -> Relinquished {
    match message {
        schema::KeyFate::Invalidated => Relinquished::Invalidated,
        schema::KeyFate::Quiet => Relinquished::Quiet,
        schema::KeyFate::Fenced => Relinquished::Fenced,
        schema::KeyFate::Unknown | schema::KeyFate::NoKey | schema::KeyFate::Unspecified => {
            Relinquished::Unknown
        }
    }
}

fn durability(in_memory: bool) -> Durability {
    if in_memory { Durability::Memory } else { Durability::Disk }
}

fn path_message(path: TransferPath) -> Option<schema::TransferPath> {
    Some(match path {
        TransferPath::Http => schema::TransferPath::Http,
        TransferPath::VerbsHost => schema::TransferPath::VerbsHost,
        TransferPath::VerbsGpu => schema::TransferPath::VerbsGpu,
        TransferPath::IpcHost => schema::TransferPath::IpcHost,
        TransferPath::IpcGpu => schema::TransferPath::IpcGpu,
        _ => return None,
    })
}

fn path(message: schema::TransferPath) -> Result<TransferPath, Malformed> {
    match message {
        schema::TransferPath::Http => Ok(TransferPath::Http),
        schema::TransferPath::VerbsHost => Ok(TransferPath::VerbsHost),
        schema::TransferPath::VerbsGpu => Ok(TransferPath::VerbsGpu),
        schema::TransferPath::IpcHost => Ok(TransferPath::IpcHost),
        schema::TransferPath::IpcGpu => Ok(TransferPath::IpcGpu),
        schema::TransferPath::Unspecified => Err(Malformed("transfer path")),
    }
}

fn strength_message(strength: KeyStrength) -> Option<schema::KeyStrength> {
    Some(match strength {
        KeyStrength::Http => schema::KeyStrength::Http,
        KeyStrength::Standing => schema::KeyStrength::Standing,
        KeyStrength::Slab => schema::KeyStrength::Slab,
        KeyStrength::Ipc => schema::KeyStrength::Ipc,
        KeyStrength::Registration => schema::KeyStrength::Registration,
        KeyStrength::WindowLocal => schema::KeyStrength::WindowLocal,
        KeyStrength::Window => schema::KeyStrength::Window,
        _ => return None,
    })
}

fn strength(message: schema::KeyStrength) -> Result<KeyStrength, Malformed> {
    match message {
        schema::KeyStrength::Http => Ok(KeyStrength::Http),
        schema::KeyStrength::Standing => Ok(KeyStrength::Standing),
        schema::KeyStrength::Slab => Ok(KeyStrength::Slab),
        schema::KeyStrength::Ipc => Ok(KeyStrength::Ipc),
        schema::KeyStrength::Registration => Ok(KeyStrength::Registration),
        schema::KeyStrength::WindowLocal => Ok(KeyStrength::WindowLocal),
        schema::KeyStrength::Window => Ok(KeyStrength::Window),
        schema::KeyStrength::Unspecified => Err(Malformed("key strength")),
    }
}

fn fate_message(fate: KeyFate) -> Option<schema::KeyFate> {
    match fate {
        KeyFate::NoKey => Some(schema::KeyFate::NoKey),
        KeyFate::Relinquished(key) => Some(relinquished_message(key)),
        _ => None,
    }
}

fn fate(message: schema::KeyFate) -> Result<KeyFate, Malformed> {
    match message {
        schema::KeyFate::NoKey => Ok(KeyFate::NoKey),
        schema::KeyFate::Unspecified => Err(Malformed("key fate")),
        told => Ok(KeyFate::Relinquished(relinquished(told))),
    }
}

fn piece_messages(pieces: &[Piece]) -> Vec<schema::Piece> {
    let message = |piece: &Piece| schema::Piece {
        chunk: chunk_bytes(piece.chunk),
        offset: piece.range.offset(),
        length: piece.range.length(),
    };
    pieces.iter().map(message).collect()
}

/// The pieces in messages; their sum does not overflow.
fn pieces(messages: &[schema::Piece]) -> Result<Vec<Piece>, Malformed> {
    let pieces = messages.iter().map(|piece| {
        let range = ByteRange::new(piece.offset, piece.length).ok_or(Malformed("range"))?;
        Ok(Piece { chunk: chunk_id(&piece.chunk)?, range })
    });
    let pieces = pieces.collect::<Result<Vec<_>, Malformed>>()?;
    sum(pieces.iter().map(|piece| piece.range.length()))?;
    Ok(pieces)
}

fn digest_bits(digests: DigestSet) -> u32 {
    digests.iter().fold(0, |bits, kind| bits | 1 << (kind_number(kind) - 1))
}

fn digest_set(bits: u32) -> Result<DigestSet, Malformed> {
    if bits >> ChecksumKind::ALL.len() != 0 {
        return Err(Malformed("digests"));
    }
    let asked = |kind: &ChecksumKind| bits & 1 << (kind_number(*kind) - 1) != 0;
    Ok(ChecksumKind::ALL.into_iter().filter(asked).collect())
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
            verification: Verification::Client,
            weight: Weight::MAX,
            key: DataKey::from_slice(&[7; 32]),
        };
        for verification in Verification::ALL {
            let plan = GetPlan { verification, ..plan.clone() };
            let request = get_request(NodeId(1), &plan);
            assert_eq!(get_plan(&request), Ok(plan));
            let silent = schema::GetRequest { verification: 0, ..request.clone() };
            let inline = get_plan(&silent).map(|plan| plan.verification);
            assert_eq!(inline, Ok(Verification::Inline));
            let foreign = schema::GetRequest { verification: 4, ..request.clone() };
            assert_eq!(get_plan(&foreign), Err(Malformed("verification")));
            let heavy = schema::GetRequest { weight: 10_001, ..request.clone() };
            assert_eq!(get_plan(&heavy), Err(Malformed("weight")));
            let silent = schema::GetRequest { weight: 0, ..request.clone() };
            assert_eq!(get_plan(&silent).map(|plan| plan.weight), Ok(Weight::default()));
            let silent = schema::GetRequest { key: Bytes::new(), ..request.clone() };
            assert_eq!(get_plan(&silent).map(|plan| plan.key), Ok(None));
            let short = schema::GetRequest { key: vec![7; 31].into(), ..request };
            assert_eq!(get_plan(&short), Err(Malformed("data key")));
        }
        let put = PutPlan {
            transfer: plan.transfer,
            tenant: plan.tenant,
            chunks: vec![ChunkSpec { id: plan.pieces[0].chunk, length: 9 }],
            digests: DigestSet::NONE.with(ChecksumKind::Crc32).with(ChecksumKind::Md5),
            durability: Durability::Disk,
            weight: Weight::default(),
            key: DataKey::from_slice(&[9; 32]),
        };
        assert_eq!(put_plan(&put_request(NodeId(1), &put)), Ok(put.clone()));
        let first = PutPlan { durability: Durability::Memory, ..put };
        assert_eq!(put_plan(&put_request(NodeId(1), &first)), Ok(first));
        let told = [Standing::Missing, Standing::Durable, Standing::Pending];
        assert_eq!(standings(&pack_standings(&told)), Ok(told.to_vec()));
        assert_eq!(standings(&[1, 0]), Err(Malformed("standing")));
        let given = Receipt {
            transfer: plan.transfer,
            bytes: 9,
            digests: ChecksumKind::ALL.map(|kind| Checksum::of(kind, b"x")).into_iter().collect(),
            path: TransferPath::Http,
            strength: KeyStrength::Http,
            key: KeyFate::NoKey,
            durability: Durability::Memory,
        };
        let paths = TransferPath::ALL;
        let fates = RELINQUISHED.map(KeyFate::Relinquished).into_iter().chain([KeyFate::NoKey]);
        for key in fates {
            for (path, strength) in paths.into_iter().cycle().zip(KeyStrength::ALL) {
                let given = Receipt { path, strength, key, ..given.clone() };
                assert_eq!(receipt(&receipt_message(&given).expect("known")), Ok(given));
            }
        }
    }

    const RELINQUISHED: [Relinquished; 4] = [
        Relinquished::Invalidated,
        Relinquished::Quiet,
        Relinquished::Fenced,
        Relinquished::Unknown,
    ];

    /// Goal: nothing but a node's own word makes a key's fate better than unknown.
    #[test]
    fn a_fate_that_nobody_told_is_unknown() {
        for key in RELINQUISHED {
            assert_eq!(relinquished(relinquished_message(key)), key);
        }
        for number in [0, 1, 6, -1] {
            let reply = schema::TransferReply { key: number, outcome: None };
            assert_eq!(relinquished(reply.key()), Relinquished::Unknown, "{number}");
        }
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
        let nowhere =
            schema::Receipt { transfer: Bytes::from_static(&[0; 16]), ..Default::default() };
        assert_eq!(receipt(&nowhere), Err(Malformed("transfer path")));
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
