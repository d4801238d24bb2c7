//! The file store beside a map: the same steps must give the same answers, through
//! restarts, with more written than the store holds.

use std::collections::BTreeMap;

use keyway_proto::ByteRange;
use keyway_proto::unit::MIB;
use proptest::prelude::*;

use super::tests::{NODE, config, dir, pool};
use super::*;
use crate::store::conformance;

#[derive(Clone, Debug)]
enum Step {
    Put { length: u64 },
    Get { which: usize, from: u64, length: u64 },
    Release { which: usize },
    Compact,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![1u64..20_000, 20_000u64..600_000, 600_000u64..5_000_000];
    prop_oneof![
        4 => length.prop_map(|length| Step::Put { length }),
        4 => (any::<usize>(), any::<u64>(), any::<u64>())
            .prop_map(|(which, from, length)| Step::Get { which, from, length }),
        2 => any::<usize>().prop_map(|which| Step::Release { which }),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(run(steps));
    }
}

async fn run(steps: Vec<Step>) {
    let (dir, pool) = (dir(), pool());
    let mut config = config(&dir);
    config.capacity_bytes = Some(24 * MIB);
    config.volume_bytes = 12 * MIB;
    let open = || Arc::new(FileStore::open(NODE, &config, pool.clone()).expect("opened"));
    let mut store = open();
    let mut model: BTreeMap<ChunkId, ChunkSpec> = BTreeMap::new();
    for step in steps {
        let shared: Arc<dyn BlobStore> = Arc::clone(&store) as _;
        match step {
            Step::Put { length } => match conformance::put(&shared, &pool, length).await {
                Ok(chunk) => {
                    model.insert(chunk.id, chunk);
                }
                Err(error) => {
                    assert!(matches!(error, StoreError::Full), "{error}");
                    assert!(store.usage().free_bytes < length + 8 * MIB, "not full: {length}");
                }
            },
            Step::Get { which, from, length } => {
                let Some(chunk) = pick(&model, which) else { continue };
                let offset = from % chunk.length;
                let length = 1 + length % (chunk.length - offset);
                let pin = store.pin(chunk.id).expect("in the model");
                let range = ByteRange::new(offset, length).expect("inside");
                let bytes = conformance::read(&*pin, range).await.expect("readable");
                let whole = conformance::content(chunk.id, chunk.length);
                assert!(bytes == whole[offset as usize..(offset + length) as usize]);
            }
            Step::Release { which } => {
                let Some(chunk) = pick(&model, which) else { continue };
                store.release(&[chunk.id]);
                model.remove(&chunk.id);
            }
            Step::Compact => {
                let compacted = upkeep::compact_all(&store.core, &store.appends).await;
                assert!(matches!(compacted, Ok(()) | Err(StoreError::Full)), "{compacted:?}");
            }
            Step::Reopen => {
                store.close().await;
                drop((store, shared));
                store = open();
                // Released chunks may be back, as the gateway expects: it releases again.
                let listed = store.chunks(None, usize::MAX);
                let back: Vec<ChunkId> = listed
                    .iter()
                    .map(|chunk| chunk.id)
                    .filter(|id| !model.contains_key(id))
                    .collect();
                store.release(&back);
            }
        }
        let listed = store.chunks(None, usize::MAX);
        assert_eq!(listed, model.values().copied().collect::<Vec<_>>());
    }
    let shared: Arc<dyn BlobStore> = store;
    for chunk in model.values() {
        conformance::verify(&shared, *chunk).await;
    }
    shared.close().await;
}

fn pick(model: &BTreeMap<ChunkId, ChunkSpec>, which: usize) -> Option<ChunkSpec> {
    model.values().nth(which.checked_rem(model.len())?).copied()
}
