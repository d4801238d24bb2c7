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

/// The types of file systems in memory, as of statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58F6;

/// What was chosen, and why.
pub(super) struct Access {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) direct: bool,
    pub(super) described: String,
}

pub(super) fn choose(config: &StoreConfig, pool: &LeasePool) -> Result<Access, OpenStoreError> {
    let (disk, disk_described) = choose_disk(config.io_uring, &config.dir, pool)?;
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
    dir: &Path,
    pool: &LeasePool,
) -> Result<(Arc<dyn Disk>, String), OpenStoreError> {
    let refused = match mode {
        AccessMode::Off => "io_uring is off".to_owned(),
        AccessMode::Auto if is_in_memory(dir) => "the file system is in memory".to_owned(),
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

/// Whether files there are nothing but memory. No operation waits for a device then, and a ring
/// would hand every write to a thread of the kernel's: a fifth more of a processor for each.
fn is_in_memory(dir: &Path) -> bool {
    let found = rustix::fs::statfs(dir);
    found.is_ok_and(|found| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(found.f_type as u64)))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev/shm` is a tmpfs wherever it is mounted, and `/proc` is none.
    #[test]
    fn a_file_system_in_memory_is_known() {
        assert!(!is_in_memory(Path::new("/proc")));
        assert!(!is_in_memory(Path::new("/no/such/folder")));
        let mounts = std::fs::read_to_string("/proc/mounts").expect("Linux");
        // Containers call the device `shm`.
        if mounts.lines().any(|mount| mount.contains(" /dev/shm tmpfs ")) {
            assert!(is_in_memory(Path::new("/dev/shm")));
        } else {
            println!("skipped: nothing is mounted at /dev/shm");
        }
    }
}
