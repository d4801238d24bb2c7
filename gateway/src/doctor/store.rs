//! What a store in the data directory would be like: by opening one and asking it.

use std::fs;
use std::path::{Path, PathBuf};

use keyway_dataplane::{LocalNode, NodeConfig, StorageNode, StoreConfig};
use keyway_proto::unit::{GIB, MIB};

use super::{Finding, chain};

/// Size of the store that is opened to see how: enough for one volume.
const TRIAL_BYTES: u64 = 64 * MIB;
/// Less free space than this is worth a word.
const FREE_BYTES_WANTED: u64 = 10 * GIB;

pub(super) async fn examine(data_dir: &Path) -> Vec<Finding> {
    let trial = match Trial::make(data_dir) {
        Ok(trial) => trial,
        Err(error) => {
            let found = format!("{}: {error}", data_dir.display());
            let advice = "choose a directory that this user can write (--data-dir)";
            return vec![Finding::bad("data directory", found, advice)];
        }
    };
    let mut findings = vec![space(data_dir, &trial)];
    findings.push(access(&trial).await);
    findings
}

fn space(data_dir: &Path, trial: &Trial) -> Finding {
    let subject = "data directory";
    match rustix::fs::statvfs(&trial.path) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let found = format!("{}: {} GiB free", data_dir.display(), free / GIB);
            if free < FREE_BYTES_WANTED {
                Finding::fair(subject, found, "there is little space for objects")
            } else {
                Finding::good(subject, found)
            }
        }
        Err(error) => Finding::bad(subject, error.to_string(), "the file system does not answer"),
    }
}

async fn access(trial: &Trial) -> Finding {
    let subject = "store access";
    let store = StoreConfig {
        dir: trial.path.join("store"),
        capacity_bytes: Some(TRIAL_BYTES),
        volume_bytes: TRIAL_BYTES,
        pool_bytes: 8 << 20,
        ..StoreConfig::default()
    };
    let opened = LocalNode::open(NodeConfig { store, ..NodeConfig::default() }).await;
    let node = match opened {
        Ok(node) => node,
        Err(error) => {
            return Finding::bad(subject, chain(&error), "the store does not open here");
        }
    };
    let status = node.status().await;
    node.close().await;
    match status {
        Ok(status) if status.access.contains('(') => Finding::fair(
            subject,
            status.access,
            "a fallback is in use: the reason is in the brackets",
        ),
        Ok(status) => Finding::good(subject, status.access),
        Err(error) => Finding::bad(subject, chain(&error), "the store does not answer"),
    }
}

/// A directory beside the data, removed at the end together with what had to be made for it.
struct Trial {
    path: PathBuf,
    /// The topmost directory that did not exist before.
    made: PathBuf,
}

impl Trial {
    fn make(data_dir: &Path) -> std::io::Result<Self> {
        let path = data_dir.join(format!("doctor-{}", std::process::id()));
        let made = path
            .ancestors()
            .take_while(|ancestor| !ancestor.as_os_str().is_empty() && !ancestor.exists())
            .last()
            .unwrap_or(&path)
            .to_owned();
        fs::create_dir_all(&path)?;
        Ok(Self { path, made })
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.made) {
            tracing::warn!(%error, path = %self.made.display(), "cannot remove");
        }
    }
}
