//! How volumes are opened and which engine reaches them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use keyway_fabric::memory::LeasePool;

use super::OpenStoreError;
use super::disk::Disk;
use super::disk::ring::Ring;
use super::disk::threads::Threads;
use crate::store::{AccessMode, StoreConfig};

/// Of files that are made: objects' bytes are nobody else's on this machine.
pub(super) const FILE_MODE: u32 = 0o600;

/// What was chosen, and why.
pub(super) struct Access {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) direct: bool,
    pub(super) described: String,
}

pub(super) fn choose(config: &StoreConfig, pool: &LeasePool) -> Result<Access, OpenStoreError> {
    let (disk, disk_described) = choose_disk(config.io_uring, pool)?;
    let (direct, direct_described) = choose_direct(config.direct_io, &config.dir)?;
    Ok(Access { disk, direct, described: format!("{disk_described}, {direct_described}") })
}

/// Opens a volume for reading and writing.
pub(super) fn open_volume(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn choose_disk(
    mode: AccessMode,
    pool: &LeasePool,
) -> Result<(Arc<dyn Disk>, String), OpenStoreError> {
    let refused = match mode {
        AccessMode::Off => "io_uring is off".to_owned(),
        AccessMode::Auto | AccessMode::Require => match Ring::start(pool.clone()) {
            Ok(ring) => {
                let buffers = if ring.registered_buffers {
                    "io_uring"
                } else {
                    "io_uring (buffers not registered: the limit of locked memory is too low)"
                };
                return Ok((Arc::new(ring), buffers.to_owned()));
            }
            Err(source) if mode == AccessMode::Require => {
                return Err(OpenStoreError::Required { feature: "io_uring", source });
            }
            Err(error) => format!("io_uring is refused: {error}"),
        },
    };
    let threads = Threads::start().map_err(OpenStoreError::Threads)?;
    Ok((Arc::new(threads), format!("threads ({refused})")))
}

fn choose_direct(mode: AccessMode, dir: &Path) -> Result<(bool, String), OpenStoreError> {
    if mode == AccessMode::Off {
        return Ok((false, "buffered (O_DIRECT is off)".to_owned()));
    }
    match probe_direct(dir) {
        Ok(()) => Ok((true, "O_DIRECT".to_owned())),
        Err(source) if mode == AccessMode::Require => {
            Err(OpenStoreError::Required { feature: "O_DIRECT", source })
        }
        Err(error) => Ok((false, format!("buffered (O_DIRECT is refused: {error})"))),
    }
}

fn probe_direct(dir: &Path) -> io::Result<()> {
    let path = dir.join("probe.tmp");
    let probed = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    let _ = std::fs::remove_file(&path);
    probed.map(drop)
}
