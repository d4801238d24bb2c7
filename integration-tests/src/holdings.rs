//! What a process holds of things that could leak: mappings of memory that it shares with
//! others, descriptors by kind, memory that may not be swapped.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

/// How the kernel names the memory files of clients and nodes.
const MEMORY_FILE: &str = "/memfd:keyway";

/// What a process holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Mappings of memory files.
    pub mappings: usize,
    /// Their bytes.
    pub mapped_bytes: u64,
    /// Descriptors of memory files.
    pub memory_files: usize,
    /// Sockets.
    pub sockets: usize,
    /// Other processes that are watched.
    pub processes: usize,
    /// Memory that is locked or pinned, in KiB.
    pub pinned_kib: u64,
}

impl Holdings {
    /// Of the process with this id.
    ///
    /// # Errors
    /// When there is none, or it is another user's.
    pub fn of(pid: u32) -> Result<Self> {
        let process = Path::new("/proc").join(pid.to_string());
        let mut holdings = Self::default();
        for line in read(&process.join("maps"))?.lines().filter(|it| it.contains(MEMORY_FILE)) {
            let (from, to) =
                line.split(' ').next().and_then(|it| it.split_once('-')).context("a range")?;
            holdings.mappings += 1;
            holdings.mapped_bytes += u64::from_str_radix(to, 16)? - u64::from_str_radix(from, 16)?;
        }
        for (kind, count) in descriptors(&process.join("fd"))? {
            if kind.starts_with(MEMORY_FILE) {
                holdings.memory_files += count;
            } else if kind.starts_with("socket:") {
                holdings.sockets += count;
            } else if kind.contains("pidfd") {
                holdings.processes += count;
            }
        }
        for line in read(&process.join("status"))?.lines() {
            let (name, value) = line.split_once(':').unwrap_or_default();
            if ["VmLck", "VmPin"].contains(&name) {
                let kib = value.trim().split(' ').next().context("an amount")?;
                holdings.pinned_kib += kib.parse::<u64>()?;
            }
        }
        Ok(holdings)
    }

    /// Whether it is as much as `other`, and no more sockets: how many connections are kept is
    /// a matter of chance.
    pub fn fits(&self, other: &Self) -> bool {
        self.sockets <= other.sockets && Self { sockets: other.sockets, ..self.clone() } == *other
    }
}

/// The open descriptors, counted by what they lead to.
fn descriptors(folder: &Path) -> Result<BTreeMap<String, usize>> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        // It may have been closed since the listing.
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        *kinds.entry(target.to_string_lossy().into_owned()).or_default() += 1;
    }
    Ok(kinds)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Other tests of this process open and close sockets meanwhile; nobody makes such files.
    #[test]
    fn what_is_held_is_seen() {
        let of_us = || Holdings::of(std::process::id()).expect("our own");
        let before = of_us();
        let file = memfd_create(c"keyway", MemfdFlags::CLOEXEC).expect("a file");
        let _socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let held = of_us();
        assert_eq!(held.memory_files, before.memory_files + 1);
        assert!(held.sockets > 0, "{held:?}");
        drop(file);
        assert_eq!(of_us().memory_files, before.memory_files);
        assert!(Holdings::of(u32::MAX).is_err());
    }
}
