//! Where the root tenant's credentials come from.

use keyway_auth::{KeyFile, RootCredentials};

use super::ServeError;
use super::data_dir::DataDir;
use crate::config::Config;

/// The root credentials in use.
#[derive(Clone, Debug)]
pub struct Root {
    /// The credentials.
    pub credentials: RootCredentials,
    /// Whether this start generated them, so that they must be shown: they never are again.
    pub generated: bool,
}

/// Those of the configuration, else those stored, else new ones; stored afterwards.
pub(super) fn root(config: &Config, data: &DataDir) -> Result<Root, ServeError> {
    let key = KeyFile::open_or_create(&data.key_file()).map_err(ServeError::KeyFile)?;
    let path = data.root_credentials();
    let stored = RootCredentials::load(&path, &key).map_err(ServeError::Root)?;
    let (credentials, generated) = match (config.root_credentials()?, stored) {
        (Some(given), Some(stored)) if given.same_as(&stored) => {
            return Ok(Root { credentials: given, generated: false });
        }
        (Some(given), _) => (given, false),
        (None, Some(stored)) => return Ok(Root { credentials: stored, generated: false }),
        (None, None) => (RootCredentials::generate(), true),
    };
    credentials.store(&path, &key).map_err(ServeError::Root)?;
    Ok(Root { credentials, generated })
}
