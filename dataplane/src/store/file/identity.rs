//! `store.toml`: whose store this is, and the lock that keeps a second process out.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use keyway_proto::NodeId;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::OpenStoreError;
use super::layout::FORMAT;

const FILE_NAME: &str = "store.toml";

/// Longest `store.toml` that is read.
const FILE_BYTES_MAX: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    format: u32,
    store: Uuid,
    node: NodeId,
}

/// A store's identity.
pub(super) struct Identity {
    /// Drawn when the store was made; every volume carries it.
    pub(super) store_id: [u8; 16],
}

impl Identity {
    /// Reads the identity in `dir`, or makes one; the file returned holds the lock.
    pub(super) fn open_or_make(dir: &Path, node: NodeId) -> Result<(Self, File), OpenStoreError> {
        let path = dir.join(FILE_NAME);
        let failed = |source| OpenStoreError::Dir { path: dir.to_owned(), source };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OpenStoreError::InUse { path: dir.to_owned() })?;
        let mut text = String::new();
        (&file).take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        if text.is_empty() {
            let described = Described { format: FORMAT, store: Uuid::now_v7(), node };
            write_durably(&mut file, dir, &described).map_err(failed)?;
            return Ok((Self { store_id: described.store.into_bytes() }, file));
        }
        let described = toml::from_str::<Described>(&text)
            .ok()
            .filter(|described| described.format == FORMAT)
            .ok_or(OpenStoreError::Foreign { path })?;
        if described.node != node {
            return Err(OpenStoreError::OtherNode {
                path: dir.to_owned(),
                found: described.node,
                expected: node,
            });
        }
        Ok((Self { store_id: described.store.into_bytes() }, file))
    }
}

fn write_durably(file: &mut File, dir: &Path, described: &Described) -> io::Result<()> {
    let text = toml::to_string(described).map_err(io::Error::other)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    File::open(dir)?.sync_all()
}
