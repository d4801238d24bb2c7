//! Flags that all server commands share, and the runtime that they run on.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use keyway_gateway::config::{Config, ConfigError, Runtime, Sources};

/// What every server command is told.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// Directory of all that the process keeps; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address to serve at; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Address of the admin listener (health, metrics).
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    #[command(flatten)]
    config: ConfigArgs,
}

impl ServerArgs {
    /// The configuration; `listen` names the setting that `--listen` stands for.
    pub(crate) fn config(self, listen: &str) -> Result<Config, ConfigError> {
        let flags = Flags::default()
            .path("data_dir", self.data_dir.as_deref())
            .text(listen, self.listen)
            .text("listen.admin_address", self.admin_listen);
        Config::load(&self.config.sources(flags))
    }
}

/// Where the configuration comes from.
#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "KEYWAY_CONFIG")]
    config: Option<PathBuf>,
    /// One setting, for example `--set limits.max_connections=100`; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

impl ConfigArgs {
    /// The sources, those flags included that have a name of their own.
    pub(crate) fn sources(self, flags: Flags) -> Sources {
        let mut all = self.set;
        all.extend(flags.0);
        Sources { file: self.config, flags: all }
    }
}

fn assignment(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

/// Settings that have a flag of their own; those not given stay out.
#[derive(Default)]
pub(crate) struct Flags(Vec<(String, String)>);

impl Flags {
    pub(crate) fn text(mut self, name: &str, value: Option<impl Display>) -> Self {
        // Quoted: a value is text even when it looks like something else.
        let quoted = value.map(|value| format!("{:?}", value.to_string()));
        self.0.extend(quoted.map(|value| (name.to_owned(), value)));
        self
    }

    pub(crate) fn path(self, name: &str, value: Option<&Path>) -> Self {
        self.text(name, value.map(Path::display))
    }
}

/// A runtime with the configured number of threads.
pub(crate) fn runtime(config: &Runtime) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = config.worker_threads {
        builder.worker_threads(threads);
    }
    builder.thread_name("keyway").enable_all().build().context("cannot start the threads")
}
