//! Whose chunks a node keeps.
//!
//! A catalog deletes what it does not know from its nodes. Were a node given to a second one, by a
//! gateway with an empty data directory say, each would delete the other's objects. So the first
//! has the node for good: its id lies beside the store, and nobody else is let in. Who wants to
//! give a node to another catalog, and knows that its chunks are lost by that, removes the file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use keyway_proto::CatalogId;
use parking_lot::RwLock;

use crate::node::TransferError;

const FILE_NAME: &str = "catalog";

/// The catalog that came first, where one did.
#[derive(Default)]
pub(super) struct Owner {
    /// The store's directory; a store in memory has none, and is its process's alone.
    dir: Option<PathBuf>,
    claimed: RwLock<Option<CatalogId>>,
}

impl Owner {
    /// As the store in `dir` has it.
    pub(super) fn of(dir: PathBuf) -> io::Result<Self> {
        let claimed = match fs::read_to_string(dir.join(FILE_NAME)) {
            Ok(text) => Some(text.trim().parse().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{FILE_NAME}: {error}"))
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { dir: Some(dir), claimed: RwLock::new(claimed) })
    }

    /// Lets the first catalog in, and from then on no other.
    pub(super) fn claim(&self, catalog: Option<CatalogId>) -> Result<(), TransferError> {
        if *self.claimed.read() == catalog {
            return Ok(());
        }
        let mut claimed = self.claimed.write();
        match (*claimed, catalog) {
            (Some(owner), _) if Some(owner) != catalog => Err(TransferError::OtherCatalog),
            (None, Some(catalog)) => {
                if let Some(dir) = &self.dir {
                    write_durably(dir, catalog).map_err(|error| TransferError::Store {
                        reason: format!("keeping whose it is: {error}").into(),
                        sticky: false,
                    })?;
                }
                *claimed = Some(catalog);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// There as a whole, or not at all.
fn write_durably(dir: &Path, catalog: CatalogId) -> io::Result<()> {
    let written = dir.join(format!("{FILE_NAME}.new"));
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&written)?;
    writeln!(file, "{catalog}")?;
    file.sync_all()?;
    fs::rename(&written, dir.join(FILE_NAME))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_catalog_stays_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (CatalogId::generate(), CatalogId::generate());
        let owner = Owner::of(dir.path().to_owned()).unwrap();
        owner.claim(None).unwrap();
        owner.claim(Some(first)).unwrap();
        for owner in [owner, Owner::of(dir.path().to_owned()).unwrap()] {
            owner.claim(Some(first)).unwrap();
            for other in [None, Some(second)] {
                let refused = owner.claim(other);
                assert!(matches!(refused, Err(TransferError::OtherCatalog)), "{refused:?}");
            }
        }
    }

    #[test]
    fn a_file_that_says_nothing_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE_NAME), "").unwrap();
        assert!(Owner::of(dir.path().to_owned()).is_err());
    }

    #[test]
    fn what_cannot_be_kept_is_not_granted() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::of(dir.path().to_owned()).unwrap();
        dir.close().unwrap();
        let catalog = Some(CatalogId::generate());
        assert!(matches!(owner.claim(catalog), Err(TransferError::Store { sticky: false, .. })));
        assert!(owner.claim(None).is_ok(), "nobody has it");
    }
}
