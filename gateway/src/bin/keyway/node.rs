//! `keyway node`.

use std::net::SocketAddr;
use std::path::PathBuf;

use keyway_gateway::config::Config;

use crate::run::{finish, run_node};
use crate::settings::{ConfigArgs, Flags, runtime};

/// Runs a storage node that gateways reach over mutual TLS.
///
/// Certificates come from `keyway admin certs`. Prints one line on standard output when it
/// takes transfers: `keyway ready: URL admin=URL node=ID`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the store; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address that gateways reach the node at; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Address of the admin listener (health, metrics).
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let flags = Flags::default()
            .path("data_dir", self.data_dir.as_deref())
            .text("cluster.address", self.listen)
            .text("listen.admin_address", self.admin_listen);
        let config = Config::load(&self.config.sources(flags))?;
        finish(runtime(&config.runtime)?, run_node(config))
    }
}
