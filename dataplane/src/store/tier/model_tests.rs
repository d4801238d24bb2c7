//! The tier beside the bytes that it must give: the same steps in any order, with far more
//! written than the memory holds.

use std::collections::BTreeMap;

use keyway_proto::ByteRange;
use keyway_proto::unit::MIB;
use proptest::prelude::*;

use super::tests::{config, pool};
use super::*;
use crate::store::memory::MemoryStore;
use crate::store::{Frame, conformance};

#[derive(Clone, Debug)]
enum Step {
    Put {
        length: u64,
    },
    /// Written to memory first.
    PutBehind {
        length: u64,
    },
    /// Waits until all is durable.
    Settle,
    Get {
        which: usize,
        from: u64,
        length: u64,
        keep: bool,
    },
    Cancel {
        which: usize,
        from: u64,
    },
    Load {
        which: usize,
    },
    Release {
        which: usize,
    },
    /// Bytes that were kept go, all of them.
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![1u64..20_000, 20_000u64..600_000, 600_000u64..5_000_000];
    prop_oneof![
        4 => length.clone().prop_map(|length| Step::Put { length }),
        3 => length.prop_map(|length| Step::PutBehind { length }),
        1 => Just(Step::Settle),
        6 => (any::<usize>(), any::<u64>(), any::<u64>(), prop::bool::weighted(0.2))
            .prop_map(|(which, from, length, keep)| Step::Get { which, from, length, keep }),
        1 => (any::<usize>(), any::<u64>()).prop_map(|(which, from)| Step::Cancel { which, from }),
        1 => any::<usize>().prop_map(|which| Step::Load { which }),
        2 => any::<usize>().prop_map(|which| Step::Release { which }),
        1 => Just(Step::Drop),
    ]
}

fn admit() -> impl Strategy<Value = TierAdmit> {
    prop::sample::select(vec![TierAdmit::OnRead, TierAdmit::OnWrite, TierAdmit::OnReadAndWrite])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn gives_the_stores_bytes(
        steps in prop::collection::vec(step(), 1..80),
        size_bytes in 4096..8 * MIB,
        admit in admit(),
        threads: bool,
    ) {
        let mut runtime = match threads {
            true => tokio::runtime::Builder::new_multi_thread(),
            false => tokio::runtime::Builder::new_current_thread(),
        };
        let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
        runtime.block_on(run(steps, TierConfig { admit, ..config(size_bytes) }));
    }
}

async fn run(steps: Vec<Step>, config: TierConfig) {
    let pool = pool();
    let dirty_bytes_max = config.dirty_bytes_max();
    let store = Arc::new(MemoryStore::new(512 * MIB));
    let tier = Arc::new(MemoryTier::over(store, pool.clone(), config).expect("memory"));
    let store: Arc<dyn BlobStore> = Arc::clone(&tier) as _;
    let capacity = tier.stats().capacity_bytes;

    let mut model: BTreeMap<ChunkId, ChunkSpec> = BTreeMap::new();
    let mut kept: Vec<(Frame, Vec<u8>)> = Vec::new();
    for step in steps {
        match step {
            Step::Put { length } => {
                let chunk = conformance::put(&store, &pool, length).await.expect("room");
                model.insert(chunk.id, chunk);
            }
            Step::PutBehind { length } => {
                let chunk = ChunkSpec { id: ChunkId::generate(), length };
                let writer: Box<dyn ChunkWriter> = match tier.write_behind(chunk).await {
                    Ok(Some(writer)) => Box::new(writer),
                    Ok(None) => store.writer(chunk).await.expect("room"),
                    Err(error) => panic!("{error}"),
                };
                let staged = conformance::fill(writer, &pool, chunk).await.expect("room");
                staged.publish().expect("a new id");
                model.insert(chunk.id, chunk);
            }
            Step::Settle => {
                let ids: Vec<_> = model.keys().copied().collect();
                let standings = tier.settle(&ids, Duration::from_secs(60)).await;
                assert!(standings.iter().all(|standing| *standing == Standing::Durable));
                assert_eq!(tier.stats().dirty_chunks, 0);
            }
            Step::Get { which, from, length, keep } => {
                let Some(chunk) = pick(&model, which) else { continue };
                let offset = from % chunk.length;
                let range = ByteRange::new(offset, 1 + length % (chunk.length - offset));
                let range = range.expect("inside");
                let pin = store.pin(chunk.id).expect("in the model");
                let whole = conformance::content(chunk.id, chunk.length);
                let mut at = offset as usize;
                let take = |frame: Frame| {
                    let expected = &whole[at..at + frame.len()];
                    assert!(frame[..] == *expected);
                    at += expected.len();
                    if keep {
                        kept.push((frame, expected.to_vec()));
                    }
                };
                conformance::read_frames(&*pin, range, take).await.expect("readable");
            }
            Step::Cancel { which, from } => {
                let Some(chunk) = pick(&model, which) else { continue };
                let offset = from % chunk.length;
                let end = (offset / MIB + 1).saturating_mul(MIB).min(chunk.length);
                let range = ByteRange::new(offset, end - offset).expect("inside");
                let pin = store.pin(chunk.id).expect("in the model");
                let mut read = pin.read(range, None);
                let _ = futures::poll!(&mut read);
            }
            Step::Load { which } => {
                let Some(chunk) = pick(&model, which) else { continue };
                let loaded = tier.load(&[chunk.id]).await;
                assert_eq!(loaded.chunks + loaded.missed, 1);
            }
            Step::Release { which } => {
                let Some(chunk) = pick(&model, which) else { continue };
                store.release(&[chunk.id]);
                model.remove(&chunk.id);
                assert!(tier.shared.index.find(chunk.id).is_none());
            }
            Step::Drop => kept.clear(),
        }
        let stats = tier.stats();
        assert!(stats.used_bytes <= capacity && stats.chunks <= model.len() as u64);
        assert!(stats.dirty_bytes <= dirty_bytes_max);
        let listed = store.chunks(None, usize::MAX);
        assert!(listed.iter().eq(model.values()), "every chunk is listed, once");
        // Nothing writes over bytes that somebody still reads.
        assert!(kept.iter().all(|(frame, expected)| frame[..] == expected[..]));
    }
    store.close().await;
    assert_eq!((tier.stats().chunks, pool.stats().leased_bytes), (0, 0));
    assert_eq!((tier.stats().dirty_chunks, tier.stats().lost), (0, 0));
    drop(kept);
    assert_eq!(tier.stats().used_bytes, 0);
}

fn pick(model: &BTreeMap<ChunkId, ChunkSpec>, which: usize) -> Option<ChunkSpec> {
    model.values().nth(which.checked_rem(model.len())?).copied()
}
