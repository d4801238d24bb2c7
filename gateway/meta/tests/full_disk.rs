//! Goal: on a full device commits are refused as such, reads go on, deleting goes on while
//! there is a reserve, and space recovers everything without opening the store again.
//! Method: a small tmpfs, which takes the privilege to mount one.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::*;
use keyway_meta::catalog::{CatalogError, WriteCondition};
use keyway_meta::{Bucket, EmbeddedStore, MetaConfig, MetaError};

/// A tmpfs of its own; unmounted when dropped.
struct Tmpfs {
    dir: tempfile::TempDir,
}

impl Tmpfs {
    /// `None` where this process may not mount one.
    fn mount(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Self::command("mount", &["-t", "tmpfs", "-o", options, "tmpfs"], dir.path());
        mounted.then_some(Self { dir })
    }

    fn grow(&self, options: &str) {
        assert!(Self::command("mount", &["-o", options], self.dir.path()));
    }

    fn command(program: &str, arguments: &[&str], path: &Path) -> bool {
        let output = Command::new(program).args(arguments).arg(path).output();
        output.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        assert!(Self::command("umount", &["--lazy"], self.dir.path()));
    }
}

/// Publishes until it is refused; answers how many were taken.
async fn fill(setup: &Setup, bucket: &Bucket, from: usize) -> usize {
    for n in from..1_000_000 {
        match setup.publish(bucket, &format!("{n:0>800}"), &object(4)).await {
            Ok(()) => {}
            Err(CatalogError::Store(MetaError::Full)) => return n,
            Err(error) => panic!("after {n}: {error}"),
        }
    }
    panic!("the device never fills");
}

async fn full_and_back(reserve_bytes: u64) {
    let Some(tmpfs) = Tmpfs::mount("size=12m") else {
        println!("skipped: mounting a tmpfs is not permitted here");
        return;
    };
    let config = MetaConfig { reserve_bytes, ..MetaConfig::default() };
    let store = EmbeddedStore::open(tmpfs.dir.path(), &config).unwrap();
    let setup = Setup::over(Arc::new(store));
    let bucket = setup.bucket("bucket").await;
    let stored = fill(&setup, &bucket, 0).await;
    assert!(stored > 100, "{stored}");
    let name = |n: usize| key(&format!("{n:0>800}"));
    for _ in 0..3 {
        let refused = setup.publish(&bucket, "one more", &object(4)).await;
        assert!(matches!(refused, Err(CatalogError::Store(MetaError::Full))), "{refused:?}");
        setup.catalog.object(&bucket, &name(0)).await.unwrap();
        setup.catalog.object(&bucket, &name(stored - 1)).await.unwrap();
    }
    if reserve_bytes > 0 {
        let deleted = setup.catalog.delete(&bucket, &name(0), WriteCondition::None, stamp()).await;
        assert!(deleted.unwrap().existed);
    }
    tmpfs.grow("remount,size=64m");
    for n in stored..stored + 100 {
        setup.publish(&bucket, &format!("{n:0>800}"), &object(4)).await.unwrap();
    }
    setup.catalog.object(&bucket, &name(stored + 99)).await.unwrap();
    drop(setup);
}

#[tokio::test]
async fn within_the_reserve_only_deleting_goes_on() {
    full_and_back(2 << 20).await;
}

#[tokio::test]
async fn without_a_reserve_the_store_survives_failed_writes() {
    full_and_back(0).await;
}
