//! A client that knows forks.
//!
//! Connections, sessions and their threads belong to the process that made them. A child that
//! uses its parent's handle gets a client of its own with the same settings; the parent's is
//! left as it is, neither used nor dropped, for the parent still speaks on its sockets.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use keyway_client::Client;

use crate::failure::Failure;
use crate::runtime::runtime;
use crate::settings::Settings;

/// A client with what it takes to make it again.
pub struct Connection {
    settings: Settings,
    opened: ArcSwapOption<Opened>,
}

struct Opened {
    process: u32,
    /// `None` once it is dropped.
    client: Option<Client>,
}

impl Connection {
    /// A client with these settings. Nothing is connected before the first request.
    ///
    /// # Errors
    /// When a setting does not hold.
    pub fn open(settings: Settings) -> Result<Self, Failure> {
        let connection = Self { settings, opened: ArcSwapOption::empty() };
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
        let process = std::process::id();
        let opened = self.opened.load();
        if let Some(opened) = opened.as_ref().filter(|opened| opened.process == process) {
            return Ok(opened.client.clone().expect("only `drop` takes it"));
        }
        let client = {
            let _runtime = runtime()?.enter();
            self.settings.builder()?.build()?
        };
        let made = Opened { process, client: Some(client.clone()) };
        self.opened.store(Some(Arc::new(made)));
        Ok(client)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let client = self.client.take();
        if self.process != std::process::id() {
            std::mem::forget(client);
            return;
        }
        // What is left of its sessions is closed in the background, by this runtime.
        let _runtime = runtime().map(|runtime| runtime.enter());
        drop(client);
    }
}
