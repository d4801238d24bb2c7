//! The data directory: what lies where, and that only one process uses it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// It cannot be made or written.
    #[error("cannot use the data directory {}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another process uses it.
    #[error("another process{owner} uses the data directory {}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Its process id, where it can be read, with a leading space.
        owner: String,
    },
}

/// A data directory that this process holds. The lock is the kernel's and ends with the
/// process, however that ends.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Takes the directory, making it (mode 0700) where there is none.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] when another process holds it.
    pub fn lock(path: &Path) -> Result<Self, DataDirError> {
        let failed = |source| DataDirError::Io { path: path.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let path = fs::canonicalize(path).map_err(failed)?;
        let failed = |source| DataDirError::Io { path: path.clone(), source };
        let file = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&file)
            .map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let owner = fs::read_to_string(&file).unwrap_or_default();
                let owner = owner.trim().parse::<u32>();
                let owner = owner.map_or_else(|_| String::new(), |id| format!(" (id {id})"));
                return Err(DataDirError::InUse { path, owner });
            }
            Err(error) => return Err(failed(error.into())),
        }
        // For people and the message above; the lock itself does not depend on it.
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    /// The socket for clients of this host.
    pub fn door(&self) -> PathBuf {
        self.path.join("door")
    }

    /// Metadata.
    ///
    /// # Errors
    /// [`DataDirError::Io`] when the directory cannot be made.
    pub fn meta(&self) -> Result<PathBuf, DataDirError> {
        self.made("meta")
    }

    /// The blob store.
    ///
    /// # Errors
    /// [`DataDirError::Io`] when the directory cannot be made.
    pub fn store(&self) -> Result<PathBuf, DataDirError> {
        self.made("store")
    }

    fn made(&self, name: &str) -> Result<PathBuf, DataDirError> {
        let path = self.path.join(name);
        match fs::DirBuilder::new().recursive(true).mode(0o700).create(&path) {
            Ok(()) => Ok(path),
            Err(source) => Err(DataDirError::Io { path, source }),
        }
    }

    /// The key that secrets are sealed under.
    pub fn key_file(&self) -> PathBuf {
        self.path.join("secrets.key")
    }

    /// The audit log.
    pub fn audit(&self) -> PathBuf {
        self.path.join("audit.jsonl")
    }

    /// The root tenant's sealed credentials.
    pub fn root_credentials(&self) -> PathBuf {
        self.path.join("root.sealed")
    }

    /// The authority of generated certificates, and the certificates.
    pub fn tls(&self) -> PathBuf {
        self.path.join("tls")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/data");
        let held = DataDir::lock(&path).unwrap();
        match DataDir::lock(&path) {
            Err(DataDirError::InUse { owner, .. }) => {
                assert_eq!(owner, format!(" (id {})", std::process::id()));
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        DataDir::lock(&path).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(matches!(DataDir::lock(&path), Err(DataDirError::Io { .. })));
    }
}
