//! The plan inside a grant. A gateway writes it and a node reads it, both with these.

use bytes::Bytes;
use keyway_proto::{
    DigestSet, DirectPlan, DirectTarget, DirectWork, GatherPiece, GatherPlan, GetPlan, RdmaToken,
    RemoteKey, RemoteWindow, SessionId, SessionToken, TenantId,
};
use prost::Message as _;

use super::{
    Malformed, chunk_ids, data_key, data_key_bytes, digest_bits, digest_set, pack_chunk_ids,
    piece_messages, pieces, put_plan, put_request, session_owner, transfer_bytes, transfer_id,
    verification, verification_number, weight,
};
use crate::schema;
use crate::schema::direct_plan::Work;

/// A plan as a grant carries it.
pub fn direct_plan_bytes(plan: &DirectPlan) -> Vec<u8> {
    let windows = plan.target.windows().iter().map(|window| schema::Window {
        address: window.address,
        length: window.length,
        key: window.key.0,
    });
    let work = match &plan.work {
        DirectWork::Get(get, digests) => Work::Get(schema::DirectGet {
            transfer: transfer_bytes(get.transfer),
            tenant: get.tenant.0,
            pieces: piece_messages(&get.pieces),
            digests: digest_bits(*digests),
            verification: verification_number(get.verification),
            weight: get.weight.get(),
            key: data_key_bytes(get.key.as_ref()),
        }),
        DirectWork::Gather(gather, digests) => Work::Gather(gather_message(gather, *digests)),
        DirectWork::Put(put) => Work::Put(put_request(plan.session().node(), put)),
    };
    let dynamic = match &plan.target {
        DirectTarget::Session(_) => None,
        DirectTarget::Dynamic(_, token) => Some(schema::DynamicTarget {
            lid: token.lid().into(),
            number: token.dct_number(),
            gid: token.gid().map_or_else(Bytes::new, |gid| Bytes::copy_from_slice(&gid)),
        }),
    };
    let message = schema::DirectPlan {
        owner: Some(super::session::owner_message(&plan.owner)),
        session: plan.session().0,
        windows: windows.collect(),
        work: Some(work),
        dynamic,
    };
    message.encode_to_vec()
}

/// The plan that a grant carries. Its lengths do not overflow, and it speaks of one tenant and
/// one node; whether the bytes fit the windows is the reader's to check.
///
/// # Errors
/// [`Malformed`] says what part is.
pub fn direct_plan(bytes: &[u8]) -> Result<DirectPlan, Malformed> {
    // A copy, so that the chunks' ids below are slices of it.
    let message = schema::DirectPlan::decode(Bytes::copy_from_slice(bytes))
        .map_err(|_| Malformed("direct plan"))?;
    let owner = session_owner(message.owner.as_ref())?;
    let session = SessionId(message.session);
    let windows = message.windows.iter().map(|window| RemoteWindow {
        address: window.address,
        length: window.length,
        key: RemoteKey(window.key),
    });
    let target = match &message.dynamic {
        None => SessionToken::new(session, windows.collect()).map(DirectTarget::Session),
        Some(dynamic) if session == SessionId::new(session.node(), 0) => {
            let token = dynamic_token(dynamic, &windows.collect::<Vec<_>>());
            token.map(|token| DirectTarget::Dynamic(session.node(), token))
        }
        Some(_) => return Err(Malformed("session")),
    };
    let target = target.ok_or(Malformed("windows"))?;
    let work = match message.work.as_ref().ok_or(Malformed("work"))? {
        Work::Get(get) => DirectWork::Get(
            GetPlan {
                transfer: transfer_id(&get.transfer)?,
                tenant: TenantId(get.tenant),
                pieces: pieces(&get.pieces)?,
                verification: verification(get.verification)?,
                weight: weight(get.weight)?,
                key: data_key(&get.key)?,
            },
            digest_set(get.digests)?,
        ),
        Work::Gather(gather) => {
            DirectWork::Gather(gather_plan(gather)?, digest_set(gather.digests)?)
        }
        Work::Put(put) if put.node != session.node().0 => return Err(Malformed("node")),
        Work::Put(put) => DirectWork::Put(put_plan(put)?),
    };
    if work.tenant() != owner.tenant {
        return Err(Malformed("tenant"));
    }
    Ok(DirectPlan { owner, target, work })
}

fn dynamic_token(target: &schema::DynamicTarget, windows: &[RemoteWindow]) -> Option<RdmaToken> {
    let [RemoteWindow { address, length, key }] = *windows else { return None };
    let gid = match target.gid.is_empty() {
        true => None,
        false => Some(target.gid[..].try_into().ok()?),
    };
    let lid = u16::try_from(target.lid).ok()?;
    RdmaToken::new(address, length, key.0, lid, target.number, gid)
}

fn gather_message(plan: &GatherPlan, digests: DigestSet) -> schema::DirectGather {
    let mut pieces = Vec::with_capacity(plan.pieces.len() * GatherPiece::BYTES);
    for piece in &plan.pieces {
        pieces.extend_from_slice(&piece.to_bytes());
    }
    schema::DirectGather {
        transfer: transfer_bytes(plan.transfer),
        tenant: plan.tenant.0,
        chunks: pack_chunk_ids(&plan.chunks),
        pieces: pieces.into(),
        digests: digest_bits(digests),
        verification: verification_number(plan.verification),
        weight: plan.weight.get(),
        key: data_key_bytes(plan.key.as_ref()),
    }
}

fn gather_plan(message: &schema::DirectGather) -> Result<GatherPlan, Malformed> {
    let (pieces, []) = message.pieces.as_chunks::<{ GatherPiece::BYTES }>() else {
        return Err(Malformed("gathered pieces"));
    };
    let plan = GatherPlan {
        transfer: transfer_id(&message.transfer)?,
        tenant: TenantId(message.tenant),
        chunks: chunk_ids(&message.chunks)?,
        pieces: pieces.iter().map(GatherPiece::from_bytes).collect(),
        verification: verification(message.verification)?,
        weight: weight(message.weight)?,
        key: data_key(&message.key)?,
    };
    if plan.is_sound() { Ok(plan) } else { Err(Malformed("gathered pieces")) }
}

#[cfg(test)]
mod tests {
    use keyway_proto::{
        ByteRange, ChecksumKind, ChunkId, ChunkSpec, DataKey, DigestSet, Durability, NodeId, Piece,
        PutPlan, SessionOwner, TransferId, Verification, Weight,
    };
    use proptest::prelude::*;

    use super::*;

    fn windows() -> impl Strategy<Value = Vec<RemoteWindow>> {
        let window = (0..1u64 << 62, 1u32.., any::<u32>()).prop_map(|(address, length, key)| {
            RemoteWindow { address, length, key: RemoteKey(key) }
        });
        prop::collection::vec(window, 1..=keyway_proto::session_token::TOKEN_WINDOWS_MAX)
    }

    fn chunk() -> impl Strategy<Value = ChunkId> {
        any::<[u8; 16]>().prop_map(ChunkId::from_bytes)
    }

    fn work(tenant: TenantId) -> impl Strategy<Value = DirectWork> {
        let transfer = any::<[u8; 16]>().prop_map(TransferId::from_bytes);
        let digests = prop::sample::subsequence(ChecksumKind::ALL.to_vec(), 0..=6)
            .prop_map(|kinds| kinds.into_iter().collect::<DigestSet>());
        let length = 0..1u64 << 40;
        let spec = (chunk(), length.clone()).prop_map(|(id, length)| ChunkSpec { id, length });
        let piece = (chunk(), length.clone(), length).prop_map(|(chunk, offset, length)| Piece {
            chunk,
            range: ByteRange::new(offset, length).expect("far from the end"),
        });
        let pieces = prop::collection::vec(piece, 0..20);
        let chunks = prop::collection::vec(spec, 0..20);
        let weight =
            (1..=Weight::MAX.get()).prop_map(|number| Weight::new(number).expect("a weight"));
        let key = prop::option::of(any::<[u8; 32]>());
        let key = key.prop_map(|key| key.and_then(|bytes| DataKey::from_slice(&bytes)));
        (transfer, digests, (0..3, weight, key), pieces, chunks, gathered()).prop_map(
            move |(transfer, digests, (kind, weight, key), pieces, chunks, gathered)| match kind {
                0 => {
                    let verification = Verification::ALL[pieces.len() % 3];
                    let plan = GetPlan { transfer, tenant, weight, pieces, verification, key };
                    DirectWork::Get(plan, digests)
                }
                1 => {
                    let plan = GatherPlan { transfer, tenant, weight, key, ..gathered };
                    DirectWork::Gather(plan, digests)
                }
                _ => {
                    let durability = Durability::ALL[chunks.len() % 2];
                    DirectWork::Put(PutPlan {
                        transfer,
                        tenant,
                        weight,
                        chunks,
                        digests,
                        durability,
                        key,
                    })
                }
            },
        )
    }

    /// Pieces that lie one behind the other, of as many chunks at most.
    fn gathered() -> impl Strategy<Value = GatherPlan> {
        let piece = (any::<prop::sample::Index>(), any::<u32>(), 1u32..1 << 20, 0u32..1 << 20);
        let chunks = prop::collection::vec(chunk(), 1..5);
        (chunks, prop::collection::vec(piece, 5..20)).prop_map(|(chunks, pieces)| {
            let mut end = 0;
            let place = |(chunk, offset, length, gap): (prop::sample::Index, u32, u32, u32)| {
                let at = end + gap;
                end = at + length;
                GatherPiece { chunk: chunk.index(chunks.len()) as u32, offset, length, at }
            };
            let pieces = pieces.into_iter().map(place).collect();
            let (transfer, tenant) = (TransferId::from_bytes([0; 16]), TenantId(0));
            let verification = Verification::ALL[chunks.len() % 3];
            let weight = Weight::default();
            GatherPlan { transfer, tenant, weight, chunks, pieces, verification, key: None }
        })
    }

    fn plan() -> impl Strategy<Value = DirectPlan> {
        let owner = (any::<u64>(), "[ -~]{1,128}").prop_map(|(tenant, access_key)| SessionOwner {
            tenant: TenantId(tenant),
            access_key: access_key.into(),
        });
        (owner, target()).prop_flat_map(|(owner, target)| {
            work(owner.tenant).prop_map(move |work| DirectPlan {
                owner: owner.clone(),
                target: target.clone(),
                work,
            })
        })
    }

    fn target() -> impl Strategy<Value = DirectTarget> {
        let session = (any::<u64>(), windows()).prop_map(|(session, windows)| {
            SessionToken::new(SessionId(session), windows).expect("sound").into()
        });
        let queue = (any::<u16>(), 0u32..1 << 24, any::<Option<[u8; 16]>>());
        let dynamic = (any::<u32>(), windows(), queue);
        let dynamic = dynamic.prop_map(|(node, windows, (lid, number, gid))| {
            let RemoteWindow { address, length, key } = windows[0];
            let token = RdmaToken::new(address, length, key.0, lid, number, gid);
            DirectTarget::Dynamic(NodeId(node), token.expect("sound"))
        });
        prop_oneof![session, dynamic]
    }

    proptest! {
        #[test]
        fn what_was_planned_is_read(plan in plan()) {
            prop_assert_eq!(direct_plan(&direct_plan_bytes(&plan)), Ok(plan));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let _ = direct_plan(&bytes);
        }

        /// Goal: whatever is read again means the same, so nothing is guessed.
        #[test]
        fn altered_plans_are_read_as_they_are(
            plan in plan(),
            at: prop::sample::Index,
            byte: u8,
        ) {
            let mut bytes = direct_plan_bytes(&plan);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = direct_plan(&bytes) {
                prop_assert_eq!(direct_plan(&direct_plan_bytes(&other)), Ok(other));
            }
        }
    }

    fn put(tenant: u64) -> DirectPlan {
        let window = RemoteWindow { address: 4096, length: 9, key: RemoteKey(0x0bad_cafe) };
        let session = SessionId::new(NodeId(7), 1);
        DirectPlan {
            owner: SessionOwner { tenant: TenantId(1), access_key: "AKID".into() },
            target: SessionToken::new(session, vec![window]).expect("sound").into(),
            work: DirectWork::Put(PutPlan {
                transfer: TransferId::new(1, [2; 10]),
                tenant: TenantId(tenant),
                chunks: vec![ChunkSpec { id: ChunkId::new(1, [3; 10]), length: 9 }],
                digests: DigestSet::NONE,
                durability: Durability::Disk,
                weight: Weight::default(),
                key: DataKey::from_slice(&[0xcd; 32]),
            }),
        }
    }

    #[test]
    fn a_plan_that_contradicts_itself_is_refused() {
        assert!(direct_plan(&direct_plan_bytes(&put(1))).is_ok());
        assert_eq!(direct_plan(&direct_plan_bytes(&put(2))), Err(Malformed("tenant")));
        let altered = |change: fn(&mut schema::DirectPlan)| {
            let bytes = direct_plan_bytes(&put(1));
            let mut message = schema::DirectPlan::decode(&bytes[..]).expect("sound");
            change(&mut message);
            direct_plan(&message.encode_to_vec())
        };
        assert_eq!(altered(|plan| plan.session = 1), Err(Malformed("node")));
        assert_eq!(altered(|plan| plan.windows.clear()), Err(Malformed("windows")));
        assert_eq!(altered(|plan| plan.windows[0].length = 0), Err(Malformed("windows")));
        assert_eq!(altered(|plan| plan.windows[0].address = u64::MAX), Err(Malformed("windows")));
        let queue = || schema::DynamicTarget { lid: 1, number: 2, gid: Bytes::new() };
        let dynamic = |change: fn(&mut schema::DirectPlan), queue: schema::DynamicTarget| {
            let bytes = direct_plan_bytes(&put(1));
            let mut message = schema::DirectPlan::decode(&bytes[..]).expect("sound");
            message.session = SessionId::new(NodeId(7), 0).0;
            message.dynamic = Some(queue);
            change(&mut message);
            direct_plan(&message.encode_to_vec())
        };
        assert!(dynamic(|_| (), queue()).is_ok());
        assert_eq!(dynamic(|plan| plan.session += 1, queue()), Err(Malformed("session")));
        let twice = |plan: &mut schema::DirectPlan| plan.windows.push(plan.windows[0]);
        assert_eq!(dynamic(twice, queue()), Err(Malformed("windows")));
        for queue in [
            schema::DynamicTarget { number: 1 << 24, ..queue() },
            schema::DynamicTarget { lid: 1 << 16, ..queue() },
            schema::DynamicTarget { gid: Bytes::from_static(&[0; 15]), ..queue() },
        ] {
            assert_eq!(dynamic(|_| (), queue), Err(Malformed("windows")));
        }
        assert_eq!(altered(|plan| plan.owner = None), Err(Malformed("owner")));
        assert_eq!(altered(|plan| plan.work = None), Err(Malformed("work")));
        let nobody = |plan: &mut schema::DirectPlan| {
            plan.owner.get_or_insert_default().access_key.clear();
        };
        assert_eq!(altered(nobody), Err(Malformed("owner")));
    }

    #[test]
    fn gathered_pieces_that_meet_are_refused() {
        let piece = |at| GatherPiece { chunk: 0, offset: 0, length: 2, at };
        let plan = |pieces: Vec<GatherPiece>| DirectPlan {
            work: DirectWork::Gather(
                GatherPlan {
                    transfer: TransferId::new(1, [2; 10]),
                    tenant: TenantId(1),
                    weight: Weight::default(),
                    chunks: vec![ChunkId::new(1, [3; 10])],
                    pieces,
                    verification: Verification::Inline,
                    key: DataKey::from_slice(&[0xcd; 32]),
                },
                DigestSet::NONE,
            ),
            ..put(1)
        };
        let sound = plan(vec![piece(0), piece(2), piece(7)]);
        assert!(sound.fits());
        assert_eq!(direct_plan(&direct_plan_bytes(&sound)), Ok(sound));
        let beyond = plan(vec![piece(0), piece(8)]);
        assert!(!beyond.fits());
        for bad in [vec![], vec![piece(0), piece(1)], vec![piece(2), piece(0)]] {
            let read = direct_plan(&direct_plan_bytes(&plan(bad)));
            assert_eq!(read, Err(Malformed("gathered pieces")));
        }
    }

    #[test]
    fn messages_do_not_show_keys() {
        let bytes = direct_plan_bytes(&put(1));
        let message = schema::DirectPlan::decode(&bytes[..]).expect("sound");
        let request = schema::TransferRequest { node: 1, grant: Bytes::copy_from_slice(&bytes) };
        let secret = vec![0xab_u8; 32].into();
        let key = schema::SealingKeyReply { id: 1, secret, fresh_for_ms: 9, dynamic: true };
        let get = schema::GetRequest { key: vec![0xcd; 32].into(), ..Default::default() };
        let direct = schema::DirectGet { key: vec![0xcd; 32].into(), ..Default::default() };
        let gather = schema::DirectGather { key: vec![0xcd; 32].into(), ..Default::default() };
        let shown = format!("{message:?} {request:?} {key:?} {get:?} {direct:?} {gather:?}");
        assert!(!shown.contains("xcd") && !shown.contains("205"), "{shown}");
        assert!(!format!("{:?}", put(1)).contains("205"));
        assert!(!shown.contains(&0x0bad_cafe_u32.to_string()), "{shown}");
        assert!(!shown.contains("xab") && !shown.contains("171"), "{shown}");
        assert!(shown.contains("length: 9") && shown.contains("fresh_for_ms: 9"), "{shown}");
    }
}
