//! A client that knows forks.
//!
//! A child that uses its parent's handle gets a client of its own with the same settings: the
//! parent still speaks on the sockets of the other.

use keyway_client::Client;

use crate::failure::Failure;
use crate::process::PerProcess;
use crate::runtime::runtime;
use crate::settings::Settings;

/// A client with what it takes to make it again.
pub struct Connection {
    settings: Settings,
    opened: PerProcess<Opened>,
}

/// `None` once it is dropped.
struct Opened(Option<Client>);

impl Connection {
    /// A client with these settings. Nothing is connected before the first request.
    ///
    /// # Errors
    /// When a setting does not hold.
    pub fn open(settings: Settings) -> Result<Self, Failure> {
        let connection = Self { settings, opened: PerProcess::new() };
        connection.client()?;
        Ok(connection)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The client of this process.
    ///
    /// # Errors
    /// When a forked child cannot make its own.
    pub fn client(&self) -> Result<Client, Failure> {
        let opened = self.opened.get(|| {
            let runtime = runtime()?;
            let _entered = runtime.enter();
            Ok::<_, Failure>(Opened(Some(self.settings.builder()?.build()?)))
        })?;
        Ok(opened.0.clone().expect("only `drop` takes it"))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // What is left of its sessions is closed in the background, by this runtime.
        if let Ok(runtime) = runtime() {
            let _entered = runtime.enter();
            self.0 = None;
        }
    }
}
