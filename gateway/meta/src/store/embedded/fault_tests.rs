//! Goal: after a flush that failed nothing is acknowledged that may not be on the device, and no
//! answer says that nothing was changed where something may have been. Method: flushes that fail when
//! they are told to, of the tree and of the journal.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::atomic::{AtomicI32, Ordering};

use tempfile::TempDir;

use super::flush::Flushed;
use super::*;

/// A store whose flushes of one file fail with an error number, unless it is 0.
struct Faulty {
    dir: TempDir,
    errno: Arc<AtomicI32>,
    store: EmbeddedStore,
}

impl Faulty {
    fn new(of: Flushed) -> Self {
        let (dir, errno) = (tempfile::tempdir().unwrap(), Arc::new(AtomicI32::new(0)));
        let armed = Arc::clone(&errno);
        let flushes = Flushes::new(move |what, file| match armed.load(Ordering::SeqCst) {
            errno if errno != 0 && what == of => Err(io::Error::from_raw_os_error(errno)),
            _ => file.sync_data(),
        });
        let store = EmbeddedStore::open_with(dir.path(), &config(of), flushes, Box::new(|_| {}));
        Self { dir, errno, store: store.unwrap() }
    }

    fn fail(&self, errno: rustix::io::Errno) {
        self.errno.store(errno.raw_os_error(), Ordering::SeqCst);
    }

    fn heal(&self) {
        self.errno.store(0, Ordering::SeqCst);
    }

    async fn put(&self, key: &'static str) -> Result<(), MetaError> {
        put(&self.store, key).await
    }

    async fn has(&self, key: &str) -> bool {
        self.store.get(key.as_bytes()).await.unwrap().is_some()
    }
}

/// Each durable commit flushes the file.
fn config(of: Flushed) -> MetaConfig {
    match of {
        Flushed::Tree => MetaConfig { reserve_bytes: 0, ..MetaConfig::default() },
        Flushed::Journal => MetaConfig::default(),
    }
}

async fn put(store: &EmbeddedStore, key: &'static str) -> Result<(), MetaError> {
    let mut batch = Batch { durability: keyway_proto::Durability::Disk, ..Batch::default() };
    batch.put(Bytes::from_static(key.as_bytes()), Bytes::from_static(b"value"));
    store.commit(batch).await
}

#[tokio::test]
async fn a_failed_flush_refuses_commits_until_a_restart_and_reads_go_on() {
    for of in [Flushed::Tree, Flushed::Journal] {
        let faulty = Faulty::new(of);
        faulty.put("before").await.unwrap();
        faulty.fail(rustix::io::Errno::IO);
        let unknown = faulty.put("during").await;
        assert!(matches!(unknown, Err(MetaError::Engine(_))), "{of:?}: {unknown:?}");
        faulty.heal();
        for _ in 0..3 {
            let refused = faulty.put("after").await;
            assert!(matches!(refused, Err(MetaError::Engine(_))), "{of:?}: {refused:?}");
            assert!(faulty.has("before").await);
            assert!(!faulty.has("during").await && !faulty.has("after").await);
        }
        let Faulty { dir, store, .. } = faulty;
        drop(store);
        let store = EmbeddedStore::open(dir.path(), &config(of)).unwrap();
        assert!(store.get(b"before").await.unwrap().is_some(), "{of:?}");
        assert!(store.get(b"after").await.unwrap().is_none(), "{of:?}");
        put(&store, "after").await.unwrap();
    }
}

#[tokio::test]
async fn a_flush_without_space_leaves_the_outcome_open_and_the_store_goes_on() {
    for of in [Flushed::Tree, Flushed::Journal] {
        let faulty = Faulty::new(of);
        faulty.put("before").await.unwrap();
        faulty.fail(rustix::io::Errno::NOSPC);
        let unknown = faulty.put("during").await;
        assert!(matches!(unknown, Err(MetaError::Engine(_))), "{of:?}: {unknown:?}");
        faulty.heal();
        faulty.put("after").await.unwrap();
        assert!(faulty.has("before").await && faulty.has("after").await, "{of:?}");
        // Its bytes were written: that nothing was changed would have been untrue.
        assert!(faulty.has("during").await, "{of:?}");
    }
}
