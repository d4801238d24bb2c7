//! What every engine must do, run over each of them: against a plain map for single-threaded
//! histories, and by counting for concurrent ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// Runs `test` over every engine.
fn each_engine<F: Future<Output = ()>>(test: impl Fn(Arc<dyn MetaStore>) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(test(Arc::new(MemoryStore::new())));
    // With a journal of many commits, of a few, and where each one writes the tree.
    for reserve_bytes in [8 << 20, 64 << 10, 0] {
        let dir = tempfile::tempdir().unwrap();
        let config = MetaConfig { reserve_bytes, ..MetaConfig::default() };
        let store = EmbeddedStore::open(dir.path(), &config).unwrap();
        runtime.block_on(test(Arc::new(store)));
    }
}

/// The files of a store, as a crash at this moment would leave them.
fn copy_store(from: &std::path::Path, to: &std::path::Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> Batch {
    let mut batch = Batch::default();
    batch.put(bytes(key), bytes(value));
    batch
}

#[test]
fn what_was_committed_is_read() {
    each_engine(|store| async move {
        assert_eq!(store.get(b"k").await.unwrap(), None);
        store.commit(put("k", "1")).await.unwrap();
        assert_eq!(store.get(b"k").await.unwrap(), Some(bytes("1")));
        let mut batch = put("k", "2");
        batch.delete(bytes("k"));
        batch.put(bytes(""), bytes("empty key"));
        batch.put(bytes("\u{10FFFF}"), bytes(""));
        store.commit(batch).await.unwrap();
        assert_eq!(store.get(b"k").await.unwrap(), None, "writes apply in order");
        assert_eq!(store.get(b"").await.unwrap(), Some(bytes("empty key")));
        assert_eq!(store.get("\u{10FFFF}".as_bytes()).await.unwrap(), Some(Bytes::new()));
        store.commit(Batch::default()).await.unwrap();
    });
}

#[test]
fn a_failed_precondition_changes_nothing() {
    each_engine(|store| async move {
        store.commit(put("a", "1")).await.unwrap();
        let conflict = async |change: &dyn Fn(&mut Batch)| {
            let mut batch = put("b", "2");
            change(&mut batch);
            matches!(store.commit(batch).await, Err(MetaError::Conflict))
        };
        assert!(conflict(&|batch| batch.expect(bytes("a"), None)).await);
        assert!(conflict(&|batch| batch.expect(bytes("a"), Some(bytes("2")))).await);
        assert!(conflict(&|batch| batch.expect(bytes("b"), Some(bytes("2")))).await);
        assert!(conflict(&|batch| batch.expect_empty(bytes("a"), bytes("b"))).await);
        assert!(conflict(&|batch| batch.expect_empty(bytes(""), bytes("a\0"))).await);
        assert_eq!(store.get(b"b").await.unwrap(), None);
        assert!(!conflict(&|batch| batch.expect_empty(bytes("a\0"), bytes("zz"))).await);
        assert!(!conflict(&|batch| batch.expect_empty(bytes("b"), bytes("a"))).await);
        assert!(!conflict(&|batch| batch.expect(bytes("a"), Some(bytes("1")))).await);
    });
}

#[test]
fn many_writers_lose_no_increment() {
    const WRITERS: u64 = 16;
    const ROUNDS: u64 = 8;
    each_engine(|store| async move {
        let increment = |store: Arc<dyn MetaStore>| async move {
            for _ in 0..ROUNDS {
                loop {
                    let seen = store.get(b"n").await.unwrap();
                    let count = seen.as_deref().map_or(0, |n| n[0]);
                    let mut batch = Batch::default();
                    batch.expect(bytes("n"), seen);
                    batch.put(bytes("n"), Bytes::copy_from_slice(&[count + 1]));
                    match store.commit(batch).await {
                        Ok(()) => break,
                        Err(MetaError::Conflict) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        };
        let tasks: Vec<_> =
            (0..WRITERS).map(|_| tokio::spawn(increment(Arc::clone(&store)))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let total = store.get(b"n").await.unwrap().unwrap();
        assert_eq!(u64::from(total[0]), WRITERS * ROUNDS);
    });
}

#[test]
fn the_embedded_store_outlives_its_process() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap();
    assert!(
        EmbeddedStore::open(dir.path(), &MetaConfig::default()).is_err(),
        "two processes never share the file"
    );
    runtime.block_on(store.commit(put("k", "v"))).unwrap();
    drop(store);
    let store = EmbeddedStore::open(dir.path(), &MetaConfig::default()).unwrap();
    assert_eq!(runtime.block_on(store.get(b"k")).unwrap(), Some(bytes("v")));
}

#[test]
fn without_a_reserve_only_what_frees_space_goes_through() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = MetaConfig { reserve_bytes: u64::MAX, ..MetaConfig::default() };
    let store = EmbeddedStore::open(dir.path(), &config).unwrap();
    let refused = runtime.block_on(store.commit(put("k", "v")));
    assert!(matches!(refused, Err(MetaError::Full)), "{refused:?}");
    runtime.block_on(store.commit(Batch { frees_space: true, ..put("k", "v") })).unwrap();
    assert_eq!(runtime.block_on(store.get(b"k")).unwrap(), Some(bytes("v")));
}

/// Reads, scans and outcomes are counted; a group that changed nothing is no commit.
#[test]
fn the_embedded_store_tells_what_it_did() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (told, groups) = std::sync::mpsc::channel();
    let store = EmbeddedStore::open_observed(dir.path(), &MetaConfig::default(), move |group| {
        told.send(group).unwrap();
    })
    .unwrap();
    runtime.block_on(async {
        // Polled in turn, so that all four wait before the writer has answered the first.
        let puts = ["a", "b", "c", "d"].map(|key| store.commit(put(key, "1")));
        for outcome in futures::future::join_all(puts).await {
            outcome.unwrap();
        }
        let mut conflicting = put("e", "1");
        conflicting.expect(bytes("a"), None);
        assert!(matches!(store.commit(conflicting).await, Err(MetaError::Conflict)));
        store.get(b"a").await.unwrap();
        assert_eq!(store.scan(b"b", b"z", 2).await.unwrap().len(), 2);
    });
    let stats = store.stats();
    let expected = MetaStats {
        reads: 1,
        scans: 1,
        scanned_entries: 2,
        committed: 4,
        conflicts: 1,
        ..MetaStats::default()
    };
    assert_eq!(stats, expected);
    drop(store);
    let groups: Vec<GroupCommit> = groups.iter().collect();
    assert_eq!(groups.iter().map(|group| group.batches).sum::<usize>(), 4);
    assert!(groups.iter().all(|group| group.batches > 0 && !group.duration.is_zero()));
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
struct Step {
    expect: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    scan: (Vec<u8>, Vec<u8>, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || proptest::collection::vec(0_u8..3, 0..3);
    let value = || proptest::option::of(proptest::collection::vec(0_u8..2, 0..2));
    (
        proptest::collection::vec((key(), value()), 0..2),
        proptest::collection::vec((key(), value()), 0..4),
        (key(), key(), 0_usize..5),
    )
        .prop_map(|(expect, writes, scan)| Step { expect, writes, scan })
}

fn owned(pairs: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<(Bytes, Option<Bytes>)> {
    pairs.iter().map(|(key, value)| (key.clone().into(), value.clone().map(Bytes::from))).collect()
}

async fn replay(store: Arc<dyn MetaStore>, steps: &[Step]) {
    let mut model = Entries::new();
    for step in steps {
        let batch =
            Batch { expect: owned(&step.expect), writes: owned(&step.writes), ..Batch::default() };
        let holds = step.expect.iter().all(|(key, value)| model.get(key) == value.as_ref());
        if holds {
            for (key, value) in &step.writes {
                match value {
                    Some(value) => drop(model.insert(key.clone(), value.clone())),
                    None => drop(model.remove(key)),
                }
            }
        }
        assert_eq!(store.commit(batch).await.is_ok(), holds);
        let (start, end, limit) = &step.scan;
        let wanted: Vec<(Bytes, Bytes)> = model
            .iter()
            .filter(|(key, _)| start <= *key && *key < end)
            .take(*limit)
            .map(|(key, value)| (key.clone().into(), value.clone().into()))
            .collect();
        assert_eq!(store.scan(start, end, *limit).await.unwrap(), wanted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn histories_match_a_plain_map(steps in proptest::collection::vec(step(), 1..24)) {
        each_engine(|store| {
            let steps = steps.clone();
            async move { replay(store, &steps).await }
        });
    }
}

#[test]
fn what_is_in_memory_alone_is_durable_with_what_follows_and_at_the_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (dir, after_crash) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &std::path::Path| EmbeddedStore::open(dir, &MetaConfig::default()).unwrap();
    let fleeting = |key, value| Batch { durability: Durability::Memory, ..put(key, value) };
    // The files as a crash at this moment would leave them.
    let crash = || {
        copy_store(dir.path(), after_crash.path());
        let found = open(after_crash.path());
        ["a", "b", "c"].map(|key| runtime.block_on(found.get(key.as_bytes())).unwrap())
    };
    let store = open(dir.path());
    runtime.block_on(store.commit(put("a", "1"))).unwrap();
    runtime.block_on(store.commit(fleeting("a", "2"))).unwrap();
    runtime.block_on(store.commit(fleeting("b", "2"))).unwrap();
    assert_eq!(runtime.block_on(store.get(b"a")).unwrap(), Some(bytes("2")));
    assert_eq!(crash(), [Some(bytes("1")), None, None]);
    runtime.block_on(store.commit(put("c", "3"))).unwrap();
    let all = [Some(bytes("2")), Some(bytes("2")), Some(bytes("3"))];
    assert_eq!(crash(), all);
    runtime.block_on(store.commit(fleeting("c", "4"))).unwrap();
    assert_eq!(crash(), all);
    drop(store);
    assert_eq!(crash(), [Some(bytes("2")), Some(bytes("2")), Some(bytes("4"))]);
}

/// Whatever the journal has and the tree has not, of commits that were answered none is missing after
/// a crash, and what is there is a state that there was.
#[test]
fn a_crash_between_any_two_commits_leaves_all_that_was_durable() {
    const COMMITS: usize = 120;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for reserve_bytes in [8 << 20, 100 << 10, 0] {
        let mut random = fastrand::Rng::with_seed(reserve_bytes);
        let mut dir = tempfile::tempdir().unwrap();
        let config = MetaConfig { reserve_bytes, ..MetaConfig::default() };
        let mut store = EmbeddedStore::open(dir.path(), &config).unwrap();
        let read = |store: &EmbeddedStore| {
            let rows = runtime.block_on(store.scan(b"", b"z", usize::MAX)).unwrap();
            rows.into_iter().collect::<BTreeMap<_, _>>()
        };
        let mut states = vec![read(&store)];
        let mut durable = 0;
        for commit in 1..=COMMITS {
            let mut batch = Batch::default();
            for _ in 0..random.usize(1..5) {
                let key = bytes(&format!("k{}", random.u8(..9)));
                match random.bool() {
                    true => batch.put(key, bytes(&"v".repeat(random.usize(..3000)))),
                    false => batch.delete(key),
                }
            }
            // No two states are the same.
            batch.put(bytes("commit"), bytes(&commit.to_string()));
            if random.bool() {
                batch.durability = Durability::Memory;
            } else {
                durable = commit;
            }
            runtime.block_on(store.commit(batch)).unwrap();
            states.push(read(&store));
            let after_crash = tempfile::tempdir().unwrap();
            copy_store(dir.path(), after_crash.path());
            let found = EmbeddedStore::open(after_crash.path(), &config).unwrap();
            let at = states.iter().position(|state| *state == read(&found));
            assert!(at.is_some_and(|at| at >= durable), "{durable} of {commit}: {at:?}");
            if commit % 40 == 0 {
                // On from what the crash has left.
                (store, dir) = (found, after_crash);
                states.truncate(at.unwrap() + 1);
                states.resize(commit + 1, read(&store));
            }
        }
    }
}

#[test]
fn a_journal_that_does_not_follow_its_tree_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (dir, mixed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &std::path::Path| EmbeddedStore::open(dir, &MetaConfig::default());
    let tree = |dir: &tempfile::TempDir| dir.path().join(embedded::FILE_NAME);
    drop(open(dir.path()).unwrap());
    let before = std::fs::read(tree(&dir)).unwrap();
    // A commit that the tree has, then one that the journal alone has.
    for value in ["1", "2"] {
        let store = open(dir.path()).unwrap();
        runtime.block_on(store.commit(put("a", value))).unwrap();
        copy_store(dir.path(), mixed.path());
    }
    drop(open(mixed.path()).unwrap());
    copy_store(dir.path(), mixed.path());
    std::fs::write(tree(&mixed), before).unwrap();
    let refused = open(mixed.path()).err();
    assert!(matches!(refused, Some(MetaError::Engine(_))), "{refused:?}");
}

#[test]
fn appended_rows_stand_in_the_order_of_their_commits() {
    const WRITERS: u8 = 8;
    const ROUNDS: u8 = 8;
    let append = |prefix: &str, value: &[u8]| Append {
        counter: bytes("#"),
        prefix: bytes(prefix),
        value: Bytes::copy_from_slice(value),
    };
    each_engine(|store| async move {
        // Those of one batch, and those of a batch that is refused.
        let appends = vec![append("a", b"1"), append("b", b"2")];
        let two = Batch { appends, ..Batch::default() };
        store.commit(two).await.unwrap();
        let mut refused = Batch::default();
        refused.expect(bytes("missing"), Some(bytes("x")));
        refused.appends.push(append("a", b"never"));
        assert!(matches!(store.commit(refused).await, Err(MetaError::Conflict)));
        assert_eq!(store.get(b"a\0\0\0\0\0\0\0\x01").await.unwrap(), Some(bytes("1")));
        assert_eq!(store.get(b"b\0\0\0\0\0\0\0\x02").await.unwrap(), Some(bytes("2")));
        assert_eq!(store.get(b"#").await.unwrap(), Some(bytes("\0\0\0\0\0\0\0\x02")));
        let writing = (0..WRITERS).map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let mut batch = Batch::default();
                    batch.appends.push(append("c", &[writer, round]));
                    store.commit(batch).await.unwrap();
                }
            })
        });
        for writer in writing.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        let rows = store.scan(b"c", b"d", 1000).await.unwrap();
        assert_eq!(rows.len(), usize::from(WRITERS * ROUNDS));
        for writer in 0..WRITERS {
            let rounds = rows.iter().filter(|(_, row)| row[0] == writer).map(|(_, row)| row[1]);
            assert!(rounds.eq(0..ROUNDS), "a writer's later row stands before its earlier one");
        }
    });
}
